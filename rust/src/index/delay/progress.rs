//! The progress of the delay levels: how far the messages of each are delivered.
//!
//! In:     queue offsets of the schedule topic.
//! Out:    `config/delayOffset.json`, in a broker's format.
//! Always: unknown fields of the file are kept.
//! Not here: when to write, and progress in the log after the file was written.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::base::error::Result;
use crate::base::units::{QueueId, TimestampMs};
use crate::storage::Storage;
use crate::storage::config_file;

const FILE: &str = "delayOffset.json";
const TABLE: &str = "offsetTable";

/// Queue of the schedule topic → the next queue offset to deliver.
pub type DelayProgress = BTreeMap<QueueId, u64>;

/// The file's contents when it was last read or written.
#[derive(Debug)]
pub struct DelayOffsets {
    file: Value,
    /// The offsets in the file, by queue of the schedule topic.
    written: DelayProgress,
}

impl DelayOffsets {
    /// Reads the file, or its backup. The texts describe damage. `None`: neither file exists or is valid.
    pub fn load(storage: &dyn Storage) -> Result<(Option<Self>, Vec<String>)> {
        let loaded = config_file::load(storage, FILE)?;
        let offsets = loaded.value.map(|file| Self { written: progress(&file), file });
        Ok((offsets, loaded.damaged))
    }

    /// Returns the progress in the file.
    pub const fn progress(&self) -> &DelayProgress {
        &self.written
    }

    /// Replaces the file if its contents differ.
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

/// Returns the offsets in a file. Ignores other contents.
fn progress(file: &Value) -> DelayProgress {
    let levels = file.get(TABLE).and_then(Value::as_object).into_iter().flatten();
    let known = levels.filter_map(|(level, offset)| {
        let queue_id = level.parse::<i32>().ok()?.checked_sub(1).filter(|id| *id >= 0)?;
        Some((QueueId(queue_id), offset.as_u64()?))
    });
    known.collect()
}
