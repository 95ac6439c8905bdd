//! L6: what is derived from the log may be deleted, each and all, and is the same again.

use super::*;

/// Queues with all their places, and what the index finds.
fn seen(store: &Store) -> Vec<(String, QueueId, Vec<u64>, usize)> {
    let queues = store.queues().unwrap().into_iter();
    queues
        .map(|(topic, queue_id, first, end)| {
            let (records, next) = store.read(&topic, queue_id, QueueOffset(first), usize::MAX, None).unwrap();
            assert_eq!(next.0, end, "{topic}/{queue_id}");
            let places = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
            let found = store.query(&topic, "k", usize::MAX).unwrap().len();
            (topic, queue_id, places, found)
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
