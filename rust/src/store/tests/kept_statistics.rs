//! The statistics of full log files are what a count of all records finds, whatever happened to the store since they
//! were written.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::recovery::log_view::{Log, StatisticsFiles, Tally};
use crate::storage::Storage;
use crate::storage::memory::FaultKind;
use crate::storage::segment::SegmentQueue;

const FILE: u64 = 4 << 10;
const DIRECTORY: &str = "txstore/statistics";

impl Bench {
    fn log(&self) -> Log {
        Log::open_with(Arc::new(self.memory.clone())).unwrap()
    }

    /// Returns which log files have statistics.
    fn kept(&self) -> Vec<u64> {
        SegmentQueue::files(&self.memory, DIRECTORY).unwrap().into_iter().map(|(base, _)| base).collect()
    }

    /// Returns the counts, which are those of all records.
    fn tally(&self) -> Vec<Tally> {
        let found = self.log().tally(None).unwrap();
        assert_eq!(found, self.log().tally_of_records().unwrap());
        found
    }

    /// Replaces the counts in a file of statistics by others that are as whole.
    fn forge(&self, file: u64) {
        let path = format!("{DIRECTORY}/{file:020}");
        let mut bytes = self.read(&path, 0, usize::try_from(self.memory.len(&path).unwrap().unwrap()).unwrap());
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let crc = crc32fast::hash(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        self.write(&path, 0, &bytes);
    }

    fn is_forged(&self) -> bool {
        self.log().tally(None).unwrap() != self.log().tally_of_records().unwrap()
    }
}

/// Sends messages and transactions until the log has a number of files.
fn fill(bench: &Bench, store: &Store, files: u64) {
    for number in 0_u8.. {
        if appended(store) > (files - 1) * FILE + 100 {
            break;
        }
        bench.clock.advance(7);
        send(store, if number % 3 == 0 { "orders" } else { "payments" }, &[number; 300]).unwrap();
        if number % 4 == 0 {
            let half = prepare(store, &[number; 50]);
            end(store, &half, if number % 8 == 0 { EndKind::Commit } else { EndKind::RollBack }).unwrap();
        }
    }
}

#[test]
fn a_snapshot_keeps_them_and_a_reader_does_not_count_again() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 3);
    let counted = bench.tally();
    store.snapshot().unwrap();
    assert_eq!(bench.kept(), [0, FILE], "the last file is not full");
    assert_eq!(bench.tally(), counted);
    for file in [0, FILE] {
        bench.forge(file);
        assert!(bench.is_forged(), "or they are not read");
        bench.memory.unlink(&format!("{DIRECTORY}/{file:020}")).unwrap();
    }
    assert_eq!(bench.tally(), counted);
}

#[test]
fn a_close_keeps_those_of_the_files_that_were_filled_since_the_opening() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 3);
    store.close().unwrap();
    assert_eq!(bench.kept(), [0, FILE]);
    bench.memory.remove_dir(DIRECTORY).unwrap();
    let store = bench.open();
    fill(&bench, &store, 5);
    store.close().unwrap();
    assert_eq!(bench.kept(), [2 * FILE, 3 * FILE]);
    let store = bench.open();
    store.snapshot().unwrap();
    assert_eq!(bench.kept(), [0, FILE, 2 * FILE, 3 * FILE]);
    bench.tally();
    // Nothing is written again.
    let calls = bench.memory.calls();
    store.snapshot().unwrap();
    assert_eq!(bench.memory.calls(), calls);
}

#[test]
fn a_long_log_gets_them_over_several_calls_the_newest_first() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 11);
    for kept in [4, 8, 10, 10] {
        store.snapshot().unwrap();
        assert_eq!(bench.kept(), (10 - kept..10).map(|file| file * FILE).collect::<Vec<_>>());
        bench.tally();
    }
}

#[test]
fn any_flipped_byte_means_that_the_file_is_counted() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 2);
    store.close().unwrap();
    let counted = bench.tally();
    let path = format!("{DIRECTORY}/{:020}", 0);
    let whole = bench.read(&path, 0, usize::try_from(bench.memory.len(&path).unwrap().unwrap()).unwrap());
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        bench.write(&path, 0, &bytes);
        assert_eq!(bench.tally(), counted, "{at}");
        bench.memory.open(&path, OpenMode::Write).unwrap().set_len(u64::try_from(at).unwrap()).unwrap();
        assert_eq!(bench.tally(), counted, "{at} bytes");
        bench.write(&path, 0, &whole);
    }
    let store = bench.open();
    bench.write(&path, 20, b"!");
    store.snapshot().unwrap();
    assert_eq!(bench.read(&path, 0, whole.len()), whole, "and the next writer counts, too");
}

