//! A broker deleted a topic and created it again: its queues begin at 0 again, and the old records stay in the log. The
//! broker serves what its queue files say.

use super::foreign::half;
use super::*;
use crate::base::units::to_u64;
use crate::index::consume_queue::Entry;
use crate::record::encode::encode;
use crate::record::{Draft, Position};

const LOG: &str = "commitlog/00000000000000000000";
const FILE: u64 = 20 * 8;

/// A message of a broker: its body, its message queue and its queue offset.
pub(super) type Message = (&'static str, i32, u64);

/// Appends records of topic "orders" at `at`, as a broker does. Returns their entries.
pub(super) fn append(bench: &Bench, at: u64, messages: &[Message]) -> Vec<Entry> {
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    for (body, queue_id, queue_offset) in messages {
        let draft =
            Draft { topic: "orders", queue_id: QueueId(*queue_id), body: body.as_bytes(), ..half(b"KEYS\x01k\x02") };
        let physical_offset = PhysicalOffset(at + to_u64(bytes.len()));
        let (queue_offset, store_timestamp) = (QueueOffset(*queue_offset), TimestampMs(1_700_000_000_000));
        let size =
            encode(&draft, Position { physical_offset, queue_offset, store_timestamp }, false, &mut bytes).unwrap();
        entries.push(Entry { physical_offset, size, tags_code: 0 });
    }
    bench.memory.create_dir("commitlog").unwrap();
    let base = at - at % (4 << 10);
    let file = bench.memory.open(&format!("commitlog/{base:020}"), OpenMode::Create).unwrap();
    file.set_len(4 << 10).unwrap();
    file.write_at(&bytes, at - base).unwrap();
    file.sync().unwrap();
    entries
}

fn queue_path(queue_id: i32) -> String {
    format!("consumequeue/orders/{queue_id}/00000000000000000000")
}

/// Replaces the topic's queue files by these.
fn put_queues(bench: &Bench, queues: &[(i32, &[Entry])]) {
    bench.memory.remove_dir("consumequeue/orders").unwrap();
    for (queue_id, entries) in queues {
        bench.memory.create_dir(&format!("consumequeue/orders/{queue_id}")).unwrap();
        let file = bench.memory.open(&queue_path(*queue_id), OpenMode::Create).unwrap();
        file.set_len(FILE).unwrap();
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        file.write_at(&bytes, 0).unwrap();
        file.sync().unwrap();
    }
}

fn text(store: &Store, queue_id: i32) -> Vec<String> {
    bodies(store, "orders", queue_id).into_iter().map(|body| String::from_utf8(body).unwrap()).collect()
}

/// Returns the physical offsets in a queue's file, up to its first zeros.
fn in_file(bench: &Bench, queue_id: i32) -> Vec<u64> {
    let bytes = bench.read(&queue_path(queue_id), 0, usize::try_from(FILE).unwrap());
    bytes.chunks(20).map_while(Entry::from_bytes).map(|entry| entry.physical_offset.0).collect()
}

/// Checks that reader and writer see what the broker serves, and that the broker serves it after the hand-over.
fn assert_served(bench: &Bench, served: &[&str], about: &str) {
    assert_eq!(text(&bench.read_only(), 0), served, "{about}: a reader");
    let offsets = in_file(bench, 0);
    for round in 0..2 {
        let store = bench.open();
        assert_eq!(text(&store, 0), served, "{about}: a writer, opening {round}");
        assert_eq!(store.queue_range("orders", QUEUE).unwrap(), (0, to_u64(served.len())), "{about}");
        store.close().unwrap();
        assert_eq!(in_file(bench, 0), offsets, "{about}: handed back after opening {round}");
    }
    let store = bench.open();
    let next = send(&store, "orders", b"next").unwrap();
    assert_eq!(next.queue_offset.0, to_u64(served.len()), "{about}");
    let after = bench.killed().open();
    assert_eq!(text(&after, 0).len(), served.len() + 1, "{about}: after a kill");
}

fn send_to(store: &Store, queue_id: i32, body: &[u8]) -> QueueOffset {
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body, queue_id: QueueId(queue_id) };
    store.append_one(&message, Wait::Yes).and_then(Unacknowledged::acknowledged).unwrap().queue_offset
}

fn unclean(bench: Bench) -> Bench {
    bench.memory.open("abort", OpenMode::Create).unwrap();
    bench
}

