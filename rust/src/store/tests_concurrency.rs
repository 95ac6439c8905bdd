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
