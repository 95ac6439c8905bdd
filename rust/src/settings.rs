//! Settings: what txstore remembers about a store beside the log: `txstore/settings.json`.
//!
//! In: how the store was made, who wrote which range of the log. Out: how to verify a record at an offset.
//! Always: checked by a CRC; missing or damaged means the cautious answer: nothing is known to be ours.

use serde_json::{Value, json};

use crate::config_file::replace_file;
use crate::error::Result;
use crate::mutant::{Mutant, mutated};
use crate::record::decode::{RecordCrc, Verify};
use crate::storage::{OpenMode, Storage};
use crate::units::to_usize;

/// The directory of txstore's own files in a store.
pub const DIRECTORY: &str = "txstore";
const PATH: &str = "txstore/settings.json";
/// A settings file with ten thousand ranges is smaller.
const SIZE_MAX: u64 = 1 << 20;

/// A range of the log that txstore wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRange {
    /// Its first byte.
    pub start: u64,
    /// One past its last byte; `None` while it grows.
    pub end: Option<u64>,
    /// Whether its records carry their own CRC.
    pub crc: bool,
}

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether appended records carry their own CRC.
    pub append_prop_crc: bool,
    /// Bytes of a commit log file.
    pub commit_log_file_size: Option<u64>,
    /// Bytes of a consume queue file.
    pub consume_queue_file_size: Option<u64>,
    /// Slots of an index file.
    pub index_slots: Option<u32>,
    /// Entries of an index file.
    pub index_entries: Option<u32>,
    /// What txstore wrote, in order.
    pub ranges: Vec<OwnRange>,
}

impl Settings {
    /// Reads the file; `None` if it is missing or damaged.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        let Some(length) = storage.len(PATH)?.filter(|length| *length <= SIZE_MAX) else { return Ok(None) };
        let mut bytes = vec![0; to_usize(length)];
        storage.open(PATH, OpenMode::Read)?.read_at(&mut bytes, 0)?;
        Ok(serde_json::from_slice(&bytes).ok().and_then(|value| Self::from_json(&value)))
    }

    /// Replaces the file.
    pub fn store(&self, storage: &dyn Storage) -> Result<()> {
        let mut value = self.to_json();
        let crc = crc32fast::hash(value.to_string().as_bytes());
        if let Value::Object(fields) = &mut value {
            fields.insert("crc".into(), crc.into());
        }
        replace_file(storage, PATH, format!("{value:#}\n").as_bytes(), false)
    }

    /// How a record at an offset is to be looked at.
    pub fn verify(&self, physical_offset: u64) -> Verify {
        let own = self.ranges.iter().rev().find(|range| range.start <= physical_offset);
        let guarded = own.is_some_and(|range| range.crc && range.end.is_none_or(|end| physical_offset < end));
        let guarded = guarded && !mutated(Mutant::NoRecordCrc);
        Verify { body_crc: true, record_crc: if guarded { RecordCrc::Required } else { RecordCrc::Ignore } }
    }

    /// Whether txstore alone wrote the log between two offsets.
    pub fn is_all_ours(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        for range in &self.ranges {
            if range.start <= at {
                at = at.max(range.end.unwrap_or(u64::MAX));
            }
        }
        at >= to
    }

    /// From `start` on txstore writes; what follows a range that ended there goes on with it.
    pub fn begin_range(&mut self, start: u64) {
        let crc = self.append_prop_crc;
        match self.ranges.last_mut() {
            Some(last) if last.crc == crc && last.end.is_none_or(|end| end == start) && last.start <= start => {
                last.end = None;
            }
            Some(last) if last.end.is_none() => {
                last.end = Some(start);
                self.ranges.push(OwnRange { start, end: None, crc });
            }
            _ => self.ranges.push(OwnRange { start, end: None, crc }),
        }
    }

    /// Up to `end` txstore wrote.
    pub fn end_range(&mut self, end: u64) {
        if let Some(last) = self.ranges.last_mut() {
            last.end = Some(end);
        }
        self.ranges.retain(|range| range.end != Some(range.start));
    }

    fn to_json(&self) -> Value {
        let ranges: Vec<_> =
            self.ranges.iter().map(|range| json!({"start": range.start, "end": range.end, "crc": range.crc})).collect();
        json!({
            "enabledAppendPropCRC": self.append_prop_crc,
            "mappedFileSizeCommitLog": self.commit_log_file_size,
            "mappedFileSizeConsumeQueue": self.consume_queue_file_size,
            "maxHashSlotNum": self.index_slots,
            "maxIndexNum": self.index_entries,
            "written": ranges,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let small = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
        let range = |range: &Value| {
            Some(OwnRange {
                start: range.get("start")?.as_u64()?,
                end: range.get("end")?.as_u64(),
                crc: range.get("crc")?.as_bool()?,
            })
        };
        let read = Self {
            append_prop_crc: value.get("enabledAppendPropCRC")?.as_bool()?,
            commit_log_file_size: number("mappedFileSizeCommitLog"),
            consume_queue_file_size: number("mappedFileSizeConsumeQueue"),
            index_slots: small("maxHashSlotNum"),
            index_entries: small("maxIndexNum"),
            ranges: value.get("written")?.as_array()?.iter().map(range).collect::<Option<_>>()?,
        };
        let crc = crc32fast::hash(read.to_json().to_string().as_bytes());
        (small("crc") == Some(crc)).then_some(read)
    }
}

#[cfg(test)]
mod tests;
