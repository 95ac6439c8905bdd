//! A broker's config files are read and written as a broker does, and neither bad text nor a crash loses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::storage::disk::Disk;
use crate::storage::memory::{CrashKeep, FaultKind, Memory};

const OFFSETS: &str = "{\n\t\"dataVersion\":{\n\t\t\"counter\":0,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":1795233463200\n\t},\n\t\"groupTopicMap\":{\n\t\t\"g\":[\n\t\t\t\"t\"\n\t\t]\n\t},\n\t\"none\":{\n\t\t\n\t},\n\t\"offsetTable\":{\n\t\t\"t@g\":{\n\t\t\t0:25\n\t\t}\n\t}\n}";

fn disk() -> (tempfile::TempDir, Disk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    (dir, disk)
}

fn put(disk: &Disk, path: &str, bytes: &[u8]) {
    disk.create_dir("config").unwrap();
    let file = disk.open(path, OpenMode::Create).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
}

#[test]
fn a_brokers_text_is_read_and_written_byte_for_byte() {
    let value = parse_lenient(OFFSETS).unwrap();
    assert_eq!(value["offsetTable"]["t@g"]["0"], 25);
    assert_eq!(to_text(&value), OFFSETS);
}

#[test]
fn names_made_of_digits_keep_their_quotes() {
    let value = json!({"topicConfigTable": {"123": {"perm": 6}}, "forbiddenTable": {"7": {"8": 1}}});
    let text = to_text(&value);
    assert!(text.contains("\"123\":") && text.contains("\"8\":"), "{text}");
    let table = to_text(&json!({"offsetTable": {"3": 100, "007": 1}}));
    assert!(table.contains("\t3:100") && table.contains("\"007\":1"), "{table}");
}

#[test]
fn lenient_texts_are_read() {
    let value =
        parse_lenient("\u{feff} {a-b : 'it\\'s', 1:[1,-2,3.5,1e3,], \"u\":\"\\u00e9\\ud83d\\ude00\\x41\\0\",}\n");
    let expected = json!({"a-b": "it's", "1": [1, -2, 3.5, 1000.0], "u": "é😀A\0"});
    assert_eq!(value.unwrap(), expected);
    assert_eq!(parse_lenient("18446744073709551615").unwrap(), json!(u64::MAX));
}

#[test]
fn bad_texts_are_refused_with_their_position() {
    for text in ["", "{", "[1 2]", "{a}", "{:1}", "nul", "\"a", "\"\\q\"", "{}x", "1e999", "NaN", "{,}"] {
        assert!(parse_lenient(text).unwrap_err().starts_with("line 1, column "), "{text}");
    }
    assert!(parse_lenient("{\n  \"a\" 1}").unwrap_err().starts_with("line 2, column 7: "));
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(parse_lenient(&nested(16)).is_ok());
    assert!(parse_lenient(&nested(17)).unwrap_err().contains("deep"));
    assert!(parse_lenient(&"[".repeat(1 << 20)).is_err());
}

#[test]
fn the_backup_replaces_a_bad_file() {
    let (_dir, disk) = disk();
    assert_eq!(load(&disk, "a.json").unwrap(), Loaded::default());
    put(&disk, "config/a.json.bak", b"{\"a\":1}");
    assert_eq!(load(&disk, "a.json").unwrap(), Loaded { value: Some(json!({"a": 1})), damaged: vec![] });
    for bad in [&b""[..], b" \n", b"{\"a\":", b"[]", b"\xff{}", b"\0\0\0"] {
        put(&disk, "config/a.json", bad);
        let loaded = load(&disk, "a.json").unwrap();
        assert_eq!((loaded.value, loaded.damaged.len()), (Some(json!({"a": 1})), 1));
        assert!(loaded.damaged[0].starts_with("config/a.json: "));
    }
    put(&disk, "config/a.json.bak", b"{");
    let loaded = load(&disk, "a.json").unwrap();
    assert_eq!((loaded.value, loaded.damaged.len()), (None, 2));
}

