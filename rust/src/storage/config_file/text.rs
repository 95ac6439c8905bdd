//! Writes a value as a broker writes it.
//!
//! In:     a value.
//! Out:    text with tabs, one entry per line.
//! Always: `parse_lenient` returns the same value. In an offset table the queue ids have no quotes. All other keys are
//!         names, which a broker accepts only with quotes.

use serde_json::Value;

/// Returns the text of a config file.
pub fn to_text(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value, 0, false);
    text
}

fn write_value(text: &mut String, value: &Value, depth: usize, in_offsets: bool) {
    match value {
        Value::Object(object) => {
            let entries = object.iter().map(|(key, value)| (Some(key.as_str()), value));
            write_entries(text, ('{', '}'), entries, depth, in_offsets);
        }
        // A broker writes an empty object over three lines, and an empty array on one.
        Value::Array(array) if array.is_empty() => text.push_str("[]"),
        Value::Array(array) => write_entries(text, ('[', ']'), array.iter().map(|v| (None, v)), depth, in_offsets),
        plain => text.push_str(&plain.to_string()),
    }
}

fn write_entries<'v>(
    text: &mut String,
    (open, close): (char, char),
    entries: impl Iterator<Item = (Option<&'v str>, &'v Value)>,
    depth: usize,
    in_offsets: bool,
) {
    text.push(open);
    new_line(text, depth + 1);
    for (index, (key, value)) in entries.enumerate() {
        if index > 0 {
            text.push(',');
            new_line(text, depth + 1);
        }
        if let Some(key) = key {
            let bare = in_offsets && value.is_number() && is_queue_id(key);
            text.push_str(&if bare { key.to_owned() } else { Value::from(key).to_string() });
            text.push(':');
        }
        let table = depth == 0 && key.is_some_and(|key| key.ends_with("ffsetTable"));
        write_value(text, value, depth + 1, in_offsets || table);
    }
    new_line(text, depth);
    text.push(close);
}

fn is_queue_id(key: &str) -> bool {
    key.parse::<u32>().is_ok_and(|id| id.to_string() == key)
}

fn new_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n('\t', depth));
}
