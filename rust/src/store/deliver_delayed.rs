//! Delivers delayed messages to their topics when they are due.
//!
//! In:     regular calls.
//! Out:    the messages that were due, appended as they were sent, in one write. When the next message is due.
//! Always: each level keeps its order. A message is delivered once, also after a crash, as far as the log is intact: a
//!         delivered message names its delayed record, and recovery takes the progress from there.
//! Not here: when to call (Python), messages with a time of their own (`deliver_timed`).

use super::batch::{Batch, IndexKeys, Purpose, Wait};
use super::{Inner, Shared, Store, StoredRecord};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::SCHEDULE_TOPIC;
use crate::base::units::{QueueId, to_u64};
use crate::index::consume_queue::Entry;
use crate::index::delay::{DelayProgress, WAITING, delivery_draft};
use crate::record::properties::{KEYS, TAGS};

/// The maximum bytes of records to deliver in one write, not counting the first.
pub(super) const BYTES_MAX: u64 = 1 << 20;

/// The result of one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// The number of delivered messages.
    pub messages: usize,
    /// Messages that could not be delivered and were skipped, with the reasons.
    pub passed_over: Vec<String>,
    /// Milliseconds until the next message is due. `None`: no message is delayed.
    pub next_in_ms: Option<i64>,
}

/// What the thread that delivers messages knows.
#[derive(Debug, Default)]
pub(super) struct Delivering {
    /// The timed messages were handed over to a broker.
    pub(super) are_handed_over: bool,
}

/// A message that is due.
struct Due {
    queue_id: QueueId,
    queue_offset: u64,
    /// Its record, or the reason why it has none.
    record: std::result::Result<StoredRecord, String>,
}

/// The result of one pass over all queues.
#[derive(Default)]
struct Round {
    due: Vec<Due>,
    /// The sum of the sizes of the records in `due`.
    bytes: u64,
    /// Milliseconds until the first message outside `due` is due.
    next_in_ms: Option<i64>,
}

impl Round {
    fn is_full(&self, next: &Entry, max_messages: usize) -> bool {
        self.due.len() >= max_messages || (self.bytes > 0 && self.bytes + u64::from(next.size) > BYTES_MAX)
    }
}

impl Store {
    /// Delivers at most `max_messages` messages with a delay level that are due, and as many with a time of their own.
    pub fn deliver_delayed(&self, max_messages: usize) -> Result<Delivered> {
        let shared = &self.shared;
        shared.check_appends("delivering delayed messages")?;
        let delivering = shared.delivering.lock();
        let delayed = shared.deliver_levels(max_messages)?;
        // A broker delivers what was handed over to it.
        let timed = if delivering.are_handed_over && !mutated(Mutant::HandedOverDelivered) {
            Delivered::default()
        } else {
            shared.deliver_timed(max_messages)?
        };
        Ok(delayed.and(timed))
    }
}

impl Delivered {
    /// Returns the result of two rounds.
    fn and(mut self, other: Self) -> Self {
        self.messages += other.messages;
        self.passed_over.extend(other.passed_over);
        self.next_in_ms = [self.next_in_ms, other.next_in_ms].into_iter().flatten().min();
        self
    }
}

impl Shared {
    fn deliver_levels(&self, max_messages: usize) -> Result<Delivered> {
        let (due, next_in_ms) = self.due(max_messages)?;
        if due.is_empty() {
            return Ok(Delivered { next_in_ms, ..Delivered::default() });
        }
        let mut inner = self.lock_to_send(Wait::Yes)?;
        let delivered = self.deliver_in(&mut inner, &due)?;
        inner.unlogged_changes += 1;
        let (messages, passed_over) = self.unacknowledged(inner, Purpose::Message, delivered).acknowledged()?;
        Ok(Delivered { messages, passed_over, next_in_ms })
    }

    /// Returns the messages that are due, in order, and the milliseconds until the next one.
    fn due(&self, max_messages: usize) -> Result<(Vec<Due>, Option<i64>)> {
        let mut round = Round::default();
        for (queue_id, mut from) in self.delayed_queues() {
            // A queue is read in parts: first the entries in files, then those in memory.
            while let Some(next) = self.due_from(queue_id, from, max_messages, &mut round)? {
                from = next;
            }
        }
        Ok((round.due, round.next_in_ms))
    }

