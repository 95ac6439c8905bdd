//! A whole record after damage is found wherever it lies: otherwise damage would pass for the log's end, and a writer
//! would cut the records after it.

use std::ops::Range;
use std::sync::Arc;

use crate::base::clock::ManualClock;
use crate::base::options::StoreOptions;
use crate::base::units::{QueueId, TimestampMs, to_u64, to_usize};
use crate::record::RecordView;
use crate::record::decode::{RecordCrc, Verify};
use crate::record::message::{Envelope, Parts};
use crate::recovery::log_view::LogFiles;
use crate::recovery::log_view::files::WINDOW;
use crate::recovery::log_view::tail::Cause;
use crate::storage::memory::Memory;
use crate::storage::{OpenMode, Storage};
use crate::store::{NewMessage, Store, Wait};

const FILE: u64 = 3 * WINDOW;
/// The second file of the log, where records are put.
const SECOND: Range<u64> = FILE..2 * FILE;

/// Where a record states its own physical offset.
const OWN_OFFSET: Range<usize> = 28..36;

/// Returns a record's bytes.
fn record(body: usize) -> Vec<u8> {
    let memory = Memory::new();
    let options = StoreOptions { commit_log_file_size: Some(FILE), background: false, ..StoreOptions::default() };
    let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
    let store = Store::open_with(Arc::new(memory.clone()), clock, options).unwrap();
    let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: &vec![b'b'; body], queue_id: QueueId(0) };
    let sent = store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
    let mut bytes = vec![0; to_usize(sent.size.into())];
    memory.open("commitlog/00000000000000000000", OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Returns a log of two files: the first of zeros, the second with these records at these offsets and a byte between
/// them.
fn log(between: u8, records: &[(u64, &[u8])]) -> LogFiles {
    let memory = Memory::new();
    memory.create_dir("commitlog").unwrap();
    let mut bytes = vec![between; to_usize(FILE)];
    for (at, record) in records {
        let mut record = record.to_vec();
        // A record states its own offset.
        record[OWN_OFFSET].copy_from_slice(&at.to_be_bytes());
        let from = to_usize(at - SECOND.start);
        let length = record.len().min(bytes.len() - from);
        bytes[from..from + length].copy_from_slice(&record[..length]);
    }
    for (base, bytes) in [(0, vec![0; to_usize(FILE)]), (FILE, bytes)] {
        memory.open(&format!("commitlog/{base:020}"), OpenMode::Create).unwrap().write_at(&bytes, 0).unwrap();
    }
    LogFiles::new(Arc::new(memory), FILE, vec![(0, FILE), (FILE, FILE)])
}

/// Files are read in windows. A record may begin in the last bytes of one, and may be longer than one.
#[test]
fn a_record_is_found_at_every_offset_around_a_windows_end() {
    for record in [record(20), record(to_usize(WINDOW) + 500)] {
        let length = to_u64(record.len());
        for border in [SECOND.start + WINDOW, SECOND.end - length] {
            for at in border.saturating_sub(length.min(300)).max(SECOND.start)..=(border + 12).min(SECOND.end - length)
            {
                for between in [0, b'x'] {
                    let files = log(between, &[(at, &record)]);
                    let found = files.record_in(SECOND, |_| Verify::BODY).unwrap();
                    assert_eq!(found, Some(at), "{at}, {length} bytes, between {between}");
                    assert_eq!(files.after(10, |_| Verify::BODY).unwrap().later_record, Some(at));
                    assert_eq!(files.record_in(SECOND.start..at, |_| Verify::BODY).unwrap(), None, "before {at}");
                }
            }
        }
    }
}

/// Returns where the second file's records begin, until the visitor has enough.
fn visited(files: &LogFiles, enough: usize) -> Vec<u64> {
    let mut visited = Vec::new();
    let visit = |view: &RecordView<'_>| {
        visited.push(view.physical_offset.0);
        visited.len() < enough
    };
    files.records_in(SECOND, |_| Verify::BODY, visit).unwrap();
    visited
}

