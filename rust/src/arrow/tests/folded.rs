//! How the view of transactions equals a fold that holds every transaction, whatever order a broker wrote.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};

use super::{HOST, open_log, scan};
use crate::arrow::batch::Batch;
use crate::arrow::folded::Folded;
use crate::arrow::{HalfMissing, ScanOptions, View};
use crate::base::error::Outcome;
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC};
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::record::Draft;
use crate::record::layout::SYS_COMMIT;
use crate::storage::memory::Memory;
use crate::storage::{OpenMode, Storage};
use crate::transaction::pending::Pending;
use crate::transaction::replay::{Keep, Replay};
use crate::transaction::row::{HalfRecord, HalfRecords, TransactionRow};
use crate::transaction::table::{Key, Table};

/// One record. Numbers choose among the halves that the log has so far; an id of 0 has no producer group.
#[derive(Clone, Debug)]
enum Act {
    Sent(u8),
    PutBack(u8, u8),
    Final(u8, usize),
    Discard(u8, usize, bool),
    Op(Vec<usize>),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let id = 0..4_u8;
    let act = prop_oneof![
        4 => id.clone().prop_map(Act::Sent),
        2 => (id.clone(), 1..4_u8).prop_map(|(id, checks)| Act::PutBack(id, checks)),
        3 => (id.clone(), 0..64_usize).prop_map(|(id, half)| Act::Final(id, half)),
        1 => (id, 0..64_usize, any::<bool>()).prop_map(|(id, half, by_broker)| Act::Discard(id, half, by_broker)),
        4 => proptest::collection::vec(0..64_usize, 1..3).prop_map(Act::Op),
    ];
    proptest::collection::vec(act, 0..60)
}

/// Writes the log of these records, in one file.
fn log_of(acts: &[Act], bytes_max: u64) -> Arc<Memory> {
    let storage = Arc::new(Memory::new());
    storage.create_dir("commitlog").unwrap();
    let file = storage.open("commitlog/00000000000000000000", OpenMode::Create).unwrap();
    file.set_len(bytes_max).unwrap();
    let (mut at, mut halves, mut number) = (0, Vec::new(), 0);
    for act in acts {
        // Some name no half.
        let named = |half: usize| halves.get(half % (halves.len() + 1)).copied().unwrap_or((77, 7_777));
        let id = match act {
            Act::Sent(id) | Act::PutBack(id, _) | Act::Final(id, _) | Act::Discard(id, _, _) => *id,
            Act::Op(_) => 0,
        };
        let mut properties = format!("UNIQ_KEY\u{1}id-{id}\u{2}REAL_TOPIC\u{1}orders\u{2}REAL_QID\u{1}{id}\u{2}");
        if id > 0 {
            properties.push_str("PGROUP\u{1}shop\u{2}");
        }
        let (topic, sys_flag, prepared, body) = match act {
            Act::Sent(_) => (HALF_TOPIC, 0, 0, "body".to_owned()),
            Act::PutBack(_, checks) => {
                write!(properties, "TRANSACTION_CHECK_TIMES\u{1}{checks}\u{2}").unwrap();
                (HALF_TOPIC, 0, 0, "body".to_owned())
            }
            Act::Final(_, half) => ("orders", SYS_COMMIT, named(*half).0, "body".to_owned()),
            Act::Discard(_, half, by_broker) => {
                (DISCARD_TOPIC, 0, if *by_broker { 0 } else { named(*half).0 }, "body".to_owned())
            }
            Act::Op(named_halves) => {
                let body = named_halves.iter().fold(String::new(), |body, half| format!("{body}{},", named(*half).1));
                (OP_TOPIC, 0, 0, body)
            }
        };
        let draft = Draft {
            topic,
            sys_flag,
            born_timestamp: TimestampMs(0),
            born_host: HOST.parse().unwrap(),
            store_host: HOST.parse().unwrap(),
            prepared_transaction_offset: PhysicalOffset(prepared),
            body: body.as_bytes(),
            properties: properties.as_bytes(),
            ..Draft::plain()
        };
        let queue_offset = if topic == HALF_TOPIC { u64::try_from(halves.len()).unwrap() } else { number };
        let bytes = draft.record_at(at, queue_offset, 1_000 + i64::try_from(number).unwrap());
        file.write_at(&bytes, at).unwrap();
        if topic == HALF_TOPIC {
            halves.push((at, queue_offset));
        }
        at += u64::try_from(bytes.len()).unwrap();
        number += 1;
    }
    storage
}

