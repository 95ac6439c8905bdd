//! Reads messages by queue, by physical offset, by key, and in log order.
//!
//! In:     names and offsets.
//! Out:    records, copied out of the log.
//! Always: nothing after the visible end is returned. Entries in memory are read like entries in files.
//! Not here: decoding bodies, filtering by policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::stored_record::Copier;
use super::{Inner, Shared, Store, StoredRecord, Wait};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs, to_u64, to_usize};
use crate::filter::{ReadBudget, Selector};
use crate::index::consume_queue::{ConsumeQueue, ENTRY_SIZE, Entry};
use crate::log::commit_log::{LogReader, Scanner, too_old};
use crate::record::RecordView;
use crate::record::properties::{KEYS, UNIQUE_KEY};

/// The maximum number of bytes that one `read` returns after its first message. RocketMQ's
/// `maxTransferBytesOnMessageInMemory` is 256 KiB. Readers in the process need no network, so their limit is higher.
const READ_BYTES_MAX: usize = 4 << 20;
/// Bytes at the log's end that are assumed to be in the page cache.
const WARM_BYTES: u64 = 64 << 20;
/// How many records ahead to prefetch into the CPU's cache, because main memory is slow to answer.
const AHEAD: usize = 2;
/// The maximum number of index candidates of one hash that a query examines.
const CANDIDATES_MAX: usize = 4_096;

impl Store {
    /// Returns visible messages of a queue from an offset on, and the offset to continue from. With `selector`, returns
    /// only messages that it wants. Skipped messages count as read. An error is about the message at `queue_offset`:
    /// if a later one cannot be read, the call returns what comes before it, and perhaps no message.
    pub fn read(
        &self,
        topic: &str,
        queue_id: QueueId,
        queue_offset: QueueOffset,
        max_messages: usize,
        selector: Option<&Selector>,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        let mut budget = ReadBudget::UNLIMITED;
        self.read_within(topic, queue_id, queue_offset, max_messages, selector, &mut budget)
    }

    /// Does the same within a budget, so that a selector of rare messages does not scan the whole queue.
    pub fn read_within(
        &self,
        topic: &str,
        queue_id: QueueId,
        queue_offset: QueueOffset,
        max_messages: usize,
        selector: Option<&Selector>,
        budget: &mut ReadBudget,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        self.shared.refresh()?;
        self.read_in((topic, queue_id), queue_offset, max_messages, selector, budget, Wait::Yes)
    }

    /// Reads messages without following a writer.
    pub(super) fn read_in(
        &self,
        (topic, queue_id): (&str, QueueId),
        queue_offset: QueueOffset,
        max_messages: usize,
        selector: Option<&Selector>,
        budget: &mut ReadBudget,
        wait: Wait,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        self.shared.check_open()?;
        let mut next = queue_offset.0;
        let mut found = Vec::new();
        let mut bytes = 0;
        while found.len() < max_messages && bytes < READ_BYTES_MAX && budget.entries() > 0 {
            let most = to_u64(max_messages - found.len()).max(32).min(budget.entries());
            let entries = match self.shared.entries_if(topic, queue_id, next, most, wait) {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => entries,
                // Nothing was read. The call that may wait starts again.
                Err(error @ Error::WouldWait) if found.is_empty() => return Err(error),
                Err(error) if next == queue_offset.0 => return Err(error),
                Err(_) => break,
            };
            // Taken after the entries, so that every record that they point to is visible.
            let mut log = self.shared.log.reader(self.shared.visible_end());
            let mut copier = Copier::of(entries.iter().take(max_messages - found.len()));
            for (number, entry) in entries.iter().enumerate() {
                if found.len() >= max_messages || bytes >= READ_BYTES_MAX || budget.entries() == 0 {
                    break;
                }
                if let Some(later) = entries.get(number + AHEAD) {
                    log.ask_for(later.physical_offset, later.size);
                }
                let wanted = !entry.is_padding() && selector.is_none_or(|selector| selector.may_match(entry.tags_code));
                let at = (topic, queue_id, next);
                match wanted
                    .then(|| self.record_if((&mut log, &mut copier), at, *entry, (selector, budget)))
                    .transpose()
                {
                    Ok(record) => found.extend(record.flatten().inspect(|record| bytes += record.bytes().len())),
                    Err(error) if next == queue_offset.0 => return Err(error),
                    // The error concerns only that message. The messages before it are returned first.
                    Err(_) => return Ok((found, QueueOffset(next))),
                }
                next += 1;
                budget.pass();
            }
        }
        Ok((found, QueueOffset(next)))
    }

    /// Returns the record at a physical offset.
    pub fn read_at(&self, physical_offset: PhysicalOffset) -> Result<StoredRecord> {
        self.shared.refresh()?;
        self.shared
            .log
            .read(physical_offset, self.shared.visible_end(), |_, bytes| StoredRecord::new(bytes, physical_offset))
    }