#[test]
fn replacing_keeps_the_last_good_one() {
    let (_dir, disk) = disk();
    replace(&disk, "a.json", "{\"a\":1, \"long\":\"xxxxxxxxxxxxxxxx\"}").unwrap();
    replace(&disk, "a.json", "{\"a\":2}").unwrap();
    assert_eq!(load(&disk, "a.json").unwrap().value, Some(json!({"a": 2})));
    put(&disk, "config/a.json", b"damaged");
    replace(&disk, "a.json", "{\"a\":3}").unwrap();
    put(&disk, "config/a.json", b"damaged");
    assert_eq!(load(&disk, "a.json").unwrap().value.unwrap()["a"], 1);
    let names: Vec<_> = disk.list("config").unwrap().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["a.json", "a.json.bak"]);
}

#[test]
fn a_crash_anywhere_in_a_replacement_leaves_the_old_or_the_new() {
    let replaced = |memory: &Memory| replace(memory, "a.json", "{\"a\":3}");
    let memory = Memory::new();
    for text in ["{\"a\":1}", "{\"a\":2}"] {
        replace(&memory, "a.json", text).unwrap();
    }
    let calls = {
        let whole = memory.crash(0, CrashKeep::PageCache);
        replaced(&whole).unwrap();
        assert_eq!(load(&whole.crash(1, CrashKeep::PowerLoss), "a.json").unwrap().value, Some(json!({"a": 3})));
        whole.calls()
    };
    for (call, seed) in (1..=calls).flat_map(|call| (0..50).map(move |seed| (call, seed))) {
        for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
            let crashing = memory.crash(0, CrashKeep::PageCache);
            crashing.fail_at(call, FaultKind::Tear(3), true);
            assert!(replaced(&crashing).is_err());
            let loaded = load(&crashing.crash(seed, keep), "a.json").unwrap();
            let value =
                loaded.value.unwrap_or_else(|| panic!("call {call}, seed {seed}, {keep:?}: {:?}", loaded.damaged));
            assert!(value["a"] == 2 || value["a"] == 3, "call {call}, seed {seed}, {keep:?}: {value}");
        }
    }
}

#[test]
fn the_version_counts_up_and_keeps_its_state() {
    let mut value = json!({"dataVersion": {"counter": 4, "stateVersion": 7, "timestamp": 1}, "x": 1});
    bump_data_version(&mut value, TimestampMs(99));
    assert_eq!(value, json!({"dataVersion": {"counter": 5, "stateVersion": 7, "timestamp": 99}, "x": 1}));
    let mut empty = json!({});
    bump_data_version(&mut empty, TimestampMs(5));
    assert_eq!(empty["dataVersion"]["counter"], 1);
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        let key = prop_oneof![any::<String>(), "[0-9]{1,3}", Just("offsetTable".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(value in any_value()) {
        prop_assert_eq!(parse_lenient(&to_text(&value)).unwrap(), value);
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}:,\"'\\\\ua0-9.eE+ \\n\\PC-]*") {
        let _ = parse_lenient(&text);
    }
}

/// Its writer renames another one over it. A reader that asked the path for a length would read the other file with it.
#[test]
fn a_file_that_is_replaced_while_it_is_read_is_the_old_one_or_the_new_one() {
    const SHORT: &str = r#"{"a":"short"}"#;
    const LONG: &str = r#"{"a":"much longer than the other one"}"#;
    for (old, new, backup) in [(SHORT, LONG, false), (LONG, SHORT, false), (SHORT, LONG, true), (LONG, SHORT, true)] {
        for call in 0.. {
            let memory = Memory::new();
            replace_file(&memory, "config/x.json", old.as_bytes(), false).unwrap();
            let (storage, has_replaced) = (memory.clone(), Arc::new(AtomicBool::new(false)));
            let replaced = Arc::clone(&has_replaced);
            memory.before_each(move |before| {
                if before == call {
                    replace_file(&storage, "config/x.json", new.as_bytes(), backup).unwrap();
                    replaced.store(true, Ordering::SeqCst);
                }
            });
            let Loaded { value, damaged } = load(&memory, "x.json").unwrap();
            let value = value.unwrap().to_string();
            assert!(damaged.is_empty() && (value == old || value == new), "{call}: {value}, {damaged:?}");
            if !has_replaced.load(Ordering::SeqCst) {
                assert!(call > 2, "there were only {call} calls");
                break;
            }
        }
    }
}
