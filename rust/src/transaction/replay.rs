//! Applies the log's transaction records, in order, to the table.
//!
//! In:     half, final, discarded and op records, as recovery reads them.
//! Out:    pending and decided transactions, and the decided halves that no op names yet.
//! Always: the rule of docs/internals/transactions.md. It also covers stores that a broker used: a broker puts half
//!         messages back and may commit twice.
//! Not here: reading the log, writing the missing ops.

use std::collections::{BTreeSet, VecDeque};

use hashbrown::{HashMap, HashSet};

use super::op::parse_op_body;
use super::outcome::Op;
use super::pending::{More, Pending};
use super::set::{Forming, Part, SetMark};
use super::table::{Key, NewHalf, Table};
use super::{HALF_QUEUE, HalfCopy, HalfFacts, Identity};
use crate::base::error::Outcome;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, REPAIR_TOPIC, SHORT_REPAIR_TOPIC, TIMED_TOPIC};
use crate::base::units::TimestampMs;
use crate::record::properties::REAL_TOPIC;
use crate::record::{RecordView, TransactionType};

/// How much the replay remembers of decided transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Only what may still change. Enough for a log that only txstore wrote.
    Open,
    /// Also the identities of all decided transactions, because a broker may put any of them back.
    Identities,
    /// Every transaction with all its records, to list them.
    All,
    /// The same, until the caller takes a transaction that has ended (`Replay::next_ended`). The caller also learns
    /// which records had no transaction (`Replay::next_unmatched`).
    UntilTaken,
}

impl Keep {
    /// Returns whether the positions of all records are kept.
    const fn has_records(self) -> bool {
        matches!(self, Self::All | Self::UntilTaken)
    }
}

/// A record whose transaction is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// An op names this half queue offset.
    Op(u64),
    /// A final message or a discarded copy of this identity names the half at this physical offset.
    End(Option<Identity>, u64),
}

/// The state of a replay besides the table.
#[derive(Debug)]
pub struct Replay {
    keep: Keep,
    first_physical_offset: u64,
    half_progress: u64,
    /// The half queue offset after the last one. A later record with a lower offset is in no queue.
    half_next: u64,
    finished: HashMap<Identity, u64>,
    /// The older copies of the transactions in `finished`, if they have any.
    finished_older: HashMap<Identity, Vec<u64>>,
    by_physical_offset: HashMap<u64, Key>,
    unnamed: BTreeSet<u64>,
    /// Halves from this physical offset on may form sets. Earlier ones may have copies that a broker put back.
    sets_from: u64,
    forming: Forming,
    /// The lowest queue offset of a set that was cut by a crash. Only txstore wrote the half queue from there on.
    cut_set: Option<u64>,
    /// The transactions of several messages, by the physical offsets of their other halves.
    by_other_half: HashMap<u64, Key>,
    /// The highest queue offset that an op names, plus 1.
    named_end: u64,
    /// A repair has replaced lost records in the log.
    is_repaired: bool,
    loss: Loss,
    /// Transactions that a record has decided and no op names yet. `None`: not asked.
    unsettled: Option<HashSet<Key>>,
    /// The store timestamp that counts as time 0 in the table.
    epoch_ms: i64,
    /// The store timestamp of the last record that was applied.
    now_ms: i64,
    /// With `Keep::UntilTaken`: transactions that have ended, as far as the log tells so far.
    ended: VecDeque<Key>,
    /// With `Keep::UntilTaken`: what was not matched.
    unmatched: VecDeque<Unmatched>,
}

/// What recovery must still write for decided halves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Half queue offsets that no op names.
    pub unnamed: Vec<u64>,
    /// Halves of sets of which the log has some of the final or discarded messages, but not those of these halves.
    pub to_end: Vec<(HalfCopy, Outcome)>,
}

/// Whether records were lost directly before the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// No records were lost.
    None,
    /// The last record replaces lost records.
    Here,
    /// After the loss came ends of one group, written at that time. The lost records may have decided the transactions
    /// that the group's ops name.
    EndsSince(TimestampMs),
}

