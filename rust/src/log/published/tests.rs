//! The ends that another process sees, and headers that it must reject.

use super::*;
use crate::storage::disk::Disk;
use crate::storage::memory::{FaultKind, Memory};

fn disk() -> (tempfile::TempDir, Disk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    (dir, disk)
}

#[test]
fn a_reader_sees_what_the_writer_sets() {
    let (_dir, disk) = disk();
    assert!(Published::open(&disk).unwrap().is_none());
    let writer = Published::create(&disk).unwrap();
    let reader = Published::open(&disk).unwrap().unwrap();
    writer.set_appended(PhysicalOffset(1));
    writer.set_durable(PhysicalOffset(2));
    writer.set_dispatched(PhysicalOffset(3));
    writer.set_minimum(PhysicalOffset(u64::MAX));
    let seen = [reader.appended(), reader.durable(), reader.dispatched(), reader.minimum()];
    assert_eq!(seen, [1, 2, 3, u64::MAX].map(PhysicalOffset));
    writer.sync().unwrap();
    drop((writer, reader));
    assert_eq!(Published::create(&disk).unwrap().durable(), PhysicalOffset(2));
}

#[test]
fn a_change_is_seen_by_its_epoch() {
    let (_dir, disk) = disk();
    let writer = Published::create(&disk).unwrap();
    let reader = Published::open(&disk).unwrap().unwrap();
    assert_eq!(reader.epoch(), 1, "a new file is not to be believed before its writer has opened the store");
    writer.begin_change().unwrap();
    assert_eq!((reader.epoch(), reader.is_still(0), reader.is_still(3)), (3, false, false));
    writer.end_change();
    writer.end_change();
    assert_eq!((reader.epoch(), reader.is_still(4), reader.is_still(0)), (4, true, false));
    writer.begin_change().unwrap();
    assert_eq!((reader.epoch(), reader.is_still(4)), (5, false));
}

#[test]
fn a_page_that_is_cleared_stays_the_same_file_and_has_another_epoch() {
    let (_dir, disk) = disk();
    assert!(!Published::clear(&disk).unwrap());
    let writer = Published::create(&disk).unwrap();
    writer.begin_change().unwrap();
    writer.end_change();
    writer.set_appended(PhysicalOffset(9));
    let reader = Published::open(&disk).unwrap().unwrap();
    let before = reader.epoch();
    assert!(Published::clear(&disk).unwrap());
    assert_eq!((reader.appended(), reader.epoch()), (PhysicalOffset(0), before + 1));
}

#[test]
fn the_header_is_these_bytes() {
    let crc = crc32fast::hash(b"TXSPUBLI\x01\0\0\0").to_le_bytes();
    assert_eq!(header()[..12], *b"TXSPUBLI\x01\0\0\0");
    assert_eq!((&header()[12..16], &header()[16..]), (&crc[..], &[0; 48][..]));
}

#[test]
fn a_bad_header_is_not_believed_and_is_written_again() {
    let (_dir, disk) = disk();
    let writer = Published::create(&disk).unwrap();
    writer.set_appended(PhysicalOffset(9));
    let file = disk.open(PATH, OpenMode::Write).unwrap();
    for byte in 0..64 {
        let mut was = [0];
        file.read_at(&mut was, byte).unwrap();
        file.write_at(&[was[0] ^ 4], byte).unwrap();
        assert!(Published::open(&disk).unwrap().is_none(), "{byte}");
        file.write_at(&was, byte).unwrap();
    }
    assert_eq!(Published::create(&disk).unwrap().appended(), PhysicalOffset(9));
    file.write_at(b"?", 0).unwrap();
    assert_eq!(Published::create(&disk).unwrap().appended(), PhysicalOffset(0));
    drop(writer);
    file.set_len(127).unwrap();
    assert!(Published::open(&disk).unwrap().is_none());
    assert!(Published::create(&disk).is_ok() && Published::open(&disk).unwrap().is_some());
}

#[test]
fn what_a_failed_sync_dropped_is_made_durable_by_the_next() {
    // What a failed sync drops differs with the number of calls before it.
    for (before, call) in (0..16).flat_map(|before| (1..9).map(move |call| (before, call))) {
        let memory = Memory::new();
        for _ in 0..before {
            memory.create_dir(DIR).unwrap();
        }
        memory.fail_at(memory.calls() + call, FaultKind::Io, false);
        if Published::create(&memory).is_ok() {
            continue;
        }
        let writer = Published::create(&memory).unwrap();
        writer.set_durable(PhysicalOffset(7));
        writer.sync().unwrap();
        memory.sync_dir("").unwrap();
        memory.sync_dir(DIR).unwrap();
        let reader = Published::open(&memory.lose_power(|_| 0)).unwrap();
        assert_eq!(reader.map(|reader| reader.durable()), Some(PhysicalOffset(7)), "call {call} after {before} failed");
    }
}
