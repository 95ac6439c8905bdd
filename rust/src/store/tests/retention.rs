//! Retention removes whole files from the start of the log. Pending, delayed and unread messages keep their files.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::base::error::Outcome;
use crate::base::units::to_usize;
use crate::index::consume_queue::Entry;
use crate::storage::Storage;
use crate::storage::memory::FaultKind;
use crate::store::Expired;

const FILE: u64 = 4 << 10;
const EVERYTHING: PhysicalOffset = PhysicalOffset(u64::MAX);

/// Sends messages until the log has a number of files.
fn fill(store: &Store, topic: &str, files: u64) {
    while appended(store) <= (files - 1) * FILE {
        send(store, topic, &[7; 400]).unwrap();
    }
}

fn minimum(store: &Store) -> u64 {
    store.stat().unwrap().min_physical_offset
}

fn range(store: &Store, topic: &str) -> (u64, u64) {
    store.queue_range(topic, QUEUE).unwrap()
}

/// Returns the queue offsets left in a queue, from its first message.
fn left(store: &Store, topic: &str) -> Vec<u64> {
    let (first, _) = range(store, topic);
    let (records, _) = store.read(topic, QUEUE, QueueOffset(first), usize::MAX, None).unwrap();
    records.iter().map(|record| record.view().unwrap().physical_offset.0).collect()
}

#[test]
fn read_files_go_whole_and_queues_and_index_follow() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&store, "orders", 12);
    let end = range(&store, "orders").1;
    store.set_consumer_offset("orders", "shipping", QUEUE, end).unwrap();
    let expired = store.remove_log_files(EVERYTHING, true).unwrap();
    assert_eq!(expired.minimum, 11 * FILE, "all but the file that is written");
    assert_eq!(expired.log_files, 11);
    assert!(expired.queue_files > 5 && expired.index_files > 0, "{expired:?}");
    let first = range(&store, "orders").0;
    let offsets = left(&store, "orders");
    assert!(first > 0 && offsets[0] >= minimum(&store) && offsets.len() == to_usize(end - first), "{offsets:?}");
    let old = store.read("orders", QUEUE, QueueOffset(first - 1), 1, None).unwrap_err();
    assert!(matches!(&old, Error::OffsetTooOld { of, minimum, .. } if of == "orders/0" && *minimum == first));
    let old = store.read_at(PhysicalOffset(0)).unwrap_err();
    assert!(matches!(old, Error::OffsetTooOld { minimum, .. } if minimum == 11 * FILE), "{old}");
    assert!(matches!(store.scan(PhysicalOffset(0), 1), Err(Error::OffsetTooOld { .. })));
    assert_eq!(store.query("orders", "k", usize::MAX).unwrap().len(), offsets.len());
    assert_eq!(store.search_offset("orders", QUEUE, TimestampMs(0)).unwrap(), first);
    assert_eq!(store.remove_log_files(EVERYTHING, true).unwrap(), Expired { minimum: 11 * FILE, ..Expired::default() });
    // The state is the same after any close or crash.
    let seen = |store: &Store| (minimum(store), range(store, "orders"), left(store, "orders"));
    let expected = seen(&store);
    assert_eq!(seen(&bench.killed().open()), expected);
    let rebuilt = bench.killed();
    rebuilt.memory.unlink("txstore/snapshot").unwrap();
    assert_eq!(seen(&rebuilt.read_only()), expected);
    assert_eq!(seen(&rebuilt.open()), expected);
    store.close().unwrap();
    assert_eq!(seen(&bench.open()), expected);
    bench.memory.remove_dir("consumequeue").unwrap();
    bench.memory.remove_dir("index").unwrap();
    assert_eq!(seen(&bench.open()), expected, "queues built again begin where the log begins");
}

