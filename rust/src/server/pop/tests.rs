//! Groups read topics of a store in memory.
//!
//! Guards: a client gets messages of all queues, what it wants and nothing else; the stored offset is the lowest
//! unacknowledged one, and an offset that somebody else stores counts; retries of each topic have their own progress;
//! a crash does not forget how often a message was delivered.

use std::sync::Arc;

use super::handle::Lease;
use super::queue::{Fate, Holder, Stale, Terms};
use super::reader::{Gathered, Reader, Wish};
use super::room::Room;
use super::source::{BYTES_MAX, Source};
use super::*;
use crate::base::clock::SystemClock;
use crate::base::options::StoreOptions;
use crate::base::units::{PhysicalOffset, QueueId};
use crate::filter::Selector;
use crate::record::message::{Envelope, Parts};
use crate::storage::memory::{CrashKeep, FaultKind, Memory};
use crate::store::{Copy, NewMessage, Sent, Store, Wait};

const GROUP: &str = "shipping";
const TOPIC: &str = "orders";
const RETRIES: &str = "%RETRY%shipping";
const QUEUES: i32 = 2;
const MEMORY: usize = 1 << 30;

fn store() -> Store {
    store_on(&Memory::new())
}

fn store_on(memory: &Memory) -> Store {
    let options = StoreOptions { background: false, ..StoreOptions::default() };
    Store::open_with(Arc::new(memory.clone()), Arc::new(SystemClock), options).unwrap()
}

