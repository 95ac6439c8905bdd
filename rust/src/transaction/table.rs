//! The table of transactions: the state of every half message by half queue offset.
//!
//! In:     half messages as they are stored or scanned, and outcomes.
//! Out:    pending transactions, outcomes, and how far the progress may go.
//! Always: a transaction is pending or decided, never both, and so are all its copies. The store's put lock guards the
//!         table. A pending transaction takes about a hundred bytes, a decided half message two bits.
//! Not here: records, files, policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use super::identity_map::IdentityMap;
use super::offset_map::OffsetMap;
use super::op_progress::OpProgress;
use super::outcome::{DecidedHalves, Op};
use super::pending::{More, NEVER, NO_IMMUNITY, Pending};
use super::recent::RecentlyEnded;
use super::sizes::Sizes;
pub use super::slab::Key;
use super::slab::{Block, Slab};
use super::{HalfCopy, Identity};
use crate::base::error::Outcome;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::to_usize;

/// The maximum age, a thousand years. A store timestamp can have any value.
const AGE_MAX_MS: i64 = 1_000 * 366 * 24 * 3_600_000;
/// Means that no time is set. Far in the past, but sums with it do not overflow.
const NOT_DUE: i64 = i64::MIN / 4;

/// A half message to add to the table.
#[derive(Clone, Copy, Debug)]
pub struct NewHalf<'a> {
    /// Its position.
    pub copy: HalfCopy,
    /// The identity that its copies share.
    pub identity: Option<Identity>,
    /// Its producer group.
    pub group: &'a str,
    /// The size of its record in bytes.
    pub size: u32,
    /// When it was stored (see `Pending::stored_ms`).
    pub stored_ms: i64,
    /// How long no check is sent, in milliseconds.
    pub immunity_ms: Option<i64>,
    /// The number of checks that were already sent.
    pub checks: u16,
    /// The id of the producer. If it is not 0, the local transaction runs in this process.
    pub owner: u32,
    /// Whether a producer sent it.
    pub sent: bool,
}

/// The state of all half messages.
#[derive(Debug, Default)]
pub struct Table {
    slab: Slab,
    by_queue_offset: OffsetMap,
    by_identity: IdentityMap,
    older: HashMap<u64, Key>,
    due: BTreeSet<(i64, Key)>,
    groups: Vec<Arc<str>>,
    group_numbers: HashMap<Arc<str>, u32>,
    sizes: Sizes,
    /// The number of half messages of sets besides those of their first messages.
    others: u64,
    lowest: u64,
    /// The outcomes of decided halves.
    pub decided: DecidedHalves,
    /// Op messages, for the op progress.
    pub ops: OpProgress,
    /// How transactions ended in the last minutes.
    pub recent: RecentlyEnded,
}

impl Table {
    /// Returns a table without transactions, for halves from queue offset `first` on.
    pub fn new(first: u64) -> Self {
        Self { decided: DecidedHalves::from(first), lowest: first, ..Self::default() }
    }

    /// Reserves memory for a number of transactions.
    pub fn reserve(&mut self, transactions: usize) {
        self.by_identity.reserve(&self.slab, transactions);
    }

    /// Sets the queue offset of the first half that the log still contains. Nothing is known of earlier halves, which
    /// is different from an outcome. Does nothing after the first half was added.
    pub fn begin_at(&mut self, first: u64) {
        if self.is_empty() && self.decided.is_untouched() {
            self.decided = DecidedHalves::from(first);
            self.lowest = self.lowest.max(first);
        }
    }

    /// Returns the number of pending transactions.
    pub const fn len(&self) -> u64 {
        self.sizes.count() - self.others
    }

    /// Returns whether no transaction is pending.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether a half message of a set is before a physical offset.
    pub fn has_set_below(&self, physical_offset: u64) -> bool {
        let is_below = |entry: &Pending| entry.copies().any(|(copy, _)| copy.physical_offset < physical_offset);
        self.others > 0 && self.iter().any(|(_, entry)| entry.is_set() && is_below(entry))
    }

