//! Makes appends durable before they return.
//!
//! In:     an end of the log that must be durable.
//! Out:    success, or an error.
//! Always: one thread syncs for all waiting threads. A failed sync is never retried on the same data.
//! Not here: which calls wait, and the derived files.

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::rank::BRIEF;
use crate::base::sync::{Condvar, Mutex};
use crate::log::commit_log::CommitLog;

/// Lets threads wait for a sync. The first one syncs for all (group commit).
#[derive(Debug, Default)]
pub struct GroupCommit {
    state: Mutex<State, BRIEF>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    syncing: bool,
    poisoned: Option<String>,
}

impl GroupCommit {
    /// Waits until the log is durable up to `end`. Calls `published` with each new durable end.
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

    /// Stops all writing, for the given reason.
    pub fn poison(&self, why: &str) {
        self.state.lock().poisoned.get_or_insert_with(|| why.to_owned());
        self.done.notify_all();
    }

    /// Returns why writing has stopped; `None` if it has not.
    pub fn poisoned(&self) -> Option<String> {
        self.state.lock().poisoned.clone()
    }
}
