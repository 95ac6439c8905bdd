//! What the table knows of one transaction.
//!
//! In:     the copies of its half message, checks, evidence.
//! Always: takes about a hundred bytes. Facts that few transactions have are in `More`.
//! Not here: finding it, its outcome (`table`).

use std::collections::BTreeSet;

use super::HalfCopy;
use super::outcome::Evidence;

/// Means that no check was sent yet.
pub(super) const NEVER: u32 = u32::MAX;
/// Means that the immunity time is not set.
pub(super) const NO_IMMUNITY: i32 = -1;

/// A pending transaction, or one whose records recovery is still reading.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Its newest copy.
    pub newest: HalfCopy,
    /// The identity that its copies share. 0: a half without id or group, which has no copies.
    pub identity: u64,
    /// When it was stored: during recovery the store timestamp, then on the monotonic clock.
    pub stored_ms: i64,
    /// When to look at it again, on the monotonic clock.
    pub due_ms: i64,
    /// Milliseconds from `stored_ms` until the local transaction ended here.
    pub(super) aged_after_ms: u32,
    /// Milliseconds from `stored_ms` until the last check was sent.
    pub(super) checked_after_ms: u32,
    /// The size of the newest copy's record in bytes.
    pub size: u32,
    /// The number of its producer group.
    pub(super) group: u32,
    /// The id of the producer that sent it. 0: unknown.
    pub owner: u32,
    pub(super) immunity_ms: i32,
    /// The number of checks that were sent.
    pub checks: u16,
    /// The local transaction runs in this process.
    pub running: bool,
    /// No check waits for an answer.
    pub(super) answered: bool,
    /// A producer sent the newest copy. False: a broker put it back.
    pub(super) newest_sent: bool,
    /// Facts that few transactions have.
    pub(super) more: Option<Box<More>>,
}

/// Facts that most transactions do not have: other copies, and evidence found during recovery.
#[derive(Clone, Debug, Default)]
pub struct More {
    /// The copies before the newest, oldest first, and whether each was sent. In a set, the other half messages.
    pub older: Vec<(HalfCopy, bool)>,
    /// A set: the sizes of the records of the other half messages, in the order of `older`. Otherwise empty.
    pub set_sizes: Vec<u32>,
    /// A set: the number of its messages, in their order, that recovery found committed or discarded.
    pub set_ended: usize,
    /// Copies that an op names.
    pub named: BTreeSet<u64>,
    /// The evidence of an outcome.
    pub evidence: Evidence,
    /// Physical offsets of final messages. Filled with `Keep::All` only.
    pub finals: Vec<u64>,
    /// Physical offsets of discarded copies. Filled with `Keep::All` only.
    pub discards: Vec<u64>,
    /// Physical offsets of op messages. Filled with `Keep::All` only.
    pub ops: Vec<u64>,
    /// Store timestamp of the deciding record. Filled with `Keep::All` only.
    pub ended_ms: Option<i64>,
}

impl Pending {
    /// Returns its copies, oldest first, and whether each was sent.
    pub fn copies(&self) -> impl Iterator<Item = (HalfCopy, bool)> + '_ {
        let older = self.more.iter().flat_map(|more| more.older.iter().copied());
        older.chain([(self.newest, self.newest_sent)])
    }

    /// Returns the half queue offset of its oldest copy.
    pub fn first_queue_offset(&self) -> u64 {
        self.copies().next().map_or(self.newest.queue_offset, |(copy, _)| copy.queue_offset)
    }

    /// Returns whether it has several messages (`set`).
    pub fn is_set(&self) -> bool {
        self.more.as_ref().is_some_and(|more| !more.set_sizes.is_empty())
    }

    /// Returns the half messages to commit or discard, in the order of its messages: those of a set, or the newest copy.
    pub fn to_end(&self) -> impl Iterator<Item = HalfCopy> + '_ {
        let others = self.more.iter().flat_map(|more| more.older.iter().take(more.set_sizes.len()));
        std::iter::once(self.newest).chain(others.map(|(copy, _)| *copy))
    }

    /// Returns whether one of its copies has that physical offset.
    pub fn has_copy_at(&self, physical_offset: u64) -> bool {
        self.copies().any(|(copy, _)| copy.physical_offset == physical_offset)
    }

    /// Returns how long no check may be sent, in milliseconds.
    pub fn immunity_ms(&self) -> Option<i64> {
        (self.immunity_ms != NO_IMMUNITY).then(|| i64::from(self.immunity_ms))
    }

    /// Returns when its age began, on the monotonic clock.
    pub fn aged_from_ms(&self) -> i64 {
        self.stored_ms + i64::from(self.aged_after_ms)
    }

    /// Returns whether no check waits for an answer.
    pub const fn is_answered(&self) -> bool {
        self.answered
    }

    /// Returns when its last check was sent, on the monotonic clock.
    pub fn last_check_ms(&self) -> Option<i64> {
        (self.checked_after_ms != NEVER).then(|| self.stored_ms + i64::from(self.checked_after_ms))
    }

    /// Returns the number of its producer group.
    pub const fn group_number(&self) -> u32 {
        self.group
    }

    /// Returns the facts that few transactions have.
    pub fn more(&self) -> Option<&More> {
        self.more.as_deref()
    }

    /// Returns the evidence of its outcome.
    pub fn evidence(&self) -> Evidence {
        self.more.as_ref().map_or_else(Evidence::default, |more| more.evidence)
    }

    /// Returns the queue offset of its last sent half. An op that names it or a later copy ends the transaction.
    pub(super) fn last_sent(&self) -> u64 {
        let sent = self.copies().filter(|(_, sent)| *sent).last();
        sent.or_else(|| self.copies().next()).map_or(self.newest.queue_offset, |(copy, _)| copy.queue_offset)
    }

    pub(super) fn more_mut(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }
}
