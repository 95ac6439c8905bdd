//! Timed messages are handed over to a broker's timer and taken back: each is always in one of both, at every crash.

use super::timed::{HOUR_MS, deliver, recall, send_at};
use super::*;
use crate::base::names::WHEEL_TOPIC;
use crate::index::timed::wheel_ms;
use crate::record::properties::{HANDED_OVER, TIMER_DELIVER_MS, TIMER_OUT_MS};
use crate::storage::memory::FaultKind;

pub(super) const CHECKPOINT: &str = "config/timercheck";

/// Returns the bodies that a broker would read in its timer's queue, with the times at which it would deliver them.
fn for_a_broker(bench: &Bench, store: &Store) -> Vec<(Vec<u8>, i64)> {
    let next = bench.memory.len(CHECKPOINT).unwrap().map_or(0, |_| number(bench, 16));
    let end = store.queues().unwrap().into_iter().find(|row| row.0 == WHEEL_TOPIC).map_or(0, |row| row.3);
    assert!(next <= end, "{next} to {end}");
    let found =
        if next < end { store.read(WHEEL_TOPIC, QUEUE, QueueOffset(next), 99, None).unwrap().0 } else { vec![] };
    let facts = |record: &StoredRecord| {
        let view = record.view().unwrap();
        (view.body.to_vec(), view.properties.get_str(TIMER_OUT_MS).unwrap().parse().unwrap())
    };
    found.iter().map(facts).collect()
}

fn number(bench: &Bench, at: u64) -> u64 {
    u64::from_be_bytes(bench.read(CHECKPOINT, at, 8).try_into().unwrap())
}

/// Does what a broker leaves when it has read up to `next`, and delivered what was due before `read_ms`.
fn as_a_broker(bench: &Bench, read_ms: i64, next: u64) {
    bench.memory.open("timerwheel", OpenMode::Create).unwrap().write_at(b"slots", 0).unwrap();
    bench.write(CHECKPOINT, 0, &read_ms.to_be_bytes());
    for at in [16, 24] {
        bench.write(CHECKPOINT, at, &next.to_be_bytes());
    }
}

#[test]
fn a_message_waits_in_the_form_of_a_broker() {
    let bench = Bench::sync();
    let store = bench.open();
    let whole = bench.clock.wall().0 + 5_000;
    assert_eq!(whole % 1_000, 0);
    let sent = [0, 1, 999].map(|more| send_at(&store, "orders", &[9], whole + more).unwrap());
    assert_eq!(store.hand_over_timed().unwrap().messages, 3);
    // In the second before its time, because a broker delivers a second's messages when the second is over.
    let out = for_a_broker(&bench, &store).into_iter().map(|(_, out_ms)| out_ms).collect::<Vec<_>>();
    assert_eq!(out, [whole - 1_000, whole, whole]);
    let (found, _) = store.read(WHEEL_TOPIC, QUEUE, QueueOffset(0), 9, None).unwrap();
    let view = found[0].view().unwrap();
    assert_eq!(
        (view.unique_id(), view.prepared_transaction_offset),
        (Some(&*sent[0].unique_id.to_string()), sent[0].physical_offset)
    );
    for (name, value) in [
        ("REAL_TOPIC", "orders"),
        ("REAL_QID", "1"),
        (HANDED_OVER, &whole.to_string()),
        (TIMER_DELIVER_MS, &whole.to_string()),
    ] {
        assert_eq!(view.properties.get_str(name), Some(value), "{name}");
    }
}

#[test]
fn a_second_ends_at_the_time_of_a_message_or_after() {
    for due_ms in [-1_001, -1_000, -999, -1, 0, 1, 999, 1_000, 1_001, 1_700_000_000_000, i64::MIN + 2_000] {
        let end = wheel_ms(due_ms) + 1_000;
        assert!(due_ms <= end && end < due_ms + 1_000, "{due_ms}: {end}");
    }
}

#[test]
fn what_was_handed_over_is_left_to_the_broker() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + 5_000;
    let sent = send_at(&store, "orders", b"one", due_ms).unwrap();
    store.hand_over_timed().unwrap();
    bench.clock.advance(5_000);
    assert_eq!(deliver(&store), (0, None));
    let refused = recall(&store, &sent, "orders", due_ms).unwrap_err().to_string();
    assert!(refused.contains("handed over to a broker"), "{refused}");
    assert!(bodies(&store, "orders", 1).is_empty());
}

