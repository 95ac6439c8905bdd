//! Store: one directory, open; the façade over log, queues, index and the table of transactions.
//!
//! In: messages, ends, questions. Out: places, outcomes, messages. Always: one process writes; one lock orders all
//! appends and ends; readers see only what is below the visible end. Not here: when to check, who is asked (Python).

mod append;
mod batch;
mod configuration;
mod copy;
mod delete;
mod deliver;
mod end_transaction;
mod expire;
mod figures;
mod follow;
mod gone;
mod half_floor;
mod history;
mod inspect;
mod lifecycle;
#[cfg(txstore_mutants)]
mod mutants;
mod now;
mod open;
mod read;
mod readers;
mod room;
mod sight;
mod snapshot;
mod state;
mod survey;
#[cfg(test)]
mod tests;
mod upkeep;
mod waiting;

pub use append::{NewHalfMessage, NewMessage, Sent};
pub use batch::{Unacknowledged, Wait};
pub use copy::Copy;
pub use deliver::Delivered;
pub use end_transaction::{Decider, End, EndKind, Ended};
pub use expire::Expired;
pub use figures::PendingRow;
pub use history::TransactionRow;
#[cfg(feature = "arrow")]
pub(crate) use history::{HalfRecord, rows};
pub use lifecycle::note_fork;
pub use now::Now;
pub use open::OpenReport;
pub use read::{StoreStat, StoredRecord};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use self::lifecycle::PoisonOnPanic;
use self::state::{Inner, Shared};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
pub use crate::log_view::GUARD;
use crate::options::StoreOptions;
use crate::storage::Storage;
use crate::storage::disk::Disk;
use crate::sync::Mutex;

/// An open store.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the store in a directory; a writer makes it if it is missing or empty.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let storage = if options.read_only { Disk::open(path)? } else { Disk::create(path)? };
        Self::open_with(Arc::new(storage), Arc::new(SystemClock), options)
    }

    /// Opens a store on any storage, with any clock.
    pub fn open_with(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let shared = Arc::new(open::open(storage, clock, options)?);
        let flusher =
            if shared.options.read_only || !shared.options.background { None } else { Some(upkeep::spawn(&shared)?) };
        let store = Self { shared, flusher: Mutex::new(flusher) };
        store.begin_halves_behind_ops()?;
        Ok(store)
    }

    /// What opening found and did.
    pub fn open_report(&self) -> &OpenReport {
        &self.shared.report
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.shared.storage.root().to_owned()
    }

    /// Whether it was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.shared.lifecycle.is_closed()
    }

    /// Writes all that is buffered, hands the store over and releases the locks. Idempotent.
    pub fn close(&self) -> Result<()> {
        let lifecycle = &self.shared.lifecycle;
        // The parent's files and locks do not belong to a forked child.
        if !lifecycle.close() || lifecycle.is_forked() {
            return Ok(());
        }
        self.shared.maintenance.wake.set();
        self.shared.readers.wake_all();
        if let Some(thread) = self.flusher.lock().take() {
            // A panic there has poisoned the store already.
            let _ = thread.join();
        }
        let result = self.shared.hand_over();
        lifecycle.unlock_files();
        result
    }

    /// One round of what the background thread does: write what is derived, sync the log.
    pub fn flush_round(&self) -> Result<()> {
        self.shared.check_open()?;
        self.shared.flush_round()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Nobody is there to tell; a store that was not closed well is recovered at the next opening.
        let _ = self.close();
    }
}