fn send(store: &Store, topic: &str, queue_id: i32, tag: &str, body: &[u8]) -> Sent {
    let envelope = Envelope::new(&Parts { topic, tags: Some(tag), ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body, queue_id: QueueId(queue_id) };
    store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap()
}

/// Sends a message back to the group's retry topic, as if it was delivered so often.
fn retry(store: &Store, sent: PhysicalOffset, origin: &str, delivered: i32) {
    let properties = [("RETRY_TOPIC".to_owned(), origin.to_owned())];
    let copy = Copy {
        topic: RETRIES,
        queue_id: QueueId(0),
        delay_level: 0,
        reconsume_times: delivered,
        properties: &properties,
    };
    store.append_copy(sent, &copy).unwrap();
}

fn reader(store: &Store, topic: &str) -> Reader {
    let reader = Reader::new(GROUP, topic, 0, &Arc::new(Room::new(MEMORY)));
    reader.open_queues(store, QUEUES).unwrap();
    reader
}

fn wish(tags: Option<&str>, messages_max: usize) -> Wish {
    Wish { fifo: false, selector: tags.map(|tag| Selector::tags([tag.to_owned()])), messages_max }
}

fn terms(now_ms: i64) -> Terms {
    let holder = Holder { client: 1, connection: 2 };
    Terms { now_ms, visible_at_ms: now_ms + 10, holder, attempts_max: 3, attempt_id: None }
}

fn take(store: &Store, reader: &Reader, now_ms: i64, messages_max: usize) -> Gathered {
    reader.take(store, &wish(None, messages_max), &terms(now_ms)).unwrap()
}

fn bodies(gathered: &Gathered) -> Vec<String> {
    let body = |record: &crate::store::StoredRecord| String::from_utf8(record.view().unwrap().body.to_vec()).unwrap();
    let mut found: Vec<_> = gathered.messages.iter().map(|(_, message)| body(&message.record)).collect();
    found.sort();
    found
}

fn acknowledge(store: &Store, gathered: &Gathered, now_ms: i64) {
    for (source, message) in &gathered.messages {
        let at = (message.taken.queue_offset, message.taken.number);
        source.acknowledge(store, at, now_ms).unwrap().unwrap();
    }
}

fn offset(store: &Store, topic: &str, name: &str, queue_id: i32) -> Option<u64> {
    store.consumer_offset(topic, name, QueueId(queue_id)).unwrap()
}

fn source_of(reader: &Reader, queue_id: Option<i32>) -> Arc<Source> {
    reader.source(Lease { queue_id: queue_id.map(QueueId), queue_offset: 0, number: 0 }).unwrap()
}

#[test]
fn a_receive_gets_messages_of_all_queues() {
    let store = store();
    for (queue_id, body) in [(0, b"a"), (1, b"b"), (1, b"c")] {
        send(&store, TOPIC, queue_id, "t", body);
    }
    let reader = reader(&store, TOPIC);
    let taken = take(&store, &reader, 0, 32);
    assert_eq!(bodies(&taken), ["a", "b", "c"]);
    assert_eq!(bodies(&take(&store, &reader, 9, 32)), Vec::<String>::new());
    acknowledge(&store, &taken, 9);
    assert_eq!((offset(&store, TOPIC, GROUP, 0), offset(&store, TOPIC, GROUP, 1)), (Some(1), Some(2)));
}

#[test]
fn no_queue_waits_for_ever_while_another_has_enough() {
    let store = store();
    for number in 0..20_u8 {
        send(&store, TOPIC, 0, "t", &[b'a' + number]);
    }
    send(&store, TOPIC, 1, "t", b"rare");
    let reader = reader(&store, TOPIC);
    let found: Vec<_> = (0..3).flat_map(|_| bodies(&take(&store, &reader, 0, 1))).collect();
    assert!(found.contains(&"rare".to_owned()), "{found:?}");
}

#[test]
fn a_new_group_begins_at_the_first_message_and_continues_later() {
    let store = store();
    send(&store, TOPIC, 0, "t", b"a");
    let first = reader(&store, TOPIC);
    assert_eq!(offset(&store, TOPIC, GROUP, 0), Some(0), "so that retention keeps what it has not read");
    acknowledge(&store, &take(&store, &first, 0, 32), 0);
    send(&store, TOPIC, 0, "t", b"b");
    // As after a restart.
    assert_eq!(bodies(&take(&store, &reader(&store, TOPIC), 0, 32)), ["b"]);
}

#[test]
fn what_was_acknowledged_above_the_lowest_comes_again_after_a_crash() {
    let store = store();
    for body in [b"a", b"b", b"c"] {
        send(&store, TOPIC, 0, "t", body);
    }
    let before = reader(&store, TOPIC);
    let mut taken = take(&store, &before, 0, 32);
    taken.messages.remove(0);
    acknowledge(&store, &taken, 0);
    assert_eq!(offset(&store, TOPIC, GROUP, 0), Some(0));
    assert_eq!(bodies(&take(&store, &reader(&store, TOPIC), 0, 32)), ["a", "b", "c"]);
}

#[test]
fn the_filter_acknowledges_what_it_drops() {
    let store = store();
    for (tag, body) in [("x", b"a"), ("y", b"b"), ("x", b"c")] {
        send(&store, TOPIC, 0, tag, body);
    }
    let reader = reader(&store, TOPIC);
    let nothing = reader.take(&store, &wish(Some("z"), 32), &terms(0)).unwrap();
    assert_eq!((bodies(&nothing), offset(&store, TOPIC, GROUP, 0)), (vec![], Some(3)));
    send(&store, TOPIC, 0, "x", b"d");
    send(&store, TOPIC, 0, "y", b"e");
    let some = reader.take(&store, &wish(Some("y"), 32), &terms(0)).unwrap();
    assert_eq!((bodies(&some), offset(&store, TOPIC, GROUP, 0)), (vec!["e".to_owned()], Some(4)));
}

#[test]
fn an_offset_that_somebody_else_stores_counts() {
    let store = store();
    for body in [b"a", b"b", b"c"] {
        send(&store, TOPIC, 0, "t", body);
    }
    let reader = reader(&store, TOPIC);
    let before = take(&store, &reader, 0, 32);
    acknowledge(&store, &before, 0);
    store.set_consumer_offset(TOPIC, GROUP, QueueId(0), 1).unwrap();
    let (source, message) = &before.messages[0];
    let at = (message.taken.queue_offset, message.taken.number);
    assert_eq!(source.acknowledge(&store, at, 0).unwrap(), Err(Stale));
    assert_eq!(source.change_visible(&store, at, 0, 5).unwrap(), Err(Stale));
    assert_eq!(offset(&store, TOPIC, GROUP, 0), Some(1), "an older acknowledgement does not undo the reset");
    let again = take(&store, &reader, 0, 32);
    assert_eq!(bodies(&again), ["b", "c"]);
    assert!(
        again
            .messages
            .iter()
            .all(|(_, one)| before.messages.iter().all(|(_, old)| old.taken.number != one.taken.number))
    );
}

#[test]
fn an_answer_is_limited_in_bytes() {
    let store = store();
    for _ in 0..4 {
        send(&store, TOPIC, 0, "t", &vec![b'a'; BYTES_MAX / 2 - 1_000]);
    }
    send(&store, TOPIC, 0, "t", &vec![b'b'; BYTES_MAX + 1]);
    let reader = reader(&store, TOPIC);
    let sizes = |now_ms| [0; 3].map(|_| take(&store, &reader, now_ms, 32).messages.len());
    assert_eq!(sizes(0), [2, 2, 1], "one that is longer comes alone");
    assert_eq!(sizes(10), [2, 2, 1], "also when they are visible again");
}

#[test]
fn each_topic_has_its_own_progress_in_the_retry_topic() {
    let store = store();
    let sent = send(&store, TOPIC, 0, "t", b"a").physical_offset;
    let other = send(&store, "payments", 0, "t", b"p").physical_offset;
    let (orders, payments) = (reader(&store, TOPIC), reader(&store, "payments"));
    acknowledge(&store, &take(&store, &orders, 0, 32), 0);
    retry(&store, other, "payments", 2);
    retry(&store, sent, TOPIC, 1);
    let taken = take(&store, &orders, 0, 32);
    assert_eq!(bodies(&taken), ["a"]);
    assert_eq!(taken.messages[0].1.taken.attempt, 2, "counted over all copies");
    acknowledge(&store, &taken, 0);
    let names = ["shipping%orders", "shipping%payments", "shipping"];
    assert_eq!(names.map(|name| offset(&store, RETRIES, name, 0)), [Some(2), Some(0), Some(0)]);
    let taken = take(&store, &payments, 0, 32);
    assert_eq!(bodies(&taken), ["p", "p"]);
    acknowledge(&store, &taken, 0);
    assert_eq!(names.map(|name| offset(&store, RETRIES, name, 0)), [Some(2), Some(2), Some(2)]);
}

#[test]
fn a_retry_is_copied_before_each_further_delivery() {
    let store = store();
    let sent = send(&store, "elsewhere", 0, "t", b"a").physical_offset;
    let reader = reader(&store, TOPIC);
    retry(&store, sent, TOPIC, 1);
    let fates =
        |now_ms| take(&store, &reader, now_ms, 32).messages.iter().map(|(_, one)| one.taken.fate).collect::<Vec<_>>();
    assert_eq!((fates(0), fates(10)), (vec![Fate::Deliver], vec![Fate::Retry]));
    assert!(source_of(&reader, None).is_retry());
}

#[test]
fn messages_of_a_client_that_is_gone_are_visible_soon() {
    let store = store();
    send(&store, TOPIC, 0, "t", b"a");
    let pop = Pop::new(MEMORY).unwrap();
    let reader = pop.reader(GROUP, TOPIC);
    reader.open_queues(&store, QUEUES).unwrap();
    assert!(pop.join(GROUP, 1));
    pop.receives(&reader, (1, 2), None);
    let long = Terms { visible_at_ms: 10_000_000, ..terms(0) };
    assert_eq!(bodies(&reader.take(&store, &wish(None, 32), &long).unwrap()), ["a"]);
    assert_eq!(reader.next_visible_ms(), Some(10_000_000));
    pop.connection_lost(2, 5);
    assert_eq!(reader.next_visible_ms(), Some(60_005), "its client may live");
    assert_eq!(pop.members(GROUP), 1);
    pop.client_gone(1, 10);
    assert_eq!((reader.next_visible_ms(), pop.members(GROUP)), (Some(1_010), 0));
    assert_eq!(bodies(&take(&store, &reader, 1_009, 32)), Vec::<String>::new());
    assert_eq!(bodies(&take(&store, &reader, 1_010, 32)), ["a"]);
}

#[test]
fn an_idle_reading_is_forgotten_and_its_numbers_are_not_used_again() {
    let store = store();
    send(&store, TOPIC, 0, "t", b"a");
    let pop = Pop::new(MEMORY).unwrap();
    let taken = {
        let reader = pop.reader(GROUP, TOPIC);
        reader.open_queues(&store, QUEUES).unwrap();
        take(&store, &reader, 0, 32)
    };
    pop.forget_idle(&store);
    assert!(pop.known(GROUP, TOPIC).is_some(), "it has a message in flight");
    acknowledge(&store, &taken, 0);
    pop.forget_idle(&store);
    assert!(pop.known(GROUP, TOPIC).is_none());
    send(&store, TOPIC, 0, "t", b"b");
    let reader = pop.reader(GROUP, TOPIC);
    reader.open_queues(&store, QUEUES).unwrap();
    let number = taken.messages[0].1.taken.number;
    assert!(take(&store, &reader, 0, 32).messages.iter().all(|(_, message)| message.taken.number > number));
}

#[test]
fn readers_are_told_where_new_messages_will_be() {
    let store = store();
    let reader = reader(&store, TOPIC);
    let source = source_of(&reader, Some(0));
    take(&store, &reader, 0, 32);
    assert_eq!((source.to_watch(), source.to_watch()), (Some(0), None));
    assert!(!reader.has_new(&store, 0).unwrap());
    send(&store, TOPIC, 0, "t", b"a");
    assert!(reader.has_new(&store, 0).unwrap());
    take(&store, &reader, 0, 32);
    assert_eq!((source.to_watch(), reader.has_new(&store, 0).unwrap()), (Some(1), false));
}

#[test]
fn queues_have_a_limit_in_common() {
    let store = store();
    let room = Arc::new(Room::new(8 << 10));
    assert_eq!(room.left(), 12);
    let (one, other) = (Reader::new(GROUP, TOPIC, 0, &room), Reader::new("billing", TOPIC, 1 << 32, &room));
    for reader in [&one, &other] {
        reader.open_queues(&store, QUEUES).unwrap();
    }
    for number in 0..20 {
        send(&store, TOPIC, number % QUEUES, "t", b"a");
    }
    let first = take(&store, &one, 0, 8);
    assert_eq!((first.messages.len(), take(&store, &other, 0, 32).messages.len(), room.left()), (8, 4, 0));
    assert!(take(&store, &one, 0, 32).messages.is_empty());
    assert!(!one.has_new(&store, 0).unwrap(), "it waits until there is room");
    acknowledge(&store, &first, 0);
    assert_eq!((room.left(), take(&store, &one, 0, 32).messages.len()), (8, 8));
    assert_eq!(take(&store, &other, 10, 32).messages.len(), 4, "what comes again takes no more room");
    drop(other);
    assert_eq!(room.left(), 4, "what is forgotten takes none");
}

#[test]
fn a_client_has_a_limited_number_of_groups() {
    let pop = Pop::new(MEMORY).unwrap();
    let name = |number: usize| format!("group-{number}");
    for number in 0..GROUPS_MAX {
        assert!(pop.join(&name(number), 1) && pop.join(&name(number), 1));
    }
    assert!(!pop.join("one-more", 1) && pop.join("one-more", 2));
    pop.leave(&name(0), 1);
    pop.leave(&name(0), 1);
    pop.leave("one-more", 1);
    assert_eq!((pop.members(&name(0)), pop.members("one-more"), pop.members_in_all()), (0, 1, GROUPS_MAX));
    assert!(pop.join("another", 1));
    pop.client_gone(1, 0);
    assert_eq!((pop.members("another"), pop.members_in_all()), (0, 1));
    assert_eq!((pop.members_of("one-more"), pop.groups_of(TOPIC)), (vec![2], Vec::<String>::new()));
}

#[test]
fn a_reading_whose_offset_was_removed_is_forgotten_with_what_is_in_flight() {
    let store = store();
    send(&store, TOPIC, 0, "t", b"a");
    let pop = Pop::new(MEMORY).unwrap();
    let reader = pop.reader(GROUP, TOPIC);
    reader.open_queues(&store, QUEUES).unwrap();
    let left = pop.room.left();
    assert_eq!(bodies(&take(&store, &reader, 0, 32)), ["a"]);
    store.remove_consumer_offsets(TOPIC, GROUP).unwrap();
    store.remove_consumer_offsets(RETRIES, &format!("{GROUP}%{TOPIC}")).unwrap();
    assert!(reader.progress(&store, 0).unwrap().is_empty());
    drop(reader);
    pop.forget_idle(&store);
    assert!(pop.known(GROUP, TOPIC).is_none());
    assert_eq!(pop.room.left(), left);
}

#[test]
fn a_topic_may_have_fewer_queues_than_before() {
    let store = store();
    let reader = reader(&store, TOPIC);
    reader.open_queues(&store, 1).unwrap();
    assert_eq!(reader.sources().len(), 2, "one queue, and the retry topic's");
    send(&store, TOPIC, 1, "t", b"a");
    assert_eq!(bodies(&take(&store, &reader, 0, 32)), Vec::<String>::new());
    reader.open_queues(&store, QUEUES).unwrap();
    assert_eq!(bodies(&take(&store, &reader, 0, 32)), ["a"]);
}

/// What a client gets: the bodies with the numbers of their attempts, and what becomes of them.
fn summary(gathered: &Gathered) -> Vec<(String, u32, Fate)> {
    let body =
        |message: &super::source::Message| String::from_utf8(message.record.view().unwrap().body.to_vec()).unwrap();
    gathered.messages.iter().map(|(_, one)| (body(one), one.taken.attempt, one.taken.fate)).collect()
}

fn delivered(body: &str, attempt: u32) -> Vec<(String, u32, Fate)> {
    vec![(body.to_owned(), attempt, Fate::Deliver)]
}

#[test]
fn a_crash_does_not_forget_how_often_messages_were_delivered() {
    let memory = Memory::new();
    let store = store_on(&memory);
    for body in [b"a", b"b", b"c", b"d"] {
        send(&store, TOPIC, 0, "t", body);
    }
    store.write_offsets().unwrap();
    let before = reader(&store, TOPIC);
    acknowledge(&store, &take(&store, &before, 0, 1), 0);
    store.write_offsets().unwrap();
    take(&store, &before, 0, 2);
    take(&store, &before, 20, 1);
    // A machine that stops between two calls finds the file as it is then.
    let memory = memory.crash(0, CrashKeep::PageCache);
    let store = store_on(&memory);
    let again = reader(&store, TOPIC);
    let moved = take(&store, &again, 0, 32);
    assert_eq!(summary(&moved), [("b".to_owned(), 2, Fate::Retry)], "then one that comes alone");
    assert!(source_of(&again, Some(0)).moved(&store, moved.messages[0].1.taken).unwrap(), "its offset is stored now");
    assert_eq!(summary(&take(&store, &again, 0, 32)), delivered("c", 2));
    let last = take(&store, &again, 0, 32);
    assert_eq!(summary(&last), delivered("d", 1));
    assert!(!source_of(&again, Some(0)).moved(&store, last.messages[0].1.taken).unwrap());
}

#[test]
fn messages_of_other_queues_do_not_come_with_one_that_comes_alone() {
    let memory = Memory::new();
    let store = store_on(&memory);
    send(&store, TOPIC, 0, "t", b"a");
    take(&store, &reader(&store, TOPIC), 0, 32);
    send(&store, TOPIC, 1, "t", b"b");
    let store = store_on(&memory.crash(0, CrashKeep::PageCache));
    let again = reader(&store, TOPIC);
    // Begins at another queue each time.
    let all: Vec<_> = (0..3).map(|_| summary(&take(&store, &again, 0, 32))).filter(|one| !one.is_empty()).collect();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all.contains(&delivered("a", 2)) && all.contains(&delivered("b", 1)), "{all:?}");
}

