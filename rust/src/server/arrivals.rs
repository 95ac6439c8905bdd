//! Wakes pulls that wait for messages.
//!
//! In:     queues, and the queue offsets that the pulls wait for.
//! Out:    a wake-up for each pull when its queue has grown.
//! Always: one thread waits for the log on behalf of all pulls. A pull that ended is removed with the next message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::base::sync::unmodelled::{Condvar, Mutex};
use crate::base::units::{PhysicalOffset, QueueId};
use crate::store::Store;

/// The maximum wait of the thread, so that it notices in this time that the server stops, in milliseconds.
const LOOK_MS: u64 = 200;
/// The pause between two checks of the queues. Without it, a busy store would keep the thread busy for silent queues.
const PAUSE: Duration = Duration::from_millis(1);

type Queue = (String, i32);
/// The queue offset that the queue's end must exceed, and the sender that wakes the pull.
type Waiting = (u64, oneshot::Sender<()>);

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    waiting: Mutex<HashMap<Queue, Vec<Waiting>>>,
    /// Signals that the first pull waits, or that the server stops.
    came: Condvar,
    stopped: AtomicBool,
}

impl Arrivals {
    /// Wakes the receiver when the queue's end is above `queue_offset`, or when the server stops.
    pub(super) fn wait(&self, topic: &str, queue_id: i32, queue_offset: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if !self.stopped.load(Ordering::Acquire) {
            waiting.entry((topic.to_owned(), queue_id)).or_default().push((queue_offset, sender));
            if waiting.len() == 1 {
                self.came.notify_all();
            }
        }
        receiver
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.waiting.lock().clear();
        self.came.notify_all();
    }

    /// Runs until `stop` is called or the store is closed.
    pub(super) fn run(self: &Arc<Self>, store: &Store) {
        let mut seen = PhysicalOffset(0);
        while self.is_wanted() {
            match store.wait_for_messages(seen, LOOK_MS) {
                Ok(end) if end > seen => {
                    seen = end;
                    self.wake(store);
                    std::thread::sleep(PAUSE);
                }
                Ok(_) => self.wake(store),
                Err(_) => break,
            }
        }
        self.stop();
    }

    /// Waits until a pull waits. Returns false if the server stops.
    fn is_wanted(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.is_empty() && !self.stopped.load(Ordering::Acquire) {
            waiting = self.came.wait_for(waiting, Duration::from_secs(1));
        }
        !self.stopped.load(Ordering::Acquire)
    }

    fn wake(&self, store: &Store) {
        self.waiting.lock().retain(|(topic, queue_id), pulls| {
            let end = store.queue_range(topic, QueueId(*queue_id)).map_or(u64::MAX, |(_, end)| end);
            for (_, sender) in pulls.extract_if(.., |(wanted, sender)| *wanted < end || sender.is_closed()) {
                // A pull that has ended needs no wake-up.
                let _ = sender.send(());
            }
            !pulls.is_empty()
        });
    }
}
