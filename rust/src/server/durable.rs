//! Waits for the disk on behalf of answers that may be sent only when their data is durable.
//!
//! In:     ends of the log that answers wait for, and ends of transactions.
//! Out:    a result for each, after one sync for all that came together.
//! Always: a separate thread waits for the disk, never the connections' threads.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::{Condvar, Mutex};
use crate::base::units::PhysicalOffset;
use crate::store::{End, Ended, Store};

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

    /// Ends a transaction and waits until the end is durable.
    pub(super) async fn end(&self, end: End) -> Result<Ended> {
        let (sender, receiver) = oneshot::channel();
        self.put(|waiting| waiting.ends.push((end, sender)));
        receiver.await.unwrap_or(Err(Error::StoreClosed))
    }

    fn put(&self, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.waiting.lock();
        // Checked under the lock under which `stop` checks for the last time, so that no request waits forever.
        if !self.stopped.load(Ordering::Acquire) {
            add(&mut waiting);
            self.came.notify_all();
        }
    }

    /// Finishes the waiting requests and refuses new ones.
    pub(super) fn stop(&self) {
        let _waiting = self.waiting.lock();
        self.stopped.store(true, Ordering::Release);
        self.came.notify_all();
    }

    /// Runs until `stop` is called.
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

/// Serves all requests with one sync. Ends come first, because their sync makes everything before them durable.
fn finish(
    store: &Store,
    syncs: Vec<(PhysicalOffset, oneshot::Sender<Result<()>>)>,
    ends: Vec<(End, oneshot::Sender<Result<Ended>>)>,
) {
    // If the receiver has gone, it needs no answer, so a failed `send` is ignored.
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
