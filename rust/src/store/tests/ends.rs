//! Ends in groups: from many threads, across a file's end, on a full disk, on a failing disk.

use std::collections::BTreeSet;
use std::sync::Barrier;

use super::*;
use crate::base::error::Outcome;
use crate::base::names::OP_TOPIC;
use crate::storage::memory::FaultKind;

#[test]
fn t2_ends_from_many_threads_give_each_its_outcome_once() {
    const THREADS: usize = 8;
    const EACH: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { flush_disk_type: FlushDiskType::Sync, ..Bench::sync().options };
    let options = StoreOptions { commit_log_file_size: Some(64 << 10), background: true, ..options };
    let store = Store::open(directory.path(), options.clone()).unwrap();
    let halves: Vec<Sent> = (0..THREADS * EACH).map(|n| prepare(&store, n.to_string().as_bytes())).collect();
    let barrier = Barrier::new(THREADS);
    // Two threads end each half in the same way. The results and the store must agree.
    let results: Vec<Vec<Ended>> = std::thread::scope(|scope| {
        let work = |thread: usize| {
            barrier.wait();
            let mine = (0..2 * EACH).map(|n| &halves[(thread * EACH + n) % halves.len()]);
            mine.map(|half| {
                let kind = if half.queue_offset.0 % 3 == 0 { EndKind::RollBack } else { EndKind::Commit };
                end(&store, half, kind).unwrap()
            })
            .collect()
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let first = results.iter().flatten().filter(|ended| !ended.already).count();
    assert_eq!(first, halves.len(), "each ends once");
    let ops = store.queue_range(OP_TOPIC, QUEUE).unwrap().1;
    assert!(ops < u64::try_from(halves.len()).unwrap(), "{ops} op messages for {} ends", halves.len());
    store.close().unwrap();
    let store = Store::open(directory.path(), options).unwrap();
    let rows = store.transactions().unwrap();
    assert_eq!(rows.len(), halves.len());
    for (row, half) in rows.iter().zip(&halves) {
        let committed = half.queue_offset.0 % 3 != 0;
        assert_eq!(row.outcome, Some(if committed { Outcome::Committed } else { Outcome::RolledBack }));
        assert_eq!(row.finals.len(), usize::from(committed));
    }
}

/// A group that crosses the end of a file is complete after a kill, and a prefix of its decisions after a power loss.
#[test]
fn t5_a_file_may_end_in_the_middle_of_a_group() {
    for fill in (0..3_600).step_by(150) {
        let bench = Bench::sync();
        let store = bench.open();
        let halves: Vec<Sent> = (0..4_u8).map(|n| prepare(&store, &[n; 60])).collect();
        while 4_096 - appended(&store) % 4_096 > 4_000 - fill && appended(&store) < 8_192 {
            send(&store, "fill", &[0; 20]).unwrap();
        }
        let ends: Vec<End> = halves.iter().map(|half| end_of(half, EndKind::Commit)).collect();
        let mut results = Vec::new();
        let group: Vec<&End> = ends.iter().collect();
        store.shared.write_group(&mut store.shared.inner.lock(), &group, &mut results, Wait::Yes).unwrap();
        assert!(results.iter().all(Result::is_ok));
        let killed = bench.killed().open();
        assert_eq!((bodies(&killed, "orders", 1).len(), killed.open_report().healed_ops), (4, 0), "fill {fill}");
        for seed in 0..10 {
            let after = bench.crashed(seed, CrashKeep::PowerLoss).open();
            let committed = bodies(&after, "orders", 1).len();
            assert_eq!(pending(&after).len() + committed, 4, "fill {fill}, seed {seed}");
        }
    }
}

/// An end is repeated in one group: the second one succeeds only if the first is written.
#[test]
fn t5_an_end_that_repeats_one_of_its_group_fails_with_it() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"half");
    let tickets = [EndKind::Commit, EndKind::Commit, EndKind::RollBack].map(|kind| end_of(&half, kind));
    bench.memory.fail_at(bench.memory.calls() + 1, FaultKind::Io, false);
    let results = store.shared.end_all(tickets.to_vec());
    assert!(results.iter().all(|result| matches!(result, Err(Error::Io { .. }))), "{results:?}");
    assert_eq!(pending(&store), [0]);
    let results = store.shared.end_all(tickets.to_vec());
    assert!(matches!(results[0], Ok(Ended { already: false, .. })), "{results:?}");
    assert!(matches!(results[1], Ok(Ended { already: true, .. })), "{results:?}");
    assert!(matches!(results[2], Err(Error::AlreadyEnded { outcome: Outcome::Committed, .. })), "{results:?}");
}

#[test]
fn t5_a_sync_that_fails_acknowledges_no_end_and_poisons() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"half");
    let other = prepare(&store, b"other");
    // The write succeeds, the sync fails.
    bench.memory.fail_at(bench.memory.calls() + 2, FaultKind::Io, false);
    assert!(matches!(end(&store, &half, EndKind::Commit), Err(Error::StorePoisoned { .. })));
    for kind in [EndKind::Commit, EndKind::RollBack] {
        assert!(matches!(end(&store, &half, kind), Err(Error::StorePoisoned { .. })), "nor one that asks again");
        let results = store.shared.end_all(vec![end_of(&half, kind), end_of(&other, kind)]);
        assert!(results.iter().all(|result| matches!(result, Err(Error::StorePoisoned { .. }))), "{results:?}");
    }
    assert!(matches!(send(&store, "orders", b"no"), Err(Error::StorePoisoned { .. })));
    assert!(matches!(store.check_room(), Err(Error::StorePoisoned { .. })));
    assert!(bodies(&store, "orders", 1).is_empty(), "reads continue");
    let after = bench.killed().open();
    end(&after, &half, EndKind::Commit).unwrap();
}

