//! A read by an expression takes a bounded time, whatever the expression and the messages have, and gets further.

use super::*;
use crate::filter::{ReadBudget, Selector};

fn send_with(store: &Store, properties: &[(&str, &str)]) {
    let envelope = Envelope::new(&Parts { topic: "orders", properties, ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"x", queue_id: QUEUE };
    store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
}

fn bench() -> Bench {
    Bench::new(FlushDiskType::Async).with(|options| options.commit_log_file_size = Some(4 << 20))
}

/// Returns where each request of a client ends that reads on where the one before ended, and how many messages it has.
fn requests(store: &Store, selector: &Selector) -> Vec<(u64, usize)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < store.queue_range("orders", QUEUE).unwrap().1 {
        let mut budget = ReadBudget::of_request(Some(selector));
        let read = store.read_within("orders", QUEUE, QueueOffset(at), 32, Some(selector), &mut budget);
        let (records, next) = read.unwrap();
        assert!(next.0 > at, "a request gets at least one message further");
        at = next.0;
        found.push((at, records.len()));
    }
    found
}

#[test]
fn a_request_skips_few_messages_if_they_and_the_expression_are_large() {
    let (bench, names) = (bench(), (0..2_000).map(|n| format!("k{n}")).collect::<Vec<_>>());
    let store = bench.open();
    let large: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "value")).collect();
    for _ in 0..20 {
        send_with(&store, &large);
    }
    send_with(&store, &[("wanted", "1")]);
    let terms: Vec<String> = (0..1_000).map(|n| format!("z{n}=1")).collect();
    let sql = format!("{} OR wanted = 1", terms.join(" OR "));
    let found = requests(&store, &Selector::sql(&sql).unwrap());
    assert_eq!(found.last(), Some(&(21, 1)));
    assert!(found.len() >= 5, "{found:?}");
    let small = requests(&store, &Selector::sql("wanted = 1").unwrap());
    assert_eq!(small, [(21, 1)], "an ordinary expression is not held up by large messages");
}

#[test]
fn a_request_skips_two_thousand_ordinary_messages() {
    let bench = bench();
    let store = bench.open();
    for _ in 0..2_100 {
        send_with(&store, &[("price", "10"), ("region", "eu")]);
    }
    let selector = Selector::sql("price > 10 AND region IN ('eu', 'us')").unwrap();
    assert_eq!(requests(&store, &selector), [(2_048, 0), (2_100, 0)]);
}

#[test]
fn a_call_that_may_not_wait_does_not_search_for_rare_messages() {
    let bench = bench();
    let store = bench.open();
    for _ in 0..1_500 {
        send_with(&store, &[("price", "10")]);
    }
    send_with(&store, &[("price", "20")]);
    let selector = Selector::sql("price > 10").unwrap();
    let now = |from| store.now().read("orders", QUEUE, QueueOffset(from), 9, Some(&selector));
    assert!(matches!(now(0), Err(Error::WouldWait)));
    assert_eq!(now(1_400).unwrap().0.len(), 1);
    let (found, next) = store.read("orders", QUEUE, QueueOffset(0), 9, Some(&selector)).unwrap();
    assert_eq!((found.len(), next), (1, QueueOffset(1_501)));
}
