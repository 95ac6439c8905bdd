//! Settings read back unchanged. A damaged file yields nothing, never a wrong value.

use super::*;
use crate::base::units::to_usize;
use crate::storage::OpenMode;
use crate::storage::memory::Memory;

fn settings() -> Settings {
    let range = |start, end, crc| OwnRange { start, end, crc };
    Settings {
        append_prop_crc: true,
        commit_log_file_size: Some(1 << 30),
        consume_queue_file_size: Some(6_000_000),
        index_slots: Some(5_000_000),
        index_entries: None,
        ranges: vec![range(0, Some(700), true), range(900, None, false)],
        deleted: vec![DeletedQueue { topic: "orders".into(), queue_id: QueueId(3), below: 17, log_end: 900 }],
        id: Some(StoreId::new(0x00AB_CDEF << 64 | 7)),
    }
}

#[test]
fn they_come_back_as_they_were() {
    let memory = Memory::new();
    assert_eq!(Settings::load(&memory).unwrap(), None);
    for settings in [settings(), Settings::default()] {
        settings.store(&memory).unwrap();
        assert_eq!(Settings::load(&memory).unwrap(), Some(settings));
    }
}

#[test]
fn any_flipped_byte_is_the_same_or_nothing() {
    let memory = Memory::new();
    settings().store(&memory).unwrap();
    let length = to_usize(memory.len(PATH).unwrap().unwrap());
    let mut bytes = vec![0; length];
    memory.open(PATH, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
    for at in 0..length {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            replace_file(&memory, PATH, &damaged, false).unwrap();
            // A whitespace character may change into another one.
            let found = Settings::load(&memory).unwrap();
            let without_id = Settings { id: None, ..settings() };
            let same = found.is_none() || found == Some(settings()) || found == Some(without_id);
            assert!(same, "byte {at}, bit {bit}: {found:?}");
        }
    }
}

#[test]
fn ranges_tell_who_wrote_what() {
    let mut settings = Settings { append_prop_crc: true, ..Settings::default() };
    settings.begin_range(100);
    assert!(settings.is_all_ours(100, u64::MAX) && !settings.is_all_ours(0, 200));
    settings.end_range(300);
    assert!(settings.is_all_ours(100, 300) && !settings.is_all_ours(100, 301));
    settings.begin_range(300);
    assert_eq!(settings.ranges.len(), 1, "a continued range is one range");
    settings.end_range(400);
    // A broker wrote 400..500.
    settings.begin_range(500);
    assert_eq!(settings.ranges.len(), 2);
    assert!(!settings.is_all_ours(100, u64::MAX));
    let required = |at| settings.verify(at).record_crc == RecordCrc::Required;
    assert_eq!([99, 100, 399, 400, 499, 500, 9_999].map(required), [false, true, true, false, false, true, true]);
}

/// A release that knows no ids checks the file's CRC over the fields that it knows. The id is not one of them.
#[test]
fn the_files_crc_is_the_one_of_a_release_without_ids() {
    let memory = Memory::new();
    let crc = |settings: &Settings| {
        settings.store(&memory).unwrap();
        let mut bytes = vec![0; to_usize(memory.len(PATH).unwrap().unwrap())];
        memory.open(PATH, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()["crc"].clone()
    };
    assert_eq!(crc(&settings()), crc(&Settings { id: None, ..settings() }));
}

#[test]
fn a_file_size_of_0_is_no_settings() {
    let memory = Memory::new();
    for none in [
        Settings { commit_log_file_size: Some(0), ..settings() },
        Settings { consume_queue_file_size: Some(0), ..settings() },
    ] {
        none.store(&memory).unwrap();
        assert_eq!(Settings::load(&memory).unwrap(), None);
    }
}
