//! Appends messages and half messages to the log, and their entries to queues and index.
//!
//! In:     envelopes with bodies.
//! Out:    the offsets of each message.
//! Always: a batch is stored completely or not at all. When a call returns, its messages are visible, and durable in
//!         `SYNC_FLUSH`.
//! Not here: ends of transactions.

use super::batch::{Batch, IndexKeys, Placed, Purpose, Unacknowledged, Wait};
use super::{Inner, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{self, HALF_TOPIC, SCHEDULE_TOPIC, TIMED_TOPIC};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use crate::index::delay;
use crate::index::timed::{self, TIMED_QUEUE, Timed};
use crate::record::message::{Envelope, check_body};
use crate::record::message_id::MessageId;
use crate::record::properties::{self, Properties, UNIQUE_KEY};
use crate::record::timer::Timer;
use crate::record::{Draft, crc32};
use crate::transaction::convert::{HalfNames, half_properties};
use crate::transaction::table::NewHalf;
use crate::transaction::{HALF_QUEUE, HalfCopy, Identity, immunity_ms};

/// A message to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    /// Everything except the body.
    pub envelope: &'a Envelope,
    /// The body.
    pub body: &'a [u8],
    /// The queue of its topic.
    pub queue_id: QueueId,
}

/// A half message to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewHalfMessage<'a> {
    /// The message, with its real topic and queue.
    pub message: NewMessage<'a>,
    /// Its producer group.
    pub group: &'a str,
    /// The message's unique id, if the producer has sent it before.
    pub unique_id: Option<&'a str>,
    /// The producer's id. If it is not 0, the local transaction runs here until `local_transaction_ended`.
    pub owner: u32,
}

/// The result of storing a message.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The message's unique id.
    pub unique_id: MessageId,
    /// The physical offset of the record.
    pub physical_offset: PhysicalOffset,
    /// The queue offset: of a half message in the half queue, of a delayed or timed message in the queue where it waits.
    pub queue_offset: QueueOffset,
    /// The queue id. Half, delayed and timed messages: the id of the real queue.
    pub queue_id: QueueId,
    /// The size of the record in bytes. 0 if the message was stored before.
    pub size: u32,
    /// When it is due, in milliseconds since the epoch, if it waits for a time of its own.
    pub due_ms: Option<i64>,
}

impl Sent {
    pub(super) const fn new(unique_id: MessageId, placed: Placed, queue_id: QueueId) -> Self {
        let Placed { physical_offset, queue_offset, size } = placed;
        Self { unique_id, physical_offset, queue_offset, queue_id, size, due_ms: None }
    }
}

/// A half message in the log, with what the table needs of it.
pub(super) struct StoredHalf<'a> {
    /// Where it is.
    pub(super) placed: Placed,
    /// The identity that all its copies share.
    pub(super) identity: Option<Identity>,
    /// Its producer group.
    pub(super) group: &'a str,
    /// How long no check is sent, in milliseconds.
    pub(super) immunity_ms: Option<i64>,
    /// The id of the producer that runs the local transaction. 0: none.
    pub(super) owner: u32,
}

impl StoredHalf<'_> {
    /// Returns its position.
    pub(super) const fn copy(&self) -> HalfCopy {
        let Placed { queue_offset, physical_offset, .. } = self.placed;
        HalfCopy { queue_offset: queue_offset.0, physical_offset: physical_offset.0 }
    }
}

