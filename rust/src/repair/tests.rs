//! What can be read before a repair is read afterwards, at the same offset. A second repair finds nothing. A crash in
//! the middle makes nothing worse.

use std::collections::BTreeMap;

use super::*;
use crate::base::clock::ManualClock;
use crate::base::error::{Error, Outcome};
use crate::base::options::{FlushDiskType, StoreOptions};
use crate::base::units::{PhysicalOffset, to_usize};
use crate::record::message::{Envelope, Parts};
use crate::storage::memory::{CrashKeep, FaultKind, Memory};
use crate::storage::{OpenMode, Storage};
use crate::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Sent, Store, Wait};
use crate::transaction::HalfCopy;
use std::sync::Arc;

const FILE: u64 = 4 << 10;

fn options() -> StoreOptions {
    StoreOptions {
        flush_disk_type: FlushDiskType::Sync,
        commit_log_file_size: Some(FILE),
        consume_queue_file_size: Some(20 * 8),
        max_hash_slot_num: Some(16),
        max_index_num: Some(64),
        background: false,
        ..StoreOptions::default()
    }
}

fn open(memory: &Memory) -> Result<Store, Error> {
    let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
    Store::open_with(Arc::new(memory.clone()), clock, options())
}

fn envelope(topic: &str) -> Envelope {
    Envelope::new(&Parts { topic, keys: "k", tags: Some("t"), ..Parts::default() }).unwrap()
}

fn send(store: &Store, topic: &str, body: &[u8]) -> Sent {
    let envelope = envelope(topic);
    store
        .append(&[NewMessage { envelope: &envelope, body, queue_id: QueueId(0) }], Wait::Yes)
        .unwrap()
        .acknowledged()
        .unwrap()
        .remove(0)
}

fn prepare(store: &Store) -> Sent {
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"half", queue_id: QueueId(0) };
    store
        .prepare(&NewHalfMessage { message, group: "g", unique_id: None, owner: 0 }, Wait::Yes)
        .unwrap()
        .acknowledged()
        .unwrap()
}

fn end(store: &Store, half: &Sent, kind: EndKind) {
    let half = HalfCopy { queue_offset: half.queue_offset.0, physical_offset: half.physical_offset.0 };
    store
        .end_transaction(&End { half, kind, transaction_id: None, group: None, decider: Decider::Producer }, Wait::Yes)
        .unwrap();
}

/// Returns a closed store with about seven log files, and the offsets of its messages.
fn filled() -> (Memory, Vec<Sent>) {
    let memory = Memory::new();
    let store = open(&memory).unwrap();
    let sent = (0..60_u8).map(|number| send(&store, if number % 3 == 0 { "orders" } else { "parcel" }, &[number; 250]));
    let sent: Vec<_> = sent.collect();
    store.close().unwrap();
    (memory, sent)
}

/// Returns the size of a record in bytes. All are equally long.
fn size(sent: &[Sent]) -> u64 {
    sent[1].physical_offset.0 - sent[0].physical_offset.0
}

fn examine(memory: &Memory) -> Examination {
    Examiner::begin(Arc::new(memory.clone())).unwrap().finish().unwrap()
}

fn log_path(offset: u64) -> String {
    format!("commitlog/{:020}", offset - offset % FILE)
}

fn flip(memory: &Memory, path: &str, at: u64) {
    let file = memory.open(path, OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, at).unwrap();
    file.write_at(&[byte[0] ^ 0x41], at).unwrap();
    file.sync().unwrap();
}

fn mended(memory: &Memory) -> Mended {
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    mend(&storage, memory, "txstore/repair-1", &examine(memory)).unwrap()
}

/// Returns every record of user topics in the log: physical offset and body.
fn records(store: &Store) -> BTreeMap<u64, Vec<u8>> {
    let (records, _) = store.scan(PhysicalOffset(store.stat().unwrap().min_physical_offset), usize::MAX).unwrap();
    let views = records.iter().map(|record| record.view().unwrap()).filter(|view| view.topic != TOPIC);
    views.map(|view| (view.physical_offset.0, view.body.to_vec())).collect()
}

/// Checks that no statistics are left of a log file that was filled.
#[cfg(feature = "arrow")]
fn statistics_are_right(memory: &Memory, about: &str) {
    let log = crate::recovery::log_view::Log::open_with(Arc::new(memory.clone())).unwrap();
    assert_eq!(log.tally(None).unwrap(), log.tally_of_records().unwrap(), "{about}");
}

#[cfg(not(feature = "arrow"))]
fn statistics_are_right(_: &Memory, _: &str) {}