#[test]
fn a_group_that_was_reset_or_deleted_counts_from_one() {
    let memory = Memory::new();
    let store = store_on(&memory);
    for body in [b"a", b"b"] {
        send(&store, TOPIC, 0, "t", body);
    }
    let before = reader(&store, TOPIC);
    let taken = take(&store, &before, 0, 32);
    source_of(&before, Some(0)).acknowledge(&store, (0, taken.messages[0].1.taken.number), 0).unwrap().unwrap();
    store.set_consumer_offset(TOPIC, GROUP, QueueId(0), 0).unwrap();
    assert_eq!(summary(&take(&store, &before, 0, 1)), delivered("a", 1));
    store.write_offsets().unwrap();
    let store = store_on(&memory.crash(0, CrashKeep::PageCache));
    let again = reader(&store, TOPIC);
    assert_eq!(summary(&take(&store, &again, 0, 32)), delivered("a", 2));
    assert_eq!(summary(&take(&store, &again, 0, 32)), delivered("b", 1), "not since the reset");
    store.remove_consumer_offsets(TOPIC, GROUP).unwrap();
    let new = reader(&store, TOPIC);
    let all = take(&store, &new, 0, 32);
    assert_eq!(summary(&all), [delivered("a", 1), delivered("b", 1)].concat());
}

