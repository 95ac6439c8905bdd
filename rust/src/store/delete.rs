//! Deletes a topic's messages. Their records stay in the log until retention removes them.
//!
//! In:     a topic.
//! Out:    the number of deleted messages.
//! Always: the deletion is stored durably before anything is removed, and only as far as the log is durable. A queue
//!         continues at its end, so no queue offset is used for two messages, not even after queues are rebuilt from
//!         the log.
//! Not here: whether a topic may be deleted (Python decides this).

use super::{PoisonOnPanic, Shared, Store};
use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{SCHEDULE_TOPIC, validate_topic};
use crate::base::units::{PhysicalOffset, to_u64};
use crate::record::properties::{REAL_TOPIC, RETRY_TOPIC};
use crate::storage::settings::{DeletedQueue, Settings};

/// The number of entries to read under one lock.
const BATCH: u64 = 256;

impl Store {
    /// Deletes a topic's messages. Returns their number.
    pub fn delete_queues(&self, topic: &str) -> Result<u64> {
        validate_topic(topic)?;
        self.shared.delete_queues(topic)
    }

    /// Returns the number of delayed and timed messages that are for a topic, or are retries of its messages.
    pub fn delayed_messages(&self, topic: &str) -> Result<u64> {
        let shared = &self.shared;
        shared.refresh()?;
        let mut delayed = 0;
        for (queue_id, mut at) in shared.delayed_queues() {
            loop {
                let entries = shared.entries(SCHEDULE_TOPIC, queue_id, at, BATCH)?;
                if entries.is_empty() {
                    break;
                }
                for entry in entries.iter().filter(|entry| !entry.is_padding()) {
                    delayed += u64::from(shared.is_delayed_for(entry.physical_offset, topic)?);
                }
                at += to_u64(entries.len());
            }
        }
        let timed: Vec<_> = shared.inner.lock().derived.timed.iter().collect();
        for message in timed {
            delayed += u64::from(shared.is_delayed_for(PhysicalOffset(message.physical_offset), topic)?);
        }
        Ok(delayed)
    }
}

impl Shared {
    fn is_delayed_for(&self, physical_offset: PhysicalOffset, topic: &str) -> Result<bool> {
        self.log.read(physical_offset, self.visible_end(), |view, _| {
            [REAL_TOPIC, RETRY_TOPIC].iter().any(|name| view.properties.get_str(name) == Some(topic))
        })
    }

    fn delete_queues(&self, topic: &str) -> Result<u64> {
        let _guard = PoisonOnPanic(self);
        let _one = self.maintenance.turn.lock();
        self.check_appends("deleting a topic")?;
        self.write_derived_alone()?;
        let (queues, messages, log_end) = self.queues_of(topic);
        // A power loss must not remove records below a mark, because their queue offsets would be used again below the
        // mark.
        if !mutated(Mutant::DeletedBeforeDurable) {
            self.wait_durable(log_end)?;
        }
        let mut settings = self.configuration.settings.lock().clone();
        queues.iter().cloned().for_each(|queue| settings.delete_queue(queue));
        if !mutated(Mutant::DeletionForgotten) {
            settings.store(self.storage.as_ref())?;
        }
        let mut inner = self.inner.lock();
        inner.derived.begin_deleted(&settings);
        inner.unlogged_changes += 1;
        drop(inner);
        *self.configuration.settings.lock() = settings;
        for queue in &queues {
            self.queue_files.remove_below(topic, queue.queue_id, queue.below)?;
        }
        Ok(messages)
    }

    /// Returns the marks at the current ends of a topic's queues, the number of messages, and the end of the log.
    fn queues_of(&self, topic: &str) -> (Vec<DeletedQueue>, u64, u64) {
        let inner = self.inner.lock();
        let log_end = self.log.appended();
        let (mut queues, mut messages) = (Vec::new(), 0);
        for (_, queue) in inner.derived.dispatcher.queues.iter().filter(|(_, queue)| &*queue.topic == topic) {
            let below = queue.next();
            messages += below - queue.first;
            // Also for a queue without messages: otherwise older records of it in the log would appear again.
            queues.push(DeletedQueue { topic: topic.to_owned(), queue_id: queue.queue_id, below, log_end });
        }
        (queues, messages, log_end)
    }

    /// Reads which topics the writer has deleted since the last call. Does nothing in a writer.
    pub(super) fn refresh_deleted(&self) -> Result<()> {
        if !self.options.read_only {
            return Ok(());
        }
        let mut now = Settings::load(self.storage.as_ref())?.map(|settings| settings.deleted).unwrap_or_default();
        let mut inner = self.inner.lock();
        now.retain(|deleted| !inner.derived.is_begun_again(deleted));
        let mut settings = self.configuration.settings.lock();
        if settings.deleted != now {
            settings.deleted = now;
            inner.derived.begin_deleted(&settings);
        }
        Ok(())
    }
}
