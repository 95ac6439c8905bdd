//! A queue that a group consumes, on its store: reads messages for the group and stores its offset.
//!
//! In:     the store, terms, a filter.
//! Out:    messages that were taken, with their records.
//! Always: the stored offset is the lowest unacknowledged one. If somebody else stores another offset (an operator's
//!         reset), the queue continues there, and older leases are void. A delivery is noted before its message is
//!         handed out, so that one that ends the process counts.
//! Not here: waiting, moving messages to other topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::queue::{Fate, Found, Holder, Order, Queue, Stale, Taken, Terms};
use super::room::Room;
use crate::base::error::{Error, Result};
use crate::base::names::RETRY_PREFIX;
use crate::base::sync::unmodelled::{Mutex, MutexGuard};
use crate::base::units::{QueueId, QueueOffset};
use crate::filter::{ReadBudget, Selector};
use crate::index::deliveries::Consumed;
use crate::record::properties::RETRY_TOPIC;
use crate::store::{Store, StoredRecord};

/// The maximum number of bytes in one answer, not counting its first message.
pub const BYTES_MAX: usize = 1 << 20;

/// A queue that a group consumes.
#[derive(Debug)]
pub struct Source {
    /// The queue: of the group's own retry topic, or of the topic that it subscribes to.
    pub queue: Consumed,
    /// In a retry topic: only messages that were first sent to this topic are taken.
    origin: Option<String>,
    state: Mutex<State>,
    room: Arc<Room>,
    /// The queue offset at whose arrival the readers are woken.
    watched: AtomicU64,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    order: Order,
    /// The offset in the store. `None`: not known yet.
    stored: Option<u64>,
    /// What counts in the room of all queues.
    counted: usize,
}

/// How far a group is in a queue. Counts of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The topic that is read: the group's retry topic, or the topic that it subscribes to.
    pub topic: String,
    /// The queue.
    pub queue_id: QueueId,
    /// The lowest unacknowledged queue offset.
    pub committed: u64,
    /// Messages that clients have, and that nobody else gets now.
    pub in_flight: usize,
    /// Messages that were delivered, and wait to be delivered again.
    pub to_redeliver: usize,
    /// Messages that are acknowledged, above one that is not.
    pub acknowledged_above: usize,
}

/// A message that was taken from a source.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its lease.
    pub taken: Taken,
    /// Its record.
    pub record: StoredRecord,
}

/// What a source had.
#[derive(Debug, Default)]
pub struct Batch {
    /// The messages that were taken.
    pub messages: Vec<Message>,
    /// The bytes of their records.
    pub bytes: usize,
    /// Damaged messages, which are skipped: queue offset and reason.
    pub skipped: Vec<(u64, String)>,
}

impl Source {
    /// Creates the source of a topic's own queue. `first_number` precedes the numbers of its leases.
    pub fn of_topic(topic: &str, queue_id: QueueId, group: &str, (first_number, room): (u64, &Arc<Room>)) -> Self {
        Self::new((topic.to_owned(), queue_id), group.to_owned(), None, (first_number, room))
    }

    /// Creates the source of the messages of a topic that lie in the group's retry topic.
    pub fn of_retries(retry_topic: String, topic: &str, group: &str, numbers: (u64, &Arc<Room>)) -> Self {
        Self::new((retry_topic, QueueId(0)), format!("{group}%{topic}"), Some(topic.to_owned()), numbers)
    }

    fn new(
        (topic, queue_id): (String, QueueId),
        name: String,
        origin: Option<String>,
        (first_number, room): (u64, &Arc<Room>),
    ) -> Self {
        let queue = Queue::new(Order::Fifo, 0, first_number);
        let state = Mutex::new(State { queue, order: Order::Fifo, stored: None, counted: 0 });
        let (room, watched) = (Arc::clone(room), AtomicU64::new(u64::MAX));
        Self { queue: Consumed { topic, name, queue_id }, origin, state, room, watched }
    }

