//! Delays: a message waits as it would in a broker, and is delivered as it was sent.

use super::*;
use crate::base::units::{PhysicalOffset, QueueOffset};
use crate::record::decode::{RecordCrc, Scanned, Verify, decode};
use crate::record::encode::encode;
use crate::record::layout::SYS_COMMIT;
use crate::record::{Position, properties::Properties};
use crate::storage::Storage;
use crate::storage::memory::Memory;

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn waiting(properties: &[u8], sys_flag: i32) -> Vec<u8> {
    let host = "127.0.0.1:10911".parse().unwrap();
    let draft = Draft {
        topic: SCHEDULE_TOPIC,
        queue_id: QueueId(2),
        flag: 7,
        sys_flag,
        born_timestamp: TimestampMs(5),
        born_host: host,
        store_host: host,
        reconsume_times: 4,
        prepared_transaction_offset: PhysicalOffset(0),
        body: b"body",
        body_crc: None,
        properties,
    };
    let position = Position { physical_offset: PhysicalOffset(99), queue_offset: QueueOffset(1), store_timestamp: NOW };
    let mut bytes = Vec::new();
    encode(&draft, position, true, &mut bytes).unwrap();
    bytes
}

fn view(bytes: &[u8]) -> RecordView<'_> {
    let verify = Verify { body_crc: true, record_crc: RecordCrc::Required };
    match decode(bytes, PhysicalOffset(99), verify).unwrap() {
        Scanned::Record(view) => view,
        Scanned::Blank { .. } => panic!("a blank"),
    }
}

#[test]
fn levels_are_rocketmqs() {
    assert_eq!(LEVELS_MS.len(), usize::from(DELAY_LEVEL_MAX));
    assert_eq!([1, 3, 18].map(level_ms), [1_000, 10_000, 7_200_000]);
    assert_eq!(level_ms(0), 0);
    assert_eq!(level_ms(99), level_ms(18), "a level above the highest is the highest");
    assert_eq!([1, 3, 18].map(queue_of), [0, 2, 17].map(QueueId));
}

#[test]
fn a_delivered_message_is_the_one_that_was_sent() {
    let mut text = b"KEYS\x01k\x02DELAY\x013\x02mine\x01x\x02".to_vec();
    hide("orders", QueueId(6), &mut text);
    let bytes = waiting(&text, SYS_COMMIT | 1);
    let mut scratch = b"left over".to_vec();
    let draft = delivery_draft(&view(&bytes), WAITING, "127.0.0.1:1".parse().unwrap(), &mut scratch).unwrap();
    assert_eq!((draft.topic, draft.queue_id), ("orders", QueueId(6)));
    assert_eq!(draft.properties, b"KEYS\x01k\x02mine\x01x\x02");
    assert_eq!((draft.sys_flag, draft.flag, draft.reconsume_times), (1, 7, 4), "no transaction's record any more");
    assert_eq!((draft.born_timestamp, draft.prepared_transaction_offset), (TimestampMs(5), PhysicalOffset(99)));
}

#[test]
fn what_names_no_topic_of_a_client_cannot_be_delivered() {
    let mut scratch = Vec::new();
    for properties in [
        &b"KEYS\x01k\x02"[..],
        b"REAL_TOPIC\x01orders\x02",
        b"REAL_TOPIC\x01orders\x02REAL_QID\x01-1\x02",
        b"REAL_TOPIC\x01../orders\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
    ] {
        let bytes = waiting(properties, 0);
        let refused = delivery_draft(&view(&bytes), WAITING, "127.0.0.1:1".parse().unwrap(), &mut scratch);
        assert!(refused.is_err(), "{:?}", Properties(properties));
    }
}

#[test]
fn the_file_is_a_brokers_and_keeps_what_it_holds() {
    let memory = Memory::new();
    memory.create_dir("config").unwrap();
    let text =
        r#"{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":1},"offsetTable":{1:5,3:7,"x":1},"other":[1]}"#;
    config_file_put(&memory, text);
    let (offsets, damaged) = DelayOffsets::load(&memory).unwrap();
    let mut offsets = offsets.unwrap();
    assert!(damaged.is_empty());
    assert_eq!(*offsets.progress(), DelayProgress::from([(QueueId(0), 5), (QueueId(2), 7)]));
    offsets.write(&memory, DelayProgress::from([(QueueId(0), 6), (QueueId(17), 1)]), NOW).unwrap();
    let written = crate::storage::config_file::load(&memory, "delayOffset.json").unwrap().value.unwrap();
    assert_eq!(written["offsetTable"], serde_json::json!({"1": 6, "3": 7, "x": 1, "18": 1}));
    assert_eq!((&written["other"], &written["dataVersion"]["counter"]), (&serde_json::json!([1]), &5.into()));
    let calls = memory.calls();
    offsets.write(&memory, DelayProgress::from([(QueueId(0), 6), (QueueId(17), 1)]), NOW).unwrap();
    assert_eq!(memory.calls(), calls, "nothing new is not written");
}

fn config_file_put(memory: &Memory, text: &str) {
    crate::storage::config_file::replace(memory, "delayOffset.json", text).unwrap();
}
