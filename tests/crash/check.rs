//! Checks a whole store: the log, what is derived from it, and every transaction.
//!
//! In:     an open store, the answers that a client got.
//! Out:    nothing, or a panic that names the broken promise.
//! Always: the outcome of each transaction is computed here from the log alone, by a simple implementation of the rule
//!         (docs/internals/transactions.md).

use std::collections::{BTreeMap, BTreeSet};

use txstore::base::error::Outcome;
use txstore::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP};
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset};
use txstore::record::TransactionType;
use txstore::record::properties::{REAL_QUEUE_ID, REAL_TOPIC};
use txstore::storage::memory::Memory;
use txstore::storage::{OpenMode, Storage};
use txstore::store::{Store, StoredRecord, Wait};
use txstore::transaction::HalfCopy;
use txstore::transaction::op::parse_op_body;

use crate::world::Known;

/// What must have survived a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Everything that was acknowledged.
    Acknowledged,
    /// Everything that a successful flush covered.
    Flushed,
}

/// Checks all of a store.
pub fn check(store: &Store, known: &Known, survives: Survives) {
    let log = read_log(store);
    queues_are_those_of_the_log(store, &log);
    acknowledged_is_there(&log, known, survives);
    transactions(store, &log, known, survives);
}

/// Checks L1: the log that recovery kept has exactly the bytes that were written before the crash.
pub fn check_prefix(before: &Memory, store: &Store) {
    let report = store.open_report();
    let recovered_end = report.scanned_from + report.scanned_bytes;
    let size = store.stat().unwrap().commit_log_file_size;
    for record in read_log(store) {
        let at = record.view().unwrap().physical_offset.0;
        if at >= recovered_end {
            break;
        }
        let path = format!("commitlog/{:020}", at - at % size);
        let mut bytes = vec![0; record.bytes().len()];
        before.open(&path, OpenMode::Read).unwrap().read_at(&mut bytes, at % size).unwrap();
        assert_eq!(bytes, record.bytes(), "L1: the record at {at} is not what was written there");
    }
}

fn read_log(store: &Store) -> Vec<StoredRecord> {
    let mut from = PhysicalOffset(store.stat().unwrap().min_physical_offset);
    let mut log = Vec::new();
    loop {
        let (records, next) = store.scan(from, 100).unwrap();
        if records.is_empty() {
            return log;
        }
        log.extend(records);
        from = next;
    }
}

/// Checks L4, L6, T1: each queue has exactly the log's visible records of that queue, numbered from 0.
fn queues_are_those_of_the_log(store: &Store, log: &[StoredRecord]) {
    let mut expected: BTreeMap<(String, i32), Vec<u64>> = BTreeMap::new();
    let mut keys: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for record in log {
        let view = record.view().unwrap();
        assert!(view.transaction_type() != TransactionType::Prepared, "no half of ours is sent with these bits");
        let queue = expected.entry((view.topic.to_owned(), view.queue_id.0)).or_default();
        assert_eq!(view.queue_offset.0, queue.len() as u64, "L4: a gap in {}/{}", view.topic, view.queue_id);
        queue.push(view.physical_offset.0);
        let words = view.properties.get_str("KEYS").into_iter().flat_map(|keys| keys.split(' '));
        for key in view.unique_id().into_iter().chain(words) {
            keys.entry((view.topic.to_owned(), key.to_owned())).or_default().push(view.physical_offset.0);
        }
    }
    let mut found = BTreeMap::new();
    for (topic, queue_id, first, end) in store.queues().unwrap() {
        let (records, _) = store.read(&topic, queue_id, QueueOffset(first), usize::MAX, None).unwrap();
        assert_eq!((first, end), (0, records.len() as u64), "L6: the range of {topic}/{queue_id}");
        let offsets: Vec<u64> = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
        found.insert((topic, queue_id.0), offsets);
    }
    assert_eq!(found, expected, "L6: the queues are not those of the log");
    for ((topic, key), mut offsets) in keys {
        offsets.reverse();
        let records = store.query(&topic, &key, usize::MAX).unwrap();
        let found: Vec<u64> = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
        assert_eq!(found, offsets, "L6: the index of {topic} {key}");
    }
}

