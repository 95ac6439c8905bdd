//! Deliver: delayed messages whose time has come go to their topics.
//!
//! In: a call now and then. Out: what was due, appended as it was sent, as one write; when the next is due. Always: in
//! the order of each level; a message stands in its topic once, also behind a crash, as far as the log tells: what is
//! delivered names the record that waited, and recovery takes the progress from there. Not here: when to call (Python).

use super::{Inner, PoisonOnPanic, Shared, Store, StoredRecord};
use crate::commit_log::Urgency;
use crate::consume_queue::Slot;
use crate::delay::{DelayProgress, delivery_draft, due_ms};
use crate::dispatch::DispatchRequest;
use crate::error::{Error, Result};
use crate::java;
use crate::names::SCHEDULE_TOPIC;
use crate::record::properties::{KEYS, TAGS};
use crate::record::{RecordView, TransactionType};
use crate::units::{QueueId, QueueOffset};

/// Bytes of records that are delivered in one write, beyond the first.
const BYTES_MAX: u64 = 1 << 20;

/// What one round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Messages that went to their topics.
    pub messages: usize,
    /// What could not be delivered and was passed over, with the reasons.
    pub passed_over: Vec<String>,
    /// When the next is due; `None`: nothing waits.
    pub next_in_ms: Option<i64>,
}

/// A message whose time has come.
struct Due {
    queue_id: QueueId,
    queue_offset: u64,
    /// Its record, or why there is none.
    record: std::result::Result<StoredRecord, String>,
}

/// A delivery of the batch that is being written.
struct Delivery {
    slot: Slot,
    queue_offset: QueueOffset,
    appended: crate::commit_log::Appended,
    due: usize,
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
        shared.relieve()?;
        let mut inner = shared.inner.lock();
        let (messages, passed_over) = shared.deliver_in(&mut inner, &due)?;
        let end = shared.log.appended();
        drop(inner);
        self.acknowledge(end)?;
        Ok(Delivered { messages, passed_over, next_in_ms })
    }
}

impl Shared {
    /// What is due, in order, and when the next is.
    fn due(&self, max_messages: usize) -> Result<(Vec<Due>, Option<i64>)> {
        let now = self.clock.wall();
        let (mut due, mut bytes, mut next): (Vec<Due>, u64, Option<i64>) = (Vec::new(), 0, None);
        for (queue_id, from) in self.waiting_queues() {
            let room = max_messages.saturating_sub(due.len()).saturating_add(1);
            let entries = self.entries(SCHEDULE_TOPIC, queue_id, from, u64::try_from(room).unwrap_or(u64::MAX))?;
            for (queue_offset, entry) in (from..).zip(entries) {
                let in_ms = due_ms(queue_id, entry.tags_code, now).saturating_sub(now.0).max(0);
                let full = due.len() >= max_messages || (bytes > 0 && bytes + u64::from(entry.size) > BYTES_MAX);
                if !entry.is_padding() && (in_ms > 0 || full) {
                    next = Some(next.map_or(in_ms, |next| next.min(in_ms)));
                    break;
                }
                let record = if entry.is_padding() {
                    Err(String::new())
                } else {
                    bytes += u64::from(entry.size);
                    self.waiting_record(entry.physical_offset)?
                };
                due.push(Due { queue_id, queue_offset, record });
            }
        }
        Ok((due, next))
    }

    /// The queues of the schedule topic, and where to go on in each.
    pub(super) fn waiting_queues(&self) -> DelayProgress {
        let inner = self.inner.lock();
        let queues = inner.state.dispatcher.queues.iter().map(|(_, queue)| queue);
        let waiting = queues.filter(|queue| &*queue.topic == SCHEDULE_TOPIC).map(|queue| {
            let progress = inner.state.delays.get(&queue.queue_id).copied().unwrap_or(0);
            (queue.queue_id, progress.max(queue.first))
        });
        waiting.collect()
    }

