//! Stores the half messages of a transaction of several messages (`transaction/set.rs`), and resumes it.
//!
//! In:     messages, or a discarded one of them.
//! Out:    where each half message was stored.
//! Always: one write stores all half messages. If a crash cuts it, recovery rolls back those that are there.
//! Not here: its end, which is one end like any other.

use std::collections::BTreeSet;

use super::append::{NewHalfMessage, NewMessage, Sent, StoredHalf};
use super::batch::{Batch, Purpose, Unacknowledged, Wait};
use super::resent::another;
use super::{Inner, Shared, Store, StoredRecord};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC};
use crate::base::units::{PhysicalOffset, QueueOffset, to_u64};
use crate::record::message_id::MessageId;
use crate::record::properties::Properties;
use crate::record::{RecordView, crc32};
use crate::transaction::convert::{HalfNames, half_properties, resume_draft};
use crate::transaction::set::{SET_MAX, SetMark};
use crate::transaction::{HALF_QUEUE, HalfFacts, Identity, immunity_ms};

impl Store {
    /// Stores the half messages of one transaction, or finds those that they repeat. Its transaction id is the unique
    /// id of the first message, whose half message ends it. Returns the results in the order of the messages.
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
        let mut halves = Vec::with_capacity(messages.len());
        for message in messages {
            let unique_id = message.envelope.unique_id();
            let half = NewHalfMessage { message: *message, group, unique_id, owner };
            self.shared.check_prepare(&half)?;
            halves.push(half);
        }
        let mut inner = self.shared.lock_to_send(wait)?;
        let (sent, end) = self.shared.prepare_many_in(&mut inner, &halves, wait)?;
        // Half messages that were found may also wait for the sync of the write that stored them.
        Ok(self.shared.unacknowledged_up_to(inner, Purpose::Half, end, sent))
    }
}

