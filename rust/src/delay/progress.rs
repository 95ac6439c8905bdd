//! Progress of the delay levels: how far the messages of each are delivered.
//!
//! In: queue offsets of the schedule topic. Out: `config/delayOffset.json`, as a broker keeps it. Always: what the file
//! holds and this room does not know stays in it. Not here: when to write; what the log says beyond the file.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config_file;
use crate::error::Result;
use crate::storage::Storage;
use crate::units::{QueueId, TimestampMs};

const FILE: &str = "delayOffset.json";
const TABLE: &str = "offsetTable";

/// Queue of the schedule topic → the next queue offset to deliver.
pub type DelayProgress = BTreeMap<QueueId, u64>;

/// The file, as it was read or written last.
#[derive(Debug)]
pub struct DelayOffsets {
    file: Value,
    /// What the file says, by level.
    written: DelayProgress,
}

impl DelayOffsets {
    /// Reads the file, or its backup; the texts say what was damaged. `None`: neither is there, or neither is good.
    pub fn load(storage: &dyn Storage) -> Result<(Option<Self>, Vec<String>)> {
        let loaded = config_file::load(storage, FILE)?;
        let offsets = loaded.value.map(|file| Self { written: progress(&file), file });
        Ok((offsets, loaded.damaged))
    }

    /// What the file says.
    pub const fn progress(&self) -> &DelayProgress {
        &self.written
    }

    /// Replaces the file, if it says anything else.
    pub fn write(&mut self, storage: &dyn Storage, progress: DelayProgress, now: TimestampMs) -> Result<()> {
        if progress == self.written {
            return Ok(());
        }
        let mut file = self.file.clone();
        let Some(object) = file.as_object_mut() else { return Ok(()) };
        let table = object.entry(TABLE).or_insert(Value::Null);
        if !table.is_object() {
            *table = json!({});
        }
        for (queue_id, offset) in &progress {
            if let Some(levels) = table.as_object_mut() {
                levels.insert((i64::from(queue_id.0) + 1).to_string(), (*offset).into());
            }
        }
        config_file::bump_data_version(&mut file, now);
        config_file::replace(storage, FILE, &config_file::to_text(&file))?;
        self.file = file;
        self.written = progress;
        Ok(())
    }
}

impl Default for DelayOffsets {
    fn default() -> Self {
        Self { file: json!({}), written: DelayProgress::new() }
    }
}

/// The offsets in a file; whatever else stands there is left unread.
fn progress(file: &Value) -> DelayProgress {
    let levels = file.get(TABLE).and_then(Value::as_object).into_iter().flatten();
    let known = levels.filter_map(|(level, offset)| {
        let queue_id = level.parse::<i32>().ok()?.checked_sub(1).filter(|id| *id >= 0)?;
        Some((QueueId(queue_id), offset.as_u64()?))
    });
    known.collect()
}
