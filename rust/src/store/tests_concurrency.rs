//! Guards what threads see of each other: ends of one group, senders while the store closes, readers that follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::tests_recovery::{envelope, half, new, open, options};
use super::{End, EndKind};
use crate::error::Error;
use crate::options::{FlushDiskType, StoreOptions};
use crate::storage::Storage;
use crate::storage::memory::{FaultKind, Memory};
use crate::units::{PhysicalOffset, QueueId, QueueOffset};

/// T5: of two equal ends in one group only one writes; if that fails, neither is acknowledged.
#[test]
fn t5_twin_of_an_end_that_was_not_written_is_no_success() {
    let memory = Memory::new();
    let store = Arc::new(open(&memory, options(FlushDiskType::Sync)).unwrap());
    let place = half(&store, "a");
    let end = End { half: place, kind: EndKind::Commit, transaction_id: None, group: None, from_check: false };
    let turn = store.shared.ends.turn.lock();
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let (store, end) = (Arc::clone(&store), end.clone());
            std::thread::spawn(move || store.end_transaction(end))
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

/// L2, P1: a send that began before `close` and gets the put lock behind it writes nothing: the files are handed over.
#[test]
fn l2_send_that_meets_close_writes_nothing() {
    let memory = Memory::new();
    let store = Arc::new(open(&memory, options(FlushDiskType::Async)).unwrap());
    let inner = store.shared.inner.lock();
    let sender = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || store.append(&[new(&envelope("t"), b"late")]).map(|_| ()))
    };
    std::thread::sleep(Duration::from_millis(50));
    store.shared.closed.store(true, Ordering::SeqCst);
    drop(inner);
    assert!(matches!(sender.join().unwrap(), Err(Error::StoreClosed)));
    assert_eq!(store.shared.log.appended(), 0);
    store.shared.closed.store(false, Ordering::SeqCst);
}
