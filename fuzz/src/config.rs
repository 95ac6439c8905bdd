//! Configuration: any text as a broker's lenient JSON; what is read is written and read again.

use serde_json::Value;
use txstore::storage::config_file::{parse_lenient, to_text};

const DEPTH_MAX: usize = 16;

/// The input is the text.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let lenient = parse_lenient(text);
    match &lenient {
        Ok(value) => {
            assert!(depth(value) <= DEPTH_MAX);
            assert_eq!(parse_lenient(&to_text(value)).as_ref(), Ok(value), "written and read again");
        }
        Err(why) => assert!(why.starts_with("line ")),
    }
    if let Ok(strict) = serde_json::from_str::<Value>(text)
        && depth(&strict) <= DEPTH_MAX
    {
        assert!(lenient.is_ok(), "JSON is lenient JSON: {lenient:?}");
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(values) => 1 + values.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
