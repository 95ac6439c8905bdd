//! Delivers delayed messages to their topics when they are due.
//!
//! In:     a call now and then.
//! Out:    what was due, appended as it was sent, as one write; when the next message is due.
//! Always: in the order of each level. A message is in its topic once, also after a crash, as far as the log tells: what is
//!         delivered names the delayed record, and recovery takes the progress from there.
//! Not here: when to call (Python).

use super::batch::{Batch, IndexKeys, Purpose, Wait};
use super::{Inner, Shared, Store, StoredRecord};
use crate::consume_queue::Entry;
use crate::delay::{DelayProgress, delivery_draft};
use crate::error::{Error, Result};
use crate::java;
use crate::names::SCHEDULE_TOPIC;
use crate::record::properties::{KEYS, TAGS};
use crate::units::{QueueId, to_u64};

/// Bytes of records that are delivered in one write, beyond the first.
const BYTES_MAX: u64 = 1 << 20;

/// What one round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Messages that went to their topics.
    pub messages: usize,
    /// What could not be delivered and was passed over, with the reasons.
    pub passed_over: Vec<String>,
    /// When the next is due; `None`: no message is delayed.
    pub next_in_ms: Option<i64>,
}

/// A message whose time has come.
struct Due {
    queue_id: QueueId,
    queue_offset: u64,
    /// Its record, or why there is none.
    record: std::result::Result<StoredRecord, String>,
}

/// What one look at all queues found.
#[derive(Default)]
struct Round {
    due: Vec<Due>,
    /// Of the records in `due`.
    bytes: u64,
    /// When the first that is not in `due` is due.
    next_in_ms: Option<i64>,
}

impl Round {
    fn is_full(&self, next: &Entry, max_messages: usize) -> bool {
        self.due.len() >= max_messages || (self.bytes > 0 && self.bytes + u64::from(next.size) > BYTES_MAX)
    }
}

impl Store {
    /// Delivers what is due, at most so many messages.
    pub fn deliver_delayed(&self, max_messages: usize) -> Result<Delivered> {
        let shared = &self.shared;
        shared.check_writable("delivering delayed messages")?;
        let _one = shared.delivering.lock();
        let (due, next_in_ms) = shared.due(max_messages)?;
        if due.is_empty() {
            return Ok(Delivered { next_in_ms, ..Delivered::default() });
        }
        let mut inner = shared.lock_to_send(Wait::Yes)?;
        let delivered = shared.deliver_in(&mut inner, &due)?;
        inner.unlogged_changes += 1;
        let (messages, passed_over) = shared.unacknowledged(inner, Purpose::Message, delivered).acknowledged()?;
        Ok(Delivered { messages, passed_over, next_in_ms })
    }
}

impl Shared {
    /// What is due, in order, and when the next is.
    fn due(&self, max_messages: usize) -> Result<(Vec<Due>, Option<i64>)> {
        let mut round = Round::default();
        for (queue_id, mut from) in self.delayed_queues() {
            // A queue is read in parts: what its files hold, then what is in memory.
            while let Some(next) = self.due_from(queue_id, from, max_messages, &mut round)? {
                from = next;
            }
        }
        Ok((round.due, round.next_in_ms))
    }

    /// Adds what is due of one part of a queue; where the next part begins, `None` if nothing more is due.
    fn due_from(&self, queue_id: QueueId, from: u64, max_messages: usize, round: &mut Round) -> Result<Option<u64>> {
        let room = max_messages.saturating_sub(round.due.len()).saturating_add(1);
        let entries = self.entries(SCHEDULE_TOPIC, queue_id, from, u64::try_from(room).unwrap_or(u64::MAX))?;
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

    /// In how many milliseconds each of a queue's entries is due, from `from` on.
    fn due_in_ms(&self, queue_id: QueueId, from: u64, entries: &[Entry]) -> Vec<i64> {
        if entries.is_empty() {
            return Vec::new();
        }
        let now_ms = self.clock.monotonic_ms();
        let inner = self.inner.lock();
        let in_ms = |(at, entry): (u64, &Entry)| inner.due_times.in_ms(queue_id, at, entry.tags_code, now_ms);
        (from..).zip(entries).map(in_ms).collect()
    }

    /// The queues of the schedule topic, and where to go on in each.
    pub(super) fn delayed_queues(&self) -> DelayProgress {
        let inner = self.inner.lock();
        let queues = inner.derived.dispatcher.queues.iter().map(|(_, queue)| queue);
        let delayed = queues.filter(|queue| &*queue.topic == SCHEDULE_TOPIC).map(|queue| {
            let progress = inner.derived.delays.get(&queue.queue_id).copied().unwrap_or(0);
            (queue.queue_id, progress.max(queue.first))
        });
        delayed.collect()
    }

    /// A record, or why it can never be delivered; what may pass is an error.
    fn delayed_record(
        &self,
        physical_offset: crate::units::PhysicalOffset,
    ) -> Result<std::result::Result<StoredRecord, String>> {
        match self.log.read(physical_offset, self.visible_end(), |_, bytes| StoredRecord::new(bytes, physical_offset)) {
            Ok(record) => Ok(Ok(record)),
            Err(error @ (Error::StoreCorrupt { .. } | Error::MessageNotFound { .. } | Error::OffsetTooOld { .. })) => {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Appends what is due, and notes how far each level is.
    fn deliver_in(&self, inner: &mut Inner, due: &[Due]) -> Result<(usize, Vec<String>)> {
        let mut batch = Batch::begin(self, inner, Purpose::Message)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let (mut messages, mut passed_over): (usize, Vec<String>) = (0, Vec::new());
        for one in due {
            match self.push_due(&mut batch, one, &mut text)? {
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

    /// Adds one message to the batch, or says why it can never be delivered.
    fn push_due(
        &self,
        batch: &mut Batch<'_>,
        due: &Due,
        text: &mut Vec<u8>,
    ) -> Result<std::result::Result<(), String>> {
        let record = match &due.record {
            Ok(record) => record.view()?,
            Err(why) => return Ok(Err(why.clone())),
        };
        let draft = match delivery_draft(&record, self.options.store_host, text) {
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
            // A record that cannot be written, now or ever.
            Err(error @ Error::InvalidMessage { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

/// Padding is no message, so there is nothing to say of it.
fn pass_over(due: &Due, why: &str, passed_over: &mut Vec<String>) {
    if !why.is_empty() {
        passed_over.push(format!(
            "the delayed message {} of {SCHEDULE_TOPIC}/{} is not delivered: {why}",
            due.queue_offset, due.queue_id
        ));
    }
}
