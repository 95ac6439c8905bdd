//! Stores the half messages of a transaction of several messages (`transaction/set.rs`), and resumes it.
//!
//! In:     messages, or a discarded one of them.
//! Out:    where each half message was stored.
//! Always: one write stores all half messages. If a crash cuts it, recovery rolls back those that are there.
//! Not here: its end, which is one end like any other.

use super::append::{NewHalfMessage, NewMessage, Sent};
use super::batch::{Batch, IndexKeys, Placed, Purpose, Unacknowledged, Wait};
use super::{Inner, Shared, Store, StoredRecord};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC};
use crate::base::units::{PhysicalOffset, QueueOffset, to_u64};
use crate::record::message_id::MessageId;
use crate::record::properties::Properties;
use crate::record::{Draft, RecordView, crc32};
use crate::transaction::convert::{HalfNames, half_properties, resume_draft};
use crate::transaction::set::{SET_MAX, SetMark};
use crate::transaction::table::NewHalf;
use crate::transaction::{HALF_QUEUE, HalfCopy, HalfFacts, Identity, immunity_ms};

/// A stored half message of a set, with what the table needs of it.
struct StoredHalf<'a> {
    placed: Placed,
    identity: Option<Identity>,
    group: &'a str,
    immunity_ms: Option<i64>,
    owner: u32,
}

impl Store {
    /// Stores the half messages of one transaction. Its transaction id is the unique id of the first message, whose
    /// half message ends it. Returns the results in the order of the messages.
    pub fn prepare_many(
        &self,
        messages: &[NewMessage<'_>],
        group: &str,
        owner: u32,
        wait: Wait,
    ) -> Result<Unacknowledged<'_, Vec<Sent>>> {
        if messages.is_empty() || messages.len() > SET_MAX {
            let what = format!("a transaction has 1 to {SET_MAX} messages, got {}", messages.len());
            return Err(Error::InvalidMessage { what });
        }
        for message in messages {
            self.shared.check_prepare(&NewHalfMessage { message: *message, group, unique_id: None, owner })?;
        }
        let mut inner = self.shared.lock_to_send(wait)?;
        let sent = self.shared.prepare_many_in(&mut inner, messages, group, owner, wait)?;
        Ok(self.shared.unacknowledged(inner, Purpose::Half, sent))
    }
}

