//! Messages with a time are delivered at it, never before, once, also after a crash at any moment; or recalled.

use super::*;
use crate::base::error::Outcome;
use crate::base::names::{HALF_TOPIC, TIMED_TOPIC};
use crate::index::delay::level_ms;
use crate::record::TransactionType;
use crate::record::message::{Origin, Topic};
use crate::record::properties::{TIMER_DELIVER_MS, TIMER_OUT_MS, TRANSACTION_TIMER};

pub(super) const HOUR_MS: i64 = 3_600_000;

fn envelope_at(topic: &str, deliver_ms: i64) -> Envelope {
    let parts = Parts { topic, keys: "k", tags: Some("t"), deliver_ms: Some(deliver_ms), ..Parts::default() };
    Envelope::new(&parts).unwrap()
}

pub(super) fn send_at(store: &Store, topic: &str, body: &[u8], deliver_ms: i64) -> Result<Sent> {
    let envelope = envelope_at(topic, deliver_ms);
    let message = NewMessage { envelope: &envelope, body, queue_id: QueueId(1) };
    store.append_one(&message, Wait::Yes)?.acknowledged()
}

pub(super) fn deliver(store: &Store) -> (usize, Option<i64>) {
    let done = store.deliver_delayed(100).unwrap();
    assert_eq!(done.passed_over, Vec::<String>::new());
    (done.messages, done.next_in_ms)
}

pub(super) fn recall(store: &Store, sent: &Sent, topic: &str, due_ms: i64) -> Result<()> {
    store.recall(&Recall { topic, unique_id: &sent.unique_id, due_ms })?.acknowledged().map(|_| ())
}

#[test]
fn a_message_waits_for_its_time_and_is_then_as_sent() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + 1_234;
    let sent = send_at(&store, "orders", b"later", due_ms).unwrap();
    assert_eq!((sent.queue_id, store.timed_messages().unwrap()), (QueueId(1), 1));
    assert!(bodies(&store, "orders", 1).is_empty());
    assert_eq!(store.query("orders", "k", 9).unwrap(), vec![]);
    assert_eq!(deliver(&store), (0, Some(1_234)));
    bench.clock.advance(1_233);
    assert_eq!(deliver(&store), (0, Some(1)));
    bench.clock.advance(1);
    assert_eq!(deliver(&store), (1, None));
    assert_eq!((deliver(&store), store.timed_messages().unwrap()), ((0, None), 0));
    let (found, _) = store.read("orders", QueueId(1), QueueOffset(0), 9, None).unwrap();
    let view = found[0].view().unwrap();
    assert_eq!((view.body, view.unique_id().unwrap().to_owned()), (&b"later"[..], sent.unique_id.to_string()));
    assert_eq!(view.prepared_transaction_offset, sent.physical_offset);
    assert_eq!(view.properties.get_str("REAL_TOPIC"), None);
    // As in RocketMQ, a consumer learns the time from the message.
    for name in [TIMER_DELIVER_MS, TIMER_OUT_MS] {
        assert_eq!(view.properties.get_str(name), Some(&*due_ms.to_string()));
    }
    assert_eq!(store.query("orders", "k", 9).unwrap().len(), 1);
}

#[test]
fn messages_are_delivered_in_the_order_of_their_times() {
    let bench = Bench::sync();
    let store = bench.open();
    let now = bench.clock.wall().0;
    for n in 0..20_u8 {
        send_at(&store, "orders", &[n], now + 100_000 - i64::from(n) * 5_000).unwrap();
    }
    bench.clock.advance(100_000);
    assert_eq!(store.deliver_delayed(3).unwrap().next_in_ms, Some(0), "more is due than one round takes");
    while deliver(&store).0 > 0 {}
    assert_eq!(bodies(&store, "orders", 1), (0..20_u8).rev().map(|n| vec![n]).collect::<Vec<_>>());
}

#[test]
fn levels_and_times_do_not_wait_for_each_other() {
    let bench = Bench::sync();
    let store = bench.open();
    let parts = Parts { topic: "orders", delay_level: 2, ..Parts::default() };
    let level = Envelope::new(&parts).unwrap();
    let level = NewMessage { envelope: &level, body: b"level", queue_id: QueueId(1) };
    store.append_one(&level, Wait::Yes).unwrap().acknowledged().unwrap();
    send_at(&store, "orders", b"time", bench.clock.wall().0 + 2_000).unwrap();
    assert_eq!(deliver(&store), (0, Some(2_000)));
    bench.clock.advance(2_000);
    assert_eq!(deliver(&store), (1, Some(level_ms(2) - 2_000)));
    bench.clock.advance(level_ms(2));
    assert_eq!(deliver(&store), (1, None));
    assert_eq!(bodies(&store, "orders", 1), [&b"time"[..], b"level"]);
}

