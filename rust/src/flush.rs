//! Flush: what is durable when an append returns.
//!
//! In:     an end of the log that must be durable.
//! Out:    it is, or an error.
//! Always: one thread syncs, for all that wait; a sync that failed is never tried again on the same data.
//! Not here: who waits, and the derived files.

use crate::commit_log::CommitLog;
use crate::error::{Error, Result};
use crate::mutant::{Mutant, mutated};
use crate::sync::{Condvar, Mutex};

/// Threads that wait for a sync; the first one there does it for all (group commit).
#[derive(Debug, Default)]
pub struct GroupCommit {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    syncing: bool,
    poisoned: Option<String>,
}

impl GroupCommit {
    /// Waits until the log is durable up to `end`; `published` is called with each new durable end.
    pub fn wait(&self, log: &CommitLog, end: u64, published: impl Fn(u64)) -> Result<()> {
        if log.durable() >= end {
            return Ok(());
        }
        let mut state = self.state.lock();
        loop {
            if let Some(why) = &state.poisoned {
                return Err(Error::StorePoisoned { why: why.clone() });
            }
            if log.durable() >= end {
                return Ok(());
            }
            if state.syncing {
                state = self.done.wait(state);
                continue;
            }
            state.syncing = true;
            drop(state);
            let target = log.appended();
            let mut synced = log.segments.sync(log.durable(), target);
            if synced.is_err() && mutated(Mutant::SyncRetried) {
                synced = log.segments.sync(log.durable(), target);
            }
            state = self.state.lock();
            state.syncing = false;
            match synced {
                Ok(()) => {
                    log.set_durable(target);
                    published(target);
                }
                Err(error) => state.poisoned = Some(error.to_string()),
            }
            self.done.notify_all();
        }
    }

    /// Nothing is written any more, for a reason.
    pub fn poison(&self, why: &str) {
        self.state.lock().poisoned.get_or_insert_with(|| why.to_owned());
        self.done.notify_all();
    }

    /// Why nothing is written any more.
    pub fn poisoned(&self) -> Option<String> {
        self.state.lock().poisoned.clone()
    }
}
