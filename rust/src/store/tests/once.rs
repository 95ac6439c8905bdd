//! Tests of messages that are appended once: repeated calls, crashes, retention, delays.

use super::*;
use crate::base::error::Outcome;
use crate::record::message::{Origin, Topic};
use crate::record::properties::{self, UNIQUE_KEY};

const BORN: TimestampMs = TimestampMs(1_700_000_000_000);

fn with_id(topic: &str, id: &str, born: TimestampMs, more: &[(&str, &str)]) -> Envelope {
    let mut text = Vec::new();
    for (name, value) in more {
        properties::push(&mut text, name, value);
    }
    properties::push(&mut text, UNIQUE_KEY, id);
    let origin = Origin {
        unique_id: None,
        sys_flag: 0,
        born_timestamp: born,
        born_host: "127.0.0.1:0".parse().unwrap(),
        reconsume_times: 0,
    };
    let text = String::from_utf8(text).unwrap();
    Envelope::received(Topic::new(topic).unwrap(), &text, 0, origin).unwrap()
}

fn append_once(store: &Store, envelopes: &[Envelope]) -> Vec<&'static str> {
    let messages: Vec<_> =
        envelopes.iter().map(|envelope| NewMessage { envelope, body: b"paid", queue_id: QUEUE }).collect();
    let done = store.append_once(&messages).and_then(Unacknowledged::acknowledged).unwrap();
    done.iter().map(name_of).collect()
}

fn name_of(once: &Once) -> &'static str {
    match once {
        Once::Appended(_) => "appended",
        Once::Present(_) => "present",
        Once::InDoubt => "in doubt",
    }
}

fn ids(store: &Store, topic: &str) -> Vec<String> {
    let (records, _) = store.read(topic, QUEUE, QueueOffset(0), usize::MAX, None).unwrap();
    let id = |record: &StoredRecord| record.view().unwrap().properties.get_str(UNIQUE_KEY).unwrap().to_owned();
    records.iter().map(id).collect()
}

#[test]
fn a_message_is_appended_once_however_often_it_comes() {
    let bench = Bench::sync();
    let store = bench.open();
    let [a, b, c] = ["a", "b", "c"].map(|id| with_id("orders", id, BORN, &[]));
    let elsewhere = with_id("payments", "a", BORN, &[]);
    assert_eq!(append_once(&store, &[a.clone(), b.clone(), a.clone()]), ["appended", "appended", "present"]);
    assert_eq!(append_once(&store, &[b.clone(), c.clone(), elsewhere]), ["present", "appended", "appended"]);
    store.flush_round().unwrap();
    assert_eq!(append_once(&store, &[a.clone(), b.clone(), c.clone()]), ["present"; 3], "found in index files");
    assert_eq!(ids(&store, "orders"), ["a", "b", "c"]);
    drop(store);
    let store = bench.open();
    assert_eq!(append_once(&store, &[c, a, b]), ["present"; 3], "after a close");
    assert_eq!(ids(&store, "orders"), ["a", "b", "c"]);
}

#[test]
fn a_message_is_appended_once_over_crashes() {
    let mut bench = Bench::sync();
    for round in 0..20 {
        let store = bench.open();
        for id in 0..=round {
            let expected = if id < round { "present" } else { "appended" };
            let envelope = with_id("orders", &id.to_string(), BORN, &[]);
            assert_eq!(append_once(&store, &[envelope]), [expected], "id {id} in life {round}");
        }
        bench = if round % 2 == 0 { bench.killed() } else { bench.crashed(round, CrashKeep::PowerLoss) };
    }
}

/// A key that equals another message's id, and another id with the same hash, are other messages.
#[test]
fn only_the_same_id_is_the_same_message() {
    let bench = Bench::sync();
    let store = bench.open();
    // "Aa" and "BB" have one hash code in Java.
    assert_eq!(append_once(&store, &[with_id("orders", "Aa", BORN, &[("KEYS", "x")])]), ["appended"]);
    assert_eq!(append_once(&store, &[with_id("orders", "BB", BORN, &[])]), ["appended"]);
    assert_eq!(append_once(&store, &[with_id("orders", "x", BORN, &[])]), ["appended"]);
    assert_eq!(ids(&store, "orders"), ["Aa", "BB", "x"]);
}

