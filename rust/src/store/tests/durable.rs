//! What is durable when a call returns: half messages by default, and decisions that no check would repeat.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::base::error::Outcome;

/// Opens the store after a power loss that takes everything that was not synced.
fn after_power_cut(bench: &Bench) -> Store {
    let memory = bench.memory.lose_power(|_| 0);
    Bench { memory, clock: Arc::clone(&bench.clock), options: bench.options.clone() }.open()
}

fn transaction_async() -> Bench {
    Bench::new(FlushDiskType::Async).with(|options| options.transaction_flush_disk_type = FlushDiskType::Async)
}

#[test]
fn a_half_is_durable_before_its_local_transaction_begins_with_the_default_settings() {
    let bench = Bench::new(FlushDiskType::Async);
    assert_eq!(bench.options.transaction_flush_disk_type, StoreOptions::default().transaction_flush_disk_type);
    let store = bench.open();
    let half = prepare(&store, b"paid");
    send(&store, "orders", b"not synced").unwrap();
    let store = after_power_cut(&bench);
    assert_eq!((pending(&store), bodies(&store, "orders", 0).len()), (vec![half.queue_offset.0], 0));
}

#[test]
fn a_half_is_as_durable_as_rocketmqs_if_that_is_asked_for() {
    let bench = transaction_async();
    let store = bench.open();
    prepare(&store, b"paid");
    assert!(!store.is_durable(appended(&store)));
    assert!(pending(&after_power_cut(&bench)).is_empty());
}

#[test]
fn where_everything_is_synced_a_half_is_synced_too() {
    let bench = Bench::sync().with(|options| options.transaction_flush_disk_type = FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"paid");
    assert_eq!(pending(&after_power_cut(&bench)), [half.queue_offset.0]);
}

#[test]
fn a_resent_half_is_durable_before_it_is_acknowledged_again() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"paid", queue_id: QueueId(1) };
    let half = NewHalfMessage { message, group: GROUP, unique_id: Some("ID"), owner: 0 };
    // The first request's client disconnected before its sync.
    let (first, end) = store.prepare(&half, Wait::Yes).unwrap().into_parts();
    assert!(!store.is_durable(end.unwrap().0));
    let again = store.prepare(&half, Wait::Yes).unwrap().acknowledged().unwrap();
    assert_eq!(again.physical_offset, first.physical_offset);
    assert_eq!(pending(&after_power_cut(&bench)), [first.queue_offset.0]);
    // After it is durable, a resend waits for nothing, whatever came after it.
    send(&store, "orders", b"not synced").unwrap();
    let again = store.prepare(&half, Wait::No).unwrap();
    assert!(!again.needs_sync());
    assert_eq!(again.value().physical_offset, first.physical_offset);
}

#[test]
fn what_a_producer_decided_is_asked_again_after_a_power_cut() {
    for decider in [Decider::Producer, Decider::Check] {
        let bench = Bench::new(FlushDiskType::Async);
        let store = bench.open();
        let half = prepare(&store, b"paid");
        store.end_transaction(&End { decider, ..end_of(&half, EndKind::Commit) }, Wait::Yes).unwrap();
        assert_eq!(bodies(&store, "orders", 1), [b"paid"], "a consumer can read it before it is synced");
        let store = after_power_cut(&bench);
        assert_eq!(pending(&store), [half.queue_offset.0]);
        end(&store, &half, EndKind::Commit).unwrap();
        assert_eq!(bodies(&store, "orders", 1), [b"paid"]);
    }
}

#[test]
fn what_nobody_would_decide_again_is_durable() {
    for bench in [Bench::new(FlushDiskType::Async), transaction_async()] {
        let store = bench.open();
        let halves: Vec<_> = (0..3_u8).map(|number| prepare(&store, &[number])).collect();
        let kinds = [EndKind::Commit, EndKind::RollBack, EndKind::Discard];
        for (half, kind) in halves.iter().zip(kinds) {
            let decider = if kind == EndKind::Discard { Decider::Check } else { Decider::Operator };
            let by_hand = End { decider, ..end_of(half, kind) };
            let at_once = store.end_transaction(&by_hand, Wait::No);
            assert!(matches!(at_once, Err(Error::WouldWait)), "it waits for the disk");
            store.end_transaction(&by_hand, Wait::Yes).unwrap();
            let after = after_power_cut(&bench);
            assert_eq!(after.transaction(&half.unique_id).unwrap().outcome, Some(kind.outcome()));
        }
        let resumed = store.resume(&halves[2].unique_id).unwrap();
        assert_eq!(pending(&after_power_cut(&bench)), [resumed.queue_offset.0]);
    }
}

#[test]
fn an_operator_gets_no_outcome_that_a_power_cut_takes_back() {
    for (asked, answered) in [(EndKind::Commit, EndKind::Commit), (EndKind::RollBack, EndKind::Commit)] {
        let bench = Bench::new(FlushDiskType::Async);
        let store = bench.open();
        let half = prepare(&store, b"paid");
        end(&store, &half, answered).unwrap();
        assert!(!store.is_durable(appended(&store)));
        let answer = store.end_transaction(&End { decider: Decider::Operator, ..end_of(&half, asked) }, Wait::Yes);
        match answer {
            Ok(ended) => assert!(ended.already && asked == answered),
            Err(error) => assert!(matches!(error, Error::AlreadyEnded { outcome: Outcome::Committed, .. })),
        }
        assert_eq!(bodies(&after_power_cut(&bench), "orders", 1), [b"paid"]);
    }
}

