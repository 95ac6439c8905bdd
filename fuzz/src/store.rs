//! A whole tiny store: an input becomes a log of any transactions, as we or a broker might have left it, then damage.
//!
//! In: bytes. Out: nothing. Always: a reader writes nothing; a reader and a writer find the same; what an opening found,
//! the next one finds again, and what was added to it; each refusal is an error that says why. Not here: the outcome rule
//! itself, which `tests/crash/check.rs` computes.

use std::collections::BTreeMap;
use std::sync::Arc;

use txstore::base::clock::ManualClock;
use txstore::base::error::{Outcome, Result};
use txstore::base::names::HALF_TOPIC;
use txstore::base::options::StoreOptions;
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use txstore::record::message::{Envelope, Parts};
use txstore::storage::memory::{CrashKeep, Memory};
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
use txstore::transaction::HalfCopy;

use super::Input;
use damage::{damage, files};
use log::{FILE_SIZE, write_log};

#[path = "store_damage.rs"]
mod damage;
#[path = "store_log.rs"]
mod log;

const NOW_MS: i64 = 1_700_000_100_000;
const GROUP: &str = "g0";

/// Whose the log is, whether it was opened before the damage, and what comes at the end.
#[derive(Clone, Copy)]
struct Plan(u8);

impl Plan {
    const fn has(self, bit: u8) -> bool {
        self.0 & 1 << bit != 0
    }
}

/// One byte is the plan; then the log, then damage.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let plan = Plan(input.byte());
    let memory = Memory::new();
    write_log(&memory, &mut input, plan.has(0), plan.has(1));
    if plan.has(2) {
        // What is derived lies there, too, as a clean close or a kill left it.
        if let Ok(store) = open(&memory, false)
            && plan.has(3)
        {
            let _ = store.close();
        }
    }
    let memory = memory.crash(0, CrashKeep::PageCache);
    damage(&memory, &mut input);
    let before = files(&memory);
    let reader = look(&memory, true);
    assert_eq!(files(&memory), before, "a reader writes nothing");
    let writer = continue_in(&memory, plan);
    if let (Some(reader), Some(writer)) = (reader, writer) {
        assert_eq!(reader, writer, "a reader and a writer find the same");
    }
}

fn open(memory: &Memory, read_only: bool) -> Result<Store> {
    let options = StoreOptions {
        read_only,
        commit_log_file_size: Some(FILE_SIZE),
        consume_queue_file_size: Some(20 * 8),
        max_hash_slot_num: Some(16),
        max_index_num: Some(64),
        background: false,
        ..StoreOptions::default()
    };
    let clock = Arc::new(ManualClock::at(TimestampMs(NOW_MS)));
    Store::open_with(Arc::new(memory.clone()), clock, options)
}

/// What an opening found.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    end: u64,
    torn: u64,
    healed: u64,
    pending: Vec<(u64, u64)>,
    outcomes: Option<BTreeMap<u64, Option<Outcome>>>,
}

fn look(memory: &Memory, read_only: bool) -> Option<Found> {
    match open(memory, read_only) {
        Ok(store) => Some(found(&store)),
        Err(why) => {
            assert!(!why.to_string().is_empty());
            None
        }
    }
}

/// Asks everything; what is damaged may say so, nothing may panic or run without end.
fn found(store: &Store) -> Found {
    let report = store.open_report().clone();
    let stat = store.stat().expect("an open store has statistics");
    let _ = store.scan(PhysicalOffset(stat.min_physical_offset), 1_000);
    for (topic, queue_id, first, end) in store.queues().unwrap_or_default() {
        assert!(first <= end);
        let _ = store.read(&topic, queue_id, QueueOffset(first), 64, None);
        let _ = store.read(&topic, queue_id, QueueOffset(end.saturating_sub(1)), 64, None);
    }
    for (topic, key) in [("t0", "u0"), (HALF_TOPIC, "u1"), ("t1", "k")] {
        let _ = store.query(topic, key, 64);
    }
    let _ = (store.transaction("u0"), store.half(QueueOffset(0)), store.halves_due(9));
    Found {
        end: report.scanned_from + report.scanned_bytes,
        torn: report.truncated_bytes,
        healed: report.healed_ops,
        pending: pending(store),
        outcomes: outcomes(store),
    }
}

fn pending(store: &Store) -> Vec<(u64, u64)> {
    let waiting = store.halves_waiting(None, usize::MAX).expect("an open store knows its pending transactions");
    waiting.into_iter().map(|waiting| (waiting.newest.queue_offset, waiting.newest.physical_offset)).collect()
}

/// Outcomes by the physical offset of the first half; `None` if a record after the first ones is bad.
fn outcomes(store: &Store) -> Option<BTreeMap<u64, Option<Outcome>>> {
    let rows = store.transactions().ok()?;
    rows.into_iter().map(|row| Some((row.halves.first()?.physical_offset, row.outcome))).collect()
}

/// Opens for writing, adds a message and two transactions, ends one; closes or is killed; opens again.
fn continue_in(memory: &Memory, plan: Plan) -> Option<Found> {
    let store = match open(memory, false) {
        Ok(store) => store,
        Err(why) => {
            assert!(!why.to_string().is_empty());
            return None;
        }
    };
    let result = found(&store);
    let done = add(&store);
    let (pending, outcomes, end) = (pending(&store), outcomes(&store), store.stat().unwrap().max_physical_offset);
    let closed = if plan.has(4) { store.flush().is_ok() } else { store.close().is_ok() };
    let memory = memory.crash(0, CrashKeep::PageCache);
    drop(store);
    if done.is_ok() && closed {
        let again = open(&memory, false).unwrap_or_else(|why| panic!("what was open is refused: {why}"));
        let found = found(&again);
        assert_eq!((found.end, found.healed), (end, 0), "nothing lost, nothing left to heal");
        assert_eq!((found.pending, found.outcomes), (pending, outcomes), "the same transactions");
    }
    Some(result)
}

fn add(store: &Store) -> Result<()> {
    let envelope = Envelope::new(&Parts { topic: "t0", keys: "k", ..Parts::default() })?;
    let message = NewMessage { envelope: &envelope, body: b"added", queue_id: QueueId(0) };
    let sent = store.append(&[message], Wait::Yes)?.acknowledged()?;
    assert_eq!(store.read_at(sent[0].physical_offset)?.view()?.body, b"added");
    let (read, _) = store.read("t0", QueueId(0), sent[0].queue_offset, 1, None)?;
    assert_eq!(read.first().map(|record| record.view().unwrap().physical_offset), Some(sent[0].physical_offset));
    for kind in [None, Some(EndKind::Commit)] {
        let half = store
            .prepare(&NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 }, Wait::Yes)?
            .acknowledged()?;
        let copy = HalfCopy { queue_offset: half.queue_offset.0, physical_offset: half.physical_offset.0 };
        if let Some(kind) = kind {
            let end = End { half: copy, kind, transaction_id: None, group: None, decider: Decider::Producer };
            assert!(!store.end_transaction(&end, Wait::Yes)?.already);
            assert!(store.end_transaction(&end, Wait::Yes)?.already, "ended once");
        }
    }
    // Also what waits from before can be ended, or says why not.
    for (queue_offset, physical_offset) in pending(store).into_iter().take(4) {
        let half = HalfCopy { queue_offset, physical_offset };
        let end = End { half, kind: EndKind::RollBack, transaction_id: None, group: None, decider: Decider::Producer };
        store.end_transaction(&end, Wait::Yes)?;
    }
    Ok(())
}
