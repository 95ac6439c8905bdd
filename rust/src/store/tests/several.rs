//! Transactions of several messages: one end ends all, and a crash leaves all or none.

use super::*;
use crate::base::error::Outcome;
use crate::base::names::DISCARD_TOPIC;
use crate::record::Draft;
use crate::record::message::{Origin, Topic};
use crate::record::properties::{TRANSACTION_ID, TRANSACTION_SET};
use crate::transaction::convert::{HalfNames, half_properties};
use crate::transaction::set::SetMark;

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

// Half messages of a client, which sends them again if an answer is lost.

fn of_client(topic: &str, id: &str) -> Envelope {
    let origin = Origin {
        unique_id: None,
        sys_flag: 0,
        born_timestamp: TimestampMs(1),
        born_host: "127.0.0.1:9".parse().unwrap(),
        reconsume_times: 0,
    };
    Envelope::received(Topic::new(topic).unwrap(), &format!("UNIQ_KEY\x01{id}\x02KEYS\x01k\x02"), 0, origin).unwrap()
}

fn prepare_of_client(store: &Store, messages: &[(&str, &str, &str)], queue_id: i32) -> Result<Vec<Sent>> {
    let envelopes: Vec<_> = messages.iter().map(|(topic, id, _)| of_client(topic, id)).collect();
    let new = envelopes.iter().zip(messages);
    let messages: Vec<_> = new
        .map(|(envelope, (_, _, body))| NewMessage { envelope, body: body.as_bytes(), queue_id: QueueId(queue_id) })
        .collect();
    store.prepare_many(&messages, GROUP, 0, Wait::Yes).and_then(Unacknowledged::acknowledged)
}

const OF_CLIENT: [(&str, &str, &str); 3] = [("orders", "a", "1"), ("payments", "b", "2"), ("letters", "c", "3")];

#[test]
fn a_set_that_is_sent_again_is_one_transaction() {
    let bench = Bench::sync();
    let store = bench.open();
    let sent = prepare_of_client(&store, &OF_CLIENT, 0).unwrap();
    assert_eq!(sent.iter().map(|sent| &*sent.unique_id).collect::<Vec<_>>(), ["a", "b", "c"]);
    let before = appended(&store);
    let again = prepare_of_client(&store, &OF_CLIENT, 3).unwrap();
    assert_eq!(appended(&store), before);
    for (first, second) in sent.iter().zip(&again) {
        assert_eq!(
            (copy_of(first), first.queue_id, &first.unique_id),
            (copy_of(second), second.queue_id, &second.unique_id)
        );
        assert!(first.size > 0 && second.size == 0);
    }
    drop(store);
    let store = bench.killed().open();
    assert_eq!(prepare_of_client(&store, &OF_CLIENT, 0).unwrap()[0].size, 0, "recovery knows it, too");
    end(&store, &again[0], EndKind::Commit).unwrap();
    assert_eq!(visible(&store), ["1", "2", "3"]);
    let late = prepare_of_client(&store, &OF_CLIENT, 0).unwrap_err();
    assert!(matches!(late, Error::AlreadyEnded { outcome: Outcome::Committed, .. }), "{late}");
}

#[test]
fn another_set_with_an_id_of_a_pending_one_is_refused() {
    let bench = Bench::sync();
    let store = bench.open();
    prepare_of_client(&store, &OF_CLIENT, 0).unwrap();
    prepare_as(&store, b"alone", Some("alone")).unwrap();
    let before = appended(&store);
    let [one, two, three] = OF_CLIENT;
    let alone = ("orders", "alone", "alone");
    let refused: [(&[_], &str); 6] = [
        (&[one, two], "it has 3 messages, not 2"),
        (&[one], "it has 3 messages, not 1"),
        (&[one, three, two], "topic differ"),
        (&[one, two, ("letters", "c", "another")], "its body differs"),
        (&[("orders", "d", "4"), ("orders", "d", "5")], "two messages of a transaction have the id \"d\""),
        (&[("orders", "d", "4"), alone], "it is a transaction of its own"),
    ];
    for (messages, told) in refused {
        let error = prepare_of_client(&store, messages, 0).unwrap_err();
        assert!(matches!(error, Error::InvalidMessage { .. }) && error.to_string().contains(told), "{error}");
    }
    let single = {
        let envelope = of_client("orders", "a");
        let message = NewMessage { envelope: &envelope, body: b"1", queue_id: QUEUE };
        store.prepare(&NewHalfMessage { message, group: GROUP, unique_id: Some("a"), owner: 0 }, Wait::Yes).map(drop)
    };
    assert!(single.unwrap_err().to_string().contains("it has 3 messages, not 1"));
    assert_eq!((appended(&store), pending(&store).len()), (before, 2));
}