impl Replay {
    /// Returns a replay of a log that begins at `first_physical_offset`, with the stored half progress.
    pub fn new(keep: Keep, first_physical_offset: u64, half_progress: u64) -> Self {
        Self {
            keep,
            first_physical_offset,
            half_progress,
            half_next: 0,
            finished: HashMap::new(),
            finished_older: HashMap::new(),
            by_physical_offset: HashMap::new(),
            unnamed: BTreeSet::new(),
            sets_from: u64::MAX,
            forming: Forming::default(),
            cut_set: None,
            by_other_half: HashMap::new(),
            named_end: 0,
            is_repaired: false,
            loss: Loss::None,
            unsettled: None,
            epoch_ms: 0,
            now_ms: 0,
            ended: VecDeque::new(),
            unmatched: VecDeque::new(),
        }
    }

    /// Returns the next transaction that a record has ended whose newest half is named by an op. It may come again.
    pub fn next_ended(&mut self) -> Option<Key> {
        self.ended.pop_front()
    }

    /// Returns what else the records since the last call did not match.
    pub fn next_unmatched(&mut self) -> Option<Unmatched> {
        self.unmatched.pop_front()
    }

    /// Takes a transaction from the table. Later records do not find it.
    pub fn take(&mut self, table: &mut Table, key: Key) -> Option<Pending> {
        let entry = table.remove(key)?;
        if !self.by_physical_offset.is_empty() {
            for (copy, _) in entry.copies() {
                self.by_physical_offset.remove(&copy.physical_offset);
            }
        }
        Some(entry)
    }

    fn note_unmatched(&mut self, what: Unmatched) {
        if self.keep == Keep::UntilTaken {
            self.unmatched.push_back(what);
        }
    }

    /// Returns the highest queue offset that an op names, plus 1, if records were lost. Otherwise returns 0.
    pub const fn named_end(&self) -> u64 {
        if self.is_repaired { self.named_end } else { 0 }
    }

    /// Continues after a half queue that ends at `half_next`.
    pub const fn begin_at(&mut self, half_next: u64) {
        self.half_next = half_next;
    }

    /// Continues with a table that was started: its times are store timestamps minus `epoch_ms`.
    pub const fn continue_from(&mut self, epoch_ms: i64) {
        self.epoch_ms = epoch_ms;
    }

    /// Returns the queue offset of the first half message whose set is not complete. The table does not have it, but no
    /// broker has finished it.
    pub fn cut_set_from(&self) -> Option<u64> {
        self.cut_set.or_else(|| self.forming.first())
    }

    /// Notes from now on whether the last record is the last one of its write.
    pub fn watch_writes(&mut self) {
        self.unsettled = Some(HashSet::new());
    }

    /// Returns whether more records of the last write may follow. The table alone does not tell then how some
    /// transactions end. Needs `watch_writes`.
    pub fn is_within_a_write(&self) -> bool {
        self.forming.is_incomplete() || self.unsettled.as_ref().is_some_and(|unsettled| !unsettled.is_empty())
    }

    /// Takes halves from a physical offset on as sets, and the sets that the table has already.
    pub fn know_sets(&mut self, from: u64, table: &Table) {
        self.sets_from = from;
        for (key, entry) in table.iter().filter(|(_, entry)| entry.is_set()) {
            self.by_other_half.extend(entry.to_end().map(|copy| (copy.physical_offset, key)));
        }
    }

    /// Applies one record. Ignores records that belong to no transaction, and records that are in no queue, because
    /// their queue offset has no meaning.
    pub fn apply(&mut self, table: &mut Table, view: &RecordView<'_>) {
        self.note_loss(view);
        self.now_ms = view.store_timestamp.0 - self.epoch_ms;
        if self.forming.is_incomplete()
            && !(view.topic == HALF_TOPIC && self.forming.continues(SetMark::of(view.properties)))
        {
            self.abandon_set(table);
        }
        match view.topic {
            _ if !view.transaction_type().is_queued() => {}
            HALF_TOPIC => self.half(table, view),
            OP_TOPIC => self.op(table, view),
            DISCARD_TOPIC => self.discard(table, view),
            _ if view.transaction_type() == TransactionType::Commit => self.final_message(table, view),
            _ => {}
        }
    }

    fn note_loss(&mut self, view: &RecordView<'_>) {
        let is_end =
            matches!(view.topic, OP_TOPIC | DISCARD_TOPIC) || view.transaction_type() == TransactionType::Commit;
        let time = view.store_timestamp;
        self.loss = match self.loss {
            _ if matches!(view.topic, REPAIR_TOPIC | SHORT_REPAIR_TOPIC)
                && view.transaction_type() == TransactionType::Rollback =>
            {
                Loss::Here
            }
            Loss::Here if is_end => Loss::EndsSince(time),
            Loss::EndsSince(since) if is_end && since == time => self.loss,
            _ => Loss::None,
        };
        self.is_repaired |= self.loss == Loss::Here;
    }

