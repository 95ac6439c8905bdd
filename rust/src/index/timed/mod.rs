//! Messages that are delivered at a given time.
//!
//! In:     messages with a time, records of the topic in which they wait.
//! Out:    which messages wait (`Waiting`), and the records that begin and end a wait.
//! Always: a wait is ended by one record that names the waiting record: the delivered message, or a recall. So the log
//!         alone tells which messages wait.
//! Not here: appending, reading the log, the clock.
//!
//! ```text
//! sent, or its transaction committed ─► rmq_sys_txstore_timed, queue 0   + REAL_TOPIC, REAL_QID, TIMER_OUT_MS
//!                                          │ due          │ recalled
//!                                          ▼              ▼
//!                         its topic and queue             a record of the same topic with TIMER_DEL_UNIQKEY
//!                         prepared transaction offset = offset of the waiting record, in both
//! ```

mod waiting;

pub use waiting::{Timed, Waiting};

use crate::base::names::TIMED_TOPIC;
use crate::base::units::{PhysicalOffset, QueueId};
use crate::index::delay;
use crate::record::properties::{self, REAL_QUEUE_ID, REAL_TOPIC, TIMER_OUT_MS, TIMER_RECALLED};
use crate::record::{RecordView, TransactionType};

/// The queue in which timed messages wait.
pub const TIMED_QUEUE: QueueId = QueueId(0);
/// The properties of a waiting record that are not delivered. Those that tell the time stay, as in RocketMQ.
pub const HIDING: &[&str] = &[REAL_TOPIC, REAL_QUEUE_ID];
/// The body of a recall, because no record has an empty one.
pub const RECALL_BODY: &[u8] = b"0";

/// What a record means for the waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its message waits.
    Waits(Timed),
    /// This message no longer waits, if it did and the record is a recall or its delivery (`is_delivery_of`).
    Ends(Timed),
}

/// Returns what a record means for the waiting messages. `is_any_waiting`: whether it can end a wait at all.
pub fn event(view: &RecordView<'_>, is_any_waiting: bool) -> Option<Event> {
    let named = view.prepared_transaction_offset;
    let kind = view.transaction_type();
    let due = |physical_offset: PhysicalOffset| {
        let due_ms = view.properties.get_str(TIMER_OUT_MS)?.parse().ok()?;
        Some(Timed { due_ms, physical_offset: physical_offset.0 })
    };
    if view.topic == TIMED_TOPIC && kind.is_queued() && view.properties.get(TIMER_RECALLED).is_none() {
        return due(view.physical_offset).map(Event::Waits);
    }
    let may_end = kind == TransactionType::None && is_any_waiting && named < view.physical_offset;
    if may_end { due(named).map(Event::Ends) } else { None }
}

/// Returns whether a record that names `waiting` ends its wait.
pub fn ends(ending: &RecordView<'_>, waiting: &RecordView<'_>) -> bool {
    if ending.topic == TIMED_TOPIC {
        return ending.properties.get(TIMER_RECALLED).is_some() && waiting.topic == TIMED_TOPIC;
    }
    delay::is_delivery_of(ending, waiting, TIMED_TOPIC)
}

/// Adds to a message's properties what hides it until it is due.
pub fn hide(topic: &str, queue_id: QueueId, due_ms: i64, text: &mut Vec<u8>) {
    delay::hide(topic, queue_id, text);
    set_due(due_ms, text);
}

/// Adds when a message is due to the properties of its record, which hide its topic already.
pub fn set_due(due_ms: i64, text: &mut Vec<u8>) {
    properties::push(text, TIMER_OUT_MS, itoa::Buffer::new().format(due_ms));
}

/// Writes the properties of the record that recalls a message.
pub fn recall_properties(topic: &str, unique_id: &str, due_ms: i64, text: &mut Vec<u8>) {
    text.clear();
    set_due(due_ms, text);
    // As in RocketMQ: the topic and the unique id of the message.
    properties::push(text, TIMER_RECALLED, &format!("{topic}_{unique_id}"));
}

#[cfg(test)]
mod tests;
