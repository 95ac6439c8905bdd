//! The transactions' promises T1 to T14.

use super::*;
use crate::base::error::Outcome;
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP};
use crate::record::TransactionType;
use crate::record::properties::{REAL_QUEUE_ID, REAL_TOPIC};
use crate::transaction::scan::{DueGroup, group_by_facts};

fn progress(store: &Store) -> u64 {
    store.consumer_offset(HALF_TOPIC, TRANSACTION_GROUP, QUEUE).unwrap().unwrap_or(0)
}

#[test]
fn t1_a_half_is_never_visible_in_its_real_topic() {
    let bench = Bench::sync();
    let store = bench.open();
    prepare(&store, b"hidden");
    assert!(bodies(&store, "orders", 1).is_empty() && store.query("orders", "k", 9).unwrap().is_empty());
    let after = bench.killed().open();
    assert!(bodies(&after, "orders", 1).is_empty());
    assert_eq!(after.queues().unwrap().len(), 1, "only the half queue");
    // Clients may not name a system topic. The name is refused when an envelope is created.
    for topic in [HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC] {
        assert!(Envelope::new(&Parts { topic, ..Parts::default() }).is_err());
    }
}

#[test]
fn t2_a_decided_outcome_never_changes() {
    let kinds = [EndKind::Commit, EndKind::RollBack, EndKind::Discard];
    for first in kinds {
        let mut bench = Bench::sync();
        let mut store = bench.open();
        let half = prepare(&store, b"once");
        let outcome = end(&store, &half, first).unwrap().outcome;
        for again in 0..3 {
            for kind in kinds {
                match end(&store, &half, kind) {
                    Ok(ended) => assert!(ended.already && ended.outcome == outcome && kind == first),
                    Err(Error::AlreadyEnded { outcome: found, .. }) => assert!(found == outcome && kind != first),
                    Err(other) => panic!("{other}"),
                }
            }
            if again == 1 {
                store.snapshot().unwrap();
            }
            bench = bench.killed();
            store = bench.open();
        }
        assert_eq!(store.transactions().unwrap()[0].outcome, Some(outcome));
    }
}

#[test]
fn t3_committed_is_one_final_message_with_what_was_sent() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"body");
    let ended = end(&store, &half, EndKind::Commit).unwrap();
    let (records, _) = store.read("orders", QueueId(1), QueueOffset(0), 9, None).unwrap();
    assert_eq!(records.len(), 1);
    let view = records[0].view().unwrap();
    assert_eq!(ended.offsets, Some((view.physical_offset, view.queue_offset)));
    assert_eq!((view.body, view.transaction_type()), (&b"body"[..], TransactionType::Commit));
    assert_eq!(view.prepared_transaction_offset, half.physical_offset);
    assert_eq!(view.unique_id(), Some(&*half.unique_id));
    assert!(view.properties.get(REAL_TOPIC).is_none() && view.properties.get(REAL_QUEUE_ID).is_none());
    assert_eq!((view.properties.get_str("KEYS"), view.properties.get_str("TAGS")), (Some("k"), Some("t")));
    assert_eq!(bodies(&bench.killed().open(), "orders", 1).len(), 1);
}

#[test]
fn t4_rolled_back_or_discarded_leaves_no_final_message() {
    let bench = Bench::sync();
    let store = bench.open();
    let (first, second) = (prepare(&store, b"1"), prepare(&store, b"2"));
    end(&store, &first, EndKind::RollBack).unwrap();
    end(&store, &second, EndKind::Discard).unwrap();
    for store in [&store, &bench.killed().open()] {
        assert!(bodies(store, "orders", 1).is_empty());
        assert_eq!(bodies(store, DISCARD_TOPIC, 0), [b"2"]);
    }
}

