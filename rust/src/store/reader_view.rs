//! The state of a store as a reader in another process sees it at one moment.
//!
//! In:     the locks of writers, and the end that a writer publishes.
//! Out:    the kind of writer, how far the log may be read, and how far there must be records.
//! Always: takes no lock and writes nothing.

use crate::base::error::Result;
use crate::index::delay::DelayProgress;
use crate::log::published::Published;
use crate::recovery::Known;
use crate::recovery::log_view::{KnownEnd, Seen, Writer, known_durable};
use crate::storage::Storage;

/// The state of a store as a reader sees it at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) seen: Seen,
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
        let seen = Seen::of(storage, published)?;
        let is_ours = matches!(seen.writer, Writer::Ours | Writer::Opening);
        let limit =
            published.filter(|_| seen.writer != Writer::Broker).map_or(u64::MAX, |page| shown_until(page, is_ours));
        let floor = match seen.writer {
            Writer::Ours => limit,
            Writer::Nobody => known_durable(None, published, 0).min(limit),
            Writer::Opening | Writer::Broker => 0,
        };
        let minimum = published.map_or(0, |published| published.minimum().0);
        Ok(Self { seen, limit, floor, minimum })
    }

    /// Returns whether only appends and retention happened between two sights.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.seen == other.seen
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