impl Shared {
    fn prepare_many_in(
        &self,
        inner: &mut Inner,
        messages: &[NewHalfMessage<'_>],
        wait: Wait,
    ) -> Result<(Vec<Sent>, PhysicalOffset)> {
        let mut batch = Batch::begin(self, inner, Purpose::Half)?;
        if let Some(resent) = self.set_resent(batch.inner, messages)? {
            return Ok(resent);
        }
        self.check_pending(batch.inner)?;
        let id = |given: Option<&str>| match given {
            Some(given) => MessageId::Text(given.into()),
            None => MessageId::Unique(self.ids.next(batch.now())),
        };
        let ids: Vec<MessageId> = messages.iter().map(|message| id(message.unique_id)).collect();
        let transaction_id = ids.first().map_or("", |id| &**id);
        let marks = Marks::new(batch.inner, messages.len());
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let mut halves = Vec::with_capacity(messages.len());
        // The first message comes last, because its half message completes the set.
        for index in (1..messages.len()).chain([0]) {
            let (Some(message), Some(id)) = (messages.get(index), ids.get(index)) else { continue };
            let NewHalfMessage { message, group, owner, .. } = *message;
            let NewMessage { envelope, queue_id, body } = message;
            let names = HalfNames { unique_id: id, transaction_id, group, mark: marks.at(index) };
            half_properties(envelope, queue_id, &names, &mut text)?;
            let body_crc = crc32(body);
            let draft = self.draft(&message, HALF_TOPIC, HALF_QUEUE, batch.now(), Some(body_crc), &text);
            let placed = self.push_half(&mut batch, &draft, envelope.tags_code, (Some(id), envelope.keys()))?;
            halves.push(StoredHalf {
                placed,
                identity: Identity::of_names(group, id, &envelope.topic, body_crc),
                group,
                immunity_ms: immunity_ms(Properties(&envelope.properties)),
                owner,
            });
        }
        batch.inner.scratch = text;
        self.write_set(&mut batch, &halves, wait)?;
        halves.rotate_right(1);
        let sent = messages.iter().zip(ids).zip(&halves);
        let sent = sent.map(|((half, id), stored)| Sent::new(id, stored.placed, half.message.queue_id)).collect();
        Ok((sent, PhysicalOffset(self.log.appended())))
    }

    /// Finds the half messages that these messages repeat. Refuses ids that could make other half messages theirs.
    fn set_resent(
        &self,
        inner: &mut Inner,
        messages: &[NewHalfMessage<'_>],
    ) -> Result<Option<(Vec<Sent>, PhysicalOffset)>> {
        let given: Option<Vec<&str>> = messages.iter().map(|message| message.unique_id).collect();
        let Some(given) = given else { return Ok(None) };
        let mut different = BTreeSet::new();
        if let Some(twice) = given.iter().find(|id| !different.insert(**id)) {
            let what = format!("two messages of a transaction have the id {twice:?}");
            return Err(Error::InvalidMessage { what });
        }
        let identity = |(half, id): (&NewHalfMessage<'_>, &str)| {
            Identity::new(half.group, id, &half.message.envelope.topic, crc32(half.message.body))
        };
        let mut identities = messages.iter().zip(given).map(identity);
        let Some(first) = identities.next() else { return Ok(None) };
        if let Some(resent) = self.resent(inner, messages, first)? {
            return Ok(Some(resent));
        }
        let table = &inner.derived.table;
        for (message, identity) in messages.iter().skip(1).zip(identities) {
            if let Some(pending) = table.find_identity(identity).and_then(|key| table.get(key)) {
                return Err(another(message, pending.newest, "it is a transaction of its own"));
            }
        }
        Ok(None)
    }

    /// Stores the half messages of a discarded transaction again. `discarded` is the copy of any of them. If those of a
    /// set are not next to it, because a RocketMQ broker discarded each by itself or retention removed some, it is
    /// resumed alone.
    pub(super) fn resume_discarded(&self, inner: &mut Inner, discarded: StoredRecord) -> Result<Sent> {
        let records = self.discarded_together(inner, discarded)?;
        let mut batch = Batch::begin(self, inner, Purpose::Resume)?;
        let views = records.iter().map(StoredRecord::view).collect::<Result<Vec<_>>>()?;
        let facts: Vec<_> = views.iter().map(HalfFacts::of).collect();
        let id = facts.first().and_then(|first| first.unique_id).unwrap_or_default();
        let identity = facts.first().and_then(HalfFacts::identity);
        if identity.is_some_and(|identity| batch.inner.derived.table.find_identity(identity).is_some()) {
            return Err(Error::StillPending { transaction: id.to_owned() });
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
        let sent = facts.first().zip(halves.last());
        let (first, half) = sent.ok_or(Error::StoreClosed)?;
        Ok(Sent::new(MessageId::Text(id.into()), half.placed, first.real_queue_id))
    }

    /// Returns the discarded copies of a set, which follow one another in the order of its messages; otherwise the given
    /// one alone.
    fn discarded_together(&self, inner: &Inner, discarded: StoredRecord) -> Result<Vec<StoredRecord>> {
        let view = discarded.view()?;
        let slot = inner.derived.dispatcher.queues.find(DISCARD_TOPIC, view.queue_id);
        let queue = slot.and_then(|slot| inner.derived.dispatcher.queues.get(slot));
        let mark = SetMark::of(view.properties);
        let first = mark.and_then(|mark| view.queue_offset.0.checked_sub(mark.index()));
        let (Some(queue), Some(mark), Some(first)) = (queue, mark, first) else { return Ok(vec![discarded]) };
        let mut records = Vec::new();
        for index in 0..mark.count {
            let at = first + index;
            let entry = if (queue.first..queue.next()).contains(&at) { self.entry_at(queue, at)? } else { None };
            let Some(entry) = entry else { return Ok(vec![discarded]) };
            let record = self.read_copy(entry.physical_offset)?;
            if SetMark::of(record.view()?.properties) != Some(mark.with_index(index)) {
                return Ok(vec![discarded]);
            }
            records.push(record);
        }
        Ok(records)
    }

    /// Returns a copy of a record. The caller may hold the put lock.
    pub(super) fn read_copy(&self, physical_offset: PhysicalOffset) -> Result<StoredRecord> {
        let copy = |_: &RecordView<'_>, bytes: &[u8]| StoredRecord::new(bytes, physical_offset);
        self.log.read(physical_offset, self.log.appended(), copy)
    }

    /// Writes the batch and begins the pending transaction of its half messages. The last one is that of the first
    /// message.
    fn write_set(&self, batch: &mut Batch<'_>, halves: &[StoredHalf<'_>], wait: Wait) -> Result<()> {
        batch.write(wait)?;
        let Some((first, others)) = halves.split_last() else { return Ok(()) };
        let others: Vec<_> = others.iter().map(|half| (half.copy(), half.placed.size)).collect();
        self.begin_pending(batch.inner, first, &others);
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