    /// Returns the sizes of the pending half messages' records.
    pub const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        // A B-tree's nodes are about two thirds full.
        let due = self.due.len() * size_of::<(i64, Key)>() * 3 / 2;
        self.slab.memory() + self.by_queue_offset.memory() + self.by_identity.memory() + due + self.decided.memory()
    }

    /// Returns a transaction.
    pub fn get(&self, key: Key) -> Option<&Pending> {
        self.slab.get(key)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Pending> {
        self.slab.get_mut(key)
    }

    /// Finds the transaction that has a copy at a half queue offset.
    pub fn find(&self, queue_offset: u64) -> Option<Key> {
        self.by_queue_offset.get(queue_offset).or_else(|| self.older.get(&queue_offset).copied())
    }

    /// Finds the newest transaction of an identity.
    pub fn find_identity(&self, identity: Identity) -> Option<Key> {
        self.by_identity.find(&self.slab, identity)
    }

    /// Returns the name of a transaction's producer group.
    pub fn group(&self, entry: &Pending) -> &str {
        self.groups.get(to_usize(u64::from(entry.group))).map_or("", AsRef::as_ref)
    }

    /// Returns the name of a transaction's producer group, shared.
    pub fn shared_group(&self, entry: &Pending) -> Arc<str> {
        self.groups.get(to_usize(u64::from(entry.group))).map_or_else(|| "".into(), Arc::clone)
    }

    /// Returns all transactions, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Pending)> {
        self.slab.iter()
    }

    /// Returns transactions whose newest copy is after a queue offset (`None`: all), in half queue order.
    pub fn after(&self, queue_offset: Option<u64>) -> impl Iterator<Item = Key> + '_ {
        let from = queue_offset.map_or(0, |queue_offset| queue_offset.saturating_add(1));
        self.by_queue_offset.from(from).map(|(_, key)| key)
    }

    /// Returns the table at this moment. Copies no transaction: a later change copies what it changes.
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
        self.sizes.add(half.size);
        let key = self.slab.insert(entry);
        self.by_queue_offset.insert(half.copy.queue_offset, key);
        self.by_identity.link(&self.slab, key);
        key
    }

    /// Adds a transaction of several messages. `half` is the half message of its first, which was stored after the
    /// half messages of the others.
    pub fn insert_set(&mut self, half: &NewHalf<'_>, others: &[(HalfCopy, u32)]) -> Key {
        let key = self.insert(half);
        for (copy, size) in others {
            self.older.insert(copy.queue_offset, key);
            self.sizes.add(*size);
            self.others += 1;
        }
        self.note(key, |more| {
            more.older = others.iter().map(|(copy, _)| (*copy, half.sent)).collect();
            more.set_sizes = others.iter().map(|(_, size)| *size).collect();
        });
        key
    }

    /// Adds a copy after a transaction's newest copy.
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

    /// Sets the time at which a transaction is due.
    pub fn set_due(&mut self, key: Key, due_ms: i64) {
        let Some(entry) = self.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.due_ms, due_ms);
        if before != NOT_DUE {
            self.due.remove(&(before, key));
        }
        self.due.insert((due_ms, key));
    }

    /// Notes that a check was sent. Returns whether the previous check was answered.
    pub fn checked(&mut self, key: Key, now_ms: i64) -> bool {
        let Some(entry) = self.get_mut(key) else { return true };
        entry.checks = entry.checks.saturating_add(1);
        entry.checked_after_ms = u32::try_from((now_ms - entry.stored_ms).max(0)).unwrap_or(NEVER).min(NEVER - 1);
        std::mem::replace(&mut entry.answered, false)
    }

    /// Notes a check answer that did not end the transaction.
    pub fn answered(&mut self, key: Key) {
        if let Some(entry) = self.get_mut(key) {
            entry.answered = true;
        }
    }

    /// Notes which producer is asked first.
    pub fn set_owner(&mut self, key: Key, owner: u32) {
        if let Some(entry) = self.get_mut(key) {
            entry.owner = owner;
        }
    }

    /// Notes that a local transaction ended in this process. The transaction's age counts from now.
    pub fn local_ended(&mut self, key: Key, now_ms: i64) {
        if let Some(entry) = self.get_mut(key).filter(|entry| entry.running) {
            entry.running = false;
            entry.aged_after_ms = u32::try_from((now_ms - entry.stored_ms).max(0)).unwrap_or(NEVER);
        }
    }

    /// Returns the transactions that are due, the longest due first.
    pub fn due(&self, now_ms: i64, limit: usize) -> Vec<Key> {
        self.due.iter().take_while(|(due, _)| *due <= now_ms).take(limit).map(|(_, key)| *key).collect()
    }

    /// Returns when the next transaction is due.
    pub fn next_due_ms(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Ends a transaction: it is no longer pending, and all its copies are decided.
    pub fn decide(&mut self, key: Key, outcome: Outcome) {
        let Some(entry) = self.remove(key) else { return };
        for (copy, _) in entry.copies() {
            self.decided.set(copy.queue_offset, outcome);
        }
    }

    /// Ends a transaction now. Unlike `decide`, also refuses its half message if that arrives again.
    pub fn end(&mut self, key: Key, outcome: Outcome, now_ms: i64) {
        let identity = self.get(key).map_or(0, |entry| entry.identity);
        self.recent.note(identity, outcome, now_ms);
        self.decide(key, outcome);
    }

    /// Removes a transaction from the table.
    pub fn remove(&mut self, key: Key) -> Option<Pending> {
        let entry = self.slab.remove(key)?;
        self.by_queue_offset.remove(entry.newest.queue_offset, key);
        self.by_identity.unlink(&self.slab, key, entry.identity);
        self.due.remove(&(entry.due_ms, key));
        self.sizes.remove(entry.size);
        if let Some(more) = &entry.more {
            for (copy, _) in &more.older {
                self.older.remove(&copy.queue_offset);
            }
            for size in &more.set_sizes {
                self.sizes.remove(*size);
                self.others -= 1;
            }
        }
        Some(entry)
    }

    /// Returns how far the half progress may go: the lowest newest copy of a pending transaction, or `half_queue_end`.
    pub fn half_progress(&mut self, half_queue_end: u64) -> u64 {
        // The value only rises: new halves are added at the end, and a newest copy only moves towards it.
        while self.lowest < half_queue_end && !self.is_newest(self.lowest) && !self.is_in_set(self.lowest) {
            self.lowest += 1;
        }
        self.lowest.min(half_queue_end)
    }

    /// Returns the lowest physical offset of a pending transaction's copy. The log and the half queue have the same
    /// order.
    pub fn lowest_physical_offset(&mut self, half_queue_end: u64) -> Option<u64> {
        let newest = Some(self.half_progress(half_queue_end)).filter(|lowest| self.is_newest(*lowest));
        let lowest = newest.into_iter().chain(self.older.keys().copied()).min()?;
        let entry = self.get(self.find(lowest)?)?;
        entry.copies().find(|(copy, _)| copy.queue_offset == lowest).map(|(copy, _)| copy.physical_offset)
    }

    /// Returns a queue offset below which no pending transaction has its newest copy.
    pub const fn lowest(&self) -> u64 {
        self.lowest
    }

    /// Returns the outcome of a half that is not pending, or `None` if the table does not contain it.
    pub fn outcome(&self, queue_offset: u64) -> Option<Outcome> {
        self.decided.get(queue_offset)
    }

    fn is_newest(&self, queue_offset: u64) -> bool {
        self.by_queue_offset.get(queue_offset).is_some()
    }

    /// Returns whether a half message of a set is there. A broker that takes over must check each of them.
    fn is_in_set(&self, queue_offset: u64) -> bool {
        let is_there = self.older.get(&queue_offset).and_then(|key| self.get(*key)).is_some_and(Pending::is_set);
        is_there && !mutated(Mutant::SetPassed)
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

/// The table at one moment. A snapshot is made of it while the live table changes.
#[derive(Debug)]
pub struct Frozen {
    blocks: Vec<Arc<Block>>,
    groups: Vec<Arc<str>>,
    lowest: u64,
    /// The outcomes of decided halves.
    pub decided: DecidedHalves,
    /// Op messages, for the op progress.
    pub ops: OpProgress,
}

impl Frozen {
    /// Returns all transactions, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.blocks.iter().flat_map(|block| block.entries())
    }

    /// Returns the producer groups by their numbers.
    pub fn groups(&self) -> &[Arc<str>] {
        &self.groups
    }

    /// Returns a queue offset below which no pending transaction has its newest copy.
    pub const fn lowest(&self) -> u64 {
        self.lowest
    }
}

/// The methods that recovery uses while it reads the log.
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

    /// Notes that the next message of a set was committed or discarded. Does nothing for other transactions.
    pub fn saw_set_end(&mut self, key: Key) {
        if let Some(entry) = self.get_mut(key).filter(|entry| entry.is_set()) {
            entry.more_mut().set_ended += 1;
        }
    }

    /// Notes an op that names the copy at `queue_offset`, and what it says about the outcome.
    pub fn saw_op(&mut self, key: Key, queue_offset: u64, op: Op) {
        if let Some(entry) = self.get_mut(key) {
            // All final messages of a set come before its ops, so any of these ends it.
            let ends = entry.is_set() || queue_offset >= entry.last_sent();
            let more = entry.more_mut();
            more.named.insert(queue_offset);
            if ends && more.evidence.op != Op::AfterLoss {
                more.evidence.op = op;
            }
        }
    }

    /// Notes more facts about a transaction than its state needs.
    pub fn note(&mut self, key: Key, note: impl FnOnce(&mut More)) {
        if let Some(entry) = self.get_mut(key) {
            note(entry.more_mut());
        }
    }

    /// Ends recovery: ages now use the monotonic clock. Each transaction is due `due_in_ms` after the start of its age.
    pub fn start(&mut self, wall_ms: i64, monotonic_ms: i64, due_in_ms: impl Fn(&Pending) -> i64) {
        self.recent.start(wall_ms, monotonic_ms);
        let mut due: Vec<(i64, Key)> = self.iter().map(|(key, _)| (0, key)).collect();
        for (due_ms, key) in &mut due {
            if let Some(entry) = self.get_mut(*key) {
                // If the clock was set back, a store timestamp can be in the future. It means an age of 0.
                entry.stored_ms = monotonic_ms - wall_ms.saturating_sub(entry.stored_ms).clamp(0, AGE_MAX_MS);
                entry.due_ms = entry.aged_from_ms() + due_in_ms(entry);
                *due_ms = entry.due_ms;
            }
        }
        // A tree that is built from all elements at once is dense.
        self.due = due.into_iter().collect();
    }

    /// Restores a transaction from a snapshot.
    pub fn restore(
        &mut self,
        half: &NewHalf<'_>,
        older: &[(HalfCopy, bool)],
        set_sizes: &[u32],
        named: Vec<u64>,
    ) -> Key {
        let others: Vec<_> = older.iter().map(|(copy, _)| *copy).zip(set_sizes.iter().copied()).collect();
        let key = if others.is_empty() { self.insert(half) } else { self.insert_set(half, &others) };
        if !named.is_empty() {
            self.note(key, |more| more.named = named.into_iter().collect());
        }
        if !older.is_empty() && others.is_empty() {
            for (copy, _) in older {
                self.older.insert(copy.queue_offset, key);
            }
            self.note(key, |more| more.older = older.to_vec());
        }
        key
    }
}
