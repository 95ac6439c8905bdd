//! Files of `config/`: any bytes in one; read, replaced, and as the consumers' offsets.

use txstore::index::offsets::ConsumerOffsets;
use txstore::storage::config_file::{load, replace, to_text};
use txstore::storage::memory::Memory;
use txstore::storage::{OpenMode, Storage};

/// The input is the file.
pub fn run(text: &[u8]) {
    let memory = Memory::new();
    memory.create_dir("config").unwrap();
    for name in ["topics.json", "consumerOffset.json"] {
        memory.open(&format!("config/{name}"), OpenMode::Create).unwrap().write_at(text, 0).unwrap();
    }
    let loaded = load(&memory, "topics.json").unwrap();
    if let Some(value) = loaded.value {
        replace(&memory, "topics.json", &to_text(&value)).unwrap();
        assert_eq!(load(&memory, "topics.json").unwrap().value, Some(value));
    }
    let (mut offsets, _) = ConsumerOffsets::load(&memory).unwrap();
    let all = offsets.all();
    for (topic, group, queue, offset) in &all {
        assert_eq!(offsets.get(topic, group, *queue), Some(*offset));
    }
    offsets.set("orders", "shippers", txstore::base::units::QueueId(0), 7);
    offsets.write(&memory, txstore::base::units::TimestampMs(1)).unwrap();
    let (again, damaged) = ConsumerOffsets::load(&memory).unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
    assert_eq!(again.get("orders", "shippers", txstore::base::units::QueueId(0)), Some(7));
    for (topic, group, queue, offset) in all {
        let own = topic == "orders" && group == "shippers" && queue.0 == 0;
        assert!(own || again.get(&topic, &group, queue) == Some(offset));
    }
}
