//! Checks a whole store: the log, what is derived from it, every transaction, every consumer.
//!
//! In:     an open store, the history of what was tried and reported, the shadow of the log.
//! Out:    what was found, or the name of the promise that is broken.
//! Always: what the log means is computed here by the rule itself (rule.rs). A store that a broker also wrote is
//!         checked by it, too, but T3 and T7 bind only what txstore wrote.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use txstore::base::error::Outcome;
use txstore::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP};
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset};
use txstore::record::properties::KEYS;
use txstore::record::{RecordCrc, RecordView, TransactionType, Verify, decode};
use txstore::store::{Decider, End, EndKind, Store, StoredRecord, Wait};
use txstore::transaction::op::parse_op_body;
use txstore::transaction::scan::Waiting;
use txstore::transaction::{HalfCopy, HalfFacts};

use crate::delays::FoundDelayed;
use crate::history::{Half, Held, History, READERS, TOPICS, broken, hold, number_of, outcome_of};
use crate::rule::{Transaction, transactions};
use crate::sets::{Part, Sets};
use crate::timed::Time;
use crate::waits::FoundTimed;
use crate::watched::{Shadow, crc};

/// What a store is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub history: &'a History,
    pub shadow: &'a Shadow,
    /// Everything that was acknowledged up to this end of the log must exist.
    pub must_end: u64,
    /// The physical offset below which a broker wrote.
    pub broker_end: u64,
    /// The half-queue offset below which a broker finished all halves.
    pub broker_progress: u64,
    /// The half and op progress in the files that a crash left.
    pub raw_progress: Option<(u64, u64)>,
    /// Whether txstore's records carry a CRC of their own.
    pub crc: bool,
    /// Timed messages were handed over to a broker since the last opening.
    pub is_handed_over: bool,
    /// Also makes slow checks: keys, the history that the store returns, repeated ends.
    pub thorough: bool,
}

/// One transaction as found in the log.
#[derive(Clone, Debug)]
pub struct FoundTransaction {
    pub copies: Vec<HalfCopy>,
    pub outcome: Option<Outcome>,
    /// The matching half of the history.
    pub known: Option<usize>,
    pub id: Option<String>,
    pub group: String,
    pub topic: String,
    pub body: Vec<u8>,
    pub immunity_ms: Option<i64>,
    /// The most that a copy has.
    pub checks: u16,
    /// When its newest copy was stored.
    pub stored_ms: i64,
    /// What it is in a transaction of several messages.
    pub part: Option<Part>,
    /// When its message is to be delivered.
    pub time: Option<Time>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub transactions: Vec<FoundTransaction>,
    pub delayed: Vec<FoundDelayed>,
    pub timed: Vec<FoundTimed>,
    /// The physical offsets of messages, by their numbers.
    pub messages: BTreeMap<u64, u64>,
    /// The physical offsets of all records, with the CRC of their bytes.
    pub offsets: BTreeMap<u64, u32>,
    pub log: Vec<StoredRecord>,
    pub end: u64,
    pub newest_ms: i64,
    /// A torn record survived. Without a CRC of its own it cannot be recognized.
    pub is_blurred: bool,
    /// The number of single checks.
    pub checks: u64,
}

struct Look<'a> {
    store: &'a Store,
    expected: Expected<'a>,
    log: Vec<RecordView<'a>>,
    by_offset: HashMap<u64, usize>,
    rule: Vec<Transaction>,
    sets: Sets,
    /// The offset where the log begins.
    minimum: u64,
}

pub fn read_log(store: &Store) -> Held<Vec<StoredRecord>> {
    let mut from = PhysicalOffset(store.stat().unwrap().min_physical_offset);
    let mut log = Vec::new();
    loop {
        match store.scan(from, 1_000) {
            Ok((records, _)) if records.is_empty() => return Ok(log),
            Ok((records, next)) => {
                log.extend(records);
                from = next;
            }
            Err(error) => return broken("L1", format!("the log cannot be read: {error}")),
        }
    }
}