/// A broker reads a queue's file from its beginning, and takes the first zeros for the queue's end.
#[test]
fn a_queue_built_again_has_no_zeros_before_its_first_message() {
    for messages in 30..34 {
        let bench = Bench::sync();
        let store = bench.open();
        (0..messages).for_each(|_| drop(send(&store, "orders", &[7; 100]).unwrap()));
        store.remove_log_files(EVERYTHING, false).unwrap();
        let (first, end) = range(&store, "orders");
        assert!(first > 0 && first % 8 != 0, "{first}");
        store.close().unwrap();
        let derived = || -> Vec<_> {
            let is_derived = |path: &str| path.starts_with("consumequeue/") || path.starts_with("index/");
            bench.files().into_iter().filter(|(path, _)| is_derived(path)).collect()
        };
        let before = derived();
        bench.memory.unlink("txstore/snapshot").unwrap();
        bench.open().close().unwrap();
        assert!(derived() == before, "what is there does not change");
        for directory in ["consumequeue", "index"] {
            bench.memory.remove_dir(directory).unwrap();
        }
        bench.memory.unlink("txstore/snapshot").unwrap();
        let store = bench.open();
        assert_eq!(range(&store, "orders"), (first, end));
        store.close().unwrap();
        for at in (0..end).filter(|at| *at >= first / 8 * 8) {
            let path = format!("consumequeue/orders/0/{:020}", at / 8 * 8 * 20);
            let entry = Entry::from_bytes(&bench.read(&path, at % 8 * 20, 20));
            assert_eq!(entry.map(|entry| entry.is_padding()), Some(at < first), "entry {at} of {first}..{end}");
        }
    }
}

#[test]
fn a_queue_whose_messages_are_all_gone_continues_at_its_offset() {
    for without_snapshot in [false, true] {
        let bench = Bench::sync();
        let store = bench.open();
        for _ in 0..3 {
            send(&store, "rare", b"x").unwrap();
        }
        fill(&store, "orders", 3);
        store.remove_log_files(EVERYTHING, true).unwrap();
        assert_eq!(range(&store, "rare"), (3, 3));
        let bench = bench.crashed(1, CrashKeep::PowerLoss);
        if without_snapshot {
            bench.memory.unlink("txstore/snapshot").unwrap();
        }
        let store = bench.open();
        assert_eq!(range(&store, "rare"), (3, 3));
        assert_eq!(send(&store, "rare", b"y").unwrap().queue_offset, QueueOffset(3));
        assert_eq!(left(&store, "rare").len(), 1);
    }
}

#[test]
fn t10_a_file_with_a_pending_half_stays() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&store, "orders", 3);
    let half = prepare(&store, b"pending");
    fill(&store, "orders", 6);
    let facts = store.log_files(100).unwrap();
    assert_eq!(facts.iter().map(|file| file.is_held).collect::<Vec<_>>(), [false, false, true, true, true]);
    store.remove_log_files(EVERYTHING, false).unwrap();
    assert_eq!(minimum(&store), 2 * FILE);
    let bench = bench.killed();
    let store = bench.open();
    assert_eq!(pending(&store), [0]);
    store.remove_log_files(EVERYTHING, false).unwrap();
    assert_eq!(minimum(&store), 2 * FILE);
    assert_eq!(end(&store, &half, EndKind::Commit).unwrap().outcome, Outcome::Committed);
    store.remove_log_files(EVERYTHING, false).unwrap();
    assert_eq!(minimum(&store), 5 * FILE);
}

