//! Read: messages by queue, by physical offset, by key, in the log's order.
//!
//! In:     names and offsets.
//! Out:    records, copied out of the log.
//! Always: nothing after the visible end. Entries that are only in memory are seen like those in files.
//! Not here: decoding bodies, filtering by policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::stored_record::Copier;
use super::{Inner, Shared, Store, StoredRecord, Wait};
use crate::commit_log::{LogReader, Scanner};
use crate::consume_queue::{ConsumeQueue, ENTRY_SIZE, Entry};
use crate::error::{Error, Result};
use crate::java;
use crate::record::RecordView;
use crate::record::properties::{KEYS, TAGS, UNIQUE_KEY};
use crate::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs, to_u64, to_usize};

/// Bytes that one `read` returns at most, beyond its first message: RocketMQ's `maxTransferBytesOnMessageInMemory` is
/// 256 KiB; a reader in the process is not sent anything, so it may have more.
const READ_BYTES_MAX: usize = 4 << 20;
/// Bytes at the log's end that are taken to be in memory still.
const WARM_BYTES: u64 = 64 << 20;
/// Records so far ahead are asked for from memory, which is slow to answer.
const AHEAD: usize = 2;
/// Candidates of one hash that a query looks at.
const CANDIDATES_MAX: usize = 4_096;

impl Store {
    /// Visible messages of a queue from an offset on, and the offset to go on from. With `tags` only messages with one
    /// of them; those passed over count as read.
    pub fn read(
        &self,
        topic: &str,
        queue_id: QueueId,
        queue_offset: QueueOffset,
        max_messages: usize,
        tags: Option<&[String]>,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        self.read_within(topic, queue_id, queue_offset, max_messages, tags, u64::MAX)
    }

    /// As `read`, but looks at no more than `entries_max` entries of the queue: a rare tag would have it look at all.
    pub fn read_within(
        &self,
        topic: &str,
        queue_id: QueueId,
        queue_offset: QueueOffset,
        max_messages: usize,
        tags: Option<&[String]>,
        entries_max: u64,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        self.shared.refresh()?;
        self.read_in((topic, queue_id), queue_offset, max_messages, tags, entries_max, Wait::Yes)
    }

    /// The same without following a writer.
    pub(super) fn read_in(
        &self,
        (topic, queue_id): (&str, QueueId),
        queue_offset: QueueOffset,
        max_messages: usize,
        tags: Option<&[String]>,
        entries_max: u64,
        wait: Wait,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        self.shared.check_open()?;
        let last = queue_offset.0.saturating_add(entries_max);
        let codes: Option<Vec<i64>> = tags.map(|tags| tags.iter().map(|tag| java::tags_code(Some(tag))).collect());
        let mut next = queue_offset.0;
        let mut found = Vec::new();
        let mut bytes = 0;
        while found.len() < max_messages && bytes < READ_BYTES_MAX && next < last {
            let most = to_u64(max_messages - found.len()).max(32).min(last - next);
            let entries = match self.shared.entries_if(topic, queue_id, next, most, wait) {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => entries,
                Err(error) if found.is_empty() => return Err(error),
                Err(_) => break,
            };
            // Taken after the entries: all that they lead to is visible.
            let mut log = self.shared.log.reader(self.shared.visible_end());
            let mut copier = Copier::of(entries.iter().take(max_messages - found.len()));
            for (number, entry) in entries.iter().enumerate() {
                if found.len() >= max_messages || bytes >= READ_BYTES_MAX {
                    break;
                }
                if let Some(later) = entries.get(number + AHEAD) {
                    log.ask_for(later.physical_offset, later.size);
                }
                let wanted = !entry.is_padding() && codes.as_ref().is_none_or(|codes| codes.contains(&entry.tags_code));
                let at = (topic, queue_id, next);
                match wanted.then(|| self.record_if((&mut log, &mut copier), at, *entry, tags)).transpose() {
                    Ok(record) => found.extend(record.flatten().inspect(|record| bytes += record.bytes().len())),
                    Err(error) if found.is_empty() => return Err(error),
                    // The error is that message's alone: those before it are returned first.
                    Err(_) => return Ok((found, QueueOffset(next))),
                }
                next += 1;
            }
        }
        Ok((found, QueueOffset(next)))
    }

    /// The record at a physical offset.
    pub fn read_at(&self, physical_offset: PhysicalOffset) -> Result<StoredRecord> {
        self.shared.refresh()?;
        self.shared
            .log
            .read(physical_offset, self.shared.visible_end(), |_, bytes| StoredRecord::new(bytes, physical_offset))
    }