    /// Rolls back the halves of a set whose last half is missing: a crash came while they were written.
    fn abandon_set(&mut self, table: &mut Table) {
        self.cut_set = self.cut_set_from();
        for queue_offset in self.forming.abandon() {
            table.decided.set(queue_offset, Outcome::RolledBack);
            if !mutated(Mutant::SetNotRolledBack) {
                self.unnamed.insert(queue_offset);
            }
        }
    }

    /// Ends the replay and removes decided transactions from the table. Returns what is still to be written for them.
    pub fn finish(&mut self, table: &mut Table) -> Unfinished {
        self.abandon_set(table);
        let mut to_end = Vec::new();
        let all: Vec<_> = table.iter().map(|(key, entry)| (key, entry.evidence().outcome())).collect();
        for (key, outcome) in all {
            match outcome {
                Some(outcome) => {
                    // A rollback has no final messages.
                    let is_partial = outcome != Outcome::RolledBack
                        && outcome != Outcome::FinishedUnknown
                        && !mutated(Mutant::SetNotCompleted);
                    if let Some(set) = table.get(key).filter(|entry| entry.is_set() && is_partial) {
                        let ended = set.more().map_or(0, |more| more.set_ended);
                        to_end.extend(set.to_end().skip(ended).map(|copy| (copy, outcome)));
                    }
                    self.decide(table, key, outcome);
                }
                None if self.is_below_progress(table, key) => table.decide(key, Outcome::FinishedUnknown),
                None => {}
            }
        }
        Unfinished { unnamed: std::mem::take(&mut self.unnamed).into_iter().collect(), to_end }
    }

    /// Returns whether a broker's progress has passed every copy, so that the broker must have finished the
    /// transaction.
    pub fn is_below_progress(&self, table: &Table, key: Key) -> bool {
        table.get(key).is_some_and(|entry| entry.newest.queue_offset < self.half_progress)
    }

    fn half(&mut self, table: &mut Table, view: &RecordView<'_>) {
        let facts = HalfFacts::of(view);
        let half = new_half(view, &facts, self.epoch_ms);
        if view.queue_id == HALF_QUEUE {
            // The queue offset was used before. The queue entry points to the first record, and so does an op.
            if half.copy.queue_offset < self.half_next {
                return;
            }
            self.half_next = half.copy.queue_offset.saturating_add(1);
        }
        // The table does not know the halves of a set that is being read.
        if !self.forming.is_incomplete() {
            table.begin_at(half.copy.queue_offset);
        }
        if half.copy.physical_offset >= self.sets_from && self.set(table, view, &half) {
            return;
        }
        let known = half.identity.and_then(|identity| table.find_identity(identity));
        match known {
            Some(key) if (!facts.sent && !mutated(Mutant::PutBackStartsNew)) || joins(table, key) => {
                table.join(key, &half);
                self.note_physical_offset(&half, key);
            }
            Some(displaced) => {
                // The displaced transaction can still be found by its physical offsets until it is settled.
                let copies: Vec<_> = table.get(displaced).into_iter().flat_map(Pending::copies).collect();
                for (copy, _) in copies {
                    self.by_physical_offset.insert(copy.physical_offset, displaced);
                }
                self.begin(table, &half);
            }
            None => {
                let put_back = half.identity.filter(|_| !facts.sent);
                let finished = put_back.and_then(|identity| Some((identity, self.finished.get_mut(&identity)?)));
                if let Some((identity, finished)) = finished {
                    // A broker put a decided half back. This copy needs an op that names it, too.
                    let outcome = table.outcome(*finished).unwrap_or(Outcome::FinishedUnknown);
                    self.finished_older.entry(identity).or_default().push(*finished);
                    *finished = half.copy.queue_offset;
                    table.decided.set(half.copy.queue_offset, outcome);
                    self.unnamed.insert(half.copy.queue_offset);
                } else {
                    self.begin(table, &half);
                }
            }
        }
    }

    /// Handles a half of a set. Returns whether it is one.
    fn set(&mut self, table: &mut Table, view: &RecordView<'_>, half: &NewHalf<'_>) -> bool {
        match self.forming.take(SetMark::of(view.properties), half.copy, half.size) {
            Part::None => return false,
            Part::Another => {}
            Part::Last(others) => {
                let key = table.insert_set(half, &others);
                self.by_other_half.extend(others.iter().map(|(copy, _)| (copy.physical_offset, key)));
            }
        }
        true
    }