#[test]
fn an_unread_message_keeps_its_file_until_each_group_has_passed_it() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&store, "orders", 5);
    fill(&store, "logs", 9);
    let end = range(&store, "orders").1;
    store.set_consumer_offset("orders", "shipping", QUEUE, end).unwrap();
    store.set_consumer_offset("orders", "billing", QUEUE, 0).unwrap();
    assert!(store.log_files(1).unwrap()[0].is_unread);
    assert_eq!(store.remove_log_files(EVERYTHING, true).unwrap().log_files, 0, "billing has read nothing");
    store.set_consumer_offset("orders", "billing", QUEUE, end / 2).unwrap();
    store.remove_log_files(EVERYTHING, true).unwrap();
    assert!(minimum(&store) > 0 && range(&store, "orders").0 <= end / 2);
    store.set_consumer_offset("orders", "billing", QUEUE, end).unwrap();
    store.remove_log_files(EVERYTHING, true).unwrap();
    assert_eq!(minimum(&store), 8 * FILE, "nobody reads logs: nothing of it is unread");
    store.set_consumer_offset("logs", "late", QUEUE, 0).unwrap();
    fill(&store, "logs", 11);
    store.remove_log_files(EVERYTHING, true).unwrap();
    assert_eq!(minimum(&store), 8 * FILE);
    store.remove_log_files(EVERYTHING, false).unwrap();
    assert_eq!(minimum(&store), 10 * FILE, "unless that is asked for");
}

#[test]
fn a_retry_keeps_its_file_for_its_own_group() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "%RETRY%shipping", b"again").unwrap();
    fill(&store, "orders", 3);
    assert_eq!(store.remove_log_files(EVERYTHING, true).unwrap().log_files, 0);
    store.set_consumer_offset("%RETRY%shipping", "shipping", QUEUE, 1).unwrap();
    store.set_consumer_offset("%RETRY%shipping", "shipping%", QUEUE, 0).unwrap();
    assert_eq!(store.remove_log_files(EVERYTHING, true).unwrap().log_files, 2);
}

#[test]
fn a_delayed_message_that_waits_keeps_its_file() {
    let bench = Bench::sync();
    let store = bench.open();
    let envelope = Envelope::new(&Parts { topic: "orders", delay_level: 3, ..Parts::default() }).unwrap();
    store
        .append(&[NewMessage { envelope: &envelope, body: b"later", queue_id: QUEUE }], Wait::Yes)
        .unwrap()
        .acknowledged()
        .unwrap();
    fill(&store, "logs", 3);
    assert_eq!(store.remove_log_files(EVERYTHING, false).unwrap().log_files, 0);
    bench.clock.advance(10_000);
    assert_eq!(store.deliver_delayed(10).unwrap().messages, 1);
    assert_eq!(store.remove_log_files(EVERYTHING, false).unwrap().log_files, 2);
    assert_eq!(bodies(&store, "orders", 0), [b"later"]);
}

#[test]
fn t13_a_file_is_as_old_as_the_clocks_agree_on() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&store, "orders", 3);
    let age = |store: &Store| store.log_files(1).unwrap()[0].age_ms;
    assert_eq!(age(&store), 0);
    bench.clock.advance(5_000);
    assert_eq!(age(&store), 5_000);
    bench.clock.jump_wall(1_000_000);
    assert_eq!(age(&store), 5_000, "a wall clock that jumps forward makes nothing older");
    bench.clock.jump_wall(-1_003_000);
    assert_eq!(age(&store), 2_000);
    bench.clock.jump_wall(-1_000_000);
    assert_eq!(age(&store), 5_000, "all that the wall clock told is in the future: the monotonic one is asked");
}