const OLD: [Message; 3] = [("o0", 0, 0), ("o1", 0, 1), ("o2", 0, 2)];

#[test]
fn a_queue_that_a_broker_began_again_has_its_new_messages_alone() {
    for new in [&["n0", "n1"][..], &["n0", "n1", "n2", "n3"]] {
        for is_clean in [true, false] {
            let bench = Bench::new(FlushDiskType::Async);
            let renewed: Vec<Message> = (0..).zip(new).map(|(queue_offset, body)| (*body, 0, queue_offset)).collect();
            let entries = append(&bench, 0, &[&OLD[..], &renewed].concat());
            put_queues(&bench, &[(0, &entries[3..])]);
            let bench = if is_clean { bench } else { unclean(bench) };
            assert_served(&bench, new, &format!("clean {is_clean}, {} new", new.len()));
        }
    }
}

/// The snapshot's state of the queue is older than its deletion.
#[test]
fn a_queue_that_a_broker_began_again_after_our_snapshot_has_its_new_messages_alone() {
    for new in [&["n0", "n1"][..], &["n0", "n1", "n2", "n3"]] {
        for is_deleted in [false, true] {
            let bench = Bench::new(FlushDiskType::Async);
            let store = bench.open();
            for body in [b"o0", b"o1", b"o2"] {
                send(&store, "orders", body).unwrap();
            }
            if is_deleted {
                store.delete_queues("orders").unwrap();
            }
            let end = appended(&store);
            store.close().unwrap();
            let renewed: Vec<Message> = (0..).zip(new).map(|(queue_offset, body)| (*body, 0, queue_offset)).collect();
            let entries = append(&bench, end, &renewed);
            put_queues(&bench, &[(0, &entries)]);
            assert_served(&bench, new, &format!("{} new, deleted by us before: {is_deleted}", new.len()));
        }
    }
}

/// Queues without files (they are in `RocksDB`, or were removed): only the log is left.
#[test]
fn without_queue_files_a_queue_begins_again_at_its_newest_first_message() {
    for is_clean in [true, false] {
        let bench = Bench::new(FlushDiskType::Async);
        append(&bench, 0, &[&OLD[..], &[("n0", 0, 0), ("n1", 0, 1)]].concat());
        let bench = if is_clean { bench } else { unclean(bench) };
        let reader = bench.read_only();
        assert_eq!(text(&reader, 0), ["n0", "n1"]);
        for _ in 0..2 {
            let store = bench.open();
            assert_eq!(text(&store, 0), ["n0", "n1"]);
            assert!(store.open_report().warnings.iter().all(|warning| !warning.contains("comes next")));
            store.close().unwrap();
            assert_eq!(in_file(&bench, 0).len(), 2, "nothing of the old queue is left in the file");
        }
    }
}

/// The topic had two message queues. Created again, it has messages in only one of them.
#[test]
fn a_queue_that_was_deleted_and_not_used_again_stays_empty() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 0, &[("p0", 1, 0), ("o0", 0, 0), ("p1", 1, 1), ("n0", 0, 0)]);
    put_queues(&bench, &[(0, &entries[3..])]);
    assert_eq!(text(&bench.read_only(), 1), Vec::<String>::new());
    for _ in 0..2 {
        let store = bench.open();
        assert_eq!((text(&store, 0), text(&store, 1)), (vec!["n0".to_owned()], Vec::new()));
        store.close().unwrap();
        assert!(bench.memory.len(&queue_path(1)).unwrap().is_none());
    }
}

/// The second deletion removed a queue that had been begun again after the first one.
#[test]
fn a_queue_of_a_topic_that_was_deleted_twice_stays_empty() {
    let bench = Bench::new(FlushDiskType::Async);
    let messages = [("p0", 1, 0), ("o0", 0, 0), ("p1", 1, 0), ("o1", 0, 0), ("p2", 1, 1), ("n0", 0, 0)];
    let entries = append(&bench, 0, &messages);
    put_queues(&bench, &[(0, &entries[5..])]);
    assert_eq!(text(&bench.read_only(), 1), Vec::<String>::new());
    let store = bench.open();
    assert_eq!((text(&store, 0), text(&store, 1)), (vec!["n0".to_owned()], Vec::new()));
}

