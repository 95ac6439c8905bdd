//! A store that a broker wrote ends where that broker's log ends. Bytes that the broker left after its end
//! are not a message, and a missing message is an error.

use super::*;
use crate::base::units::to_u64;
use crate::repair::{DamageKind, Examination, Examiner, mend};
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoint;

const LOG: &str = "commitlog/00000000000000000000";
const FILE: u64 = 4 << 10;
const QUEUE_FILE: &str = "consumequeue/orders/0/00000000000000000000";

/// A store with three records of txstore, then five of a broker, ten seconds apart.
struct Brokers {
    bench: Bench,
    sent: Vec<Sent>,
}

impl Brokers {
    fn write() -> Self {
        Self::write_to(Bench::new(FlushDiskType::Async), 2)
    }

    /// As `write`, with bodies of so many bytes.
    fn write_to(bench: Bench, body_bytes: usize) -> Self {
        let store = bench.open();
        (0..3).for_each(|_| drop(send(&store, "orders", b"ours").unwrap()));
        store.close().unwrap();
        // A broker appends the bytes that txstore would append, and changes no file of txstore's own.
        let before: Vec<_> = bench.files().into_iter().filter(|(path, _)| path.starts_with("txstore/")).collect();
        let store = bench.open();
        let mut sent = Vec::new();
        for number in 0..5_u8 {
            bench.clock.advance(10_000);
            let mut body = vec![b'.'; body_bytes];
            body[..2].copy_from_slice(&[b'b', b'0' + number]);
            sent.push(send(&store, "orders", &body).unwrap());
        }
        store.close().unwrap();
        for (path, bytes) in &before {
            let file = bench.memory.open(path, OpenMode::Create).unwrap();
            file.set_len(to_u64(bytes.len())).unwrap();
            file.write_at(bytes, 0).unwrap();
        }
        Self { bench, sent }
    }

    fn was_killed(&self) {
        self.bench.memory.open("abort", OpenMode::Create).unwrap().write_at(b"1", 0).unwrap();
    }

    /// Sets the checkpoint to the record of this number.
    fn is_known_up_to(&self, number: u64) {
        let stored_ms = 1_700_000_000_000 + 10_000 * (i64::try_from(number).unwrap() + 1);
        let known = Checkpoint { physic_ms: stored_ms, logics_ms: stored_ms, ..Checkpoint::default() };
        Checkpoint::store(&self.bench.memory, &known).unwrap();
    }

    /// Overwrites the broker's record of this number with zeros, or other bytes.
    fn damage(&self, number: usize, byte: u8) -> u64 {
        let (at, size) = (self.sent[number].physical_offset.0, self.sent[number].size);
        self.bench.write(LOG, at, &vec![byte; usize::try_from(size).unwrap()]);
        at
    }

    fn examine(&self) -> Examination {
        Examiner::begin(Arc::new(self.bench.memory.clone())).unwrap().finish().unwrap()
    }
}

fn texts(store: &Store) -> Vec<String> {
    bodies(store, "orders", 0).iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()
}

/// L7, L8: zeros in the middle of what a broker wrote are damage, like any other bytes.
#[test]
fn l7_zeros_in_a_brokers_range_are_damage() {
    for (clean, byte) in [(true, 0), (false, 0), (true, 0xEE), (false, 0xEE)] {
        let brokers = Brokers::write();
        if !clean {
            brokers.was_killed();
        }
        let at = brokers.damage(1, byte);
        let before = brokers.bench.files();
        for read_only in [true, false] {
            let options = StoreOptions { read_only, ..brokers.bench.options.clone() };
            let storage = Arc::new(brokers.bench.memory.clone());
            match Store::open_with(storage, brokers.bench.clock.clone(), options).map(|store| texts(&store)) {
                Err(Error::StoreCorrupt { offset, .. }) => assert_eq!(offset, at, "clean {clean}, {byte:#x}"),
                other => panic!("clean {clean}, byte {byte:#x}, read-only {read_only}: {other:?}"),
            }
        }
        let log = |files: Vec<(String, Vec<u8>)>| files.into_iter().find(|(path, _)| path == LOG).unwrap();
        assert_eq!(log(brokers.bench.files()), log(before), "nothing is cut");
    }
}