/// Checks that each queue returns its messages at their own offsets, and only those.
fn queues_are_right(store: &Store, kept: &[&Sent]) {
    for topic in ["orders", "parcel"] {
        let (first, _) = store.queue_range(topic, QueueId(0)).unwrap();
        let from = crate::base::units::QueueOffset(first);
        let (found, _) = store.read(topic, QueueId(0), from, usize::MAX, None).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|record| record.view().unwrap())
            .map(|view| (view.queue_offset.0, view.physical_offset.0))
            .collect();
        let of_topic = |sent: &&&Sent| {
            let view = store.read_at(sent.physical_offset).unwrap();
            view.view().unwrap().topic == topic
        };
        let expected: Vec<_> =
            kept.iter().filter(of_topic).map(|sent| (sent.queue_offset.0, sent.physical_offset.0)).collect();
        assert_eq!(found, expected, "{topic}");
    }
}

/// Damages a closed store, repairs it, and compares. `gone` tells which messages may be missing.
fn repaired(about: &str, kinds: &[&str], damage: impl Fn(&Memory, &[Sent]), gone: impl Fn(usize, &Sent) -> bool) {
    let (memory, sent) = filled();
    damage(&memory, &sent);
    let found = examine(&memory);
    let found_kinds: Vec<_> = found.damages.iter().map(|damage| damage.kind.name()).collect();
    assert_eq!(found_kinds, kinds, "{about}: {found:?}");
    let before = found.records;
    let lost: Vec<u64> = found.lost.iter().map(|lost| lost.physical_offset).collect();
    mended(&memory);
    let store = open(&memory).unwrap_or_else(|error| panic!("{about}: {error}"));
    let kept: Vec<_> =
        sent.iter().enumerate().filter(|(number, one)| !gone(*number, one)).map(|(_, one)| one).collect();
    let offsets: Vec<u64> = kept.iter().map(|one| one.physical_offset.0).collect();
    assert_eq!(records(&store).into_keys().collect::<Vec<_>>(), offsets, "{about}");
    assert_eq!(before, u64::try_from(kept.len()).unwrap(), "{about}: what was read before is read now");
    queues_are_right(&store, &kept);
    let expected = sent.iter().enumerate().filter(|(number, one)| gone(*number, one));
    let mut expected: Vec<u64> = expected.map(|(_, one)| one.physical_offset.0).collect();
    let mut lost = lost;
    lost.sort_unstable();
    expected.retain(|_| !kinds.contains(&"front"));
    if !kinds.contains(&"front") {
        assert_eq!(lost, expected, "{about}: what is lost is named");
    }
    let next = send(&store, "orders", b"continues");
    assert_eq!(store.check_index().unwrap().1, Vec::<String>::new(), "{about}");
    store.close().unwrap();
    statistics_are_right(&memory, about);
    let again = examine(&memory);
    assert!(again.damages.is_empty() && again.derived.is_empty() && again.torn.is_none(), "{about}: {again:?}");
    memory.remove_dir("consumequeue").unwrap();
    memory.unlink("txstore/snapshot").unwrap();
    let store = open(&memory).unwrap();
    assert_eq!(store.read_at(next.physical_offset).unwrap().view().unwrap().body, b"continues", "{about}");
    let now: Vec<_> = kept.into_iter().chain([&next]).collect();
    queues_are_right(&store, &now);
}

#[test]
fn a_whole_store_has_nothing_to_mend() {
    let (memory, sent) = filled();
    let found = examine(&memory);
    assert_eq!((found.damages.len(), found.derived.len(), found.torn), (0, 0, None), "{found:?}");
    assert_eq!((found.records, found.clean), (60, true));
    assert_eq!(found.end, sent[59].physical_offset.0 + size(&sent));
    assert!(found.whole.len() > 4);
}

#[test]
fn flipped_bytes_cost_their_record_alone() {
    // Size, magic, body CRC, queue id, queue offset, physical offset, sysflag, time, body, topic's length, properties.
    for at in [0, 3, 5, 9, 14, 22, 30, 36, 45, 120, 342, 350] {
        for victim in [0_usize, 7, 31] {
            let about = format!("byte {at} of record {victim}");
            let damage = |memory: &Memory, sent: &[Sent]| {
                let offset = sent[victim].physical_offset.0;
                flip(memory, &log_path(offset), offset % FILE + at);
            };
            repaired(&about, &["bad"], damage, |number, _| number == victim);
        }
    }
}

