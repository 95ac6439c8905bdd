//! Tests what docs/reference/promises.md promises of the log, L1 to L8: for example that what is left after a crash is
//! a prefix, that offsets are never given twice, and that damage is not taken for the log's end.

use super::*;
use crate::filter::Selector;

const FIRST_FILE: &str = "commitlog/00000000000000000000";

#[test]
fn l1_a_batch_is_there_whole_or_not_at_all() {
    // A power loss tears a batch over three files at every seed. The rest is a prefix of its records.
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let envelope = envelope("orders");
    let bodies_sent: Vec<Vec<u8>> = (0..6_u8).map(|n| vec![n; 1_500]).collect();
    let batch: Vec<_> =
        bodies_sent.iter().map(|body| NewMessage { envelope: &envelope, body, queue_id: QUEUE }).collect();
    store.append(&batch, Wait::Yes).unwrap().acknowledged().unwrap();
    for seed in 0..100 {
        let after = bench.crashed(seed, CrashKeep::PowerLoss).open();
        let found = bodies(&after, "orders", 0);
        assert_eq!(found, bodies_sent[..found.len()], "seed {seed}");
    }
}

#[test]
fn l2_what_was_acknowledged_in_sync_is_there_after_lost_power() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..20_u8 {
        send(&store, "orders", &[n; 300]).unwrap();
        let after = bench.crashed(u64::from(n), CrashKeep::PowerLoss).open();
        assert_eq!(bodies(&after, "orders", 0).len(), usize::from(n) + 1);
    }
}

#[test]
fn l2_what_a_flush_covers_in_async_is_there_after_lost_power() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    for n in 0..20_u8 {
        send(&store, "orders", &[n; 300]).unwrap();
    }
    store.flush().unwrap();
    send(&store, "orders", b"later").unwrap();
    for seed in 0..50 {
        let after = bench.crashed(seed, CrashKeep::PowerLoss).open();
        assert!(bodies(&after, "orders", 0).len() >= 20, "seed {seed}");
    }
}

#[test]
fn l3_what_was_cut_never_comes_back() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"kept").unwrap();
    let end = appended(&store);
    send(&store, "orders", &[b'x'; 900]).unwrap();
    let third = send(&store, "orders", &[b'y'; 900]).unwrap().physical_offset.0;
    // The second record is torn, the third is complete: without zeroing it would come back after a new second one.
    let torn = bench.killed();
    torn.memory.unlink("txstore/published").unwrap();
    torn.write(FIRST_FILE, end + 100, b"torn");
    let after = torn.open();
    assert!(after.open_report().truncated_bytes > 0);
    assert_eq!(bodies(&after, "orders", 0), [b"kept"]);
    for seed in 0..20 {
        let again = torn.crashed(seed, CrashKeep::PowerLoss);
        let size = usize::try_from(third - end).unwrap();
        assert_eq!(again.read(FIRST_FILE, end, size + 900), vec![0; size + 900], "seed {seed}");
        let store = again.open();
        assert_eq!(bodies(&store, "orders", 0), [b"kept"], "seed {seed}");
        // A record of the second one's size: the third would follow it exactly.
        send(&store, "orders", &[b'z'; 900]).unwrap();
        let store = again.killed().open();
        assert_eq!(bodies(&store, "orders", 0).len(), 2, "seed {seed}");
    }
}

#[test]
fn l4_each_record_states_its_offset_and_queue_offsets_have_no_gap() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..40_u8 {
        send(&store, if n % 3 == 0 { "orders" } else { "payments" }, &[n; 400]).unwrap();
    }
    let (records, _) = store.scan(PhysicalOffset(0), 100).unwrap();
    let mut next = std::collections::BTreeMap::new();
    for record in &records {
        let view = record.view().unwrap();
        assert_eq!(store.read_at(view.physical_offset).unwrap(), *record);
        let expected: &mut u64 = next.entry(view.topic.to_owned()).or_default();
        assert_eq!(view.queue_offset.0, *expected);
        *expected += 1;
    }
    assert_eq!(records.len(), 40);
}

#[test]
fn l5_any_flipped_byte_of_a_record_is_found() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"first").unwrap();
    let end = appended(&store);
    drop(store);
    for at in 0..end {
        let bench = bench.killed();
        let byte = bench.read(FIRST_FILE, at, 1)[0];
        bench.write(FIRST_FILE, at, &[byte ^ 0x20]);
        bench.memory.unlink("txstore/snapshot").unwrap();
        assert!(bench.try_open().is_err(), "byte {at}: the record counts as whole");
    }
}

