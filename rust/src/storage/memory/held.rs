//! Holds syncs, like a disk that is slow for as long as a test wants.
//!
//! In:     syncs of files.
//! Out:    the same, later.
//! Always: nothing waits when no test holds syncs.

use std::sync::Arc;

use crate::base::sync::unmodelled::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(super) struct SyncGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    holders: usize,
    waiting: usize,
}

impl SyncGate {
    /// Waits while syncs are held.
    pub(super) fn pass(&self) {
        let mut state = self.state.lock();
        if state.holders == 0 {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        while state.holders > 0 {
            state = self.changed.wait(state);
        }
        state.waiting -= 1;
    }
}

/// Syncs wait while it lives.
#[derive(Debug)]
pub struct HeldSyncs(Arc<SyncGate>);

impl HeldSyncs {
    pub(super) fn of(gate: &Arc<SyncGate>) -> Self {
        gate.state.lock().holders += 1;
        Self(Arc::clone(gate))
    }

    /// Waits until a sync is held.
    pub fn wait_for_one(&self) {
        let mut state = self.0.state.lock();
        while state.waiting == 0 {
            state = self.0.changed.wait(state);
        }
    }
}

impl Drop for HeldSyncs {
    fn drop(&mut self) {
        self.0.state.lock().holders -= 1;
        self.0.changed.notify_all();
    }
}
