//! Appends messages that may already be in the log, each once.
//!
//! In:     messages whose producer gave them unique ids, as the rows of an outbox have them.
//! Out:    for each, whether it was appended now, was there before, or may have been there before.
//! Always: one call at a time looks ids up and appends, so two calls never append one message twice. An id is found in
//!         the index, which covers the whole log, so nothing else is remembered.
//! Not here: who calls again, and when (Python decides this).

use std::collections::BTreeSet;

use super::batch::{Purpose, Unacknowledged, Wait};
use super::{NewMessage, Sent, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::names::SCHEDULE_TOPIC;
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::record::RecordView;
use crate::record::properties::UNIQUE_KEY;

/// What became of a message that may already have been in the log.
#[derive(Clone, Debug)]
pub enum Once {
    /// It was appended by this call.
    Appended(Sent),
    /// A record with its id and topic was there before. Nothing was written.
    Present,
    /// No record with its id is left, but the message is older than the oldest record, so retention may have removed
    /// it. Nothing was written.
    InDoubt,
}

impl Store {
    /// Appends those of the messages that are not in the log yet, in one write.
    ///
    /// Fails with `InvalidMessage` for a message without a unique id.
    pub fn append_once(&self, messages: &[NewMessage<'_>]) -> Result<Unacknowledged<'_, Vec<Once>>> {
        let shared = &*self.shared;
        shared.check_append(messages)?;
        let mut ids = Vec::with_capacity(messages.len());
        for message in messages {
            ids.push(message.envelope.unique_id().ok_or_else(|| Error::InvalidMessage {
                what: "a message without a unique id cannot be appended once".into(),
            })?);
        }
        let _turn = shared.appending_once.lock();
        let present = shared.present(messages, &ids)?;
        let oldest = shared.oldest_stored()?;
        let is_in_doubt = |message: &NewMessage<'_>| {
            let born = message.envelope.origin.as_ref().map(|origin| origin.born_timestamp);
            oldest.is_some_and(|oldest| born.is_none_or(|born| born < oldest))
        };
        // Two rows of one id in a call: the second one is there when its turn comes.
        let mut new = BTreeSet::new();
        let mut fate: Vec<Option<Once>> = Vec::with_capacity(messages.len());
        let mut absent = Vec::new();
        for ((message, id), is_present) in messages.iter().zip(&ids).zip(present) {
            fate.push(if is_present || new.contains(&(&*message.envelope.topic, *id)) {
                Some(Once::Present)
            } else if is_in_doubt(message) {
                Some(Once::InDoubt)
            } else {
                new.insert((&*message.envelope.topic, *id));
                absent.push(*message);
                None
            });
        }
        let mut inner = shared.lock_to_send(Wait::Yes)?;
        let mut sent = Vec::with_capacity(absent.len());
        shared.append_in(&mut inner, &absent, Wait::Yes, |one| sent.push(Once::Appended(one)))?;
        let mut sent = sent.into_iter();
        let done = fate.into_iter().filter_map(|fate| fate.or_else(|| sent.next())).collect();
        Ok(shared.unacknowledged(inner, Purpose::Message, done))
    }
}

impl Shared {
    /// Returns for each message whether the log has a record with its id and topic.
    fn present(&self, messages: &[NewMessage<'_>], ids: &[&str]) -> Result<Vec<bool>> {
        let keys = messages.iter().zip(ids).flat_map(|(message, id)| topics_of(message).map(move |topic| (topic, *id)));
        let candidates = self.candidates_of(keys.map(|(topic, id)| java::index_hash(topic, id)))?;
        let is_present = |(message, id): (&NewMessage<'_>, &&str)| -> Result<bool> {
            for topic in topics_of(message) {
                for physical_offset in candidates.get(&java::index_hash(topic, id)).into_iter().flatten() {
                    if self.is_record(*physical_offset, topic, id)? {
                        return Ok(true);
                    }
                }
            }
            Ok(false)
        };
        messages.iter().zip(ids).map(is_present).collect()
    }

    /// Returns whether the record at an offset has this topic and unique id.
    fn is_record(&self, physical_offset: PhysicalOffset, topic: &str, id: &str) -> Result<bool> {
        let is_it =
            |view: &RecordView<'_>, _: &[u8]| view.topic == topic && view.properties.get_str(UNIQUE_KEY) == Some(id);
        match self.log.read(physical_offset, self.log.appended(), is_it) {
            // The index may still contain records that retention removed.
            Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => Ok(false),
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

/// Returns the topics under which the index may have a message. A delayed one is first stored in the schedule topic.
fn topics_of<'a>(message: &NewMessage<'a>) -> impl Iterator<Item = &'a str> {
    let delayed = (message.envelope.delay_level > 0).then_some(SCHEDULE_TOPIC);
    [&*message.envelope.topic].into_iter().chain(delayed)
}