#[test]
fn files_of_deliveries_are_replaced_while_queues_are_read() {
    let memory = Memory::new();
    let store = store_on(&memory);
    for queue_id in 0..QUEUES {
        send(&store, TOPIC, queue_id, "t", b"a");
    }
    take(&store, &reader(&store, TOPIC), 0, 1);
    let memory = memory.crash(0, CrashKeep::PageCache);
    let store = store_on(&memory);
    let pop = Pop::new(MEMORY).unwrap();
    let reader = pop.reader(GROUP, TOPIC);
    reader.open_queues(&store, QUEUES).unwrap();
    let long = Terms { visible_at_ms: 1_000, ..terms(0) };
    for _ in 0..3 {
        reader.take(&store, &wish(None, 32), &long).unwrap();
    }
    let files = |memory: &Memory| crate::storage::Storage::list(memory, "txstore/deliveries").unwrap().unwrap().len();
    assert_eq!(files(&memory), 2);
    pop.replace_deliveries(&store).unwrap();
    assert_eq!(files(&memory), 1);
    let store = store_on(&memory.crash(0, CrashKeep::PageCache));
    let last = self::reader(&store, TOPIC);
    let mut attempts: Vec<_> = (0..6).flat_map(|_| summary(&take(&store, &last, 0, 32))).collect();
    attempts.sort_by_key(|one| one.2 == Fate::Retry);
    assert_eq!(attempts.iter().map(|one| (one.1, one.2)).collect::<Vec<_>>(), [(2, Fate::Deliver), (2, Fate::Retry)]);
}

