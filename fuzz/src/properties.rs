//! Properties: any text of names and values; two ways of reading it agree, and a copy reads like it.

use txstore::record::properties::{CRC32, Properties, copy_without, push};

/// Each name is looked up, so a text of many would take long.
const NAMES_MAX: usize = 16;

/// The input is the text.
pub fn run(input: &[u8]) {
    let properties = Properties(input);
    let all: Vec<_> = properties.iter().collect();
    for (name, value) in all.iter().take(NAMES_MAX) {
        assert!(!name.is_empty() && !value.is_empty() && !name.contains(&1) && !value.contains(&2));
        if let Ok(name) = std::str::from_utf8(name) {
            let last = all.iter().rev().find(|(other, _)| *other == name.as_bytes());
            assert_eq!(properties.get(name), last.map(|(_, value)| *value), "the last of {name:?}");
        }
    }
    assert_eq!(properties.get(""), None);
    let mut copy = Vec::new();
    copy_without(properties, &[], &mut copy);
    assert_eq!(Properties(&copy).iter().collect::<Vec<_>>(), all);
    let dropped = all.first().and_then(|(name, _)| std::str::from_utf8(name).ok()).unwrap_or("KEYS");
    let mut fewer = Vec::new();
    copy_without(properties, &[dropped], &mut fewer);
    assert_eq!(Properties(&fewer).get(dropped), None);
    if dropped != CRC32 {
        push(&mut fewer, dropped, "17");
        assert_eq!(Properties(&fewer).get_str(dropped), Some("17"));
    }
}
