//! Delayed messages are delivered at their time, in order, once, also after a crash at any moment.

use super::*;
use crate::base::units::to_usize;
use crate::filter::Selector;

const LEVEL_MS: i64 = 1_000;

fn delayed(store: &Store, topic: &str, body: &[u8], delay_level: i64) -> Sent {
    let parts = Parts { topic, keys: "k", tags: Some("t"), delay_level, ..Parts::default() };
    let envelope = Envelope::new(&parts).unwrap();
    store
        .append(&[NewMessage { envelope: &envelope, body, queue_id: QueueId(1) }], Wait::Yes)
        .unwrap()
        .acknowledged()
        .unwrap()
        .remove(0)
}

fn deliver(store: &Store) -> (usize, Option<i64>) {
    let done = store.deliver_delayed(100).unwrap();
    assert_eq!(done.passed_over, Vec::<String>::new());
    (done.messages, done.next_in_ms)
}

fn progress(bench: &Bench) -> Option<u64> {
    let loaded = crate::storage::config_file::load(&bench.memory, "delayOffset.json").unwrap();
    loaded.value.and_then(|file| file["offsetTable"]["1"].as_u64())
}

#[test]
fn a_delayed_message_waits_its_time_and_is_then_as_sent() {
    let bench = Bench::sync();
    let store = bench.open();
    assert_eq!(deliver(&store), (0, None));
    let sent = delayed(&store, "orders", b"later", 1);
    assert_eq!((sent.queue_id, sent.queue_offset), (QueueId(1), QueueOffset(0)));
    assert!(bodies(&store, "orders", 1).is_empty());
    assert_eq!(store.query("orders", "k", 9).unwrap(), vec![]);
    let (waiting, _) = store.read(crate::base::names::SCHEDULE_TOPIC, QueueId(0), QueueOffset(0), 9, None).unwrap();
    assert_eq!(waiting[0].view().unwrap().properties.get_str("REAL_TOPIC"), Some("orders"));
    assert_eq!(deliver(&store), (0, Some(LEVEL_MS)));
    bench.clock.advance(LEVEL_MS - 1);
    assert_eq!(deliver(&store), (0, Some(1)));
    bench.clock.advance(1);
    assert_eq!(deliver(&store), (1, None));
    assert_eq!(deliver(&store), (0, None));
    let (found, _) = store.read("orders", QueueId(1), QueueOffset(0), 9, Some(&Selector::tags(["t".into()]))).unwrap();
    let view = found[0].view().unwrap();
    assert_eq!((view.body, view.unique_id().unwrap().to_owned()), (&b"later"[..], sent.unique_id.to_string()));
    assert_eq!(view.prepared_transaction_offset, sent.physical_offset);
    assert_eq!(view.properties.get_str("DELAY"), None);
    assert_eq!(store.query("orders", "k", 9).unwrap().len(), 1);
}

#[test]
fn levels_do_not_wait_for_each_other_and_keep_their_order() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..20_u8 {
        delayed(&store, "orders", &[n], if n % 2 == 0 { 2 } else { 1 });
        bench.clock.advance(10);
    }
    bench.clock.advance(LEVEL_MS);
    assert_eq!(deliver(&store), (10, Some(5_000 - LEVEL_MS - 200)));
    bench.clock.advance(5_000);
    assert_eq!(store.deliver_delayed(3).unwrap().next_in_ms, Some(0), "more is due than one round takes");
    while deliver(&store).0 > 0 {}
    let expected: Vec<Vec<u8>> =
        (0..20_u8).filter(|n| n % 2 == 1).chain((0..20).filter(|n| n % 2 == 0)).map(|n| vec![n]).collect();
    assert_eq!(bodies(&store, "orders", 1), expected);
}