/// Checks all of a store.
pub fn check(store: &Store, expected: Expected<'_>) -> Held<Found> {
    let log = read_log(store)?;
    let views: Vec<RecordView<'_>> = log.iter().map(|record| record.view().unwrap()).collect();
    let by_offset = views.iter().enumerate().map(|(number, view)| (view.physical_offset.0, number)).collect();
    let rule = transactions(&views, expected.broker_progress);
    let minimum = store.stat().unwrap().min_physical_offset;
    let sets = Sets::of(&rule, &views);
    let look = Look { store, expected, log: views, by_offset, rule, sets, minimum };
    let tried = expected.history.minimum_tried;
    hold(minimum <= tried, "L8", || format!("the log begins at {minimum}, removals went to {tried} at most"))?;
    let mut found = Found { end: store.stat().unwrap().max_physical_offset, ..Found::default() };
    for (record, view) in log.iter().zip(&look.log) {
        let at = view.physical_offset.0;
        if expected.shadow.holds(at, record.bytes()) {
            look.is_as_sent(view)?;
        } else {
            // What a killed broker had not synced may be torn by a power loss during our recovery.
            let sure = if at < expected.broker_end { at < expected.must_end } else { expected.crc };
            hold(!sure, "L1", || format!("the record at {at} is not what was written there: {view:?}"))?;
            found.is_blurred = true;
        }
        look.is_whole(record, view)?;
        found.offsets.insert(at, crc(record.bytes()));
    }
    look.acknowledged_is_there(&found.offsets)?;
    if found.is_blurred {
        drop(look);
        found.log = log;
        return Ok(found);
    }
    look.offsets_are_their_own()?;
    look.queues_are_those_of_the_log()?;
    look.messages(&mut found)?;
    crate::delays::look(&look.log, &expected, minimum, &mut found)?;
    crate::waits::look(store, &look.log, &expected, minimum, &mut found)?;
    look.transactions(&mut found)?;
    look.store_says_so()?;
    look.progress()?;
    if let Some((half_progress, op_progress)) = expected.raw_progress {
        look.progress_passes_nothing(half_progress, op_progress)?;
    }
    look.consumers()?;
    found.newest_ms = look.log.last().map_or(0, |last| last.store_timestamp.0);
    found.checks = look.log.len() as u64 * 6 + look.rule.len() as u64 * 8;
    drop(look);
    found.log = log;
    Ok(found)
}

impl<'a> Look<'a> {
    /// Checks L5: a record is whole.
    fn is_whole(&self, record: &StoredRecord, view: &RecordView<'_>) -> Held {
        let ours = self.expected.crc && view.physical_offset.0 >= self.expected.broker_end;
        let verify = Verify { body_crc: true, record_crc: if ours { RecordCrc::Required } else { RecordCrc::Ignore } };
        let decoded = decode(record.bytes(), view.physical_offset, verify);
        hold(decoded.is_ok(), "L5", || format!("{decoded:?} of {view:?}"))
    }

    /// Checks T3, T11: the properties of our half messages. A torn record may have any.
    fn is_as_sent(&self, view: &RecordView<'_>) -> Held {
        if view.topic != HALF_TOPIC || view.physical_offset.0 < self.expected.broker_end {
            return Ok(());
        }
        // Checks write nothing, so our half messages carry no count of checks, whatever a client set. A resume sets 0.
        let mut names = BTreeSet::new();
        let twice = view.properties.iter().find(|(name, _)| !names.insert(*name));
        hold(twice.is_none(), "T3", || format!("{twice:?} is there twice: {view:?}"))?;
        let checks = view.properties.get_str("TRANSACTION_CHECK_TIMES").filter(|checks| *checks != "0");
        hold(checks.is_none(), "T11", || format!("{checks:?} checks were stored: {view:?}"))
    }

    /// Checks L4, T13: offsets and store times are consistent.
    fn offsets_are_their_own(&self) -> Held {
        let mut next: HashMap<(&str, i32), u64> = HashMap::new();
        let mut newest_ms = i64::MIN;
        for view in self.log.iter().filter(|view| !self.is_of_a_deleted_topic(view)) {
            // A queue that has lost its front may begin at any offset.
            let first = if self.minimum > 0 { view.queue_offset.0 } else { 0 };
            let next = next.entry((view.topic, view.queue_id.0)).or_insert(first);
            hold(view.queue_offset.0 == *next, "L4", || format!("queue offset {next} is skipped by {view:?}"))?;
            *next += 1;
            let stored_ms = view.store_timestamp.0;
            hold(stored_ms >= newest_ms, "T13", || format!("stored at {stored_ms}, after {newest_ms}: {view:?}"))?;
            newest_ms = stored_ms;
        }
        Ok(())
    }

