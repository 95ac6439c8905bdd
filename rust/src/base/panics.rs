//! Reports panics, which are our bugs, as a line of JSON if the log consists of JSON lines.
//!
//! In:     a panic of any thread.
//! Out:    one line on stderr, with the keys of the command line's log.
//! Always: only a program installs it, because a process has one panic hook; a library leaves the hook unchanged.
//! Not here: what a panic ends.

use std::io::Write;
use std::panic::{self, PanicHookInfo};

use chrono::{DateTime, SecondsFormat};
use serde_json::json;

use crate::base::clock::{Clock, SystemClock};
use crate::base::units::TimestampMs;

/// Reports every later panic as JSON.
pub fn log_as_json() {
    panic::set_hook(Box::new(|info| {
        // An error is ignored, because no reader is left to report it to.
        let _ = std::io::stderr().write_all(line(info, SystemClock.wall()).as_bytes());
    }));
}

fn line(info: &PanicHookInfo<'_>, now: TimestampMs) -> String {
    let text = info.payload_as_str().unwrap_or("no text");
    let location = info.location().map(ToString::to_string);
    let entry = json!({
        "time": time_text(now),
        "level": "critical",
        "logger": "txstore.engine",
        "message": format!("a panic in the engine, which is a bug: {text}"),
        "location": location,
        "thread_name": std::thread::current().name(),
    });
    format!("{entry}\n")
}

/// Formats a time as `2026-01-31T12:00:00.000Z`.
fn time_text(TimestampMs(now): TimestampMs) -> Option<String> {
    DateTime::from_timestamp_millis(now).map(|time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn times_are_read_as_they_were() {
        let shown = |ms| time_text(TimestampMs(ms)).unwrap();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(shown(951_868_799_000), "2000-02-29T23:59:59.000Z");
        assert_eq!(shown(1_709_251_200_007), "2024-03-01T00:00:00.007Z");
        assert_eq!(shown(4_107_542_399_000), "2100-02-28T23:59:59.000Z");
        assert_eq!(shown(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    /// The test uses a process of its own, because the hook belongs to the process.
    #[test]
    fn a_panic_in_a_thread_is_one_object() {
        let this = std::env::current_exe().unwrap();
        let name = "base::panics::tests::panics_in_a_thread";
        let ended = Command::new(this).args([name, "--exact", "--ignored", "--nocapture"]).output().unwrap();
        let entry = String::from_utf8(ended.stderr).unwrap();
        let (line, rest) = entry.split_once('\n').unwrap();
        assert_eq!(rest, "", "nothing else is said");
        let found: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(found["message"], "a panic in the engine, which is a bug: one\ntwo");
        assert_eq!((&found["level"], &found["thread_name"]), (&json!("critical"), &json!("mine")));
        assert!(found["location"].as_str().unwrap().contains("panics.rs:"));
        assert_eq!(found["time"].as_str().unwrap().len(), "2026-01-31T12:00:00.000Z".len());
    }

    #[test]
    #[ignore = "what the test above starts"]
    fn panics_in_a_thread() {
        log_as_json();
        let ended = std::thread::Builder::new().name("mine".into()).spawn(|| panic!("one\ntwo")).unwrap().join();
        assert!(ended.is_err());
    }
}