#[test]
fn t5_an_acknowledged_outcome_survives_lost_power() {
    for (kind, outcome) in [
        (EndKind::Commit, Outcome::Committed),
        (EndKind::RollBack, Outcome::RolledBack),
        (EndKind::Discard, Outcome::Discarded),
    ] {
        let bench = Bench::sync();
        let store = bench.open();
        let half = prepare(&store, &[1; 700]);
        end(&store, &half, kind).unwrap();
        for seed in 0..30 {
            let after = bench.crashed(seed, CrashKeep::PowerLoss).open();
            assert_eq!(after.transactions().unwrap()[0].outcome, Some(outcome), "seed {seed}");
            assert!(pending(&after).is_empty());
        }
    }
}

#[test]
fn t6_ends_that_cannot_be_are_exact_errors_and_write_nothing() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = send(&store, "orders", b"no half").unwrap();
    let half = prepare(&store, b"half");
    let before = appended(&store);
    let refused = |change: &dyn Fn(&mut End)| {
        let mut end = end_of(&half, EndKind::Commit);
        change(&mut end);
        store.end_transaction(&end, Wait::Yes).unwrap_err()
    };
    assert!(matches!(refused(&|end| end.half.queue_offset = 7), Error::TransactionNotFound { .. }));
    assert!(matches!(refused(&|end| end.half.physical_offset += 1), Error::TransactionNotFound { .. }));
    let no_half = sent.physical_offset.0;
    assert!(matches!(refused(&|end| end.half.physical_offset = no_half), Error::TransactionNotFound { .. }));
    assert!(matches!(refused(&|end| end.group = Some("others".into())), Error::WrongGroup { .. }));
    assert!(matches!(refused(&|end| end.transaction_id = Some("x".into())), Error::TransactionNotFound { .. }));
    assert_eq!((appended(&store), pending(&store)), (before, vec![0]));
    end(&store, &half, EndKind::Commit).unwrap();
    let before = appended(&store);
    assert!(end(&store, &half, EndKind::Commit).unwrap().already);
    assert!(matches!(refused(&|end| end.kind = EndKind::RollBack), Error::AlreadyEnded { .. }));
    assert!(matches!(refused(&|end| end.group = Some("others".into())), Error::WrongGroup { .. }));
    assert!(matches!(refused(&|end| end.half.physical_offset += 1), Error::TransactionNotFound { .. }));
    assert_eq!(appended(&store), before);
}

#[test]
fn t8_after_recovery_every_decided_half_is_named_by_an_op() {
    // The op of a commit is torn off. Healing writes it again, once.
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"body");
    end(&store, &half, EndKind::Commit).unwrap();
    let (ops, _) = store.read(OP_TOPIC, QUEUE, QueueOffset(0), 9, None).unwrap();
    let op = ops[0].view().unwrap().physical_offset.0;
    let torn = bench.killed();
    torn.memory.unlink("txstore/published").unwrap();
    torn.write("commitlog/00000000000000000000", op, &[0; 300]);
    let reader = torn.read_only();
    assert_eq!((reader.open_report().healed_ops, pending(&reader)), (1, vec![]), "it waits to be healed");
    drop(reader);
    let after = torn.open();
    assert_eq!(after.open_report().healed_ops, 1);
    assert_eq!(bodies(&after, OP_TOPIC, 0), [b"0,"]);
    assert_eq!((bodies(&after, "orders", 1).len(), progress(&after)), (1, 1));
    assert!(end(&after, &half, EndKind::Commit).unwrap().already);
    assert_eq!(torn.killed().open().open_report().healed_ops, 0);
}

#[test]
fn t9_the_progress_is_the_lowest_pending_half() {
    let bench = Bench::sync();
    let store = bench.open();
    let halves: Vec<Sent> = (0..5_u8).map(|n| prepare(&store, &[n])).collect();
    for (ended, expected) in [(1, 0), (0, 2), (4, 2), (2, 3), (3, 5)] {
        end(&store, &halves[ended], EndKind::RollBack).unwrap();
        store.write_offsets().unwrap();
        assert_eq!(progress(&store), expected);
        assert_eq!(progress(&bench.killed().open()), expected);
    }
    store.close().unwrap();
    assert_eq!(progress(&bench.open()), 5);
}