#[test]
fn the_last_record_flipped_is_cut_off() {
    let damage = |memory: &Memory, sent: &[Sent]| {
        let offset = sent[59].physical_offset.0;
        flip(memory, &log_path(offset), offset % FILE + 120);
    };
    let (memory, sent) = filled();
    damage(&memory, &sent);
    assert!(matches!(open(&memory), Err(Error::StoreCorrupt { .. })));
    repaired("the last", &["tail", "end"], damage, |number, _| number == 59);
}

#[test]
fn a_cut_file_keeps_what_is_before_the_cut() {
    for (file, cut) in [(0_u64, 1000_u64), (2, 0), (2, 3000)] {
        let damage = |memory: &Memory, _: &[Sent]| {
            let handle = memory.open(&log_path(file * FILE), OpenMode::Write).unwrap();
            handle.set_len(cut).unwrap();
            handle.sync().unwrap();
        };
        let size = size(&filled().1);
        let gone = |_: usize, one: &Sent| {
            let offset = one.physical_offset.0;
            offset / FILE == file && offset % FILE + size > cut
        };
        let (memory, sent) = filled();
        damage(&memory, &sent);
        assert!(open(&memory).is_err());
        repaired(&format!("file {file} cut to {cut}"), &["length", "bad"], damage, gone);
    }
}

#[test]
fn a_file_missing_in_the_middle_and_at_the_end() {
    let unlink = |file: u64| {
        move |memory: &Memory, _: &[Sent]| {
            memory.unlink(&log_path(file * FILE)).unwrap();
            memory.sync_dir("commitlog").unwrap();
        }
    };
    repaired("middle", &["missing"], unlink(2), |_, one| one.physical_offset.0 / FILE == 2);
    let last = filled().1[59].physical_offset.0 / FILE;
    repaired("end", &["end"], unlink(last), |_, one| one.physical_offset.0 / FILE == last);
}

#[test]
fn a_file_missing_at_the_front_of_a_store_that_was_not_closed() {
    let (memory, sent) = filled();
    let store = open(&memory).unwrap();
    let killed = memory.crash(0, CrashKeep::PageCache);
    drop(store);
    killed.unlink(&log_path(0)).unwrap();
    assert!(matches!(open(&killed), Err(Error::MissingFile { .. })));
    let found = examine(&killed);
    assert_eq!(found.damages.iter().map(|damage| damage.kind).collect::<Vec<_>>(), [DamageKind::Front]);
    mended(&killed);
    let store = open(&killed).unwrap();
    let kept: Vec<_> = sent.iter().filter(|one| one.physical_offset.0 >= FILE).collect();
    assert_eq!(records(&store).len(), kept.len());
    queues_are_right(&store, &kept);
}

#[test]
fn lost_halves_and_ops_are_not_guessed() {
    let memory = Memory::new();
    let store = open(&memory).unwrap();
    send(&store, "orders", b"before");
    let rolled_back = prepare(&store);
    end(&store, &rolled_back, EndKind::RollBack);
    let op = store.scan(PhysicalOffset(0), usize::MAX).unwrap().0.pop().unwrap().view().unwrap().physical_offset.0;
    send(&store, "orders", b"between");
    let lost = prepare(&store);
    end(&store, &lost, EndKind::RollBack);
    store.close().unwrap();
    flip(&memory, &log_path(op), op + 120);
    flip(&memory, &log_path(0), lost.physical_offset.0 + 120);
    let found = examine(&memory);
    assert_eq!(found.damages.len(), 2);
    mended(&memory);
    let store = open(&memory).unwrap();
    let pending = |store: &Store| {
        let waiting = store.halves_waiting(None, usize::MAX).unwrap();
        waiting.iter().map(|waiting| waiting.newest.queue_offset).collect::<Vec<_>>()
    };
    // The stored progress had passed it, so it has ended; nothing tells its outcome any more.
    assert_eq!(pending(&store), [0; 0]);
    let ended = store.end_transaction(
        &End {
            half: HalfCopy { queue_offset: rolled_back.queue_offset.0, physical_offset: rolled_back.physical_offset.0 },
            kind: EndKind::Commit,
            transaction_id: None,
            group: None,
            decider: Decider::Producer,
        },
        Wait::Yes,
    );
    let unknown = matches!(ended, Err(Error::AlreadyEnded { outcome: Outcome::FinishedUnknown, .. }));
    assert!(unknown, "{ended:?}");
    // A new half must not get an offset that an op message names already.
    let fresh = prepare(&store);
    assert_eq!(fresh.queue_offset.0, 2);
    let expected = [fresh.queue_offset.0];
    assert_eq!(pending(&store), expected);
    store.close().unwrap();
    for path in ["consumequeue", "index"] {
        memory.remove_dir(path).unwrap();
    }
    memory.unlink("txstore/snapshot").unwrap();
    assert_eq!(pending(&open(&memory).unwrap()), expected);
}

