//! Records: decode any bytes; what was decoded is encoded and decoded again.

use txstore::base::units::PhysicalOffset;
use txstore::record::decode::{RecordCrc, Scanned, Verify, decode};
use txstore::record::encode::encode;
use txstore::record::{Draft, Position, RecordView, Version};

use super::Input;

/// The position of the physical offset in a record.
const PHYSICAL_OFFSET_AT: usize = 28;
/// Topics up to this length are written as V1.
const TOPIC_V1_MAX: usize = 127;

/// One byte says how to look at the rest.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let flags = input.byte();
    let bytes = input.0;
    let record_crc = match flags & 3 {
        0 | 3 => RecordCrc::Ignore,
        1 => RecordCrc::IfPresent,
        _ => RecordCrc::Required,
    };
    let verify = Verify { body_crc: flags & 4 != 0, record_crc };
    // The record is usually at the offset that it states; otherwise no check after that one would run.
    let says = bytes
        .get(PHYSICAL_OFFSET_AT..PHYSICAL_OFFSET_AT + 8)
        .map_or(0, |says| u64::from_be_bytes(says.try_into().unwrap()));
    let at = PhysicalOffset(if flags & 8 == 0 { says } else { 0 });
    match decode(bytes, at, verify) {
        Ok(Scanned::Record(view)) => holds(&view, bytes, at),
        Ok(Scanned::Blank { size }) => assert!(size >= 8),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fn holds(view: &RecordView<'_>, bytes: &[u8], at: PhysicalOffset) {
    let stored = &bytes[..view.size as usize];
    assert_eq!(view.physical_offset, at);
    let _ = (view.message_id(), view.offset_message_id(), view.transaction_type());
    let draft = draft(view);
    let position =
        Position { physical_offset: at, queue_offset: view.queue_offset, store_timestamp: view.store_timestamp };
    let mut plain = Vec::new();
    encode(&draft, position, false, &mut plain).unwrap();
    let again = record(&plain, at, RecordCrc::Ignore);
    assert_eq!(texts(&again), texts(view));
    // Written by the same rules, it is the same bytes: a queue offset of a record without an entry is not kept.
    let same_version = (view.version == Version::V1) == (view.topic.len() <= TOPIC_V1_MAX);
    let is_queued = view.transaction_type().is_queued() || view.queue_offset.0 == 0;
    if same_version && is_queued && view.body_crc & 0x8000_0000 == 0 {
        assert_eq!(plain, stored);
    }
    // With a CRC its bytes are guarded, each of them.
    let mut guarded = Vec::new();
    if encode(&draft, position, true, &mut guarded).is_ok() {
        record(&guarded, at, RecordCrc::Required);
        let flipped = (view.body_crc as usize) % guarded.len();
        guarded[flipped] ^= 1;
        let verify = Verify { body_crc: false, record_crc: RecordCrc::Required };
        assert!(!matches!(decode(&guarded, at, verify), Ok(Scanned::Record(_))), "byte {flipped} is not guarded");
    }
}

fn record(bytes: &[u8], at: PhysicalOffset, record_crc: RecordCrc) -> RecordView<'_> {
    match decode(bytes, at, Verify { body_crc: false, record_crc }) {
        Ok(Scanned::Record(view)) => view,
        other => panic!("what was encoded is {other:?}"),
    }
}

type Texts<'a> = (&'a str, &'a [u8], &'a [u8], i32, i32, i64, u64, i32);

fn texts<'a>(view: &RecordView<'a>) -> Texts<'a> {
    (
        view.topic,
        view.body,
        view.properties.0,
        view.queue_id.0,
        view.flag,
        view.store_timestamp.0,
        view.prepared_transaction_offset.0,
        view.sys_flag,
    )
}

fn draft<'a>(view: &RecordView<'a>) -> Draft<'a> {
    Draft {
        topic: view.topic,
        queue_id: view.queue_id,
        flag: view.flag,
        sys_flag: view.sys_flag,
        born_timestamp: view.born_timestamp,
        born_host: view.born_host.address(),
        store_host: view.store_host.address(),
        reconsume_times: view.reconsume_times,
        prepared_transaction_offset: view.prepared_transaction_offset,
        body: view.body,
        body_crc: Some(view.body_crc),
        properties: view.properties.0,
    }
}