#[test]
fn another_log_file_means_that_it_is_counted() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 2);
    store.close().unwrap();
    bench.forge(0);
    assert!(bench.is_forged());
    // Another process cut the first file before its last record, and wrote on.
    let path = format!("commitlog/{:020}", 0);
    let last = bench.log().last_before(FILE).unwrap().unwrap().physical_offset;
    let record = bench.read(&path, last, usize::try_from(FILE - last).unwrap());
    let size = usize::try_from(u32::from_be_bytes(record[..4].try_into().unwrap())).unwrap();
    let files = StatisticsFiles::of_store(Arc::new(bench.memory.clone()));
    for at in [0, 30, size / 2, size - 1] {
        let mut other = record.clone();
        other[at] ^= 0x41;
        bench.write(&path, last, &other);
        assert!(bench.log().kept(&files, 0).is_none(), "{at} of {size}");
    }
    // Where the blank record was, there is a small one now.
    let mut other = record.clone();
    other[size + 3] ^= 0x41;
    bench.write(&path, last, &other);
    assert!(bench.log().kept(&files, 0).is_none());
    bench.write(&path, last, &record);
    assert!(bench.log().kept(&files, 0).is_some());
}

#[test]
fn they_go_with_the_log_files() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 5);
    store.snapshot().unwrap();
    store.remove_log_files(PhysicalOffset(2 * FILE), false).unwrap();
    bench.tally();
    store.snapshot().unwrap();
    assert_eq!(bench.kept(), [2 * FILE, 3 * FILE]);
    bench.tally();
    store.remove_log_files(PhysicalOffset(3 * FILE), false).unwrap();
    store.close().unwrap();
    assert_eq!(bench.kept(), [3 * FILE]);
    bench.tally();
}

#[test]
fn a_topic_that_was_deleted_stays_counted_while_its_records_are_there() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&bench, &store, 3);
    let before = bench.tally();
    store.delete_queues("payments").unwrap();
    store.snapshot().unwrap();
    assert_eq!(bench.tally(), before);
    fill(&bench, &store, 5);
    store.close().unwrap();
    assert_eq!(bench.kept(), [0, FILE, 2 * FILE, 3 * FILE]);
    bench.tally();
    // A broker takes over, and this store is opened again.
    bench.memory.remove_dir("txstore").unwrap();
    bench.memory.remove_dir("consumequeue").unwrap();
    bench.tally();
    let store = bench.open();
    store.snapshot().unwrap();
    assert_eq!(bench.kept(), [0, FILE, 2 * FILE, 3 * FILE]);
    bench.tally();
}

#[test]
fn a_crash_at_any_call_leaves_no_wrong_ones() {
    let most = AtomicUsize::new(0);
    for call in 1.. {
        let bench = Bench::sync();
        let store = bench.open();
        fill(&bench, &store, 4);
        bench.memory.fail_at(bench.memory.calls() + call, FaultKind::Stop, true);
        let is_done = store.snapshot().is_ok() && store.close().is_ok() && bench.kept().len() == 3;
        for (seed, keep) in [(0, CrashKeep::PageCache), (call, CrashKeep::PowerLoss)] {
            let crashed = bench.crashed(seed, keep);
            most.fetch_max(crashed.kept().len(), Ordering::Relaxed);
            let store = crashed.open();
            crashed.tally();
            store.close().unwrap();
            crashed.tally();
        }
        if is_done {
            break;
        }
    }
    assert_eq!(most.into_inner(), 3, "otherwise nothing was tried");
}

#[test]
fn a_full_disk_fails_no_snapshot_because_of_them() {
    let mut without = 0;
    for call in 1.. {
        let bench = Bench::sync();
        let store = bench.open();
        fill(&bench, &store, 3);
        bench.memory.fail_at(bench.memory.calls() + call, FaultKind::NoSpace, false);
        let is_ok = store.snapshot().is_ok();
        if is_ok && bench.kept().len() == 2 {
            break;
        }
        if is_ok {
            without += 1;
            send(&store, "orders", b"17").unwrap();
            bench.tally();
        }
        let _ = store.close();
        bench.tally();
    }
    assert!(without > 0, "otherwise nothing was tried");
}