#[test]
fn a_time_that_has_passed_is_delivered_at_once_and_one_too_far_ahead_is_refused() {
    let bench = Bench::sync();
    let store = bench.open();
    let now = bench.clock.wall().0;
    for deliver_ms in [now, now - 1, 0, i64::MIN] {
        send_at(&store, "orders", b"at once", deliver_ms).unwrap();
    }
    assert_eq!(bodies(&store, "orders", 1).len(), 4);
    let most_ms = bench.options.timer_max_delay_s * 1_000;
    send_at(&store, "orders", b"far", now + most_ms).unwrap();
    for deliver_ms in [now + most_ms + 1, i64::MAX] {
        let refused = send_at(&store, "orders", b"too far", deliver_ms).unwrap_err().to_string();
        assert!(refused.contains("timer_max_delay_sec allows 259200 s"), "{refused}");
    }
    assert_eq!(store.timed_messages().unwrap(), 1);
}

#[test]
fn the_wall_clock_alone_tells_when_a_message_is_due() {
    let bench = Bench::sync();
    let store = bench.open();
    send_at(&store, "orders", b"in an hour", bench.clock.wall().0 + HOUR_MS).unwrap();
    bench.clock.jump_wall(-HOUR_MS);
    bench.clock.advance(HOUR_MS);
    assert_eq!(deliver(&store), (0, Some(HOUR_MS)));
    bench.clock.jump_wall(HOUR_MS);
    assert_eq!(deliver(&store), (1, None));
}

#[test]
fn a_recalled_message_is_never_delivered() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + HOUR_MS;
    let sent: Vec<_> = (0..3_u8).map(|n| send_at(&store, "orders", &[n], due_ms).unwrap()).collect();
    for (topic, due_ms) in [("others", due_ms), ("orders", due_ms + 1)] {
        let refused = recall(&store, &sent[1], topic, due_ms).unwrap_err();
        assert!(matches!(refused, Error::MessageNotFound { .. }), "{refused}");
    }
    recall(&store, &sent[1], "orders", due_ms).unwrap();
    let again = recall(&store, &sent[1], "orders", due_ms).unwrap_err();
    assert!(again.to_string().contains("delivered, recalled or never sent"), "{again}");
    // A recall is durable when it returns, in ASYNC_FLUSH, too.
    let store = bench.crashed(0, CrashKeep::PowerLoss).open();
    assert_eq!(store.timed_messages().unwrap(), 2);
    bench.clock.advance(HOUR_MS);
    while deliver(&store).0 > 0 {}
    assert_eq!(bodies(&store, "orders", 1), [[0], [2]]);
    assert!(recall(&store, &sent[0], "orders", due_ms).is_err(), "delivered");
}

#[test]
fn a_client_cannot_make_its_message_look_like_a_recall_or_one_of_another_time() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + HOUR_MS;
    let properties = format!(
        "TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_DEL_UNIQKEY\x01orders_ID-1\x02TXSTORE_HANDED_OVER_MS\x011\x02UNIQ_KEY\x01ID-2\x02"
    );
    let born_host = "127.0.0.1:40000".parse().unwrap();
    let origin = Origin { unique_id: None, sys_flag: 0, born_timestamp: TimestampMs(1), born_host, reconsume_times: 0 };
    let envelope = Envelope::received(Topic::new("orders").unwrap(), &properties, 0, origin).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"later", queue_id: QueueId(1) };
    store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
    // Without the snapshot, the log alone tells what waits.
    store.close().unwrap();
    let bench = bench.killed();
    bench.memory.unlink("txstore/snapshot").unwrap();
    let store = bench.open();
    assert_eq!((store.timed_messages().unwrap(), deliver(&store)), (1, (0, Some(HOUR_MS))));
    bench.clock.advance(HOUR_MS);
    assert_eq!(deliver(&store), (1, None));
    assert_eq!(bodies(&store, "orders", 1), [b"later"]);
}

#[test]
fn too_many_waiting_messages_are_refused() {
    let bench = Bench::sync().with(|options| options.timed_messages_max = 2);
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + HOUR_MS;
    for _ in 0..2 {
        send_at(&store, "orders", b"x", due_ms).unwrap();
    }
    let refused = send_at(&store, "orders", b"x", due_ms).unwrap_err();
    assert!(matches!(refused, Error::TooManyPending { .. }), "{refused}");
    assert!(refused.to_string().contains("timed_messages_max"), "{refused}");
    bench.clock.advance(HOUR_MS);
    assert_eq!(deliver(&store).0, 2);
    send_at(&store, "orders", b"x", due_ms + HOUR_MS).unwrap();
}

