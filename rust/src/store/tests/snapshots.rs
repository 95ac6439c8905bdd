//! Guards snapshots: written only after a change, consistent at one moment while threads change the table, and not used
//! with another log or without the queues' files.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::base::error::Outcome;

/// An idle store writes nothing, however often a snapshot is due. Each kind of change is written once.
#[test]
fn a_snapshot_writes_only_what_is_not_in_the_last_one() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"x");
    let writes = |what: &str, expected: bool| {
        for expected in [expected, false] {
            let before = bench.memory.calls();
            store.snapshot().unwrap();
            assert_eq!(bench.memory.calls() > before, expected, "{what}");
        }
    };
    writes("a half", true);
    send(&store, "t", b"x").unwrap();
    writes("a message", true);
    assert!(store.look_again(half.queue_offset.0, 10, true).unwrap());
    writes("a check, which no record tells", true);
    assert!(store.look_again(half.queue_offset.0, 10, false).unwrap());
    writes("a look without a check", false);
    store.delete_queues("t").unwrap();
    writes("a deleted topic", true);
    bench.clock.jump_wall(3_600_000);
    writes("a wall clock that was set: ages are kept as wall times", true);
    end(&store, &half, EndKind::Commit).unwrap();
    writes("an end", true);
    store.close().unwrap();
}

/// A close does not repeat what is already written, and the next opening has all of it.
#[test]
fn a_close_after_a_snapshot_keeps_what_the_snapshot_holds() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"x");
    store.look_again(half.queue_offset.0, 10, true).unwrap();
    store.snapshot().unwrap();
    let written = bench.files().into_iter().find(|(path, _)| path == "txstore/snapshot").unwrap();
    store.close().unwrap();
    assert!(bench.files().contains(&written));
    let again = bench.open();
    assert!(again.open_report().clean);
    assert_eq!(again.open_report().scanned_bytes, 0);
    assert_eq!(again.halves_waiting(None, 9).unwrap()[0].checks, 1);
}

/// Returns for each half queue offset its outcome, or `None` if it is pending.
fn outcomes(store: &Store) -> Vec<Option<Outcome>> {
    let inner = store.shared.inner.lock();
    let table = &inner.derived.table;
    let end = inner.half_queue_end();
    (0..end).map(|half| table.outcome(half).filter(|_| table.find(half).is_none())).collect()
}

/// While threads prepare and end, each snapshot contains exactly what the log contains up to its position.
#[test]
fn a_snapshot_while_others_send_is_of_one_moment() {
    let bench = Bench::new(FlushDiskType::Async).with(|options| options.commit_log_file_size = Some(1 << 20));
    let (store, done) = (Arc::new(bench.open()), Arc::new(AtomicBool::new(false)));
    // How far the senders may extend the log before the next snapshot, because a file in memory has no other limit.
    let room = Arc::new(AtomicU64::new(0));
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let (store, done, room) = (Arc::clone(&store), Arc::clone(&done), Arc::clone(&room));
            std::thread::spawn(move || {
                let mut pending = std::collections::VecDeque::new();
                while !done.load(Ordering::SeqCst) {
                    if appended(&store) > room.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                        continue;
                    }
                    pending.push_back(prepare(&store, b"x"));
                    if pending.len() > 40 {
                        let half = pending.pop_front().unwrap();
                        let kind = [EndKind::Commit, EndKind::RollBack, EndKind::Discard][pending.len() % 3];
                        end(&store, &half, kind).unwrap();
                    }
                }
            })
        })
        .collect();
    for _ in 0..20 {
        let before = appended(&store);
        room.store(before + (100 << 10), Ordering::SeqCst);
        while appended(&store) == before {
            std::thread::yield_now();
        }
        store.snapshot().unwrap();
        // The files are copied one after another, so no write may happen in between.
        let put_lock = store.shared.inner.lock();
        let with = bench.killed();
        drop(put_lock);
        let without = with.killed();
        without.memory.unlink("txstore/snapshot").unwrap();
        let (with, without) = (with.open(), without.open());
        assert!(with.open_report().scanned_from > 0);
        assert_eq!(without.open_report().scanned_from, 0);
        assert_eq!(outcomes(&with), outcomes(&without));
    }
    done.store(true, Ordering::SeqCst);
    for sender in senders {
        sender.join().unwrap();
    }
}

/// Such a snapshot is left if the log is restored from a backup, and the rest is not.
#[test]
fn l6_a_snapshot_of_another_log_of_the_same_shape_is_not_used() {
    let made = |id: &str| {
        let bench = Bench::sync();
        let store = bench.open();
        prepare_as(&store, b"half", Some(id)).unwrap();
        store.close().unwrap();
        bench
    };
    let (one, other) = (made("a"), made("b"));
    let (path, bytes) = one.files().into_iter().find(|(path, _)| path == "txstore/snapshot").unwrap();
    super::replicas::put(&other, &path, &bytes);
    let store = other.open();
    assert_eq!(prepare_as(&store, b"half", Some("b")).unwrap().size, 0, "it is pending");
    assert_eq!(pending(&store), [0]);
}

/// The first and the last entry are there.
/// The record that the entry names is the log's first one.
#[test]
fn l6_a_snapshot_is_not_used_with_a_queue_file_of_another_topic() {
    let directory = tempfile::tempdir().unwrap();
    let options = || Bench::new(FlushDiskType::Async).options;
    let store = Store::open(directory.path(), options()).unwrap();
    send(&store, "orders", b"order").unwrap();
    send(&store, "payments", b"payment").unwrap();
    store.close().unwrap();
    let file = |topic| directory.path().join(format!("consumequeue/{topic}/0/00000000000000000000"));
    std::fs::copy(file("orders"), file("payments")).unwrap();
    for read_only in [true, false] {
        let store = Store::open(directory.path(), StoreOptions { read_only, ..options() }).unwrap();
        assert_eq!(bodies(&store, "payments", 0), [b"payment"]);
    }
}

#[test]
fn l6_a_queue_file_that_is_missing_in_the_middle_is_built_again() {
    let bench = Bench::sync();
    let store = bench.open();
    for number in 0..32_u8 {
        send(&store, "orders", &[number]).unwrap();
    }
    let all = bodies(&store, "orders", 0);
    store.close().unwrap();
    bench.memory.unlink("consumequeue/orders/0/00000000000000000320").unwrap();
    for store in [bench.read_only(), bench.open()] {
        assert_eq!((all.len(), bodies(&store, "orders", 0)), (32, all.clone()));
    }
}

/// Where the body of a record begins that names no host by IPv6.
const BODY_AT: u64 = 88;

#[test]
fn a_damaged_record_that_the_snapshot_covers_stops_no_opening() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent: Vec<_> = [b"0", b"1", b"2"].into_iter().map(|body| send(&store, "orders", body).unwrap()).collect();
    store.close().unwrap();
    let at = sent[0].physical_offset.0 + BODY_AT;
    let log = "commitlog/00000000000000000000";
    let byte = bench.read(log, at, 1)[0];
    bench.write(log, at, &[byte ^ 1]);
    for store in [bench.read_only(), bench.open()] {
        let (found, _) = store.read("orders", QUEUE, QueueOffset(1), 2, None).unwrap();
        assert_eq!(found.len(), 2);
    }
}
