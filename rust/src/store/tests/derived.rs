//! L6: each derived file, and all of them together, may be deleted and is rebuilt identically from the log.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::storage::Storage;

/// Returns queues with all their physical offsets, and what the index finds.
fn seen(store: &Store) -> Vec<(String, QueueId, Vec<u64>, usize)> {
    let queues = store.queues().unwrap().into_iter();
    queues
        .map(|(topic, queue_id, first, end)| {
            let (records, next) = store.read(&topic, queue_id, QueueOffset(first), usize::MAX, None).unwrap();
            assert_eq!(next.0, end, "{topic}/{queue_id}");
            let offsets = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
            let found = store.query(&topic, "k", usize::MAX).unwrap().len();
            (topic, queue_id, offsets, found)
        })
        .collect()
}

fn worked_on() -> Bench {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..30_u8 {
        send(&store, if n % 2 == 0 { "orders" } else { "payments" }, &[n; 100]).unwrap();
        let half = prepare(&store, &[n; 50]);
        match n % 4 {
            0 => end(&store, &half, EndKind::Commit).map(|_| ()).unwrap(),
            1 => end(&store, &half, EndKind::RollBack).map(|_| ()).unwrap(),
            2 => end(&store, &half, EndKind::Discard).map(|_| ()).unwrap(),
            _ => {}
        }
    }
    store.close().unwrap();
    bench
}

fn remove(bench: &Bench, path: &str) {
    match path {
        "consumequeue" | "index" => bench.memory.remove_dir(path).unwrap(),
        _ => bench.memory.unlink(path).unwrap(),
    }
}

#[test]
fn l6_what_is_derived_may_be_deleted_each_and_all() {
    let bench = worked_on();
    let parts = ["consumequeue", "index", "txstore/snapshot", "checkpoint"];
    let store = bench.killed().open();
    let (expected, waiting) = (seen(&store), pending(&store));
    assert_eq!(waiting.len(), 7);
    for unclean in [false, true] {
        for chosen in 0_u32..16 {
            let bench = bench.killed();
            if unclean {
                bench.memory.open("abort", OpenMode::Create).unwrap();
            }
            let gone: Vec<&str> = (0..4).filter(|bit| chosen >> bit & 1 == 1).map(|bit| parts[bit]).collect();
            for path in &gone {
                remove(&bench, path);
            }
            let reader = bench.read_only();
            assert_eq!(seen(&reader), expected, "read-only, without {gone:?}, unclean {unclean}");
            assert_eq!(pending(&reader), waiting);
            drop(reader);
            let store = bench.open();
            assert_eq!(seen(&store), expected, "without {gone:?}, unclean {unclean}");
            assert_eq!(pending(&store), waiting);
            store.close().unwrap();
            assert_eq!(seen(&bench.open()), expected, "once more, without {gone:?}, unclean {unclean}");
        }
    }
}

/// A reader that kept them would need memory for every message of the log.
#[test]
fn a_reader_keeps_nothing_in_memory_that_the_files_have() {
    let bench = worked_on();
    bench.memory.unlink("txstore/snapshot").unwrap();
    let reader = bench.read_only();
    let inner = reader.shared.inner.lock();
    let dispatcher = &inner.derived.dispatcher;
    assert_eq!((dispatcher.queues.buffered(), dispatcher.index.len()), (0, 0));
}

#[test]
fn l6_a_damaged_snapshot_is_a_full_scan() {
    let bench = worked_on();
    let expected = seen(&bench.killed().open());
    let length = bench.memory.len("txstore/snapshot").unwrap().unwrap();
    for at in (0..length).step_by(37) {
        let bench = bench.killed();
        let byte = bench.read("txstore/snapshot", at, 1)[0];
        bench.write("txstore/snapshot", at, &[byte ^ 1]);
        let store = bench.open();
        assert_eq!(store.open_report().scanned_from, 0, "byte {at}");
        assert_eq!(seen(&store), expected, "byte {at}");
    }
}

#[test]
fn l8_a_read_only_open_writes_nothing_also_of_an_unclean_store() {
    let clean = worked_on();
    let unclean = clean.killed();
    let store = unclean.open();
    let half = prepare(&store, b"pending");
    end(&store, &half, EndKind::Commit).unwrap();
    send(&store, "orders", &[7; 900]).unwrap();
    for bench in [clean.killed(), unclean.killed()] {
        let before = bench.files();
        let reader = bench.read_only();
        seen(&reader);
        reader.transactions().unwrap();
        assert!(matches!(send(&reader, "orders", b"no"), Err(Error::ReadOnly { .. })));
        reader.close().unwrap();
        assert_eq!(bench.files(), before);
    }
}

