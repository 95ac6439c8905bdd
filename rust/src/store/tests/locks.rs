//! Guards the put lock: many files are read and written only while no thread holds it.

use std::sync::Mutex as Guarded;

use super::*;
use crate::base::error::Outcome;
use crate::base::units::to_u64;

/// The number of topics, and so of queues. Work per queue under the put lock becomes visible.
const TOPICS: usize = 30;
const EVERYTHING: PhysicalOffset = PhysicalOffset(u64::MAX);

/// Counts calls of the file system: all calls, and calls under the put lock.
struct Watch(Arc<Guarded<(u64, u64)>>);

impl Watch {
    fn over(bench: &Bench, store: &Store) -> Self {
        let counts = Arc::new(Guarded::new((0, 0)));
        let (counted, shared) = (Arc::clone(&counts), Arc::downgrade(&store.shared));
        bench.memory.watch(move |_| {
            let Some(shared) = shared.upgrade() else { return };
            let mut counts = counted.lock().unwrap();
            counts.0 += 1;
            // Only one thread works, so the lock's holder is the caller.
            counts.1 += u64::from(shared.inner.try_lock().is_none());
        });
        Self(counts)
    }

    /// Returns the calls since the last call.
    fn since(&self) -> (u64, u64) {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Asserts that there were calls since the last call, and none under the put lock.
    fn assert_free(&self, at_least: u64) {
        let (all, held) = self.since();
        assert!(all >= at_least, "{all}");
        assert_eq!(held, 0);
    }
}

fn with_many_queues() -> (Bench, Store) {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    many_queues(&store);
    (bench, store)
}

fn many_queues(store: &Store) {
    for number in 0..TOPICS {
        send(store, &format!("topic-{number}"), b"x").unwrap();
        store.set_consumer_offset(&format!("topic-{number}"), "readers", QUEUE, 0).unwrap();
    }
    store.flush_round().unwrap();
}

#[test]
fn a_snapshot_reads_and_writes_no_file_under_the_put_lock() {
    let (bench, store) = with_many_queues();
    send(&store, "more", b"not in a file yet").unwrap();
    let watch = Watch::over(&bench, &store);
    store.snapshot().unwrap();
    watch.assert_free(11);
}

#[test]
fn a_query_reads_no_file_under_the_put_lock() {
    let (bench, store) = with_many_queues();
    let watch = Watch::over(&bench, &store);
    assert_eq!(store.query("topic-3", "k", 9).unwrap().len(), 1);
    watch.assert_free(2);
}

#[test]
fn retention_looks_at_queues_without_the_put_lock() {
    let (bench, store) = with_many_queues();
    while store.log_files(9).unwrap().len() < 3 {
        send(&store, "last", &[7; 400]).unwrap();
    }
    let watch = Watch::over(&bench, &store);
    assert!(store.log_files(9).unwrap()[0].is_unread);
    watch.assert_free(to_u64(TOPICS));
    assert!(store.remove_log_files(EVERYTHING, false).unwrap().log_files > 0);
    watch.assert_free(to_u64(TOPICS));
}

/// Anybody may send an end of a transaction that ended long ago. It costs other callers only one read of a queue entry.
#[test]
fn the_end_of_a_half_that_is_gone_is_looked_for_without_the_put_lock() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"x");
    end(&store, &half, EndKind::Commit).unwrap();
    while store.log_files(9).unwrap().is_empty() {
        send(&store, "filler", &[7; 400]).unwrap();
    }
    // Its final message is repeated after the removed file, because a broker may commit twice.
    many_queues(&store);
    store.remove_log_files(EVERYTHING, false).unwrap();
    let watch = Watch::over(&bench, &store);
    let counts = |store: &Store| store.transaction_counts().unwrap();
    let before = counts(&store);
    let ended = end(&store, &half, EndKind::Commit);
    let (all, held) = watch.since();
    assert!(all > to_u64(TOPICS), "{all}: each topic was asked for");
    assert!(held <= 2, "{held} of {all} calls with the lock held");
    assert!(matches!(ended, Err(Error::TransactionNotFound { .. }) | Ok(Ended { outcome: Outcome::Committed, .. })));
    let after = counts(&store);
    let ended_count = u64::from(ended.is_ok());
    assert_eq!((after.repeated, after.not_found), (before.repeated + ended_count, before.not_found + 1 - ended_count));
    let at_once = store.end_transaction(&end_of(&half, EndKind::Commit), Wait::No);
    assert!(matches!(at_once, Err(Error::WouldWait)), "left to the call that may wait: {at_once:?}");
    assert_eq!(counts(&store).not_found, after.not_found, "and counted there");
}
