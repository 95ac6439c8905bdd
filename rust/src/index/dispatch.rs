//! Adds records to the consume queues and the index. It treats all topics alike.
//!
//! In:     records, as they are appended or scanned.
//! Out:    queue entries and index entries, in memory.
//! Always: in log order. Prepared and rollback records get no queue entry, rollback records no index entry.

use crate::base::java;
use crate::base::names::SCHEDULE_TOPIC;
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::index::consume_queue::{Entry, QueueTable, Slot};
use crate::index::delay;
use crate::index::key_index::IndexEntry;
use crate::record::properties::{DELAY, KEYS, TAGS, UNIQUE_KEY};
use crate::record::{RecordView, TransactionType};

/// What one record adds to the derived files.
#[derive(Clone, Copy, Debug)]
pub struct DispatchRequest<'a> {
    /// Its physical offset.
    pub physical_offset: PhysicalOffset,
    /// Its size in bytes.
    pub size: u32,
    /// When it was stored.
    pub store_timestamp: TimestampMs,
    /// The code of its tags.
    pub tags_code: i64,
    /// `String.hashCode` of its topic and `#`.
    pub topic_hash: i32,
    /// Its transaction bits.
    pub transaction_type: TransactionType,
    /// Its unique id.
    pub unique_id: Option<&'a str>,
    /// Its keys, separated by spaces.
    pub keys: Option<&'a str>,
}

impl<'a> DispatchRequest<'a> {
    /// Returns the request for a record in the log.
    pub fn of(view: &RecordView<'a>) -> Self {
        let [unique_id, keys, tags] = view.properties.get_all([UNIQUE_KEY, KEYS, TAGS]);
        Self {
            physical_offset: view.physical_offset,
            size: view.size,
            store_timestamp: view.store_timestamp,
            tags_code: tags_code(view, tags),
            topic_hash: java::topic_hash(view.topic),
            transaction_type: view.transaction_type(),
            unique_id,
            keys,
        }
    }

    /// Returns whether its queue gets an entry.
    pub const fn has_entry(&self) -> bool {
        matches!(self.transaction_type, TransactionType::None | TransactionType::Commit)
    }
}

/// Entries that are not in files yet.
#[derive(Debug, Default)]
pub struct Dispatcher {
    /// The queues.
    pub queues: QueueTable,
    /// Index entries, in log order.
    pub index: Vec<IndexEntry>,
}

impl Dispatcher {
    /// Adds a record's entry to its queue.
    pub fn enqueue(&mut self, slot: Slot, request: &DispatchRequest<'_>) {
        if request.has_entry() {
            let DispatchRequest { physical_offset, size, tags_code, .. } = *request;
            self.queues.push(slot, Entry { physical_offset, size, tags_code });
        }
    }

    /// Adds a record's keys to the index.
    pub fn index(&mut self, request: &DispatchRequest<'_>) {
        if request.transaction_type == TransactionType::Rollback {
            return;
        }
        for hash in index_hashes(request.topic_hash, request.unique_id, request.keys) {
            self.index_one(hash, request.physical_offset, request.store_timestamp);
        }
    }

    /// Adds one key of a record to the index.
    pub fn index_one(&mut self, hash: u32, physical_offset: PhysicalOffset, store_timestamp: TimestampMs) {
        self.index.push(IndexEntry { hash, physical_offset, store_timestamp });
    }
}

/// Returns the index hashes of a record's unique id and keys.
pub fn index_hashes<'a>(
    topic_hash: i32,
    unique_id: Option<&'a str>,
    keys: Option<&'a str>,
) -> impl Iterator<Item = u32> + 'a {
    let words = keys.into_iter().flat_map(|keys| keys.split(' ')).filter(|key| !key.is_empty());
    unique_id.into_iter().chain(words).map(move |key| java::index_hash_after(topic_hash, key))
}

/// Returns the code in the queue entry: the tags code, or in the schedule topic the delivery time.
fn tags_code(view: &RecordView<'_>, tags: Option<&str>) -> i64 {
    let level = || view.properties.get_str(DELAY)?.parse::<usize>().ok();
    let delayed = (view.topic == SCHEDULE_TOPIC).then(level).flatten();
    match delayed.filter(|level| *level > 0) {
        Some(level) => view.store_timestamp.0.saturating_add(delay::level_ms(level)),
        None => java::tags_code(tags),
    }
}
