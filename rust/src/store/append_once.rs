//! Appends messages that may already be in the log, each once.
//!
//! In:     messages whose producer gave them unique ids, as the rows of an outbox have them.
//! Out:    for each, whether it was appended now, was there before, or may have been there before.
//! Always: one call at a time looks ids up and appends, so two calls never append one message twice. An id is found in
//!         the index, which covers the whole log, so nothing else is remembered.
//! Not here: who calls again, and when (Python decides this).

use std::collections::BTreeMap;

use super::batch::{Purpose, Unacknowledged, Wait};
use super::{NewHalfMessage, NewMessage, Sent, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::names::{SCHEDULE_TOPIC, TIMED_TOPIC};
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::record::RecordView;
use crate::record::message_id::MessageId;
use crate::record::properties::{TIMER_OUT_MS, UNIQUE_KEY};

/// What became of a message that may already have been in the log.
#[derive(Clone, Debug)]
pub enum Once {
    /// It was appended by this call.
    Appended(Sent),
    /// A record with its id and topic was there before, at these offsets. Nothing was written.
    Present(Sent),
    /// No record with its id is left, but the message is older than the oldest record, so retention may have removed
    /// it. Nothing was written.
    InDoubt,
}

/// What becomes of one message of a call. An index is that of a message that the call appends.
enum Fate {
    Known(Once),
    New(usize),
    SameAs(usize),
}

impl Store {
    /// Appends those of the messages that are not in the log yet, in one write.
    ///
    /// Fails with `InvalidMessage` for a message without a unique id.
    pub fn append_once(&self, messages: &[NewMessage<'_>]) -> Result<Unacknowledged<'_, Vec<Once>>> {
        let _turn = self.shared.appending_once.lock();
        self.append_absent(messages)
    }

    /// Does the same for a client, which may send messages that this process has appended or will append.
    pub fn append_once_for_client(&self, messages: &[NewMessage<'_>]) -> Result<Unacknowledged<'_, Vec<Once>>> {
        let mut by_client = self.shared.appending_once.lock();
        *by_client = true;
        self.append_absent(messages)
    }

    /// Appends messages that this process has not appended before. Looks for them only if a client may have sent them:
    /// another process may forward the rows of one that has been stopped for long.
    pub fn append_own(&self, messages: &[NewMessage<'_>], wait: Wait) -> Result<Unacknowledged<'_, Vec<Once>>> {
        let turn = &self.shared.appending_once;
        let by_client = match wait {
            Wait::Yes => turn.lock(),
            Wait::No => turn.try_lock().ok_or(Error::WouldWait)?,
        };
        if *by_client {
            return if wait == Wait::Yes { self.append_absent(messages) } else { Err(Error::WouldWait) };
        }
        Ok(self.append(messages, wait)?.map(|sent| sent.into_iter().map(Once::Appended).collect()))
    }

    /// Appends messages that are absent, for the holder of `appending_once`.
    fn append_absent(&self, messages: &[NewMessage<'_>]) -> Result<Unacknowledged<'_, Vec<Once>>> {
        let shared = &*self.shared;
        shared.check_append(messages)?;
        let mut ids = Vec::with_capacity(messages.len());
        for message in messages {
            ids.push(message.envelope.unique_id().ok_or_else(|| Error::InvalidMessage {
                what: "a message without a unique id cannot be appended once".into(),
            })?);
        }
        let present = shared.present(messages, &ids)?;
        let oldest = shared.oldest_stored()?;
        let is_in_doubt = |message: &NewMessage<'_>| {
            let born = message.envelope.origin.as_ref().map(|origin| origin.born_timestamp);
            oldest.is_some_and(|oldest| born.is_none_or(|born| born < oldest))
        };
        // Two rows of one id in a call: the second one is there when its turn comes.
        let mut new = BTreeMap::new();
        let mut fate = Vec::with_capacity(messages.len());
        let mut absent = Vec::new();
        for ((message, id), found) in messages.iter().zip(&ids).zip(present) {
            fate.push(if let Some(sent) = found {
                Fate::Known(Once::Present(sent))
            } else if let Some(first) = new.get(&(&*message.envelope.topic, *id)) {
                Fate::SameAs(*first)
            } else if is_in_doubt(message) {
                Fate::Known(Once::InDoubt)
            } else {
                new.insert((&*message.envelope.topic, *id), absent.len());
                absent.push(*message);
                Fate::New(absent.len() - 1)
            });
        }
        let mut inner = shared.lock_to_send(Wait::Yes)?;
        let mut sent = Vec::with_capacity(absent.len());
        shared.append_in(&mut inner, &absent, Wait::Yes, |one| sent.push(one))?;
        let done = fate.into_iter().filter_map(|fate| match fate {
            Fate::Known(once) => Some(once),
            Fate::New(index) => sent.get(index).cloned().map(Once::Appended),
            Fate::SameAs(index) => sent.get(index).cloned().map(|sent| Once::Present(Sent { size: 0, ..sent })),
        });
        let done = done.collect();
        Ok(shared.unacknowledged(inner, Purpose::Message, done))
    }
}

impl Store {
    /// Stores a half message that another node sends, and may have sent before. Fails with `AlreadyEnded` if its
    /// transaction has ended here, however long ago, as long as its half message is in the log.
    pub fn prepare_once(&self, half: &NewHalfMessage<'_>, wait: Wait) -> Result<Unacknowledged<'_, Sent>> {
        let id = half.unique_id.ok_or_else(|| Error::InvalidMessage {
            what: "a half message without a unique id cannot be stored once".into(),
        })?;
        // `prepare` recognizes one that is pending, and one that ended while this looks.
        match self.transaction(id) {
            Ok(row) if row.group.as_deref() == Some(half.group) && row.topic == *half.message.envelope.topic => {
                if let Some(outcome) = row.outcome {
                    return Err(Error::AlreadyEnded { transaction: id.to_owned(), outcome });
                }
            }
            Ok(_) | Err(Error::TransactionNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        self.prepare(half, wait)
    }
}

impl Shared {
    /// Returns for each message the record with its id and topic, if the log has one.
    fn present(&self, messages: &[NewMessage<'_>], ids: &[&str]) -> Result<Vec<Option<Sent>>> {
        let keys = messages.iter().zip(ids).flat_map(|(message, id)| topics_of(message).map(move |topic| (topic, *id)));
        let candidates = self.candidates_of(keys.map(|(topic, id)| java::index_hash(topic, id)))?;
        let present = |(message, id): (&NewMessage<'_>, &&str)| -> Result<Option<Sent>> {
            for topic in topics_of(message) {
                for physical_offset in candidates.get(&java::index_hash(topic, id)).into_iter().flatten() {
                    if let Some(found) = self.record_of(*physical_offset, topic, id)? {
                        return Ok(Some(found));
                    }
                }
            }
            Ok(None)
        };
        messages.iter().zip(ids).map(present).collect()
    }

    /// Returns the offsets of the record at an offset, if it has this topic and unique id.
    fn record_of(&self, physical_offset: PhysicalOffset, topic: &str, id: &str) -> Result<Option<Sent>> {
        let sent = |view: &RecordView<'_>, _: &[u8]| {
            (view.topic == topic && view.properties.get_str(UNIQUE_KEY) == Some(id)).then(|| Sent {
                unique_id: MessageId::Text(id.into()),
                physical_offset,
                queue_offset: view.queue_offset,
                queue_id: view.queue_id,
                size: 0,
                due_ms: Some(topic == TIMED_TOPIC)
                    .filter(|waits| *waits)
                    .and_then(|_| view.properties.get_str(TIMER_OUT_MS)?.parse().ok()),
            })
        };
        match self.log.read(physical_offset, self.log.appended(), sent) {
            // The index may still contain records that retention removed.
            Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => Ok(None),
            found => found,
        }
    }

    /// Returns when the oldest record was stored, if older ones were removed.
    fn oldest_stored(&self) -> Result<Option<TimestampMs>> {
        let first = self.log.segments.first();
        if first == 0 {
            return Ok(None);
        }
        match self.log.read(PhysicalOffset(first), self.log.appended(), |view, _| view.store_timestamp) {
            Ok(stored) => Ok(Some(stored)),
            Err(Error::MessageNotFound { .. }) => Ok(Some(TimestampMs(i64::MAX))),
            Err(error) => Err(error),
        }
    }
}

/// Returns the topics under which the index may have a message. A delayed or timed one first waits in a topic
/// of the system.
fn topics_of<'a>(message: &NewMessage<'a>) -> impl Iterator<Item = &'a str> {
    let delayed = (message.envelope.delay_level > 0).then_some(SCHEDULE_TOPIC);
    let timed = message.envelope.timer.map(|_| TIMED_TOPIC);
    [&*message.envelope.topic].into_iter().chain(delayed).chain(timed)
}