/// Checks L2: everything that must survive is in the log.
fn acknowledged_is_there(log: &[StoredRecord], known: &Known, survives: Survives) {
    let by_offset: BTreeMap<u64, &StoredRecord> =
        log.iter().map(|record| (record.view().unwrap().physical_offset.0, record)).collect();
    let (sent, halves) = match survives {
        Survives::Acknowledged => (known.sent.len(), known.halves.len()),
        Survives::Flushed => known.flushed,
    };
    for sent in &known.sent[..sent] {
        let record = by_offset.get(&sent.physical_offset.0).unwrap_or_else(|| panic!("L2: lost {sent:?}"));
        let view = record.view().unwrap();
        assert_eq!((view.topic, view.body), (sent.topic.as_str(), &sent.body[..]), "L2: another message is there");
    }
    for half in &known.halves[..halves] {
        let record = by_offset.get(&half.copy.physical_offset).unwrap_or_else(|| panic!("L2: lost {half:?}"));
        let view = record.view().unwrap();
        assert_eq!((view.topic, view.queue_offset.0), (HALF_TOPIC, half.copy.queue_offset), "L2: {half:?}");
        assert_eq!(view.unique_id(), Some(half.id.as_str()));
    }
}

/// A transaction of a store that only txstore wrote: one half record.
#[derive(Debug)]
struct Seen<'a> {
    half: &'a StoredRecord,
    copy: HalfCopy,
    finals: Vec<&'a StoredRecord>,
    discards: usize,
    named: bool,
}

impl Seen<'_> {
    fn outcome(&self) -> Option<Outcome> {
        match (self.finals.len(), self.discards, self.named) {
            (1.., ..) => Some(Outcome::Committed),
            (_, 1.., _) => Some(Outcome::Discarded),
            (.., true) => Some(Outcome::RolledBack),
            _ => None,
        }
    }
}

fn seen(log: &[StoredRecord]) -> BTreeMap<u64, Seen<'_>> {
    let mut all: BTreeMap<u64, Seen<'_>> = BTreeMap::new();
    let mut by_queue_offset = BTreeMap::new();
    for record in log {
        let view = record.view().unwrap();
        match view.topic {
            HALF_TOPIC => {
                let (offset, number) = (view.physical_offset.0, view.queue_offset.0);
                by_queue_offset.insert(number, offset);
                let copy = HalfCopy { queue_offset: number, physical_offset: offset };
                all.insert(offset, Seen { half: record, copy, finals: Vec::new(), discards: 0, named: false });
            }
            OP_TOPIC => {
                for number in parse_op_body(view.body) {
                    let offset = by_queue_offset.get(&number).expect("an op names a half before it");
                    all.get_mut(offset).unwrap().named = true;
                }
            }
            DISCARD_TOPIC => all.get_mut(&view.prepared_transaction_offset.0).unwrap().discards += 1,
            _ if view.transaction_type() == TransactionType::Commit => {
                all.get_mut(&view.prepared_transaction_offset.0).unwrap().finals.push(record);
            }
            _ => {}
        }
    }
    all
}

fn transactions(store: &Store, log: &[StoredRecord], known: &Known, survives: Survives) {
    let all = seen(log);
    for seen in all.values() {
        assert!(seen.finals.len() <= 1 && seen.discards <= 1, "T7: twice: {seen:?}");
        assert!(seen.finals.is_empty() || seen.discards == 0, "T2: committed and discarded: {seen:?}");
        seen.finals.iter().for_each(|last| final_is_its_half(seen.half, last));
    }
    reported_outcomes_hold(&all, known, survives);
    store_says_so(store, &all);
    progress(store, log, &all);
}

/// Checks T3: the final message has the half's body, topic and queue, and its properties without the internal ones.
fn final_is_its_half(half: &StoredRecord, last: &StoredRecord) {
    let (half, last) = (half.view().unwrap(), last.view().unwrap());
    assert_eq!(half.body, last.body, "T3: the body");
    assert_eq!(half.properties.get_str(REAL_TOPIC), Some(last.topic), "T3: the topic");
    assert_eq!(half.properties.get_str(REAL_QUEUE_ID), Some(last.queue_id.to_string().as_str()), "T3: the queue");
    let kept = |(name, _): &(&[u8], &[u8])| *name != REAL_TOPIC.as_bytes() && *name != REAL_QUEUE_ID.as_bytes();
    let expected: Vec<_> = half.properties.iter().filter(kept).collect();
    assert_eq!(last.properties.iter().collect::<Vec<_>>(), expected, "T3: the properties");
}

/// Checks T4, T5: the log confirms each outcome that was reported to a client.
fn reported_outcomes_hold(all: &BTreeMap<u64, Seen<'_>>, known: &Known, survives: Survives) {
    for half in &known.halves {
        let flushed = known.flushed_outcomes.iter().find(|(id, _)| *id == half.id).map(|(_, outcome)| *outcome);
        let reported = if survives == Survives::Acknowledged { half.outcome } else { flushed };
        let Some(reported) = reported else { continue };
        let found = all.get(&half.copy.physical_offset).unwrap_or_else(|| panic!("T5: lost {half:?}"));
        assert_eq!(found.outcome(), Some(reported), "T5: {half:?}");
        assert_eq!(found.finals.is_empty(), reported != Outcome::Committed, "T4: {half:?}");
    }
}

