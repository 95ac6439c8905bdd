//! Guards what threads see of each other: ends of one group, senders during a close, readers that follow a writer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::{Decider, End, EndKind, Unacknowledged, Wait};
use super::recovery::{envelope, half, new, open, options};
use crate::base::error::Error;
use crate::base::options::{FlushDiskType, StoreOptions};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset};
use crate::storage::Storage;
use crate::storage::memory::{FaultKind, Memory};

/// T5: of two equal ends in one group only one writes. If that fails, neither is acknowledged.
#[test]
fn t5_twin_of_an_end_that_was_not_written_is_not_a_success() {
    let memory = Memory::new();
    let store = Arc::new(open(&memory, options(FlushDiskType::Sync)).unwrap());
    let sent_half = half(&store, "a");
    let end =
        End { half: sent_half, kind: EndKind::Commit, transaction_id: None, group: None, decider: Decider::Producer };
    let turn = store.shared.ends.turn.lock();
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let (store, end) = (Arc::clone(&store), end.clone());
            std::thread::spawn(move || store.end_transaction(&end, Wait::Yes))
        })
        .collect();
    while store.shared.ends.waiting.lock().len() < 2 {
        std::thread::yield_now();
    }
    memory.fail_at(memory.calls() + 1, FaultKind::Io, true);
    drop(turn);
    for end in ends {
        let ended = end.join().unwrap();
        assert!(ended.is_err(), "nothing was written, and yet: {ended:?}");
    }
}

/// L2, P1: a send that began before `close` and gets the put lock after it writes nothing.
#[test]
fn l2_send_that_meets_close_writes_nothing() {
    let memory = Memory::new();
    let store = Arc::new(open(&memory, options(FlushDiskType::Async)).unwrap());
    let inner = store.shared.inner.lock();
    let sender = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || {
            store.append(&[new(&envelope("t"), b"late")], Wait::Yes).and_then(Unacknowledged::acknowledged).map(|_| ())
        })
    };
    std::thread::sleep(Duration::from_millis(50));
    store.shared.lifecycle.close();
    drop(inner);
    assert!(matches!(sender.join().unwrap(), Err(Error::StoreClosed)));
    assert_eq!(store.shared.log.appended(), 0);
    store.shared.lifecycle.reopen();
}

/// D1: when one thread's reader catches up, another thread never sees more than is visible.
#[test]
fn d1_reader_never_sees_beyond_the_published_end() {
    let memory = Memory::new();
    let store = open(&memory, options(FlushDiskType::Async)).unwrap();
    let reader = Arc::new(open(&memory, StoreOptions { read_only: true, ..options(FlushDiskType::Async) }).unwrap());
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let watchers: Vec<_> = (0..2)
        .map(|_| {
            let (reader, done) = (Arc::clone(&reader), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut highest = 0;
                while !done.load(Ordering::SeqCst) {
                    let _ = reader.read("t", QueueId(0), QueueOffset(0), 1, None);
                    highest = highest.max(reader.shared.visible_end());
                }
                highest
            })
        })
        .collect();
    let envelope = envelope("t");
    for _ in 0..400 {
        store.append(&[new(&envelope, b"body")], Wait::Yes).unwrap().acknowledged().unwrap();
        std::thread::yield_now();
    }
    done.store(true, Ordering::SeqCst);
    for watcher in watchers {
        let highest = watcher.join().unwrap();
        assert!(highest <= store.shared.log.appended(), "{highest} was visible");
    }
}

/// Section 6: if RocketMQ is the writer, the last published end means nothing, and the reader scans.
#[test]
fn reader_follows_a_broker_that_took_over_our_store() {
    let memory = Memory::new();
    let store = open(&memory, options(FlushDiskType::Async)).unwrap();
    store.append(&[new(&envelope("t"), b"ours")], Wait::Yes).unwrap().acknowledged().unwrap();
    store.close().unwrap();
    let reader = open(&memory, StoreOptions { read_only: true, ..options(FlushDiskType::Async) }).unwrap();
    // A broker's session: the same files, the lock's byte 0, and no published end.
    let broker = memory.crash(0, crate::storage::memory::CrashKeep::PageCache);
    let other = open(&broker, StoreOptions { append_prop_crc: Some(false), ..options(FlushDiskType::Async) }).unwrap();
    other.append(&[new(&envelope("t"), b"the broker's")], Wait::Yes).unwrap().acknowledged().unwrap();
    let log = "commitlog/00000000000000000000";
    let mut bytes = vec![0; 16 << 10];
    broker.open(log, crate::storage::OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
    let lock = memory.lock("lock", 0).unwrap().unwrap();
    memory.open(log, crate::storage::OpenMode::Write).unwrap().write_at(&bytes, 0).unwrap();
    let (found, _) = reader.read("t", QueueId(0), QueueOffset(0), 10, None).unwrap();
    assert_eq!(found.len(), 2);
    drop(lock);
    let _ = PhysicalOffset(0);
}
