//! A consume queue's entries in memory and in files, compared with a vector.

use proptest::prelude::*;

use super::*;
use crate::base::units::PhysicalOffset;
use crate::storage::memory::{FaultKind, Memory};
use crate::storage::{OpenMode, Storage};

const PER_FILE: u64 = 8;

fn files(memory: &Memory) -> QueueFiles {
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    QueueFiles::new(storage, PER_FILE * 20, false)
}

fn entry(number: u64) -> Entry {
    Entry { physical_offset: PhysicalOffset(number * 100), size: 100, tags_code: -7 }
}

/// Returns all entries of the queue, from its files and from memory.
fn all(files: &QueueFiles, queue: &ConsumeQueue) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut at = queue.first;
    while at < queue.settled() {
        let bytes = files.read(&queue.topic, queue.queue_id, at, queue.settled() - at).unwrap();
        assert!(!bytes.is_empty());
        at += to_u64(bytes.len() / ENTRY_SIZE);
        found.extend(bytes.as_chunks::<ENTRY_SIZE>().0.iter().map(|bytes| Entry::from_bytes(bytes).unwrap()));
    }
    found.extend(queue.tail().as_chunks::<ENTRY_SIZE>().0.iter().map(|bytes| Entry::from_bytes(bytes).unwrap()));
    found
}

#[test]
fn an_entry_is_twenty_bytes_and_comes_back() {
    let entry = Entry { physical_offset: PhysicalOffset(0x0102_0304), size: 5, tags_code: -1 };
    let bytes = entry.to_bytes();
    assert_eq!(bytes, [0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 5, 255, 255, 255, 255, 255, 255, 255, 255]);
    assert_eq!(Entry::from_bytes(&bytes), Some(entry));
    assert_eq!(Entry::from_bytes(&[0; 20]), None);
    assert_eq!(Entry::from_bytes(&bytes[..19]), None);
    assert!(Entry::from_bytes(&Entry::PADDING.to_bytes()).unwrap().is_padding());
}

#[test]
fn a_queue_that_begins_later_is_padded_in_its_first_file() {
    let memory = Memory::new();
    let files = files(&memory);
    let mut table = QueueTable::default();
    let slot = table.insert(ConsumeQueue::padded("orders".into(), QueueId(0), 11, PER_FILE));
    table.push(slot, entry(11));
    for block in table.blocks() {
        files.write(&block, NewFiles::Synced).unwrap();
        table.settle(&block);
    }
    let bytes = files.read(&"orders".into(), QueueId(0), 8, 4).unwrap();
    let found: Vec<_> = bytes.as_chunks::<ENTRY_SIZE>().0.iter().map(|bytes| Entry::from_bytes(bytes)).collect();
    assert_eq!(found, [Some(Entry::PADDING), Some(Entry::PADDING), Some(Entry::PADDING), Some(entry(11))]);
    assert_eq!((table.next(slot), table.buffered()), (12, 0));
}

/// A file whose first sync failed in a process that then died has its length only in the page cache. A process that read
/// it first and then writes it sets the length again.
#[test]
fn a_length_that_a_failed_sync_dropped_is_set_again_after_a_read() {
    let path = "consumequeue/orders/0/00000000000000000000";
    // What a failed sync drops differs with the number of calls before it.
    for before in 0..16 {
        let memory = Memory::new();
        (0..=before).for_each(|_| memory.create_dir("consumequeue/orders/0").unwrap());
        let file = memory.open(path, OpenMode::Create).unwrap();
        file.set_len(PER_FILE * 20).unwrap();
        file.write_at(&entry(1).to_bytes(), 0).unwrap();
        memory.fail_at(memory.calls() + 1, FaultKind::Io, false);
        file.sync().unwrap_err();
        drop(file);

        let files = files(&memory);
        let mut table = QueueTable::default();
        let slot = table.find_or_insert("orders", QueueId(0));
        table.push(slot, entry(1));
        assert_eq!(files.held(table.get(slot).unwrap()).unwrap(), 1);
        for block in table.blocks() {
            files.write(&block, NewFiles::Unsynced).unwrap();
        }
        files.sync_all().unwrap();
        let found = memory.lose_power(|_| 0).len(path).unwrap();
        assert_eq!(found, Some(PER_FILE * 20), "after {before} calls");
    }
}

proptest! {
    #[test]
    fn blocks_are_a_vector(steps in proptest::collection::vec((0_u8..4, 1_u64..20), 1..60)) {
        let memory = Memory::new();
        let files = files(&memory);
        let mut table = QueueTable::default();
        let slot = table.find_or_insert("orders", QueueId(2));
        let mut model: Vec<Entry> = Vec::new();
        for (step, count) in steps {
            match step {
                0 | 1 => for _ in 0..count {
                    let next = entry(to_u64(model.len()));
                    table.push(slot, next);
                    model.push(next);
                },
                2 => for block in table.blocks() {
                    // More entries may arrive while a block is written.
                    table.push(slot, entry(to_u64(model.len())));
                    model.push(entry(to_u64(model.len())));
                    files.write(&block, NewFiles::Synced).unwrap();
                    table.settle(&block);
                    prop_assert!(files.holds(&block).unwrap());
                },
                _ => {
                    let queue = table.get(slot).unwrap();
                    files.cut(&queue.topic, queue.queue_id, queue.settled()).unwrap();
                }
            }
            let queue = table.get(slot).unwrap();
            prop_assert_eq!(queue.next(), to_u64(model.len()));
            prop_assert_eq!(table.buffered(), queue.tail().len());
            prop_assert_eq!(all(&files, queue), model.clone());
        }
    }
}
