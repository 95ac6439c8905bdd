//! A promoted replica of a broker delivers what waits in the broker's timer, which is not in the log: each message once,
//! also after a crash at any moment.

use std::collections::BTreeMap;

use super::foreign::half;
use super::hand_over::CHECKPOINT;
use super::replicas::copy_all;
use super::timed::{deliver, send_at};
use super::*;
use crate::base::names::{TIMED_TOPIC, WHEEL_TOPIC};
use crate::index::timed::wheel_ms;
use crate::record::encode::encode;
use crate::record::{Draft, Position};
use crate::storage::memory::FaultKind;
use crate::storage::settings::{DIRECTORY, Settings};

const OUT_MS: i64 = 1_700_000_005_000;
const LOG_FILE: u64 = 64 << 10;

/// What a broker writes: a record of its timer, or of a topic.
struct BrokersLog {
    start: u64,
    bytes: Vec<u8>,
    ends: BTreeMap<&'static str, u64>,
}

impl BrokersLog {
    fn new() -> Self {
        Self { start: 0, bytes: Vec::new(), ends: BTreeMap::new() }
    }

    fn push(&mut self, topic: &'static str, body: &str, properties: &[(&str, &str)]) {
        let text: String = properties.iter().flat_map(|(name, value)| [*name, "\x01", *value, "\x02"]).collect();
        let draft = Draft { topic, body: body.as_bytes(), ..half(text.as_bytes()) };
        let next = self.ends.entry(topic).or_default();
        let position = Position {
            physical_offset: PhysicalOffset(self.start + crate::base::units::to_u64(self.bytes.len())),
            queue_offset: QueueOffset(*next),
            store_timestamp: TimestampMs(1_700_000_000_000),
        };
        *next += 1;
        encode(&draft, position, false, &mut self.bytes).unwrap();
    }

    /// A message that waits: its body is its unique id, too. `more`: other properties.
    fn wait(&mut self, id: &str, more: &[(&str, &str)]) {
        let out = OUT_MS.to_string();
        let own = [("UNIQ_KEY", id), ("REAL_TOPIC", "orders"), ("REAL_QID", "0"), ("TIMER_OUT_MS", &out)];
        self.push(WHEEL_TOPIC, id, &[&own, more].concat());
    }

    /// A message that waits and is moved within the timer, because it is far ahead.
    fn roll(&mut self, id: &str) {
        self.wait(id, &[("TIMER_DEQUEUE_MS", "1700000000001"), ("TIMER_ROLL_TIMES", "1")]);
    }

    fn delivered(&mut self, id: &str) {
        let out = OUT_MS.to_string();
        self.push("orders", id, &[("UNIQ_KEY", id), ("TIMER_OUT_MS", &out), ("TIMER_DEQUEUE_MS", &out)]);
    }

    fn recall(&mut self, named: &str) {
        self.wait("recall", &[("TIMER_DEL_UNIQKEY", named)]);
    }

    /// Copies it to a replica, and promotes that.
    fn promoted(&self, copy: Bench) -> Bench {
        let store = copy.open();
        store.append_copied(PhysicalOffset(self.start), &self.bytes, 1).unwrap();
        store.flush().unwrap();
        store.show_up_to(store.appended_end());
        store.close().unwrap();
        copy.with(|options| options.role = Role::Alone)
    }
}

/// A replica of a broker, with the sizes of its files.
fn replica() -> Bench {
    let bench = Bench::sync().with(|options| options.role = Role::Replica).with(sized);
    bench.memory.create_dir(DIRECTORY).unwrap();
    Settings { commit_log_file_size: Some(LOG_FILE), ..Settings::default() }.store(&bench.memory).unwrap();
    bench
}

const fn sized(options: &mut StoreOptions) {
    options.commit_log_file_size = Some(LOG_FILE);
}

/// Lets the clock show a time that has not come yet.
fn advance_to(bench: &Bench, wall_ms: i64) {
    bench.clock.advance(wall_ms - bench.clock.wall().0);
}

fn delivered_in(store: &Store) -> Vec<String> {
    let mut found: Vec<String> =
        bodies(store, "orders", 0).into_iter().map(|body| String::from_utf8(body).unwrap()).collect();
    found.sort();
    found
}

