//! Finds which process writes a store, and whether the last writer closed it.
//!
//! In:     the store's locks and marks.
//! Out:    the writer.
//! Always: takes no lock and creates no file.

use crate::base::error::Result;
#[cfg(feature = "arrow")]
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

/// The process that writes the store, as far as known.
#[cfg(feature = "arrow")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A txstore process, at this epoch.
    Ours(u64),
    /// A process that publishes nothing: a broker, or a txstore process that is still opening.
    Other,
    /// No process. The last one closed the store.
    None,
    /// No process. The last one did not close the store.
    Crashed,
}

#[cfg(feature = "arrow")]
impl Writer {
    /// Finds the writer from the locks and marks.
    pub(crate) fn find(storage: &dyn Storage, published: Option<&Published>) -> Result<Self> {
        let epoch = published.map(Published::epoch).filter(|epoch| epoch.is_multiple_of(2));
        Ok(match epoch {
            Some(epoch) if storage.is_locked(LOCK, PUBLISHER_BYTE)? => Self::Ours(epoch),
            _ if storage.is_locked(LOCK, WRITER_BYTE)? => Self::Other,
            _ if is_clean(storage)? => Self::None,
            _ => Self::Crashed,
        })
    }
}

/// Returns whether both marks of an open store are absent.
pub(crate) fn is_clean(storage: &dyn Storage) -> Result<bool> {
    Ok(storage.len(GUARD)?.is_none() && storage.len(ABORT)?.is_none())
}
