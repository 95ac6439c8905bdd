//! Logs that txstore did not write: records that an old or faulty broker may have left. Found by fuzzing.

use super::deleted_by_broker::append;
use super::*;
use crate::base::error::Outcome;
use crate::base::names::{HALF_TOPIC, OP_TOPIC};
use crate::base::units::PhysicalOffset;
use crate::index::consume_queue::Entry;
use crate::record::Draft;
use crate::record::layout::SYS_PREPARED;
use crate::transaction::convert::{HalfNames, half_properties};
use crate::transaction::op::OP_PROPERTIES;

/// Returns the draft of a half message in a broker's log.
pub(super) fn half(properties: &[u8]) -> Draft<'_> {
    let host = StoreOptions::default().store_host;
    Draft {
        topic: HALF_TOPIC,
        queue_id: QUEUE,
        born_host: host,
        store_host: host,
        body: b"half",
        properties,
        ..Draft::plain()
    }
}

pub(super) fn properties(id: &str) -> Vec<u8> {
    let mut text = Vec::new();
    half_properties(&envelope("orders"), QUEUE, &HalfNames::alone(id, GROUP), &mut text).unwrap();
    text
}

/// Returns the bytes of a broker's records from a physical offset on, each with its queue offset.
pub(super) fn encoded(from: u64, records: &[(Draft<'_>, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (draft, queue_offset) in records {
        let at = from + u64::try_from(bytes.len()).unwrap();
        bytes.extend(draft.record_at(at, *queue_offset, 1_700_000_000_000));
    }
    bytes
}

/// Returns a broker's store with one file: these records, each with its queue offset.
pub(super) fn broker(records: &[(Draft<'_>, u64)]) -> Bench {
    let bench = Bench::new(FlushDiskType::Async);
    let bytes = encoded(0, records);
    bench.memory.create_dir("commitlog").unwrap();
    let file = bench.memory.open("commitlog/00000000000000000000", OpenMode::Create).unwrap();
    file.set_len(4 << 10).unwrap();
    file.write_at(&bytes, 0).unwrap();
    bench
}

/// RocketMQ before 4.3 set the prepared bits. Such a record is in no queue, so txstore does not end it.
#[test]
fn a_half_that_is_in_no_queue_is_not_listed_as_pending() {
    let (old, new) = (properties("old"), properties("new"));
    let prepared = Draft { sys_flag: SYS_PREPARED, ..half(&old) };
    let bench = broker(&[(prepared, 0), (half(&new), 0)]);
    for store in [bench.read_only(), bench.open()] {
        assert_eq!(pending(&store), [0]);
        let rows = store.transactions().unwrap();
        let ids: Vec<_> = rows.iter().map(|row| row.transaction_id.as_deref()).collect();
        assert_eq!(ids, [Some("new")]);
    }
}

/// A broker that lost queue entries reuses a queue offset. The queue keeps the first record, so an op names only that
/// one. Nobody can delete the system's topics, so the queue file does not matter.
#[test]
fn a_half_whose_queue_offset_was_given_before_is_not_a_transaction() {
    let (first, second, third) = (properties("first"), properties("second"), properties("third"));
    let ended = Draft { topic: OP_TOPIC, body: b"0,", ..half(OP_PROPERTIES) };
    let bench = broker(&[(half(&first), 0), (half(&second), 0), (ended, 0), (ended, 1), (half(&third), 1)]);
    let records = bench.read_only().scan(PhysicalOffset(0), usize::MAX).unwrap().0;
    let entry = |number: usize| {
        let view = records[number].view().unwrap();
        Entry { physical_offset: view.physical_offset, size: view.size, tags_code: 0 }.to_bytes()
    };
    let with_file = bench.killed();
    let directory = format!("consumequeue/{HALF_TOPIC}/0");
    with_file.memory.create_dir(&directory).unwrap();
    let file = with_file.memory.open(&format!("{directory}/{:020}", 0), OpenMode::Create).unwrap();
    file.set_len(20 * 8).unwrap();
    file.write_at(&[entry(1), entry(4)].concat(), 0).unwrap();
    for store in [bench.read_only(), bench.open(), with_file.read_only(), with_file.open()] {
        assert_eq!(pending(&store), [1]);
        let (queued, _) = store.read(HALF_TOPIC, QUEUE, QueueOffset(0), 9, None).unwrap();
        let ids: Vec<_> = queued.iter().map(|record| record.view().unwrap().unique_id().unwrap().to_owned()).collect();
        assert_eq!(ids, ["first", "third"]);
        let rows = store.transactions().unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.transaction_id.as_deref(), row.outcome)).collect();
        assert_eq!(found, [(Some("first"), Some(Outcome::RolledBack)), (Some("third"), None)]);
    }
}

/// Such a half cannot be committed, because no consumer could read the final message. It can still be rolled back.
#[test]
fn t3_a_half_that_names_no_possible_topic_is_not_committed() {
    let mut evil = properties("evil");
    crate::record::properties::push(&mut evil, "REAL_TOPIC", "../up");
    let bench = broker(&[(half(&evil), 0)]);
    let store = bench.open();
    let end = |kind| End {
        half: HalfCopy { queue_offset: 0, physical_offset: 0 },
        kind,
        transaction_id: None,
        group: None,
        decider: Decider::Producer,
    };
    let before = appended(&store);
    let refused = store.end_transaction(&end(EndKind::Commit), Wait::Yes).unwrap_err();
    assert!(matches!(&refused, Error::InvalidName { what } if what.contains("../up")), "{refused}");
    assert_eq!((appended(&store), pending(&store)), (before, vec![0]));
    assert_eq!(store.end_transaction(&end(EndKind::RollBack), Wait::Yes).unwrap().outcome, Outcome::RolledBack);
}

/// Only queue 0 can be continued. A reader may still read the store.
#[test]
fn a_half_in_another_queue_is_refused_for_writing_and_read() {
    let text = properties("id");
    let bench = broker(&[(Draft { queue_id: QueueId(3), ..half(&text) }, 0)]);
    let refused = bench.try_open().unwrap_err();
    assert!(matches!(&refused, Error::ForeignStore { what, .. } if what.contains("queue 3")), "{refused}");
    assert_eq!(bench.read_only().transactions().unwrap().len(), 1);
}

/// Halves that retention removed: a pending one is finished with an unknown outcome, a decided one keeps its outcome.
#[test]
fn halves_whose_file_is_gone_are_distinguished() {
    let bench = Bench::sync();
    let store = bench.open();
    let halves: Vec<_> = (0..4).map(|number| prepare(&store, &[number; 100])).collect();
    for (half, kind) in halves.iter().zip([EndKind::Commit, EndKind::RollBack, EndKind::Discard]) {
        end(&store, half, kind).unwrap();
    }
    while appended(&store) < 3 * (4 << 10) {
        send(&store, "orders", &[7; 500]).unwrap();
    }
    store.close().unwrap();
    bench.memory.unlink("commitlog/00000000000000000000").unwrap();
    let store = bench.open();
    assert!(store.open_report().warnings.iter().any(|warning| warning.contains("removed with its log file")));
    assert_eq!(pending(&store), Vec::<u64>::new());
    for (half, kind) in halves.iter().zip([EndKind::Commit, EndKind::RollBack, EndKind::Discard]) {
        assert!(end(&store, half, kind).unwrap().already);
    }
    let refused = end(&store, &halves[3], EndKind::Commit).unwrap_err();
    assert!(matches!(refused, Error::AlreadyEnded { outcome: Outcome::FinishedUnknown, .. }), "{refused}");
    let refused = end(&store, &halves[0], EndKind::RollBack).unwrap_err();
    assert!(matches!(refused, Error::AlreadyEnded { outcome: Outcome::Committed, .. }), "{refused}");
}

/// A broker lost the first message of a log file with its power, and stored another queue's message there. The entry of the
/// lost one is still in its queue's file, which has no later message. Retention has removed the log before it.
#[test]
fn an_entry_of_a_lost_message_at_the_beginning_of_the_log_is_no_message() {
    let bench = Bench::new(FlushDiskType::Async);
    let first = append(&bench, 4 << 10, &[("o0", 0, 0)])[0];
    bench.memory.create_dir("consumequeue/silent/0").unwrap();
    let file = bench.memory.open("consumequeue/silent/0/00000000000000000000", OpenMode::Create).unwrap();
    file.set_len(20 * 8).unwrap();
    let removed = Entry { physical_offset: PhysicalOffset(100), size: 100, tags_code: 0 };
    file.write_at(&[removed.to_bytes(), first.to_bytes()].concat(), 0).unwrap();
    assert_eq!(bench.read_only().queue_range("silent", QUEUE).unwrap(), (1, 1));
    let store = bench.open();
    assert_eq!(send(&store, "silent", b"next").unwrap().queue_offset, QueueOffset(1));
}