/// Each kind of message that a broker's timer has, and what is in the topic in the end.
fn all_kinds() -> (BrokersLog, [&'static str; 8]) {
    let mut log = BrokersLog::new();
    log.wait("first in the log", &[]);
    for id in [
        "delivered",
        "recalled",
        "recalled by txstore",
        "recalled by its id",
        "rolled",
        "rolled and delivered",
        "again",
    ] {
        log.wait(id, &[]);
    }
    // Sent again, because the client got no answer.
    log.wait("again", &[]);
    log.wait("again and delivered once", &[]);
    log.wait("again and delivered once", &[]);
    log.delivered("again and delivered once");
    log.recall("orders+recalled");
    log.recall("orders_recalled by txstore");
    log.recall("recalled by its id");
    log.recall("others+rolled");
    log.delivered("delivered");
    log.roll("rolled");
    log.roll("rolled");
    log.roll("rolled and delivered");
    log.delivered("rolled and delivered");
    let expected = [
        "again",
        "again",
        "again and delivered once",
        "again and delivered once",
        "delivered",
        "first in the log",
        "rolled",
        "rolled and delivered",
    ];
    (log, expected)
}

#[test]
fn what_waits_in_a_brokers_timer_is_delivered_once() {
    let (log, expected) = all_kinds();
    let promoted = log.promoted(replica());
    let store = promoted.open();
    assert_eq!(store.timed_messages().unwrap(), 5);
    // When the second is over, as a broker does.
    advance_to(&promoted, OUT_MS + 999);
    assert_eq!(deliver(&store), (0, Some(1)));
    promoted.clock.advance(1);
    assert_eq!(deliver(&store), (5, None));
    assert_eq!(delivered_in(&store), expected);
    let (found, _) = store.read("orders", QUEUE, QueueOffset(3), 1, None).unwrap();
    let properties = found[0].view().unwrap().properties;
    assert_eq!(properties.get_str("REAL_TOPIC"), None);
    store.close().unwrap();
    // It takes over once; a broker that continues the store reads none of them.
    let store = promoted.open();
    assert_eq!((store.timed_messages().unwrap(), deliver(&store)), (0, (0, None)));
    let next = promoted.read(CHECKPOINT, 16, 8);
    let end = store.queues().unwrap().into_iter().find(|row| row.0 == WHEEL_TOPIC).unwrap().3;
    assert_eq!(u64::from_be_bytes(next.try_into().unwrap()), end);
}

#[test]
fn a_crash_at_any_call_of_a_promotion_doubles_nothing() {
    let (log, expected) = all_kinds();
    let promoted = log.promoted(replica());
    let open_and_deliver = |bench: &Bench| -> Result<()> {
        let store = bench.try_open()?;
        advance_to(bench, OUT_MS + 1_000);
        store.deliver_delayed(2)?;
        store.close()
    };
    let calls = {
        let whole = promoted.killed();
        let before = whole.memory.calls();
        open_and_deliver(&whole).unwrap();
        whole.memory.calls() - before
    };
    assert!(calls > 20, "{calls}");
    for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
        for call in 1..=calls {
            let bench = promoted.killed();
            bench.memory.fail_at(bench.memory.calls() + call, FaultKind::Stop, true);
            let done = open_and_deliver(&bench);
            bench.memory.clear_fault();
            let bench = if done.is_ok() { bench } else { bench.crashed(call, keep) };
            let store = bench.open();
            while store.deliver_delayed(100).unwrap().messages > 0 {}
            assert_eq!(delivered_in(&store), expected, "call {call}, {keep:?}");
            assert_eq!(store.timed_messages().unwrap(), 0);
        }
    }
}

#[test]
fn what_was_handed_over_and_delivered_by_the_copied_broker_does_not_come_again() {
    let bench = Bench::sync().with(sized);
    let source = bench.open();
    let due_ms = OUT_MS + 500;
    let sent = [b"1", b"2"].map(|body| send_at(&source, "orders", body, due_ms).unwrap());
    source.hand_over_timed().unwrap();
    let replica = replica();
    let store = replica.open();
    copy_all(&source, &store);
    let mut log = BrokersLog::new();
    log.start = store.appended_end().0;
    let out = wheel_ms(due_ms).to_string();
    log.push("orders", "1", &[("UNIQ_KEY", &sent[0].unique_id), ("TIMER_OUT_MS", &out)]);
    store.close().unwrap();
    let promoted = log.promoted(replica);
    let store = promoted.open();
    assert_eq!(store.timed_messages().unwrap(), 1);
    advance_to(&promoted, due_ms);
    assert_eq!(deliver(&store), (1, None));
    assert_eq!(bodies(&store, "orders", 1), [b"2"]);
    assert!(store.queues().unwrap().iter().any(|row| row.0 == TIMED_TOPIC));
}

#[test]
fn a_replica_takes_nothing_over_before_its_promotion() {
    let (log, _) = all_kinds();
    let bench = log.promoted(replica()).with(|options| options.role = Role::Replica);
    let store = bench.open();
    let end = store.appended_end();
    advance_to(&bench, OUT_MS + 9_000);
    assert_eq!(store.timed_messages().unwrap(), 0);
    store.close().unwrap();
    assert_eq!(bench.open().appended_end(), end);
}
