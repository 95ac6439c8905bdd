//! Stores what txstore remembers about a store in addition to the log: `txstore/settings.json`.
//!
//! In:     how the store was created, which process wrote which range of the log, which queues were deleted.
//! Out:    how to verify a record at an offset, where a deleted queue begins, and the id that tells this store from any
//!         other.
//! Always: checked by a CRC. If the file is missing or damaged, no range counts as ours.

use serde_json::{Value, json};

use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::QueueId;
use crate::record::decode::{RecordCrc, Verify};
use crate::record::{RecordView, TransactionType};
use crate::storage::Storage;
use crate::storage::config_file::{read_file, replace_file};

/// The directory of txstore's own files in a store.
pub const DIRECTORY: &str = "txstore";
/// Where a writer keeps the statistics of full log files.
pub(crate) const STATISTICS: &str = "txstore/statistics";
const PATH: &str = "txstore/settings.json";
/// A settings file with ten thousand ranges and ten thousand deleted queues is smaller.
const SIZE_MAX: u64 = 16 << 20;

/// A range of the log that txstore wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRange {
    /// Its first byte.
    pub start: u64,
    /// One past its last byte; `None` while it grows.
    pub end: Option<u64>,
    /// Whether its records carry a CRC of their own.
    pub crc: bool,
}

/// A queue whose topic was deleted. Its messages are gone, while their records stay in the log until retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedQueue {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: QueueId,
    /// Messages below this queue offset are gone. The queue continues here, so that no offset means two messages.
    pub below: u64,
    /// Their records lie below this physical offset.
    pub log_end: u64,
}

/// The remembered facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether appended records carry a CRC of their own.
    pub append_prop_crc: bool,
    /// Size of a commit log file in bytes.
    pub commit_log_file_size: Option<u64>,
    /// Size of a consume queue file in bytes.
    pub consume_queue_file_size: Option<u64>,
    /// Slots of an index file.
    pub index_slots: Option<u32>,
    /// Entries of an index file.
    pub index_entries: Option<u32>,
    /// The ranges that txstore wrote, in order.
    pub ranges: Vec<OwnRange>,
    /// Queues of topics that were deleted.
    pub deleted: Vec<DeletedQueue>,
    /// Tells this store from any other, also from one that is created later at the same path.
    pub id: Option<StoreId>,
}

/// A store's id: random, created once, and kept for the store's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(u128);

impl StoreId {
    /// Creates the id from random bits.
    pub const fn new(random: u128) -> Self {
        Self(random)
    }

    fn crc(self) -> u32 {
        crc32fast::hash(self.to_string().as_bytes())
    }

    /// Reads the id in a settings file, if it is whole. It has a checksum of its own: the file's checksum covers only
    /// fields that releases without ids know, so that they can read the file.
    fn from_json(value: &Value) -> Option<Self> {
        let text = value.get("id")?.as_str()?;
        let id = Self(u128::from_str_radix(text, 16).ok()?);
        let crc = value.get("idCrc")?.as_u64()?;
        (id.to_string() == text && u64::from(id.crc()) == crc).then_some(id)
    }
}

