//! Builds the consume queues from the log and compares them with their files.
//!
//! In:     records in log order, the queues' files.
//! Out:    the queues, in memory and in their files.
//! Always: entry i is the entry of message i. If a broker deleted a message queue and began it again, the queue
//!         contains only its new messages, as the broker's own queue file says.
//! Not here: reading the log, transactions, the index.

use std::sync::Arc;

use hashbrown::HashMap;

use super::queue_facts::BUFFERED_MAX;
use super::run::Run;
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{HALF_TOPIC, is_system_topic};
use crate::index::consume_queue::{ConsumeQueue, Entry, NewFiles, QUEUE_OFFSET_MAX, QueueExtent, Slot};
use crate::index::dispatch::DispatchRequest;
use crate::record::RecordView;
use crate::storage::settings::DeletedQueue;
use crate::transaction::HALF_QUEUE;

/// How many index entries recovery keeps in memory before it writes them.
const INDEX_MAX: usize = 1 << 16;

/// The maximum number of entries that may be missing in the middle of a queue.
const GAP_MAX: u64 = 1 << 20;

impl Run<'_> {
    pub(super) fn enqueue(&mut self, view: &RecordView<'_>, request: &DispatchRequest<'_>) -> Result<()> {
        if view.topic == HALF_TOPIC && view.queue_id != HALF_QUEUE && !self.known.read_only {
            return Err(Error::ForeignStore {
                path: self.log.segment(view.physical_offset)?.full_path(),
                what: format!(
                    "at {} it contains a half message in queue {}; txstore can continue only queue 0",
                    view.physical_offset, view.queue_id
                ),
            });
        }
        let known = self.find_queue(view);
        // Entries in between are kept in memory. An offset that no queue reaches must not decide how many.
        let most =
            known.map_or(QUEUE_OFFSET_MAX, |slot| self.derived.dispatcher.queues.next(slot).saturating_add(GAP_MAX));
        if view.queue_offset.0 > most {
            return Err(self.damage(
                view.physical_offset.0,
                &format!("the queue offset {} is far beyond all others of {}", view.queue_offset, view.topic),
            ));
        }
        let slot = match known {
            Some(slot) => slot,
            None => self.first_seen(view)?,
        };
        if self.queues.begun_at.get(&slot).is_some_and(|begun_at| view.physical_offset.0 < *begun_at) {
            return Ok(());
        }
        let next = self.derived.dispatcher.queues.next(slot);
        if view.queue_offset.0 < next && self.begins_again(slot, view)? {
            self.begin_again(slot, view.queue_offset.0, view.physical_offset.0);
        } else if view.queue_offset.0 != next {
            self.report.warn(format!(
                "the record at {} says queue offset {} of {}/{}, where {next} comes next",
                view.physical_offset, view.queue_offset, view.topic, view.queue_id
            ));
            if view.queue_offset.0 < next {
                return Ok(());
            }
            for _ in next..view.queue_offset.0 {
                self.derived.dispatcher.queues.push(slot, Entry::PADDING);
            }
        }
        self.derived.dispatcher.enqueue(slot, request);
        Ok(())
    }

    /// Finds the queue of a record. It is often the queue of the previous record.
    fn find_queue(&mut self, view: &RecordView<'_>) -> Option<Slot> {
        let queues = &self.derived.dispatcher.queues;
        let is_it = |queue: &ConsumeQueue| queue.queue_id == view.queue_id && *queue.topic == *view.topic;
        let again = self.queues.last.filter(|slot| queues.get(*slot).is_some_and(is_it));
        self.queues.last = again.or_else(|| queues.find(view.topic, view.queue_id));
        self.queues.last
    }

    /// Adds the queue that begins with this record. It begins at the log's first record of it, or at the later record
    /// with which a broker began it again.
    fn first_seen(&mut self, view: &RecordView<'_>) -> Result<Slot> {
        let topic: Arc<str> = view.topic.into();
        let may_begin_again = !self.all_ours && !is_system_topic(view.topic) && !mutated(Mutant::DeletedTopicReturns);
        let in_file = if may_begin_again { self.queue_files.first_entry(&topic, view.queue_id)? } else { None };
        let begun_again = in_file
            .filter(|(_, entry)| entry.physical_offset > view.physical_offset)
            .filter(|(first, entry)| self.is_brokers(view, *first, *entry));
        if let Some((first, entry)) = begun_again {
            let queue = ConsumeQueue::new(topic, view.queue_id, first, first);
            let slot = self.derived.dispatcher.queues.insert(queue);
            self.queues.begun_at.insert(slot, entry.physical_offset.0);
            self.note_begun_again(slot, first, entry.physical_offset.0);
            return Ok(slot);
        }
        let queue = self.first_of_queue(topic, view)?;
        let slot = self.derived.dispatcher.queues.insert(queue);
        if may_begin_again && in_file.is_none() {
            self.queues.fileless.insert(slot);
        }
        // A broker that deletes a queue after txstore gives its messages lower queue offsets than the deleted ones had.
        let is_later = |deleted: &DeletedQueue| view.physical_offset.0 >= deleted.log_end;
        if self.settings.deletion_of(view.topic, view.queue_id).is_some_and(is_later) {
            self.note_begun_again(slot, view.queue_offset.0, view.physical_offset.0);
        }
        Ok(slot)
    }

    fn first_of_queue(&self, topic: Arc<str>, view: &RecordView<'_>) -> Result<ConsumeQueue> {
        let first = view.queue_offset.0;
        // Entries before it point below the log's first file. If a file contains them, they do not change.
        let has_front = match first.checked_sub(1) {
            Some(before) => !self.queue_files.read(&topic, view.queue_id, before, 1)?.is_empty(),
            None => false,
        };
        Ok(if has_front {
            ConsumeQueue::new(topic, view.queue_id, first, first)
        } else {
            ConsumeQueue::padded(topic, view.queue_id, first, self.queue_files.entries_per_file())
        })
    }

    /// Returns whether an entry of the record's queue points to its own message, and a broker wrote that message.
    fn is_brokers(&self, view: &RecordView<'_>, queue_offset: u64, entry: Entry) -> bool {
        let is_it = |found: &RecordView<'_>, _: &[u8]| entry.leads_to(found, view.topic, view.queue_id, queue_offset);
        !self.settings.wrote(entry.physical_offset.0)
            && self.log.read(entry.physical_offset, self.known.limit, is_it).unwrap_or(false)
    }

    /// Returns whether a queue continues with a record whose queue offset was used before: the broker's queue file says
    /// so, or has no entry there and the record is a first one. A broker begins a queue at 0 again after its topic was
    /// deleted, and at a lower offset after it lost the end of the queue's file.
    fn begins_again(&self, slot: Slot, view: &RecordView<'_>) -> Result<bool> {
        if is_system_topic(view.topic) || mutated(Mutant::DeletedTopicReturns) {
            return Ok(false);
        }
        if self.settings.wrote(view.physical_offset.0) {
            // txstore gives the offset at which a queue ends, so a broker had deleted the queue before, or lost its end.
            return Ok(!self.all_ours);
        }
        let Some(queue) = self.derived.dispatcher.queues.get(slot) else { return Ok(false) };
        // An open file may be the deleted one.
        self.queue_files.close_queue(&queue.topic, queue.queue_id);
        // Not `QueueFiles::entry`, which would return the entry in memory.
        let in_file = self.queue_files.read(&queue.topic, queue.queue_id, view.queue_offset.0, 1)?;
        let in_file = Entry::from_bytes(&in_file).filter(|entry| !entry.is_padding());
        Ok(match in_file.filter(|_| !self.queues.fileless.contains(&slot)) {
            Some(entry) => entry.physical_offset == view.physical_offset && entry.size == view.size,
            None => view.queue_offset.0 == 0,
        })
    }

    /// Drops a queue's entries from `queue_offset` on. The next entry is that of the record at `physical_offset`.
    fn begin_again(&mut self, slot: Slot, queue_offset: u64, physical_offset: u64) {
        self.derived.dispatcher.queues.begin_again(slot, queue_offset);
        self.note_begun_again(slot, queue_offset, physical_offset);
    }

    /// Notes that a broker began a queue again. If it did so at or after the offset at which a deletion by txstore ended
    /// the queue, it continued the queue first, and the deletion stays valid.
    fn note_begun_again(&mut self, slot: Slot, queue_offset: u64, physical_offset: u64) {
        let queue = self.derived.dispatcher.queues.get(slot);
        let deleted = queue.and_then(|queue| self.settings.deletion_of(&queue.topic, queue.queue_id));
        if deleted.is_some_and(|deleted| queue_offset >= deleted.below) {
            self.derived.begun_again.entry(slot).or_insert(0);
        } else {
            self.derived.begun_again.insert(slot, physical_offset);
        }
    }

    /// Compares entries in memory with the files when enough are buffered.
    pub(super) fn settle_if_much(&mut self) -> Result<()> {
        if !self.settles {
            return Ok(());
        }
        let is_much = self.derived.dispatcher.queues.buffered() > self.queues.settle_from;
        let writes_index = !self.known.read_only || mutated(Mutant::SettledEachRecord);
        if is_much || (writes_index && self.derived.dispatcher.index.len() > INDEX_MAX) {
            self.settle()?;
            if mutated(Mutant::SettledEachRecord) {
                return Ok(());
            }
            // Entries that a reader did not find in the files stay in memory. It looks again after the same number of
            // new bytes.
            self.queues.settle_from = self.derived.dispatcher.queues.buffered() + BUFFERED_MAX;
        }
        Ok(())
    }

    /// Compares entries in memory with the files. Writes what differs, or keeps it in memory in a read-only store.
    pub(super) fn settle(&mut self) -> Result<()> {
        if self.known.read_only {
            return self.settle_found();
        }
        for block in self.derived.dispatcher.queues.blocks() {
            // After a crash, equal bytes may be only in the page cache, where a failed sync left them. So they are
            // written again.
            if !self.known.clean || !self.queue_files.holds(&block)? {
                self.queue_files.write(&block, NewFiles::Unsynced)?;
            }
            self.derived.dispatcher.queues.settle(&block);
        }
        if let Some(index) = self.index.as_deref_mut() {
            index.append(&self.derived.dispatcher.index)?;
            self.derived.dispatcher.index.clear();
        }
        Ok(())
    }

    /// Drops entries that the files contain: in each queue those before the first that differs.
    fn settle_found(&mut self) -> Result<()> {
        let queues = &mut self.derived.dispatcher.queues;
        let mut found = Vec::new();
        for (slot, queue) in queues.iter().filter(|(_, queue)| !queue.tail().is_empty()) {
            found.push((slot, self.queue_files.held(queue)?));
        }
        for (slot, end) in found {
            queues.settle_to(slot, end);
        }
        Ok(())
    }

    /// Removes message queues without a file if a broker began another queue of the topic again after their last
    /// message: they were deleted with it.
    pub(super) fn forget_deleted_queues(&mut self) -> Result<()> {
        let queues = &mut self.derived.dispatcher.queues;
        let mut topics: HashMap<Arc<str>, u64> = HashMap::new();
        // A queue that continued after txstore deleted it was not deleted by a broker.
        let is_brokers = |(slot, begun_at): &(&Slot, &u64)| self.derived.begun_again.get(*slot) >= Some(*begun_at);
        for (slot, begun_at) in self.queues.begun_at.iter().filter(is_brokers) {
            if let Some(queue) = queues.get(*slot) {
                let lowest = topics.entry(Arc::clone(&queue.topic)).or_insert(*begun_at);
                *lowest = (*begun_at).min(*lowest);
            }
        }
        for slot in &self.queues.fileless {
            let Some(queue) = queues.get(*slot) else { continue };
            let Some(begun_at) = topics.get(&queue.topic).copied() else { continue };
            let last = match queue.next().checked_sub(1) {
                Some(last) => self.queue_files.entry(queue, last)?,
                None => None,
            };
            // A broker that was killed may not have begun the file of a queue that has new messages.
            if last.is_none_or(|last| last.physical_offset.0 < begun_at) {
                queues.begin_again(*slot, 0);
                self.derived.begun_again.insert(*slot, begun_at);
            }
        }
        Ok(())
    }

    /// Adds queues that have no messages left, because the next message must not get a used queue offset.
    ///
    /// A log that begins at 0 has lost nothing to retention, so such a queue never had a message that is durable, and
    /// begins at 0. Its files may not: a power loss can keep the second one and not the first.
    pub(super) fn add_silent_queues(&mut self) -> Result<()> {
        let minimum = self.log.segments.first();
        for QueueExtent { topic, queue_id, first, end } in self.queue_files.list()? {
            if self.derived.dispatcher.queues.find(&topic, queue_id).is_some() {
                continue;
            }
            let in_files = ConsumeQueue::new(Arc::clone(&topic), queue_id, first, end);
            let begins_at_0 = minimum == 0 && !mutated(Mutant::LostQueueKeepsOffsets);
            let next = if begins_at_0 { 0 } else { self.last_below(&in_files, minimum)? };
            self.derived.dispatcher.queues.insert(ConsumeQueue::new(topic, queue_id, next, next));
        }
        Ok(())
    }

    /// Returns the queue offset after the last entry in a queue's files that points below `limit`.
    fn last_below(&self, queue: &ConsumeQueue, limit: u64) -> Result<u64> {
        let (mut low, mut high) = (queue.first, queue.next());
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.queue_files.entry(queue, middle)?;
            match entry.filter(|entry| entry.is_padding() || entry.physical_offset.0 < limit) {
                Some(_) => low = middle + 1,
                None => high = middle,
            }
        }
        Ok(low)
    }
}
