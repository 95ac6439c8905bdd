//! How a scan reads records that no correct client writes.

mod folded;
mod moments;
mod skips;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};

use super::{BadRecords, Counts, Log, Scan, ScanOptions, View};
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::record::Draft;
use crate::storage::memory::Memory;
use crate::storage::{OpenMode, Storage};

const HOST: &str = "127.0.0.1:10911";
const FILE: u64 = 1 << 16;

/// Returns a log with records of these properties, one after the other, in files of 64 KiB, and where each begins.
fn log_of(properties: &[&[u8]], body: &[u8]) -> (Arc<Memory>, Vec<u64>) {
    let storage = Arc::new(Memory::new());
    storage.create_dir("commitlog").unwrap();
    let (mut at, mut offsets) = (0, Vec::new());
    for properties in properties {
        let draft = Draft {
            born_timestamp: TimestampMs(i64::MAX),
            born_host: HOST.parse().unwrap(),
            store_host: HOST.parse().unwrap(),
            body,
            properties,
            ..Draft::plain()
        };
        let bytes =
            draft.record_at(at, u64::try_from(offsets.len()).unwrap(), 1_000 + i64::try_from(offsets.len()).unwrap());
        let file = storage.open("commitlog/00000000000000000000", OpenMode::Create).unwrap();
        file.set_len(FILE).unwrap();
        file.write_at(&bytes, at).unwrap();
        offsets.push(at);
        at += u64::try_from(bytes.len()).unwrap();
    }
    (storage, offsets)
}

fn open_log(memory: &Arc<Memory>) -> Log {
    let storage: Arc<dyn Storage> = Arc::<Memory>::clone(memory);
    Log::open_with(storage).unwrap()
}

fn scan(storage: &Arc<Memory>, options: ScanOptions) -> (Vec<RecordBatch>, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let log = open_log(storage);
    let mut scan = Scan::over(log, Arc::new(options), Arc::clone(&counts)).unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = scan.next_batch().unwrap() {
        batches.push(batch);
    }
    (batches, counts)
}

fn pairs(batch: &RecordBatch, row: usize) -> Vec<(String, String)> {
    let entries = batch.column_by_name("properties").unwrap().as_map().value(row);
    let (names, values) = (entries.column(0).as_string::<i32>(), entries.column(1).as_string::<i32>());
    (0..entries.len()).map(|at| (names.value(at).to_owned(), values.value(at).to_owned())).collect()
}

#[test]
fn of_equal_names_the_last_counts() {
    let (storage, _) = log_of(&[b"a\x01first\x02b\x012\x02a\x01last\x02", b"b\x013\x02"], b"x");
    let (batches, _) = scan(&storage, ScanOptions::of(View::CommitLog));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(pairs(&batches[0], 0), [pair("b", "2"), pair("a", "last")]);
    assert_eq!(pairs(&batches[0], 1), [pair("b", "3")]);
}

#[test]
fn text_that_is_not_utf8_is_replaced() {
    let (storage, _) = log_of(&[b"TAGS\x01\xFFx\x02a\x01\xC3\x28\x02", b"TAGS\x01whole\x02"], b"x");
    let (batches, _) = scan(&storage, ScanOptions::of(View::CommitLog));
    let tags = batches[0].column_by_name("tags").unwrap().as_string::<i32>();
    assert_eq!((tags.value(0), tags.value(1)), ("\u{FFFD}x", "whole"));
    assert_eq!(pairs(&batches[0], 0)[1], ("a".to_owned(), "\u{FFFD}(".to_owned()));
}

#[test]
fn missing_values_are_null_and_times_do_not_overflow() {
    let (storage, _) = log_of(&[b"", b"TAGS\x01a\x02", b""], b"x");
    let (batches, _) = scan(&storage, ScanOptions::of(View::CommitLog));
    let tags = batches[0].column_by_name("tags").unwrap();
    assert_eq!((0..3).map(|row| tags.is_null(row)).collect::<Vec<_>>(), [true, false, true]);
    let born = batches[0].column_by_name("born_timestamp").unwrap();
    assert_eq!(born.as_primitive::<arrow_array::types::TimestampMicrosecondType>().value(0), i64::MAX);
}

#[test]
fn offset_message_ids_are_the_engines() {
    let (storage, offsets) = log_of(&[b"", b"UNIQ_KEY\x01unique\x02"], &[9; 0x1ABC]);
    let (batches, _) = scan(&storage, ScanOptions::of(View::CommitLog));
    let expected = |row: usize| crate::record::offset_message_id(HOST.parse().unwrap(), PhysicalOffset(offsets[row]));
    let ids = batches[0].column_by_name("offset_message_id").unwrap().as_string::<i32>();
    assert_eq!((ids.value(0), ids.value(1)), (expected(0).as_str(), expected(1).as_str()));
    let ids = batches[0].column_by_name("message_id").unwrap().as_string::<i32>();
    assert_eq!((ids.value(0), ids.value(1)), (expected(0).as_str(), "unique"));
}

#[test]
fn a_body_that_cannot_be_unpacked_is_damage() {
    let (storage, offsets) = log_of(&[b"", b"", b""], b"no stream");
    let file = storage.open("commitlog/00000000000000000000", OpenMode::Write).unwrap();
    file.write_at(&1_i32.to_be_bytes(), offsets[1] + 36).unwrap();
    let options = ScanOptions { bad_records: BadRecords::Skip, ..ScanOptions::of(View::CommitLog) };
    let (batches, counts) = scan(&storage, options);
    let found = batches[0].column_by_name("physical_offset").unwrap().as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(found, [offsets[0].cast_signed(), offsets[2].cast_signed()]);
    assert_eq!(counts.bad_records.load(Ordering::Relaxed), 1);
    let log = open_log(&storage);
    let mut failing = Scan::over(log, Arc::new(ScanOptions::of(View::CommitLog)), Arc::default()).unwrap();
    let text = failing.next_batch().unwrap_err().to_string();
    assert!(text.contains("ZLIB") && text.contains("commitlog/00000000000000000000"), "{text}");
}

#[test]
fn a_planned_range_that_ends_within_a_record_is_refused() {
    let (storage, offsets) = log_of(&[b"", b"", b""], b"body");
    for (end, fails) in [(offsets[2], false), (offsets[2] - 1, true), (offsets[2] + 1, true)] {
        let log = open_log(&storage);
        let options = ScanOptions { start: Some(0), end: Some(end), is_cut: true, ..ScanOptions::of(View::CommitLog) };
        let mut scan = Scan::over(log, Arc::new(options), Arc::default()).unwrap();
        let first = scan.next_batch();
        assert_eq!(first.is_err(), fails, "{end}: {first:?}");
    }
}

#[test]
fn no_end_of_a_window_hides_a_record() {
    // Windows have 4 KiB here. With some sizes a window ends within the zeros that begin a record.
    for length in 0..60 {
        let (storage, offsets) = log_of(&[b"".as_slice(); 300], &[b'x'; 64][..length]);
        let end = offsets[299];
        let planned = ScanOptions { start: Some(0), end: Some(end), is_cut: true, ..ScanOptions::of(View::CommitLog) };
        for (options, rows) in [(ScanOptions::of(View::CommitLog), 300), (planned, 299)] {
            let (batches, _) = scan(&storage, options);
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), rows, "a body of {length} bytes");
        }
        assert_eq!(open_log(&storage).boundary(end, end + offsets[1]).unwrap(), end);
    }
}