#[test]
fn a_decision_that_is_lost_is_not_taken_for_a_rollback_by_the_op_that_is_left() {
    for kind in [EndKind::Commit, EndKind::Discard] {
        let memory = Memory::new();
        let store = open(&memory).unwrap();
        let rolled_back = prepare(&store);
        end(&store, &rolled_back, EndKind::RollBack);
        let half = prepare(&store);
        let pending = prepare(&store);
        let lost = store.stat().unwrap().max_physical_offset;
        end(&store, &half, kind);
        store.close().unwrap();
        flip(&memory, &log_path(lost), lost % FILE + 120);
        mended(&memory);
        let ended = |store: &Store, half: &Sent| {
            let half = HalfCopy { queue_offset: half.queue_offset.0, physical_offset: half.physical_offset.0 };
            let end = End { half, kind: EndKind::Discard, transaction_id: None, group: None, decider: Decider::Check };
            match store.end_transaction(&end, Wait::Yes) {
                Err(Error::AlreadyEnded { outcome, .. }) => outcome,
                other => panic!("{kind:?}: {other:?}"),
            }
        };
        let store = Store::open_with(
            Arc::new(memory.clone()),
            Arc::new(ManualClock::at(TimestampMs(1_700_000_001_000))),
            options(),
        )
        .unwrap();
        assert_eq!(ended(&store, &half), Outcome::FinishedUnknown, "{kind:?}");
        assert_eq!(ended(&store, &rolled_back), Outcome::RolledBack);
        // Messages after the repair behave normally, also where the whole log is read again.
        end(&store, &pending, EndKind::RollBack);
        store.close().unwrap();
        memory.unlink("txstore/snapshot").unwrap();
        let store = open(&memory).unwrap();
        let outcomes = [&rolled_back, &half, &pending].map(|half| ended(&store, half));
        assert_eq!(outcomes, [Outcome::RolledBack, Outcome::FinishedUnknown, Outcome::RolledBack], "{kind:?}");
    }
}

#[test]
fn queues_that_retention_emptied_continue_at_their_offsets() {
    let memory = Memory::new();
    let store = open(&memory).unwrap();
    (0..3).for_each(|_| drop(send(&store, "silent", b"old")));
    (0..2).for_each(|_| drop(send(&store, "deleted", b"old")));
    store.delete_queues("deleted").unwrap();
    let sent: Vec<_> = (0..60_u8).map(|number| send(&store, "orders", &[number; 250])).collect();
    let removed = store.remove_log_files(PhysicalOffset(2 * FILE), false).unwrap();
    assert_eq!(removed.log_files, 2);
    store.close().unwrap();
    let victim = sent[40].physical_offset.0;
    flip(&memory, &log_path(victim), victim % FILE + 120);
    mended(&memory);
    let store = open(&memory).unwrap();
    for (topic, next) in [("silent", 3), ("deleted", 2), ("orders", 60)] {
        assert_eq!(send(&store, topic, b"new").queue_offset.0, next, "{topic}");
    }
    store.close().unwrap();
    assert_eq!(examine(&memory).derived, []);
}

/// The crash happens at each call of a repair in turn, or the call fails. A second repair reaches the same result.
#[test]
fn a_crash_in_any_call_of_a_repair_can_be_repaired() {
    let damaged = || {
        let (memory, sent) = filled();
        let offset = sent[7].physical_offset.0;
        flip(&memory, &log_path(offset), offset % FILE + 120);
        memory.unlink(&log_path(3 * FILE)).unwrap();
        memory.sync_dir("commitlog").unwrap();
        (memory, sent)
    };
    for kind in [FaultKind::Stop, FaultKind::Io] {
        for call in (1..).step_by(3) {
            let (memory, sent) = damaged();
            let found = examine(&memory);
            let storage: Arc<dyn Storage> = Arc::new(memory.clone());
            memory.fail_at(memory.calls() + call, kind, true);
            let through = mend(&storage, &memory, "txstore/repair-1", &found).is_ok();
            for (seed, keep) in [(0, CrashKeep::PageCache), (1, CrashKeep::PowerLoss)] {
                let memory = memory.crash(seed, keep);
                let about = format!("{kind:?} in call {call}, {keep:?}");
                let storage: Arc<dyn Storage> = Arc::new(memory.clone());
                mend(&storage, &memory, "txstore/repair-2", &examine(&memory)).unwrap();
                let store = open(&memory).unwrap_or_else(|error| panic!("{about}: {error}"));
                let kept =
                    sent.iter().enumerate().filter(|(number, one)| *number != 7 && one.physical_offset.0 / FILE != 3);
                let kept: Vec<_> = kept.map(|(_, one)| one.physical_offset.0).collect();
                assert_eq!(records(&store).into_keys().collect::<Vec<_>>(), kept, "{about}");
                statistics_are_right(&memory, &about);
            }
            if through {
                assert!(call > 50);
                break;
            }
        }
    }
}