impl std::fmt::Display for StoreId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl Settings {
    /// Reads the file; `None` if it is missing or damaged.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        Ok(read_file(storage, PATH, SIZE_MAX)?.and_then(|bytes| Self::parse(&bytes)))
    }

    /// Reads the file's bytes; `None` if they are damaged.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().and_then(|value| Self::from_json(&value))
    }

    /// Replaces the file.
    pub fn store(&self, storage: &dyn Storage) -> Result<()> {
        let mut value = self.to_json();
        let crc = crc32fast::hash(value.to_string().as_bytes());
        if let Value::Object(fields) = &mut value {
            fields.insert("crc".into(), crc.into());
            if let Some(id) = self.id {
                fields.insert("id".into(), id.to_string().into());
                fields.insert("idCrc".into(), id.crc().into());
            }
        }
        replace_file(storage, PATH, format!("{value:#}\n").as_bytes(), false)
    }

    /// Returns how a record at an offset is verified.
    pub fn verify(&self, physical_offset: u64) -> Verify {
        let own = self.ranges.iter().rev().find(|range| range.start <= physical_offset);
        let guarded = own.is_some_and(|range| range.crc && range.end.is_none_or(|end| physical_offset < end));
        let guarded = guarded && !mutated(Mutant::NoRecordCrc);
        // A record's own CRC also covers its body, so one pass is enough.
        Verify { body_crc: !guarded, record_crc: if guarded { RecordCrc::Required } else { RecordCrc::Ignore } }
    }

    /// Returns whether txstore wrote the record at an offset, or will write it next.
    pub fn wrote(&self, physical_offset: u64) -> bool {
        let holds =
            |range: &OwnRange| range.start <= physical_offset && range.end.is_none_or(|end| physical_offset < end);
        self.ranges.iter().any(holds)
    }

    /// Returns whether txstore alone wrote the log between two offsets.
    pub fn is_all_ours(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        for range in &self.ranges {
            if range.start <= at {
                at = at.max(range.end.unwrap_or(u64::MAX));
            }
        }
        at >= to
    }

    /// Returns the end of the log that only txstore wrote, of several ranges if they follow one another. `None` if it
    /// never wrote.
    pub fn ours_from(&self) -> Option<OwnRange> {
        let mut ranges = self.ranges.iter().rev();
        let mut ours = *ranges.next()?;
        for before in ranges {
            if before.end != Some(ours.start) {
                break;
            }
            ours.start = before.start;
        }
        Some(ours)
    }

    /// Returns the last range if txstore has not ended it: it writes the store, or was killed.
    pub fn open_range(&self) -> Option<&OwnRange> {
        self.ranges.last().filter(|range| range.end.is_none())
    }

    /// Begins a range that txstore writes at `start`. A range that ended there is continued.
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

    /// Ends the range that txstore wrote at `end`.
    pub fn end_range(&mut self, end: u64) {
        if let Some(last) = self.ranges.last_mut() {
            last.end = Some(end);
        }
        self.ranges.retain(|range| range.end != Some(range.start));
    }

    /// Returns how txstore deleted a queue.
    pub fn deletion_of(&self, topic: &str, queue_id: QueueId) -> Option<&DeletedQueue> {
        self.deleted.iter().find(|queue| queue.topic == topic && queue.queue_id == queue_id)
    }

    /// Returns the queue offset at which a deleted queue begins; 0 if it was not deleted.
    pub fn deleted_below(&self, topic: &str, queue_id: QueueId) -> u64 {
        self.deletion_of(topic, queue_id).map_or(0, |queue| queue.below)
    }

    /// Returns whether a record belongs to a topic that was deleted after the record was stored.
    pub fn has_deleted(&self, view: &RecordView<'_>) -> bool {
        let has_entry = matches!(view.transaction_type(), TransactionType::None | TransactionType::Commit);
        has_entry && view.queue_offset.0 < self.deleted_below(view.topic, view.queue_id)
    }

    /// Marks the messages of a queue below `below` as deleted.
    pub fn delete_queue(&mut self, queue: DeletedQueue) {
        self.deleted.retain(|other| (&other.topic, other.queue_id) != (&queue.topic, queue.queue_id));
        self.deleted.push(queue);
    }

    fn to_json(&self) -> Value {
        let ranges: Vec<_> =
            self.ranges.iter().map(|range| json!({"start": range.start, "end": range.end, "crc": range.crc})).collect();
        let mut value = json!({
            "enabledAppendPropCRC": self.append_prop_crc,
            "mappedFileSizeCommitLog": self.commit_log_file_size,
            "mappedFileSizeConsumeQueue": self.consume_queue_file_size,
            "maxHashSlotNum": self.index_slots,
            "maxIndexNum": self.index_entries,
            "written": ranges,
        });
        // The fields are written only if a queue was deleted, so that older releases can read all other files.
        if let Some(fields) = value.as_object_mut().filter(|_| !self.deleted.is_empty()) {
            fields.insert("deleted".into(), self.deleted.iter().map(DeletedQueue::to_json).collect());
        }
        value
    }

    fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        // No file is empty.
        let file_size = |name: &str| number(name).filter(|size| *size > 0);
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
            commit_log_file_size: file_size("mappedFileSizeCommitLog"),
            consume_queue_file_size: file_size("mappedFileSizeConsumeQueue"),
            index_slots: small("maxHashSlotNum"),
            index_entries: small("maxIndexNum"),
            ranges: value.get("written")?.as_array()?.iter().map(range).collect::<Option<_>>()?,
            deleted: match value.get("deleted") {
                Some(queues) => queues.as_array()?.iter().map(DeletedQueue::from_json).collect::<Option<_>>()?,
                None => Vec::new(),
            },
            id: StoreId::from_json(value),
        };
        let crc = crc32fast::hash(read.to_json().to_string().as_bytes());
        (small("crc") == Some(crc)).then_some(read)
    }
}

impl DeletedQueue {
    fn to_json(&self) -> Value {
        json!({"topic": self.topic, "queue": self.queue_id.0, "below": self.below, "logEnd": self.log_end})
    }

    fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            topic: value.get("topic")?.as_str()?.to_owned(),
            queue_id: QueueId(value.get("queue")?.as_i64()?.try_into().ok()?),
            below: value.get("below")?.as_u64()?,
            log_end: value.get("logEnd")?.as_u64()?,
        })
    }
}

#[cfg(test)]
mod tests;
