//! Arrivals: pulls that wait for messages.
//!
//! In: queues and the offsets that are waited for. Out: a wake-up for each, once its queue reaches further. Always: one
//! thread waits for the log, for all of them; a pull that has gone away costs nothing from the next message on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::store::Store;
use crate::sync::unmodelled::{Condvar, Mutex};
use crate::units::{PhysicalOffset, QueueId};

/// How long a wait of the thread lasts at most: so soon it sees that the server stops.
const LOOK_MS: u64 = 200;
/// Between two looks at the queues: a busy store does not keep the thread busy for queues that nothing comes to.
const PAUSE: Duration = Duration::from_millis(1);

type Queue = (String, i32);
/// The offset that a queue must reach beyond, and who is told.
type Waiting = (u64, oneshot::Sender<()>);

#[derive(Debug, Default)]
pub(super) struct Arrivals {
    waiting: Mutex<HashMap<Queue, Vec<Waiting>>>,
    /// The first pull waits, or the server stops.
    came: Condvar,
    stopped: AtomicBool,
}

impl Arrivals {
    /// Wakes when the queue's end is above `queue_offset`, or the server stops.
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

    /// Runs until `stop`, or until the store is closed.
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

    /// Waits until some pull waits; false: the server stops.
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
                // A pull that is gone needs no wake-up.
                let _ = sender.send(());
            }
            !pulls.is_empty()
        });
    }
}
