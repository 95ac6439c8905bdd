//! What a row takes from the records of a transaction's halves.

use super::*;
use crate::base::names::HALF_TOPIC;
use crate::base::units::{PhysicalOffset, QueueId};
use crate::record::properties::REAL_QUEUE_ID;
use crate::record::{Draft, RecordCrc, Scanned, Verify, decode};
use crate::transaction::row::{HalfRecord, HalfRecords, TransactionRow};

/// Reads a half record that was stored at `stored_ms`. A broker's copy has the number of its checks.
fn half_record(stored_ms: i64, queue_id: u32, checks: Option<u16>) -> HalfRecord {
    let mut text = Vec::new();
    properties::push(&mut text, UNIQUE_KEY, "id-1");
    properties::push(&mut text, PRODUCER_GROUP, "services");
    properties::push(&mut text, REAL_TOPIC, "orders");
    properties::push(&mut text, REAL_QUEUE_ID, &queue_id.to_string());
    if let Some(checks) = checks {
        properties::push(&mut text, TRANSACTION_CHECK_TIMES, &checks.to_string());
    }
    let draft = Draft { topic: HALF_TOPIC, queue_id: HALF_QUEUE, properties: &text, ..Draft::plain() };
    let bytes = draft.record_at(0, 0, stored_ms);
    let verify = Verify { body_crc: true, record_crc: RecordCrc::Ignore };
    let Ok(Scanned::Record(view)) = decode(&bytes, PhysicalOffset(0), verify) else { panic!("no record") };
    HalfRecord::of(&view)
}

fn row(halves: HalfRecords) -> TransactionRow {
    let mut table = Table::new(0);
    let key = table.insert(&model::half(1, 1));
    TransactionRow::of(halves, table.get(key).unwrap().clone(), false)
}

#[test]
fn a_row_begins_with_the_oldest_half_and_has_the_queue_of_the_newest() {
    let mut halves = HalfRecords::begin(half_record(10, 1, None));
    halves.add(&half_record(20, 2, None));
    halves.add(&half_record(30, 3, Some(1)));
    halves.add(&half_record(40, 4, Some(2)));
    let row = row(halves);
    assert_eq!((row.prepared_ms, row.first_check_ms, row.queue_id), (10, Some(30), QueueId(4)));
    assert_eq!(
        (row.transaction_id.as_deref(), row.group.as_deref(), &*row.topic),
        (Some("id-1"), Some("services"), "orders")
    );
}

#[test]
fn a_transaction_was_checked_if_a_broker_put_it_back() {
    assert_eq!(row(HalfRecords::begin(half_record(10, 1, None))).first_check_ms, None);
    // The log may begin after the half that was sent.
    assert_eq!(row(HalfRecords::begin(half_record(10, 1, Some(3)))).first_check_ms, Some(10));
}
