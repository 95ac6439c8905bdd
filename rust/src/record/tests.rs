//! Records read back as they were written, a flipped bit is always found, and no bytes make the reader panic.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::decode::body_of;
use super::layout::*;
use super::*;
use crate::base::error::Error;

const ALL: Verify = Verify { body_crc: true, record_crc: RecordCrc::Required };
const LENIENT: Verify = Verify { body_crc: true, record_crc: RecordCrc::IfPresent };
const NOTHING: Verify = Verify { body_crc: false, record_crc: RecordCrc::Ignore };
const AT: PhysicalOffset = PhysicalOffset(4_096);

fn draft() -> Draft<'static> {
    Draft {
        topic: "orders",
        queue_id: QueueId(3),
        flag: -7,
        sys_flag: 0,
        born_timestamp: TimestampMs(1_795_234_368_716),
        born_host: "127.0.0.1:57240".parse().unwrap(),
        store_host: "127.0.0.1:20911".parse().unwrap(),
        reconsume_times: 2,
        prepared_transaction_offset: PhysicalOffset(99),
        body: b"hello",
        body_crc: None,
        properties: b"KEYS\x01o-17\x02TAGS\x01paid\x02",
    }
}

/// What tests of other modules write.
impl Draft<'static> {
    /// Returns the draft of a message without properties in queue 0 of topic "orders".
    pub(crate) fn plain() -> Self {
        Self {
            topic: "orders",
            queue_id: QueueId(0),
            flag: 0,
            sys_flag: 0,
            born_timestamp: TimestampMs(1),
            born_host: "127.0.0.1:1".parse().unwrap(),
            store_host: "127.0.0.1:2".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: PhysicalOffset(0),
            body: b"paid",
            body_crc: None,
            properties: b"",
        }
    }
}

impl Draft<'_> {
    /// Returns the record at a physical offset, without a CRC of its own.
    pub(crate) fn record_at(&self, physical_offset: u64, queue_offset: u64, stored_ms: i64) -> Vec<u8> {
        let position = Position {
            physical_offset: PhysicalOffset(physical_offset),
            queue_offset: QueueOffset(queue_offset),
            store_timestamp: TimestampMs(stored_ms),
        };
        let mut bytes = Vec::new();
        encode(self, position, false, &mut bytes).unwrap();
        bytes
    }
}

fn position() -> Position {
    Position { physical_offset: AT, queue_offset: QueueOffset(5), store_timestamp: TimestampMs(1_795_234_368_836) }
}

fn encoded(draft: &Draft<'_>, with_crc: bool) -> Vec<u8> {
    let mut out = b"before".to_vec();
    let size = encode(draft, position(), with_crc, &mut out).unwrap();
    assert_eq!(size, encoded_size(draft, with_crc).unwrap());
    let record = out.split_off(6);
    assert_eq!(out, b"before");
    assert_eq!(record.len(), usize::try_from(size).unwrap());
    record
}

fn view(bytes: &[u8], verify: Verify) -> RecordView<'_> {
    match decode(bytes, AT, verify).unwrap() {
        Scanned::Record(view) => view,
        Scanned::Blank { .. } => panic!("a blank"),
    }
}

fn error(bytes: &[u8], verify: Verify) -> DecodeError {
    decode(bytes, AT, verify).unwrap_err()
}

fn draft_of<'a>(view: &RecordView<'a>) -> Draft<'a> {
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