/// Sends, delivers, recalls, takes a snapshot and closes, and is stopped at any call of the file system.
fn script(bench: &Bench) -> Result<()> {
    let store = bench.try_open()?;
    for n in 0..12_u8 {
        let due_ms = bench.clock.wall().0 + 1_000 * (1 + i64::from(n * 7 % 12));
        let sent = send_at(&store, "orders", &[n; 300], due_ms)?;
        if n % 5 == 4 {
            recall(&store, &sent, "orders", due_ms).or_else(|error| match error {
                Error::MessageNotFound { .. } => Ok(()),
                other => Err(other),
            })?;
        }
        if n % 3 == 2 {
            bench.clock.advance(2_000);
            store.deliver_delayed(2)?;
            store.deliver_delayed(2)?;
        }
        match n {
            4 => store.snapshot()?,
            7 => store.write_offsets()?,
            _ => {}
        }
    }
    store.flush()?;
    store.close()
}

#[test]
fn a_crash_at_any_call_delivers_each_message_once() {
    let ends = [CrashKeep::PageCache, CrashKeep::PowerLoss];
    for (flush, keep) in
        [FlushDiskType::Sync, FlushDiskType::Async].into_iter().flat_map(|flush| ends.map(|keep| (flush, keep)))
    {
        let whole = Bench::new(flush);
        script(&whole).unwrap();
        let calls = whole.memory.calls();
        assert!(calls > 50, "{calls}");
        for call in 1..=calls {
            let bench = Bench::new(flush);
            bench.memory.fail_at(call, crate::storage::memory::FaultKind::Stop, true);
            let done = script(&bench);
            bench.memory.clear_fault();
            let bench = bench.crashed(call, keep);
            let store = bench.open();
            let now = bench.clock.wall();
            let waiting = store.shared.inner.lock().derived.timed.clone();
            let early = bodies(&store, "orders", 1).len();
            assert_eq!(deliver(&store).0, waiting.due(now).count(), "none early, call {call}");
            bench.clock.advance(20_000);
            while deliver(&store).0 > 0 {}
            let mut all = bodies(&store, "orders", 1);
            assert_eq!(all.len(), early + crate::base::units::to_usize(waiting.len()), "call {call}: each that waited");
            all.sort_unstable();
            let mut once = all.clone();
            once.dedup();
            assert_eq!(all, once, "call {call} of {calls}, {flush:?}, {keep:?}: {done:?}");
            // What was delivered and what was recalled is all that ever waited.
            let records = store.queues().unwrap().into_iter().find(|row| row.0 == TIMED_TOPIC).map_or(0, |row| row.3);
            let recalls = records - crate::base::units::to_u64(all.len());
            assert!(recalls <= 4, "call {call}: {records} records, {} delivered", all.len());
            store.close().unwrap();
        }
    }
}

#[test]
fn without_a_snapshot_the_log_tells_what_waits() {
    let bench = Bench::sync();
    let store = bench.open();
    let now = bench.clock.wall().0;
    let sent: Vec<_> = (0..9).map(|n| send_at(&store, "orders", b"x", now + 1_000 * n + 1).unwrap()).collect();
    bench.clock.advance(4_500);
    assert_eq!(deliver(&store).0, 5);
    recall(&store, &sent[7], "orders", now + 7_001).unwrap();
    let expected: Vec<_> = store.shared.inner.lock().derived.timed.iter().collect();
    assert_eq!(expected.len(), 3);
    store.close().unwrap();
    for has_snapshot in [true, false] {
        let bench = bench.killed();
        if !has_snapshot {
            bench.memory.unlink("txstore/snapshot").unwrap();
        }
        let store = bench.open();
        assert_eq!(store.open_report().scanned_bytes > 0, !has_snapshot);
        assert!(store.shared.inner.lock().derived.timed.iter().eq(expected.iter().copied()));
    }
}