    /// Adds the due messages of one part of a queue. Returns the start of the next part, or `None` if no more are due.
    fn due_from(&self, queue_id: QueueId, from: u64, max_messages: usize, round: &mut Round) -> Result<Option<u64>> {
        let wanted = max_messages.saturating_sub(round.due.len()).saturating_add(1);
        let entries = self.entries(SCHEDULE_TOPIC, queue_id, from, u64::try_from(wanted).unwrap_or(u64::MAX))?;
        let next = (!entries.is_empty()).then(|| from + to_u64(entries.len()));
        let due_in = self.due_in_ms(queue_id, from, &entries);
        for ((queue_offset, entry), in_ms) in (from..).zip(entries).zip(due_in) {
            if !entry.is_padding() && (in_ms > 0 || round.is_full(&entry, max_messages)) {
                round.next_in_ms = Some(round.next_in_ms.map_or(in_ms, |next| next.min(in_ms)));
                return Ok(None);
            }
            let record = if entry.is_padding() {
                Err(String::new())
            } else {
                round.bytes += u64::from(entry.size);
                self.delayed_record(entry.physical_offset)?
            };
            round.due.push(Due { queue_id, queue_offset, record });
        }
        Ok(next)
    }

    /// Returns for each queue entry from `from` on in how many milliseconds it is due.
    fn due_in_ms(&self, queue_id: QueueId, from: u64, entries: &[Entry]) -> Vec<i64> {
        if entries.is_empty() {
            return Vec::new();
        }
        let now_ms = self.clock.monotonic_ms();
        let inner = self.inner.lock();
        let in_ms = |(at, entry): (u64, &Entry)| {
            if mutated(Mutant::WallClockDelays) {
                return entry.tags_code.saturating_sub(self.clock.wall().0).max(0);
            }
            inner.due_times.in_ms(queue_id, at, entry.tags_code, now_ms)
        };
        (from..).zip(entries).map(in_ms).collect()
    }

    /// Returns the queues of the schedule topic, and the next queue offset in each.
    pub(super) fn delayed_queues(&self) -> DelayProgress {
        let inner = self.inner.lock();
        let queues = inner.derived.dispatcher.queues.iter().map(|(_, queue)| queue);
        let delayed = queues.filter(|queue| &*queue.topic == SCHEDULE_TOPIC).map(|queue| {
            let progress = inner.derived.delays.get(&queue.queue_id).copied().unwrap_or(0);
            (queue.queue_id, progress.max(queue.first))
        });
        delayed.collect()
    }

    /// Returns a record, or the reason why it can never be delivered. A temporary failure is an error.
    pub(super) fn delayed_record(
        &self,
        physical_offset: crate::base::units::PhysicalOffset,
    ) -> Result<std::result::Result<StoredRecord, String>> {
        match self.log.read(physical_offset, self.visible_end(), |_, bytes| StoredRecord::new(bytes, physical_offset)) {
            Ok(record) => Ok(Ok(record)),
            Err(error @ (Error::StoreCorrupt { .. } | Error::MessageNotFound { .. } | Error::OffsetTooOld { .. })) => {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Appends messages that are due, and notes the progress of each level.
    fn deliver_in(&self, inner: &mut Inner, due: &[Due]) -> Result<(usize, Vec<String>)> {
        let mut batch = Batch::begin(self, inner, Purpose::Message)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let (mut messages, mut passed_over): (usize, Vec<String>) = (0, Vec::new());
        for one in due {
            match self.push_delivery(&mut batch, &one.record, WAITING, &mut text)? {
                Ok(()) => messages += 1,
                Err(why) => pass_over(one, &why, &mut passed_over),
            }
        }
        batch.inner.scratch = text;
        batch.write(Wait::Yes)?;
        for one in due {
            batch.inner.derived.delays.insert(one.queue_id, one.queue_offset + 1);
            batch.inner.due_times.forget_below(one.queue_id, one.queue_offset + 1);
        }
        Ok((messages, passed_over))
    }

    /// Adds the delivery of one waiting record to the batch, or returns the reason why it can never be delivered.
    /// `dropped`: its properties that are not delivered.
    pub(super) fn push_delivery(
        &self,
        batch: &mut Batch<'_>,
        record: &std::result::Result<StoredRecord, String>,
        dropped: &[&str],
        text: &mut Vec<u8>,
    ) -> Result<std::result::Result<(), String>> {
        let record = match record {
            Ok(record) => record.view()?,
            Err(why) => return Ok(Err(why.clone())),
        };
        let draft = match delivery_draft(&record, dropped, self.options.store_host, text) {
            Ok(draft) => draft,
            Err(why) => return Ok(Err(why)),
        };
        let keys = IndexKeys {
            topic_hash: java::topic_hash(draft.topic),
            unique_id: record.unique_id(),
            keys: record.properties.get_str(KEYS),
        };
        match batch.push(&draft, java::tags_code(record.properties.get_str(TAGS)), Some(&keys)) {
            Ok(_) => Ok(Ok(())),
            // This record can never be written.
            Err(error @ Error::InvalidMessage { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

/// Reports a skipped message. Padding is not a message and is not reported.
fn pass_over(due: &Due, why: &str, passed_over: &mut Vec<String>) {
    if !why.is_empty() {
        passed_over.push(format!(
            "the delayed message {} of {SCHEDULE_TOPIC}/{} is not delivered: {why}",
            due.queue_offset, due.queue_id
        ));
    }
}