/// Lost power left old bytes in the first half of a blank record's size, because the next sector begins there. The broker
/// itself reads only the magic number after it, and continues in the next file (seed 77010703 of the simulation).
#[test]
fn l8_a_brokers_blank_record_of_another_size_ends_its_file() {
    for killed in [false, true] {
        let bench = Bench::new(FlushDiskType::Async).with(|options| options.commit_log_file_size = Some(FILE));
        let brokers = Brokers::write_to(bench, 900);
        if killed {
            brokers.was_killed();
        }
        let first: Vec<_> = brokers.sent.iter().filter(|sent| sent.physical_offset.0 < FILE).collect();
        assert!((1..5).contains(&first.len()), "the broker wrote to two files");
        let last = first.last().unwrap();
        brokers.bench.write(LOG, last.physical_offset.0 + u64::from(last.size), b"bb");
        assert!(brokers.examine().damages.is_empty(), "killed {killed}");
        let store = brokers.bench.open();
        let found: Vec<_> = texts(&store).iter().map(|text| text.trim_end_matches('.').to_owned()).collect();
        assert_eq!(found, ["ours", "ours", "ours", "b0", "b1", "b2", "b3", "b4"], "killed {killed}");
    }
}

/// The last record of a stopped broker is zeros. Only its queue and the checkpoint prove that it existed.
#[test]
fn l7_a_brokers_last_record_in_zeros_is_damage() {
    for with_snapshot in [true, false] {
        let brokers = Brokers::write();
        if !with_snapshot {
            brokers.bench.memory.unlink("txstore/snapshot").unwrap();
        }
        let at = brokers.damage(4, 0);
        match brokers.bench.try_open().map(|store| texts(&store)) {
            Err(Error::StoreCorrupt { offset, .. }) => assert_eq!(offset, at),
            other => panic!("with snapshot {with_snapshot}: {other:?}"),
        }
    }
}

/// A broker lost record 2 in a power loss, and ended its log before it. It zeroes nothing: in log and queue the records
/// after it still exist, or parts of them. No reader sees them again.
#[test]
fn l3_what_a_broker_has_cut_does_not_come_back() {
    let expected = ["ours", "ours", "ours", "b0", "b1"];
    for clean in [true, false] {
        for (what, byte) in [("a hole", 0), ("torn bytes", 0xEE)] {
            let brokers = Brokers::write();
            let about = format!("clean {clean}, {what}");
            brokers.is_known_up_to(1);
            if !clean {
                brokers.was_killed();
            }
            let end = brokers.damage(2, byte);
            let found = brokers.examine();
            assert!(found.damages.is_empty(), "{about}: {found:?}");
            assert_eq!((found.end, found.torn.map(|(from, _)| from)), (end, Some(end)), "{about}");
            let reader = brokers.bench.read_only();
            assert_eq!((texts(&reader), appended(&reader)), (expected.map(String::from).to_vec(), end), "{about}");
            let store = brokers.bench.open();
            let warnings = &store.open_report().warnings;
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert_eq!(warnings[0].contains("zeros, and other bytes"), byte == 0, "{about}: {warnings:?}");
            assert_eq!(texts(&store), expected, "{about}");
            assert_eq!(brokers.bench.read(LOG, end, 500), [0; 500], "{about}: the log is zeros after its end");
            assert_eq!(brokers.bench.read(QUEUE_FILE, 5 * 20, 60), [0; 60], "{about}: so is the queue");
            send(&store, "orders", b"new").unwrap();
            store.close().unwrap();
            let store = brokers.bench.open();
            assert_eq!(store.open_report().warnings, [""; 0], "{about}");
            assert_eq!(texts(&store), [&expected[..], &["new"]].concat(), "{about}");
        }
    }
}

/// A broker lost its last record in a power loss, and ended its log before it. Its queue still has the entry.
#[test]
fn l3_an_entry_that_a_broker_left_after_the_end_of_its_log_is_cut() {
    for with_snapshot in [true, false] {
        let brokers = Brokers::write();
        brokers.is_known_up_to(3);
        if !with_snapshot {
            brokers.bench.memory.unlink("txstore/snapshot").unwrap();
        }
        let end = brokers.damage(4, 0);
        assert!(brokers.examine().damages.is_empty());
        let expected = ["ours", "ours", "ours", "b0", "b1", "b2", "b3"];
        assert_eq!(texts(&brokers.bench.read_only()), expected);
        let store = brokers.bench.open();
        assert_eq!((&texts(&store)[..], appended(&store)), (&expected.map(String::from)[..], end));
        assert_eq!(brokers.bench.read(QUEUE_FILE, 7 * 20, 20), [0; 20]);
    }
}

