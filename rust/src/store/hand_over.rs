//! Hands timed messages over to a RocketMQ 5 broker, and takes them back.
//!
//! In:     a store that a broker is to take over; at each opening, what a broker did.
//! Out:    every timed message in the broker's timer; or, if txstore opens the store, back in its own topic.
//! Always: one write ends a wait in one topic and begins it in the other, so a crash at any moment leaves each message
//!         in one of them. A broker reads only what was handed over after the last opening.
//! Not here: what a broker's timer keeps in files (`broker_timer`).

use super::batch::{Batch, IndexKeys, Purpose, Wait};
use super::broker_timer::BrokerTimer;
use super::deliver_delayed::BYTES_MAX;
use super::{Inner, Shared, Store, StoredRecord};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{TIMED_TOPIC, WHEEL_TOPIC};
use crate::base::units::{PhysicalOffset, to_u64};
use crate::index::consume_queue::Entry;
use crate::index::timed::{TIMED_QUEUE, Timed, due_ms, is_waiting, moved_draft};
use crate::record::properties::{KEYS, REAL_TOPIC, TAGS};

/// The maximum number of messages in one write, and of entries in one read.
const MESSAGES_MAX: usize = 1_024;

/// What handing over did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// The number of messages that now wait in the broker's timer.
    pub messages: u64,
    /// Messages that could not be handed over, with the reasons. They wait as before.
    pub left: Vec<String>,
}

/// What is done with the messages of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// They wait in this topic.
    To(&'static str),
    /// Their wait ends, because a broker has delivered them.
    Delivered,
}

impl Store {
    /// Hands all timed messages over to the timer of the RocketMQ 5 broker that takes the store over next. Those that
    /// are due should be delivered before. The store delivers and recalls none of them any more; the next opening by
    /// txstore takes them back.
    pub fn hand_over_timed(&self) -> Result<HandedOver> {
        let shared = &*self.shared;
        shared.check_appends("handing timed messages over")?;
        let mut delivering = shared.delivering.lock();
        shared.take_back_timed()?;
        BrokerTimer::reset(shared.storage.as_ref(), shared.wheel_end())?;
        delivering.are_handed_over = true;
        let all: Vec<Timed> = shared.inner.lock().derived.timed.iter().collect();
        let mut done = HandedOver::default();
        shared.move_timed(&all, Move::To(WHEEL_TOPIC), &mut done)?;
        Ok(done)
    }
}

impl Shared {
    /// Takes back the messages that were handed over, and ends the waits of those that a broker has delivered. Recovery
    /// has refused the store if some of them still wait in a broker's timer. In a copy of a broker's log, which has no
    /// timer, takes over what waits there.
    pub(super) fn take_back_timed(&self) -> Result<()> {
        let end = self.wheel_end();
        if end == 0 {
            return Ok(());
        }
        if !BrokerTimer::is_known(self.storage.as_ref())? {
            self.take_over_timed()?;
        }
        let timer = BrokerTimer::load(self.storage.as_ref())?;
        let (from, to) = match timer.read_ms {
            0 => (timer.next_entry, Move::To(TIMED_TOPIC)),
            _ if mutated(Mutant::DeliveredTakenBack) => (timer.first_entry, Move::To(TIMED_TOPIC)),
            _ => (timer.first_entry, Move::Delivered),
        };
        let mut done = HandedOver::default();
        let waiting = self.handed_over(from)?;
        self.move_timed(&waiting, to, &mut done)?;
        if let Some(why) = done.left.into_iter().next() {
            return Err(Error::MessageNotFound { what: why });
        }
        let is_reset = timer == BrokerTimer { read_ms: 0, next_entry: end, first_entry: end };
        if is_reset { Ok(()) } else { BrokerTimer::reset(self.storage.as_ref(), end) }
    }

    /// Returns the queue offset that the next message in a broker's timer gets.
    fn wheel_end(&self) -> u64 {
        self.inner.lock().queue(WHEEL_TOPIC, TIMED_QUEUE).map_or(0, crate::index::consume_queue::ConsumeQueue::next)
    }

    /// Returns the messages that wait in the timer's queue from the entry `from` on.
    fn handed_over(&self, from: u64) -> Result<Vec<Timed>> {
        let mut found = Vec::new();
        self.each_entry(WHEEL_TOPIC, from, |entry| {
            let timed = self.log.read(entry.physical_offset, self.log.appended(), |view, _| {
                let due_ms = due_ms(view).filter(|_| is_waiting(view))?;
                Some(Timed { due_ms, physical_offset: view.physical_offset.0 })
            });
            found.extend(timed.ok().flatten());
            Ok(())
        })?;
        let inner = self.inner.lock();
        found.retain(|message| inner.derived.timed.contains(*message));
        Ok(found)
    }