#[test]
fn the_bytes_are_where_the_table_says() {
    let bytes = encoded(&draft(), false);
    let mut expected = vec![0, 0, 0, 122, 0xDA, 0xA3, 0x20, 0xA7];
    expected.extend(0x3610_A686_u32.to_be_bytes());
    expected.extend([0, 0, 0, 3, 0xFF, 0xFF, 0xFF, 0xF9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    expected.extend([0, 0, 0, 0]);
    expected.extend(1_795_234_368_716_i64.to_be_bytes());
    expected.extend([127, 0, 0, 1, 0, 0, 0xDF, 0x98]);
    expected.extend(1_795_234_368_836_i64.to_be_bytes());
    expected.extend([127, 0, 0, 1, 0, 0, 0x51, 0xAF]);
    expected.extend([0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 99]);
    expected.extend([0, 0, 0, 5]);
    expected.extend(b"hello\x06orders\x00\x14KEYS\x01o-17\x02TAGS\x01paid\x02");
    assert_eq!(bytes, expected[..]);
}

#[test]
fn the_record_crc_is_written_least_significant_digit_first() {
    let bytes = encoded(&draft(), true);
    let (covered, property) = bytes.split_last_chunk::<CRC_PROPERTY_LEN>().unwrap();
    let digits: String = format!("{:010}", crc32(covered)).chars().rev().collect();
    assert_eq!(*property, *format!("__CRC32#\x01{digits}\x02").as_bytes());
    for crc in [0, 9, 99_999, 100_000, 1_234_567_890, CRC_MASK] {
        let digits: String = format!("{crc:010}").chars().rev().collect();
        assert_eq!(encode::crc_property(crc), *format!("__CRC32#\x01{digits}\x02").as_bytes());
    }
}

#[test]
fn a_missing_last_separator_is_added_before_the_crc_only() {
    let draft = Draft { properties: b"KEYS\x01o-17", ..draft() };
    assert_eq!(view(&encoded(&draft, false), NOTHING).properties.0, b"KEYS\x01o-17");
    let bytes = encoded(&draft, true);
    assert!(view(&bytes, ALL).properties.0.starts_with(b"KEYS\x01o-17\x02__CRC32#\x01"));
    let bytes = encoded(&Draft { properties: b"", ..draft }, true);
    assert_eq!(view(&bytes, ALL).properties.0.len(), CRC_PROPERTY_LEN);
}

#[test]
fn prepared_and_rollback_have_no_queue_offset() {
    for (sys_flag, queue_offset, kind) in [
        (0, 5, TransactionType::None),
        (SYS_PREPARED, 0, TransactionType::Prepared),
        (SYS_COMMIT | SYS_COMPRESSED, 5, TransactionType::Commit),
        (SYS_ROLLBACK, 0, TransactionType::Rollback),
    ] {
        let bytes = encoded(&Draft { sys_flag, ..draft() }, true);
        assert_eq!(view(&bytes, ALL).queue_offset, QueueOffset(queue_offset));
        assert_eq!(view(&bytes, ALL).transaction_type(), kind);
    }
}

#[test]
fn the_host_bits_follow_the_hosts() {
    let v6: SocketAddr = "[::1]:20911".parse().unwrap();
    let draft = Draft { sys_flag: SYS_BORN_HOST_V6, store_host: v6, ..draft() };
    assert_eq!(view(&encoded(&draft, true), ALL).sys_flag, SYS_STORE_HOST_V6);
}

#[test]
fn what_is_too_long_is_refused_by_name() {
    let refused = |draft: &Draft<'_>, with_crc| {
        let mut out = vec![1];
        let error = encode(draft, position(), with_crc, &mut out).unwrap_err();
        assert_eq!(out, [1]);
        assert!(matches!(error, Error::InvalidMessage { .. }));
        error.to_string()
    };
    let long = vec![VALUE_END; PROPERTIES_MAX + 1];
    assert!(refused(&Draft { properties: &long, ..draft() }, false).contains("32768 bytes; a record holds"));
    encoded(&Draft { properties: &long[1..], ..draft() }, false);
    assert!(refused(&Draft { properties: &long[20..], ..draft() }, true).contains("the CRC's 20 included"));
    encoded(&Draft { properties: &long[21..], ..draft() }, true);
    let topic = "t".repeat(TOPIC_V2_MAX + 1);
    assert!(refused(&Draft { topic: &topic, ..draft() }, true).contains("at most 32767"));
    assert!(refused(&Draft { topic: "", ..draft() }, true).contains("no topic"));
}

#[test]
fn a_topic_of_more_than_127_bytes_makes_a_v2_record() {
    let topic = "t".repeat(TOPIC_V1_MAX + 1);
    assert_eq!(view(&encoded(&Draft { topic: &topic, ..draft() }, true), ALL).version, Version::V2);
    assert_eq!(view(&encoded(&Draft { topic: &topic[1..], ..draft() }, true), ALL).version, Version::V1);
}

#[test]
fn blanks() {
    let mut bytes = blank(40).to_vec();
    assert!(matches!(decode(&bytes, AT, ALL), Ok(Scanned::Blank { size: 40 })));
    assert!(matches!(decode(&blank(u32::MAX), AT, ALL), Ok(Scanned::Blank { size: u32::MAX })));
    bytes.truncate(7);
    assert_eq!(error(&bytes, ALL), DecodeError::Truncated { needed: 8 });
}

#[test]
fn every_error_says_what_it_is() {
    let good = encoded(&draft(), true);
    let changed = |at: usize, bytes: &[u8]| {
        let mut record = good.clone();
        record[at..at + bytes.len()].copy_from_slice(bytes);
        record
    };
    let body_len_at = body_len_at(0);
    let topic_at = body_at(0) + 5;
    assert_eq!(error(&[0; 64], ALL), DecodeError::Empty);
    assert_eq!(error(&[], ALL), DecodeError::Truncated { needed: 8 });
    assert_eq!(error(&good[..100], ALL), DecodeError::Truncated { needed: 142 });
    assert_eq!(error(&changed(4, &[0; 4]), ALL), DecodeError::BadMagic { found: 0 });
    assert_eq!(error(&changed(0, &[0; 4]), ALL), DecodeError::BadSize { found: 0 });
    assert_eq!(error(&changed(0, &[0xFF; 4]), ALL), DecodeError::BadSize { found: u32::MAX });
    assert_eq!(error(&changed(35, &[1]), ALL), DecodeError::WrongOffset { says: PhysicalOffset(4_097) });
    assert_eq!(error(&changed(body_len_at, &[0xFF; 4]), ALL), DecodeError::BadLength { field: "body length" });
    assert_eq!(error(&changed(topic_at, &[0x86]), ALL), DecodeError::BadLength { field: "topic length" });
    assert_eq!(error(&changed(topic_at + 7, &[0xFF]), ALL), DecodeError::BadLength { field: "properties length" });
    assert_eq!(error(&changed(topic_at + 8, &[39]), ALL), DecodeError::BadLength { field: "sum of all lengths" });
    assert_eq!(
        error(&changed(BORN_HOST_AT + 4, &[0, 1]), ALL),
        DecodeError::BadPort { field: "born host", found: 0x1_DF98 }
    );
    assert_eq!(error(&changed(topic_at + 1, &[0xFF]), NOTHING), DecodeError::NotUtf8Topic);
    assert_eq!(error(&changed(12, &[0xFF; 4]), NOTHING), DecodeError::NegativeQueue { found: -1 });
    assert!(matches!(error(&changed(body_at(0), b"j"), ALL), DecodeError::BodyCrc { stored: 0x3610_A686, .. }));
    assert!(matches!(error(&changed(FLAG_AT, &[1]), LENIENT), DecodeError::RecordCrc { stored: Some(_), .. }));
    assert!(matches!(error(&changed(good.len() - 2, b"x"), ALL), DecodeError::RecordCrc { stored: None, .. }));
    assert_eq!(error(&encoded(&draft(), false), ALL), DecodeError::RecordCrcMissing);
    let elsewhere = decode(&good, PhysicalOffset(0), ALL).unwrap_err();
    assert_eq!(elsewhere.to_string(), "the record says that its physical offset is 4096, which is not this one");
}

#[test]
fn an_empty_topic_is_illegal() {
    let mut bytes = encoded(&Draft { topic: "t", ..draft() }, false);
    let topic_at = body_at(0) + 5;
    bytes.remove(topic_at + 1);
    bytes[topic_at] = 0;
    bytes[3] -= 1;
    assert_eq!(error(&bytes, LENIENT), DecodeError::IllegalTopic);
}

#[test]
fn a_crc_that_is_not_the_last_property_is_not_read() {
    let properties = b"__CRC32#\x010000000000\x02KEYS\x01a\x02";
    let bytes = encoded(&Draft { properties, ..draft() }, false);
    assert_eq!(view(&bytes, LENIENT).properties.0, properties);
    assert_eq!(error(&bytes, ALL), DecodeError::RecordCrcMissing);
}

#[test]
fn ids_of_a_record() {
    let properties = b"UNIQ_KEY\x017F00000100002A9F0000000000000001\x02";
    let bytes = encoded(&Draft { properties, ..draft() }, true);
    assert_eq!(view(&bytes, ALL).message_id(), "7F00000100002A9F0000000000000001");
    let bytes = encoded(&draft(), true);
    assert_eq!(view(&bytes, ALL).unique_id(), None);
    assert_eq!(view(&bytes, ALL).message_id(), "7F000001000051AF0000000000001000");
}

fn host() -> impl Strategy<Value = SocketAddr> {
    (any::<std::net::IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

prop_compose! {
    fn bytes_of_a_record(always_crc: bool)(
        topic in prop_oneof!["[a-zA-Z%|_-]{1,127}", "[a-z]{128,300}", "\\PC{1,40}"],
        numbers in any::<(i32, i32, i32, i32)>(),
        moments in any::<(i64, u64)>(),
        hosts in (host(), host()),
        body in proptest::collection::vec(any::<u8>(), 0..200),
        properties in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..100),
            Just(b"KEYS\x01a b\x02TAGS\x01t\x02".to_vec()),
        ],
        with_crc in any::<bool>().prop_map(move |chosen| chosen || always_crc),
        known_crc in any::<bool>(),
    ) -> Vec<u8> {
        let draft = Draft {
            topic: &topic,
            queue_id: QueueId(numbers.0 & i32::MAX),
            flag: numbers.1,
            sys_flag: numbers.2,
            born_timestamp: TimestampMs(moments.0),
            born_host: hosts.0,
            store_host: hosts.1,
            reconsume_times: numbers.3,
            prepared_transaction_offset: PhysicalOffset(moments.1),
            body: &body,
            body_crc: known_crc.then(|| crc32(&body)),
            properties: &properties,
        };
        let bytes = encoded(&draft, with_crc);
        let view = view(&bytes, if with_crc { ALL } else { Verify { record_crc: RecordCrc::Ignore, ..ALL } });
        assert_eq!((view.topic, view.body, view.queue_id, view.flag), (draft.topic, draft.body, draft.queue_id, draft.flag));
        assert_eq!((view.born_host.address(), view.store_host.address()), hosts);
        assert_eq!((view.born_timestamp.0, view.prepared_transaction_offset.0), moments);
        assert_eq!((view.physical_offset, view.store_timestamp), (AT, position().store_timestamp));
        assert_eq!((view.reconsume_times, view.size.to_be_bytes()), (numbers.3, *bytes.first_chunk::<4>().unwrap()));
        assert!(view.properties.0.starts_with(&properties));
        bytes
    }
}

proptest! {
    #[test]
    fn what_was_read_is_written_again_the_same(bytes in bytes_of_a_record(false)) {
        let view = view(&bytes, NOTHING);
        let mut again = Vec::new();
        let position = Position {
            physical_offset: view.physical_offset,
            queue_offset: view.queue_offset,
            store_timestamp: view.store_timestamp,
        };
        encode(&draft_of(&view), position, false, &mut again).unwrap();
        prop_assert_eq!(&again, &bytes);
        prop_assert_eq!(body_of(&bytes), Some((view.sys_flag, view.body)));
    }

    #[test]
    fn any_flipped_bit_is_found(mut bytes in bytes_of_a_record(true), after in any::<[u8; 9]>()) {
        let len = bytes.len();
        bytes.extend(after);
        for bit in 0..len * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&bytes, AT, ALL).is_err(), "bit {}", bit);
            prop_assert!(decode(&bytes[..len], AT, ALL).is_err(), "bit {}", bit);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assert!(decode(&bytes, AT, ALL).is_ok());
    }

    #[test]
    fn any_cut_is_found(bytes in bytes_of_a_record(false)) {
        for len in 0..bytes.len() {
            let truncated = matches!(decode(&bytes[..len], AT, NOTHING), Err(DecodeError::Truncated { .. }));
            prop_assert!(truncated, "{} bytes", len);
        }
    }

    #[test]
    fn mutated_bytes_never_panic(
        mut bytes in bytes_of_a_record(false),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        for verify in [ALL, LENIENT, NOTHING] {
            if let Ok(Scanned::Record(view)) = decode(&bytes, AT, verify) {
                let _ = (view.message_id(), view.properties.iter().count(), view.properties.get("KEYS"));
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), magic in 0..4_usize) {
        let magic = [MAGIC_V1, MAGIC_V2, MAGIC_BLANK, 0][magic].to_be_bytes();
        let len = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        for (byte, new) in bytes.iter_mut().zip(len.into_iter().chain(magic)) {
            *byte = new;
        }
        for at in [AT, PhysicalOffset(0)] {
            if let Ok(Scanned::Record(view)) = decode(&bytes, at, NOTHING) {
                let _ = (view.message_id(), view.properties.iter().count());
            }
            let _ = decompress(i32::from_be_bytes(magic), &bytes, 1_000);
        }
    }
}
