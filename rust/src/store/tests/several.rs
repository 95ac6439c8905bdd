//! Transactions of several messages: one end ends all, and a crash leaves all or none.

use super::*;
use crate::base::error::Outcome;
use crate::base::names::DISCARD_TOPIC;
use crate::record::properties::{TRANSACTION_ID, TRANSACTION_SET};

const TOPICS: [&str; 3] = ["orders", "payments", "letters"];

fn prepare_many(store: &Store, bodies: &[&str]) -> Result<Vec<Sent>> {
    let envelopes: Vec<_> = TOPICS.iter().cycle().take(bodies.len()).map(|topic| envelope(topic)).collect();
    let new = envelopes.iter().zip(bodies);
    let messages: Vec<_> =
        new.map(|(envelope, body)| NewMessage { envelope, body: body.as_bytes(), queue_id: QUEUE }).collect();
    store.prepare_many(&messages, GROUP, 0, Wait::Yes).and_then(Unacknowledged::acknowledged)
}

/// Returns the bodies that consumers see, of all topics.
fn visible(store: &Store) -> Vec<String> {
    let mut found: Vec<String> = TOPICS
        .iter()
        .filter(|topic| store.queue_range(topic, QUEUE).is_ok())
        .flat_map(|topic| bodies(store, topic, 0))
        .map(|body| String::from_utf8(body).unwrap())
        .collect();
    found.sort();
    found
}

#[test]
fn one_end_commits_all_in_their_order() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = prepare_many(&store, &["1", "2", "3", "4", "5"]).unwrap();
    assert_eq!(sent.iter().map(|sent| sent.queue_offset.0).collect::<Vec<_>>(), [4, 0, 1, 2, 3]);
    assert_eq!((pending(&store), store.stat().unwrap().pending_transactions), (vec![4], 1));
    assert_eq!(visible(&store), Vec::<String>::new());
    let ended = end(&store, &sent[0], EndKind::Commit).unwrap();
    assert_eq!((ended.outcome, ended.already), (Outcome::Committed, false));
    assert_eq!(visible(&store), ["1", "2", "3", "4", "5"]);
    assert_eq!(bodies(&store, "orders", 0), [b"1", b"4"]);
    assert!(end(&store, &sent[0], EndKind::Commit).unwrap().already);
    let error = end(&store, &sent[2], EndKind::RollBack).unwrap_err();
    assert!(matches!(error, Error::AlreadyEnded { outcome: Outcome::Committed, .. }), "{error}");
    assert_eq!(pending(&store), Vec::<u64>::new());
}

#[test]
fn any_of_the_halves_ends_all() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = prepare_many(&store, &["1", "2", "3"]).unwrap();
    end(&store, &sent[2], EndKind::Commit).unwrap();
    assert_eq!(visible(&store), ["1", "2", "3"]);
}

#[test]
fn a_message_shows_its_transaction_and_no_set() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = prepare_many(&store, &["1", "2"]).unwrap();
    end(&store, &sent[0], EndKind::Commit).unwrap();
    let (records, _) = store.read("payments", QUEUE, QueueOffset(0), 1, None).unwrap();
    let view = records[0].view().unwrap();
    assert_eq!(view.properties.get_str(TRANSACTION_ID), Some(&*sent[0].unique_id.to_string()));
    assert_eq!(view.unique_id(), Some(&*sent[1].unique_id.to_string()));
    assert_eq!(view.properties.get_str(TRANSACTION_SET), None);
    assert_eq!(view.prepared_transaction_offset, sent[1].physical_offset);
}

#[test]
fn a_roll_back_shows_none() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = prepare_many(&store, &["1", "2", "3"]).unwrap();
    end(&store, &sent[0], EndKind::RollBack).unwrap();
    drop(store);
    let store = bench.open();
    assert_eq!((visible(&store), pending(&store)), (vec![], vec![]));
}

#[test]
fn a_transaction_survives_a_crash_with_and_without_a_snapshot() {
    for with_snapshot in [false, true] {
        let bench = Bench::sync();
        let store = bench.open();
        let sent = prepare_many(&store, &["1", "2", "3"]).unwrap();
        if with_snapshot {
            store.snapshot().unwrap();
        }
        let bench = bench.killed();
        let store = bench.open();
        assert_eq!((pending(&store), store.stat().unwrap().pending_transactions), (vec![2], 1));
        end(&store, &sent[1], EndKind::Commit).unwrap();
        assert_eq!(visible(&store), ["1", "2", "3"]);
        let bench = bench.killed();
        assert_eq!(visible(&bench.open()), ["1", "2", "3"]);
    }
}

#[test]
fn a_discarded_transaction_is_resumed_as_a_whole() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = prepare_many(&store, &["1", "2", "3"]).unwrap();
    store.end_transaction(&End { decider: Decider::Check, ..end_of(&sent[0], EndKind::Discard) }, Wait::Yes).unwrap();
    assert_eq!(bodies(&store, DISCARD_TOPIC, 0), [b"1", b"2", b"3"]);
    let again = store.resume(&sent[0].unique_id).unwrap();
    assert_eq!((pending(&store), again.queue_offset.0), (vec![5], 5));
    let bench = bench.killed();
    let store = bench.open();
    assert_eq!(pending(&store), [5]);
    end(&store, &again, EndKind::Commit).unwrap();
    assert_eq!(visible(&store), ["1", "2", "3"]);
}

#[test]
fn too_many_or_no_messages_are_refused() {
    let bench = Bench::sync().with(|options| options.commit_log_file_size = Some(1 << 20));
    let store = bench.open();
    let many = vec!["x"; 1_001];
    for bodies in [&[][..], &many] {
        let error = prepare_many(&store, bodies).unwrap_err();
        assert!(error.to_string().contains("a transaction has 1 to 1000 messages"), "{error}");
    }
    assert_eq!(prepare_many(&store, &many[1..]).unwrap().len(), 1_000);
    assert_eq!(pending(&store), [999]);
}

#[test]
fn a_progress_below_the_whole_set_is_stored() {
    // A RocketMQ broker that takes over checks from there on, so it must find each half message.
    let bench = Bench::sync();
    let store = bench.open();
    let first = prepare(&store, b"0");
    let sent = prepare_many(&store, &["1", "2", "3"]).unwrap();
    end(&store, &first, EndKind::RollBack).unwrap();
    let progress = || store.shared.inner.lock().derived.table.half_progress(99);
    assert_eq!(progress(), 1);
    end(&store, &sent[0], EndKind::Commit).unwrap();
    assert_eq!(progress(), 4.max(progress()));
}