#[test]
fn a_transaction_with_a_time_is_delivered_at_it_after_its_commit() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + HOUR_MS;
    let half = |body: &[u8]| {
        let envelope = envelope_at("orders", due_ms);
        let message = NewMessage { envelope: &envelope, body, queue_id: QueueId(1) };
        let half = NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 };
        store.prepare(&half, Wait::Yes).unwrap().acknowledged().unwrap()
    };
    let (committed, rolled_back, late) = (half(b"committed"), half(b"rolled back"), half(b"late"));
    assert_eq!(store.timed_messages().unwrap(), 0, "what is pending does not wait for a time");
    let (halves, _) = store.read(HALF_TOPIC, QUEUE, QueueOffset(0), 9, None).unwrap();
    for half in halves {
        let properties = half.view().unwrap().properties;
        assert_eq!(properties.get_str(TRANSACTION_TIMER), Some(&*due_ms.to_string()));
        assert_eq!(properties.get_str(TIMER_DELIVER_MS), None, "a broker would delay the half itself");
    }
    end(&store, &committed, EndKind::Commit).unwrap();
    end(&store, &rolled_back, EndKind::RollBack).unwrap();
    assert_eq!((store.timed_messages().unwrap(), bodies(&store, "orders", 1).len()), (1, 0));
    let found = store.transaction(&committed.unique_id).unwrap();
    assert_eq!((found.outcome, found.finals.len()), (Some(Outcome::Committed), 1), "also while its message waits");
    let bench = bench.killed();
    let store = bench.open();
    assert_eq!(store.timed_messages().unwrap(), 1);
    assert!(end(&store, &committed, EndKind::Commit).unwrap().already, "recovery knows the outcome");
    assert!(end(&store, &committed, EndKind::RollBack).is_err());
    bench.clock.advance(HOUR_MS);
    assert_eq!(deliver(&store), (1, None));
    assert_eq!(store.transaction(&committed.unique_id).unwrap().outcome, Some(Outcome::Committed));
    // Its time passed while it was pending.
    end(&store, &late, EndKind::Commit).unwrap();
    assert_eq!(bodies(&store, "orders", 1), [&b"committed"[..], b"late"]);
    let (found, _) = store.read("orders", QueueId(1), QueueOffset(0), 9, None).unwrap();
    let view = found[0].view().unwrap();
    assert_eq!(view.transaction_type(), TransactionType::None, "its transaction ended when it began to wait");
    assert_eq!(view.unique_id(), Some(&*committed.unique_id));
    assert_eq!(view.properties.get_str(TIMER_DELIVER_MS), Some(&*due_ms.to_string()));
    for record in found {
        assert_eq!(record.view().unwrap().properties.get_str(TRANSACTION_TIMER), None);
    }
}

#[test]
fn a_waiting_message_holds_its_log_file() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", &[0; 3_000]).unwrap();
    send(&store, "orders", &[0; 3_000]).unwrap();
    send_at(&store, "orders", &[1; 3_000], bench.clock.wall().0 + HOUR_MS).unwrap();
    for _ in 0..3 {
        send(&store, "orders", &[0; 3_000]).unwrap();
    }
    let removed = store.remove_log_files(PhysicalOffset(u64::MAX), false).unwrap();
    assert_eq!(removed.minimum, 8 << 10, "the file of the waiting message is left");
    bench.clock.advance(HOUR_MS);
    assert_eq!(deliver(&store), (1, None));
    assert!(store.remove_log_files(PhysicalOffset(u64::MAX), false).unwrap().minimum > 8 << 10);
}

#[test]
fn what_cannot_be_delivered_is_skipped_and_reported() {
    let bench = Bench::sync();
    let store = bench.open();
    let due_ms = bench.clock.wall().0 + HOUR_MS;
    let bad = send_at(&store, "orders", b"broken here", due_ms).unwrap();
    send_at(&store, "orders", b"good", due_ms).unwrap();
    bench.write("commitlog/00000000000000000000", bad.physical_offset.0 + 88, b"X");
    bench.clock.advance(HOUR_MS);
    let done = store.deliver_delayed(9).unwrap();
    assert_eq!((done.messages, done.passed_over.len(), done.next_in_ms), (1, 1, None));
    assert!(done.passed_over[0].contains(TIMED_TOPIC), "{:?}", done.passed_over);
    assert_eq!(bodies(&store, "orders", 1), [b"good"]);
    assert_eq!(store.timed_messages().unwrap(), 0);
}

/// A broker's retention does not know which messages wait.
#[test]
fn waiting_messages_that_were_removed_with_their_log_file_are_reported() {
    let bench = Bench::sync();
    let store = bench.open();
    for body in [b"1", b"2"] {
        send_at(&store, "orders", body, bench.clock.wall().0 + HOUR_MS).unwrap();
    }
    while appended(&store) < 2 * (4 << 10) {
        send(&store, "orders", &[7; 500]).unwrap();
    }
    store.close().unwrap();
    bench.memory.unlink("commitlog/00000000000000000000").unwrap();
    let store = bench.open();
    let expected = "2 timed messages were removed with their log files before their time";
    assert!(store.open_report().warnings.iter().any(|warning| warning == expected), "{:?}", store.open_report());
    assert_eq!((store.timed_messages().unwrap(), deliver(&store)), (0, (0, None)));
}
