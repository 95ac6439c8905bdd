//! Append: messages and half messages into the log, their entries into queues and index.
//!
//! In: envelopes with bodies. Out: where each went. Always: all of a batch or nothing; when it returns the messages are
//! visible, in `SYNC_FLUSH` durable. Not here: ends of transactions.

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::commit_log::{Appended, Appender, Urgency};
use crate::consume_queue::Slot;
use crate::delay;
use crate::dispatch::DispatchRequest;
use crate::error::{Error, Result};
use crate::half::convert::half_properties;
use crate::half::table::{Key, NewHalf};
use crate::half::{HALF_QUEUE, HalfCopy, Identity, immunity_ms};
use crate::java;
use crate::message::{Envelope, check_body};
use crate::mutant::{Mutant, mutated};
use crate::names::{self, HALF_TOPIC, SCHEDULE_TOPIC};
use crate::options::FlushDiskType;
use crate::record::message_id::{MessageId, UniqueId};
use crate::record::properties::{self, Properties, UNIQUE_KEY};
use crate::record::{Draft, TransactionType, crc32};
use crate::recovery::Recovered;
use crate::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};

/// A message to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    /// All but the body.
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
    /// Its id, if the producer has sent it before.
    pub unique_id: Option<&'a str>,
    /// The producer's number; not 0: its local transaction runs here until `local_transaction_ended`.
    pub owner: u32,
}

/// Where a message went.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its unique id.
    pub unique_id: MessageId,
    /// Its record.
    pub physical_offset: PhysicalOffset,
    /// Its place in its queue (of a half: in the half queue; of a delayed one: in its level's).
    pub queue_offset: QueueOffset,
    /// Its queue (of a half or delayed one: its real queue).
    pub queue_id: QueueId,
    /// Bytes of its record; 0 where it was there already.
    pub size: u32,
}

/// A message of the batch that is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    slot: Slot,
    appended: Appended,
    queue_offset: QueueOffset,
    unique_id: UniqueId,
}

/// A half message that is to pend.
pub(super) struct PendingHalf<'a> {
    /// Its record.
    pub(super) draft: &'a Draft<'a>,
    /// What its copies share.
    pub(super) identity: Option<Identity>,
    /// Its producer group.
    pub(super) group: &'a str,
    /// How long it is not to be asked about.
    pub(super) immunity_ms: Option<i64>,
    /// The producer in which its local transaction runs; 0: none.
    pub(super) owner: u32,
}