    /// Returns records of all topics in log order, and the offset to continue from: at most `max_messages`, and at most
    /// one record after `READ_BYTES_MAX`.
    pub fn scan(&self, from: PhysicalOffset, max_messages: usize) -> Result<(Vec<StoredRecord>, PhysicalOffset)> {
        self.shared.refresh()?;
        let first = self.shared.log.segments.first();
        if from.0 < first {
            return Err(too_old(from.0, first));
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        let settings = self.shared.configuration.settings.lock().clone();
        let end = self.shared.visible_end();
        let scan = Scanner::new(&self.shared.log, from, end).run(
            |offset| settings.verify(offset),
            |view, record| {
                found.push(StoredRecord::new(record, view.physical_offset));
                bytes += record.len();
                Ok(found.len() < max_messages && (bytes < READ_BYTES_MAX || mutated(Mutant::CopiesUnlimited)))
            },
        )?;
        match scan.damage_before(end) {
            Some(why) if found.is_empty() => {
                Err(self.shared.log.segment(PhysicalOffset(scan.end))?.corrupt(scan.end, why))
            }
            _ => Ok((found, PhysicalOffset(scan.end))),
        }
    }

    /// Returns messages of a topic with a key or unique id, the newest first: at most `max_messages`, and at most one
    /// message after `READ_BYTES_MAX`.
    pub fn query(&self, topic: &str, key: &str, max_messages: usize) -> Result<Vec<StoredRecord>> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        self.query_each(topic, key, |view, record| {
            found.push(StoredRecord::new(record, view.physical_offset));
            bytes += record.len();
            found.len() < max_messages && (bytes < READ_BYTES_MAX || mutated(Mutant::CopiesUnlimited))
        })?;
        Ok(found)
    }

    /// Calls `take` with each message of a topic with a key or unique id, the newest first, until it returns false.
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
                // The index may still contain records that retention removed.
                Ok(true) | Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => {}
                Ok(false) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the first remaining queue offset, and the queue offset after the last visible entry.
    pub fn queue_range(&self, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        self.shared.refresh()?;
        self.shared.range(topic, queue_id)
    }

