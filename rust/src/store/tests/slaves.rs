//! A slave of RocketMQ: it takes each byte that it is sent, so what is sent must be what it may have.

use super::replicas::Chance;
use super::*;

const FILE: u64 = 4 << 10;

/// A log of several files, with records of many sizes.
fn filled(store: &Store) -> u64 {
    let mut chance = Chance(28);
    while appended(store) < 5 * FILE {
        let length = usize::try_from(chance.below(900)).unwrap();
        send(store, "orders", &vec![b'x'; length]).unwrap();
    }
    appended(store)
}

/// Returns where each record begins and ends.
fn records(store: &Store) -> Vec<(u64, u64)> {
    let (found, _) = store.read("orders", QUEUE, QueueOffset(0), usize::MAX, None).unwrap();
    let range = |record: &StoredRecord| {
        let view = record.view().unwrap();
        (view.physical_offset.0, view.physical_offset.0 + u64::from(view.size))
    };
    found.iter().map(range).collect()
}

#[test]
fn pieces_of_any_size_are_the_whole_log_and_none_goes_over_the_end_of_a_file() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let end = filled(&store);
    let whole: Vec<u8> = (0..end.div_ceil(FILE))
        .flat_map(|file| bench.read(&format!("commitlog/{:020}", file * FILE), 0, usize::try_from(FILE).unwrap()))
        .collect();
    for piece_max in [1, 37, 1_000, 4_095, 4_096, 4_097, 1 << 20] {
        let (mut at, mut copied) = (0, Vec::new());
        loop {
            let piece = store.copy_visible(PhysicalOffset(at), piece_max).unwrap();
            if piece.is_empty() {
                break;
            }
            let length = u64::try_from(piece.len()).unwrap();
            assert!(piece.len() <= piece_max && at / FILE == (at + length - 1) / FILE, "{at} {length} {piece_max}");
            at += length;
            copied.extend(piece);
        }
        assert_eq!(at, end, "pieces of {piece_max}");
        assert!(copied == whole[..copied.len()], "pieces of {piece_max}");
    }
}

#[test]
fn no_byte_is_sent_that_readers_do_not_see() {
    let bench = Bench::sync().with(|options| options.role = Role::Source);
    let store = bench.open();
    send(&store, "orders", b"1").unwrap();
    let first = store.appended_end();
    send(&store, "orders", b"2").unwrap();
    let copied = |from: u64| u64::try_from(store.copy_visible(PhysicalOffset(from), 1 << 20).unwrap().len()).unwrap();
    assert_eq!(copied(0), 0);
    store.show_up_to(first);
    assert_eq!((copied(0), copied(first.0), copied(first.0 + 1)), (first.0, 0, 0));
    store.show_up_to(store.appended_end());
    assert_eq!(copied(first.0), store.appended_end().0 - first.0);
}

#[test]
fn what_is_not_synced_is_not_sent_with_sync_flush() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"1").unwrap();
    let durable = store.durable_end().0;
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"2", queue_id: QUEUE };
    let _waiting = store.append(&[message], Wait::No).unwrap();
    assert!(store.appended_end().0 > durable);
    assert_eq!(store.copy_visible(PhysicalOffset(durable), 1 << 20).unwrap(), b"");
    store.flush().unwrap();
    assert!(!store.copy_visible(PhysicalOffset(durable), 1 << 20).unwrap().is_empty());
}

#[test]
fn an_offset_that_retention_removed_is_an_error() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let end = filled(&store);
    drop(store);
    bench.memory.unlink(&format!("commitlog/{:020}", 0)).unwrap();
    let store = bench.open();
    let gone = store.copy_visible(PhysicalOffset(0), 1 << 20).unwrap_err();
    assert!(matches!(gone, Error::OffsetTooOld { minimum: FILE, .. }), "{gone}");
    assert!(!store.copy_visible(PhysicalOffset(FILE), 1 << 20).unwrap().is_empty());
    assert_eq!(store.record_before(PhysicalOffset(FILE)).unwrap(), None);
    assert!(store.record_before(PhysicalOffset(end)).unwrap().is_some());
}

#[test]
fn the_record_before_any_offset_is_the_last_whole_one() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let end = filled(&store);
    let records = records(&store);
    for at in 0..=end + 1 {
        let wanted = records.iter().rev().find(|(_, after)| *after <= at);
        let found = store.record_before(PhysicalOffset(at)).unwrap();
        let range = found.as_ref().map(|(begin, bytes)| (begin.0, begin.0 + u64::try_from(bytes.len()).unwrap()));
        assert_eq!(range.as_ref(), wanted, "before {at}");
    }
    let (begin, bytes) = store.record_before(PhysicalOffset(end)).unwrap().unwrap();
    assert_eq!(bytes, bench.read(&format!("commitlog/{:020}", begin.0 / FILE * FILE), begin.0 % FILE, bytes.len()));
}

#[test]
fn a_damaged_record_is_no_proof_of_an_equal_log() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    send(&store, "orders", b"1").unwrap();
    let second = store.appended_end().0;
    send(&store, "orders", b"2").unwrap();
    bench.write(&format!("commitlog/{:020}", 0), second + 4, &[9; 4]);
    let damaged = store.record_before(store.appended_end()).unwrap_err();
    assert!(matches!(damaged, Error::StoreCorrupt { .. }), "{damaged}");
}
