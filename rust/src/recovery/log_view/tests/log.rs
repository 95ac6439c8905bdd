//! What a reader of a log that this process has not opened knows of its writer, its end and a broker's progress.

use std::sync::Arc;

use crate::base::clock::ManualClock;
use crate::base::options::StoreOptions;
use crate::base::units::{PhysicalOffset, QueueId, TimestampMs, to_u64};
use crate::record::message::{Envelope, Parts};
use crate::record::{Draft, blank};
use crate::recovery::log_view::Log;
use crate::recovery::log_view::writer::{LOCK, WRITER_BYTE};
use crate::storage::memory::Memory;
use crate::storage::{OpenMode, Storage};
use crate::store::{NewMessage, Store, Wait};

/// Four windows.
const FILE: u64 = 16 << 10;

fn open_store(memory: &Memory) -> Store {
    let options = StoreOptions { commit_log_file_size: Some(FILE), background: false, ..StoreOptions::default() };
    let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
    Store::open_with(Arc::new(memory.clone()), clock, options).unwrap()
}

fn send(store: &Store) -> u64 {
    let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"paid", queue_id: QueueId(0) };
    let sent = store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
    sent.physical_offset.0 + u64::from(sent.size)
}

fn open_log(memory: &Memory) -> Log {
    Log::open_with(Arc::new(memory.clone())).unwrap()
}

fn records(log: &Log) -> crate::base::error::Result<u64> {
    let mut records = 0;
    log.each(|_| records += 1)?;
    Ok(records)
}

#[test]
fn a_log_that_was_opened_without_files_finds_them_and_the_end_that_their_writer_publishes() {
    let memory = Memory::new();
    memory.create_dir("commitlog").unwrap();
    let mut log = open_log(&memory);
    assert_eq!((log.published_end(), records(&log).unwrap()), (None, 0));
    let store = open_store(&memory);
    let end = send(&store);
    log.refresh().unwrap();
    assert_eq!((log.published_end(), records(&log).unwrap()), (Some(end), 1));
    send(&store);
    store.close().unwrap();
    log.refresh().unwrap();
    assert_eq!((log.published_end(), records(&log).unwrap()), (None, 2));
}

#[test]
fn what_was_read_is_valid_until_another_writer_has_opened_the_store() {
    let memory = Memory::new();
    let store = open_store(&memory);
    send(&store);
    let log = open_log(&memory);
    assert!(log.is_still().unwrap());
    store.close().unwrap();
    let closed = open_log(&memory);
    assert!(closed.is_still().unwrap());
    let _next = open_store(&memory);
    assert!(!log.is_still().unwrap() && !closed.is_still().unwrap());
}

/// Writes a broker's log of four files, with records in the first ones and zeros in the others. The last one with
/// records is half full. Returns where the records begin.
fn brokers_log(memory: &Memory, files_with_records: u64) -> Vec<u64> {
    memory.create_dir("commitlog").unwrap();
    let files: Vec<_> = (0..4)
        .map(|file| memory.open(&format!("commitlog/{:020}", file * FILE), OpenMode::Create).unwrap())
        .inspect(|file| file.set_len(FILE).unwrap())
        .collect();
    let (mut offsets, size) = (Vec::new(), to_u64(Draft::plain().record_at(0, 0, 1).len()));
    for (base, file) in (0..files_with_records).map(|number| number * FILE).zip(&files) {
        let is_last = base + FILE == files_with_records * FILE;
        let count = if is_last { FILE / 2 / size } else { (FILE - 8) / size };
        for at in (0..count).map(|number| number * size) {
            let record = Draft::plain().record_at(base + at, to_u64(offsets.len()), 1);
            file.write_at(&record, at).unwrap();
            offsets.push(base + at);
        }
        if !is_last {
            file.write_at(&blank(u32::try_from(FILE - count * size).unwrap()), count * size).unwrap();
        }
    }
    offsets
}

/// A broker prepares one file before it needs it, so an earlier file that ends early is damaged.
#[test]
fn a_running_brokers_log_may_end_in_its_last_file_but_one() {
    for (files_with_records, is_whole) in [(1, false), (2, false), (3, true), (4, true)] {
        let memory = Memory::new();
        let offsets = brokers_log(&memory, files_with_records);
        let _broker = memory.lock(LOCK, WRITER_BYTE).unwrap().unwrap();
        let found = records(&open_log(&memory));
        assert_eq!(found.is_ok(), is_whole, "{files_with_records}: {found:?}");
        assert!(!is_whole || found.unwrap() == to_u64(offsets.len()));
    }
}

/// A view of the last read is used again. It may end within the record, or begin after it.
#[test]
fn records_are_read_in_any_order_with_the_view_of_the_read_before() {
    let memory = Memory::new();
    let offsets = brokers_log(&memory, 2);
    let log = open_log(&memory);
    let backwards = offsets.iter().rev();
    let mut near = None;
    for offset in offsets.iter().chain(backwards) {
        let found = log.read(PhysicalOffset(*offset), &mut near, |view| view.physical_offset.0);
        assert_eq!(found.unwrap(), *offset);
    }
}

/// A read reports the damage later.
#[test]
fn damage_is_before_the_end_of_the_log() {
    let memory = Memory::new();
    let offsets = brokers_log(&memory, 2);
    let end = open_log(&memory).visible_end(Some(0)).unwrap();
    assert!(end > offsets[offsets.len() - 1]);
    for damaged in [offsets[0], offsets[1], offsets[offsets.len() - 2]] {
        let base = damaged / FILE * FILE;
        let file = memory.open(&format!("commitlog/{base:020}"), OpenMode::Write).unwrap();
        file.write_at(&[0; 40], damaged - base).unwrap();
        assert_eq!(open_log(&memory).visible_end(Some(0)).unwrap(), end, "{damaged}");
    }
}

/// The log that txstore writes says itself how each transaction ended. The file may be newer than what a crash left of
/// the log.
#[test]
fn a_brokers_progress_does_not_count_where_txstore_writes_the_whole_log() {
    let progress = |memory: &Memory| {
        let offsets = br#"{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:7}}}"#;
        memory.create_dir("config").unwrap();
        memory.open("config/consumerOffset.json", OpenMode::Create).unwrap().write_at(offsets, 0).unwrap();
        open_log(memory).half_progress().unwrap()
    };
    let memory = Memory::new();
    let store = open_store(&memory);
    send(&store);
    assert_eq!(progress(&memory), 0);
    store.close().unwrap();
    let memory = Memory::new();
    brokers_log(&memory, 1);
    assert_eq!(progress(&memory), 7);
}
