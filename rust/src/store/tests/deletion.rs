//! A deleted topic's messages stay deleted, whatever is rebuilt. Its queues continue after them.

use super::*;
use crate::storage::Storage;
use crate::storage::memory::FaultKind;

const FILE: u64 = 4 << 10;

fn range(store: &Store, topic: &str) -> (u64, u64) {
    store.queue_range(topic, QUEUE).unwrap()
}

fn topics(store: &Store) -> Vec<String> {
    store.queues().unwrap().into_iter().map(|(topic, ..)| topic).collect()
}

/// Returns the bodies left in a topic's queues.
fn left(store: &Store, topic: &str) -> Vec<Vec<u8>> {
    let (records, _) = store.read(topic, QUEUE, QueueOffset(range(store, topic).0), usize::MAX, None).unwrap();
    records.iter().map(|record| record.view().unwrap().body.to_vec()).collect()
}

fn twenty_and_a_neighbour() -> (Bench, Store) {
    let bench = Bench::sync();
    let store = bench.open();
    for number in 0..20_u8 {
        send(&store, "old", &[number]).unwrap();
        send(&store, "kept", &[number]).unwrap();
    }
    (bench, store)
}

#[test]
fn a_deleted_topic_stays_deleted_after_every_end_and_continues_after_its_messages() {
    let (bench, store) = twenty_and_a_neighbour();
    store.snapshot().unwrap();
    assert_eq!(store.delete_queues("old").unwrap(), 20);
    let check = |store: &Store, about: &str| {
        assert_eq!(topics(store), ["kept"], "{about}");
        assert_eq!(range(store, "old"), (20, 20), "{about}");
        assert_eq!(store.query("old", "k", usize::MAX).unwrap().len(), 0, "{about}");
        assert_eq!(left(store, "kept").len(), 20, "{about}");
        assert_eq!(store.scan(PhysicalOffset(0), usize::MAX).unwrap().0.len(), 40, "{about}: the log keeps them");
    };
    check(&store, "at once");
    assert_eq!(store.delete_queues("old").unwrap(), 0, "a second call removes nothing");
    let files = bench.memory.list("consumequeue/old/0").unwrap().unwrap();
    assert_eq!(files.len(), 1, "the last one says where the queue continues");
    for without in ["", "txstore/snapshot", "consumequeue", "index", "checkpoint"] {
        for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
            let bench = bench.crashed(7, keep);
            match without {
                "" => {}
                "consumequeue" | "index" => bench.memory.remove_dir(without).unwrap(),
                file => drop(bench.memory.unlink(file)),
            }
            check(&bench.read_only(), without);
            let store = bench.open();
            check(&store, without);
            assert_eq!(send(&store, "old", b"new").unwrap().queue_offset, QueueOffset(20));
            assert_eq!((left(&store, "old"), topics(&store).len()), (vec![b"new".to_vec()], 2));
            assert_eq!(store.query("old", "k", usize::MAX).unwrap().len(), 1);
            store.close().unwrap();
            bench.memory.remove_dir("consumequeue").unwrap();
            assert_eq!(left(&bench.open(), "old"), [b"new"], "{without}: built again from the log alone");
        }
    }
}

#[test]
fn what_lost_power_took_does_not_hide_what_comes_later() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    send(&store, "old", b"0").unwrap();
    store.delete_queues("old").unwrap();
    let bench = bench.crashed(3, CrashKeep::PowerLoss);
    let store = bench.open();
    assert_eq!(range(&store, "old"), (1, 1), "deleting waits for the disk");
    // A mark can still be ahead if the log was exchanged:
    store.close().unwrap();
    let mut settings = crate::storage::settings::Settings::load(&bench.memory).unwrap().unwrap();
    settings.deleted[0].below = 9;
    settings.store(&bench.memory).unwrap();
    let store = bench.open();
    assert_eq!(send(&store, "old", b"1").unwrap().queue_offset, QueueOffset(1));
    assert_eq!(left(&store, "old"), [b"1"]);
    assert_eq!(left(&bench.killed().open(), "old"), [b"1"]);
}

