//! Table: queue offset → state of every half; under the one lock that orders ends.
//!
//! In: halves as they are stored or scanned, and outcomes. Out: what pends, what was decided, how far the progress may
//! go. Always: a transaction pends or is decided, never both; its copies share its fate. Memory: about a hundred bytes a
//! pending transaction, two bits a decided half. Not here: records, files, policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use super::identity_map::IdentityMap;
use super::offset_map::OffsetMap;
use super::outcome::{DecidedHalves, Evidence, Op};
use super::recent::RecentlyEnded;
use super::sizes::Sizes;
pub use super::slab::Key;
use super::slab::{Block, Slab};
use super::{HalfCopy, Identity};
use crate::error::Outcome;
use crate::units::to_usize;

/// No check yet.
const NEVER: u32 = u32::MAX;
/// Ages beyond a thousand years are one: a store timestamp may say anything.
const AGE_MAX_MS: i64 = 1_000 * 366 * 24 * 3_600_000;
/// No immunity time.
const NO_IMMUNITY: i32 = -1;
/// No time was set; far in the past, where sums with it are still numbers.
const NOT_DUE: i64 = i64::MIN / 4;

/// A transaction that pends, or one that recovery is still reading about.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Its newest copy.
    pub newest: HalfCopy,
    /// What its copies share; 0 for a half without id or group, which has no copies.
    pub identity: u64,
    /// When it was stored: while recovery reads, the store timestamp; then on the monotonic clock.
    pub stored_ms: i64,
    /// When it is to be looked at again, on the monotonic clock.
    pub due_ms: i64,
    /// Its local transaction ended here so long after it was stored.
    aged_after_ms: u32,
    /// Its last check was sent so long after it was stored.
    checked_after_ms: u32,
    /// Bytes of its newest copy's record.
    pub size: u32,
    /// Its producer group's number.
    group: u32,
    /// The producer that sent it, as the caller numbers them; 0 unknown.
    pub owner: u32,
    immunity_ms: i32,
    /// Checks that were sent.
    pub checks: u16,
    /// Its local transaction runs here.
    pub running: bool,
    /// No check waits for its answer.
    answered: bool,
    /// The newest copy was sent, not put back by a broker.
    newest_sent: bool,
    /// What only few have.
    more: Option<Box<More>>,
}

/// What most transactions do not have: other copies, and traces that recovery met.
#[derive(Clone, Debug, Default)]
pub struct More {
    /// The copies in front of the newest, oldest first, and whether each was sent.
    pub older: Vec<(HalfCopy, bool)>,
    /// Copies that an op names.
    pub named: BTreeSet<u64>,
    /// What was seen.
    pub evidence: Evidence,
    /// Physical offsets of final messages, while all is kept.
    pub finals: Vec<u64>,
    /// Physical offsets of discarded copies, while all is kept.
    pub discards: Vec<u64>,
    /// Physical offsets of op messages, while all is kept.
    pub ops: Vec<u64>,
    /// Store timestamp of the record that decided, while all is kept.
    pub ended_ms: Option<i64>,
}

/// A half that is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct NewHalf<'a> {
    /// Where it stands.
    pub copy: HalfCopy,
    /// What its copies share.
    pub identity: Option<Identity>,
    /// Its producer group.
    pub group: &'a str,
    /// Bytes of its record.
    pub size: u32,
    /// When it was stored (see `Pending::stored_ms`).
    pub stored_ms: i64,
    /// How long it is not to be asked about.
    pub immunity_ms: Option<i64>,
    /// Checks that were sent already.
    pub checks: u16,
    /// Who sent it; not 0: its local transaction runs here.
    pub owner: u32,
    /// Whether a producer sent it.
    pub sent: bool,
}

