//! A copied file of the log counts only if each byte of it belongs to a whole record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Source, verify_file};
use crate::base::clock::ManualClock;
use crate::base::error::Error;
use crate::base::options::{FlushDiskType, StoreOptions};
use crate::base::sync::Mutex;
use crate::base::units::{QueueId, TimestampMs};
use crate::record::message::{Envelope, Parts};
use crate::storage::memory::{FaultKind, Memory};
use crate::storage::{OpenMode, Storage};
use crate::store::{NewHalfMessage, NewMessage, Store, Wait};

const FILE: u64 = 16 << 10;

fn open(memory: &Memory) -> Store {
    let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
    let options = StoreOptions {
        flush_disk_type: FlushDiskType::Sync,
        commit_log_file_size: Some(FILE),
        consume_queue_file_size: Some(20 * 8),
        max_hash_slot_num: Some(16),
        max_index_num: Some(64),
        background: false,
        ..StoreOptions::default()
    };
    Store::open_with(Arc::new(memory.clone()), clock, options).unwrap()
}

fn send(store: &Store, topic: &str, bytes: usize) {
    let envelope = Envelope::new(&Parts { topic, keys: "k", tags: Some("t"), ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: &vec![b'x'; bytes], queue_id: QueueId(0) };
    store.append(&[message], Wait::Yes).unwrap().acknowledged().unwrap();
}

/// A store with one full file of its log and a part of the next, and how many records it has.
fn sample() -> (Memory, Store, u64) {
    let memory = Memory::new();
    let store = open(&memory);
    // Records are longer than a window of the tests (4 KiB), equal to it, and shorter.
    for bytes in [5_000, 100, 3_900, 50, 6_000, 700, 4_100, 10] {
        send(&store, "orders", bytes);
    }
    (memory, store, 8)
}

fn byte(memory: &Memory, path: &str, at: u64) -> u8 {
    let mut byte = [0];
    memory.open(path, OpenMode::Read).unwrap().read_at(&mut byte, at).unwrap();
    byte[0]
}

#[test]
fn each_record_of_a_file_and_all_its_bytes_are_verified() {
    let (memory, _store, records) = sample();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let mut source = Source::open(Arc::clone(&storage)).unwrap();
    assert!(source.look().unwrap());
    let (first, end) = (source.first(), source.end());
    assert_eq!((first, source.file_size()), (0, FILE));
    assert!(end > FILE && end < 2 * FILE, "{end}");
    let whole = [0, FILE].map(|base| verify_file(&storage, FILE, base, end).unwrap());
    assert_eq!(whole.iter().map(|file| file.records).sum::<u64>(), records);
    for (base, verified) in [0, FILE].into_iter().zip(whole) {
        let path = format!("commitlog/{base:020}");
        let used = (end - base).min(FILE);
        let mut bytes = vec![0; usize::try_from(used).unwrap()];
        memory.open(&path, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(verified.crc, crc32fast::hash(&bytes));
        let file = memory.open(&path, OpenMode::Write).unwrap();
        for at in (0..used).step_by(97) {
            let good = byte(&memory, &path, at);
            file.write_at(&[good ^ 0x41], at).unwrap();
            match verify_file(&storage, FILE, base, end) {
                // What fills a file after its last record belongs to no record.
                Ok(found) => assert_ne!(found.crc, verified.crc, "{at} of {path}"),
                Err(Error::StoreCorrupt { file, .. }) => assert!(file.ends_with(&path), "{file:?}"),
                Err(other) => panic!("{other}"),
            }
            file.write_at(&[good], at).unwrap();
        }
    }
}

#[test]
fn a_file_that_ends_before_the_log_is_damaged() {
    let (memory, store, _) = sample();
    let storage: Arc<dyn Storage> = Arc::new(memory);
    let mut source = Source::open(Arc::clone(&storage)).unwrap();
    assert!(source.look().unwrap());
    let end = source.end();
    let error = verify_file(&storage, FILE, FILE, end + 100).unwrap_err();
    assert!(matches!(error, Error::StoreCorrupt { offset, .. } if offset == end - FILE), "{error}");
    send(&store, "orders", 10);
    assert!(source.is_still().unwrap() && source.look().unwrap());
    assert!(source.end() > end);
}

/// The writer stores a record before each call that follows its opening.
#[test]
fn a_look_while_a_writer_opens_the_closed_store_finds_an_end_that_the_writer_has_shown() {
    for call in 0.. {
        let (memory, store, _) = sample();
        store.close().unwrap();
        let writer = Arc::<Mutex<Option<Store>>>::default();
        let (storage, kept) = (memory.clone(), Arc::clone(&writer));
        memory.before_each(move |before| {
            if before >= call {
                send(kept.lock().get_or_insert_with(|| open(&storage)), "orders", 300);
            }
        });
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        let mut source = Source::open(Arc::clone(&storage)).unwrap();
        assert!(source.look().unwrap(), "{call}");
        memory.watch(|_| ());
        for base in (source.first()..source.end()).step_by(usize::try_from(FILE).unwrap()) {
            verify_file(&storage, FILE, base, source.end()).unwrap_or_else(|error| panic!("{call}: {error}"));
        }
        if writer.lock().is_none() {
            assert!(call > 20, "there were only {call} calls");
            break;
        }
    }
}

/// The writer makes files ahead, for the ends of the pending transactions, before it says how far it has come.
#[test]
fn a_look_at_any_moment_of_an_opening_finds_an_end_that_holds() {
    for is_closed in [true, false] {
        let (memory, store, _) = sample();
        for number in 0..30_u8 {
            let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
            let message = NewMessage { envelope: &envelope, body: &[number; 1_500], queue_id: QueueId(0) };
            let half = NewHalfMessage { message, group: "payments", unique_id: None, owner: 0 };
            store.prepare(&half, Wait::Yes).unwrap().acknowledged().unwrap();
        }
        if is_closed {
            store.close().unwrap();
        } else {
            memory.fail_at(0, FaultKind::Io, true);
        }
        drop(store);
        memory.clear_fault();
        let looks = Arc::new(AtomicU64::new(0));
        let (storage, seen): (Arc<dyn Storage>, _) = (Arc::new(memory.clone()), Arc::clone(&looks));
        memory.before_each(move |call| {
            let mut source = Source::open(Arc::clone(&storage)).unwrap();
            assert!(source.look().unwrap(), "{call}");
            for base in (source.first()..source.end()).step_by(usize::try_from(FILE).unwrap()) {
                verify_file(&storage, FILE, base, source.end()).unwrap_or_else(|error| panic!("{call}: {error}"));
            }
            seen.fetch_add(1, Ordering::SeqCst);
        });
        let _writer = open(&memory);
        memory.watch(|_| ());
        assert!(looks.load(Ordering::SeqCst) > 50);
    }
}