impl Store {
    /// Stores messages as one write.
    pub fn append(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Sent>> {
        let (sent, end) = self.append_only(messages)?;
        self.acknowledge(end)?;
        Ok(sent)
    }

    /// Stores messages as one write; the caller waits with `acknowledge` for the end that comes with them.
    pub fn append_only(&self, messages: &[NewMessage<'_>]) -> Result<(Vec<Sent>, u64)> {
        self.shared.check_append(messages)?;
        self.shared.relieve()?;
        let mut inner = self.shared.inner.lock();
        let mut sent = Vec::with_capacity(messages.len());
        self.shared.append_in(&mut inner, messages, true, |one| sent.push(one))?;
        Ok((sent, self.shared.log.appended()))
    }

    /// Stores one message if that needs no waiting at all; `None` otherwise, and nothing has changed.
    ///
    /// In `SYNC_FLUSH` the caller waits with `acknowledge` for the end that comes with it.
    pub fn append_now(&self, message: &NewMessage<'_>) -> Result<Option<(Sent, u64)>> {
        let messages = std::slice::from_ref(message);
        self.shared.check_append(messages)?;
        let Some(mut inner) = self.shared.inner.try_lock().filter(|_| !self.shared.is_overfull()) else {
            return Ok(None);
        };
        let mut sent = None;
        self.shared.append_in(&mut inner, messages, false, |one| sent = Some(one))?;
        let end = self.shared.log.appended();
        drop(inner);
        self.shared.announce();
        Ok(sent.map(|sent| (sent, end)))
    }

    /// Waits until what was appended up to `end` may be acknowledged.
    pub fn acknowledge(&self, end: u64) -> Result<()> {
        if self.is_sync() && !mutated(Mutant::AcknowledgeBeforeSync) {
            self.shared.wait_durable(end)?;
        }
        self.shared.announce();
        Ok(())
    }

    /// Stores a half message, or finds the pending one that it is a resend of.
    pub fn prepare(&self, half: &NewHalfMessage<'_>) -> Result<Sent> {
        let (sent, end) = self.prepare_only(half)?;
        self.acknowledge(end)?;
        Ok(sent)
    }

    /// As `append_only`, for a half message.
    pub fn prepare_only(&self, half: &NewHalfMessage<'_>) -> Result<(Sent, u64)> {
        self.shared.check_prepare(half)?;
        self.shared.relieve()?;
        let mut inner = self.shared.inner.lock();
        let sent = self.shared.prepare_in(&mut inner, half, true)?;
        Ok((sent.ok_or(Error::StoreClosed)?, self.shared.log.appended()))
    }

    /// As `append_now`, for a half message.
    pub fn prepare_now(&self, half: &NewHalfMessage<'_>) -> Result<Option<(Sent, u64)>> {
        self.shared.check_prepare(half)?;
        let Some(mut inner) = self.shared.inner.try_lock().filter(|_| !self.shared.is_overfull()) else {
            return Ok(None);
        };
        let sent = self.shared.prepare_in(&mut inner, half, false)?;
        let end = self.shared.log.appended();
        Ok(sent.map(|sent| (sent, end)))
    }
}

impl Shared {
    fn check_append(&self, messages: &[NewMessage<'_>]) -> Result<()> {
        self.check_writable("sending")?;
        for message in messages {
            check_body(message.body, self.options.max_message_size)?;
            check_queue(message.queue_id)?;
        }
        Ok(())
    }

    fn check_prepare(&self, half: &NewHalfMessage<'_>) -> Result<()> {
        self.check_writable("preparing a transaction")?;
        check_body(half.message.body, self.options.max_message_size)?;
        check_queue(half.message.queue_id)?;
        if half.message.envelope.delay_level > 0 {
            return Err(Error::InvalidMessage { what: "a transactional message cannot be delayed".into() });
        }
        names::validate_group(half.group)
    }

    /// Hands each message's place to `sent`; none, and nothing has changed, where that would wait and may not.
    fn append_in(
        &self,
        inner: &mut Inner,
        messages: &[NewMessage<'_>],
        may_wait: bool,
        mut sent: impl FnMut(Sent),
    ) -> Result<()> {
        let _guard = PoisonOnPanic(self);
        let now = self.clock.wall();
        let Inner { appender, state, scratch, placed, .. } = inner;
        let appender = appender.as_mut().ok_or(Error::ReadOnly { what: "sending" })?;
        appender.begin(now);
        placed.clear();
        for message in messages {
            let unique_id = self.ids.next(now);
            scratch.clear();
            scratch.extend_from_slice(&message.envelope.properties);
            properties::push(scratch, UNIQUE_KEY, message.envelope.unique_id().unwrap_or(unique_id.as_str()));
            let level = message.envelope.delay_level;
            let (topic, queue_id) = if level == 0 {
                (&*message.envelope.topic, message.queue_id)
            } else {
                delay::hide(&message.envelope.topic, message.queue_id, scratch);
                (SCHEDULE_TOPIC, delay::queue_of(level))
            };
            let slot = state.dispatcher.queues.find_or_insert(topic, queue_id);
            let before = placed.iter().rev().find(|other| other.slot == slot && !mutated(Mutant::StaleQueueOffset));
            let queue_offset = before
                .map_or_else(|| QueueOffset(state.dispatcher.queues.next(slot)), |other| other.queue_offset.plus(1));
            let draft = self.draft(message, topic, queue_id, now, None, scratch);
            let appended = appender.push(&draft, queue_offset)?;
            placed.push(Placed { slot, appended, queue_offset, unique_id });
        }
        let urgency = Urgency::Send { pending_bytes: state.table.pending_bytes() };
        if !self.write(appender, urgency, may_wait)? {
            return Ok(());
        }
        for (message, placed) in messages.iter().zip(placed.iter()) {
            let given = message.envelope.unique_id();
            let request = request(message.envelope, placed.appended, given.unwrap_or(placed.unique_id.as_str()));
            state.dispatcher.enqueue(placed.slot, &request);
            state.dispatcher.index(&request);
            sent(Sent {
                unique_id: given.map_or(MessageId::Unique(placed.unique_id), |given| MessageId::Text(given.into())),
                physical_offset: placed.appended.physical_offset,
                queue_offset: placed.queue_offset,
                queue_id: message.queue_id,
                size: placed.appended.size,
            });
        }
        if let Some(last) = placed.last() {
            state.note_last(last.appended);
        }
        self.ask_for_upkeep(state.dispatcher.queues.buffered(), state.dispatcher.index.len());
        Ok(())
    }

    fn prepare_in(&self, inner: &mut Inner, half: &NewHalfMessage<'_>, may_wait: bool) -> Result<Option<Sent>> {
        let _guard = PoisonOnPanic(self);
        let now = self.clock.wall();
        let message = &half.message;
        let generated = self.ids.next(now);
        let unique_id = half.unique_id.unwrap_or_else(|| generated.as_str());
        let body_crc = crc32(message.body);
        let identity = Identity::new(half.group, unique_id, &message.envelope.topic, body_crc);
        if let Some(sent) = self.resent(inner, half, unique_id, identity)? {
            return Ok(Some(sent));
        }
        if inner.state.table.len() >= self.options.pending_transactions_max {
            let pending = inner.state.table.len();
            return Err(Error::TooManyPending { option: "pending_transactions_max", pending });
        }
        let Inner { appender, state, scratch, half_slot, .. } = inner;
        let appender = appender.as_mut().ok_or(Error::ReadOnly { what: "preparing a transaction" })?;
        half_properties(message.envelope, message.queue_id, unique_id, half.group, scratch)?;
        let draft = self.draft(message, HALF_TOPIC, HALF_QUEUE, now, Some(body_crc), scratch);
        let pending = PendingHalf {
            draft: &draft,
            identity: Some(identity),
            group: half.group,
            immunity_ms: immunity_ms(Properties(&message.envelope.properties)),
            owner: half.owner,
        };
        let dispatch = |appended| DispatchRequest {
            topic_hash: self.half_topic_hash(),
            ..request(message.envelope, appended, unique_id)
        };
        let stored = self.store_half(appender, state, *half_slot, now, may_wait, &pending, dispatch)?;
        Ok(stored.map(|copy| Sent {
            unique_id: half.unique_id.map_or(MessageId::Unique(generated), |given| MessageId::Text(given.into())),
            physical_offset: PhysicalOffset(copy.physical_offset),
            queue_offset: QueueOffset(copy.queue_offset),
            queue_id: message.queue_id,
            size: u32::try_from(self.log.appended() - copy.physical_offset).unwrap_or(u32::MAX),
        }))
    }

    /// Writes the record of a half message and lets it pend: what sending one and resuming one share. `None`, and
    /// nothing has changed, where that would wait and may not.
    #[allow(clippy::too_many_arguments)] // The parts of `Inner`, of which the draft borrows another one.
    pub(super) fn store_half<'a>(
        &self,
        appender: &mut Appender,
        state: &mut Recovered,
        half_slot: Slot,
        now: TimestampMs,
        may_wait: bool,
        half: &PendingHalf<'_>,
        dispatch: impl FnOnce(Appended) -> DispatchRequest<'a>,
    ) -> Result<Option<HalfCopy>> {
        let queue_offset = QueueOffset(state.dispatcher.queues.next(half_slot));
        appender.begin(now);
        let appended = appender.push(half.draft, queue_offset)?;
        // What this half takes now, its end may need once more.
        let urgency = Urgency::Send { pending_bytes: state.table.pending_bytes() + u64::from(appended.size) };
        if !self.write(appender, urgency, may_wait)? {
            return Ok(None);
        }
        let request = dispatch(appended);
        state.dispatcher.enqueue(half_slot, &request);
        state.dispatcher.index(&request);
        let monotonic_ms = if mutated(Mutant::WallClockAges) { self.clock.wall().0 } else { self.clock.monotonic_ms() };
        let copy = HalfCopy { queue_offset: queue_offset.0, physical_offset: appended.physical_offset.0 };
        let key = state.table.insert(&NewHalf {
            copy,
            identity: half.identity,
            group: half.group,
            size: appended.size,
            stored_ms: monotonic_ms,
            immunity_ms: half.immunity_ms,
            checks: 0,
            owner: half.owner,
            sent: true,
        });
        state.table.set_due(key, monotonic_ms + half.immunity_ms.unwrap_or(self.options.transaction_timeout_ms));
        state.note_last(appended);
        self.ask_for_upkeep(state.dispatcher.queues.buffered(), state.dispatcher.index.len());
        Ok(Some(copy))
    }

    /// The pending half that a resend repeats (T12); the record itself is compared, hashes may collide.
    fn resent(
        &self,
        inner: &Inner,
        half: &NewHalfMessage<'_>,
        unique_id: &str,
        identity: Identity,
    ) -> Result<Option<Sent>> {
        if half.unique_id.is_none() || mutated(Mutant::NoDedupe) {
            return Ok(None);
        }
        let found = inner.state.table.find_identity(identity).and_then(|key: Key| inner.state.table.get(key));
        let Some(pending) = found else { return Ok(None) };
        let place = PhysicalOffset(pending.newest.physical_offset);
        let same = self.log.read(place, self.log.appended(), |view, _| {
            view.unique_id() == Some(unique_id) && view.body == half.message.body
        })?;
        Ok(same.then(|| Sent {
            unique_id: MessageId::Text(unique_id.into()),
            physical_offset: place,
            queue_offset: QueueOffset(pending.newest.queue_offset),
            queue_id: half.message.queue_id,
            size: 0,
        }))
    }

    fn draft<'a>(
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

    /// Writes the appender's batch; false if that would wait and may not.
    pub(super) fn write(&self, appender: &mut Appender, urgency: Urgency, may_wait: bool) -> Result<bool> {
        // Asked once more under the put lock: `close` hands the files over, and another process may have them by now.
        self.check_writable("sending")?;
        if !appender.is_ready(urgency) {
            if !may_wait {
                return Ok(false);
            }
            appender.make_room(urgency).map_err(|error| self.judge(error))?;
        }
        appender.write().map_err(|error| self.judge(error))?;
        if self.options.flush_disk_type == FlushDiskType::Async || mutated(Mutant::VisibleBeforeSync) {
            self.publish_visible(self.log.appended());
        }
        Ok(true)
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

fn request<'a>(envelope: &'a Envelope, appended: Appended, unique_id: &'a str) -> DispatchRequest<'a> {
    // A delayed message's record is the schedule topic's, and its entry says when it is due.
    let (tags_code, topic_hash) = match envelope.delay_level {
        0 => (envelope.tags_code, envelope.topic_hash),
        level => {
            (appended.store_timestamp.0.saturating_add(delay::level_ms(level.into())), java::topic_hash(SCHEDULE_TOPIC))
        }
    };
    DispatchRequest {
        physical_offset: appended.physical_offset,
        size: appended.size,
        store_timestamp: appended.store_timestamp,
        tags_code,
        topic_hash,
        transaction_type: TransactionType::None,
        unique_id: Some(unique_id),
        keys: envelope.keys(),
    }
}