    /// Calls `each` with every entry of a timer's queue from the entry `from` on.
    pub(super) fn each_entry(&self, topic: &str, from: u64, mut each: impl FnMut(&Entry) -> Result<()>) -> Result<()> {
        let first = self.inner.lock().queue(topic, TIMED_QUEUE).map(|queue| queue.first);
        let Some(mut next) = first.map(|first| from.max(first)) else { return Ok(()) };
        loop {
            let entries = self.entries(topic, TIMED_QUEUE, next, to_u64(MESSAGES_MAX))?;
            if entries.is_empty() {
                return Ok(());
            }
            next += to_u64(entries.len());
            for entry in entries.iter().filter(|entry| !entry.is_padding()) {
                each(entry)?;
            }
        }
    }

    pub(super) fn move_timed(&self, all: &[Timed], to: Move, done: &mut HandedOver) -> Result<()> {
        let mut rest = all;
        while !rest.is_empty() {
            let (mut records, mut bytes) = (Vec::new(), 0);
            for message in rest.iter().take(MESSAGES_MAX) {
                let offset = PhysicalOffset(message.physical_offset);
                let record = self.log.read(offset, self.log.appended(), |_, bytes| StoredRecord::new(bytes, offset));
                bytes += record.as_ref().map_or(0, |record| to_u64(record.bytes().len()));
                if bytes > BYTES_MAX && !records.is_empty() {
                    break;
                }
                records.push((*message, record));
            }
            rest = rest.get(records.len()..).unwrap_or_default();
            let mut inner = self.lock_to_send(Wait::Yes)?;
            self.move_in(&mut inner, &records, to, done)?;
            inner.unlogged_changes += 1;
            let purpose = if mutated(Mutant::MoveBeforeSync) { Purpose::Message } else { Purpose::Move };
            self.unacknowledged(inner, purpose, ()).acknowledged()?;
        }
        Ok(())
    }

    /// Moves messages in one write. One that cannot be moved is named in `done`, and waits as before.
    fn move_in(
        &self,
        inner: &mut Inner,
        records: &[(Timed, Result<StoredRecord>)],
        to: Move,
        done: &mut HandedOver,
    ) -> Result<()> {
        let mut batch = Batch::begin(self, inner, Purpose::Move)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let mut moved = Vec::with_capacity(records.len());
        for (message, record) in records {
            let pushed = match record {
                Ok(record) => self.push_move(&mut batch, *message, record, to, &mut text),
                Err(error) => Err(Error::MessageNotFound { what: error.to_string() }),
            };
            match pushed {
                Ok(begins) => moved.push((*message, begins)),
                Err(error @ (Error::InvalidMessage { .. } | Error::MessageNotFound { .. })) => {
                    done.left.push(format!("the timed message at {} is left: {error}", message.physical_offset));
                }
                Err(error) => return Err(error),
            }
        }
        batch.inner.scratch = text;
        batch.write(Wait::Yes)?;
        done.messages += to_u64(moved.len());
        let timed = &mut batch.inner.derived.timed;
        for (ended, begins) in moved {
            timed.remove(ended);
            begins.map(|message| timed.insert(message));
        }
        Ok(())
    }

    /// Adds the record that ends a message's wait, and returns the wait that it begins.
    fn push_move(
        &self,
        batch: &mut Batch<'_>,
        message: Timed,
        record: &StoredRecord,
        to: Move,
        text: &mut Vec<u8>,
    ) -> Result<Option<Timed>> {
        let view = record.view()?;
        let Move::To(topic) = to else {
            let unique_id = view.unique_id().unwrap_or_default();
            self.push_end_of_wait(
                batch,
                view.properties.get_str(REAL_TOPIC).unwrap_or_default(),
                unique_id,
                message,
                text,
            )?;
            return Ok(None);
        };
        let draft = moved_draft(&view, topic, message.due_ms, self.options.store_host, text);
        let keys = IndexKeys {
            topic_hash: java::topic_hash(topic),
            unique_id: view.unique_id(),
            keys: view.properties.get_str(KEYS),
        };
        let placed = batch.push(&draft, java::tags_code(view.properties.get_str(TAGS)), Some(&keys))?;
        Ok(Some(Timed { physical_offset: placed.physical_offset.0, ..message }))
    }
}
