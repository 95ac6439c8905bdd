//! Durable: what may be acknowledged only when it is on disk.
//!
//! In: ends of the log that answers wait for, and ends of transactions. Out: each is told, after one sync for all that
//! came together. Always: a thread of its own waits for the disk; the connections' threads never do.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::store::{End, Ended, Store};
use crate::sync::unmodelled::{Condvar, Mutex};
use crate::units::PhysicalOffset;

#[derive(Debug, Default)]
pub(super) struct Durable {
    waiting: Mutex<Waiting>,
    came: Condvar,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    syncs: Vec<(PhysicalOffset, oneshot::Sender<Result<()>>)>,
    ends: Vec<(End, oneshot::Sender<Result<Ended>>)>,
}

impl Durable {
    /// Waits until the log is durable up to `end`.
    pub(super) async fn sync(&self, end: PhysicalOffset) -> Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.put(|waiting| waiting.syncs.push((end, sender)));
        receiver.await.unwrap_or(Err(Error::StoreClosed))
    }

    /// Ends a transaction, durably.
    pub(super) async fn end(&self, end: End) -> Result<Ended> {
        let (sender, receiver) = oneshot::channel();
        self.put(|waiting| waiting.ends.push((end, sender)));
        receiver.await.unwrap_or(Err(Error::StoreClosed))
    }

    fn put(&self, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock();
        // Behind the lock, under which `stop` looks for the last time: nothing is left waiting for ever.
        if !self.stopped.load(Ordering::Acquire) {
            add(&mut waiting);
            self.came.notify_all();
        }
    }

    /// What waits is still done; what comes is refused.
    pub(super) fn stop(&self) {
        let _waiting = self.waiting.lock();
        self.stopped.store(true, Ordering::Release);
        self.came.notify_all();
    }

    /// Runs until `stop`.
    pub(super) fn run(&self, store: &Store) {
        loop {
            let mut waiting = self.waiting.lock();
            while waiting.syncs.is_empty() && waiting.ends.is_empty() {
                if self.stopped.load(Ordering::Acquire) {
                    return;
                }
                waiting = self.came.wait_for(waiting, std::time::Duration::from_secs(1));
            }
            let Waiting { syncs, ends } = std::mem::take(&mut *waiting);
            drop(waiting);
            finish(store, syncs, ends);
        }
    }
}

/// One sync serves all: ends first, since theirs makes everything before them durable.
fn finish(
    store: &Store,
    syncs: Vec<(PhysicalOffset, oneshot::Sender<Result<()>>)>,
    ends: Vec<(End, oneshot::Sender<Result<Ended>>)>,
) {
    // Whoever has gone away needs no answer, so a refused `send` is nothing.
    if !ends.is_empty() {
        let (ends, senders): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        for (ended, sender) in store.end_together(ends).into_iter().zip(senders) {
            let _ = sender.send(ended);
        }
    }
    if let Some(last) = syncs.iter().map(|(end, _)| *end).max() {
        let synced = store.wait_durable(last);
        for (_, sender) in syncs {
            let _ = sender.send(synced.as_ref().copied().map_err(Error::repeat));
        }
    }
}

#[cfg(test)]
mod tests;