impl Store {
    /// Stores messages in one write.
    pub fn append(&self, messages: &[NewMessage<'_>], wait: Wait) -> Result<Unacknowledged<'_, Vec<Sent>>> {
        self.shared.check_append(messages)?;
        let mut inner = self.shared.lock_to_send(wait)?;
        let mut sent = Vec::with_capacity(messages.len());
        self.shared.append_in(&mut inner, messages, wait, |one| sent.push(one))?;
        Ok(self.shared.unacknowledged(inner, Purpose::Message, sent))
    }

    /// Stores one message. Avoids a list, because most calls store one message.
    pub fn append_one(&self, message: &NewMessage<'_>, wait: Wait) -> Result<Unacknowledged<'_, Sent>> {
        let messages = std::slice::from_ref(message);
        self.shared.check_append(messages)?;
        let mut inner = self.shared.lock_to_send(wait)?;
        let mut sent = None;
        self.shared.append_in(&mut inner, messages, wait, |one| sent = Some(one))?;
        let Some(sent) = sent else { return Err(Error::StoreClosed) };
        Ok(self.shared.unacknowledged(inner, Purpose::Message, sent))
    }

    /// Stores a half message, or finds the pending half message that it resends.
    pub fn prepare(&self, half: &NewHalfMessage<'_>, wait: Wait) -> Result<Unacknowledged<'_, Sent>> {
        self.shared.check_prepare(half)?;
        let mut inner = self.shared.lock_to_send(wait)?;
        let (sent, end) = self.shared.prepare_in(&mut inner, half, wait)?;
        let is_too_early = half.owner != 0 && mutated(Mutant::DatabaseBeforeHalf);
        let purpose = if is_too_early { Purpose::Message } else { Purpose::Half };
        // A half message that was found may also wait for the sync of the write that stored it.
        Ok(self.shared.unacknowledged_up_to(inner, purpose, end, sent))
    }
}

impl Shared {
    pub(super) fn check_append(&self, messages: &[NewMessage<'_>]) -> Result<()> {
        self.check_appends("sending")?;
        for message in messages {
            check_body(message.body, self.options.max_message_size)?;
            check_queue(message.queue_id)?;
        }
        Ok(())
    }

    pub(super) fn check_prepare(&self, half: &NewHalfMessage<'_>) -> Result<()> {
        self.check_appends("preparing a transaction")?;
        check_body(half.message.body, self.options.max_message_size)?;
        check_queue(half.message.queue_id)?;
        if half.message.envelope.delay_level > 0 {
            let what = "a transactional message cannot be delayed\nhint: leave out its delay level";
            return Err(Error::InvalidMessage { what: what.into() });
        }
        if let Some(timer) = half.message.envelope.timer {
            self.check_time(timer)?;
        }
        names::validate_group(half.group)
    }

    pub(super) fn append_in(
        &self,
        inner: &mut Inner,
        messages: &[NewMessage<'_>],
        wait: Wait,
        mut sent: impl FnMut(Sent),
    ) -> Result<()> {
        self.check_timed(inner, messages)?;
        let mut batch = Batch::begin(self, inner, Purpose::Message)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        // Most calls have no timed message, and need no memory for a list.
        let mut timed = Vec::new();
        for message in messages {
            self.push_message(&mut batch, message, &mut text, &mut timed, &mut sent)?;
        }
        batch.inner.scratch = text;
        batch.write(wait)?;
        for message in timed {
            batch.inner.derived.timed.insert(message);
        }
        Ok(())
    }

    /// Refuses a message whose time is too far ahead, and further timed messages if too many wait.
    fn check_timed(&self, inner: &Inner, messages: &[NewMessage<'_>]) -> Result<()> {
        let mut new = 0;
        for timer in messages.iter().filter_map(|message| message.envelope.timer) {
            self.check_time(timer)?;
            new += 1;
        }
        let waiting = inner.derived.timed.len();
        if new > 0 && waiting.saturating_add(new) > self.options.timed_messages_max {
            return Err(Error::TooManyPending {
                what: "timed messages wait",
                option: "timed_messages_max",
                pending: waiting,
            });
        }
        Ok(())
    }

    /// Refuses a time that is too far ahead.
    fn check_time(&self, timer: Timer) -> Result<()> {
        let now = self.clock.wall();
        let (ahead_ms, most_s) = (timer.due_ms(now).saturating_sub(now.0), self.options.timer_max_delay_s);
        if ahead_ms > most_s.saturating_mul(1_000) {
            let ahead_s = ahead_ms / 1_000;
            let what = format!(
                "the message is to be delivered in {ahead_s} s; timer_max_delay_sec allows {most_s} s\nhint: choose an earlier time, or raise the option"
            );
            return Err(Error::InvalidMessage { what });
        }
        Ok(())
    }

    #[inline]
    fn push_message(
        &self,
        batch: &mut Batch<'_>,
        message: &NewMessage<'_>,
        text: &mut Vec<u8>,
        timed: &mut Vec<Timed>,
        sent: &mut impl FnMut(Sent),
    ) -> Result<()> {
        let NewMessage { envelope, queue_id, .. } = *message;
        let given = envelope.unique_id();
        let generated = self.ids.next(batch.now());
        let unique_id = given.unwrap_or(generated.as_str());
        text.clear();
        text.extend_from_slice(&envelope.properties);
        properties::push(text, UNIQUE_KEY, unique_id);
        // A time that has passed already means at once.
        let due_ms = envelope.timer.and_then(|timer| timer.due_after(batch.now()));
        // A delayed message is stored in the schedule topic, and its queue entry contains the time at which it is due.
        let (topic, queue, topic_hash) = match (envelope.delay_level, due_ms) {
            (0, Some(due_ms)) => {
                timed::hide(&envelope.topic, queue_id, due_ms, text);
                (TIMED_TOPIC, TIMED_QUEUE, java::topic_hash(TIMED_TOPIC))
            }
            (0, None) => (&*envelope.topic, queue_id, envelope.topic_hash),
            (level, _) => {
                delay::hide(&envelope.topic, queue_id, text);
                (SCHEDULE_TOPIC, delay::queue_of(level), java::topic_hash(SCHEDULE_TOPIC))
            }
        };
        let draft = self.draft(message, topic, queue, batch.now(), None, text);
        let keys = IndexKeys { topic_hash, unique_id: Some(unique_id), keys: envelope.keys() };
        let placed = match envelope.delay_level {
            0 => batch.push(&draft, envelope.tags_code, Some(&keys))?,
            level => batch.push_delayed(&draft, level, Some(&keys))?,
        };
        timed.extend(due_ms.map(|due_ms| Timed { due_ms, physical_offset: placed.physical_offset.0 }));
        let unique_id = given.map_or(MessageId::Unique(generated), |given| MessageId::Text(given.into()));
        sent(Sent { due_ms, ..Sent::new(unique_id, placed, queue_id) });
        Ok(())
    }

    /// Stores or finds the half message. Returns its position and the physical offset after its record.
    fn prepare_in(&self, inner: &mut Inner, half: &NewHalfMessage<'_>, wait: Wait) -> Result<(Sent, PhysicalOffset)> {
        let mut batch = Batch::begin(self, inner, Purpose::Half)?;
        let NewMessage { envelope, body, queue_id } = half.message;
        let generated = self.ids.next(batch.now());
        let unique_id = half.unique_id.unwrap_or_else(|| generated.as_str());
        let body_crc = crc32(body);
        let identity = Identity::new(half.group, unique_id, &envelope.topic, body_crc);
        // Most half messages have no id yet, and need no call.
        if half.unique_id.is_some()
            && let Some((sent, end)) = self.resent(batch.inner, std::slice::from_ref(half), identity)?
        {
            return sent.into_iter().next().map(|sent| (sent, end)).ok_or(Error::StoreClosed);
        }
        self.check_pending(batch.inner)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        half_properties(envelope, queue_id, &HalfNames::alone(unique_id, half.group), &mut text)?;
        let draft = self.draft(&half.message, HALF_TOPIC, HALF_QUEUE, batch.now(), Some(body_crc), &text);
        let placed = self.push_half(&mut batch, &draft, envelope.tags_code, (Some(unique_id), envelope.keys()))?;
        batch.write(wait)?;
        let stored = StoredHalf {
            placed,
            identity: Some(identity),
            group: half.group,
            immunity_ms: immunity_ms(Properties(&envelope.properties)),
            owner: half.owner,
        };
        self.begin_pending(batch.inner, &stored, &[]);
        batch.inner.scratch = text;
        let unique_id = half.unique_id.map_or(MessageId::Unique(generated), |given| MessageId::Text(given.into()));
        Ok((Sent::new(unique_id, placed, queue_id), placed.physical_offset.plus(placed.size.into())))
    }

    /// Refuses another pending transaction if there are too many.
    pub(super) fn check_pending(&self, inner: &Inner) -> Result<()> {
        let pending = inner.derived.table.len();
        if pending >= self.options.pending_transactions_max {
            return Err(Error::TooManyPending {
                what: "transactions are pending",
                option: "pending_transactions_max",
                pending,
            });
        }
        Ok(())
    }

    /// Adds a half message's record to the batch. `keys` are its unique id and its keys.
    pub(super) fn push_half(
        &self,
        batch: &mut Batch<'_>,
        draft: &Draft<'_>,
        tags_code: i64,
        keys: (Option<&str>, Option<&str>),
    ) -> Result<Placed> {
        let keys = IndexKeys { topic_hash: self.half_topic_hash, unique_id: keys.0, keys: keys.1 };
        batch.push_to(batch.inner.derived.half_slot, draft, tags_code, Some(&keys))
    }

    /// Begins the pending transaction of a half message that was written, and of the `others` of its set.
    pub(super) fn begin_pending(&self, inner: &mut Inner, half: &StoredHalf<'_>, others: &[(HalfCopy, u32)]) {
        let now_ms = if mutated(Mutant::WallClockAges) { self.clock.wall().0 } else { self.clock.monotonic_ms() };
        let new = NewHalf {
            copy: half.copy(),
            identity: half.identity,
            group: half.group,
            size: half.placed.size,
            stored_ms: now_ms,
            immunity_ms: half.immunity_ms,
            checks: 0,
            owner: half.owner,
            sent: true,
        };
        let table = &mut inner.derived.table;
        let key = if others.is_empty() { table.insert(&new) } else { table.insert_set(&new, others) };
        table.set_due(key, now_ms + half.immunity_ms.unwrap_or(self.options.transaction_timeout_ms));
    }

    pub(super) fn draft<'a>(
        &self,
        message: &NewMessage<'a>,
        topic: &'a str,
        queue_id: QueueId,
        now: TimestampMs,
        body_crc: Option<u32>,
        properties: &'a [u8],
    ) -> Draft<'a> {
        let origin = message.envelope.origin.as_ref();
        Draft {
            topic,
            queue_id,
            flag: message.envelope.flag,
            sys_flag: origin.map_or(0, |origin| origin.sys_flag),
            born_timestamp: origin.map_or(now, |origin| origin.born_timestamp),
            born_host: origin.map_or(self.options.store_host, |origin| origin.born_host),
            store_host: self.options.store_host,
            reconsume_times: origin.map_or(0, |origin| origin.reconsume_times),
            prepared_transaction_offset: PhysicalOffset(0),
            body: message.body,
            body_crc,
            properties,
        }
    }
}

pub(super) fn check_queue(queue_id: QueueId) -> Result<()> {
    if queue_id.0 < 0 {
        return Err(Error::InvalidName {
            what: format!("queue {queue_id} does not exist: queues are numbered from 0"),
        });
    }
    Ok(())
}