impl Pending {
    /// Its copies, oldest first, with whether each was sent.
    pub fn copies(&self) -> impl Iterator<Item = (HalfCopy, bool)> + '_ {
        let older = self.more.iter().flat_map(|more| more.older.iter().copied());
        older.chain([(self.newest, self.newest_sent)])
    }

    /// Whether one of its copies stands there.
    pub fn has_copy_at(&self, physical_offset: u64) -> bool {
        self.copies().any(|(copy, _)| copy.physical_offset == physical_offset)
    }

    /// How long it must not be asked about, in milliseconds.
    pub fn immunity_ms(&self) -> Option<i64> {
        (self.immunity_ms != NO_IMMUNITY).then(|| i64::from(self.immunity_ms))
    }

    /// When its age began, on the monotonic clock.
    pub fn aged_from_ms(&self) -> i64 {
        self.stored_ms + i64::from(self.aged_after_ms)
    }

    /// Whether no check waits for its answer.
    pub const fn is_answered(&self) -> bool {
        self.answered
    }

    /// When its last check was sent, on the monotonic clock.
    pub fn last_check_ms(&self) -> Option<i64> {
        (self.checked_after_ms != NEVER).then(|| self.stored_ms + i64::from(self.checked_after_ms))
    }

    /// Its producer group's number.
    pub const fn group_number(&self) -> u32 {
        self.group
    }

    /// What only few have.
    pub fn more(&self) -> Option<&More> {
        self.more.as_deref()
    }

    /// What was seen of it.
    pub fn evidence(&self) -> Evidence {
        self.more.as_ref().map_or_else(Evidence::default, |more| more.evidence)
    }

    /// The queue offset of its last sent half: an op that names it or a copy behind it ends the transaction.
    fn last_sent(&self) -> u64 {
        let sent = self.copies().filter(|(_, sent)| *sent).last();
        sent.or_else(|| self.copies().next()).map_or(self.newest.queue_offset, |(copy, _)| copy.queue_offset)
    }

    fn more_mut(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }
}

/// The state of all halves.
#[derive(Debug, Default)]
pub struct Table {
    slab: Slab,
    live: u64,
    by_queue_offset: OffsetMap,
    by_identity: IdentityMap,
    older: HashMap<u64, Key>,
    due: BTreeSet<(i64, Key)>,
    groups: Vec<Arc<str>>,
    group_numbers: HashMap<Arc<str>, u32>,
    sizes: Sizes,
    lowest: u64,
    /// The outcomes of halves that are decided.
    pub decided: DecidedHalves,
    /// Op messages, for the op progress.
    pub ops: OpProgress,
    /// How transactions ended in the last minutes.
    pub recent: RecentlyEnded,
}

impl Table {
    /// Nothing pends; halves begin at queue offset `first`.
    pub fn new(first: u64) -> Self {
        Self { decided: DecidedHalves::from(first), lowest: first, ..Self::default() }
    }

    /// The producer groups by their numbers.
    pub fn groups(&self) -> &[Arc<str>] {
        &self.groups
    }

    /// Takes memory for as many transactions at once.
    pub fn reserve(&mut self, transactions: usize) {
        self.by_identity.reserve(&self.slab, transactions);
    }

    /// Notes where the first half stands that the log still has: of those in front of it nothing is known, which is
    /// another thing than an outcome. Behind the first half it does nothing.
    pub fn begin_at(&mut self, first: u64) {
        if self.live == 0 && self.decided.is_untouched() {
            self.decided = DecidedHalves::from(first);
            self.lowest = self.lowest.max(first);
        }
    }

    /// How many transactions pend.
    pub const fn len(&self) -> u64 {
        self.live
    }

    /// Whether nothing pends.
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The sizes of the pending halves' records.
    pub const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Bytes of memory, nearly.
    pub fn memory(&self) -> usize {
        // A B-tree's nodes are about two thirds full.
        let due = self.due.len() * size_of::<(i64, Key)>() * 3 / 2;
        self.slab.memory() + self.by_queue_offset.memory() + self.by_identity.memory() + due + self.decided.memory()
    }

    /// A transaction.
    pub fn get(&self, key: Key) -> Option<&Pending> {
        self.slab.get(key)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Pending> {
        self.slab.get_mut(key)
    }

    /// The transaction with a copy at that queue offset.
    pub fn find(&self, queue_offset: u64) -> Option<Key> {
        self.by_queue_offset.get(queue_offset).or_else(|| self.older.get(&queue_offset).copied())
    }

    /// The newest transaction of that identity.
    pub fn find_identity(&self, identity: Identity) -> Option<Key> {
        self.by_identity.find(&self.slab, identity)
    }

    /// The name of a transaction's producer group.
    pub fn group(&self, entry: &Pending) -> &str {
        self.groups.get(to_usize(u64::from(entry.group))).map_or("", AsRef::as_ref)
    }

    /// The same, shared.
    pub fn shared_group(&self, entry: &Pending) -> Arc<str> {
        self.groups.get(to_usize(u64::from(entry.group))).map_or_else(|| "".into(), Arc::clone)
    }

    /// All transactions, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Pending)> {
        self.slab.iter()
    }