#[test]
fn a_message_is_delivered_though_its_delivery_cannot_be_noted() {
    for call in 1..=4 {
        let memory = Memory::new();
        let store = store_on(&memory);
        send(&store, TOPIC, 0, "t", b"a");
        let reader = reader(&store, TOPIC);
        memory.fail_at(memory.calls() + call, FaultKind::NoSpace, true);
        assert_eq!(summary(&take(&store, &reader, 0, 32)), delivered("a", 1));
        memory.clear_fault();
        assert_eq!(summary(&take(&store, &reader, 20, 32)), delivered("a", 2));
        let store = store_on(&memory.crash(0, CrashKeep::PageCache));
        let again = self::reader(&store, TOPIC);
        assert_eq!(summary(&take(&store, &again, 0, 32)), [("a".to_owned(), 2, Fate::Retry)]);
    }
}

#[test]
fn progress_tells_what_is_in_flight() {
    let store = store();
    for _ in 0..4 {
        send(&store, TOPIC, 0, "t", b"a");
    }
    let reader = reader(&store, TOPIC);
    let taken = take(&store, &reader, 0, 3);
    let (source, third) = &taken.messages[2];
    source.acknowledge(&store, (third.taken.queue_offset, third.taken.number), 0).unwrap().unwrap();
    source.release(&[taken.messages[0].1.taken], 5);
    let progress = reader.progress(&store, 5).unwrap();
    let of_queue = progress.iter().find(|one| one.topic == TOPIC && one.queue_id == QueueId(0)).unwrap();
    let counts = (of_queue.committed, of_queue.in_flight, of_queue.to_redeliver, of_queue.acknowledged_above);
    assert_eq!((counts, progress.len()), ((0, 1, 1, 1), 1), "the other queues were not read yet");
}
