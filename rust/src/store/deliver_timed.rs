//! Delivers timed messages to their topics when they are due, and recalls them before.
//!
//! In:     regular calls; the message to recall.
//! Out:    the messages that were due, appended as they were sent, in one write. When the next message is due.
//! Always: never before its time by the wall clock. A message is delivered or recalled once, also after a crash: the
//!         record that ends its wait names it, and recovery reads both from the log.
//! Not here: when to call (Python), which messages wait (`index::timed`).

use super::batch::{Batch, Purpose, Unacknowledged, Wait};
use super::deliver_delayed::{BYTES_MAX, Delivered};
use super::{Inner, PoisonOnPanic, Shared, Store, StoredRecord};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::TIMED_TOPIC;
use crate::base::units::{PhysicalOffset, to_u64};
use crate::index::timed::{HIDING, RECALL_BODY, TIMED_QUEUE, Timed, recall_properties};
use crate::record::Draft;
use crate::record::properties::REAL_TOPIC;

/// The time of a message that a sender or an operator wants to recall.
#[derive(Clone, Copy, Debug)]
pub struct Recall<'a> {
    /// Its real topic.
    pub topic: &'a str,
    /// Its unique id.
    pub unique_id: &'a str,
    /// When it is due, in milliseconds since the epoch.
    pub due_ms: i64,
}

impl Store {
    /// Returns the number of timed messages that wait.
    pub fn timed_messages(&self) -> Result<u64> {
        self.shared.refresh()?;
        Ok(self.shared.inner.lock().derived.timed.len())
    }

    /// Returns the messages that are due first, at most `limit`.
    pub fn first_timed(&self, limit: usize) -> Result<Vec<Timed>> {
        self.shared.refresh()?;
        Ok(self.shared.inner.lock().derived.timed.iter().take(limit).collect())
    }

    /// Ends the wait of a message, so that it is never delivered. Returns the offset of its record. Fails with
    /// `MessageNotFound` if no such message waits: it was delivered, recalled or never sent.
    pub fn recall(&self, recall: &Recall<'_>) -> Result<Unacknowledged<'_, PhysicalOffset>> {
        let shared = &*self.shared;
        shared.check_appends("recalling a message")?;
        let delivering = shared.delivering.lock();
        if delivering.are_handed_over {
            let what = "timed messages were handed over to a broker\nhint: recall them there, or open the store again";
            return Err(Error::MessageNotFound { what: what.into() });
        }
        let timed = shared.find_timed(recall)?;
        let mut inner = shared.lock_to_send(Wait::Yes)?;
        shared.recall_in(&mut inner, recall, timed)?;
        // If a power loss took a recall that was acknowledged, the message would be delivered after all.
        Ok(shared.unacknowledged(inner, Purpose::EndByHand, PhysicalOffset(timed.physical_offset)))
    }
}

impl Shared {
    /// Delivers at most `max_messages` timed messages that are due, for the holder of `delivering`.
    pub(super) fn deliver_timed(&self, max_messages: usize) -> Result<Delivered> {
        let (due, next_in_ms) = self.due_timed(max_messages)?;
        if due.is_empty() {
            return Ok(Delivered { next_in_ms, ..Delivered::default() });
        }
        let mut inner = self.lock_to_send(Wait::Yes)?;
        let delivered = self.deliver_timed_in(&mut inner, &due)?;
        inner.unlogged_changes += 1;
        let (messages, passed_over) = self.unacknowledged(inner, Purpose::Message, delivered).acknowledged()?;
        Ok(Delivered { messages, passed_over, next_in_ms })
    }