#[test]
fn an_end_by_hand_that_waits_for_the_disk_delays_no_other_end() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let halves: Vec<_> = (0..4_u8).map(|number| prepare(&store, &[number])).collect();
    let slow = bench.memory.hold_syncs();
    std::thread::scope(|scope| {
        let discard = scope.spawn(|| end(&store, &halves[0], EndKind::Discard));
        slow.wait_for_one();
        store.end_transaction(&end_of(&halves[1], EndKind::Commit), Wait::No).unwrap();
        end(&store, &halves[2], EndKind::Commit).unwrap();
        assert!(store.end_together(vec![end_of(&halves[3], EndKind::Commit)]).iter().all(Result::is_ok));
        assert!(!discard.is_finished());
        drop(slow);
        assert_eq!(discard.join().unwrap().unwrap().outcome, Outcome::Discarded);
    });
}

#[test]
fn an_end_that_waits_for_no_sync_reports_no_outcome_before_it() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"paid");
    let written = store.end_unacknowledged(&end_of(&half, EndKind::Commit), Wait::No).unwrap();
    assert_eq!(written.value().as_ref().unwrap().outcome, Outcome::Committed);
    assert!(written.needs_sync());
    let (other, end) = store.end_unacknowledged(&end_of(&half, EndKind::RollBack), Wait::No).unwrap().into_parts();
    assert!(matches!(other, Err(Error::AlreadyEnded { outcome: Outcome::Committed, .. })));
    assert!(end.is_some(), "this error tells the outcome, too");
    assert_eq!(pending(&after_power_cut(&bench)), [half.queue_offset.0]);
    written.acknowledged().unwrap().unwrap();
    assert_eq!(bodies(&after_power_cut(&bench), "orders", 1), [b"paid"]);
}

#[test]
fn an_end_that_waits_for_no_sync_waits_for_no_group() {
    let bench = Bench::sync();
    let store = bench.open();
    let halves: Vec<_> = (0..2_u8).map(|number| prepare(&store, &[number])).collect();
    let slow = bench.memory.hold_syncs();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| end(&store, &halves[0], EndKind::Commit));
        slow.wait_for_one();
        let written = store.end_unacknowledged(&end_of(&halves[1], EndKind::Commit), Wait::No).unwrap();
        assert!(written.needs_sync());
        drop(slow);
        written.acknowledged().unwrap().unwrap();
        other.join().unwrap().unwrap();
    });
}

/// Waits until the descriptor of a sync thread is readable, then returns what it tells.
fn synced(syncs: &SyncThread) -> Result<PhysicalOffset> {
    let mut wanted = [PollFd::new(syncs.event(), PollFlags::IN)];
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut wanted, Some(&patience)).unwrap(), 1, "no sync was reported");
    syncs.durable()
}

#[test]
fn a_sync_thread_reports_a_failed_sync_each_time_it_is_asked() {
    let bench = Bench::sync();
    let store = Arc::new(bench.open());
    let syncs = SyncThread::start(Arc::clone(&store)).unwrap();
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"paid", queue_id: QUEUE };
    let end = store.append_one(&message, Wait::Yes).unwrap().into_parts().1.unwrap();
    bench.memory.fail_at(bench.memory.calls() + 1, crate::storage::memory::FaultKind::Io, true);
    syncs.request(end);
    assert!(matches!(synced(&syncs), Err(Error::StorePoisoned { .. })));
    assert!(matches!(syncs.durable(), Err(Error::StorePoisoned { .. })));
    assert!(store.durable_end() < end);
}

/// A full log file becomes durable before the next one begins, while sends wait. So the background thread makes the log
/// durable as it grows, and does not wait for its interval.
#[test]
fn much_that_is_not_durable_becomes_durable_before_the_interval_is_over() {
    let hour_ms = 3_600_000;
    let bench = Bench::new(FlushDiskType::Async).with(|options| {
        options.commit_log_file_size = Some(128 << 20);
        options.background = true;
        options.flush_interval_ms = hour_ms;
    });
    let store = bench.open();
    let body = vec![7; 4_000_000];
    let first = send(&store, "t", &body).unwrap();
    let end = first.physical_offset.0 + u64::from(first.size);
    assert!(!store.is_durable(end), "one message does not wake the background thread");
    (0..17).for_each(|_| drop(send(&store, "t", &body).unwrap()));
    let mut looks = (0..12_000).map(|_| std::thread::sleep(std::time::Duration::from_millis(5)));
    assert!(looks.any(|()| store.is_durable(end)), "nothing was synced");
}

/// A panic ends a thread. If the background thread could end alone, nothing would be synced after that.
#[test]
fn a_panic_in_the_background_thread_stops_the_store() {
    let bench = Bench::new(FlushDiskType::Async).with(|options| {
        options.background = true;
        options.flush_interval_ms = 1;
    });
    let store = bench.open();
    bench.memory.watch(|path| {
        let is_background = std::thread::current().name() == Some("txstore-flush");
        assert!(!is_background || !path.starts_with("/memory/commitlog"), "a bug while the log is synced");
    });
    let is_poisoned = |()| matches!(send(&store, "t", b"x"), Err(Error::StorePoisoned { .. }));
    let mut sends = (0..12_000).map(|_| std::thread::sleep(std::time::Duration::from_millis(5)));
    assert!(sends.any(is_poisoned), "the store continues without its background thread");
}
