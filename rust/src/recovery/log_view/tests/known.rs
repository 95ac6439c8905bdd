//! The facts about a log's end are collected from the files: the checkpoint, the settings, and the consume queues, which
//! may name a record whose bytes are gone.

use std::sync::Arc;

use crate::base::clock::ManualClock;
use crate::base::options::StoreOptions;
use crate::base::units::{QueueId, TimestampMs, to_usize};
use crate::record::message::{Envelope, Parts};
use crate::recovery::log_view::tail::{Cause, Tail};
use crate::recovery::log_view::{KnownEnd, LogFiles, known_durable};
use crate::storage::checkpoint::Checkpoint;
use crate::storage::memory::Memory;
use crate::storage::settings::{OwnRange, Settings};
use crate::storage::{OpenMode, Storage};
use crate::store::{NewMessage, Store, Wait};

const FILE: u64 = 4 << 10;
const QUEUE_FILE: u64 = 20 * 8;
const STORED_MS: i64 = 1_700_000_000_000;

/// Returns a log of some records whose last one was overwritten with zeros, and where that began and ended. Its queue
/// still names it.
fn log_without_its_last_record(records: usize) -> (LogFiles, u64, u64) {
    let memory = Memory::new();
    let options = StoreOptions {
        commit_log_file_size: Some(FILE),
        consume_queue_file_size: Some(QUEUE_FILE),
        background: false,
        ..StoreOptions::default()
    };
    let clock = Arc::new(ManualClock::at(TimestampMs(STORED_MS)));
    let store = Store::open_with(Arc::new(memory.clone()), clock, options).unwrap();
    let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"paid", queue_id: QueueId(0) };
    let sent: Vec<_> =
        (0..records).map(|_| store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap()).collect();
    store.close().unwrap();
    let last = &sent[records - 1];
    let (at, size) = (last.physical_offset.0, u64::from(last.size));
    let file = memory.open("commitlog/00000000000000000000", OpenMode::Write).unwrap();
    file.write_at(&vec![0; to_usize(FILE - at)], at).unwrap();
    (LogFiles::new(Arc::new(memory), FILE, vec![(0, FILE)]), at, at + size)
}

fn known(is_clean: bool, safe_ms: i64) -> KnownEnd {
    let settings = Settings { consume_queue_file_size: Some(QUEUE_FILE), ..Settings::default() };
    KnownEnd { durable: 0, safe_ms, is_clean, is_in_use: false, settings }
}

#[test]
fn a_record_that_only_its_queue_names_is_missed_unless_it_may_have_been_lost() {
    let (files, at, end) = log_without_its_last_record(3);
    let (older, newest) = (Some(STORED_MS - 1), Some(STORED_MS));
    let cases = [
        // closed, the checkpoint's time, the time of the record before, the answer, how far the log was written
        (true, 0, newest, Tail::Damaged(Cause::Closed), end),
        (true, 0, None, Tail::Damaged(Cause::Closed), end),
        (true, STORED_MS, newest, Tail::End, at),
        (true, STORED_MS, older, Tail::Damaged(Cause::BeforeCheckpoint), end),
        (false, 0, newest, Tail::End, at),
        (false, 0, None, Tail::End, at),
        (false, STORED_MS, newest, Tail::End, at),
        (false, STORED_MS, older, Tail::Damaged(Cause::BeforeCheckpoint), end),
        (false, STORED_MS, None, Tail::Damaged(Cause::BeforeCheckpoint), end),
    ];
    for (is_clean, safe_ms, last_ms, tail, written) in cases {
        let verdict = known(is_clean, safe_ms).verdict(&files, at, last_ms).unwrap();
        assert_eq!((verdict.tail, verdict.written), (tail, written), "{:?}", (is_clean, safe_ms, last_ms));
        assert_eq!((verdict.bytes_end, verdict.later_record), (at, None));
    }
    // After the last record that a queue names, nothing is missing.
    assert_eq!(known(true, 0).verdict(&files, end, None).unwrap().tail, Tail::End);
}

/// A queue's files are longer than the queue, so its last entry is searched for.
#[test]
fn the_last_entry_of_a_queue_of_any_length_is_found() {
    for records in 2..20 {
        let (files, at, end) = log_without_its_last_record(records);
        let verdict = known(true, 0).verdict(&files, at, None).unwrap();
        assert_eq!((verdict.tail, verdict.written), (Tail::Damaged(Cause::Closed), end), "{records} records");
    }
}

#[test]
fn what_is_known_of_the_writer_and_the_durable_end_comes_first() {
    let (files, at, end) = log_without_its_last_record(3);
    let in_use = KnownEnd { is_in_use: true, ..known(true, 0) };
    let verdict = in_use.verdict(&files, at, None).unwrap();
    assert_eq!((verdict.tail, verdict.written), (Tail::NotYet, at));
    for (durable, tail) in [(at, Tail::End), (at + 1, Tail::Damaged(Cause::BelowDurable))] {
        let verdict = KnownEnd { durable, ..known(false, 0) }.verdict(&files, at, None).unwrap();
        assert_eq!((verdict.tail, verdict.written), (tail, durable));
    }
    assert!(end > at + 1);
}

#[test]
fn the_checkpoint_of_a_store_that_was_closed_counts_dispatched_records_too() {
    for (physic_ms, logics_ms) in [(5, 9), (9, 5)] {
        let memory = Memory::new();
        Checkpoint::store(&memory, &Checkpoint { physic_ms, logics_ms, ..Checkpoint::default() }).unwrap();
        let safe_ms = |is_clean| KnownEnd::find(&memory, None, None, 0, is_clean, false).unwrap().safe_ms;
        assert_eq!((safe_ms(true), safe_ms(false)), (9, physic_ms));
    }
}

/// The two times differ in their lowest bytes, and the first write's are higher: as seed 75022707 of the simulation had
/// them, whose write stopped after 14 bytes.
#[test]
fn a_checkpoint_whose_write_stopped_inside_a_field_names_no_later_time() {
    let (before, now) = (0x18B_DAA0_CC1B, 0x18B_DAA1_16B2);
    let open = OwnRange { start: 0, end: None, crc: true };
    let settings = Settings { ranges: vec![open], ..Settings::default() };
    let file = |ms| {
        let memory = Memory::new();
        Checkpoint::store(&memory, &Checkpoint { physic_ms: ms, logics_ms: ms, index_ms: ms, ..Checkpoint::default() })
            .unwrap();
        memory
    };
    let mut new = [0; 24];
    file(now).open("checkpoint", OpenMode::Read).unwrap().read_at(&mut new, 0).unwrap();
    for stopped in 0..=24 {
        let memory = file(before);
        memory.open("checkpoint", OpenMode::Write).unwrap().write_at(&new[..stopped], 0).unwrap();
        let found = KnownEnd::find(&memory, Some(&settings), None, 0, false, false).unwrap().safe_ms;
        assert!((before..=now).contains(&found), "after {stopped} bytes: {found:#x}");
    }
}

#[test]
fn the_durable_end_is_the_highest_that_a_snapshot_or_a_closed_range_names() {
    let range = |start, end| OwnRange { start, end, crc: true };
    let ranges = vec![range(0, Some(300)), range(500, Some(700)), range(900, None)];
    let settings = Settings { ranges, ..Settings::default() };
    assert_eq!(known_durable(None, None, 0), 0);
    assert_eq!(known_durable(None, None, 40), 40);
    assert_eq!([600, 800].map(|snapshot| known_durable(Some(&settings), None, snapshot)), [700, 800]);
}