#[test]
fn t9_the_progress_is_written_after_the_sync_it_depends_on() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"half");
    store.flush().unwrap();
    end(&store, &half, EndKind::RollBack).unwrap();
    // The power fails at every call that writes the progress: the progress is never ahead of the op.
    let first = bench.memory.calls() + 1;
    store.write_offsets().unwrap();
    assert!(bench.memory.calls() > first + 3);
    for seed in 0..40 {
        let after = bench.crashed(seed, CrashKeep::PowerLoss).open();
        assert!(pending(&after).is_empty(), "seed {seed}");
        assert_eq!(after.transactions().unwrap()[0].outcome, Some(Outcome::RolledBack));
    }
}

#[test]
fn t11_due_halves_are_grouped_by_equal_facts_and_postponed_together() {
    let bench = Bench::sync();
    let store = bench.open();
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"half", queue_id: QUEUE };
    let mut sent = Vec::new();
    for (group, owner) in [("a", 0), (GROUP, 0), ("a", 7), ("a", 0), (GROUP, 0)] {
        sent.push(
            store
                .prepare(&NewHalfMessage { message, group, unique_id: None, owner }, Wait::Yes)
                .unwrap()
                .acknowledged()
                .unwrap(),
        );
        bench.clock.advance(1_000);
    }
    bench.clock.advance(6_000);
    store.look_again(3, 0, true).unwrap();
    bench.clock.advance(6_000);
    let all = group_by_facts(store.halves_due(9).unwrap());
    let offsets = |group: &DueGroup| group.halves.iter().map(|half| half.newest.queue_offset).collect::<Vec<_>>();
    assert_eq!(all.iter().map(offsets).collect::<Vec<_>>(), [vec![0], vec![1, 4], vec![3], vec![2]]);
    let (youngest, oldest) = (&all[1].youngest, &all[1].oldest);
    assert_eq!((youngest.age_ms, oldest.age_ms), (13_000, 16_000));
    assert_eq!((youngest.stored_age_ms, oldest.stored_age_ms), (13_000, 16_000));
    assert_eq!((all[2].youngest.last_check_age_ms, all[2].oldest.last_check_age_ms), (Some(6_000), Some(6_000)));
    // One transaction ends in the meantime. The others must still be postponed.
    end(&store, &sent[1], EndKind::RollBack).unwrap();
    store.look_again_all(offsets(&all[1]).into_iter(), 30_000).unwrap();
    let left: Vec<_> = store.halves_waiting(None, 9).unwrap();
    let left: Vec<_> = left.iter().map(|half| (half.newest.queue_offset, half.look_again_in_ms > 0)).collect();
    assert_eq!(left, [(0, false), (2, false), (3, false), (4, true)]);
}

#[test]
fn t11_what_is_due_is_handed_out_and_one_that_runs_is_not_asked_early() {
    let bench = Bench::sync();
    let store = bench.open();
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body: b"running", queue_id: QUEUE };
    let half = NewHalfMessage { message, group: GROUP, unique_id: None, owner: 9 };
    store.prepare(&half, Wait::Yes).unwrap().acknowledged().unwrap();
    prepare(&store, b"other");
    assert!(store.halves_due(9).unwrap().is_empty());
    assert_eq!(store.next_due_in_ms().unwrap(), Some(6_000));
    bench.clock.advance(6_000);
    let due = store.halves_due(9).unwrap();
    assert_eq!(
        due.iter().map(|due| (due.running, due.owner, due.age_ms)).collect::<Vec<_>>(),
        [(true, 9, 6_000), (false, 0, 6_000)]
    );
    store.look_again(1, 30_000, true).unwrap();
    store.local_transaction_ended(0).unwrap();
    assert!(store.halves_due(9).unwrap().is_empty());
    bench.clock.advance(6_000);
    let due = store.halves_due(9).unwrap();
    assert_eq!(
        due.iter().map(|due| (due.newest.queue_offset, due.running, due.age_ms)).collect::<Vec<_>>(),
        [(0, false, 6_000)]
    );
    bench.clock.advance(24_000);
    let due = store.halves_due(1).unwrap();
    assert_eq!((due.len(), due[0].newest.queue_offset), (1, 0), "a bounded number, the longest due first");
    assert_eq!(store.halves_due(9).unwrap()[1].checks, 1, "a check that was sent counts");
    // Counts are stored in the snapshot. After a crash without a snapshot, a check is repeated, never omitted.
    store.snapshot().unwrap();
    let after = bench.killed().open();
    assert_eq!(after.halves_waiting(Some(0), 9).unwrap()[0].checks, 1);
}