#[test]
fn the_end_of_a_half_that_is_gone_is_what_it_left() {
    let bench = Bench::sync();
    let store = bench.open();
    let halves: Vec<_> = (0..4).map(|number| prepare(&store, &[number; 100])).collect();
    fill(&store, "logs", 3);
    let kinds = [EndKind::Commit, EndKind::RollBack, EndKind::Discard];
    for (half, kind) in halves.iter().zip(kinds.into_iter().chain([EndKind::RollBack])) {
        end(&store, half, kind).unwrap();
    }
    fill(&store, "logs", 5);
    store.remove_log_files(PhysicalOffset(2 * FILE), true).unwrap();
    assert_eq!(minimum(&store), 2 * FILE);
    let check = |store: &Store| {
        let before = appended(store);
        for (half, outcome) in halves.iter().zip([Some(Outcome::Committed), None, Some(Outcome::Discarded), None]) {
            for kind in kinds {
                match (end(store, half, kind), outcome) {
                    (Ok(ended), Some(outcome)) => {
                        assert!(ended.already && ended.outcome == outcome && kind.outcome() == outcome);
                    }
                    (Err(Error::AlreadyEnded { outcome: found, .. }), Some(outcome)) => {
                        assert!(found == outcome && kind.outcome() != outcome);
                    }
                    (Err(Error::TransactionNotFound { .. }), None) => {}
                    (other, _) => panic!("{kind:?} of one that was {outcome:?}: {other:?}"),
                }
            }
            let stranger = End { group: Some("strangers".into()), ..end_of(half, EndKind::Commit) };
            let refused = store.end_transaction(&stranger, Wait::Yes).unwrap_err();
            assert!(matches!(refused, Error::WrongGroup { .. } | Error::TransactionNotFound { .. }), "{refused}");
        }
        assert_eq!(appended(store), before);
    };
    // The outcomes of these four share a byte, which is forgotten as a whole.
    check(&store);
    let scanned = bench.killed();
    scanned.memory.unlink("txstore/snapshot").unwrap();
    check(&scanned.open());
    // A discarded transaction can be resumed without its half.
    let again = store.resume(&halves[2].unique_id).unwrap();
    assert_eq!(pending(&store), [again.queue_offset.0]);
    assert!(matches!(store.resume(&halves[2].unique_id), Err(Error::StillPending { .. })));
}

#[test]
fn a_reader_continues_while_files_before_it_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let open = |read_only| {
        let options = StoreOptions { read_only, ..Bench::sync().options };
        Store::open(directory.path(), options).unwrap()
    };
    let writer = open(false);
    fill(&writer, "orders", 4);
    let (reader, lazy) = (open(true), open(true));
    let (before, segment) = (left(&reader, "orders"), reader.shared.log.segment(PhysicalOffset(0)).unwrap());
    let half = prepare(&writer, b"pending");
    writer.remove_log_files(PhysicalOffset(2 * FILE), true).unwrap();
    assert_eq!(segment.bytes(0..4).unwrap().len(), 4, "what is mapped stays readable");
    assert_eq!((minimum(&reader), range(&reader, "orders")), (2 * FILE, range(&writer, "orders")));
    let after = left(&reader, "orders");
    assert!(before.ends_with(&after) && after == left(&writer, "orders") && after[0] >= 2 * FILE);
    assert_eq!(reader.query("orders", "k", usize::MAX).unwrap().len(), after.len());
    let old = reader.read("orders", QUEUE, QueueOffset(0), 1, None).unwrap_err();
    assert!(matches!(&old, Error::OffsetTooOld { of, .. } if of == "orders/0"), "{old}");
    assert_eq!(pending(&reader), [0]);
    // A reader that has not looked for so long that files were added and removed.
    end(&writer, &half, EndKind::RollBack).unwrap();
    fill(&writer, "orders", 9);
    let pending_half = prepare(&writer, b"pending, too");
    writer.remove_log_files(EVERYTHING, true).unwrap();
    for reader in [&lazy, &reader] {
        assert_eq!((minimum(reader), range(reader, "orders")), (minimum(&writer), range(&writer, "orders")));
        assert_eq!(left(reader, "orders"), left(&writer, "orders"));
        assert_eq!(pending(reader), [pending_half.queue_offset.0]);
    }
    fill(&writer, "orders", 11);
    assert_eq!(left(&lazy, "orders"), left(&writer, "orders"), "and it follows from there");
}