    /// Records of every topic in the log's order, and the offset to go on from: at most `max_messages`, and no more than
    /// one after `READ_BYTES_MAX`.
    pub fn scan(&self, from: PhysicalOffset, max_messages: usize) -> Result<(Vec<StoredRecord>, PhysicalOffset)> {
        self.shared.refresh()?;
        let first = self.shared.log.segments.first();
        if from.0 < first {
            return Err(Error::OffsetTooOld { place: "the commit log".into(), requested: from.0, minimum: first });
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        let settings = self.shared.configuration.settings.lock().clone();
        let end = self.shared.visible_end();
        let scan = Scanner::new(&self.shared.log, from, end).run(
            |offset| settings.verify(offset),
            |view, record| {
                found.push(StoredRecord::new(record, view.physical_offset));
                bytes += record.len();
                Ok(found.len() < max_messages && bytes < READ_BYTES_MAX)
            },
        )?;
        match scan.damage_before(end) {
            Some(why) if found.is_empty() => {
                Err(self.shared.log.segment(PhysicalOffset(scan.end))?.corrupt(scan.end, why))
            }
            _ => Ok((found, PhysicalOffset(scan.end))),
        }
    }

    /// Messages of a topic with a key or unique id, the newest first: at most `max_messages`, and no more than one after
    /// `READ_BYTES_MAX`.
    pub fn query(&self, topic: &str, key: &str, max_messages: usize) -> Result<Vec<StoredRecord>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        self.query_each(topic, key, |view, record| {
            found.push(StoredRecord::new(record, view.physical_offset));
            bytes += record.len();
            found.len() < max_messages && bytes < READ_BYTES_MAX
        })?;
        Ok(found)
    }