/// A broker was killed after it stored the first message of a queue, and before it began the queue's file.
#[test]
fn a_new_queue_without_a_file_keeps_its_messages() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 0, &[("o0", 0, 0), ("n0", 0, 0), ("m0", 1, 0)]);
    put_queues(&bench, &[(0, &entries[1..2])]);
    let bench = unclean(bench);
    assert_eq!(text(&bench.read_only(), 1), ["m0"]);
    let store = bench.open();
    assert_eq!((text(&store, 0), text(&store, 1)), (vec!["n0".to_owned()], vec!["m0".to_owned()]));
}

/// txstore sends the first message to a queue that a broker deleted. Without a snapshot the whole log is read again.
#[test]
fn a_deleted_queue_that_we_begin_again_has_our_messages_alone() {
    for is_closed in [true, false] {
        let bench = Bench::new(FlushDiskType::Async);
        let entries = append(&bench, 0, &[("p0", 1, 0), ("o0", 0, 0), ("p1", 1, 1), ("n0", 0, 0)]);
        put_queues(&bench, &[(0, &entries[3..])]);
        let store = bench.open();
        assert_eq!(send_to(&store, 1, b"m0"), QueueOffset(0));
        let bench = if is_closed {
            store.close().unwrap();
            bench
        } else {
            bench.killed()
        };
        let _ = bench.memory.unlink("txstore/snapshot");
        assert_eq!(text(&bench.read_only(), 1), ["m0"], "closed {is_closed}: a reader");
        assert_eq!(text(&bench.open(), 1), ["m0"], "closed {is_closed}: a writer");
    }
}

/// txstore deleted a topic, and retention removed its records. Then a broker deleted the topic, too, and created it again.
#[test]
fn a_queue_that_we_deleted_and_a_broker_began_again_has_its_new_messages() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    (0..3).for_each(|_| drop(send(&store, "orders", b"old").unwrap()));
    while appended(&store) < 5 << 10 {
        send(&store, "payments", &[7; 500]).unwrap();
    }
    store.delete_queues("orders").unwrap();
    let end = appended(&store);
    store.close().unwrap();
    bench.memory.unlink(LOG).unwrap();
    bench.memory.unlink("txstore/snapshot").unwrap();
    let entries = append(&bench, end, &[("n0", 0, 0)]);
    put_queues(&bench, &[(0, &entries)]);
    assert_eq!(text(&bench.read_only(), 0), ["n0"]);
    for _ in 0..2 {
        let store = bench.open();
        assert_eq!(text(&store, 0), ["n0"]);
        store.close().unwrap();
    }
}

/// A broker continues a queue after txstore deleted its topic, and retention removes the file of the deleted entries.
/// No snapshot tells of the deletion. The topic's other queue has no file.
#[test]
fn a_queue_that_a_broker_continued_after_our_deletion_stays_deleted() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    (0..8).for_each(|_| drop(send(&store, "orders", b"old").unwrap()));
    for _ in 0..2 {
        send_to(&store, 1, b"old");
    }
    store.delete_queues("orders").unwrap();
    let end = appended(&store);
    store.close().unwrap();
    bench.memory.unlink("txstore/snapshot").unwrap();
    let entries = append(&bench, end, &[("n8", 0, 8)]);
    put_second_file(&bench, entries[0]);
    let seen = |store: &Store| (queue_and_query(store), store.queue_range("orders", QueueId(1)).unwrap());
    let expected = (((8, 9), vec!["n8".to_owned()]), (2, 2));
    assert_eq!(seen(&bench.read_only()), expected);
    for _ in 0..2 {
        let store = bench.open();
        assert_eq!(seen(&store), expected);
        store.close().unwrap();
    }
    assert_eq!(send_to(&bench.open(), 1, b"m2"), QueueOffset(2));
}

/// A broker that lost the end of a queue's file reuses its queue offsets. The file says which record has an offset.
#[test]
fn a_number_that_a_broker_gave_twice_is_the_record_that_its_queue_file_names() {
    for is_clean in [true, false] {
        let bench = Bench::new(FlushDiskType::Async);
        let entries = append(&bench, 0, &[&OLD[..], &[("n1", 0, 1)]].concat());
        put_queues(&bench, &[(0, &[entries[0], entries[3]])]);
        let bench = if is_clean { bench } else { unclean(bench) };
        assert_served(&bench, &["o0", "n1"], &format!("clean {is_clean}"));
    }
}