#[test]
fn l7_damage_below_the_durable_end_is_an_error_with_file_and_offset() {
    for clean in [true, false] {
        let bench = Bench::sync();
        let store = bench.open();
        for n in 0..12_u8 {
            send(&store, "orders", &[n; 600]).unwrap();
        }
        let sent = send(&store, "orders", b"damaged").unwrap().physical_offset.0;
        send(&store, "orders", b"after").unwrap();
        let bench = if clean {
            store.close().unwrap();
            bench.memory.unlink("txstore/snapshot").unwrap();
            bench
        } else {
            bench.killed()
        };
        let path = format!("commitlog/{:020}", sent - sent % 4_096);
        bench.write(&path, sent % 4_096 + 90, b"????");
        let log = |bench: &Bench| -> Vec<_> {
            bench.files().into_iter().filter(|(path, _)| path.starts_with("commitlog/0")).collect()
        };
        let before = log(&bench);
        match bench.try_open().unwrap_err() {
            Error::StoreCorrupt { file, offset, .. } => {
                assert!(file.ends_with(&path), "{file:?}");
                assert_eq!(offset, sent % 4_096);
            }
            other => panic!("{other}"),
        }
        assert_eq!(log(&bench), before, "nothing is cut");
    }
}

/// A reader of a tag learns at which queue offset the damage is, although it skips messages on the way there.
#[test]
fn l7_a_read_that_fails_is_about_its_own_queue_offset() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent: Vec<Sent> = (0..70_u64)
        .map(|n| {
            let tags = Some(if n < 40 { "other" } else { "t" });
            let envelope = Envelope::new(&Parts { topic: "orders", tags, ..Parts::default() }).unwrap();
            let message = NewMessage { envelope: &envelope, body: &n.to_be_bytes(), queue_id: QUEUE };
            let stored = store.append(&[message], Wait::Yes).and_then(Unacknowledged::acknowledged);
            stored.unwrap().remove(0)
        })
        .collect();
    let at = sent[40].physical_offset.0;
    bench.write(&format!("commitlog/{:020}", at - at % 4_096), at % 4_096, &[0xFF; 8]);
    let tags = Selector::tags(["t".to_owned()]);
    let read = |from| store.read("orders", QUEUE, QueueOffset(from), 99, Some(&tags));
    let (records, next) = read(0).unwrap();
    assert_eq!((records.len(), next), (0, QueueOffset(40)));
    assert!(matches!(read(40), Err(Error::StoreCorrupt { .. })));
    let (records, next) = read(41).unwrap();
    assert_eq!((records.len(), next), (29, QueueOffset(70)));
}

/// Finding out why an entry in memory names no record takes the put lock, which the read must not hold then.
#[test]
fn l7_an_entry_in_memory_that_names_no_record_is_damage() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = send(&store, "orders", b"x").unwrap();
    store.shared.log.set_appended(sent.physical_offset.0);
    let read = store.read("orders", QUEUE, QueueOffset(0), 1, None);
    assert!(matches!(read, Err(Error::StoreCorrupt { .. })), "{read:?}");
}

/// The log is long enough for a second thread to verify ahead.
#[test]
fn l7_a_long_log_is_recovered_whole_and_its_damage_found() {
    let bench = Bench::sync().with(|options| options.commit_log_file_size = Some(4 << 20));
    let store = bench.open();
    let sent: Vec<Sent> =
        (0..400_u32).map(|n| send(&store, "orders", &n.to_be_bytes().repeat(16_000)).unwrap()).collect();
    let killed = bench.killed();
    let store = killed.open();
    assert_eq!((store.open_report().clean, store.open_report().scanned_from), (false, 0));
    let (records, next) = store.read("orders", QUEUE, QueueOffset(399), 9, None).unwrap();
    assert_eq!((records[0].body().1.len(), next), (64_000, QueueOffset(400)));
    drop(store);
    for damaged in [399, 300] {
        let (bench, at) = (bench.killed(), sent[damaged].physical_offset.0);
        let path = format!("commitlog/{:020}", at - at % (4 << 20));
        bench.write(&path, at % (4 << 20) + 30_000, b"????");
        match bench.try_open().unwrap_err() {
            Error::StoreCorrupt { offset, .. } => assert_eq!(offset, at % (4 << 20)),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn l8_a_torn_tail_is_cut_and_zeroed() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"kept").unwrap();
    let end = appended(&store);
    let bench = bench.killed();
    bench.write(FIRST_FILE, end, &[0, 0, 3, 0, 0xDA, 0xA3, 0x20, 0xA7, 1, 2, 3]);
    let store = bench.open();
    assert_eq!(store.open_report().truncated_bytes, 11);
    assert_eq!(store.open_report().warnings.len(), 1, "{:?}", store.open_report().warnings);
    assert_eq!(bench.read(FIRST_FILE, end, 64), [0; 64]);
    assert_eq!(bodies(&store, "orders", 0), [b"kept"]);
}

#[test]
fn l8_a_later_file_with_a_whole_record_is_damage() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    for n in 0..12_u8 {
        send(&store, "orders", &[n; 600]).unwrap();
    }
    let bench = bench.killed();
    // The last record of the first file is removed. The second file begins with a complete record.
    let (records, _) = store.scan(PhysicalOffset(0), 100).unwrap();
    let in_first = records.iter().map(|record| record.view().unwrap().physical_offset.0).filter(|at| *at < 4_096);
    bench.write(FIRST_FILE, in_first.max().unwrap() + 8, &[9; 100]);
    bench.memory.unlink("txstore/published").unwrap();
    assert!(matches!(bench.try_open(), Err(Error::StoreCorrupt { .. })));
}