    /// Returns how far the group is. `None`: the store has another offset for it, or none.
    pub fn progress(&self, store: &Store, now_ms: i64) -> Result<Option<Progress>> {
        let state = self.state.lock();
        if !self.is_current(store, &state)? {
            return Ok(None);
        }
        let (queue, in_flight) = (&state.queue, state.queue.leased(now_ms));
        Ok(Some(Progress {
            topic: self.queue.topic.clone(),
            queue_id: self.queue.queue_id,
            committed: queue.committed(),
            in_flight,
            to_redeliver: queue.in_flight() - in_flight,
            acknowledged_above: queue.outstanding() - queue.in_flight(),
        }))
    }

    /// Returns whether it is a retry topic.
    pub const fn is_retry(&self) -> bool {
        self.origin.is_some()
    }

    /// Takes messages: at most `limit`, and at most one after `BYTES_MAX`. `selector`: `None` takes all.
    pub fn take(
        &self,
        store: &Store,
        order: Order,
        terms: &Terms,
        selector: Option<&Selector>,
        (limit, bytes): (usize, usize),
    ) -> Result<Batch> {
        let mut batch = Batch { bytes, ..Batch::default() };
        let mut state = self.current(store, order)?;
        let done = self
            .take_visible(store, &mut state, terms, limit, &mut batch)
            .and_then(|()| self.take_new(store, &mut state, terms, selector, limit, &mut batch))
            .and_then(|()| self.save(store, &mut state));
        if done.is_err() {
            // Nobody gets what was taken before the failure.
            let taken: Vec<Taken> = batch.messages.iter().map(|message| message.taken).collect();
            state.queue.release(&taken, terms.now_ms);
        }
        note_handed(store, &self.queue, &state.queue, &batch.messages);
        done.map(|()| batch)
    }