/// Without queue files all entries stay in a reader's memory. Entries that were compared with the files are not
/// compared again with each later record.
#[test]
fn l6_a_reader_without_queue_files_opens_in_time_that_grows_with_the_log() {
    // A store that is not clean also keeps index entries, up to another limit.
    for (unclean, messages) in [(false, 425_000), (true, 40_000)] {
        let bench = Bench::new(FlushDiskType::Async).with(|options| {
            options.commit_log_file_size = Some(256 << 20);
            options.consume_queue_file_size = Some(20 << 20);
        });
        let store = bench.open();
        let envelope = envelope("orders");
        let batch: Vec<_> =
            (0..1_000).map(|_| NewMessage { envelope: &envelope, body: b"x", queue_id: QUEUE }).collect();
        (0..messages / 1_000).for_each(|_| store.append(&batch, Wait::Yes).map(|_| ()).unwrap());
        store.close().unwrap();
        if unclean {
            bench.memory.open("abort", OpenMode::Create).unwrap();
        }
        bench.memory.unlink("txstore/snapshot").unwrap();
        bench.memory.count_reads(true);
        let open = || {
            let before = bench.memory.calls();
            let reader = bench.read_only();
            (bench.memory.calls() - before, reader)
        };
        let (with_files, _) = open();
        bench.memory.remove_dir("consumequeue").unwrap();
        let (calls, reader) = open();
        let about = format!("{messages} messages, unclean {unclean}");
        assert!(calls < with_files + 100, "{calls} calls, {with_files} with queue files; {about}");
        assert_eq!(reader.queue_range("orders", QUEUE).unwrap(), (0, messages));
        let (last, _) = reader.read("orders", QUEUE, QueueOffset(messages - 1), 1, None).unwrap();
        assert_eq!(last.len(), 1);
    }
}

/// Queues without writes since the snapshot cost an opening no write and no sync.
#[test]
fn an_opening_after_a_kill_syncs_all_queues_at_once() {
    let calls = |queues: usize| {
        let bench = Bench::sync();
        let store = bench.open();
        for n in 0..queues {
            send(&store, &format!("t{n}"), b"x").unwrap();
        }
        store.snapshot().unwrap();
        send(&store, "t0", b"y").unwrap();
        let bench = bench.killed();
        let before = bench.memory.calls();
        let store = bench.open();
        assert_eq!(bodies(&store, "t0", 0).len(), 2);
        bench.memory.calls() - before
    };
    let (few, many) = (calls(10), calls(300));
    assert!(many < few + 20, "{few} calls with 10 queues, {many} with 300");
}

/// Such a sync also waits for what other programs write.
#[test]
fn an_opening_of_a_closed_store_does_not_sync_the_file_system() {
    // Returns how many calls an opening makes on the root.
    let calls = |bench: &Bench| {
        let (root, count) = (bench.memory.root().to_owned(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&count);
        bench.memory.watch(move |path| {
            counted.fetch_add(usize::from(path == root), Ordering::Relaxed);
        });
        let _store = bench.open();
        count.load(Ordering::Relaxed)
    };
    let closed = worked_on();
    let reopened = worked_on();
    let _store = reopened.open();
    assert_eq!(calls(&closed) + 1, calls(&reopened.killed()), "only after a kill is everything synced");
}

/// Data that a killed process left after the end of a queue is removed for good, in its file and in later files.
#[test]
fn what_is_after_a_queues_end_is_cut_for_good() {
    let bench = Bench::sync();
    let store = bench.open();
    for _ in 0..3 {
        send(&store, "orders", b"x").unwrap();
    }
    store.snapshot().unwrap();
    let bench = bench.killed();
    // A file of eight entries: of the first the last sector's entry, and all of the next two.
    bench.write("consumequeue/orders/0/00000000000000000000", 140, &[7; 20]);
    for base in [160, 320] {
        let file = bench.memory.open(&format!("consumequeue/orders/0/{base:020}"), OpenMode::Create).unwrap();
        file.set_len(160).unwrap();
        file.write_at(&[7; 160], 0).unwrap();
        file.sync().unwrap();
    }
    bench.memory.sync_dir("consumequeue/orders/0").unwrap();
    drop(bench.open());
    for seed in 0..20 {
        let lost_power = bench.crashed(seed, CrashKeep::PowerLoss);
        assert_eq!(lost_power.read("consumequeue/orders/0/00000000000000000000", 60, 100), [0; 100], "seed {seed}");
        assert_eq!(lost_power.memory.list("consumequeue/orders/0").unwrap().unwrap().len(), 1, "seed {seed}");
    }
}

/// After a crash, a reader distrusts index entries that the writer added after its snapshot. The next writer has added
/// them again.
#[test]
fn a_query_after_a_crash_reads_no_more_than_after_a_close() {
    let bench = Bench::sync();
    let store = bench.open();
    (0..10).for_each(|n| drop(send(&store, "orders", &[n]).unwrap()));
    store.snapshot().unwrap();
    (0..10).for_each(|n| drop(send(&store, "orders", &[n]).unwrap()));
    let bench = bench.killed();
    let reads = || {
        let store = bench.open();
        bench.memory.count_reads(true);
        // The first query opens the files.
        let [_, calls] = [0, 1].map(|_| {
            let before = bench.memory.calls();
            assert_eq!(store.query("orders", "k", usize::MAX).unwrap().len(), 20);
            bench.memory.calls() - before
        });
        bench.memory.count_reads(false);
        store.close().unwrap();
        calls
    };
    let [after_a_crash, after_a_close] = [reads(), reads()];
    assert_eq!(after_a_crash, after_a_close);
    assert!(after_a_close > 20);
}