#[test]
fn l8_a_missing_middle_file_is_named_and_nothing_is_dropped() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..20_u8 {
        send(&store, "orders", &[n; 600]).unwrap();
    }
    store.close().unwrap();
    bench.memory.unlink("commitlog/00000000000000004096").unwrap();
    let before = bench.files();
    match bench.try_open().unwrap_err() {
        Error::MissingFile { path, from, to } => {
            assert!(path.ends_with("commitlog/00000000000000004096"), "{path:?}");
            assert_eq!((from, to), (PhysicalOffset(4_096), PhysicalOffset(8_192)));
        }
        other => panic!("{other}"),
    }
    let kept = |files: Vec<(String, Vec<u8>)>| -> Vec<_> {
        files.into_iter().filter(|(path, _)| path != "txstore/published" && path != "lock").collect()
    };
    assert_eq!(kept(bench.files()), kept(before));
}

#[test]
fn the_last_file_of_the_log_missing_is_named() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..10_u8 {
        send(&store, "orders", &[n; 600]).unwrap();
    }
    store.close().unwrap();
    bench.memory.unlink("commitlog/00000000000000004096").unwrap();
    match bench.try_open().unwrap_err() {
        Error::MissingFile { path, from, .. } => {
            assert!(path.ends_with("commitlog/00000000000000004096"), "{path:?}");
            assert_eq!(from, PhysicalOffset(4_096));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn l8_a_last_file_without_bytes_is_what_a_crash_leaves() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"kept").unwrap();
    let last = bench.memory.list("commitlog").unwrap().unwrap().pop().unwrap().name;
    let next: u64 = last.parse::<u64>().unwrap() + 4_096;
    let bench = bench.killed();
    bench.memory.open(&format!("commitlog/{next:020}"), OpenMode::Create).unwrap();
    let store = bench.open();
    assert_eq!(bodies(&store, "orders", 0), [b"kept"]);
    for n in 0..20_u8 {
        send(&store, "orders", &[n; 600]).unwrap();
    }
    assert_eq!(bodies(&bench.killed().open(), "orders", 0).len(), 21);
}

#[test]
fn l8_files_of_mixed_sizes_are_refused() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..12_u8 {
        send(&store, "orders", &[n; 600]).unwrap();
    }
    store.close().unwrap();
    bench.memory.open("commitlog/00000000000000004096", OpenMode::Write).unwrap().set_len(5_000).unwrap();
    assert!(matches!(bench.try_open(), Err(Error::ForeignStore { .. } | Error::MissingFile { .. })));
}

#[test]
fn the_stores_own_sizes_rule_and_another_is_an_error() {
    let bench = Bench::sync();
    bench.open().close().unwrap();
    let other = |change: fn(&mut StoreOptions)| bench.killed().with(change).try_open().unwrap_err();
    for (option, error) in [
        ("mapped_file_size_commit_log", other(|options| options.commit_log_file_size = Some(8 << 10))),
        ("mapped_file_size_consume_queue", other(|options| options.consume_queue_file_size = Some(40))),
        ("max_hash_slot_num", other(|options| options.max_hash_slot_num = Some(17))),
    ] {
        assert!(matches!(&error, Error::InvalidOption { option: named, .. } if named == option), "{error}");
    }
    let asks_nothing = bench.killed().with(|options| {
        options.commit_log_file_size = None;
        options.consume_queue_file_size = None;
    });
    assert_eq!(asks_nothing.open().stat().unwrap().commit_log_file_size, 4 << 10);
}

#[test]
fn l8_a_file_that_lost_its_length_does_not_tell_the_stores_size() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"first").unwrap();
    store.snapshot().unwrap();
    let killed = bench.killed();
    let path = "consumequeue/orders/0/00000000000000000000";
    killed.memory.open(path, crate::storage::OpenMode::Write).unwrap().set_len(100).unwrap();
    let store = killed.open();
    assert_eq!(bodies(&store, "orders", 0), [b"first"], "a queue is derived: it is written again");
    assert_eq!(killed.memory.len(path).unwrap(), Some(160));
}

