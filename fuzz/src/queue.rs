//! Consume queues: any bytes as a queue's files; reading, comparing, writing and cutting them.

use std::sync::Arc;

use txstore::base::units::QueueId;
use txstore::index::consume_queue::{Block, DIRECTORY, ENTRY_SIZE, Entry, NewFiles, QueueFiles, QueueTable};
use txstore::storage::memory::Memory;
use txstore::storage::{OpenMode, Storage};

use super::Input;

const FILE_ENTRIES: u64 = 4;
const FILE_SIZE: usize = FILE_ENTRIES as usize * ENTRY_SIZE;
const QUEUE: QueueId = QueueId(0);

/// One byte says where the files begin, one where to write and cut; then their bytes.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let (start, at) = (u64::from(input.byte() & 3) * FILE_ENTRIES, u64::from(input.byte() & 31));
    let memory = Memory::new();
    let directory = format!("{DIRECTORY}/orders/0");
    memory.create_dir(&directory).unwrap();
    let stored = &input.0[..input.0.len().min(3 * FILE_SIZE)];
    for (number, bytes) in stored.chunks(FILE_SIZE).enumerate() {
        let base = (start + number as u64 * FILE_ENTRIES) * ENTRY_SIZE as u64;
        let file = memory.open(&format!("{directory}/{base:020}"), OpenMode::Create).unwrap();
        file.set_len(FILE_SIZE as u64).unwrap();
        file.write_at(bytes, 0).unwrap();
    }
    let files = QueueFiles::new(Arc::new(memory), FILE_SIZE as u64, false);
    let topic: Arc<str> = "orders".into();
    for extent in files.list().unwrap() {
        assert_eq!((extent.first, extent.end % FILE_ENTRIES), (start, 0));
        for entry in extent.first..extent.end {
            let bytes = files.read(&topic, QUEUE, entry, 1).unwrap();
            let from = (entry - start) as usize * ENTRY_SIZE;
            assert!(bytes.starts_with(stored.get(from..stored.len().min(from + ENTRY_SIZE)).unwrap_or_default()));
            if let Some(entry) = Entry::from_bytes(&bytes) {
                assert_eq!(entry.to_bytes()[..], bytes, "an entry is its bytes");
                assert!(entry.end() >= entry.physical_offset.0);
            }
        }
    }
    writes_and_cuts(&files, &topic, start + at, stored);
}

fn writes_and_cuts(files: &QueueFiles, topic: &Arc<str>, at: u64, stored: &[u8]) {
    let whole = stored.len() - stored.len() % ENTRY_SIZE;
    let slot = QueueTable::default().find_or_insert(topic, QUEUE);
    let block = Block { slot, topic: Arc::clone(topic), queue_id: QUEUE, from: at, bytes: stored[..whole].to_vec() };
    files.write(&block, NewFiles::Synced).unwrap();
    assert!(files.holds(&block).unwrap());
    files.sync(topic, QUEUE, at, at + (whole / ENTRY_SIZE) as u64).unwrap();
    files.cut(topic, QUEUE, at).unwrap();
    let after = files.read(topic, QUEUE, at, 1).unwrap();
    assert!(after.iter().all(|byte| *byte == 0), "what was cut is gone");
}
