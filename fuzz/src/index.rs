//! Index: any bytes as an index file; questions end, adding and rolling back leave what was there.

use std::sync::Arc;

use txstore::base::units::{PhysicalOffset, TimestampMs};
use txstore::index::key_index::{IndexEntry, IndexFiles, IndexGeometry, IndexMark};
use txstore::storage::memory::Memory;
use txstore::storage::{OpenMode, Storage};

use super::Input;

const GEOMETRY: IndexGeometry = IndexGeometry { slots: 4, entries: 8 };
const NAME: &str = "20260101000000000";
const EVERYWHERE: std::ops::Range<PhysicalOffset> = PhysicalOffset(0)..PhysicalOffset(u64::MAX);

/// Four bytes: questions, a mark, how many entries to add, their hash; then the file.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let (hash, count, added, seed) = (input.byte(), input.byte(), input.byte() % 12, input.byte());
    let memory = Memory::new();
    memory.create_dir("index").unwrap();
    let file = memory.open(&format!("index/{NAME}"), OpenMode::Create).unwrap();
    file.set_len(GEOMETRY.file_bytes()).unwrap();
    file.write_at(&input.0[..input.0.len().min(GEOMETRY.file_bytes() as usize)], 0).unwrap();
    let open = |writable| IndexFiles::open(Arc::new(memory.clone()), GEOMETRY, writable).unwrap();
    let reader = open(false);
    for hash in [u32::from(hash), u32::from(hash) << 24, i32::MAX as u32] {
        let found = reader.query(hash, 5, EVERYWHERE).unwrap();
        assert!(found.len() <= 5);
    }
    let mut index = open(true);
    if count & 0x80 != 0 {
        let mark = IndexMark { file: NAME.into(), count: u32::from(count & 15) };
        if index.roll_back(Some(&mark)).is_err() {
            index.roll_back(None).unwrap();
            assert!(index.is_empty());
        }
    }
    let entries: Vec<_> = (0..added)
        .map(|number| IndexEntry {
            hash: u32::from(seed.wrapping_mul(number)),
            physical_offset: PhysicalOffset(1 << 60 | u64::from(number)),
            store_timestamp: TimestampMs(1_700_000_000_000 + i64::from(number)),
        })
        .collect();
    if index.append(&entries).is_ok() {
        index.sync().unwrap();
        let reader = open(false);
        for entry in &entries {
            let asked = entry.physical_offset..PhysicalOffset(entry.physical_offset.0 + 1);
            for index in [&index, &reader] {
                // A file made of any bytes may hold it already.
                assert!(
                    index.query(entry.hash, 9, asked.clone()).unwrap().contains(&entry.physical_offset),
                    "{entry:?}"
                );
            }
        }
    }
}
