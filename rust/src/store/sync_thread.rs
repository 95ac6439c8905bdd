//! Syncs the log in a thread of its own, for a caller that may not wait, such as an event loop.
//!
//! In:     ends of the log that must become durable.
//! Out:    a file descriptor that is readable after each sync. `durable` then tells how far the log is durable.
//! Always: no call waits for the disk. One sync serves all requests that came before it.
//! Not here: who waits for which end.

use std::sync::Arc;

use super::Store;
use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::{Condvar, Mutex};
use crate::base::system::Event;
use crate::base::units::PhysicalOffset;

/// A thread that syncs on request. It ends when this is dropped.
#[derive(Debug)]
pub struct SyncThread {
    store: Arc<Store>,
    requests: Arc<Requests>,
}

#[derive(Debug)]
struct Requests {
    state: Mutex<State>,
    came: Condvar,
    synced: Event,
}

#[derive(Debug, Default)]
struct State {
    /// The highest end that was requested.
    wanted: PhysicalOffset,
    is_stopped: bool,
    /// The error of the first sync that failed.
    failed: Option<Error>,
}

impl SyncThread {
    /// Starts the thread.
    pub fn start(store: Arc<Store>) -> Result<Self> {
        let synced =
            Event::new().map_err(|error| Error::from_io("create an event descriptor for", store.path(), error))?;
        let requests = Arc::new(Requests { state: Mutex::default(), came: Condvar::default(), synced });
        let (its_store, its_requests) = (Arc::clone(&store), Arc::clone(&requests));
        std::thread::Builder::new()
            .name("txstore-sync".into())
            .spawn(move || its_requests.run(&its_store))
            .map_err(|error| Error::from_io("start a thread for", store.path(), error))?;
        Ok(Self { store, requests })
    }

    /// Requests that the log becomes durable up to `end`.
    pub fn request(&self, end: PhysicalOffset) {
        let mut state = self.requests.state.lock();
        state.wanted = state.wanted.max(end);
        self.requests.came.notify_all();
    }

    /// Returns how far the log is durable, or the error of a failed sync. The descriptor is not readable after this, until
    /// the next sync.
    pub fn durable(&self) -> Result<PhysicalOffset> {
        self.requests.synced.clear();
        match &self.requests.state.lock().failed {
            Some(error) => Err(error.repeat()),
            None => Ok(self.store.durable_end()),
        }
    }

    /// Returns the number of the file descriptor that is readable after a sync.
    pub fn descriptor(&self) -> i32 {
        self.requests.synced.descriptor()
    }

    /// Returns the event that is set after a sync.
    #[cfg(test)]
    pub(super) fn event(&self) -> &Event {
        &self.requests.synced
    }

    /// Ends the thread after the requests that it has. Idempotent.
    pub fn stop(&self) {
        self.requests.state.lock().is_stopped = true;
        self.requests.came.notify_all();
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Requests {
    fn run(&self, store: &Store) {
        let mut served = PhysicalOffset::default();
        let mut state = self.state.lock();
        loop {
            if state.wanted > served {
                served = state.wanted;
                drop(state);
                let synced = store.wait_durable(served);
                state = self.state.lock();
                if let Err(error) = synced {
                    state.failed.get_or_insert(error);
                }
                self.synced.set();
            } else if state.is_stopped {
                return;
            } else {
                state = self.came.wait(state);
            }
        }
    }
}