/// Folds the log while every transaction is held.
fn whole(storage: &Arc<Memory>) -> Vec<TransactionRow> {
    let log = open_log(storage);
    let (mut table, mut replay) = (Table::new(0), Replay::new(Keep::All, log.first(), 0));
    let mut records = HashMap::new();
    log.each(|view| {
        replay.apply(&mut table, view);
        if view.topic == HALF_TOPIC {
            records.insert(view.physical_offset.0, HalfRecord::of(view));
        }
    })
    .unwrap();
    let mut row = |(key, entry): (Key, &Pending)| {
        let mut halves = entry.copies().map(|(copy, _)| records.remove(&copy.physical_offset).unwrap());
        let mut seen = HalfRecords::begin(halves.next().unwrap());
        halves.for_each(|record| seen.add(&record));
        TransactionRow::of(seen, entry.clone(), replay.is_below_progress(&table, key))
    };
    let mut rows: Vec<_> = table.iter().map(&mut row).collect();
    rows.sort_by_key(|row| row.halves.first().map(|half| half.queue_offset));
    rows
}

fn longs(batch: &RecordBatch, name: &str, row: usize) -> Vec<u64> {
    let values = batch.column_by_name(name).unwrap().as_list::<i32>().value(row);
    values.as_primitive::<Int64Type>().values().iter().map(|value| value.cast_unsigned()).collect()
}

/// Returns a batch's rows as text, each with its first half queue offset.
fn shown(batch: &RecordBatch) -> Vec<(u64, String)> {
    let text = |name: &str, row: usize| {
        let texts = batch.column_by_name(name).unwrap().as_string::<i32>();
        texts.is_valid(row).then(|| texts.value(row).to_owned())
    };
    let number =
        |name: &str, row: usize| batch.column_by_name(name).unwrap().as_primitive::<Int32Type>().value(row).to_owned();
    let time = |name: &str, row: usize| {
        let times = batch.column_by_name(name).unwrap().as_primitive::<TimestampMicrosecondType>();
        times.is_valid(row).then(|| times.value(row) / 1_000)
    };
    let row = |row: usize| {
        let halves = longs(batch, "half_queue_offsets", row);
        let values = (
            (text("transaction_id", row), text("producer_group", row), text("real_topic", row), text("state", row)),
            (number("real_queue_id", row), number("check_times", row)),
            ["prepared_timestamp", "first_check_timestamp", "ended_timestamp"].map(|name| time(name, row)),
            ["half_physical_offsets", "final_physical_offsets", "discarded_physical_offsets", "op_physical_offsets"]
                .map(|name| longs(batch, name, row)),
        );
        (halves[0], format!("{halves:?} {values:?}"))
    };
    (0..batch.num_rows()).map(row).collect()
}