    /// Returns the messages that are due with their records, and the milliseconds until the next one.
    #[allow(clippy::type_complexity)] // A record, or the reason why it can never be read.
    fn due_timed(
        &self,
        max_messages: usize,
    ) -> Result<(Vec<(Timed, std::result::Result<StoredRecord, String>)>, Option<i64>)> {
        // What a reader may not see yet is not delivered. It is looked for again in the next regular round.
        let (now, end) = (self.clock.wall(), self.visible_end());
        let is_visible = |message: &Timed| message.physical_offset < end;
        let inner = self.inner.lock();
        let waiting = &inner.derived.timed;
        let early_ms = if mutated(Mutant::TimedEarly) { 1_000 } else { 0 };
        let due_until = crate::base::units::TimestampMs(now.0.saturating_add(early_ms));
        let mut wanted = waiting.due(due_until).filter(is_visible);
        let due: Vec<Timed> = wanted.by_ref().take(max_messages).collect();
        let is_more_due = wanted.next().is_some();
        drop(wanted);
        let next_in_ms = waiting.next_ms(now).map(|next_ms| next_ms.saturating_sub(now.0));
        drop(inner);
        let (mut read, mut bytes) = (Vec::with_capacity(due.len()), 0);
        for message in &due {
            let record = self.delayed_record(PhysicalOffset(message.physical_offset))?;
            bytes += record.as_ref().map_or(0, |record| to_u64(record.bytes().len()));
            if bytes > BYTES_MAX && !read.is_empty() {
                break;
            }
            read.push((*message, record));
        }
        let is_full = is_more_due || read.len() < due.len();
        Ok((read, if is_full { Some(0) } else { next_in_ms }))
    }

    /// Appends messages that are due, and ends their waits.
    fn deliver_timed_in(
        &self,
        inner: &mut Inner,
        due: &[(Timed, std::result::Result<StoredRecord, String>)],
    ) -> Result<(usize, Vec<String>)> {
        let mut batch = Batch::begin(self, inner, Purpose::Message)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let (mut messages, mut passed_over): (usize, Vec<String>) = (0, Vec::new());
        for (message, record) in due {
            match self.push_delivery(&mut batch, record, HIDING, &mut text)? {
                Ok(()) => messages += 1,
                Err(why) => passed_over.push(format!(
                    "the timed message at {} of {TIMED_TOPIC} is not delivered: {why}",
                    message.physical_offset
                )),
            }
        }
        batch.inner.scratch = text;
        batch.write(Wait::Yes)?;
        for (message, _) in due {
            batch.inner.derived.timed.remove(*message);
        }
        Ok((messages, passed_over))
    }

    /// Finds the waiting message that a recall names.
    fn find_timed(&self, recall: &Recall<'_>) -> Result<Timed> {
        // By the index, because many messages may wait for the same time.
        for physical_offset in self.candidates(TIMED_TOPIC, recall.unique_id)? {
            let message = Timed { due_ms: recall.due_ms, physical_offset: physical_offset.0 };
            if !self.inner.lock().derived.timed.contains(message) {
                continue;
            }
            let is_it = self.log.read(physical_offset, self.log.appended(), |view, _| {
                view.properties.get_str(REAL_TOPIC) == Some(recall.topic) && view.unique_id() == Some(recall.unique_id)
            });
            // A damaged record is not this message. Its delivery reports it.
            if is_it.unwrap_or(false) {
                return Ok(message);
            }
        }
        let what = format!(
            "message {} of topic {} does not wait for {} ms: it was delivered, recalled or never sent",
            recall.unique_id, recall.topic, recall.due_ms
        );
        Err(Error::MessageNotFound { what })
    }

    fn recall_in(&self, inner: &mut Inner, recall: &Recall<'_>, timed: Timed) -> Result<()> {
        let _guard = PoisonOnPanic(self);
        let mut batch = Batch::begin(self, inner, Purpose::EndByHand)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        self.push_end_of_wait(&mut batch, recall.topic, recall.unique_id, timed, &mut text)?;
        batch.inner.scratch = text;
        batch.write(Wait::Yes)?;
        batch.inner.derived.timed.remove(timed);
        Ok(())
    }

    /// Adds a record that ends a message's wait, without a message to deliver.
    pub(super) fn push_end_of_wait(
        &self,
        batch: &mut Batch<'_>,
        topic: &str,
        unique_id: &str,
        timed: Timed,
        text: &mut Vec<u8>,
    ) -> Result<()> {
        recall_properties(topic, unique_id, timed.due_ms, text);
        let draft = Draft {
            topic: TIMED_TOPIC,
            queue_id: TIMED_QUEUE,
            flag: 0,
            sys_flag: 0,
            born_timestamp: batch.now(),
            born_host: self.options.store_host,
            store_host: self.options.store_host,
            reconsume_times: 0,
            prepared_transaction_offset: PhysicalOffset(timed.physical_offset),
            body: RECALL_BODY,
            body_crc: None,
            properties: text,
        };
        batch.push(&draft, 0, None).map(|_| ())
    }
}