    /// The transactions whose newest copy is after a queue offset (`None`: all), in the order of the half queue.
    pub fn after(&self, queue_offset: Option<u64>) -> impl Iterator<Item = Key> + '_ {
        let from = queue_offset.map_or(0, |queue_offset| queue_offset.saturating_add(1));
        self.by_queue_offset.from(from).map(|(_, key)| key)
    }

    /// The table as it is now. Takes no copy of a transaction: what changes later is copied then.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            blocks: self.slab.share(),
            groups: self.groups.clone(),
            lowest: self.lowest,
            decided: self.decided.clone(),
            ops: self.ops.clone(),
        }
    }

    /// Adds a transaction.
    pub fn insert(&mut self, half: &NewHalf<'_>) -> Key {
        let entry = Pending {
            newest: half.copy,
            identity: half.identity.map_or(0, |identity| identity.0),
            stored_ms: half.stored_ms,
            due_ms: NOT_DUE,
            aged_after_ms: 0,
            checked_after_ms: NEVER,
            size: half.size,
            group: self.group_number(half.group),
            owner: half.owner,
            immunity_ms: half.immunity_ms.map_or(NO_IMMUNITY, |ms| i32::try_from(ms).unwrap_or(i32::MAX)),
            checks: half.checks,
            running: half.owner != 0,
            answered: true,
            newest_sent: half.sent,
            more: None,
        };
        self.live += 1;
        self.sizes.add(half.size);
        let key = self.slab.insert(entry);
        self.by_queue_offset.insert(half.copy.queue_offset, key);
        self.by_identity.link(&self.slab, key);
        key
    }

    /// Adds a copy behind a transaction's newest.
    pub fn join(&mut self, key: Key, half: &NewHalf<'_>) {
        let Some(before) = self.get(key).map(|entry| entry.newest.queue_offset) else { return };
        self.by_queue_offset.remove(before, key);
        self.older.insert(before, key);
        if let Some(entry) = self.get_mut(key) {
            let older = (entry.newest, entry.newest_sent);
            entry.more_mut().older.push(older);
            entry.newest = half.copy;
            entry.newest_sent = half.sent;
            entry.checks = entry.checks.max(half.checks);
        }
        self.by_queue_offset.insert(half.copy.queue_offset, key);
    }

    /// Sets the time at which a transaction is handed out.
    pub fn set_due(&mut self, key: Key, due_ms: i64) {
        let Some(entry) = self.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.due_ms, due_ms);
        if before != NOT_DUE {
            self.due.remove(&(before, key));
        }
        self.due.insert((due_ms, key));
    }

    /// Notes that a check was sent; whether the one before it had its answer.
    pub fn checked(&mut self, key: Key, now_ms: i64) -> bool {
        let Some(entry) = self.get_mut(key) else { return true };
        entry.checks = entry.checks.saturating_add(1);
        entry.checked_after_ms = u32::try_from((now_ms - entry.stored_ms).max(0)).unwrap_or(NEVER - 1);
        std::mem::replace(&mut entry.answered, false)
    }

    /// Notes that a check was answered, by what ends nothing.
    pub fn answered(&mut self, key: Key) {
        if let Some(entry) = self.get_mut(key) {
            entry.answered = true;
        }
    }

    /// Notes that a transaction's local part ended here: its age counts from now.
    pub fn local_ended(&mut self, key: Key, now_ms: i64) {
        if let Some(entry) = self.get_mut(key).filter(|entry| entry.running) {
            entry.running = false;
            entry.aged_after_ms = u32::try_from((now_ms - entry.stored_ms).max(0)).unwrap_or(NEVER);
        }
    }

    /// The due ones, the longest due first.
    pub fn due(&self, now_ms: i64, limit: usize) -> Vec<Key> {
        self.due.iter().take_while(|(due, _)| *due <= now_ms).take(limit).map(|(_, key)| *key).collect()
    }

    /// When the first one is due.
    pub fn next_due_ms(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Ends a transaction: it does not pend any more, and all its copies are decided.
    pub fn decide(&mut self, key: Key, outcome: Outcome) {
        let Some(entry) = self.remove(key) else { return };
        for (copy, _) in entry.copies() {
            self.decided.set(copy.queue_offset, outcome);
        }
    }

    /// Ends a transaction now: as `decide`, and its half message is refused if it arrives once more.
    pub fn end(&mut self, key: Key, outcome: Outcome, now_ms: i64) {
        let identity = self.get(key).map_or(0, |entry| entry.identity);
        self.recent.note(identity, outcome, now_ms);
        self.decide(key, outcome);
    }

    /// Takes a transaction out of the table.
    pub fn remove(&mut self, key: Key) -> Option<Pending> {
        let entry = self.slab.remove(key)?;
        self.by_queue_offset.remove(entry.newest.queue_offset, key);
        self.by_identity.unlink(&self.slab, key, entry.identity);
        self.due.remove(&(entry.due_ms, key));
        for (copy, _) in entry.more.iter().flat_map(|more| &more.older) {
            self.older.remove(&copy.queue_offset);
        }
        self.live -= 1;
        self.sizes.remove(entry.size);
        Some(entry)
    }

    /// The lowest newest copy of a pending transaction, or `half_queue_end`: how far the half progress may go.
    pub fn half_progress(&mut self, half_queue_end: u64) -> u64 {
        // It only ever rises: newer halves stand behind, and a transaction's newest copy moves only back in the queue.
        while self.lowest < half_queue_end && !self.is_newest(self.lowest) {
            self.lowest += 1;
        }
        self.lowest.min(half_queue_end)
    }

    /// Where the log's lowest copy of a pending transaction stands. Halves stand in the log as in their queue.
    pub fn lowest_place(&mut self, half_queue_end: u64) -> Option<u64> {
        let newest = Some(self.half_progress(half_queue_end)).filter(|lowest| self.is_newest(*lowest));
        let lowest = newest.into_iter().chain(self.older.keys().copied()).min()?;
        let entry = self.get(self.find(lowest)?)?;
        entry.copies().find(|(copy, _)| copy.queue_offset == lowest).map(|(copy, _)| copy.physical_offset)
    }

    /// No newest copy of a pending transaction is below it.
    pub const fn lowest(&self) -> u64 {
        self.lowest
    }

    /// The outcome of a half that does not pend; `None` if the table does not reach that far.
    pub fn outcome(&self, queue_offset: u64) -> Option<Outcome> {
        self.decided.get(queue_offset)
    }

    fn is_newest(&self, queue_offset: u64) -> bool {
        self.by_queue_offset.get(queue_offset).is_some()
    }

    fn group_number(&mut self, group: &str) -> u32 {
        if let Some(number) = self.group_numbers.get(group) {
            return *number;
        }
        let number = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let name: Arc<str> = group.into();
        self.groups.push(Arc::clone(&name));
        self.group_numbers.insert(name, number);
        number
    }
}