#[test]
fn a_store_that_is_open_is_refused() {
    let (memory, _) = filled();
    let _store = open(&memory).unwrap();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let refused = mend(&storage, &memory, "txstore/repair-1", &Examination::default());
    assert!(matches!(refused, Err(Error::StoreLocked { .. })));
}

#[test]
fn a_filler_fits_any_room_that_a_record_left() {
    let verify =
        crate::record::decode::Verify { body_crc: true, record_crc: crate::record::decode::RecordCrc::Required };
    for length in [125_u64, 126, 4000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << 20) + 124, (2 << 20) + 130] {
        let bytes = filler::fill(1000, 1000 + length, 0, 64 << 20, TimestampMs(7), verify).unwrap();
        assert_eq!(bytes.len(), to_usize(length));
        let mut at = 0;
        while at < bytes.len() {
            let offset = PhysicalOffset(1000 + u64::try_from(at).unwrap());
            match crate::record::decode::decode(&bytes[at..], offset, verify) {
                Ok(crate::record::decode::Scanned::Record(view)) => at += to_usize(u64::from(view.size)),
                other => panic!("{length}: {other:?}"),
            }
        }
    }
}

/// Returns a broker's log with short records at these offsets, stored a second apart, in one file.
fn short_records(offsets: &[u64]) -> Memory {
    use crate::record::Draft;
    use crate::storage::checkpoint::Checkpoint;
    let (memory, host) = (Memory::new(), StoreOptions::default().store_host);
    memory.create_dir("commitlog").unwrap();
    let file = memory.open("commitlog/00000000000000000000", OpenMode::Create).unwrap();
    file.set_len(FILE).unwrap();
    for (number, offset) in (0_u64..).zip(offsets) {
        let draft = Draft { topic: "t", born_host: host, store_host: host, body: b"x", ..Draft::plain() };
        let bytes = draft.record_at(*offset, number, 1_000 * (i64::try_from(number).unwrap() + 1));
        assert_eq!(bytes.len(), 93);
        file.write_at(&bytes, *offset).unwrap();
    }
    let newest_ms = 1_000 * i64::try_from(offsets.len()).unwrap();
    Checkpoint::store(&memory, &Checkpoint { physic_ms: newest_ms, logics_ms: newest_ms, ..Checkpoint::default() })
        .unwrap();
    memory
}

fn offsets_left(memory: &Memory) -> Vec<u64> {
    let store = open(memory).unwrap();
    let (records, _) = store.scan(PhysicalOffset(0), usize::MAX).unwrap();
    let views = records.iter().map(|record| record.view().unwrap()).filter(|view| !is_filler(view));
    views.map(|view| view.physical_offset.0).collect()
}

#[test]
fn the_shortest_record_is_filled_and_costs_no_other() {
    let memory = short_records(&[0, 93, 186, 279]);
    flip(&memory, "commitlog/00000000000000000000", 93 + 88);
    let found = examine(&memory);
    let damages: Vec<_> =
        found.damages.iter().map(|damage| (damage.from, damage.to, damage.records_discarded)).collect();
    assert_eq!(damages, [(93, 186, 0)]);
    mended(&memory);
    assert_eq!(offsets_left(&memory), [0, 186, 279]);
    assert!(examine(&memory).damages.is_empty());
}

#[test]
fn damage_that_no_filler_fits_costs_the_record_after_it() {
    let memory = short_records(&[0, 133, 226, 319]);
    let file = memory.open("commitlog/00000000000000000000", OpenMode::Write).unwrap();
    file.write_at(&[0xEE; 40], 93).unwrap();
    file.sync().unwrap();
    let found = examine(&memory);
    let damages: Vec<_> =
        found.damages.iter().map(|damage| (damage.from, damage.to, damage.records_discarded)).collect();
    assert_eq!(damages, [(93, 226, 1)]);
    assert_eq!(found.records, 3, "the discarded record does not count");
    mended(&memory);
    assert_eq!(offsets_left(&memory), [0, 226, 319]);
    assert!(examine(&memory).damages.is_empty());
}