/// Checks T2: the store's table and the log agree on each transaction.
fn store_says_so(store: &Store, all: &BTreeMap<u64, Seen<'_>>) {
    let waiting: BTreeSet<_> = store
        .halves_waiting(None, usize::MAX)
        .unwrap()
        .into_iter()
        .map(|waiting| (waiting.newest.queue_offset, waiting.newest.physical_offset))
        .collect();
    let pending: BTreeSet<_> = all
        .values()
        .filter(|seen| seen.outcome().is_none())
        .map(|seen| (seen.copy.queue_offset, seen.copy.physical_offset))
        .collect();
    assert_eq!(waiting, pending, "T2: pending transactions");
    let rows = store.transactions().unwrap();
    let found: BTreeMap<u64, Option<Outcome>> =
        rows.iter().map(|row| (row.halves[0].physical_offset, row.outcome)).collect();
    let expected: BTreeMap<u64, Option<Outcome>> = all.iter().map(|(offset, seen)| (*offset, seen.outcome())).collect();
    assert_eq!(found, expected, "T2: what the history says");
    if !store.is_read_only() {
        ends_again(store, all);
    }
}

/// Checks T6: repeating an end succeeds and writes nothing; another end fails with an error that names the outcome.
fn ends_again(store: &Store, all: &BTreeMap<u64, Seen<'_>>) {
    use txstore::base::error::Error;
    use txstore::store::{Decider, End, EndKind};
    let kinds = [
        (EndKind::Commit, Outcome::Committed),
        (EndKind::RollBack, Outcome::RolledBack),
        (EndKind::Discard, Outcome::Discarded),
    ];
    let before = store.stat().unwrap().max_physical_offset;
    for seen in all.values() {
        let Some(outcome) = seen.outcome() else { continue };
        for (kind, wanted) in kinds {
            let end = End { half: seen.copy, kind, transaction_id: None, group: None, decider: Decider::Producer };
            match store.end_transaction(&end, Wait::Yes) {
                Ok(ended) => assert!(ended.already && ended.outcome == outcome && wanted == outcome, "T6: {seen:?}"),
                Err(Error::AlreadyEnded { outcome: found, .. }) => {
                    assert!(found == outcome && wanted != outcome, "T6: {found} of {seen:?}");
                }
                Err(error) => panic!("T6: {error} of {seen:?}"),
            }
        }
    }
    assert_eq!(store.stat().unwrap().max_physical_offset, before, "T6: something was written");
}

/// Checks T8, T9: op messages name the decided halves, and the progress passes no pending half.
fn progress(store: &Store, log: &[StoredRecord], all: &BTreeMap<u64, Seen<'_>>) {
    let stored = |topic| store.consumer_offset(topic, TRANSACTION_GROUP, QueueId(0)).unwrap().unwrap_or(0);
    let (half_progress, op_progress) = (stored(HALF_TOPIC), stored(OP_TOPIC));
    for seen in all.values() {
        let number = seen.copy.queue_offset;
        match seen.outcome() {
            Some(outcome) => assert!(number < half_progress || seen.named, "T8: {outcome} {number} has no op"),
            None => assert!(number >= half_progress, "T9: the progress {half_progress} passed pending {number}"),
        }
    }
    for record in log {
        let view = record.view().unwrap();
        if view.topic == OP_TOPIC && view.queue_offset.0 < op_progress {
            let passed = parse_op_body(view.body).all(|number| number < half_progress);
            assert!(
                passed,
                "T9: the op progress {op_progress} passed an op that names halves at {half_progress} or above"
            );
        }
    }
}

/// Checks T9: after recovery and at a clean close, the progress is the lowest pending half.
pub fn check_progress_is_exact(store: &Store) {
    let end = store.queue_range(HALF_TOPIC, QueueId(0)).unwrap().1;
    let waiting = store.halves_waiting(None, usize::MAX).unwrap();
    let lowest = waiting.iter().map(|waiting| waiting.newest.queue_offset).min().unwrap_or(end);
    let stored = store.consumer_offset(HALF_TOPIC, TRANSACTION_GROUP, QueueId(0)).unwrap().unwrap_or(0);
    assert_eq!(stored, lowest, "T9: the progress");
}
