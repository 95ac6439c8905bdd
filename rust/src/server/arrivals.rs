//! Wakes pulls and other readers that wait for messages.
//!
//! In:     queues, and the queue offsets that the pulls wait for.
//! Out:    a wake-up for each pull when its queue has grown.
//! Always: one thread waits for the log on behalf of all pulls. A pull that ended is removed with the next message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::base::sync::unmodelled::{Condvar, Mutex};
use crate::base::units::{PhysicalOffset, QueueId};
use crate::store::Store;

/// The maximum wait of the thread, so that it notices in this time that the server stops, in milliseconds.
const LOOK_MS: u64 = 200;
/// The pause between two checks of the queues. Without it, a busy store would keep the thread busy for silent queues.
const PAUSE: Duration = Duration::from_millis(1);

type Queue = (String, i32);
/// The queue offset that the queue's end must exceed, and what waits for that.
type Waiting = (u64, Waiter);

#[derive(Debug)]
enum Waiter {
    /// A pull of one queue.
    Pull(oneshot::Sender<()>),
    /// Those who read all queues of a topic.
    Readers(Arc<Notify>),
}

impl Waiter {
    fn has_gone(&self) -> bool {
        match self {
            Self::Pull(sender) => sender.is_closed(),
            Self::Readers(changed) => Arc::strong_count(changed) == 1,
        }
    }

    fn wake(self) {
        match self {
            // A pull that has ended needs no wake-up.
            Self::Pull(sender) => drop(sender.send(())),
            Self::Readers(changed) => changed.notify_one(),
        }
    }
}

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
        self.add(topic, queue_id, queue_offset, Waiter::Pull(sender));
        receiver
    }

    /// Wakes one of those who wait for `changed` when the queue's end is above `queue_offset`.
    pub(super) fn watch(&self, topic: &str, queue_id: i32, queue_offset: u64, changed: &Arc<Notify>) {
        self.add(topic, queue_id, queue_offset, Waiter::Readers(Arc::clone(changed)));
    }

    fn add(&self, topic: &str, queue_id: i32, queue_offset: u64, waiter: Waiter) {
        let mut waiting = self.waiting.lock();
        if !self.stopped.load(Ordering::Acquire) {
            waiting.entry((topic.to_owned(), queue_id)).or_default().push((queue_offset, waiter));
            if waiting.len() == 1 {
                self.came.notify_all();
            }
        }
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
            for (_, waiter) in pulls.extract_if(.., |(wanted, waiter)| *wanted < end || waiter.has_gone()) {
                waiter.wake();
            }
            !pulls.is_empty()
        });
    }
}