    /// Returns the state as of the offset in the store.
    fn current(&self, store: &Store, order: Order) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        let stored = store.consumer_offset(&self.queue.topic, &self.queue.name, self.queue.queue_id)?;
        if stored.is_none() || stored != state.stored || order != state.order {
            let committed = match stored {
                Some(committed) => committed,
                None => self.begin(store)?,
            };
            let mut queue = Queue::new(order, committed, state.queue.last_number());
            self.resume(store, &mut queue, state.stored.is_none() && stored.is_some())?;
            *state = State { queue, order, stored: Some(committed), counted: state.counted };
        }
        Ok(state)
    }

    /// Continues the counts of an earlier run when the queue is read for the first time. Otherwise they begin again.
    fn resume(&self, store: &Store, queue: &mut Queue, is_first: bool) -> Result<()> {
        let end = store.queue_range(&self.queue.topic, self.queue.queue_id)?.1;
        let mut earlier = store.earlier_deliveries(&self.queue).unwrap_or_default();
        earlier.retain(|at, _| is_first && (queue.next()..end).contains(at));
        queue.resume(earlier);
        let _ = self.note_all_of(store, queue);
        Ok(())
    }

    /// Notes how often all messages were delivered, for a file that begins.
    pub fn note_all(&self, store: &Store) -> Result<()> {
        let state = self.state.lock();
        if state.stored.is_some() { self.note_all_of(store, &state.queue) } else { Ok(()) }
    }

    fn note_all_of(&self, store: &Store, queue: &Queue) -> Result<()> {
        store.note_deliveries(&self.queue, true, &queue.deliveries())
    }

    /// Stores where the group begins, unless it has an offset already, and returns it.
    pub fn begin(&self, store: &Store) -> Result<u64> {
        if let Some(group) = self.queue.topic.strip_prefix(RETRY_PREFIX).filter(|_| self.is_retry()) {
            return store.begin_retry_offset(&self.queue.topic, group, &self.queue.name, self.queue.queue_id);
        }
        if let Some(stored) = store.consumer_offset(&self.queue.topic, &self.queue.name, self.queue.queue_id)? {
            return Ok(stored);
        }
        // A queue that the group has not read yet is read from its first message, as embedded consumers do.
        let first = store.queue_range(&self.queue.topic, self.queue.queue_id)?.0;
        self.write(store, first)?;
        Ok(first)
    }

    fn take_visible(
        &self,
        store: &Store,
        state: &mut State,
        terms: &Terms,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<()> {
        if state.order == Order::Fifo {
            // All at once: they were one answer before.
            let taken = state.queue.take_visible(terms, limit);
            for (at, one) in taken.iter().enumerate() {
                let read = self.read_one(store, one.queue_offset);
                if is_failure(&read) {
                    state.queue.release(taken.get(at..).unwrap_or_default(), terms.now_ms);
                }
                state.settle(*one, read, batch)?;
            }
            return Ok(());
        }
        while batch.messages.len() < limit && !batch.is_full() {
            let Some(queue_offset) = state.queue.first_visible(terms.now_ms) else { break };
            // Its size decides whether it is taken, so it is read first.
            let read = self.read_one(store, queue_offset);
            if read.as_ref().is_ok_and(|found| found.as_ref().is_some_and(|record| !batch.fits(record))) {
                batch.bytes = BYTES_MAX;
                break;
            }
            if is_failure(&read) {
                return read.map(drop);
            }
            let Some(one) = state.queue.take_visible(terms, 1).pop() else { break };
            state.settle(one, read, batch)?;
        }
        Ok(())
    }

    /// Returns the message at a queue offset, or `None` if retention has removed it.
    fn read_one(&self, store: &Store, queue_offset: u64) -> Result<Option<StoredRecord>> {
        let (from, mut one) = (QueueOffset(queue_offset), ReadBudget::of_entries(1));
        let read = store.read_within(&self.queue.topic, self.queue.queue_id, from, 1, None, &mut one);
        match read {
            Ok((records, _)) => Ok(records.into_iter().next()),
            Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn take_new(
        &self,
        store: &Store,
        state: &mut State,
        terms: &Terms,
        selector: Option<&Selector>,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<()> {
        let (first, end) = store.queue_range(&self.queue.topic, self.queue.queue_id)?;
        state.queue.skip_to(first);
        let mut budget = ReadBudget::of_request(selector);
        let most = limit.min(batch.messages.len().saturating_add(self.room.left()));
        while !batch.is_full() {
            let room = state.queue.room(terms.now_ms).min(most.saturating_sub(batch.messages.len()));
            let from = state.queue.next();
            if room == 0 || from >= end || budget.entries() == 0 {
                break;
            }
            let read = store.read_within(
                &self.queue.topic,
                self.queue.queue_id,
                QueueOffset(from),
                room,
                selector,
                &mut budget,
            );
            let (records, next) = match read {
                Ok(read) => read,
                Err(Error::StoreCorrupt { what, .. }) => {
                    batch.skipped.push((from, what));
                    (Vec::new(), QueueOffset(from + 1))
                }
                // Retention is removing it now.
                Err(Error::OffsetTooOld { .. }) => break,
                Err(error) => return Err(error),
            };
            if next.0 == from {
                break;
            }
            self.lease(state, terms, records, next.0, batch)?;
            if state.queue.next() == from {
                break;
            }
        }
        Ok(())
    }

    /// Leases the records that fit in the batch.
    fn lease(
        &self,
        state: &mut State,
        terms: &Terms,
        records: Vec<StoredRecord>,
        next: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        let (mut fitting, mut found, mut end) = (Vec::new(), Vec::new(), next);
        let (mut bytes, mut is_first) = (batch.bytes, batch.messages.is_empty());
        for record in records {
            let view = record.view()?;
            if self.origin.is_some() && view.properties.get_str(RETRY_TOPIC) != self.origin.as_deref() {
                continue;
            }
            let delivered = u32::try_from(view.reconsume_times).unwrap_or(0);
            let one = Found { queue_offset: view.queue_offset.0, delivered };
            let is_alone = state.queue.comes_alone(one, terms.attempts_max);
            let is_full = bytes + record.bytes().len() > BYTES_MAX && !is_first;
            if is_full || (is_alone && bytes > 0) {
                end = one.queue_offset;
                break;
            }
            found.push(one);
            (bytes, is_first) = (bytes + record.bytes().len(), false);
            fitting.push(record);
            if is_alone {
                end = one.queue_offset + 1;
                batch.bytes = BYTES_MAX;
                break;
            }
        }
        if end < next {
            // The rest does not fit, so that this batch is complete.
            batch.bytes = BYTES_MAX;
        }
        let taken = state.queue.take_new(terms, &found, end);
        for (one, record) in taken.into_iter().zip(fitting) {
            batch.push(one, record);
        }
        Ok(())
    }

    /// Acknowledges a message. Returns whether new messages may be taken now that could not before.
    pub fn acknowledge(
        &self,
        store: &Store,
        (queue_offset, number): (u64, u64),
        now_ms: i64,
    ) -> Result<Result<bool, Stale>> {
        let mut state = self.state.lock();
        if !self.is_current(store, &state)? {
            return Ok(Err(Stale));
        }
        let was_full = state.queue.room(now_ms) == 0;
        let acknowledged = state.queue.acknowledge(queue_offset, number, now_ms);
        self.save(store, &mut state)?;
        Ok(acknowledged.map(|()| was_full && state.queue.room(now_ms) > 0))
    }

    /// Acknowledges a message that has moved to another topic. Returns whether it was delivered in an earlier run: then
    /// the offset must be stored before the next crash, so that each crash does not move the message again.
    pub fn moved(&self, store: &Store, taken: Taken) -> Result<bool> {
        let mut state = self.state.lock();
        if !self.is_current(store, &state)? {
            return Ok(false);
        }
        state.queue.discard(taken);
        self.save(store, &mut state)?;
        Ok(state.queue.is_resumed(taken.queue_offset))
    }

    /// Sets when a message is visible again. Returns the number of its new lease.
    pub fn change_visible(
        &self,
        store: &Store,
        (queue_offset, number): (u64, u64),
        now_ms: i64,
        visible_at_ms: i64,
    ) -> Result<Result<u64, Stale>> {
        let mut state = self.state.lock();
        if !self.is_current(store, &state)? {
            return Ok(Err(Stale));
        }
        Ok(state.queue.change_visible(queue_offset, number, now_ms, visible_at_ms))
    }

    /// Makes messages visible at a time.
    pub fn release(&self, taken: &[Taken], at_ms: i64) {
        self.state.lock().queue.release(taken, at_ms);
    }

    /// Makes all messages of some holders visible at a time. Returns whether they had any.
    pub fn release_all(&self, of: impl Fn(Holder) -> bool, at_ms: i64) -> bool {
        self.state.lock().queue.release_all(of, at_ms)
    }

    /// Takes a message from the client that has it, to move it to another topic.
    pub fn take_away(
        &self,
        store: &Store,
        (queue_offset, number): (u64, u64),
        now_ms: i64,
    ) -> Result<Result<Message, Stale>> {
        let mut state = self.state.lock();
        if !self.is_current(store, &state)? {
            return Ok(Err(Stale));
        }
        let Ok(taken) = state.queue.take_away(queue_offset, number, now_ms) else { return Ok(Err(Stale)) };
        match self.read_one(store, queue_offset)? {
            Some(record) => Ok(Ok(Message { taken, record })),
            None => Ok(Err(Stale)),
        }
    }

    /// Returns when the next message in flight is visible again, if any is in flight.
    pub fn next_visible_ms(&self) -> Option<i64> {
        self.state.lock().queue.next_visible_ms()
    }

    /// Returns whether nothing would be lost if the state were forgotten: nothing is in flight, or the offset in the
    /// store is another one, or none.
    pub fn is_idle(&self, store: &Store) -> bool {
        let state = self.state.lock();
        let is_done = state.queue.in_flight() == 0 && !state.queue.is_resumed(state.queue.next());
        let is_at_rest = is_done && state.queue.committed() == state.queue.next();
        is_at_rest || self.is_current(store, &state).is_ok_and(|is_current| !is_current)
    }

    /// Returns whether there are new messages that may be taken now.
    pub fn has_new(&self, store: &Store, now_ms: i64) -> Result<bool> {
        let state = self.state.lock();
        let may = state.stored.is_none() || (state.queue.room(now_ms) > 0 && self.room.left() > 0);
        Ok(may && store.queue_range(&self.queue.topic, self.queue.queue_id)?.1 > state.queue.next())
    }

    /// Returns the queue offset whose message must wake the readers, unless that is arranged already.
    pub fn to_watch(&self) -> Option<u64> {
        let next = self.state.lock().queue.next();
        (self.watched.swap(next, Relaxed) != next).then_some(next)
    }

    /// Returns whether the offset in the store is still the one that was stored here.
    fn is_current(&self, store: &Store, state: &State) -> Result<bool> {
        let stored = store.consumer_offset(&self.queue.topic, &self.queue.name, self.queue.queue_id)?;
        Ok(stored.is_some() && stored == state.stored)
    }

    fn save(&self, store: &Store, state: &mut State) -> Result<()> {
        let counted = state.queue.outstanding();
        self.room.replace(std::mem::replace(&mut state.counted, counted), counted);
        let committed = state.queue.committed();
        if state.stored != Some(committed) {
            self.write(store, committed)?;
            state.stored = Some(committed);
        }
        Ok(())
    }

    fn write(&self, store: &Store, committed: u64) -> Result<()> {
        if let Some(group) = self.queue.topic.strip_prefix(RETRY_PREFIX).filter(|_| self.is_retry()) {
            return store.set_retry_offset(&self.queue.topic, group, &self.queue.name, self.queue.queue_id, committed);
        }
        store.set_consumer_offset(&self.queue.topic, &self.queue.name, self.queue.queue_id, committed)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let counted = self.state.lock().counted;
        self.room.replace(counted, 0);
    }
}

impl State {
    /// Adds a message that was taken to the batch. One that is gone or damaged is acknowledged instead.
    fn settle(&mut self, taken: Taken, read: Result<Option<StoredRecord>>, batch: &mut Batch) -> Result<()> {
        match read {
            Ok(Some(record)) => batch.push(taken, record),
            Ok(None) => self.queue.discard(taken),
            Err(Error::StoreCorrupt { what, .. }) => {
                batch.skipped.push((taken.queue_offset, what));
                self.queue.discard(taken);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Notes the deliveries of messages that are about to be handed out. Without a note, the message is delivered all the
/// same, and counted from 1 again after a crash.
fn note_handed(store: &Store, of: &Consumed, queue: &Queue, messages: &[Message]) {
    let handed = messages.iter().filter(|message| message.taken.fate == Fate::Deliver);
    let mut counts: Vec<_> =
        handed.map(|message| (message.taken.queue_offset, queue.deliveries_of(message.taken.queue_offset))).collect();
    if !counts.is_empty() {
        counts.sort_unstable();
        let _ = store.note_deliveries(of, false, &counts);
    }
}

/// Returns whether the message may be readable later. A damaged one never is.
fn is_failure(read: &Result<Option<StoredRecord>>) -> bool {
    read.as_ref().is_err_and(|error| !matches!(error, Error::StoreCorrupt { .. }))
}

impl Batch {
    /// Returns whether no message fits any more. One that is longer than the limit comes alone.
    const fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX && !self.messages.is_empty()
    }

    fn fits(&self, record: &StoredRecord) -> bool {
        self.messages.is_empty() || self.bytes + record.bytes().len() <= BYTES_MAX
    }

    fn push(&mut self, taken: Taken, record: StoredRecord) {
        self.bytes += record.bytes().len();
        self.messages.push(Message { taken, record });
    }
}