    /// Checks L6: each queue has exactly the log's records of that queue; each key leads to its records, the newest
    /// first.
    fn queues_are_those_of_the_log(&self) -> Held {
        let mut expected: BTreeMap<(&str, i32), Vec<u64>> = BTreeMap::new();
        let mut keys: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
        for view in &self.log {
            if self.is_of_a_deleted_topic(view) || self.is_deleted(view)? {
                continue;
            }
            expected.entry((view.topic, view.queue_id.0)).or_default().push(view.physical_offset.0);
            if self.expected.thorough {
                let words = view.properties.get_str(KEYS).into_iter().flat_map(|keys| keys.split(' '));
                for key in view.unique_id().into_iter().chain(words) {
                    keys.entry((view.topic, key)).or_default().push(view.physical_offset.0);
                }
            }
        }
        let mut queues = 0;
        for (topic, queue_id, first, end) in self.store.queues().unwrap() {
            let offsets = expected.get(&(topic.as_str(), queue_id.0));
            let count = offsets.map_or(0, Vec::len);
            let begins = offsets.and_then(|offsets| Some(self.at(*offsets.first()?)?.queue_offset.0));
            let name = (topic.clone(), queue_id.0);
            let history = self.expected.history;
            let deleted = history.deleted.contains_key(&name) || history.begun.contains_key(&name);
            let silent = first == end && (self.minimum > 0 || deleted);
            let range = begins.map(|begins| (begins, begins + count as u64));
            hold(range == Some((first, end)) || (range.is_none() && silent), "L6", || {
                format!("{topic}/{queue_id} goes from {first} to {end}, the log has {count} from {begins:?}")
            })?;
            let gone = self.expected.history.gone_below.get(&(topic.clone(), queue_id.0)).copied().unwrap_or(0);
            hold(end >= gone, "L4", || format!("{topic}/{queue_id} ends at {end}, {gone} messages of it are gone"))?;
            if range.is_none() {
                continue;
            }
            queues += 1;
            let read = self.store.read(&topic, queue_id, QueueOffset(first), usize::MAX, None);
            let Ok((records, _)) = read else {
                return broken("L6", format!("{topic}/{queue_id} cannot be read: {read:?}"));
            };
            let found: Vec<u64> = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
            hold(Some(&found) == offsets, "L6", || format!("{topic}/{queue_id} leads to {found:?}, not {offsets:?}"))?;
        }
        hold(queues == expected.len(), "L6", || format!("{queues} queues, the log has {}", expected.len()))?;
        for ((topic, key), mut offsets) in keys {
            offsets.reverse();
            let records = self.store.query(topic, key, usize::MAX).unwrap();
            // As in a broker, a key still leads to deleted messages of a topic that the broker created again.
            let begun = &self.expected.history.begun;
            let is_left = |view: &RecordView<'_>| {
                offsets.contains(&view.physical_offset.0)
                    || !begun.contains_key(&(view.topic.to_owned(), view.queue_id.0))
            };
            let views = records.iter().map(|record| record.view().unwrap()).filter(is_left);
            let found: Vec<u64> = views.map(|view| view.physical_offset.0).collect();
            hold(found == offsets, "L6", || format!("the index of {topic} {key} leads to {found:?}, not {offsets:?}"))?;
        }
        Ok(())
    }

    /// Returns whether a broker deleted the record's topic after it, and created the topic again.
    fn is_of_a_deleted_topic(&self, view: &RecordView<'_>) -> bool {
        let begun = self.expected.history.begun.get(&(view.topic.to_owned(), view.queue_id.0));
        begun.is_some_and(|begun| view.physical_offset.0 < *begun)
    }

    /// Returns whether a record is a message of a topic that was deleted after it. An acknowledged deletion is not
    /// undone, and a deletion never removes later messages.
    fn is_deleted(&self, view: &RecordView<'_>) -> Held<bool> {
        let deleted = self.expected.history.deleted.get(&(view.topic.to_owned(), view.queue_id.0));
        let Some((sure, tried)) = deleted else { return Ok(false) };
        let first = self.store.queue_range(view.topic, view.queue_id).unwrap().0;
        let hidden = view.queue_offset.0 < first;
        let fits = if hidden { view.queue_offset.0 < *tried } else { view.queue_offset.0 >= *sure };
        hold(fits, "L6", || format!("deleted were {sure} to {tried}, the queue begins at {first}: {view:?}"))?;
        Ok(hidden)
    }

    fn at(&self, physical_offset: u64) -> Option<&RecordView<'a>> {
        self.by_offset.get(&physical_offset).map(|number| &self.log[*number])
    }

    /// Checks L2, D1: everything that must survive is in the log.
    fn acknowledged_is_there(&self, offsets: &BTreeMap<u64, u32>) -> Held {
        let Expected { history, must_end, .. } = self.expected;
        for message in history.messages.values().filter(|message| message.end <= must_end) {
            let Some(physical_offset) =
                message.physical_offset.filter(|physical_offset| *physical_offset >= self.minimum)
            else {
                continue;
            };
            let there = self.at(physical_offset).is_some_and(|view| {
                (view.topic, view.queue_id.0, view.body) == (&message.topic, message.queue, &message.body)
            });
            hold(there, "L2", || format!("the message at {physical_offset} is lost: {message:?}"))?;
        }
        for half in history.halves.iter().filter(|half| half.end <= must_end) {
            for copy in half.copies.iter().filter(|copy| copy.physical_offset >= self.minimum) {
                let there = self.at(copy.physical_offset).is_some_and(|view| {
                    (view.topic, view.queue_offset.0) == (HALF_TOPIC, copy.queue_offset) && view.body == half.body
                });
                hold(there, "L2", || format!("the half at {copy:?} is lost: {half:?}"))?;
            }
        }
        for shown in history.shown.iter().filter(|shown| (self.minimum..must_end).contains(&shown.physical_offset)) {
            hold(offsets.get(&shown.physical_offset) == Some(&shown.crc), "D1", || {
                format!("what a reader was shown at {} is gone", shown.physical_offset)
            })?;
        }
        Ok(())
    }

    /// Checks L1, T1: every message was sent, and exists once. A half's body is in a topic only as a committed message.
    fn messages(&self, found: &mut Found) -> Held {
        for view in &self.log {
            if [HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC].contains(&view.topic)
                || view.physical_offset.0 < self.expected.broker_end
                || view.transaction_type() == TransactionType::Commit
                || crate::delays::concerns(view)
                || crate::waits::concerns(view)
            {
                continue;
            }
            let number = number_of(view.body).filter(|(kind, _)| *kind == 'm');
            let Some((_, number)) = number else { return broken("T1", format!("a half is visible: {view:?}")) };
            let sent = self.expected.history.messages.get(&number);
            let same = sent.is_some_and(|sent| {
                (&*sent.topic, sent.queue, &*sent.body) == (view.topic, view.queue_id.0, view.body)
            });
            hold(same, "L1", || format!("nobody sent {view:?}"))?;
            let before = found.messages.insert(number, view.physical_offset.0);
            hold(before.is_none(), "L1", || format!("message {number} is stored twice: at {before:?} and {view:?}"))?;
        }
        Ok(())
    }

    fn transactions(&self, found: &mut Found) -> Held {
        let mut claimed: BTreeSet<usize> = BTreeSet::new();
        for one in &self.rule {
            claimed.extend(one.finals.iter().chain(&one.discards));
            let known = self.known(one);
            self.ends_once(one)?;
            let half = &self.log[*one.halves.last().unwrap()];
            if let Some(known) = known.filter(|_| !self.sets.is_cut(half)) {
                let (known, time) = (&self.expected.history.halves[known], Time::of_half(half));
                self.outcome_was_asked_for(one, known)?;
                hold(known.time == time, "T3", || format!("sent was {known:?}, stored {half:?}"))?;
            } else {
                let foreign = one.first().physical_offset < self.expected.broker_end;
                hold(foreign || known.is_some(), "L1", || format!("nobody sent the half {half:?}"))?;
            }
            // A torn copy of a broker may have lost its number of checks.
            let checks = one.halves.iter().map(|number| HalfFacts::of(&self.log[*number]).checks).max().unwrap_or(0);
            found.transactions.push(found_transaction(one, half, known, checks));
        }
        for (number, view) in self.log.iter().enumerate() {
            let ends = view.transaction_type() == TransactionType::Commit || view.topic == DISCARD_TOPIC;
            let is_left = view.prepared_transaction_offset.0 >= self.minimum;
            let stray =
                ends && is_left && !claimed.contains(&number) && view.physical_offset.0 >= self.expected.broker_end;
            hold(!stray, "T2", || format!("it ends no transaction: {view:?}"))?;
        }
        self.sets.end_together(self.store.is_read_only())?;
        self.reported_outcomes_hold()
    }

    /// Returns whether a transaction may lack its final message: a broker may put a half back after it, so that
    /// retention removed the final message alone.
    fn may_have_lost(&self, one: &Transaction) -> bool {
        self.minimum > 0 && one.first().physical_offset < self.expected.broker_end
    }

    /// Returns the history's half of a transaction: by a copy's physical offset, else one that no client got an answer
    /// about.
    fn known(&self, one: &Transaction) -> Option<usize> {
        let halves = &self.expected.history.halves;
        let by_offset = halves.iter().position(|half| half.copies.contains(&one.first()));
        by_offset.or_else(|| {
            let view = &self.log[one.halves[0]];
            halves.iter().rposition(|half| {
                let same_id = half.id.is_none() || half.id.as_deref() == view.unique_id();
                half.copies.is_empty() && same_id && half.body == view.body
            })
        })
    }

    /// Checks T2, T3, T4, T7: at most one final or parked copy by txstore, with the right content.
    fn ends_once(&self, one: &Transaction) -> Held {
        let ours = |number: &&usize| self.log[**number].physical_offset.0 >= self.expected.broker_end;
        let theirs = one.finals.iter().chain(&one.discards).any(|number| !ours(&number));
        let (finals, discards) = (one.finals.iter().filter(ours).count(), one.discards.iter().filter(ours).count());
        hold(finals <= 1 && discards <= 1, "T7", || format!("{finals} finals, {discards} parked: {one:?}"))?;
        hold(finals + discards + usize::from(theirs) <= 1, "T2", || format!("ended by more than one: {one:?}"))?;
        for last in one.finals.iter().filter(ours) {
            self.copies_its_half(one, &self.log[*last], true)?;
        }
        for parked in one.discards.iter().filter(ours) {
            self.copies_its_half(one, &self.log[*parked], false)?;
        }
        Ok(())
    }

    /// Checks T3: the copy has the half's body, topic and queue, and its properties without the internal ones.
    fn copies_its_half(&self, one: &Transaction, last: &RecordView<'_>, is_final: bool) -> Held {
        let physical_offset = last.prepared_transaction_offset.0;
        if physical_offset < self.minimum {
            return Ok(());
        }
        let named = one.copies.iter().position(|copy| copy.physical_offset == physical_offset);
        let Some(named) = named else { return broken("T3", format!("it names no half: {last:?}")) };
        let half = &self.log[one.halves[named]];
        let facts = HalfFacts::of(half);
        hold(last.body == half.body, "T3", || format!("another body than {half:?}: {last:?}"))?;
        let waits = is_final && crate::waits::final_of(half, last)?;
        let target = if is_final { (facts.real_topic, facts.real_queue_id) } else { (DISCARD_TOPIC, QueueId(0)) };
        let is_there = waits || (last.topic, last.queue_id) == target;
        hold(is_there, "T3", || format!("it belongs to {target:?}: {last:?}"))?;
        let same = is_final || last.properties.iter().eq(half.properties.iter());
        hold(same, "T3", || format!("other properties than {half:?}: {last:?}"))
    }

    /// Checks T2: a transaction has no outcome that no client tried.
    fn outcome_was_asked_for(&self, one: &Transaction, half: &Half) -> Held {
        let Some(outcome) = one.outcome.filter(|_| !self.may_have_lost(one)) else { return Ok(()) };
        let asked = half.asked.iter().any(|(kind, _)| outcome_of(*kind) == outcome);
        let reported = half.reported.map(|(outcome, _)| outcome);
        let fits = reported.map_or(asked, |reported| reported == outcome);
        hold(fits, "T2", || format!("it is {outcome}: {half:?}, {one:?}"))?;
        let named = |number: &usize| self.log[*number].prepared_transaction_offset.0;
        let decider = one.finals.iter().chain(&one.discards).map(named).next();
        let fits = decider.is_none_or(|physical_offset| {
            half.foreign || half.asked.iter().any(|(_, named)| *named == physical_offset)
        });
        hold(fits, "T3", || format!("the copy at {decider:?} was not named: {half:?}"))
    }

    /// Checks T4, T5: the log confirms each outcome that was reported to a client.
    fn reported_outcomes_hold(&self) -> Held {
        let by_copy: HashMap<u64, &Transaction> =
            self.rule.iter().flat_map(|one| one.copies.iter().map(move |copy| (copy.physical_offset, one))).collect();
        for half in &self.expected.history.halves {
            let Some((reported, end)) = half.reported.filter(|(_, end)| *end <= self.expected.must_end) else {
                continue;
            };
            let physical_offset = half.copies.last().map_or(u64::MAX, |copy| copy.physical_offset);
            if physical_offset < self.minimum {
                continue;
            }
            let Some(one) = by_copy.get(&physical_offset) else { return broken("T5", format!("lost: {half:?}")) };
            if self.may_have_lost(one) {
                continue;
            }
            hold(one.outcome == Some(reported), "T5", || {
                format!("reported {reported} at {end}, now {:?}: {half:?}", one.outcome)
            })?;
            let finals = one.finals.len();
            hold((finals > 0) == (reported == Outcome::Committed), "T4", || format!("{finals} finals of {half:?}"))?;
        }
        Ok(())
    }

    /// Checks T2: the store's table and the log agree on each transaction.
    fn store_says_so(&self) -> Held {
        let waiting: BTreeSet<(u64, u64)> = (self.store.halves_waiting(None, usize::MAX).unwrap().iter())
            .map(|waiting| (waiting.newest.queue_offset, waiting.newest.physical_offset))
            .collect();
        let is_pending = |one: &&Transaction| {
            let half = &self.log[one.halves[0]];
            one.outcome.is_none() && Sets::leads(half) && !self.sets.is_cut(half) && !self.sets.has_cut_end(half)
        };
        let pending: BTreeSet<(u64, u64)> = (self.rule.iter().filter(is_pending))
            .map(|one| (one.newest().queue_offset, one.newest().physical_offset))
            .collect();
        hold(waiting == pending, "T2", || format!("{waiting:?} are listed, {pending:?} are pending"))?;
        if !self.expected.thorough {
            return Ok(());
        }
        let rows = self.store.transactions().unwrap();
        let is_whole = |at: u64| !self.at(at).is_some_and(|half| self.sets.has_cut_end(half));
        let found: BTreeMap<u64, Option<Outcome>> = (rows.iter())
            .map(|row| (row.halves[0].physical_offset, row.outcome))
            .filter(|(at, _)| is_whole(*at))
            .collect();
        let expected: BTreeMap<u64, Option<Outcome>> =
            (self.rule.iter().map(|one| (one.first().physical_offset, one.outcome)))
                .filter(|(at, _)| is_whole(*at))
                .collect();
        hold(found == expected, "T2", || format!("its history says {found:?}, the log {expected:?}"))?;
        if self.store.is_read_only() { Ok(()) } else { self.ends_again() }
    }

    /// Checks T6: repeating an end succeeds and writes nothing; another end fails with an error that names the outcome.
    fn ends_again(&self) -> Held {
        use txstore::base::error::Error;
        let before = self.store.stat().unwrap().max_physical_offset;
        for one in &self.rule {
            let Some(outcome) = one.outcome.filter(|_| !self.may_have_lost(one)) else { continue };
            if !Sets::leads(&self.log[one.halves[0]]) {
                continue;
            }
            for (copy, kind) in
                one.copies.iter().zip([EndKind::Commit, EndKind::RollBack, EndKind::Discard].iter().cycle())
            {
                let end =
                    End { half: *copy, kind: *kind, transaction_id: None, group: None, decider: Decider::Producer };
                let same = outcome_of(*kind) == outcome;
                let ended = self.store.end_transaction(&end, Wait::Yes);
                let fits = match &ended {
                    Ok(ended) => ended.already && ended.outcome == outcome && same,
                    Err(Error::AlreadyEnded { outcome: found, .. }) => *found == outcome && !same,
                    Err(_) => false,
                };
                hold(fits, "T6", || format!("{kind:?} of {one:?} gave {ended:?}"))?;
            }
        }
        let after = self.store.stat().unwrap().max_physical_offset;
        hold(before == after, "T6", || "ends of what has ended wrote something".into())
    }

    /// Checks T8, T9: op messages name the decided halves, and the progress passes no pending half.
    fn progress(&self) -> Held {
        if self.store.is_read_only() {
            return Ok(());
        }
        let stored = |topic| self.store.consumer_offset(topic, TRANSACTION_GROUP, QueueId(0)).unwrap().unwrap_or(0);
        let (half_progress, op_progress) = (stored(HALF_TOPIC), stored(OP_TOPIC));
        for one in self.rule.iter().filter(|one| one.outcome.is_some()) {
            for copy in one.copies.iter().filter(|copy| copy.queue_offset >= half_progress) {
                let named = one.named.contains(&copy.queue_offset);
                hold(named, "T8", || format!("no op names {copy:?}, progress {half_progress}: {one:?}"))?;
            }
        }
        self.progress_passes_nothing(half_progress, op_progress)
    }

    /// Checks T9: neither progress has passed anything that a broker would then miss.
    fn progress_passes_nothing(&self, half_progress: u64, op_progress: u64) -> Held {
        for one in self.rule.iter().filter(|one| one.outcome.is_none()) {
            let newest = one.newest().queue_offset;
            hold(newest >= half_progress, "T9", || {
                format!("the progress {half_progress} passed {newest}, which is pending")
            })?;
        }
        for view in self.log.iter().filter(|view| view.topic == OP_TOPIC && view.queue_offset.0 < op_progress) {
            let passed = parse_op_body(view.body).all(|name| name < half_progress);
            hold(passed, "T9", || {
                format!("the op progress {op_progress} passed {view:?}, the half's {half_progress}")
            })?;
        }
        Ok(())
    }

    /// Checks D2, D1: no offset is past its queue's end, none passes unacknowledged messages, none is lower than the
    /// file's.
    fn consumers(&self) -> Held {
        for (topic, group, queue_id, offset) in self.store.consumer_offsets().unwrap() {
            let end = self.store.queue_range(&topic, queue_id).unwrap().1;
            hold(offset <= end, "D2", || format!("{group} is at {offset} of {topic}/{queue_id}, which ends at {end}"))?;
        }
        if self.store.is_read_only() {
            return Ok(());
        }
        for ((topic, queue, group), known) in &self.expected.history.offsets {
            let (topic, group, queue_id) = (TOPICS[*topic], READERS[*group], QueueId(*queue));
            let end = self.store.queue_range(topic, queue_id).unwrap().1;
            let found = self.store.consumer_offset(topic, group, queue_id).unwrap().unwrap_or(0);
            let fits = (known.written.min(end)..=known.last).contains(&found);
            hold(fits, "D2", || {
                format!("{group} acknowledged {known:?} of {topic}/{queue_id}, is at {found} of {end}")
            })?;
        }
        Ok(())
    }
}