#[test]
fn a_delayed_message_is_appended_once_before_and_after_its_delivery() {
    let bench = Bench::sync();
    let store = bench.open();
    let delayed = || [with_id("orders", "a", BORN, &[("DELAY", "1")])];
    assert_eq!(append_once(&store, &delayed()), ["appended"]);
    assert_eq!(append_once(&store, &delayed()), ["present"]);
    bench.clock.advance(2_000);
    store.deliver_delayed(10).unwrap();
    assert_eq!(ids(&store, "orders"), ["a"]);
    assert_eq!(append_once(&store, &delayed()), ["present"]);
}

/// Retention may have removed the record of a message that was appended long ago.
#[test]
fn a_message_older_than_the_log_is_in_doubt() {
    let bench = Bench::sync();
    let store = bench.open();
    let old = with_id("orders", "old", BORN, &[]);
    assert_eq!(append_once(&store, std::slice::from_ref(&old)), ["appended"]);
    bench.clock.advance(3_600_000);
    for _ in 0..40 {
        send(&store, "orders", &[1; 200]).unwrap();
    }
    store.remove_log_files(PhysicalOffset(u64::MAX), true).unwrap();
    assert!(store.stat().unwrap().min_physical_offset > 0);
    let young = with_id("orders", "young", TimestampMs(BORN.0 + 3_600_000 + 1), &[]);
    assert_eq!(append_once(&store, &[old, young]), ["in doubt", "appended"]);
}

#[test]
fn a_message_without_an_id_is_refused() {
    let bench = Bench::sync();
    let store = bench.open();
    let envelope = envelope("orders");
    let refused = store.append_once(&[NewMessage { envelope: &envelope, body: b"x", queue_id: QUEUE }]);
    assert!(matches!(refused, Err(Error::InvalidMessage { .. })), "{refused:?}");
    assert_eq!(appended(&store), 0);
}

#[test]
fn an_own_message_is_looked_up_once_a_client_appends_once() {
    let bench = Bench::sync();
    let store = bench.open();
    let [a, b, c] = ["a", "b", "c"].map(|id| with_id("orders", id, BORN, &[]));
    let message = |envelope| [NewMessage { envelope, body: b"paid", queue_id: QUEUE }];
    let own = |envelope, wait| Ok::<_, Error>(name_of(&store.append_own(&message(envelope), wait)?.acknowledged()?[0]));
    assert_eq!(own(&a, Wait::Yes).unwrap(), "appended");
    for (envelope, fate) in [(&a, "present"), (&b, "appended")] {
        let done = store.append_once_for_client(&message(envelope)).unwrap().acknowledged().unwrap();
        assert_eq!(name_of(&done[0]), fate);
    }
    assert!(matches!(own(&b, Wait::No), Err(Error::WouldWait)), "a lookup may wait");
    assert_eq!((own(&b, Wait::Yes).unwrap(), own(&c, Wait::Yes).unwrap()), ("present", "appended"));
    assert_eq!(ids(&store, "orders"), ["a", "b", "c"]);
}

/// A replica that was killed sends a half message again, perhaps long after its transaction ended here.
#[test]
fn a_half_message_that_escapes_is_stored_once_however_late_it_comes() {
    let bench = Bench::sync();
    let store = bench.open();
    let once = |store: &Store, id: &str| {
        let envelope = with_id("orders", id, BORN, &[]);
        let message = NewMessage { envelope: &envelope, body: b"paid", queue_id: QUEUE };
        let half = NewHalfMessage { message, group: GROUP, unique_id: Some(id), owner: 0 };
        store.prepare_once(&half, Wait::Yes).and_then(Unacknowledged::acknowledged)
    };
    let [committed, rolled_back, waiting] = ["c", "r", "w"].map(|id| once(&store, id).unwrap());
    end(&store, &committed, EndKind::Commit).unwrap();
    end(&store, &rolled_back, EndKind::RollBack).unwrap();
    store.snapshot().unwrap();
    store.close().unwrap();
    // What ended in the last minutes is no longer known after that.
    bench.clock.advance(60 * 60_000);
    let store = bench.open();
    for (id, expected) in [("c", Outcome::Committed), ("r", Outcome::RolledBack)] {
        let refused = once(&store, id).unwrap_err();
        assert!(matches!(refused, Error::AlreadyEnded { outcome, .. } if outcome == expected), "{id}: {refused}");
    }
    assert_eq!(once(&store, "w").unwrap().queue_offset, waiting.queue_offset);
    assert_eq!(pending(&store), [waiting.queue_offset.0]);
    assert_eq!(ids(&store, "orders"), ["c"]);
}
