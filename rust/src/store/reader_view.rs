//! The state of a store as a reader in another process sees it at one moment.
//!
//! In:     the locks of writers, and the end that a writer publishes.
//! Out:    the kind of writer, how far the log may be read, and how far there must be records.
//! Always: takes no lock and writes nothing.

use crate::base::error::Result;
use crate::index::delay::DelayProgress;
use crate::log::published::Published;
use crate::recovery::Known;
use crate::recovery::log_view::{KnownEnd, LOCK, PUBLISHER_BYTE, WRITER_BYTE, known_durable};
use crate::storage::Storage;

/// The process that writes a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LiveWriter {
    /// A txstore process. It publishes how far the log may be read.
    Ours,
    /// A txstore process that is opening the store. The end of the log may change in any way.
    Opening,
    /// A broker. It publishes nothing, so the reader examines the log itself.
    Broker,
    /// No process.
    Nobody,
}

/// The state of a store as a reader sees it at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) writer: LiveWriter,
    /// The published epoch. `None`: nothing was published yet.
    pub(super) epoch: Option<u64>,
    /// How far the log may be read. `u64::MAX`: up to its last complete record.
    pub(super) limit: u64,
    /// The end below which all records must exist.
    pub(super) floor: u64,
    /// The published start of the log.
    pub(super) minimum: u64,
}

impl Sight {
    /// Takes a sight of a store. `published` is the page in which a writer publishes.
    pub(super) fn of(storage: &dyn Storage, published: Option<&Published>) -> Result<Self> {
        // The epoch is read first, so that `is_same` notices a later change.
        let epoch = published.map(Published::epoch);
        let writer = if storage.is_locked(LOCK, PUBLISHER_BYTE)? {
            // A page that cannot be read yet belongs to a writer that has just started.
            if epoch.is_some_and(|epoch| epoch.is_multiple_of(2)) { LiveWriter::Ours } else { LiveWriter::Opening }
        } else if storage.is_locked(LOCK, WRITER_BYTE)? {
            LiveWriter::Broker
        } else {
            LiveWriter::Nobody
        };
        let is_ours = matches!(writer, LiveWriter::Ours | LiveWriter::Opening);
        let limit =
            published.filter(|_| writer != LiveWriter::Broker).map_or(u64::MAX, |page| shown_until(page, is_ours));
        let floor = match writer {
            LiveWriter::Ours => limit,
            LiveWriter::Nobody => known_durable(None, published, 0).min(limit),
            LiveWriter::Opening | LiveWriter::Broker => 0,
        };
        let minimum = published.map_or(0, |published| published.minimum().0);
        Ok(Self { writer, epoch, limit, floor, minimum })
    }

    /// Returns whether only appends and retention happened between two sights.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.writer, self.epoch) == (other.writer, other.epoch)
    }

    /// Returns what recovery must know about the store to follow its writers.
    pub(super) fn known(&self, end: KnownEnd, half_progress: u64) -> Known {
        Known {
            read_only: true,
            clean: end.is_clean,
            end,
            limit: self.limit,
            followed: true,
            half_progress,
            delays: DelayProgress::new(),
        }
    }
}

/// Returns how far a reader may read if no broker writes.
fn shown_until(published: &Published, is_live: bool) -> u64 {
    match (is_live, published.sync_failed()) {
        (true, _) => published.appended().0,
        (false, true) => published.durable().0,
        (false, false) => u64::MAX,
    }
}