    fn begin(&mut self, table: &mut Table, half: &NewHalf<'_>) {
        let key = table.insert(half);
        self.note_physical_offset(half, key);
    }

    /// Notes a copy's physical offset, by which later records find its transaction.
    fn note_physical_offset(&mut self, half: &NewHalf<'_>, key: Key) {
        let is_noted = match self.keep {
            Keep::All => true,
            // The newest transaction of an identity is found by that, and the offsets of others are noted when they
            // are displaced.
            Keep::UntilTaken => half.identity.is_none(),
            Keep::Open | Keep::Identities => false,
        };
        if is_noted {
            self.by_physical_offset.insert(half.copy.physical_offset, key);
        }
    }

    fn final_message(&mut self, table: &mut Table, view: &RecordView<'_>) {
        let identity = Identity::of(view.properties, final_topic(view), view.body_crc);
        let half = view.prepared_transaction_offset.0;
        if let Some(key) = self.find(table, identity, half, false) {
            table.saw_final(key);
            table.saw_set_end(key);
            self.note(table, key, view, |more| more.finals.push(view.physical_offset.0));
            self.settle(table, key);
        } else {
            self.note_unmatched(Unmatched::End(identity, half));
            self.decide_again(table, identity, Outcome::Committed);
        }
    }

    fn discard(&mut self, table: &mut Table, view: &RecordView<'_>) {
        let real_topic = view.properties.get_str(REAL_TOPIC).unwrap_or_default();
        let identity = Identity::of(view.properties, real_topic, view.body_crc);
        let half = view.prepared_transaction_offset.0;
        if let Some(key) = self.find(table, identity, half, true) {
            table.saw_discard(key);
            table.saw_set_end(key);
            self.note(table, key, view, |more| more.discards.push(view.physical_offset.0));
            self.settle(table, key);
        } else {
            self.note_unmatched(Unmatched::End(identity, half));
            self.decide_again(table, identity, Outcome::Discarded);
        }
    }

    fn op(&mut self, table: &mut Table, view: &RecordView<'_>) {
        let mut highest = 0;
        let op = if self.loss == Loss::None { Op::RollsBack } else { Op::AfterLoss };
        for queue_offset in parse_op_body(view.body) {
            highest = highest.max(queue_offset);
            self.unnamed.remove(&queue_offset);
            let Some(key) = table.find(queue_offset) else {
                self.note_unmatched(Unmatched::Op(queue_offset));
                continue;
            };
            table.saw_op(key, queue_offset, op);
            self.note(table, key, view, |more| {
                if more.ops.last() != Some(&view.physical_offset.0) {
                    more.ops.push(view.physical_offset.0);
                }
            });
            self.settle(table, key);
        }
        self.named_end = self.named_end.max(highest.saturating_add(1));
        table.ops.note(view.queue_offset.0, highest);
    }

    /// Finds the transaction that a final message or a discarded copy refers to.
    fn find(&self, table: &Table, identity: Option<Identity>, physical_offset: u64, any_offset: bool) -> Option<Key> {
        let newest = identity.and_then(|identity| table.find_identity(identity));
        let has_copy = |key: &Key| table.get(*key).is_some_and(|entry| entry.has_copy_at(physical_offset));
        let same = |key: &Key| {
            let entry = table.get(*key).map(|entry| entry.identity);
            entry == Some(identity.map_or(0, |identity| identity.0))
        };
        // A broker's discarded copy names no half: its offset is 0, which may also be that of the log's first half.
        let names_none = any_offset && physical_offset == 0;
        newest
            .filter(|key| names_none || has_copy(key))
            .or_else(|| self.by_physical_offset.get(&physical_offset).copied().filter(has_copy).filter(same))
            .or_else(|| self.by_other_half.get(&physical_offset).copied().filter(has_copy))
            .or_else(|| Self::alone(table, identity, physical_offset))
            .or_else(|| newest.filter(|_| any_offset || physical_offset < self.first_physical_offset))
    }

    /// Finds a half without id or group by its physical offset.
    fn alone(table: &Table, identity: Option<Identity>, physical_offset: u64) -> Option<Key> {
        if identity.is_some() {
            return None;
        }
        table
            .iter()
            .find(|(_, entry)| entry.identity == 0 && entry.newest.physical_offset == physical_offset)
            .map(|(key, _)| key)
    }