#[test]
fn the_next_opening_takes_back_what_no_broker_has_read() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + 5_500;
    let sent: Vec<_> = (0..4_u8).map(|n| send_at(&store, "orders", &[n], due_ms).unwrap()).collect();
    for expected in [4, 8] {
        // Twice in one opening: what was handed over before is handed over again, once.
        assert_eq!(store.hand_over_timed().unwrap().messages, 4);
        assert_eq!(
            (
                for_a_broker(&bench, &store).len(),
                store.queues().unwrap().iter().find(|row| row.0 == WHEEL_TOPIC).unwrap().3
            ),
            (4, expected)
        );
    }
    store.close().unwrap();
    // A broker that refused the store, or one without a timer, reads nothing.
    let store = bench.open();
    assert_eq!((store.timed_messages().unwrap(), for_a_broker(&bench, &store).len()), (4, 0));
    recall(&store, &sent[2], "orders", due_ms).unwrap();
    bench.clock.advance(5_500);
    assert_eq!(deliver(&store), (3, None));
    let (found, _) = store.read("orders", QueueId(1), QueueOffset(0), 9, None).unwrap();
    assert_eq!(found.iter().map(|record| record.view().unwrap().body[0]).collect::<Vec<_>>(), [0, 1, 3]);
    let properties = found[0].view().unwrap().properties;
    assert_eq!(properties.get_str(TIMER_OUT_MS), Some(&*due_ms.to_string()), "as it was sent");
    assert_eq!((properties.get_str(HANDED_OVER), properties.get_str("REAL_TOPIC")), (None, None));
    store.close().unwrap();
    let store = bench.open();
    assert_eq!((store.timed_messages().unwrap(), for_a_broker(&bench, &store).len()), (0, 0));
}

#[test]
fn a_full_disk_fails_the_opening_that_takes_back_and_loses_nothing() {
    let bench = Bench::sync().with(|options| options.commit_log_file_size = Some(64 << 10));
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + HOUR_MS;
    for n in 0..40_u8 {
        send_at(&store, "orders", &[n; 1_000], due_ms).unwrap();
    }
    store.hand_over_timed().unwrap();
    store.close().unwrap();
    bench.memory.leave_space(0);
    let error = bench.try_open().unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    bench.memory.leave_space(u64::MAX);
    let store = bench.open();
    assert_eq!((store.timed_messages().unwrap(), for_a_broker(&bench, &store).len()), (40, 0));
    bench.clock.advance(HOUR_MS);
    assert_eq!(deliver(&store), (40, None));
    assert_eq!(bodies(&store, "orders", 1).len(), 40);
}

#[test]
fn what_a_broker_has_delivered_does_not_come_again() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + 5_500;
    // Handed over once, taken back and recalled: it is not the broker's, though its time is the latest.
    let recalled = send_at(&store, "orders", b"0", due_ms + HOUR_MS).unwrap();
    store.hand_over_timed().unwrap();
    store.close().unwrap();
    let store = bench.open();
    recall(&store, &recalled, "orders", due_ms + HOUR_MS).unwrap();
    send_at(&store, "orders", b"1", due_ms).unwrap();
    send_at(&store, "orders", b"2", due_ms + 2_000).unwrap();
    store.hand_over_timed().unwrap();
    store.close().unwrap();
    for (read_ms, next, waiting) in [(due_ms + 1_000, 3, 1), (due_ms + 9_000, 2, 1), (due_ms - 5_000, 1, 2)] {
        as_a_broker(&bench, read_ms, next);
        let before = bench.files();
        let refused = bench.try_open().unwrap_err().to_string();
        assert!(refused.contains(&format!("{waiting} messages wait in the timer of a RocketMQ broker")), "{refused}");
        assert_eq!(bench.files(), before, "refused before any change");
    }
    // A broker that was killed may have delivered more than its file says.
    as_a_broker(&bench, due_ms + 9_000, 3);
    bench.memory.open("abort", OpenMode::Create).unwrap();
    let refused = bench.try_open().unwrap_err().to_string();
    assert!(refused.contains("not stopped cleanly"), "{refused}");
    bench.memory.unlink("abort").unwrap();
    as_a_broker(&bench, 0, 1);
    assert!(bench.try_open().unwrap_err().to_string().contains("not stopped cleanly"), "it may have begun");
    as_a_broker(&bench, due_ms + 9_000, 3);
    bench.clock.advance(20_000);
    let store = bench.open();
    assert_eq!((store.timed_messages().unwrap(), deliver(&store)), (0, (0, None)));
    assert_eq!(bench.memory.len("timerwheel").unwrap(), None, "the next broker begins with an empty timer");
    let due_ms = bench.clock.wall().0 + 5_500;
    send_at(&store, "orders", b"3", due_ms).unwrap();
    assert_eq!(store.hand_over_timed().unwrap().messages, 1);
    assert_eq!(for_a_broker(&bench, &store), [(b"3".to_vec(), wheel_ms(due_ms))]);
    store.close().unwrap();
}