/// The broker has continued since: its newest record is after the cut, and old bytes follow it.
#[test]
fn stale_bytes_after_a_brokers_newest_record_are_not_damage() {
    let brokers = Brokers::write();
    // The last record was written over a longer one.
    let end = brokers.sent[4].physical_offset.0 + u64::from(brokers.sent[4].size);
    brokers.bench.write(LOG, end, &[0xEE; 80]);
    // A queue without records still has an entry that points after the end.
    let entry =
        crate::index::consume_queue::Entry { physical_offset: PhysicalOffset(end + 40), size: 120, tags_code: 0 };
    brokers.bench.memory.create_dir("consumequeue/silent/0").unwrap();
    let silent = brokers.bench.memory.open("consumequeue/silent/0/00000000000000000000", OpenMode::Create).unwrap();
    silent.set_len(160).unwrap();
    silent.write_at(&entry.to_bytes(), 0).unwrap();
    brokers.bench.memory.unlink("txstore/snapshot").unwrap();
    assert!(brokers.examine().damages.is_empty());
    assert_eq!(appended(&brokers.bench.read_only()), end);
    let store = brokers.bench.open();
    assert_eq!((texts(&store).len(), appended(&store)), (8, end));
    assert_eq!(send(&store, "silent", b"first").unwrap().queue_offset, QueueOffset(0));
    store.close().unwrap();
    assert_eq!(brokers.bench.read(LOG, end + 400, 80), [0; 80]);
}

/// A repair of damage before the broker's end does not restore what the broker has cut.
#[test]
fn l3_a_repair_does_not_bring_back_what_a_broker_has_cut() {
    let brokers = Brokers::write();
    brokers.is_known_up_to(2);
    brokers.was_killed();
    let hole = brokers.damage(0, 0);
    let end = brokers.damage(3, 0xEE);
    let found = brokers.examine();
    assert_eq!(
        found.damages.iter().map(|damage| (damage.kind, damage.from)).collect::<Vec<_>>(),
        [(DamageKind::Bad, hole)]
    );
    assert_eq!((found.end, found.lost_count), (end, 1), "{found:?}");
    let storage: Arc<dyn Storage> = Arc::new(brokers.bench.memory.clone());
    mend(&storage, &brokers.bench.memory, "txstore/repair-1", &found).unwrap();
    let store = brokers.bench.open();
    assert_eq!(texts(&store), ["ours", "ours", "ours", "b1", "b2"]);
}

/// While a reader opens a closed store a writer opens it, stores a record, and is in the middle of the next one.
#[test]
fn a_reader_that_opens_while_a_writer_opens_reads_what_the_writer_shows() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"old").unwrap();
    store.close().unwrap();
    let writer: Arc<std::sync::Mutex<Option<Store>>> = Arc::default();
    let (kept, memory, clock) = (Arc::clone(&writer), bench.memory.clone(), Arc::clone(&bench.clock));
    let options = bench.options.clone();
    bench.memory.once_before("checkpoint", move || {
        let store = Store::open_with(Arc::new(memory.clone()), clock, options).unwrap();
        send(&store, "orders", b"new").unwrap();
        let file = memory.open(LOG, OpenMode::Write).unwrap();
        let mut head = vec![0; 60];
        file.read_at(&mut head, 0).unwrap();
        file.write_at(&head, appended(&store)).unwrap();
        *kept.lock().unwrap() = Some(store);
    });
    let options = StoreOptions { read_only: true, ..bench.options.clone() };
    let reader = Store::open_with(Arc::new(bench.memory.clone()), bench.clock.clone(), options).unwrap();
    assert!(writer.lock().unwrap().is_some(), "the writer opened meanwhile");
    let report = reader.open_report();
    assert_eq!((report.truncated_bytes, &report.warnings[..]), (0, &[][..]), "the next record is not a torn one");
    assert_eq!(texts(&reader), ["old", "new"]);
}