    /// Decides a transaction that has already left the table: a broker committed or discarded what was rolled back.
    fn decide_again(&mut self, table: &mut Table, identity: Option<Identity>, outcome: Outcome) {
        let Some((identity, newest)) = identity.and_then(|identity| Some((identity, *self.finished.get(&identity)?)))
        else {
            return;
        };
        if outcome == Outcome::Discarded && table.outcome(newest) == Some(Outcome::Committed) {
            return;
        }
        for queue_offset in self.finished_older.get(&identity).into_iter().flatten().chain([&newest]) {
            table.decided.set(*queue_offset, outcome);
        }
    }

    fn note(&self, table: &mut Table, key: Key, view: &RecordView<'_>, note: impl FnOnce(&mut More)) {
        if self.keep.has_records() {
            table.note(key, |more| {
                note(more);
                more.ended_ms = more.ended_ms.or(Some(view.store_timestamp.0));
            });
        }
    }

    /// Removes a decided transaction whose newest copy is named by an op.
    fn settle(&mut self, table: &mut Table, key: Key) {
        self.settle_if_named(table, key);
        if let Some(unsettled) = &mut self.unsettled {
            match table.get(key).and_then(|entry| entry.evidence().outcome()) {
                Some(_) => unsettled.insert(key),
                None => unsettled.remove(&key),
            };
        }
    }

    fn settle_if_named(&mut self, table: &mut Table, key: Key) {
        let Some(entry) = table.get(key) else { return };
        let named = entry.more().is_some_and(|more| more.named.contains(&entry.newest.queue_offset));
        match (self.keep, entry.evidence().outcome().filter(|_| named)) {
            (Keep::UntilTaken, Some(_)) => self.ended.push_back(key),
            (Keep::Open | Keep::Identities, Some(outcome)) => self.decide(table, key, outcome),
            (Keep::All, _) | (_, None) => {}
        }
    }

    fn decide(&mut self, table: &mut Table, key: Key, outcome: Outcome) {
        let Some(entry) = table.get(key) else { return };
        for (copy, _) in entry.copies() {
            let named = entry.more().is_some_and(|more| more.named.contains(&copy.queue_offset));
            if !named && copy.queue_offset >= self.half_progress {
                self.unnamed.insert(copy.queue_offset);
            }
            self.by_physical_offset.remove(&copy.physical_offset);
            self.by_other_half.remove(&copy.physical_offset);
        }
        let identity = entry.identity;
        if self.keep == Keep::Identities && entry.identity != 0 {
            let identity = Identity(entry.identity);
            self.finished.insert(identity, entry.newest.queue_offset);
            let newest = entry.newest.queue_offset;
            let older: Vec<u64> =
                entry.copies().map(|(copy, _)| copy.queue_offset).filter(|copy| *copy != newest).collect();
            if older.is_empty() {
                self.finished_older.remove(&identity);
            } else {
                self.finished_older.insert(identity, older);
            }
        }
        table.recent.note(identity, outcome, self.now_ms);
        table.decide(key, outcome);
    }
}

/// Returns the topic of a committed message. One with a time first waits for it in another topic.
pub fn final_topic<'a>(view: &RecordView<'a>) -> &'a str {
    let waits = view.topic == TIMED_TOPIC && !mutated(Mutant::TimedFinalUnknown);
    waits.then(|| view.properties.get_str(REAL_TOPIC)).flatten().unwrap_or(view.topic)
}

/// Returns whether a sent half joins a transaction that has not ended yet.
fn joins(table: &Table, key: Key) -> bool {
    table.get(key).is_some_and(|entry| {
        entry.evidence().outcome().is_none() && entry.more().is_none_or(|more| more.named.is_empty())
    })
}

fn new_half<'a>(view: &RecordView<'_>, facts: &HalfFacts<'a>, epoch_ms: i64) -> NewHalf<'a> {
    NewHalf {
        copy: HalfCopy { queue_offset: view.queue_offset.0, physical_offset: view.physical_offset.0 },
        identity: facts.identity(),
        group: facts.group,
        size: view.size,
        stored_ms: view.store_timestamp.0 - epoch_ms,
        immunity_ms: facts.immunity_ms,
        checks: facts.checks,
        owner: 0,
        sent: facts.sent,
    }
}
