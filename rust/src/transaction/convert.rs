//! Converts a real message to its half message and back. Pure functions.
//!
//! In:     properties and offsets.
//! Out:    drafts.
//! Always: the properties that the application set are kept, in their order. The properties that hide the real topic
//!         are added to the half message and removed from the final message.
//! Not here: offsets of the new record, CRC.

use std::net::SocketAddr;

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, TIMED_TOPIC};
use crate::base::options::PUT_BACK_ROOM;
use crate::base::units::{PhysicalOffset, QueueId};
use crate::index::timed::{TIMED_QUEUE, set_due};
use crate::record::layout::{CRC_PROPERTY_LEN, PROPERTIES_MAX, SYS_COMMIT, SYS_TRANSACTION_MASK};
use crate::record::message::Envelope;
use crate::record::properties::{
    self, PRODUCER_GROUP, Properties, REAL_QUEUE_ID, REAL_TOPIC, TIMER_DELIVER_MS, TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID, TRANSACTION_PREPARED, TRANSACTION_SET, TRANSACTION_TIMER, UNIQUE_KEY,
};
use crate::record::timer::TIMERS;
use crate::record::{Draft, RecordView};

use super::set::SetMark;
use super::{HALF_QUEUE, HalfFacts};

/// The names of a half message.
#[derive(Clone, Copy, Debug)]
pub struct HalfNames<'a> {
    /// Its unique id.
    pub unique_id: &'a str,
    /// The transaction id: its unique id, or that of the first message of its set.
    pub transaction_id: &'a str,
    /// Its producer group.
    pub group: &'a str,
    /// Its position in a set.
    pub mark: Option<SetMark>,
}

impl<'a> HalfNames<'a> {
    /// Returns the names of a transaction of one message.
    pub const fn alone(unique_id: &'a str, group: &'a str) -> Self {
        Self { unique_id, transaction_id: unique_id, group, mark: None }
    }
}

/// Writes the properties of the half message of `envelope` to `text`. Checks that a broker could put it back.
pub fn half_properties(
    envelope: &Envelope,
    queue_id: QueueId,
    names: &HalfNames<'_>,
    text: &mut Vec<u8>,
) -> Result<()> {
    let HalfNames { unique_id, transaction_id, group, mark } = *names;
    text.clear();
    match envelope.timer {
        None => text.extend_from_slice(&envelope.properties),
        Some(timer) => {
            properties::copy_without(Properties(&envelope.properties), TIMERS, text);
            properties::push(text, TRANSACTION_TIMER, &timer.to_half());
        }
    }
    properties::push(text, UNIQUE_KEY, unique_id);
    properties::push(text, TRANSACTION_PREPARED, "true");
    properties::push(text, PRODUCER_GROUP, group);
    properties::push(text, REAL_TOPIC, &envelope.topic);
    properties::push(text, REAL_QUEUE_ID, itoa::Buffer::new().format(queue_id.0));
    properties::push(text, TRANSACTION_ID, transaction_id);
    if let Some(mark) = mark {
        properties::push(text, TRANSACTION_SET, &mark.text());
    }
    let most = PROPERTIES_MAX - PUT_BACK_ROOM - CRC_PROPERTY_LEN;
    if text.len() > most {
        return Err(Error::InvalidMessage {
            what: format!("the half message's properties take {} bytes, at most {most} are allowed", text.len()),
        });
    }
    Ok(())
}

/// Returns the draft of a half's final message: in its real topic and queue, committed, with the half's offset.
pub fn final_draft<'a>(
    half: &RecordView<'a>,
    facts: &HalfFacts<'a>,
    is_in_set: bool,
    store_host: SocketAddr,
    text: &'a mut Vec<u8>,
) -> Draft<'a> {
    text.clear();
    let hiding: &[&str] = match (is_in_set, facts.timer) {
        _ if mutated(Mutant::FinalKeepsHiding) => &[],
        (false, None) => &[REAL_TOPIC, REAL_QUEUE_ID],
        _ => &[REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_SET, TRANSACTION_TIMER],
    };
    properties::copy_without(half.properties, hiding, text);
    Draft {
        topic: facts.real_topic,
        queue_id: facts.real_queue_id,
        sys_flag: (half.sys_flag & !SYS_TRANSACTION_MASK) | SYS_COMMIT,
        prepared_transaction_offset: half.physical_offset,
        ..as_is(half, store_host, text)
    }
}

/// Returns the same for a message that then waits until `due_ms`: in the topic of timed messages.
pub fn timed_draft<'a>(half: &RecordView<'a>, due_ms: i64, store_host: SocketAddr, text: &'a mut Vec<u8>) -> Draft<'a> {
    text.clear();
    // The properties that hide the real topic stay, because it remains hidden.
    properties::copy_without(half.properties, &[TRANSACTION_SET, TRANSACTION_TIMER], text);
    properties::push(text, TIMER_DELIVER_MS, itoa::Buffer::new().format(due_ms));
    set_due(due_ms, text);
    Draft {
        topic: TIMED_TOPIC,
        queue_id: TIMED_QUEUE,
        sys_flag: (half.sys_flag & !SYS_TRANSACTION_MASK) | SYS_COMMIT,
        prepared_transaction_offset: half.physical_offset,
        ..as_is(half, store_host, text)
    }
}

/// Returns the draft of a discarded half's copy in the discard topic.
pub fn discard_draft<'a>(half: &RecordView<'a>, store_host: SocketAddr, text: &'a mut Vec<u8>) -> Draft<'a> {
    text.clear();
    properties::copy_without(half.properties, &[], text);
    Draft {
        topic: DISCARD_TOPIC,
        queue_id: QueueId(0),
        sys_flag: half.sys_flag & !SYS_TRANSACTION_MASK,
        prepared_transaction_offset: half.physical_offset,
        ..as_is(half, store_host, text)
    }
}

/// Returns the draft of a new half from a discarded one, as if it was just sent. `mark` is its position in a set.
pub fn resume_draft<'a>(
    discarded: &RecordView<'a>,
    mark: Option<SetMark>,
    store_host: SocketAddr,
    text: &'a mut Vec<u8>,
) -> Draft<'a> {
    text.clear();
    properties::copy_without(discarded.properties, &[TRANSACTION_CHECK_TIMES, TRANSACTION_SET], text);
    properties::push(text, TRANSACTION_CHECK_TIMES, "0");
    if let Some(mark) = mark {
        properties::push(text, TRANSACTION_SET, &mark.text());
    }
    Draft {
        topic: HALF_TOPIC,
        queue_id: HALF_QUEUE,
        sys_flag: discarded.sys_flag & !SYS_TRANSACTION_MASK,
        prepared_transaction_offset: PhysicalOffset(0),
        ..as_is(discarded, store_host, text)
    }
}

fn as_is<'a>(record: &RecordView<'a>, store_host: SocketAddr, properties: &'a [u8]) -> Draft<'a> {
    Draft {
        topic: record.topic,
        queue_id: record.queue_id,
        flag: record.flag,
        sys_flag: record.sys_flag,
        born_timestamp: record.born_timestamp,
        born_host: record.born_host.address(),
        store_host,
        reconsume_times: record.reconsume_times,
        prepared_transaction_offset: record.prepared_transaction_offset,
        body: record.body,
        body_crc: Some(record.body_crc),
        properties,
    }
}