/// Each call of a removal fails, or is the last one before the process is killed or the power is lost.
#[test]
fn a_crash_in_any_call_of_a_removal_leaves_a_store_that_opens() {
    let began = || {
        let bench = Bench::sync();
        let store = bench.open();
        send(&store, "rare", b"x").unwrap();
        fill(&store, "orders", 3);
        let pending_half = prepare(&store, b"pending");
        fill(&store, "orders", 7);
        store.set_consumer_offset("orders", "shipping", QUEUE, range(&store, "orders").1).unwrap();
        (bench, store, pending_half)
    };
    for kind in [FaultKind::Stop, FaultKind::Io, FaultKind::NoSpace] {
        let mut through = false;
        for call in 1.. {
            let (bench, store, pending_half) = began();
            let all = left(&store, "orders");
            let ends = (range(&store, "orders").1, range(&store, "rare").1);
            bench.memory.fail_at(bench.memory.calls() + call, kind, kind == FaultKind::Stop);
            through = store.remove_log_files(EVERYTHING, true).is_ok();
            if kind != FaultKind::Stop {
                bench.memory.clear_fault();
            }
            for (seed, keep) in [(0, CrashKeep::PageCache), (1, CrashKeep::PowerLoss), (2, CrashKeep::PowerLoss)] {
                let bench = bench.crashed(seed, keep);
                let about = format!("{kind:?} in call {call}, {keep:?}");
                let store = bench.try_open().unwrap_or_else(|error| panic!("{about}: {error}"));
                assert!(minimum(&store) <= 2 * FILE, "{about}: {}", minimum(&store));
                assert!(!through || minimum(&store) == 2 * FILE, "{about}: {}", minimum(&store));
                assert_eq!((range(&store, "orders").1, range(&store, "rare").1), ends, "{about}");
                let expected: Vec<u64> = all.iter().copied().filter(|offset| *offset >= minimum(&store)).collect();
                assert_eq!(left(&store, "orders"), expected, "{about}");
                assert_eq!(pending(&store), [pending_half.queue_offset.0], "{about}");
                store.remove_log_files(EVERYTHING, true).unwrap();
                assert_eq!(minimum(&store), 2 * FILE, "{about}");
            }
            drop(store);
            if through {
                assert!(call > 10, "{kind:?}: only {call} calls");
                break;
            }
        }
        assert!(through);
    }
}

const DAY_MS: i64 = 86_400_000;

fn ages_in_days(store: &Store) -> Vec<i64> {
    store.log_files(100).unwrap().iter().map(|file| file.age_ms / DAY_MS).collect()
}

/// The wall clock was ten years ahead for a moment, so all later store timestamps are ahead until then.
#[test]
fn t13_files_grow_old_after_the_clock_was_years_ahead_for_a_moment() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&store, "orders", 3);
    bench.clock.jump_wall(10 * 365 * DAY_MS);
    send(&store, "orders", b"while the clock was wrong").unwrap();
    bench.clock.jump_wall(-10 * 365 * DAY_MS);
    fill(&store, "orders", 6);
    assert_eq!(ages_in_days(&store), [0; 5]);
    bench.clock.advance(30 * DAY_MS);
    fill(&store, "orders", 7);
    // The file that was last written before this is as old as the messages after it.
    assert_eq!(ages_in_days(&store), [30, 30, 30, 30, 30, 0]);
    store.close().unwrap();
    assert_eq!(ages_in_days(&bench.open()), [30, 30, 30, 30, 30, 0], "and after an opening");
}

/// All writes since then had a clock that was ahead, but the process knows when it saw the file full.
#[test]
fn t13_a_file_of_which_every_clock_was_ahead_grows_old_too() {
    let bench = Bench::sync();
    let store = bench.open();
    bench.clock.jump_wall(10 * 365 * DAY_MS);
    fill(&store, "orders", 4);
    bench.clock.jump_wall(-10 * 365 * DAY_MS);
    assert_eq!(ages_in_days(&store), [0, 0, 0]);
    bench.clock.advance(4 * DAY_MS);
    assert_eq!(ages_in_days(&store), [4, 4, 4]);
}

