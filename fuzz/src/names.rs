//! Names and ids: any text as a topic, a group, a message id, a key; what is let through is safe where it goes.

use std::net::{IpAddr, Ipv4Addr};

use txstore::base::java;
use txstore::base::names::{is_system_topic, valid_path_component, validate_group, validate_topic};
use txstore::base::units::TimestampMs;
use txstore::record::message::{Envelope, Parts};
use txstore::record::message_id::UniqueIds;
use txstore::record::{offset_message_id, parse_offset_message_id};

use super::Input;

/// Eight bytes are a time, the rest is a text.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let time = input.long();
    let Ok(text) = std::str::from_utf8(input.0) else { return };
    match validate_topic(text) {
        Ok(()) => assert!(valid_path_component(text) && !is_system_topic(text) && text.len() <= 255),
        Err(why) => assert!(why.to_string().len() < 1_000, "an error stays short"),
    }
    if validate_group(text).is_ok() {
        assert!(valid_path_component(text) && validate_topic(&format!("%RETRY%{text}")).is_ok());
    }
    if valid_path_component(text) {
        assert!(!text.contains(['/', '\0', '.']) && !text.is_empty() && text.len() <= 255);
    }
    if let Some((host, offset)) = parse_offset_message_id(text) {
        assert_eq!(offset_message_id(host, offset), text.to_ascii_uppercase());
    }
    let naive = text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()));
    assert_eq!(java::hash_code(text), naive);
    assert!(i32::try_from(java::index_hash("orders", text)).is_ok());
    envelope(text);
    let ids = UniqueIds::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7, 9);
    let (first, second) = (ids.next(TimestampMs(time.cast_signed())), ids.next(TimestampMs(0)));
    assert!(first.as_str().len() == 32 && first != second);
}

/// The text as every part of a message: refused, or stored so that it is read again.
fn envelope(text: &str) {
    let (first, second) = text.split_at(text.char_indices().nth(text.len() / 2).map_or(0, |(at, _)| at));
    let parts = Parts {
        topic: "orders",
        tags: Some(first).filter(|tags| !tags.is_empty()),
        keys: second,
        properties: &[(second, first), (first, second)],
        ..Parts::default()
    };
    let Ok(envelope) = Envelope::new(&parts) else { return };
    let stored = txstore::record::Properties(&envelope.properties);
    assert_eq!(stored.get_str("TAGS"), parts.tags);
    assert_eq!(envelope.keys().unwrap_or_default(), stored.get_str("KEYS").unwrap_or_default());
}