#[test]
fn t12_a_resent_half_is_one_half_while_it_is_pending() {
    let bench = Bench::sync();
    let store = bench.open();
    let first = prepare_as(&store, b"body", Some("id-1")).unwrap();
    let before = appended(&store);
    let again = prepare_as(&store, b"body", Some("id-1")).unwrap();
    assert_eq!((copy_of(&again), appended(&store)), (copy_of(&first), before));
    let other = prepare_as(&store, b"other body", Some("id-1")).unwrap();
    assert_ne!(copy_of(&other), copy_of(&first), "another body is another transaction");
    let after = bench.killed();
    let store = after.open();
    assert_eq!(copy_of(&prepare_as(&store, b"body", Some("id-1")).unwrap()), copy_of(&first), "also after a crash");
    end(&store, &first, EndKind::RollBack).unwrap();
    let next = prepare_as(&store, b"body", Some("id-1")).unwrap();
    assert_ne!(copy_of(&next), copy_of(&first), "rolled back, it may be tried again: this is a new one");
    assert_eq!(pending(&after.killed().open()), [1, 2]);
}

#[test]
fn t13_jumps_of_the_wall_clock_decide_nothing() {
    let bench = Bench::sync();
    let store = bench.open();
    prepare(&store, b"half");
    for jump in [86_400_000, -3 * 86_400_000, 3_600_000] {
        bench.clock.jump_wall(jump);
        assert!(store.halves_due(9).unwrap().is_empty(), "by {jump}");
        assert_eq!(store.next_due_in_ms().unwrap(), Some(6_000));
        send(&store, "orders", b"later").unwrap();
    }
    let (records, _) = store.scan(PhysicalOffset(0), 9).unwrap();
    let times: Vec<i64> = records.iter().map(|record| record.view().unwrap().store_timestamp.0).collect();
    assert!(times.is_sorted(), "store time never goes back: {times:?}");
    // After a crash with the clock set back, a half is as old as the newest record shows, never older.
    prepare(&store, b"young");
    bench.clock.jump_wall(-30 * 86_400_000);
    let after = bench.killed().open();
    let ages: Vec<i64> = after.halves_waiting(None, 9).unwrap().iter().map(|half| half.stored_age_ms).collect();
    assert_eq!(ages, [86_400_000, 0]);
    let due =
        |store: &Store| store.halves_due(9).unwrap().iter().map(|due| due.newest.queue_offset).collect::<Vec<_>>();
    assert_eq!(due(&after), [0]);
    bench.clock.advance(5_999);
    assert_eq!(due(&after), [0], "the young one has its whole time");
    bench.clock.advance(1);
    assert_eq!(due(&after), [0, 1]);
}