#[test]
fn a_brokers_own_messages_are_not_ours() {
    let bench = Bench::sync();
    let store = bench.open();
    send_at(&store, "orders", b"1", bench.clock.wall().0 + 5_500).unwrap();
    store.hand_over_timed().unwrap();
    store.close().unwrap();
    // As a broker's own record, which has no mark of txstore.
    let at = {
        let store = bench.read_only();
        let (found, _) = store.read(WHEEL_TOPIC, QUEUE, QueueOffset(0), 9, None).unwrap();
        let bytes = found[0].bytes();
        let mark = bytes.windows(HANDED_OVER.len()).position(|window| window == HANDED_OVER.as_bytes()).unwrap();
        found[0].view().unwrap().physical_offset.0 + crate::base::units::to_u64(mark)
    };
    bench.write("commitlog/00000000000000000000", at, b"X");
    let refused = bench.try_open().unwrap_err().to_string();
    assert!(refused.contains("1 messages wait in the timer"), "{refused}");
}

/// Hands over twice, with an opening in between, and is stopped at any call of the file system.
fn script(bench: &Bench, sent: &mut usize) -> Result<()> {
    let store = bench.try_open()?;
    for n in 0..9_u8 {
        send_at(&store, "orders", &[n; 300], bench.clock.wall().0 + 1_000 * (2 + i64::from(n * 7 % 12)))?;
        *sent += 1;
    }
    bench.clock.advance(3_000);
    store.deliver_delayed(99)?;
    store.hand_over_timed()?;
    store.close()?;
    let store = bench.try_open()?;
    bench.clock.advance(2_000);
    store.deliver_delayed(99)?;
    store.hand_over_timed()?;
    store.close()
}

#[test]
fn a_crash_at_any_call_leaves_each_message_to_one() {
    let whole = Bench::sync();
    script(&whole, &mut 0).unwrap();
    let calls = whole.memory.calls();
    assert!(calls > 100, "{calls}");
    let mut taken_over = 0;
    for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
        for call in 1..=calls {
            let bench = Bench::sync();
            bench.memory.fail_at(call, FaultKind::Stop, true);
            let mut sent = 0;
            let done = script(&bench, &mut sent);
            bench.memory.clear_fault();
            let bench = bench.crashed(call, keep);
            let context = format!("call {call} of {calls}, {keep:?}: {done:?}");
            let may_be_taken_over = bench.memory.len(crate::store::GUARD).unwrap().is_none();
            if may_be_taken_over && bench.memory.len("commitlog/00000000000000000000").unwrap().is_some() {
                let store = bench.read_only();
                let mut all = bodies(&store, "orders", 1);
                all.extend(for_a_broker(&bench, &store).into_iter().map(|(body, _)| body));
                // What is not handed over, a broker leaves where it is.
                taken_over += usize::from(sent == 9 && all.len() == 9);
                assert_once(all, &context);
            }
            let store = bench.open();
            bench.clock.advance(60_000);
            let waiting = store.timed_messages().unwrap();
            assert!(for_a_broker(&bench, &store).is_empty(), "{context}");
            let before = bodies(&store, "orders", 1).len();
            while deliver(&store).0 > 0 {}
            let all = bodies(&store, "orders", 1);
            assert_eq!(all.len(), before + crate::base::units::to_usize(waiting), "{context}");
            assert!(all.len() >= sent, "{context}");
            assert_once(all, &context);
            store.close().unwrap();
        }
    }
    assert!(taken_over > 3, "{taken_over}");
}

fn assert_once(mut all: Vec<Vec<u8>>, context: &str) {
    all.sort_unstable();
    let mut once = all.clone();
    once.dedup();
    assert_eq!(all, once, "{context}");
}