/// The store was quiet for ten days. While files fill, the wall clock is set back by nine days, then it is right again.
#[test]
fn t13_a_file_that_became_full_while_the_clock_was_set_back_is_not_older() {
    let bench = Bench::sync();
    let store = bench.open();
    fill(&store, "orders", 2);
    bench.clock.advance(10 * DAY_MS);
    bench.clock.jump_wall(-9 * DAY_MS);
    fill(&store, "orders", 5);
    bench.clock.jump_wall(9 * DAY_MS);
    assert_eq!(ages_in_days(&store), [10, 0, 0, 0]);
    bench.clock.advance(4 * DAY_MS);
    assert_eq!(ages_in_days(&store), [14, 4, 4, 4]);
    bench.clock.jump_wall(-5 * DAY_MS);
    assert_eq!(ages_in_days(&store), [9, 4, 4, 4]);
}

/// Retention removes a queue's file between a reader's look at the queue and its read of the file: the message is too
/// old, nothing is damaged, and the snapshot stays.
#[test]
fn a_read_during_retention_finds_its_message_too_old() {
    for is_other_process in [false, true] {
        let bench = Bench::sync();
        let store = bench.open();
        for _ in 0..60 {
            send(&store, "orders", &[7; 400]).unwrap();
        }
        store.snapshot().unwrap();
        let open = |read_only| {
            let options = StoreOptions { read_only, ..bench.options.clone() };
            Arc::new(Store::open_with(Arc::new(bench.memory.clone()), bench.clock.clone(), options).unwrap())
        };
        let (writer, reader) = if is_other_process {
            (Arc::new(store), open(true))
        } else {
            store.close().unwrap();
            let both = open(false);
            (Arc::clone(&both), both)
        };
        reader.shared.queue_files.close_handles();
        let (removing, is_removed) = (Arc::clone(&writer), Arc::new(AtomicBool::new(false)));
        let removed = Arc::clone(&is_removed);
        bench.memory.once_before("consumequeue/orders/0/0", move || {
            removed.store(removing.remove_log_files(EVERYTHING, false).unwrap().queue_files > 0, Ordering::SeqCst);
        });
        let read = reader.read("orders", QUEUE, QueueOffset(0), 1, None);
        assert!(is_removed.load(Ordering::SeqCst), "the read met the removal");
        assert!(matches!(read, Err(Error::OffsetTooOld { minimum, .. }) if minimum > 0), "{read:?}");
        drop(reader);
        Arc::into_inner(writer).unwrap().close().unwrap();
        assert!(bench.memory.len("txstore/snapshot").unwrap().is_some());
    }
}

/// The end is not durable yet, so the half message that it ended is still needed.
#[test]
fn a_transaction_that_ends_during_a_removal_is_not_lost_with_the_power() {
    for seed in 0..20 {
        let bench = Bench::new(FlushDiskType::Async);
        let store = Arc::new(bench.open());
        fill(&store, "orders", 3);
        let half = prepare(&store, b"paid");
        fill(&store, "orders", 7);
        store.set_consumer_offset("orders", "shipping", QUEUE, range(&store, "orders").1).unwrap();
        let (ends, ended_half) = (Arc::clone(&store), half.clone());
        bench.memory.once_before("config/consumerOffset.json", move || {
            // In another thread, because this one holds a lock.
            std::thread::spawn(move || end(&ends, &ended_half, EndKind::Commit).unwrap()).join().unwrap();
        });
        store.remove_log_files(EVERYTHING, true).unwrap();
        assert!(bodies(&store, "orders", 1) == [b"paid"], "the hook has run");
        let bench = bench.crashed(seed, CrashKeep::PowerLoss);
        let store = bench.open();
        let is_pending = !pending(&store).is_empty();
        assert!(is_pending || bodies(&store, "orders", 1) == [b"paid"], "seed {seed}");
    }
}
