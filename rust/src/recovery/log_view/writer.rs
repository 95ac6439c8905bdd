//! Finds which process writes a store, and whether the last writer closed it.
//!
//! In:     the store's locks and marks.
//! Out:    the writer at one moment.
//! Always: takes no lock and creates no file.

use crate::base::error::Result;
use crate::log::published::Published;
use crate::storage::Storage;

/// Exists while a store is open. If it is found at opening, the last close was not clean.
pub(crate) const ABORT: &str = "abort";
/// Makes a RocketMQ broker refuse the store while txstore has it open, and until txstore has recovered it.
pub const GUARD: &str = "commitlog/!txstore-open";
/// The file whose bytes are locked.
pub(crate) const LOCK: &str = "lock";
/// The byte of `lock` that RocketMQ locks too.
pub(crate) const WRITER_BYTE: u64 = 0;
/// The byte of `lock` whose lock says that `published` is valid.
pub(crate) const PUBLISHER_BYTE: u64 = 1;

/// The process that writes a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A txstore process. It publishes how far the log may be read.
    Ours,
    /// A txstore process that is opening the store. The end of the log may change in any way.
    Opening,
    /// A broker. It publishes nothing, so the reader examines the log itself.
    Broker,
    /// No process.
    Nobody,
}

/// The writer of a store at one moment. Between two equal ones, only appends and retention have changed the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) writer: Writer,
    /// The published epoch. `None`: nothing was published yet.
    pub(crate) epoch: Option<u64>,
}

impl Seen {
    /// Finds the writer from the locks. `published` is the page in which a writer publishes.
    pub(crate) fn of(storage: &dyn Storage, published: Option<&Published>) -> Result<Self> {
        // The epoch is read first, so that a later change makes the next one differ.
        let epoch = published.map(Published::epoch);
        let writer = if storage.is_locked(LOCK, PUBLISHER_BYTE)? {
            // A page that cannot be read yet belongs to a writer that has just started.
            if epoch.is_some_and(|epoch| epoch.is_multiple_of(2)) { Writer::Ours } else { Writer::Opening }
        } else if storage.is_locked(LOCK, WRITER_BYTE)? {
            Writer::Broker
        } else {
            Writer::Nobody
        };
        Ok(Self { writer, epoch })
    }
}

/// Returns whether both marks of an open store are absent.
pub(crate) fn is_clean(storage: &dyn Storage) -> Result<bool> {
    Ok(storage.len(GUARD)?.is_none() && storage.len(ABORT)?.is_none())
}