/// The broker passes over a message whose queue offset its queue file gives to another one.
#[test]
fn a_message_whose_queue_offset_belongs_to_another_is_in_no_queue() {
    for is_clean in [true, false] {
        let bench = Bench::new(FlushDiskType::Async);
        let entries = append(&bench, 0, &[&OLD[..], &[("n1", 0, 1)]].concat());
        put_queues(&bench, &[(0, &entries[..3])]);
        let bench = if is_clean { bench } else { unclean(bench) };
        assert_served(&bench, &["o0", "o1", "o2"], &format!("clean {is_clean}"));
    }
}

/// A broker reused a queue offset, then txstore sent a message. Without the queue's files, nothing says which of the
/// broker's messages has the offset, but ours keeps its own.
#[test]
fn our_message_keeps_its_queue_offset_though_a_broker_gave_it_before() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 0, &[&OLD[..], &[("n1", 0, 1)]].concat());
    put_queues(&bench, &[(0, &[entries[0], entries[3]])]);
    let store = bench.open();
    assert_eq!(send(&store, "orders", b"m2").unwrap().queue_offset, QueueOffset(2));
    assert_eq!(text(&store, 0), ["o0", "n1", "m2"]);
    store.close().unwrap();
    bench.memory.remove_dir("consumequeue").unwrap();
    bench.memory.unlink("txstore/snapshot").unwrap();
    for store in [bench.read_only(), bench.open()] {
        assert_eq!(text(&store, 0), ["o0", "o1", "m2"]);
    }
}

/// The topic was never deleted. A broker was killed before it began the file of one of its queues.
#[test]
fn a_queue_without_a_file_is_not_deleted_because_another_queue_has_later_messages() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 0, &[("m0", 1, 0), ("o0", 0, 0)]);
    put_queues(&bench, &[(0, &entries[1..])]);
    let bench = unclean(bench);
    for store in [bench.read_only(), bench.open()] {
        assert_eq!((text(&store, 0), text(&store, 1)), (vec!["o0".to_owned()], vec!["m0".to_owned()]));
    }
}

const FIRST_FILE: [Message; 9] = [
    ("b0", 0, 0),
    ("b1", 0, 1),
    ("b2", 0, 2),
    ("b3", 0, 3),
    ("b4", 0, 4),
    ("b5", 0, 5),
    ("b6", 0, 6),
    ("b7", 0, 7),
    ("b8", 0, 8),
];

/// Replaces the queue's files by its second one, with this first entry.
fn put_second_file(bench: &Bench, entry: Entry) {
    put_queues(bench, &[(0, &[])]);
    bench.memory.unlink(&queue_path(0)).unwrap();
    let file = bench.memory.open(&format!("consumequeue/orders/0/{FILE:020}"), OpenMode::Create).unwrap();
    file.set_len(FILE).unwrap();
    file.write_at(&entry.to_bytes(), 0).unwrap();
    file.sync().unwrap();
}

/// txstore once deleted the topic, or did not.
#[test]
fn a_queue_whose_first_file_a_broker_lost_begins_with_the_next_one() {
    for is_deleted in [false, true] {
        let bench = Bench::new(FlushDiskType::Async);
        let mut end = 0;
        if is_deleted {
            let store = bench.open();
            (0..3).for_each(|_| drop(send(&store, "orders", b"old").unwrap()));
            store.delete_queues("orders").unwrap();
            end = appended(&store);
            store.close().unwrap();
            bench.memory.unlink("txstore/snapshot").unwrap();
        }
        let entries = append(&bench, end, &FIRST_FILE);
        put_second_file(&bench, entries[8]);
        for store in [bench.read_only(), bench.open()] {
            assert_eq!(store.queue_range("orders", QUEUE).unwrap(), (8, 9), "deleted before: {is_deleted}");
        }
    }
}

/// The files of a queue that txstore continued are derived from the log like any others.
#[test]
fn a_lost_first_file_is_built_again_if_the_next_one_is_ours() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 0, &FIRST_FILE[..8]);
    put_queues(&bench, &[(0, &entries)]);
    let store = bench.open();
    send(&store, "orders", b"m8").unwrap();
    store.close().unwrap();
    bench.memory.unlink(&queue_path(0)).unwrap();
    bench.memory.unlink("txstore/snapshot").unwrap();
    let expected = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "m8"];
    for store in [bench.read_only(), bench.open()] {
        assert_eq!(text(&store, 0), expected);
    }
}