#[test]
fn a_crash_at_any_call_delivers_each_message_once() {
    let ends = [CrashKeep::PageCache, CrashKeep::PowerLoss];
    for (flush, keep) in
        [FlushDiskType::Sync, FlushDiskType::Async].into_iter().flat_map(|flush| ends.map(|keep| (flush, keep)))
    {
        let script = |bench: &Bench| -> Result<usize> {
            let store = bench.try_open()?;
            let envelope = Envelope::new(&Parts { topic: "orders", delay_level: 1, ..Parts::default() }).unwrap();
            for n in 0..12_u8 {
                let body = [n; 300];
                store
                    .append(&[NewMessage { envelope: &envelope, body: &body, queue_id: QUEUE }], Wait::Yes)?
                    .acknowledged()?;
                if n % 3 == 2 {
                    bench.clock.advance(LEVEL_MS);
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
            Ok(12)
        };
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
            bench.clock.advance(LEVEL_MS);
            while deliver(&store).0 > 0 {}
            let all = bodies(&store, "orders", 0);
            let mut once = all.clone();
            once.dedup();
            assert_eq!(all, once, "call {call} of {calls}, {flush:?}, {keep:?}: {done:?}");
            let waited = store.queues().unwrap().into_iter().find(|row| row.0 == crate::base::names::SCHEDULE_TOPIC);
            assert_eq!(
                to_usize(waited.map_or(0, |row| row.3)),
                all.len(),
                "call {call}: each that waited is delivered"
            );
            store.close().unwrap();
            assert_eq!(progress(&bench).unwrap_or(0), crate::base::units::to_u64(all.len()));
        }
    }
}

#[test]
fn a_lost_progress_is_found_in_the_log() {
    let bench = Bench::sync();
    let store = bench.open();
    for n in 0..5_u8 {
        delayed(&store, "orders", &[n], 1);
    }
    bench.clock.advance(LEVEL_MS);
    assert_eq!(deliver(&store).0, 5);
    store.close().unwrap();
    assert_eq!(progress(&bench), Some(5));
    for damage in [None, Some(&b"{"[..])] {
        let bench = bench.killed();
        for path in ["config/delayOffset.json", "config/delayOffset.json.bak"] {
            if bench.memory.len(path).unwrap().is_some() {
                bench.memory.unlink(path).unwrap();
            }
        }
        if let Some(bytes) = damage {
            bench.memory.open("config/delayOffset.json", OpenMode::Create).unwrap().write_at(bytes, 0).unwrap();
        }
        let store = bench.open();
        assert_eq!(deliver(&store), (0, None));
        store.close().unwrap();
        assert_eq!(progress(&bench), Some(5));
    }
}

#[test]
fn a_progress_beyond_the_queue_is_brought_back() {
    let bench = Bench::sync();
    let store = bench.open();
    delayed(&store, "orders", b"x", 1);
    store.close().unwrap();
    crate::storage::config_file::replace(&bench.memory, "delayOffset.json", r#"{"offsetTable":{1:9}}"#).unwrap();
    let store = bench.open();
    assert!(store.open_report().warnings.iter().any(|warning| warning.contains("continue at 1, not 9")));
    delayed(&store, "orders", b"y", 1);
    bench.clock.advance(LEVEL_MS);
    assert_eq!(deliver(&store), (1, None));
    store.close().unwrap();
    assert_eq!(bench.open().open_report().warnings, [""; 0], "a progress at the queue's end is as it should be");
}

#[test]
fn what_cannot_be_delivered_is_skipped_and_reported() {
    let bench = Bench::sync();
    let store = bench.open();
    let bad = delayed(&store, "orders", b"broken here", 1);
    delayed(&store, "orders", b"good", 1);
    let at = bad.physical_offset.0 + 88;
    bench.write("commitlog/00000000000000000000", at, b"X");
    bench.clock.advance(LEVEL_MS);
    let done = store.deliver_delayed(9).unwrap();
    assert_eq!((done.messages, done.passed_over.len(), done.next_in_ms), (1, 1, None));
    assert!(done.passed_over[0].contains("SCHEDULE_TOPIC_XXXX/0"), "{:?}", done.passed_over);
    assert_eq!(bodies(&store, "orders", 1), [b"good"]);
}

const HOUR_MS: i64 = 3_600_000;
const LEVEL_5_MS: i64 = 60_000;
const LEVEL_18_MS: i64 = 2 * HOUR_MS;

/// The wall clock was ahead while one message was stored, so store timestamps stay ahead for that long.
fn after_a_clock_ahead(ahead_ms: i64) -> Bench {
    let bench = Bench::sync();
    let store = bench.open();
    bench.clock.jump_wall(ahead_ms);
    send(&store, "logs", b"while the clock was wrong").unwrap();
    bench.clock.jump_wall(-ahead_ms);
    bench.clock.advance(1_000);
    store.close().unwrap();
    bench
}

#[test]
fn t13_delays_delay_after_the_clock_was_ahead_for_a_moment() {
    let bench = after_a_clock_ahead(HOUR_MS);
    let store = bench.open();
    // From here on the progress is known, so the next opening trusts the queues.
    delayed(&store, "first", b"one second", 1);
    bench.clock.advance(LEVEL_MS);
    assert_eq!(deliver(&store), (1, None));
    delayed(&store, "orders", b"two hours", 18);
    delayed(&store, "orders", b"one minute", 5);
    assert_eq!(deliver(&store), (0, Some(LEVEL_5_MS)));
    bench.clock.advance(LEVEL_5_MS - 1);
    assert_eq!(deliver(&store), (0, Some(1)));
    store.close().unwrap();
    let store = bench.open();
    assert_eq!(deliver(&store), (0, Some(1)), "an opening changes nothing");
    delayed(&store, "orders", b"one minute, later", 5);
    bench.clock.advance(1);
    assert_eq!(deliver(&store), (1, Some(LEVEL_5_MS - 1)));
    bench.clock.advance(LEVEL_18_MS - LEVEL_5_MS - 1);
    assert_eq!(deliver(&store), (1, Some(1)));
    bench.clock.advance(1);
    assert_eq!(deliver(&store), (1, None));
    assert_eq!(bodies(&store, "orders", 1), [&b"one minute"[..], b"one minute, later", b"two hours"]);
}

#[test]
fn t13_a_retry_keeps_its_back_off_after_the_clock_was_ahead() {
    let bench = after_a_clock_ahead(HOUR_MS);
    let store = bench.open();
    let sent = send(&store, "orders", b"not handled").unwrap();
    let copy = Copy { topic: "retries", queue_id: QUEUE, delay_level: 3, reconsume_times: 1, properties: &[] };
    store.append_copy(sent.physical_offset, &copy).unwrap();
    assert_eq!(deliver(&store), (0, Some(10_000)));
    bench.clock.advance(10_000);
    assert_eq!(deliver(&store), (1, None));
}

#[test]
fn l8_a_clean_opening_reads_no_log_though_nothing_delayed_was_delivered_yet() {
    let bench = Bench::sync();
    let store = bench.open();
    delayed(&store, "orders", b"later", 5);
    store.close().unwrap();
    let store = bench.open();
    assert_eq!((store.open_report().clean, store.open_report().scanned_bytes), (true, 0));
    assert_eq!(deliver(&store), (0, Some(LEVEL_5_MS)));
}

/// After a crash, the state is read from records whose store timestamps are ahead. No message waits longer than its
/// level from then on, and none is delivered early.
#[test]
fn t13_after_a_crash_a_delay_ends_within_its_level() {
    let bench = after_a_clock_ahead(30 * 24 * HOUR_MS);
    let store = bench.open();
    for n in 0..3 {
        delayed(&store, "orders", &[n], 5);
    }
    store.flush().unwrap();
    bench.clock.advance(LEVEL_5_MS / 2);
    let store = bench.killed().open();
    assert_eq!(deliver(&store), (0, Some(LEVEL_5_MS)));
    bench.clock.advance(LEVEL_5_MS / 2);
    delayed(&store, "orders", &[3], 5);
    assert_eq!(deliver(&store), (0, Some(LEVEL_5_MS / 2)));
    bench.clock.advance(LEVEL_5_MS / 2);
    assert_eq!(deliver(&store), (3, Some(LEVEL_5_MS / 2)), "all that was there at the opening, at one time");
    bench.clock.advance(LEVEL_5_MS / 2);
    assert_eq!(deliver(&store), (1, None));
}

#[test]
fn t13_no_jump_of_the_wall_clock_delivers_early_or_late() {
    let bench = Bench::sync();
    let store = bench.open();
    for jump in [HOUR_MS, -3 * HOUR_MS, 400 * 24 * HOUR_MS, -500 * 24 * HOUR_MS] {
        delayed(&store, "orders", b"one minute", 5);
        bench.clock.jump_wall(jump);
        assert_eq!(deliver(&store), (0, Some(LEVEL_5_MS)), "by {jump}");
        delayed(&store, "orders", b"one minute, too", 5);
        bench.clock.advance(LEVEL_5_MS - 1);
        assert_eq!(deliver(&store), (0, Some(1)), "by {jump}");
        bench.clock.advance(1);
        assert_eq!(deliver(&store), (2, None), "by {jump}");
    }
}