fn expected(row: &TransactionRow) -> (u64, String) {
    let state = match row.outcome {
        None => "pending",
        Some(Outcome::Committed) => "committed",
        Some(Outcome::RolledBack) => "rolled_back",
        Some(Outcome::Discarded) => "discarded",
        Some(Outcome::FinishedUnknown) => "finished_unknown",
    };
    let halves: Vec<u64> = row.halves.iter().map(|half| half.queue_offset).collect();
    let values = (
        (row.transaction_id.clone(), row.group.clone(), Some(row.topic.clone()), Some(state.to_owned())),
        (row.queue_id.0, i32::from(row.checks)),
        [Some(row.prepared_ms), row.first_check_ms, row.ended_ms],
        [
            row.halves.iter().map(|half| half.physical_offset).collect(),
            row.finals.clone(),
            row.discards.clone(),
            row.ops.clone(),
        ],
    );
    (halves[0], format!("{halves:?} {values:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_those_of_a_fold_that_holds_every_transaction(acts in acts(), batch_rows in 1_usize..5) {
        let storage = log_of(&acts, 1 << 16);
        let options = ScanOptions { batch_rows, ..ScanOptions::of(View::Transactions) };
        let (batches, _) = scan(&storage, options);
        assert!(batches.iter().all(|batch| batch.num_rows() <= batch_rows));
        let mut found: Vec<_> = batches.iter().flat_map(shown).collect();
        found.sort();
        let expected: Vec<_> = whole(&storage).iter().map(expected).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_brokers_discard_ends_the_newest_transaction_of_its_identity() {
    // The broker names no half, and writes 0. The log's first half has that offset, and has ended.
    let storage = log_of(&[Act::Sent(2), Act::Op(vec![0]), Act::Sent(2), Act::Discard(2, 0, true)], 1 << 16);
    let (batches, _) = scan(&storage, ScanOptions::of(View::Transactions));
    let found: Vec<_> = batches.iter().flat_map(shown).collect();
    let whole = whole(&storage);
    assert_eq!(found, whole.iter().map(expected).collect::<Vec<_>>());
    assert_eq!(
        whole.iter().map(|row| row.outcome).collect::<Vec<_>>(),
        [Some(Outcome::RolledBack), Some(Outcome::Discarded)]
    );
}

#[test]
fn pending_transactions_come_last_in_the_order_of_their_first_halves() {
    let acts = [Act::Sent(1), Act::Sent(2), Act::Op(vec![0]), Act::Sent(3), Act::PutBack(2, 1)];
    let (batches, _) = scan(&log_of(&acts, 1 << 16), ScanOptions::of(View::Transactions));
    let firsts: Vec<u64> = batches.iter().flat_map(shown).map(|(first, _)| first).collect();
    assert_eq!(firsts, [0, 1, 2]);
}

#[test]
fn a_transaction_that_has_ended_is_not_held() {
    // One transaction stays open from the beginning; the others end at once.
    let ended = (1..2_000).flat_map(|half| [Act::Sent(1), Act::Final(1, half), Act::Op(vec![half])]);
    let acts: Vec<Act> = [Act::Sent(2)].into_iter().chain(ended).collect();
    let storage = log_of(&acts, 1 << 21);
    let mut log = open_log(&storage);
    let mut folded = Folded::of(&mut log, HalfMissing::Hidden).unwrap();
    let mut batch = Batch::new(&View::Transactions.columns());
    let (mut rows, mut most) = (0, 0);
    loop {
        let is_more = folded.append(&mut log, &mut batch, 16).unwrap();
        rows += batch.rows();
        most = most.max(folded.held());
        batch.clear();
        if !is_more {
            break;
        }
    }
    assert_eq!((rows, most), (2_000, 1));
}

#[test]
fn records_without_a_half_are_rows_if_that_is_wanted() {
    let acts =
        [Act::Final(3, 0), Act::Sent(1), Act::Op(vec![1]), Act::Op(vec![1, 0]), Act::Final(1, 0), Act::Final(3, 1)];
    let storage = log_of(&acts, 1 << 16);
    let both = [
        (HalfMissing::Hidden, vec!["committed"]),
        (HalfMissing::Shown, vec!["half_missing", "half_missing", "committed"]),
    ];
    for (half_missing, states) in both {
        let (batches, _) = scan(&storage, ScanOptions { half_missing, ..ScanOptions::of(View::Transactions) });
        let state = |batch: &RecordBatch| {
            let states = batch.column_by_name("state").unwrap().as_string::<i32>().clone();
            (0..states.len()).map(|row| states.value(row).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(batches.iter().flat_map(state).collect::<Vec<_>>(), states);
    }
    let (batches, _) =
        scan(&storage, ScanOptions { half_missing: HalfMissing::Shown, ..ScanOptions::of(View::Transactions) });
    let lists = |name: &str| (0..2).map(|row| longs(&batches[0], name, row).len()).collect::<Vec<_>>();
    assert_eq!(lists("final_physical_offsets"), [2, 0]);
    assert_eq!(lists("op_physical_offsets"), [0, 2]);
    assert_eq!(longs(&batches[0], "half_queue_offsets", 1), [7_777]);
}