#[test]
fn records_are_visited_once_each_in_order_until_the_visitor_has_enough() {
    let (short, long) = (record(20), record(to_usize(WINDOW) - 700));
    let (one, other) = (to_u64(short.len()), to_u64(long.len()));
    // Two in a row, one after damage, one that a window's end divides.
    let offsets = [FILE, FILE + one, FILE + 2 * one + 33, FILE + 2 * one + 33 + other, FILE + 4 * one + 2 * other];
    let records = [&*short, &short, &long, &short, &long];
    for between in [0, b'x'] {
        let files = log(between, &offsets.into_iter().zip(records).collect::<Vec<_>>());
        for enough in 1..=offsets.len() {
            assert_eq!(visited(&files, enough), offsets[..enough]);
        }
    }
}

/// A record whose size leads beyond its file is skipped, and the search continues.
#[test]
fn what_cannot_be_a_whole_record_is_passed_over() {
    let (long, short) = (record(to_usize(WINDOW) + 500), record(20));
    let cut = SECOND.end - WINDOW - 300;
    let files = log(b'x', &[(cut, &long), (cut + 400, &short)]);
    assert_eq!(files.record_in(SECOND, |_| Verify::BODY).unwrap(), Some(cut + 400));
    let files = log(b'x', &[(cut, &long)]);
    assert_eq!(files.record_in(SECOND, |_| Verify::BODY).unwrap(), None);
    // It states an offset of its own, and is a copy elsewhere.
    let mut copy = short.clone();
    copy.extend(&short);
    let files = log(0, &[(FILE + 100, &copy)]);
    assert_eq!(visited(&files, usize::MAX), [FILE + 100]);
}

/// Bytes of a user's that look like a record, at the offset that they state, are a part of the message around them.
#[test]
fn a_record_within_another_is_not_visited() {
    let (outer, mut inner) = (record(400), record(20));
    let at = SECOND.start + 60;
    inner[OWN_OFFSET].copy_from_slice(&(at + 100).to_be_bytes());
    let mut both = outer;
    both[100..100 + inner.len()].copy_from_slice(&inner);
    let files = log(0, &[(at, &both)]);
    let mut visited = Vec::new();
    let visit = |view: &RecordView<'_>| {
        visited.push(view.physical_offset.0);
        true
    };
    let no_crc = Verify { body_crc: false, record_crc: RecordCrc::Ignore };
    files.records_in(SECOND, |_| no_crc, visit).unwrap();
    assert_eq!(visited, [at]);
}

/// A search ends with its range also if the next file, or a file that a crash cut short, has only a few bytes.
#[test]
fn a_search_ends_with_its_range_in_short_files() {
    const SIZE: u64 = 1_000;
    for length in [0, 1, 3, 100, SIZE] {
        let memory = Memory::new();
        memory.create_dir("commitlog").unwrap();
        for base in [0, SIZE] {
            memory.open(&format!("commitlog/{base:020}"), OpenMode::Create).unwrap().set_len(length).unwrap();
        }
        let files = LogFiles::new(Arc::new(memory), SIZE, vec![(0, SIZE), (SIZE, SIZE)]);
        for range in [0..SIZE, SIZE..2 * SIZE] {
            assert_eq!(files.record_in(range, |_| Verify::BODY).unwrap(), None, "{length}");
        }
    }
}

/// The last byte that is not zero says how much a crash left after an offset, in windows from the file's end on.
#[test]
fn the_bytes_after_an_offset_end_with_the_last_that_is_not_zero() {
    for last in [0, 1, 700, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, FILE - 1] {
        let files = log(0, &[]);
        let path = format!("commitlog/{FILE:020}");
        files.storage().open(&path, OpenMode::Write).unwrap().write_at(b"z", last).unwrap();
        for at in [0, 1, 500, WINDOW, FILE - 1] {
            let after = files.after(SECOND.start + at, |_| Verify::BODY).unwrap();
            assert_eq!(after.bytes_end, SECOND.start + if last >= at { last + 1 } else { at }, "{last} after {at}");
        }
    }
}

/// What an operator reads about a hole says why a record must have been there.
#[test]
fn each_cause_of_damage_has_words_of_its_own() {
    let words = [
        (Cause::BelowDurable, "synced"),
        (Cause::LaterRecord, "later file"),
        (Cause::BeforeCheckpoint, "checkpoint"),
        (Cause::Closed, "closed"),
    ];
    for (cause, word) in words {
        assert!(cause.text().contains("zeros") && cause.text().contains(word), "{}", cause.text());
    }
}