/// A full disk: `allocate` and new files fail, reserved space can be written.
#[test]
fn ends_still_work_when_sends_get_disk_full() {
    let bench = Bench::sync().with(|options| options.commit_log_file_size = Some(64 << 10));
    let store = bench.open();
    let halves: Vec<Sent> = (0..30_u8).map(|n| prepare(&store, &[n; 300])).collect();
    store.check_room().unwrap();
    bench.memory.leave_space(0);
    let mut sent = send_until_full(&store, 1_000);
    assert!(matches!(store.check_room(), Err(Error::DiskFull { .. })));
    for (n, half) in halves.iter().enumerate() {
        end(&store, half, if n % 2 == 0 { EndKind::Commit } else { EndKind::Discard }).unwrap();
    }
    // No transaction is pending, so sends may use the space that was reserved for ends.
    sent += send_until_full(&store, 2_000 - sent);
    bench.memory.leave_space(u64::MAX);
    store.check_room().unwrap();
    send(&store, "orders", &[1; 500]).unwrap();
    assert_eq!(bodies(&store, "orders", 1).len(), 15);
    assert_eq!(bodies(&bench.killed().open(), "orders", 0).len(), sent + 1);
}

/// Sends until the disk is full. Returns the number of messages that were stored.
fn send_until_full(store: &Store, most: usize) -> usize {
    let mut sent = 0;
    let error = loop {
        match send(store, "orders", &[1; 500]) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < most, "a full disk is met");
    };
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    sent
}

/// At any position of the log's end in its file: a large half that does not fit into the rest is ended in the next
/// file.
#[test]
fn a_large_half_is_ended_on_a_full_disk_at_every_offset_of_a_file() {
    let mut refused = Vec::new();
    for left in (1..140).map(|n| n * 1_000) {
        let (bench, store) = with_small_files();
        let half = prepare(&store, &vec![b'b'; 40_000]);
        bench.memory.leave_space(left);
        while send(&store, "orders", &[b'x'; 700]).is_ok() {}
        while send(&store, "orders", b"x").is_ok() {}
        if let Err(error) = end(&store, &half, EndKind::Commit) {
            refused.push((left, error.to_string()));
        }
    }
    assert!(refused.is_empty(), "{} of 139: {:?}", refused.len(), refused.first());
}

/// Each half is ended alone, so each has its own op message, which is larger than a small half message.
#[test]
fn many_small_halves_are_ended_one_by_one_on_a_full_disk() {
    let (bench, store) = with_small_files();
    let halves: Vec<Sent> = (0..1_000_u32).map(|n| prepare(&store, &n.to_be_bytes())).collect();
    bench.memory.leave_space(0);
    while send(&store, "orders", &[b'x'; 700]).is_ok() {}
    let ended = halves.iter().take_while(|half| end(&store, half, EndKind::Discard).is_ok()).count();
    assert_eq!(ended, halves.len());
}

fn with_small_files() -> (Bench, Store) {
    let bench = Bench::new(FlushDiskType::Async).with(|options| options.commit_log_file_size = Some(64 << 10));
    let store = bench.open();
    (bench, store)
}