impl Shared {
    fn prepare_many_in(
        &self,
        inner: &mut Inner,
        messages: &[NewMessage<'_>],
        group: &str,
        owner: u32,
        wait: Wait,
    ) -> Result<Vec<Sent>> {
        let mut batch = Batch::begin(self, inner, Purpose::Half)?;
        self.check_pending(batch.inner)?;
        let ids: Vec<_> = messages.iter().map(|_| self.ids.next(batch.now())).collect();
        let transaction_id = ids.first().map_or("", |id| id.as_str());
        let marks = Marks::new(batch.inner, messages.len());
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let mut halves = Vec::with_capacity(messages.len());
        // The first message comes last, because its half message completes the set.
        for index in (1..messages.len()).chain([0]) {
            let (Some(message), Some(id)) = (messages.get(index), ids.get(index)) else { continue };
            let NewMessage { envelope, queue_id, body } = *message;
            let names = HalfNames { unique_id: id.as_str(), transaction_id, group, mark: marks.at(index) };
            half_properties(envelope, queue_id, &names, &mut text)?;
            let body_crc = crc32(body);
            let draft = self.draft(message, HALF_TOPIC, HALF_QUEUE, batch.now(), Some(body_crc), &text);
            let keys = (Some(id.as_str()), envelope.keys());
            let placed = self.push_half(&mut batch, &draft, envelope.tags_code, keys)?;
            halves.push(StoredHalf {
                placed,
                identity: Identity::of_names(group, id.as_str(), &envelope.topic, body_crc),
                group,
                immunity_ms: immunity_ms(Properties(&envelope.properties)),
                owner,
            });
        }
        batch.inner.scratch = text;
        self.write_set(&mut batch, &halves, wait)?;
        halves.rotate_right(1);
        let sent = messages.iter().zip(ids).zip(&halves);
        Ok(sent.map(|((message, id), half)| Sent::new(MessageId::Unique(id), half.placed, message.queue_id)).collect())
    }

    /// Stores the half messages of a discarded set again. `discarded` is the copy of any of them. Returns `None` if the
    /// others are not next to it: a RocketMQ broker discarded each by itself, or retention removed some.
    pub(super) fn resume_set(&self, inner: &mut Inner, discarded: &StoredRecord) -> Result<Option<Sent>> {
        let Some(records) = self.discarded_set(inner, discarded)? else { return Ok(None) };
        let mut batch = Batch::begin(self, inner, Purpose::Resume)?;
        let views = records.iter().map(StoredRecord::view).collect::<Result<Vec<_>>>()?;
        let facts: Vec<_> = views.iter().map(HalfFacts::of).collect();
        if let Some(first) = facts.first() {
            let pending = first.identity().and_then(|identity| batch.inner.derived.table.find_identity(identity));
            if pending.is_some() {
                return Err(Error::StillPending { transaction: first.unique_id.unwrap_or_default().to_owned() });
            }
        }
        let marks = Marks::new(batch.inner, views.len());
        let mut text = Vec::new();
        let mut halves = Vec::with_capacity(views.len());
        for index in (1..views.len()).chain([0]) {
            let (Some(view), Some(facts)) = (views.get(index), facts.get(index)) else { continue };
            let draft = resume_draft(view, marks.at(index), self.options.store_host, &mut text);
            let keys = (facts.unique_id, facts.keys);
            let placed = self.push_half(&mut batch, &draft, java::tags_code(facts.tags), keys)?;
            let (identity, group, immunity_ms) = (facts.identity(), facts.group, facts.immunity_ms);
            halves.push(StoredHalf { placed, identity, group, immunity_ms, owner: 0 });
        }
        self.write_set(&mut batch, &halves, Wait::Yes)?;
        let sent = facts.first().zip(halves.last()).map(|(facts, half)| {
            let id = MessageId::Text(facts.unique_id.unwrap_or_default().into());
            Sent::new(id, half.placed, facts.real_queue_id)
        });
        Ok(sent)
    }

    /// Reads the discarded copies of a set, which follow one another in the order of its messages.
    fn discarded_set(&self, inner: &Inner, discarded: &StoredRecord) -> Result<Option<Vec<StoredRecord>>> {
        let view = discarded.view()?;
        let Some(mark) = SetMark::of(view.properties) else { return Ok(None) };
        let Some(first) = view.queue_offset.0.checked_sub(mark.index()) else { return Ok(None) };
        let slot = inner.derived.dispatcher.queues.find(DISCARD_TOPIC, view.queue_id);
        let Some(queue) = slot.and_then(|slot| inner.derived.dispatcher.queues.get(slot)) else { return Ok(None) };
        let mut records = Vec::new();
        for index in 0..mark.count {
            let at = first + index;
            let entry = if (queue.first..queue.next()).contains(&at) { self.entry_at(queue, at)? } else { None };
            let Some(entry) = entry else { return Ok(None) };
            let record = self.read_copy(entry.physical_offset)?;
            if SetMark::of(record.view()?.properties) != Some(mark.with_index(index)) {
                return Ok(None);
            }
            records.push(record);
        }
        Ok(Some(records))
    }

    /// Returns a copy of a record. The caller may hold the put lock.
    pub(super) fn read_copy(&self, physical_offset: PhysicalOffset) -> Result<StoredRecord> {
        let copy = |_: &RecordView<'_>, bytes: &[u8]| StoredRecord::new(bytes, physical_offset);
        self.log.read(physical_offset, self.log.appended(), copy)
    }

    /// Refuses another pending transaction if there are too many.
    pub(super) fn check_pending(&self, inner: &Inner) -> Result<()> {
        let pending = inner.derived.table.len();
        if pending >= self.options.pending_transactions_max {
            return Err(Error::TooManyPending { option: "pending_transactions_max", pending });
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

    /// Writes the batch and begins the pending transaction of its half messages. The last one is that of the first
    /// message.
    fn write_set(&self, batch: &mut Batch<'_>, halves: &[StoredHalf<'_>], wait: Wait) -> Result<()> {
        batch.write(wait)?;
        let Some((first, others)) = halves.split_last() else { return Ok(()) };
        let copy = |placed: &Placed| HalfCopy {
            queue_offset: placed.queue_offset.0,
            physical_offset: placed.physical_offset.0,
        };
        let others: Vec<_> = others.iter().map(|half| (copy(&half.placed), half.placed.size)).collect();
        let now_ms = if mutated(Mutant::WallClockAges) { self.clock.wall().0 } else { self.clock.monotonic_ms() };
        let new = NewHalf {
            copy: copy(&first.placed),
            identity: first.identity,
            group: first.group,
            size: first.placed.size,
            stored_ms: now_ms,
            immunity_ms: first.immunity_ms,
            checks: 0,
            owner: first.owner,
            sent: true,
        };
        let table = &mut batch.inner.derived.table;
        let key = table.insert_set(&new, &others);
        table.set_due(key, now_ms + first.immunity_ms.unwrap_or(self.options.transaction_timeout_ms));
        Ok(())
    }
}

/// The marks of a set that begins at the half queue's end.
struct Marks {
    first: QueueOffset,
    count: usize,
}

impl Marks {
    fn new(inner: &Inner, count: usize) -> Self {
        Self { first: QueueOffset(inner.half_queue_end()), count }
    }

    /// Returns the mark of a message by its index. A transaction of one message has none.
    fn at(&self, index: usize) -> Option<SetMark> {
        let mark = SetMark { first: self.first.0, position: 0, count: to_u64(self.count) };
        (self.count > 1).then_some(mark.with_index(to_u64(index)))
    }
}