/// A table at one moment: what a snapshot is made of while the live one goes on.
#[derive(Debug)]
pub struct Frozen {
    blocks: Vec<Arc<Block>>,
    groups: Vec<Arc<str>>,
    lowest: u64,
    /// The outcomes of halves that are decided.
    pub decided: DecidedHalves,
    /// Op messages, for the op progress.
    pub ops: OpProgress,
}

impl Frozen {
    /// All transactions, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.blocks.iter().flat_map(|block| block.entries())
    }

    /// The producer groups by their numbers.
    pub fn groups(&self) -> &[Arc<str>] {
        &self.groups
    }

    /// No newest copy of a pending transaction is below it.
    pub const fn lowest(&self) -> u64 {
        self.lowest
    }
}

/// What recovery does while it reads the log.
impl Table {
    /// Notes a final message.
    pub fn saw_final(&mut self, key: Key) {
        if let Some(entry) = self.get_mut(key) {
            entry.more_mut().evidence.final_message = true;
        }
    }

    /// Notes a discarded copy.
    pub fn saw_discard(&mut self, key: Key) {
        if let Some(entry) = self.get_mut(key) {
            entry.more_mut().evidence.discarded = true;
        }
    }

    /// Notes an op that names the copy at `queue_offset`, and what it tells.
    pub fn saw_op(&mut self, key: Key, queue_offset: u64, op: Op) {
        if let Some(entry) = self.get_mut(key) {
            let ends = queue_offset >= entry.last_sent();
            let more = entry.more_mut();
            more.named.insert(queue_offset);
            if ends && more.evidence.op != Op::BehindLoss {
                more.evidence.op = op;
            }
        }
    }