/// An end that needs no waiting is done at once. Otherwise nothing has changed, and the waiting call does it.
#[test]
fn an_end_at_once_is_an_end_or_nothing() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"now");
    let at_once = |half: &Sent, kind| store.end_transaction(&end_of(half, kind), Wait::No);
    let ended = at_once(&half, EndKind::Commit).unwrap();
    assert_eq!((ended.outcome, ended.already), (Outcome::Committed, false));
    assert!(at_once(&half, EndKind::Commit).unwrap().already);
    assert!(matches!(at_once(&half, EndKind::RollBack), Err(Error::AlreadyEnded { .. })));
    assert_eq!(bodies(&store, "orders", 1), [b"now"]);
    // At a file's end, a new file must be created, which may wait.
    let (mut done, mut left) = (0, 0);
    for number in 0..60_u8 {
        let half = prepare(&store, &vec![number; 40 + usize::from(number) * 7]);
        let before = appended(&store);
        match at_once(&half, EndKind::Commit) {
            Err(Error::WouldWait) => {
                left += 1;
                assert_eq!(appended(&store), before);
                assert!(!end(&store, &half, EndKind::Commit).unwrap().already);
            }
            ended => done += usize::from(!ended.unwrap().already),
        }
    }
    assert!(done > 0 && left > 0, "{done} at once, {left} left");
    assert!(pending(&store).is_empty());
    store.close().unwrap();
    assert!(matches!(at_once(&half, EndKind::Commit), Err(Error::StoreClosed)));
    let sync = Bench::sync();
    let store = sync.open();
    let half = prepare(&store, b"sync");
    let ended = store.end_transaction(&end_of(&half, EndKind::Commit), Wait::No);
    assert!(matches!(ended, Err(Error::WouldWait)), "a sync is waited for: {ended:?}");
    assert_eq!(pending(&store), [0]);
}

/// RocketMQ's rule, if the option asks for it: after its own immunity time, only a check ends a transaction.
#[test]
fn a_late_end_is_refused_where_that_is_asked_for() {
    let bench = Bench::sync().with(|options| options.reject_late_end = true);
    let store = bench.open();
    let parts = Parts { topic: "orders", properties: &[("CHECK_IMMUNITY_TIME_IN_SECONDS", "5")], ..Parts::default() };
    let envelope = Envelope::new(&parts).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"late", queue_id: QUEUE };
    let half = store
        .prepare(&NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 }, Wait::Yes)
        .unwrap()
        .acknowledged()
        .unwrap();
    bench.clock.advance(5_001);
    let refused = end(&store, &half, EndKind::Commit).unwrap_err();
    assert!(matches!(refused, Error::LateEnd { immunity_ms: 5_000, .. }), "{refused}");
    assert_eq!(pending(&store), [0]);
    let from_check = End { decider: Decider::Check, ..end_of(&half, EndKind::Commit) };
    assert_eq!(store.end_transaction(&from_check, Wait::Yes).unwrap().outcome, Outcome::Committed);
}

/// A half that would not fit after a broker has put it back is refused, and nothing is written.
#[test]
fn a_half_whose_properties_would_grow_too_long_is_refused() {
    let bench = Bench::sync().with(|options| options.commit_log_file_size = Some(1 << 20));
    let store = bench.open();
    let value = "v".repeat(32_450);
    let envelope = Envelope::new(&Parts { topic: "orders", properties: &[("a", &value)], ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"x", queue_id: QUEUE };
    let refused = store
        .prepare(&NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 }, Wait::Yes)
        .and_then(Unacknowledged::acknowledged)
        .unwrap_err();
    assert!(matches!(&refused, Error::InvalidMessage { what } if what.contains("properties")), "{refused}");
    assert_eq!(appended(&store), 0);
    store.append(&[message], Wait::Yes).unwrap().acknowledged().unwrap();
}

/// A replica may have let transactions escape: producers and checks end none of them before it has told, an operator may.
#[test]
fn held_ends_wait_and_those_of_an_operator_do_not() {
    let bench = Bench::sync();
    let store = bench.open();
    let [first, second, third] = [b"1", b"2", b"3"].map(|body| prepare(&store, body));
    store.hold_ends(true, BTreeSet::new()).unwrap();
    assert!(store.holds_end(None) && store.holds_end(Some(first.queue_offset.0)));
    let before = appended(&store);
    for decider in [Decider::Producer, Decider::Check] {
        let refused = store.end_transaction(&End { decider, ..end_of(&first, EndKind::Commit) }, Wait::Yes);
        assert!(matches!(refused, Err(Error::EndHeld { .. })), "{refused:?}");
    }
    assert_eq!(appended(&store), before);
    let by_hand = End { decider: Decider::Operator, ..end_of(&first, EndKind::RollBack) };
    assert_eq!(store.end_transaction(&by_hand, Wait::Yes).unwrap().outcome, Outcome::RolledBack);
    assert!(end(&store, &first, EndKind::RollBack).unwrap().already, "what has ended is known");
    store.hold_ends(false, BTreeSet::from([second.queue_offset.0])).unwrap();
    assert!(matches!(end(&store, &second, EndKind::Commit), Err(Error::EndHeld { .. })));
    end(&store, &third, EndKind::Commit).unwrap();
    store.hold_ends(false, BTreeSet::new()).unwrap();
    end(&store, &second, EndKind::Commit).unwrap();
    assert!(pending(&store).is_empty());
}
