//! Offsets survive a restart, in a file that a broker wrote and continues to use.

use super::*;
use crate::storage::disk::Disk;

fn disk() -> (tempfile::TempDir, Disk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    (dir, disk)
}

#[test]
fn what_was_set_is_there_after_loading() {
    let (_dir, disk) = disk();
    let (mut offsets, damaged) = ConsumerOffsets::load(&disk).unwrap();
    assert!(damaged.is_empty() && offsets.all().is_empty() && !offsets.is_dirty());
    offsets.set("t", "g", QueueId(0), 5);
    offsets.set("t", "g", QueueId(1), 7);
    offsets.set("t", "g", QueueId(1), 8);
    offsets.set("%RETRY%g", "g", QueueId(0), 1);
    assert!(offsets.is_dirty());
    offsets.write(&disk, TimestampMs(42)).unwrap();
    assert!(!offsets.is_dirty());
    offsets.set("t", "g", QueueId(1), 8);
    assert!(!offsets.is_dirty());
    let (loaded, _) = ConsumerOffsets::load(&disk).unwrap();
    assert_eq!(loaded.all(), offsets.all());
    assert_eq!((loaded.get("t", "g", QueueId(1)), loaded.get("t", "h", QueueId(1))), (Some(8), None));
    assert_eq!(loaded.file["groupTopicMap"], json!({"g": ["%RETRY%g", "t"]}));
    assert_eq!(loaded.file["dataVersion"], json!({"counter": 1, "stateVersion": 0, "timestamp": 42}));
}

#[test]
fn what_a_broker_keeps_there_stays() {
    let (_dir, disk) = disk();
    let text = "{\"dataVersion\":{\"counter\":3,\"stateVersion\":9,\"timestamp\":1},\"future\":[1],\
        \"groupTopicMap\":{\"g\":[\"t\"],\"idle\":[\"x\"]},\"offsetTable\":{\"t@g\":{0:25,1:-1},\"odd\":{0:1},\"a@b@c\":{0:2}}}";
    config_file::replace(&disk, FILE, text).unwrap();
    let (mut offsets, _) = ConsumerOffsets::load(&disk).unwrap();
    assert_eq!(offsets.all(), [("t".to_owned(), "g".to_owned(), QueueId(0), 25)]);
    offsets.set("t", "g", QueueId(0), 26);
    offsets.set("u", "g", QueueId(0), 1);
    offsets.write(&disk, TimestampMs(2)).unwrap();
    let file = config_file::load(&disk, FILE).unwrap().value.unwrap();
    let expected = json!({
        "dataVersion": {"counter": 4, "stateVersion": 9, "timestamp": 2},
        "future": [1],
        "groupTopicMap": {"g": ["t", "u"], "idle": ["x"]},
        "offsetTable": {"t@g": {"0": 26, "1": -1}, "odd": {"0": 1}, "a@b@c": {"0": 2}, "u@g": {"0": 1}},
    });
    assert_eq!(file, expected);
}

#[test]
fn damage_is_reported_and_never_silently_empty() {
    let (_dir, disk) = disk();
    let (mut offsets, _) = ConsumerOffsets::load(&disk).unwrap();
    offsets.set("t", "g", QueueId(0), 1);
    offsets.write(&disk, TimestampMs(1)).unwrap();
    offsets.set("t", "g", QueueId(0), 2);
    offsets.write(&disk, TimestampMs(2)).unwrap();
    let path = "config/consumerOffset.json";
    disk.open(path, crate::storage::OpenMode::Write).unwrap().set_len(20).unwrap();
    let (loaded, damaged) = ConsumerOffsets::load(&disk).unwrap();
    assert_eq!((loaded.get("t", "g", QueueId(0)), damaged.len()), (Some(1), 1));
    disk.open(&format!("{path}.bak"), crate::storage::OpenMode::Write).unwrap().set_len(0).unwrap();
    let (loaded, damaged) = ConsumerOffsets::load(&disk).unwrap();
    assert_eq!((loaded.all().len(), damaged.len()), (0, 2));
}

#[test]
fn both_tables_are_in_the_file_before_anything_was_set() {
    let (_dir, disk) = disk();
    let (mut offsets, _) = ConsumerOffsets::load(&disk).unwrap();
    offsets.write(&disk, TimestampMs(1)).unwrap();
    let (loaded, _) = ConsumerOffsets::load(&disk).unwrap();
    assert_eq!((&loaded.file["offsetTable"], &loaded.file["groupTopicMap"]), (&json!({}), &json!({})));
}