fn found_transaction(one: &Transaction, half: &RecordView<'_>, known: Option<usize>, checks: u16) -> FoundTransaction {
    let facts = HalfFacts::of(half);
    FoundTransaction {
        copies: one.copies.clone(),
        outcome: one.outcome,
        known,
        id: facts.unique_id.map(str::to_owned),
        group: facts.group.to_owned(),
        topic: facts.real_topic.to_owned(),
        body: half.body.to_vec(),
        immunity_ms: facts.immunity_ms,
        checks,
        stored_ms: half.store_timestamp.0,
        part: Part::of(half),
        time: Time::of_half(half),
    }
}

/// Checks T9: after recovery and at a clean close, the progress is the lowest pending half.
pub fn progress_is_exact(store: &Store) -> Held {
    let end = store.queue_range(HALF_TOPIC, QueueId(0)).unwrap().1;
    let waiting = store.halves_waiting(None, usize::MAX).unwrap();
    let first = |waiting: &Waiting| {
        let record = store.half(QueueOffset(waiting.newest.queue_offset)).unwrap();
        Part::of(&record.view().unwrap()).map_or(waiting.newest.queue_offset, |part| part.first)
    };
    let lowest = waiting.iter().map(first).min().unwrap_or(end);
    let stored = store.consumer_offset(HALF_TOPIC, TRANSACTION_GROUP, QueueId(0)).unwrap().unwrap_or(0);
    hold(stored == lowest, "T9", || format!("the progress is {stored}, the lowest pending {lowest}"))
}
