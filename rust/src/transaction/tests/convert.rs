//! The records that a half message becomes: where each is stored, and that what the user has set stays.

use super::*;
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, TIMED_TOPIC};
use crate::base::units::{PhysicalOffset, QueueOffset, TimestampMs};
use crate::index::timed::TIMED_QUEUE;
use crate::record::layout::{SYS_COMMIT, SYS_COMPRESSED, SYS_MULTI_TAGS, SYS_PREPARED};
use crate::record::properties::TRANSACTION_SET;
use crate::record::{Draft, Version};
use crate::transaction::convert::{discard_draft, final_draft, resume_draft, timed_draft};

/// The user's flags, which no step of a transaction changes.
const USERS: i32 = SYS_COMPRESSED | SYS_MULTI_TAGS;

/// Returns a record at physical offset 1,000 in a queue that no record of txstore's is in.
fn record<'a>(topic: &'a str, text: &'a [u8]) -> RecordView<'a> {
    let host = Host::from(&[127, 0, 0, 1, 0, 0, 0, 1]);
    RecordView {
        size: 100,
        version: Version::V1,
        body_crc: 7,
        queue_id: QueueId(5),
        flag: 3,
        queue_offset: QueueOffset(2),
        physical_offset: PhysicalOffset(1_000),
        sys_flag: USERS | SYS_PREPARED,
        born_timestamp: TimestampMs(1),
        born_host: host,
        store_timestamp: TimestampMs(1),
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: PhysicalOffset(77),
        body: b"body",
        topic,
        properties: Properties(text),
    }
}

/// A draft's topic and queue, its flags, and the physical offset of the half message that it names.
fn target<'a>(draft: &Draft<'a>) -> (&'a str, QueueId, i32, u64) {
    (draft.topic, draft.queue_id, draft.sys_flag, draft.prepared_transaction_offset.0)
}

fn half_text() -> Vec<u8> {
    let mut text = Vec::new();
    let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
    half_properties(&envelope, QueueId(3), &HalfNames::alone("id-1", "services"), &mut text).unwrap();
    text
}

#[test]
fn each_record_of_a_transaction_has_its_queue_and_the_users_flags() {
    let (half_text, host) = (half_text(), "127.0.0.1:2".parse().unwrap());
    let half = record(HALF_TOPIC, &half_text);
    let facts = HalfFacts::of(&half);
    let mut text = Vec::new();
    let committed = final_draft(&half, &facts, false, host, &mut text);
    assert_eq!(target(&committed), ("orders", QueueId(3), USERS | SYS_COMMIT, 1_000));
    let timed = timed_draft(&half, 2_000, host, &mut text);
    assert_eq!(target(&timed), (TIMED_TOPIC, TIMED_QUEUE, USERS | SYS_COMMIT, 1_000));
    let discarded = discard_draft(&half, host, &mut text);
    assert_eq!(target(&discarded), (DISCARD_TOPIC, QueueId(0), USERS, 1_000));
    let resumed = resume_draft(&record(DISCARD_TOPIC, &half_text), None, host, &mut text);
    assert_eq!(target(&resumed), (HALF_TOPIC, HALF_QUEUE, USERS, 0));
}

/// A user may have given a property the name of the one that a half message of a set has.
#[test]
fn a_message_of_no_set_keeps_the_property_that_a_set_would_have() {
    let mut half_text = half_text();
    properties::push(&mut half_text, TRANSACTION_SET, "the user's");
    let half = record(HALF_TOPIC, &half_text);
    let kept = |is_in_set: bool| {
        let (facts, mut text) = (HalfFacts::of(&half), Vec::new());
        final_draft(&half, &facts, is_in_set, "127.0.0.1:2".parse().unwrap(), &mut text);
        Properties(&text).get_str(TRANSACTION_SET).map(str::to_owned)
    };
    assert_eq!((kept(false).as_deref(), kept(true)), (Some("the user's"), None));
}