#[test]
fn t14_checks_write_nothing() {
    let bench = Bench::sync();
    let store = bench.open();
    (0..20_u8).for_each(|n| drop(prepare(&store, &[n])));
    let (calls, before) = (bench.memory.calls(), appended(&store));
    for _ in 0..15 {
        bench.clock.advance(30_000);
        for due in store.halves_due(100).unwrap() {
            store.half(QueueOffset(due.newest.queue_offset)).unwrap();
            store.look_again(due.newest.queue_offset, 30_000, true).unwrap();
        }
    }
    assert_eq!((bench.memory.calls(), appended(&store)), (calls, before));
    assert!(store.halves_waiting(None, 100).unwrap().iter().all(|waiting| waiting.checks == 15));
}

#[test]
fn a_discarded_one_is_resumed_once() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"body");
    assert!(matches!(store.resume(&half.unique_id), Err(Error::StillPending { .. })));
    end(&store, &half, EndKind::Discard).unwrap();
    let resumed = store.resume(&half.unique_id).unwrap();
    assert!(matches!(store.resume(&half.unique_id), Err(Error::StillPending { .. })));
    let after = bench.killed();
    let store = after.open();
    assert_eq!(pending(&store), [1]);
    assert!(matches!(
        end(&store, &half, EndKind::Commit),
        Err(Error::AlreadyEnded { outcome: Outcome::Discarded, .. })
    ));
    end(&store, &resumed, EndKind::Commit).unwrap();
    let outcomes = |store: &Store| store.transactions().unwrap().iter().map(|row| row.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes(&store), [Some(Outcome::Discarded), Some(Outcome::Committed)]);
    assert_eq!(outcomes(&after.killed().open()), outcomes(&store));
    assert_eq!(bodies(&after.killed().open(), "orders", 1), [b"body"]);
}

#[test]
fn t7_no_two_final_or_discarded_records_name_one_half() {
    let bench = Bench::sync();
    let store = bench.open();
    let (kept, parked) = (prepare(&store, b"kept"), prepare(&store, b"parked"));
    for _ in 0..3 {
        end(&store, &kept, EndKind::Commit).unwrap();
        end(&store, &parked, EndKind::Discard).unwrap();
    }
    // The store is killed while it is open, healed, and the end is repeated: there is still one record each.
    let store = bench.killed().open();
    assert!(end(&store, &kept, EndKind::Commit).unwrap().already);
    assert!(end(&store, &parked, EndKind::Discard).unwrap().already);
    let (records, _) = store.scan(PhysicalOffset(0), usize::MAX).unwrap();
    let mut named: Vec<(String, u64)> = records
        .iter()
        .map(|record| record.view().unwrap())
        .filter(|view| view.topic == "orders" || view.topic == DISCARD_TOPIC)
        .map(|view| (view.topic.to_owned(), view.prepared_transaction_offset.0))
        .collect();
    assert_eq!(named.len(), 2);
    named.dedup();
    assert_eq!(named.len(), 2);
}

#[test]
fn t10_no_log_file_with_a_pending_half_is_deleted() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let pending = prepare(&store, b"in the first file");
    while store.stat().unwrap().max_physical_offset < 10 * 4_096 {
        send(&store, "others", &[7; 200]).unwrap();
    }
    store.close().unwrap();
    // Only data after the log's end is deleted.
    let store = bench.open();
    assert_eq!(store.stat().unwrap().min_physical_offset, 0);
    assert!(end(&store, &pending, EndKind::Commit).is_ok());
    assert_eq!(bodies(&store, "orders", 1), [b"in the first file"]);
}

#[test]
fn p3_an_error_says_what_and_where_and_what_to_do() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"x");
    end(&store, &half, EndKind::Commit).unwrap();
    let contrary = end(&store, &half, EndKind::RollBack).unwrap_err().to_string();
    assert!(contrary.contains(&*half.unique_id) && contrary.contains("committed"), "{contrary}");
    let second = bench.try_open().unwrap_err().to_string();
    assert!(second.contains("is open for writing") && second.contains("hint:"), "{second}");
    let unknown = store.read_at(PhysicalOffset(1 << 40)).unwrap_err().to_string();
    assert!(unknown.contains("1099511627776"), "{unknown}");
}