    /// A record, or why it can never be delivered; what may pass is an error.
    fn waiting_record(&self, place: crate::units::PhysicalOffset) -> Result<std::result::Result<StoredRecord, String>> {
        match self.log.read(place, self.visible_end(), |_, bytes| StoredRecord::new(bytes, place)) {
            Ok(record) => Ok(Ok(record)),
            Err(error @ (Error::StoreCorrupt { .. } | Error::MessageNotFound { .. } | Error::OffsetTooOld { .. })) => {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Appends what is due, and notes how far each level is.
    fn deliver_in(&self, inner: &mut Inner, due: &[Due]) -> Result<(usize, Vec<String>)> {
        let _guard = PoisonOnPanic(self);
        let Inner { appender, state, scratch, .. } = inner;
        let appender = appender.as_mut().ok_or(Error::ReadOnly { what: "delivering delayed messages" })?;
        appender.begin(self.clock.wall());
        let (mut batch, mut passed_over): (Vec<Delivery>, Vec<String>) = (Vec::new(), Vec::new());
        for (index, one) in due.iter().enumerate() {
            let record = match &one.record {
                Ok(record) => record.view()?,
                Err(why) => {
                    pass_over(one, why, &mut passed_over);
                    continue;
                }
            };
            let draft = match delivery_draft(&record, self.options.store_host, scratch) {
                Ok(draft) => draft,
                Err(why) => {
                    pass_over(one, &why, &mut passed_over);
                    continue;
                }
            };
            let slot = state.dispatcher.queues.find_or_insert(draft.topic, draft.queue_id);
            let before = batch.iter().rev().find(|other| other.slot == slot);
            let queue_offset = before
                .map_or_else(|| QueueOffset(state.dispatcher.queues.next(slot)), |other| other.queue_offset.plus(1));
            match appender.push(&draft, queue_offset) {
                Ok(appended) => batch.push(Delivery { slot, queue_offset, appended, due: index }),
                // A record that cannot be written, now or ever.
                Err(error @ Error::InvalidMessage { .. }) => pass_over(one, &error.to_string(), &mut passed_over),
                Err(error) => return Err(error),
            }
        }
        if !batch.is_empty() {
            self.write(appender, Urgency::Send { pending_bytes: state.table.pending_bytes() }, true)?;
        }
        for delivery in &batch {
            let record = due.get(delivery.due).and_then(|due| due.record.as_ref().ok()).ok_or(Error::StoreClosed)?;
            let request = request(&record.view()?, delivery);
            state.dispatcher.enqueue(delivery.slot, &request);
            state.dispatcher.index(&request);
            state.note_last(delivery.appended);
        }
        for one in due {
            state.delays.insert(one.queue_id, one.queue_offset + 1);
        }
        self.ask_for_upkeep(state.dispatcher.queues.buffered(), state.dispatcher.index.len());
        Ok((batch.len(), passed_over))
    }
}

/// Padding stands for no message, so there is nothing to say of it.
fn pass_over(due: &Due, why: &str, passed_over: &mut Vec<String>) {
    if !why.is_empty() {
        passed_over.push(format!(
            "the delayed message {} of {SCHEDULE_TOPIC}/{} is not delivered: {why}",
            due.queue_offset, due.queue_id
        ));
    }
}

fn request<'a>(record: &RecordView<'a>, delivery: &Delivery) -> DispatchRequest<'a> {
    let topic = record.properties.get_str(crate::record::properties::REAL_TOPIC).unwrap_or_default();
    DispatchRequest {
        physical_offset: delivery.appended.physical_offset,
        size: delivery.appended.size,
        store_timestamp: delivery.appended.store_timestamp,
        tags_code: java::tags_code(record.properties.get_str(TAGS)),
        topic_hash: java::topic_hash(topic),
        transaction_type: TransactionType::None,
        unique_id: record.unique_id(),
        keys: record.properties.get_str(KEYS),
    }
}