#[test]
fn a_queue_file_that_begins_with_another_queues_message_does_not_say_where_its_queue_begins() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 0, &[&OLD[..], &[("p0", 1, 0)]].concat());
    put_queues(&bench, &[(0, &entries[3..]), (1, &entries[3..])]);
    for store in [bench.read_only(), bench.open()] {
        assert_eq!(
            (text(&store, 0), text(&store, 1)),
            (vec!["o0".into(), "o1".into(), "o2".into()], vec!["p0".into()])
        );
    }
}

/// Returns the range of the queue, and what a query for the topic's key finds.
fn queue_and_query(store: &Store) -> ((u64, u64), Vec<String>) {
    let found = store.query("orders", "k", 64).unwrap();
    let found = found.iter().map(|record| String::from_utf8_lossy(record.view().unwrap().body).into_owned());
    (store.queue_range("orders", QUEUE).unwrap(), found.collect())
}

/// A broker continues the queue, then loses the end of its file and reuses a queue offset.
#[test]
fn what_we_deleted_stays_deleted_if_a_broker_reuses_a_later_queue_offset() {
    for with_snapshot in [true, false] {
        let bench = Bench::new(FlushDiskType::Async);
        let store = bench.open();
        (0..3).for_each(|_| drop(send(&store, "orders", b"old").unwrap()));
        store.delete_queues("orders").unwrap();
        let end = appended(&store);
        store.close().unwrap();
        if !with_snapshot {
            bench.memory.unlink("txstore/snapshot").unwrap();
        }
        let entries = append(&bench, end, &[("n3", 0, 3), ("n4", 0, 4), ("again4", 0, 4)]);
        bench.write(&queue_path(0), 3 * 20, &[entries[0].to_bytes(), entries[2].to_bytes()].concat());
        let expected = ((3, 5), vec!["again4".to_owned(), "n4".to_owned(), "n3".to_owned()]);
        assert_eq!(queue_and_query(&bench.read_only()), expected, "a reader, with snapshot {with_snapshot}");
        for _ in 0..2 {
            let store = bench.open();
            assert_eq!(queue_and_query(&store), expected, "a writer, with snapshot {with_snapshot}");
            store.close().unwrap();
            let _ = bench.memory.unlink("txstore/snapshot");
        }
    }
}

/// Before txstore deleted the topic, a broker had deleted it and begun its queue again. The log still has a message of
/// the older queue. A broker continues the queue, and retention removes the file of the deleted entries.
#[test]
fn what_we_deleted_stays_deleted_though_the_log_has_an_older_queue_of_the_topic() {
    let bench = Bench::new(FlushDiskType::Async);
    let entries = append(&bench, 4 << 10, &[&[("older9", 0, 9)], &FIRST_FILE[..8]].concat());
    put_queues(&bench, &[(0, &entries[1..])]);
    let store = bench.open();
    assert_eq!(store.delete_queues("orders").unwrap(), 8);
    let end = appended(&store);
    store.close().unwrap();
    bench.memory.unlink("txstore/snapshot").unwrap();
    let entries = append(&bench, end, &[("n8", 0, 8)]);
    put_second_file(&bench, entries[0]);
    let expected = ((8, 9), vec!["n8".to_owned(), "older9".to_owned()]);
    assert_eq!(queue_and_query(&bench.read_only()), expected);
    for _ in 0..2 {
        let store = bench.open();
        assert_eq!(queue_and_query(&store), expected);
        store.close().unwrap();
    }
}

/// In a range that only txstore wrote, queue offsets never go back, so a damaged queue file changes nothing.
#[test]
fn in_our_own_range_a_queue_file_does_not_say_where_its_queue_begins() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    for n in 0..4_u8 {
        send(&store, "orders", &[b'0' + n]).unwrap();
    }
    store.close().unwrap();
    let second = bench.read(&queue_path(0), 20, 20);
    bench.write(&queue_path(0), 0, &second);
    assert_eq!(text(&bench.read_only(), 0), ["0", "1", "2", "3"]);
    assert_eq!(text(&bench.open(), 0), ["0", "1", "2", "3"]);
}
