//! Half and op messages: any properties, any op body; conversions there and back.

use std::net::SocketAddr;

use txstore::base::names::{DISCARD_TOPIC, HALF_TOPIC};
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use txstore::record::{Host, Properties, RecordView, Version};
use txstore::transaction::convert::{discard_draft, final_draft, resume_draft};
use txstore::transaction::op::{fill_op_body, parse_op_body};
use txstore::transaction::outcome::DecidedHalves;
use txstore::transaction::{HalfFacts, Identity};

use super::Input;

const HOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 10_911);

/// A text is the half's properties, the rest an op's body.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let properties = input.text();
    let body = input.0;
    op(body);
    let view = view(properties, body);
    let facts = HalfFacts::of(&view);
    assert_eq!(facts.sent, facts.checks == 0);
    assert!(facts.immunity_ms.is_none_or(|immunity| (0..=i64::from(i32::MAX)).contains(&immunity)));
    let whole = facts.real_topic == view.properties.get_str("REAL_TOPIC").unwrap_or_default();
    if whole {
        assert_eq!(facts.identity().is_some(), Identity::of(view.properties, facts.real_topic, 7).is_some());
    }
    let mut text = Vec::new();
    let last = final_draft(&view, &facts, false, HOST, &mut text);
    assert_eq!((last.topic, last.body), (facts.real_topic, body));
    let kept = Properties(last.properties);
    assert_eq!((kept.get("REAL_TOPIC"), kept.get("REAL_QID"), kept.get("__CRC32#")), (None, None, None));
    let mut text = Vec::new();
    let parked = discard_draft(&view, HOST, &mut text);
    assert_eq!((parked.topic, parked.prepared_transaction_offset), (DISCARD_TOPIC, view.physical_offset));
    let parked_view = RecordView { topic: DISCARD_TOPIC, properties: Properties(parked.properties), ..view };
    let mut text = Vec::new();
    let again = resume_draft(&parked_view, None, HOST, &mut text);
    let resumed = RecordView { topic: HALF_TOPIC, properties: Properties(again.properties), ..view };
    let resumed = HalfFacts::of(&resumed);
    assert!(resumed.sent && resumed.identity() == facts.identity(), "a resumed half is a sent one of the same id");
}

fn op(body: &[u8]) {
    let named: Vec<u64> = parse_op_body(body).collect();
    let (mut rest, mut again, mut text) = (&*named, Vec::new(), String::new());
    while !rest.is_empty() {
        rest = &rest[fill_op_body(rest, 64, &mut text)..];
        assert!(text.len() <= 64);
        again.extend(parse_op_body(text.as_bytes()));
    }
    assert_eq!(again, named);
    decided(body);
}

/// Outcomes by queue offset, against a list.
fn decided(body: &[u8]) {
    use txstore::base::error::Outcome::{Committed, Discarded, FinishedUnknown, RolledBack};
    let base = u64::from(body.first().copied().unwrap_or(0));
    let mut halves = DecidedHalves::from(base);
    let mut expected = [None; 64];
    for byte in body.iter().take(32) {
        let outcome = [Committed, RolledBack, Discarded, FinishedUnknown][usize::from(byte >> 6)];
        halves.set(base + u64::from(byte & 63), outcome);
        expected[usize::from(byte & 63)] = Some(outcome);
    }
    let set = expected.iter().enumerate().filter_map(|(at, outcome)| Some((at, (*outcome)?)));
    for (at, outcome) in set {
        assert_eq!(halves.get(base + at as u64), Some(outcome));
    }
}

fn view<'a>(properties: &'a [u8], body: &'a [u8]) -> RecordView<'a> {
    RecordView {
        size: 100,
        version: Version::V1,
        body_crc: 7,
        queue_id: QueueId(0),
        flag: 0,
        queue_offset: QueueOffset(0),
        physical_offset: PhysicalOffset(4_711),
        sys_flag: 0,
        born_timestamp: TimestampMs(1),
        born_host: Host::from(&[127, 0, 0, 1, 0, 0, 0, 1]),
        store_timestamp: TimestampMs(1),
        store_host: Host::from(&[127, 0, 0, 1, 0, 0, 0, 1]),
        reconsume_times: 0,
        prepared_transaction_offset: PhysicalOffset(0),
        body,
        topic: HALF_TOPIC,
        properties: Properties(properties),
    }
}
