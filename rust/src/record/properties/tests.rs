//! Properties read as RocketMQ reads them, compared with the simplest implementation.

use proptest::prelude::*;

use super::*;

/// Implements the rule directly: split, then name and value, neither empty.
fn plain(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries = text.split(|byte| *byte == VALUE_END);
    let pairs = entries.filter_map(|entry| {
        let end = entry.iter().position(|byte| *byte == NAME_END)?;
        Some((entry[..end].to_vec(), entry[end + 1..].to_vec()))
    });
    pairs.filter(|(name, value)| !name.is_empty() && !value.is_empty()).collect()
}

fn pairs(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    Properties(text).iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

#[test]
fn the_last_of_equal_names_counts() {
    let properties = Properties(b"A\x011\x02B\x012\x02A\x013");
    assert_eq!(properties.get_str("A"), Some("3"));
    assert_eq!(properties.get_str("B"), Some("2"));
    assert_eq!(properties.get("C"), None);
    assert_eq!(Properties(b"").get(""), None);
}

#[test]
fn what_has_no_name_or_no_value_is_not_there() {
    let properties = Properties(b"\x01x\x02A\x01\x02B\x02\x02C\x01c\x01d\x02");
    assert_eq!(pairs(properties.0), [(b"C".to_vec(), b"c\x01d".to_vec())]);
    assert_eq!(properties.get("A"), None);
    assert_eq!(properties.get("C\x01c"), None);
    assert_eq!(Properties(b"A\x01\xFF\x02").get_str("A"), None);
}

#[test]
fn pushing_mends_the_separator() {
    let mut text = b"A\x011".to_vec();
    push(&mut text, "B", "2");
    assert_eq!(text, b"A\x011\x02B\x012\x02");
}

#[test]
fn copying_keeps_the_order_and_drops_names_and_every_crc() {
    let properties = Properties(b"A\x011\x02__CRC32#\x010000000000\x02B\x012\x02A\x013\x02__CRC32#\x011\x02");
    let mut out = Vec::new();
    copy_without(properties, &[], &mut out);
    assert_eq!(out, b"A\x011\x02B\x012\x02A\x013\x02");
    out.clear();
    copy_without(properties, &["A", "X"], &mut out);
    assert_eq!(out, b"B\x012\x02");
    assert_eq!(pairs(properties.0).len(), 3);
    assert!(properties.get(CRC32).is_some());
}

#[test]
fn reserved_names() {
    assert_eq!(RESERVED.len(), 53);
    assert!(is_reserved("UNIQ_KEY") && is_reserved("__CRC32#"));
    assert!(!is_reserved("city") && !is_reserved("CHECK_IMMUNITY_TIME_IN_SECONDS"));
}

proptest! {
    #[test]
    fn as_the_plain_rule(text in proptest::collection::vec(prop_oneof![0_u8..5, 0x80_u8..0x84, any::<u8>()], 0..60)) {
        let plain = plain(&text);
        prop_assert_eq!(pairs(&text), &plain[..]);
        for (name, _) in &plain {
            if let Ok(name) = std::str::from_utf8(name) {
                let last = plain.iter().rfind(|(other, _)| other == name.as_bytes()).map(|(_, value)| &value[..]);
                prop_assert_eq!(Properties(&text).get(name), last);
                let [known, none] = Properties(&text).get_all([name, ""]);
                prop_assert_eq!((known, none), (Properties(&text).get_str(name), None));
            }
        }
    }
}