    /// Returns the first queue offset whose message was stored at `timestamp` or later, or the queue's end.
    pub fn search_offset(&self, topic: &str, queue_id: QueueId, timestamp: TimestampMs) -> Result<u64> {
        self.shared.refresh()?;
        let (mut low, mut high) = self.shared.range(topic, queue_id)?;
        // Store timestamps never decrease in the log, and so never in a queue.
        while low < high {
            let middle = low + (high - low) / 2;
            let entries = self.shared.entries(topic, queue_id, middle, 1)?;
            let stored = match entries.first().filter(|entry| !entry.is_padding()) {
                Some(entry) => {
                    let (log, end) = (&self.shared.log, self.shared.visible_end());
                    match log.read(entry.physical_offset, end, |view, _| view.store_timestamp) {
                        // Retention removed the message in the meantime: it is older than all that remain.
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

    /// Returns topic, queue id and offset range of every queue, sorted, without deleted topics.
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
        // The half and op queues are in the table before their first message.
        let kept = |row: &Result<(String, QueueId, u64, u64)>| {
            let is_there = |(topic, queue_id, first, end): &(String, QueueId, u64, u64)| {
                *end > 0 && (first < end || settings.deleted_below(topic, *queue_id) < *end)
            };
            row.as_ref().map_or(true, is_there)
        };
        names.into_iter().map(range).filter(kept).collect()
    }

    /// Returns the record of a queue entry if the selector wants it.
    fn record_if(
        &self,
        (log, copier): (&mut LogReader<'_>, &mut Copier),
        (topic, queue_id, queue_offset): (&str, QueueId, u64),
        entry: Entry,
        (selector, budget): (Option<&Selector>, &mut ReadBudget),
    ) -> Result<Option<StoredRecord>> {
        let physical_offset = entry.physical_offset;
        let record = log.read(physical_offset, |view, bytes| {
            // A record contains its own queue and queue offset. If they differ, the entry is damaged.
            let is_it = (view.topic, view.queue_id, view.queue_offset.0) == (topic, queue_id, queue_offset);
            budget.evaluate(selector, view);
            let wanted = selector.is_none_or(|selector| selector.matches(view));
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
    /// Returns the error for a message that retention removed after its entry was read, with the queue's remaining
    /// range.
    fn too_old(&self, topic: &str, queue_id: QueueId, requested: u64) -> Error {
        let first = self.inner.lock().queue(topic, queue_id).map_or(0, |queue| queue.first);
        Error::OffsetTooOld { of: format!("{topic}/{queue_id}"), requested, minimum: first.max(requested + 1) }
    }

    /// Returns visible entries of a queue from a queue offset on.
    pub(super) fn entries(&self, topic: &str, queue_id: QueueId, from: u64, most: u64) -> Result<Vec<Entry>> {
        self.entries_if(topic, queue_id, from, most, Wait::Yes)
    }

    fn entries_if(&self, topic: &str, queue_id: QueueId, from: u64, most: u64, wait: Wait) -> Result<Vec<Entry>> {
        let inner = match wait {
            Wait::Yes => self.inner.lock(),
            Wait::No => self.inner.try_lock().ok_or(Error::WouldWait)?,
        };
        let Some(queue) = inner.queue(topic, queue_id) else { return Ok(Vec::new()) };
        if from < queue.first {
            return Err(Error::OffsetTooOld {
                of: format!("{topic}/{queue_id}"),
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
        // The steps below may take the lock again, or wait for the disk.
        if in_file.is_some() || !mutated(Mutant::LockedWhileReading) {
            drop(inner);
        }
        let bytes = match in_file {
            Some((name, most)) => self.queue_files.read(&name, queue_id, from, most)?,
            None => in_memory,
        };
        let (visible, appended) = (self.visible_end(), self.log.appended());
        let (entries, _) = bytes.as_chunks::<ENTRY_SIZE>();
        let whole = |entry: &Entry| entry.is_padding() || entry.end() <= appended;
        let mut entries: Vec<Entry> =
            entries.iter().map_while(|entry| Entry::from_bytes(entry).filter(whole)).collect();
        // Old records are probably not in the page cache. Errors are left to the call that may wait.
        let is_old = |first: &Entry| first.physical_offset.0 + WARM_BYTES < appended;
        if wait == Wait::No && entries.first().is_none_or(is_old) {
            return Err(Error::WouldWait);
        }
        if entries.is_empty() {
            if !mutated(Mutant::RemovedIsDamaged) && self.is_removed(topic, queue_id, from)? {
                return Err(self.too_old(topic, queue_id, from));
            }
            return Err(self.damaged_entry(topic, queue_id, from, "it names no record in the log"));
        }
        let seen = entries.iter().take_while(|entry| entry.is_padding() || entry.end() <= visible).count();
        entries.truncate(seen);
        Ok(entries)
    }

    /// Returns whether retention or a topic deletion removed an entry since the queue was read.
    fn is_removed(&self, topic: &str, queue_id: QueueId, queue_offset: u64) -> Result<bool> {
        // A reader gets the current first offsets of the log and the queues from its writer.
        self.refresh()?;
        self.refresh_deleted()?;
        Ok(self.inner.lock().queue(topic, queue_id).is_some_and(|queue| queue_offset < queue.first))
    }

    /// Returns the error for an impossible entry. Prevents snapshots, so that the next opening rebuilds all queues.
    fn damaged_entry(&self, topic: &str, queue_id: QueueId, queue_offset: u64, what: &str) -> Error {
        self.snapshots.distrust_queues();
        self.queue_files.damaged(topic, queue_id, queue_offset, what)
    }

    /// Returns the entry of a message, from memory or file; `None` for padding, and if there is no entry.
    pub(super) fn entry_at(&self, queue: &ConsumeQueue, at: u64) -> Result<Option<Entry>> {
        Ok(self.queue_files.entry(queue, at)?.filter(|entry| !entry.is_padding()))
    }

    fn range(&self, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        self.range_in(&self.inner.lock(), topic, queue_id)
    }

    pub(super) fn range_in(&self, inner: &Inner, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        let Some(queue) = inner.queue(topic, queue_id) else { return Ok((0, 0)) };
        let (first, mut end) = (queue.first, queue.next());
        let visible = self.visible_end();
        // Only in `SYNC_FLUSH` may the last few entries be after the visible end.
        while end > first && visible < self.log.appended() {
            if self.entry_at(queue, end - 1)?.is_none_or(|entry| entry.end() <= visible) {
                break;
            }
            end -= 1;
        }
        Ok((first, end))
    }

    /// Returns the physical offsets that may hold records with a key, the newest first: first from memory, then from
    /// files.
    pub(super) fn candidates(&self, topic: &str, key: &str) -> Result<Vec<PhysicalOffset>> {
        let found = self.candidates_of([java::index_hash(topic, key)])?;
        Ok(found.into_values().flat_map(|physical_offsets| physical_offsets.into_iter().rev()).collect())
    }

    /// Returns the physical offsets that may hold records with a key of each hash.
    pub(super) fn candidates_of(
        &self,
        hashes: impl IntoIterator<Item = u32>,
    ) -> Result<BTreeMap<u32, BTreeSet<PhysicalOffset>>> {
        let mut found: BTreeMap<u32, BTreeSet<PhysicalOffset>> =
            hashes.into_iter().map(|hash| (hash, BTreeSet::new())).collect();
        let inner = self.inner.lock();
        for entry in inner.derived.dispatcher.index.iter().chain(inner.derived.index_in_flight.iter()) {
            if let Some(physical_offsets) = found.get_mut(&entry.hash) {
                physical_offsets.insert(entry.physical_offset);
            }
        }
        // Memory is read first, because an entry is in the files before it leaves memory.
        drop(inner);
        let everywhere = PhysicalOffset(0)..PhysicalOffset(u64::MAX);
        for (hash, physical_offsets) in &mut found {
            physical_offsets.extend(self.index_files.lock().query(*hash, CANDIDATES_MAX, everywhere.clone())?);
        }
        Ok(found)
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