#[test]
fn the_topics_of_a_transaction_are_those_of_all_its_messages() {
    let bench = Bench::sync();
    let store = bench.open();
    let alone = prepare_as(&store, b"alone", None).unwrap();
    let sent = prepare_of_client(&store, &OF_CLIENT, 0).unwrap();
    let topics = |half: &Sent| store.real_topics(half.queue_offset).unwrap().into_iter().collect::<Vec<_>>();
    assert_eq!(topics(&alone), ["orders"]);
    for half in &sent {
        assert_eq!(topics(half), ["letters", "orders", "payments"]);
    }
    end(&store, &sent[0], EndKind::RollBack).unwrap();
    assert_eq!(topics(&sent[1]).len(), 3, "also after its end, whose repetition is answered");
    store.real_topics(QueueOffset(9)).unwrap_err();
}

/// Returns the properties of a half message whose user has set what a set of two messages has.
fn marked(id: &str, first: u64, position: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let mark = Some(SetMark { first, position, count: 2 });
    let names = HalfNames { transaction_id: "a", mark, ..HalfNames::alone(id, GROUP) };
    half_properties(&envelope("orders"), QUEUE, &names, &mut text).unwrap();
    text
}

/// A broker ends each half message by itself, whatever properties it has.
#[test]
fn half_messages_that_a_broker_wrote_are_no_set() {
    let (one, two) = (marked("a", 0, 0), marked("b", 0, 1));
    let bench = super::foreign::broker(&[(super::foreign::half(&one), 0), (super::foreign::half(&two), 1)]);
    for store in [bench.read_only(), bench.open()] {
        assert_eq!((pending(&store), store.stat().unwrap().pending_transactions), (vec![0, 1], 2));
    }
}

#[test]
fn half_messages_that_a_broker_wrote_after_txstore_are_no_set() {
    let bench = Bench::sync();
    let store = bench.open();
    let set = prepare_many(&store, &["1", "2"]).unwrap();
    end(&store, &set[0], EndKind::Commit).unwrap();
    store.close().unwrap();
    let at = appended(&bench.read_only());
    let (one, two) = (marked("a", 2, 0), marked("b", 2, 1));
    let bytes = super::foreign::encoded(at, &[(super::foreign::half(&one), 2), (super::foreign::half(&two), 3)]);
    bench.write("commitlog/00000000000000000000", at, &bytes);
    for store in [bench.read_only(), bench.open()] {
        assert_eq!((pending(&store), store.stat().unwrap().pending_transactions), (vec![2, 3], 2));
    }
}

/// A crash cut a set in a log that a broker began. No broker has finished what is left of it, so a reader does not show
/// it as finished, before and after a writer has rolled it back. Found by the simulation.
#[test]
fn t2_a_cut_set_after_a_brokers_log_is_not_finished_until_it_is_rolled_back() {
    let ordinary = Draft { topic: "orders", ..super::foreign::half(b"") };
    let brokers = super::foreign::broker(&[(ordinary, 0)]);
    let brokers = brokers.with(|options| options.transaction_flush_disk_type = FlushDiskType::Async);
    let store = brokers.open();
    let sent = prepare_many(&store, &["1", "2", "3"]).unwrap();
    let bench = brokers.killed();
    let file = bench.memory.open("commitlog/00000000000000000000", OpenMode::Write).unwrap();
    let last = sent[0].physical_offset.0;
    file.write_at(&vec![0; usize::try_from(appended(&store) - last).unwrap()], last).unwrap();
    let outcomes = |store: &Store| store.transactions().unwrap().iter().map(|row| row.outcome).collect::<Vec<_>>();
    assert_eq!(outcomes(&bench.read_only()), [None, None]);
    bench.open().close().unwrap();
    assert_eq!(outcomes(&bench.read_only()), [Some(Outcome::RolledBack), Some(Outcome::RolledBack)]);
}