#[test]
fn d1_in_sync_nothing_is_visible_that_lost_power_can_take_back() {
    let bench = Bench::sync();
    let store = bench.open();
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"now", queue_id: QUEUE };
    send(&store, "orders", b"first").unwrap();
    let written = store.append(&[message], Wait::No).unwrap();
    assert!(written.needs_sync());
    assert_eq!(bodies(&store, "orders", 0), [b"first"], "it is not durable yet");
    assert_eq!(
        bench.read_only().stat().unwrap().visible_physical_offset,
        store.stat().unwrap().durable_physical_offset
    );
    written.acknowledged().unwrap();
    assert_eq!(bodies(&store, "orders", 0).len(), 2);
}

#[test]
fn d2_an_offset_beyond_the_end_is_brought_back_and_reported() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    store.flush_round().unwrap();
    let before = bench.killed();
    for n in 0..5_u8 {
        send(&store, "orders", &[n]).unwrap();
    }
    store.set_consumer_offset("orders", "readers", QUEUE, 5).unwrap();
    assert!(store.set_consumer_offset("orders", "readers", QUEUE, 6).is_err());
    store.write_offsets().unwrap();
    let length = bench.memory.len("config/consumerOffset.json").unwrap().unwrap();
    let offsets = bench.read("config/consumerOffset.json", 0, usize::try_from(length).unwrap());
    before.memory.create_dir("config").unwrap();
    before.memory.open("config/consumerOffset.json", OpenMode::Create).unwrap().write_at(&offsets, 0).unwrap();
    let store = before.open();
    assert_eq!(store.consumer_offset("orders", "readers", QUEUE).unwrap(), Some(0));
    assert!(store.open_report().warnings.iter().any(|warning| warning.contains("readers")));
}

#[test]
fn a_close_writes_the_offsets_over_what_a_broker_put_back() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    send(&store, "orders", b"one").unwrap();
    store.set_consumer_offset("orders", "readers", QUEUE, 1).unwrap();
    store.write_offsets().unwrap();
    let stale = br#"{"offsetTable":{"orders@readers":{0:0}}}"#;
    let file = bench.memory.open("config/consumerOffset.json", OpenMode::Write).unwrap();
    file.set_len(u64::try_from(stale.len()).unwrap()).unwrap();
    file.write_at(stale, 0).unwrap();
    store.close().unwrap();
    assert_eq!(bench.open().consumer_offset("orders", "readers", QUEUE).unwrap(), Some(1));
}

#[test]
fn p1_a_second_writer_is_refused_at_once() {
    let bench = Bench::sync();
    let store = bench.open();
    let error = bench.try_open().unwrap_err();
    // Storage in memory names the opening process, so that no test depends on its own process.
    assert!(matches!(error, Error::StoreLocked { pid: Some(1), .. }), "{error}");
    send(&store, "orders", b"continues").unwrap();
    store.close().unwrap();
    bench.open();
}

#[test]
fn an_index_file_that_a_broker_could_not_map_is_refused_before_anything_is_made() {
    for (slots, entries) in [(None, Some(107_000_000)), (Some(500_000_000), Some(20_000_000))] {
        let bench = Bench::sync().with(|options| (options.max_hash_slot_num, options.max_index_num) = (slots, entries));
        let refused = bench.try_open().unwrap_err();
        assert!(
            matches!(&refused, Error::InvalidOption { what, .. } if what.contains("at most 2147483647")),
            "{refused}"
        );
        assert!(bench.files().is_empty());
    }
}

/// A caller that asks for many messages gets few large ones at a time: 4 MiB and what the last one has more.
#[test]
fn a_read_is_limited_in_bytes() {
    let bench = Bench::new(FlushDiskType::Async).with(|options| options.commit_log_file_size = Some(16 << 20));
    let store = bench.open();
    let body = vec![7; 3 << 19];
    let sent: Vec<_> = (0..5).map(|_| send(&store, "t", &body).unwrap().physical_offset).collect();
    let offsets =
        |found: &[StoredRecord]| found.iter().map(|record| record.view().unwrap().physical_offset).collect::<Vec<_>>();
    let (scanned, next) = store.scan(PhysicalOffset(0), 100).unwrap();
    assert_eq!((offsets(&scanned), next), (sent[..3].to_vec(), sent[3]));
    let (rest, _) = store.scan(next, 100).unwrap();
    assert_eq!(offsets(&rest), sent[3..]);
    let found = store.query("t", "k", 100).unwrap();
    assert_eq!(offsets(&found), [sent[4], sent[3], sent[2]]);
}
