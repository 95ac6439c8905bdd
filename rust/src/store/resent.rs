//! Recognizes half messages that are sent again (T12).
//!
//! In:     half messages whose producer gave them unique ids.
//! Out:    where they are stored, if their transaction is pending.
//! Always: recovery treats all half messages of one identity as one transaction, so another message of a pending
//!         identity is refused. A resend that arrives after its own end is refused, too, because a check would end it
//!         again.
//! Not here: storing them (`append`, `prepare_many`).

use std::collections::BTreeSet;

use super::append::{NewHalfMessage, NewMessage, Sent};
use super::{Inner, Shared};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset};
use crate::record::RecordView;
use crate::record::message::ENGINES_OWN;
use crate::record::message_id::MessageId;
use crate::record::properties::{CLUSTER, MSG_REGION, Properties, TRACE_ON, WAIT};
use crate::record::timer::TIMERS;
use crate::transaction::{HalfCopy, HalfFacts, Identity};

impl Shared {
    /// Finds the half messages of the pending transaction that these messages repeat. `identity` is that of the first.
    /// Returns their positions, in the order of the messages, and the physical offset after the last of them.
    #[cold]
    pub(super) fn resent(
        &self,
        inner: &mut Inner,
        messages: &[NewHalfMessage<'_>],
        identity: Identity,
    ) -> Result<Option<(Vec<Sent>, PhysicalOffset)>> {
        let Some((first, unique_id)) = messages.first().and_then(|first| Some((first, first.unique_id?))) else {
            return Ok(None);
        };
        if mutated(Mutant::NoDedupe) {
            return Ok(None);
        }
        let table = &mut inner.derived.table;
        let Some(pending) = table.find_identity(identity).and_then(|key| table.get(key)) else {
            return match table.recent.outcome(identity, self.clock.monotonic_ms()) {
                Some(outcome) => Err(Error::AlreadyEnded { transaction: unique_id.to_owned(), outcome }),
                None => Ok(None),
            };
        };
        let halves: Vec<HalfCopy> = pending.to_end().collect();
        if halves.len() != messages.len() {
            let what = format!("it has {} messages, not {}", halves.len(), messages.len());
            return Err(another(first, pending.newest, &what));
        }
        let mut sent = Vec::with_capacity(messages.len());
        let mut end = PhysicalOffset(0);
        for (message, half) in messages.iter().zip(halves) {
            let physical_offset = PhysicalOffset(half.physical_offset);
            let same = |view: &RecordView<'_>, _: &[u8]| Ok((difference(view, message)?, view.size));
            let same: std::result::Result<_, &str> = self.log.read(physical_offset, self.log.appended(), same)?;
            if mutated(Mutant::EqualCrcIsAnother) && same == Err(OTHER_BODY) {
                return Ok(None);
            }
            let (queue_id, size) = same.map_err(|what| another(message, half, what))?;
            let queue_id = if mutated(Mutant::ResendNamesItsQueue) { message.message.queue_id } else { queue_id };
            let unique_id = MessageId::Text(message.unique_id.unwrap_or_default().into());
            end = end.max(physical_offset.plus(size.into()));
            let queue_offset = QueueOffset(half.queue_offset);
            sent.push(Sent { unique_id, physical_offset, queue_offset, queue_id, size: 0, due_ms: None });
        }
        Ok(Some((sent, end)))
    }
}

/// Returns the error for another message with the id of a pending one.
pub(super) fn another(message: &NewHalfMessage<'_>, pending: HalfCopy, what: &str) -> Error {
    let (id, group) = (message.unique_id.unwrap_or_default(), message.group);
    let queue_offset = pending.queue_offset;
    Error::InvalidMessage {
        what: format!(
            "transaction {id:?} of group {group:?} is pending with another message (half queue offset {queue_offset}): {what}\nhint: give each message an id of its own, or end the pending one first"
        ),
    }
}

const OTHER_BODY: &str = "its body differs";

/// Describes what differs between a stored half message and one that is sent with its id. If nothing differs, returns
/// the queue of the stored one.
fn difference(stored: &RecordView<'_>, half: &NewHalfMessage<'_>) -> std::result::Result<QueueId, &'static str> {
    let NewMessage { envelope, body, .. } = half.message;
    let facts = HalfFacts::of(stored);
    if (facts.group, facts.unique_id, facts.real_topic) != (half.group, half.unique_id, &*envelope.topic) {
        return Err("group, id or topic differ");
    }
    if stored.body != body {
        return Err(OTHER_BODY);
    }
    if stored.flag != envelope.flag {
        return Err("its flag differs");
    }
    if facts.timer != envelope.timer {
        return Err("its time differs");
    }
    let is_same = own_properties(stored.properties) == own_properties(Properties(&envelope.properties));
    if !is_same && !mutated(Mutant::AnotherMessageJoins) {
        return Err("its keys, tags or properties differ");
    }
    Ok(facts.real_queue_id)
}

/// Returns a message's properties without those that the engine, a broker or the way of sending sets. They have no
/// particular order, because a broker that puts a half message back changes the order.
fn own_properties(properties: Properties<'_>) -> BTreeSet<(&[u8], &[u8])> {
    let others = || ENGINES_OWN.iter().chain(SET_ON_THE_WAY).chain(TIMERS);
    let is_own = |name: &[u8]| !others().any(|other| other.as_bytes() == name);
    properties.iter().filter(|(name, _)| is_own(name)).collect()
}

/// The properties that a broker or a client's way of sending adds or removes.
const SET_ON_THE_WAY: &[&str] = &[WAIT, MSG_REGION, TRACE_ON, CLUSTER];