#[test]
fn a_mark_goes_when_the_log_has_nothing_of_the_topic_any_more() {
    let (bench, store) = twenty_and_a_neighbour();
    store.delete_queues("old").unwrap();
    let marks = |bench: &Bench| crate::storage::settings::Settings::load(&bench.memory).unwrap().unwrap().deleted.len();
    store.close().unwrap();
    assert_eq!(marks(&bench), 1);
    let store = bench.open();
    while appended(&store) < 6 * FILE {
        send(&store, "kept", &[7; 400]).unwrap();
    }
    store.remove_log_files(PhysicalOffset(u64::MAX), false).unwrap();
    store.close().unwrap();
    let store = bench.open();
    assert_eq!(marks(&bench), 0);
    assert_eq!(range(&store, "old"), (20, 20), "its last file says where it continues");
}

#[test]
fn a_reader_in_another_process_sees_it_go() {
    let directory = tempfile::tempdir().unwrap();
    let open = |read_only| {
        let options = StoreOptions { read_only, ..Bench::sync().options };
        Store::open(directory.path(), options).unwrap()
    };
    let writer = open(false);
    for number in 0..20_u8 {
        send(&writer, "old", &[number]).unwrap();
    }
    writer.close().unwrap();
    let writer = open(false);
    let (reader, lazy) = (open(true), open(true));
    assert_eq!(topics(&reader), ["old"]);
    writer.delete_queues("old").unwrap();
    assert!(topics(&reader).is_empty());
    assert!(
        lazy.read("old", QUEUE, QueueOffset(0), 1, None).is_ok(),
        "what it has open stays readable, until it looks"
    );
    assert!(lazy.query("old", "k", 1).unwrap().is_empty());
    let gone = lazy.read("old", QUEUE, QueueOffset(0), 1, None);
    assert!(matches!(gone, Err(Error::OffsetTooOld { minimum: 20, .. })), "{gone:?}");
}

#[test]
fn the_systems_topics_are_refused() {
    let store = Bench::sync().open();
    assert!(matches!(store.delete_queues(crate::base::names::HALF_TOPIC), Err(Error::InvalidName { .. })));
}

/// Each call of a deletion fails, or is the last one before the process is killed or the power is lost.
#[test]
fn a_crash_in_any_call_of_a_deletion_leaves_the_topic_whole_or_gone() {
    for kind in [FaultKind::Stop, FaultKind::Io, FaultKind::NoSpace] {
        let mut through = false;
        for call in 1.. {
            let (bench, store) = twenty_and_a_neighbour();
            bench.memory.fail_at(bench.memory.calls() + call, kind, kind == FaultKind::Stop);
            through = store.delete_queues("old").is_ok();
            if kind != FaultKind::Stop {
                bench.memory.clear_fault();
            }
            for (seed, keep) in [(0, CrashKeep::PageCache), (1, CrashKeep::PowerLoss), (2, CrashKeep::PowerLoss)] {
                let bench = bench.crashed(seed, keep);
                let about = format!("{kind:?} in call {call}, {keep:?}");
                let store = bench.try_open().unwrap_or_else(|error| panic!("{about}: {error}"));
                let (first, end) = range(&store, "old");
                assert!(end == 20 && (first == 20 || (first == 0 && !through)), "{about}: {first}..{end}");
                assert_eq!(
                    (left(&store, "old").len(), left(&store, "kept").len()),
                    (20 - usize::try_from(first).unwrap(), 20)
                );
                store.delete_queues("old").unwrap();
                assert_eq!(range(&store, "old"), (20, 20), "{about}");
            }
            drop(store);
            if through {
                assert!(call > 5, "{kind:?}: only {call} calls");
                break;
            }
        }
        assert!(through);
    }
}