    /// Keeps more about a transaction than its state needs.
    pub fn note(&mut self, key: Key, note: impl FnOnce(&mut More)) {
        if let Some(entry) = self.get_mut(key) {
            note(entry.more_mut());
        }
    }

    /// Ends the reading: ages go by the monotonic clock from here on, and each is due `due_in_ms` behind its age's start.
    pub fn start(&mut self, wall_ms: i64, monotonic_ms: i64, due_in_ms: impl Fn(&Pending) -> i64) {
        self.recent.start(wall_ms, monotonic_ms);
        let mut due: Vec<(i64, Key)> = self.iter().map(|(key, _)| (0, key)).collect();
        for (due_ms, key) in &mut due {
            if let Some(entry) = self.get_mut(*key) {
                // A store timestamp in the future (the clock was set back) means an age of 0.
                entry.stored_ms = monotonic_ms - wall_ms.saturating_sub(entry.stored_ms).clamp(0, AGE_MAX_MS);
                entry.due_ms = entry.aged_from_ms() + due_in_ms(entry);
                *due_ms = entry.due_ms;
            }
        }
        // Built at once from all of them, the tree is dense.
        self.due = due.into_iter().collect();
    }

    /// Puts a transaction back as a snapshot holds it.
    pub fn restore(&mut self, half: &NewHalf<'_>, older: &[(HalfCopy, bool)], named: Vec<u64>) -> Key {
        let key = self.insert(half);
        if !named.is_empty() {
            self.note(key, |more| more.named = named.into_iter().collect());
        }
        if !older.is_empty() {
            for (copy, _) in older {
                self.older.insert(copy.queue_offset, key);
            }
            self.note(key, |more| more.older = older.to_vec());
        }
        key
    }
}

/// How far the op progress may go: it passes only ops that name nothing at or above the half progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpProgress {
    /// First op queue offset of a run → the highest half that the run names.
    runs: BTreeMap<u64, u64>,
    end: u64,
    /// How often runs were joined in pairs, so that each covers twice as many ops.
    doublings: u32,
}

/// Ops that share one run: a coarse answer is a lower, safe one.
const OPS_PER_RUN: u64 = 64;
/// Runs that are kept: after a transaction that is pending for long they would grow without end.
const RUNS_MAX: usize = 1 << 14;

impl OpProgress {
    /// Notes an op message.
    pub fn note(&mut self, op_queue_offset: u64, highest_half: u64) {
        self.end = op_queue_offset.saturating_add(1);
        match self.runs.last_entry() {
            Some(mut run) if op_queue_offset < run.key().saturating_add(OPS_PER_RUN << self.doublings) => {
                let highest = run.get_mut();
                *highest = highest_half.max(*highest);
            }
            _ => {
                self.runs.insert(op_queue_offset, highest_half);
                self.join_runs();
            }
        }
    }

    fn join_runs(&mut self) {
        while self.runs.len() > RUNS_MAX && self.doublings < 32 {
            let all: Vec<_> = std::mem::take(&mut self.runs).into_iter().collect();
            let joined = all.chunks(2).filter_map(|pair| {
                let highest = pair.iter().map(|(_, highest)| *highest).max()?;
                pair.first().map(|(first, _)| (*first, highest))
            });
            self.runs = joined.collect();
            self.doublings += 1;
        }
    }

    /// The op progress for a half progress, which never goes back.
    pub fn pass(&mut self, half_progress: u64) -> u64 {
        while let Some(run) = self.runs.first_entry().filter(|run| *run.get() < half_progress) {
            run.remove();
        }
        self.runs.keys().next().copied().unwrap_or(self.end)
    }

    /// As a snapshot holds it.
    pub fn parts(&self) -> (u64, impl Iterator<Item = (u64, u64)> + '_) {
        (self.end, self.runs.iter().map(|(first, highest)| (*first, *highest)))
    }

    /// Back from a snapshot.
    pub fn from_parts(end: u64, runs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut progress = Self { runs: runs.into_iter().collect(), end, doublings: 0 };
        progress.join_runs();
        progress
    }
}
