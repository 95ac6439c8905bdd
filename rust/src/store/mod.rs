//! An open store directory: the façade over the commit log, queues, index and transaction table.
//!
//! In:     messages, ends of transactions, queries.
//! Out:    offsets, outcomes, messages.
//! Always: one process writes. One lock orders all appends and ends. Readers see only what is below the visible end.
//!         `state` describes what threads share and the lock order.
//! Not here: when to check and which producer to ask (Python decides this).

mod adopt_progress;
mod append;
mod append_once;
mod batch;
mod broker_timer;
mod configuration;
mod copy;
mod copy_visible;
mod decide_end;
mod delete;
mod deliver_delayed;
mod deliver_timed;
mod deliveries;
mod diverged;
mod end_transaction;
mod epochs;
mod expire;
mod follow;
mod hand_over;
mod held_ends;
mod history;
mod inspect;
#[cfg(feature = "arrow")]
mod keep_statistics;
mod layout_check;
mod lifecycle;
mod maintenance;
#[cfg(txstore_mutants)]
mod mutants;
mod open;
mod pending;
mod prepare_many;
mod read;
mod reader_view;
mod readers;
mod removed_half;
mod repair_half_queue;
mod replicate;
mod resent;
pub mod retention;
mod snapshot;
mod space_check;
mod state;
mod statistics;
mod stored_record;
mod sync_thread;
mod take_over;
#[cfg(test)]
mod tests;
mod without_waiting;
mod write_ends;

pub use append::{NewHalfMessage, NewMessage, Sent};
pub use append_once::Once;
pub use batch::{Unacknowledged, Wait};
pub use copy::Copy;
pub use deliver_delayed::Delivered;
pub use deliver_timed::Recall;
pub use diverged::Kept;
pub use end_transaction::{Decider, End, EndKind, Ended};
pub use expire::Expired;
pub use hand_over::HandedOver;
#[cfg(feature = "arrow")]
pub(crate) use layout_check::refuse as refuse_layout;
pub use lifecycle::note_fork;
pub use open::OpenReport;
pub use statistics::{PendingRow, StoreStat};
pub use stored_record::StoredRecord;
pub use sync_thread::SyncThread;
pub use without_waiting::Now;

pub use crate::transaction::row::TransactionRow;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use self::lifecycle::PoisonOnPanic;
use self::state::{Inner, Shared};
use crate::base::clock::{Clock, SystemClock};
use crate::base::error::Result;
use crate::base::options::StoreOptions;
use crate::base::sync::Mutex;
pub use crate::recovery::log_view::GUARD;
use crate::storage::Storage;
use crate::storage::disk::Disk;

/// An open store.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store in a directory. A writer creates the store if the directory is missing or empty.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let storage = if options.read_only { Disk::open(path)? } else { Disk::create(path)? };
        Self::open_with(Arc::new(storage), Arc::new(SystemClock), options)
    }

    /// Opens a store on any storage, with any clock.
    pub fn open_with(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let shared = Arc::new(open::open(storage, clock, options)?);
        let flusher = if shared.options.read_only || !shared.options.background {
            None
        } else {
            Some(maintenance::spawn(&shared)?)
        };
        let store = Self { shared, flusher: Mutex::new(flusher) };
        store.repair_half_queue()?;
        Ok(store)
    }

    /// Returns what opening the store found and did.
    pub fn open_report(&self) -> &OpenReport {
        &self.shared.report
    }

    /// Returns the store's directory.
    pub fn path(&self) -> PathBuf {
        self.shared.storage.root().to_owned()
    }

    /// Returns whether the store was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    /// Returns whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.shared.lifecycle.is_closed()
    }

    /// Writes all buffered data, completes the clean close and releases the locks. Idempotent.
    pub fn close(&self) -> Result<()> {
        let lifecycle = &self.shared.lifecycle;
        // A forked child does not own its parent's files and locks.
        if !lifecycle.close() || lifecycle.is_forked() {
            return Ok(());
        }
        self.shared.maintenance.wake.set();
        self.shared.readers.wake_all();
        if let Some(thread) = self.flusher.lock().take() {
            // A panic in the background thread has already poisoned the store.
            let _ = thread.join();
        }
        let result = self.shared.hand_over();
        self.shared.close_files();
        lifecycle.unlock_files();
        result
    }

    /// Runs one round of the background thread: writes derived files and syncs the log.
    pub fn flush_round(&self) -> Result<()> {
        self.shared.check_open()?;
        self.shared.flush_round()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A destructor cannot return an error. The next opening recovers a store that was not closed cleanly.
        let _ = self.close();
    }
}