    /// Hands each message of a topic with a key or unique id to `take`, the newest first, until that returns false.
    pub(super) fn query_each(
        &self,
        topic: &str,
        key: &str,
        mut take: impl FnMut(&RecordView<'_>, &[u8]) -> bool,
    ) -> Result<()> {
        self.shared.refresh()?;
        self.shared.refresh_deleted()?;
        let settings = self.shared.configuration.settings.lock().clone();
        for physical_offset in self.shared.candidates(topic, key)? {
            let more = self.shared.log.read(physical_offset, self.shared.visible_end(), |view, bytes| {
                let wanted = view.topic == topic && has_key(view, key) && !settings.has_deleted(view);
                !wanted || take(view, bytes)
            });
            match more {
                // The index may still name what retention removed.
                Ok(true) | Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => {}
                Ok(false) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The first entry that is left in a queue, and one past its last visible one.
    pub fn queue_range(&self, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        self.shared.refresh()?;
        self.shared.range(topic, queue_id)
    }

    /// The first queue offset whose message was stored at `timestamp` or later; the queue's end if none was.
    pub fn search_offset(&self, topic: &str, queue_id: QueueId, timestamp: TimestampMs) -> Result<u64> {
        self.shared.refresh()?;
        let (mut low, mut high) = self.shared.range(topic, queue_id)?;
        // Store timestamps never decrease in the log, so neither do they in a queue.
        while low < high {
            let middle = low + (high - low) / 2;
            let entries = self.shared.entries(topic, queue_id, middle, 1)?;
            let stored = match entries.first().filter(|entry| !entry.is_padding()) {
                Some(entry) => {
                    let (log, end) = (&self.shared.log, self.shared.visible_end());
                    match log.read(entry.physical_offset, end, |view, _| view.store_timestamp) {
                        // Removed meanwhile: older than all that is left.
                        Err(Error::OffsetTooOld { .. }) => TimestampMs(i64::MIN),
                        stored => stored?,
                    }
                }
                None => TimestampMs(i64::MIN),
            };
            if stored < timestamp {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Topic, number and range of every queue, sorted; without those of deleted topics.
    pub fn queues(&self) -> Result<Vec<(String, QueueId, u64, u64)>> {
        self.shared.refresh()?;
        self.shared.refresh_deleted()?;
        let settings = self.shared.configuration.settings.lock().clone();
        let inner = self.shared.inner.lock();
        let mut names: Vec<_> = inner
            .derived
            .dispatcher
            .queues
            .iter()
            .map(|(_, queue)| (queue.topic.to_string(), queue.queue_id))
            .collect();
        drop(inner);
        names.sort();
        let range = |(topic, queue_id): (String, QueueId)| {
            let (first, end) = self.shared.range(&topic, queue_id)?;
            Ok((topic, queue_id, first, end))
        };
        // The half and op queue are in the table before their first message.
        let kept = |row: &Result<(String, QueueId, u64, u64)>| {
            let is_there = |(topic, queue_id, first, end): &(String, QueueId, u64, u64)| {
                *end > 0 && (first < end || settings.deleted_below(topic, *queue_id) < *end)
            };
            row.as_ref().map_or(true, is_there)
        };
        names.into_iter().map(range).filter(kept).collect()
    }

    /// The record of a queue's entry, if it has one of the tags: codes collide, so the tag itself is compared.
    fn record_if(
        &self,
        (log, copier): (&mut LogReader<'_>, &mut Copier),
        (topic, queue_id, queue_offset): (&str, QueueId, u64),
        entry: Entry,
        tags: Option<&[String]>,
    ) -> Result<Option<StoredRecord>> {
        let physical_offset = entry.physical_offset;
        let record = log.read(physical_offset, |view, bytes| {
            // A record says itself which entry is its own; any other one is damaged.
            let is_it = (view.topic, view.queue_id, view.queue_offset.0) == (topic, queue_id, queue_offset);
            let has_one = |tags: &[String]| {
                let tag = view.properties.get_str(TAGS);
                tag.is_some_and(|tag| tags.iter().any(|wanted| wanted == tag))
            };
            let wanted = tags.is_none_or(has_one);
            is_it.then(|| wanted.then(|| copier.copy(bytes, physical_offset)))
        });
        match record {
            Ok(Some(record)) => Ok(record),
            Ok(None) | Err(Error::MessageNotFound { .. }) => {
                Err(self.shared.damaged_entry(topic, queue_id, queue_offset, &format!("it leads to {physical_offset}")))
            }
            Err(Error::OffsetTooOld { .. }) => Err(self.shared.too_old(topic, queue_id, queue_offset)),
            Err(error) => Err(error),
        }
    }
}

impl Shared {
    /// The error of a message that retention removed since its entry was read: what is left of the queue, in its terms.
    fn too_old(&self, topic: &str, queue_id: QueueId, requested: u64) -> Error {
        let inner = self.inner.lock();
        let queues = &inner.derived.dispatcher.queues;
        let first = queues.find(topic, queue_id).and_then(|slot| queues.get(slot)).map_or(0, |queue| queue.first);
        Error::OffsetTooOld { place: format!("{topic}/{queue_id}"), requested, minimum: first.max(requested + 1) }
    }

    /// Visible entries of a queue from an offset on.
    pub(super) fn entries(&self, topic: &str, queue_id: QueueId, from: u64, most: u64) -> Result<Vec<Entry>> {
        self.entries_if(topic, queue_id, from, most, Wait::Yes)
    }

    fn entries_if(&self, topic: &str, queue_id: QueueId, from: u64, most: u64, wait: Wait) -> Result<Vec<Entry>> {
        let inner = match wait {
            Wait::Yes => self.inner.lock(),
            Wait::No => self.inner.try_lock().ok_or(Error::WouldWait)?,
        };
        let queues = &inner.derived.dispatcher.queues;
        let Some(queue) = queues.find(topic, queue_id).and_then(|slot| queues.get(slot)) else {
            return Ok(Vec::new());
        };
        if from < queue.first {
            return Err(Error::OffsetTooOld {
                place: format!("{topic}/{queue_id}"),
                requested: from,
                minimum: queue.first,
            });
        }
        if from >= queue.next() {
            return Ok(Vec::new());
        }
        let most = most.min(queue.next() - from);
        let in_file = (from < queue.settled()).then(|| (Arc::clone(&queue.topic), most.min(queue.settled() - from)));
        let in_memory = if in_file.is_none() { tail_bytes(queue, from, most) } else { Vec::new() };
        // Everything below may take the lock again, or wait for a disk.
        drop(inner);
        let bytes = match in_file {
            Some((name, most)) => self.queue_files.read(&name, queue_id, from, most)?,
            None => in_memory,
        };
        let (visible, appended) = (self.visible_end(), self.log.appended());
        let (entries, _) = bytes.as_chunks::<ENTRY_SIZE>();
        let whole = |entry: &Entry| entry.is_padding() || entry.end() <= appended;
        let mut entries: Vec<Entry> =
            entries.iter().map_while(|entry| Entry::from_bytes(entry).filter(whole)).collect();
        // Old records are probably not in memory, and an error is told by the call that may wait.
        let is_old = |first: &Entry| first.physical_offset.0 + WARM_BYTES < appended;
        if wait == Wait::No && entries.first().is_none_or(is_old) {
            return Err(Error::WouldWait);
        }
        if entries.is_empty() {
            if self.is_removed(topic, queue_id, from)? {
                return Err(self.too_old(topic, queue_id, from));
            }
            return Err(self.damaged_entry(topic, queue_id, from, "it names no record in the log"));
        }
        let seen = entries.iter().take_while(|entry| entry.is_padding() || entry.end() <= visible).count();
        entries.truncate(seen);
        Ok(entries)
    }

    /// Whether an entry has gone since the queue was looked at: retention, or a deletion of its topic, removed its file.
    fn is_removed(&self, topic: &str, queue_id: QueueId, queue_offset: u64) -> Result<bool> {
        // A reader learns from its writer where the log and the queues begin now.
        self.refresh()?;
        self.refresh_deleted()?;
        let inner = self.inner.lock();
        let queues = &inner.derived.dispatcher.queues;
        let queue = queues.find(topic, queue_id).and_then(|slot| queues.get(slot));
        Ok(queue.is_some_and(|queue| queue_offset < queue.first))
    }

    /// The error of an entry that cannot be. The next opening builds all queues again: this one writes no snapshot.
    fn damaged_entry(&self, topic: &str, queue_id: QueueId, queue_offset: u64, what: &str) -> Error {
        self.snapshots.distrust_queues();
        self.queue_files.damaged(topic, queue_id, queue_offset, what)
    }

    /// One entry's bytes, from memory or file.
    pub(super) fn entry_bytes(&self, queue: &ConsumeQueue, at: u64) -> Result<Vec<u8>> {
        if at >= queue.settled() {
            return Ok(tail_bytes(queue, at, 1));
        }
        self.queue_files.read(&queue.topic, queue.queue_id, at, 1)
    }

    fn range(&self, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        self.range_in(&self.inner.lock(), topic, queue_id)
    }

    pub(super) fn range_in(&self, inner: &Inner, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        let queues = &inner.derived.dispatcher.queues;
        let Some(queue) = queues.find(topic, queue_id).and_then(|slot| queues.get(slot)) else { return Ok((0, 0)) };
        let (first, mut end) = (queue.first, queue.next());
        let visible = self.visible_end();
        // Only in SYNC_FLUSH a few last entries may be after the visible end.
        while end > first && visible < self.log.appended() {
            let bytes = self.entry_bytes(queue, end - 1)?;
            if Entry::from_bytes(&bytes).is_none_or(|entry| entry.is_padding() || entry.end() <= visible) {
                break;
            }
            end -= 1;
        }
        Ok((first, end))
    }

    /// Where records with a key may be, the newest first: entries in memory, then in files.
    pub(super) fn candidates(&self, topic: &str, key: &str) -> Result<Vec<PhysicalOffset>> {
        let hash = java::index_hash(topic, key);
        let inner = self.inner.lock();
        let in_memory = inner.derived.dispatcher.index.iter().chain(inner.derived.index_in_flight.iter());
        let mut physical_offsets: BTreeSet<PhysicalOffset> =
            in_memory.filter(|entry| entry.hash == hash).map(|entry| entry.physical_offset).collect();
        // In this order: an entry is in the files before it is gone from memory.
        drop(inner);
        let everywhere = PhysicalOffset(0)..PhysicalOffset(u64::MAX);
        physical_offsets.extend(self.index_files.lock().query(hash, CANDIDATES_MAX, everywhere)?);
        Ok(physical_offsets.into_iter().rev().collect())
    }
}

fn tail_bytes(queue: &ConsumeQueue, from: u64, most: u64) -> Vec<u8> {
    let start = to_usize(from.saturating_sub(queue.settled())) * ENTRY_SIZE;
    queue.tail().get(start..).unwrap_or_default().iter().take(to_usize(most) * ENTRY_SIZE).copied().collect()
}

fn has_key(view: &RecordView<'_>, key: &str) -> bool {
    view.properties.get_str(UNIQUE_KEY) == Some(key)
        || view.properties.get_str(KEYS).is_some_and(|keys| keys.split(' ').any(|word| word == key))
}
