//! Messages that are delivered at a given time.
//!
//! In:     messages with a time, records of the topic in which they wait.
//! Out:    which messages wait (`Waiting`), and the records that begin and end a wait.
//! Always: a wait is ended by one record that names the waiting record: the delivered message, a recall, or the same
//!         message in a broker's timer. So the log alone tells which messages wait.
//! Not here: appending, reading the log, the clock.
//!
//! ```text
//! sent, or its transaction committed ─► rmq_sys_txstore_timed, queue 0   + REAL_TOPIC, REAL_QID, TIMER_OUT_MS
//!                                          │ due          │ recalled
//!                                          ▼              ▼
//!                         its topic and queue             a record of the same topic with TIMER_DEL_UNIQKEY
//!                         prepared transaction offset = offset of the waiting record, in all
//!
//! handed over to a broker: ─► rmq_sys_wheel_timer, queue 0   TIMER_OUT_MS as a broker rounds it, + TXSTORE_HANDED_OVER_MS
//! taken back from there:   ─► rmq_sys_txstore_timed, queue 0   as before
//! ```

mod waiting;

pub use waiting::{Timed, Waiting};

use std::net::SocketAddr;

use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{TIMED_TOPIC, WHEEL_TOPIC};
use crate::base::units::{PhysicalOffset, QueueId};
use crate::index::delay;
use crate::record::layout::SYS_TRANSACTION_MASK;
use crate::record::properties::{
    self, HANDED_OVER, REAL_QUEUE_ID, REAL_TOPIC, TIMER_DEQUEUE_MS, TIMER_OUT_MS, TIMER_RECALLED,
};
use crate::record::{Draft, RecordView, TransactionType};

/// The queue in which timed messages wait.
pub const TIMED_QUEUE: QueueId = QueueId(0);
/// The properties of a waiting record that are not delivered. Those that tell the time stay, as in RocketMQ.
pub const HIDING: &[&str] = &[REAL_TOPIC, REAL_QUEUE_ID];
/// A broker's timer keeps time in slots of so many milliseconds (`timerPrecisionMs`).
const WHEEL_SLOT_MS: i64 = 1_000;
/// The body of a recall, because no record has an empty one.
pub const RECALL_BODY: &[u8] = b"0";

/// What a record means for the waiting messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// This message no longer waits, if it did and the record ends its wait (`ends`).
    pub ends: Option<Timed>,
    /// The record's message waits.
    pub waits: Option<Timed>,
}

/// Returns what a record means for the waiting messages. `is_any_waiting`: whether it can end a wait at all.
#[inline]
pub fn event(view: &RecordView<'_>, is_any_waiting: bool) -> Event {
    let named = view.prepared_transaction_offset;
    let may_end = is_any_waiting && view.transaction_type() == TransactionType::None && named < view.physical_offset;
    let waits = is_waiting(view);
    // Most records mean nothing for them.
    let Some(due_ms) = (may_end || waits).then(|| due_ms(view)).flatten() else { return Event::default() };
    let at = |physical_offset: PhysicalOffset| Timed { due_ms, physical_offset: physical_offset.0 };
    Event { ends: may_end.then(|| at(named)), waits: waits.then(|| at(view.physical_offset)) }
}

/// Returns whether a record is one in which a message waits: in the topic of txstore, or handed over to a broker's
/// timer. A broker copies the latter when it moves them within its timer; such copies are its own.
#[inline]
pub fn is_waiting(view: &RecordView<'_>) -> bool {
    let kind = view.transaction_type();
    match view.topic {
        TIMED_TOPIC => kind.is_queued() && view.properties.get(TIMER_RECALLED).is_none(),
        WHEEL_TOPIC => {
            let has = |name| view.properties.get(name).is_some();
            kind == TransactionType::None && has(HANDED_OVER) && !has(TIMER_DEQUEUE_MS) && !has(TIMER_RECALLED)
        }
        _ => false,
    }
}

/// Returns when the message of a record is due, or was.
pub fn due_ms(view: &RecordView<'_>) -> Option<i64> {
    let [handed_over, out] = view.properties.get_all([HANDED_OVER, TIMER_OUT_MS]);
    handed_over.or(out)?.parse().ok()
}

/// Returns whether a record that names `waiting` ends its wait.
pub fn ends(ending: &RecordView<'_>, waiting: &RecordView<'_>) -> bool {
    if !is_waiting(waiting) {
        return false;
    }
    let is_recall = || ending.properties.get(TIMER_RECALLED).is_some();
    match ending.topic {
        TIMED_TOPIC if is_recall() => true,
        TIMED_TOPIC | WHEEL_TOPIC if mutated(Mutant::MoveForgotten) => false,
        TIMED_TOPIC | WHEEL_TOPIC => is_waiting(ending) && ending.topic != waiting.topic && is_same(ending, waiting),
        _ => delay::is_delivery_of(ending, waiting, waiting.topic),
    }
}

/// Returns whether two records in which a message waits have the same message.
fn is_same(one: &RecordView<'_>, other: &RecordView<'_>) -> bool {
    one.unique_id().is_some()
        && one.unique_id() == other.unique_id()
        && one.properties.get_str(REAL_TOPIC) == other.properties.get_str(REAL_TOPIC)
}

/// Returns the draft with which a message that waits in one of the two topics waits in the other one, `to`.
pub fn moved_draft<'a>(
    waiting: &RecordView<'a>,
    to: &'static str,
    due_ms: i64,
    store_host: SocketAddr,
    text: &'a mut Vec<u8>,
) -> Draft<'a> {
    text.clear();
    properties::copy_without(waiting.properties, &[TIMER_OUT_MS, HANDED_OVER], text);
    if to == WHEEL_TOPIC {
        set_due(wheel_ms(due_ms), text);
        properties::push(text, HANDED_OVER, itoa::Buffer::new().format(due_ms));
    } else {
        set_due(due_ms, text);
    }
    Draft {
        topic: to,
        queue_id: TIMED_QUEUE,
        flag: waiting.flag,
        sys_flag: waiting.sys_flag & !SYS_TRANSACTION_MASK,
        born_timestamp: waiting.born_timestamp,
        born_host: waiting.born_host.address(),
        store_host,
        reconsume_times: waiting.reconsume_times,
        prepared_transaction_offset: waiting.physical_offset,
        body: waiting.body,
        body_crc: Some(waiting.body_crc),
        properties: text,
    }
}

/// Returns the `TIMER_OUT_MS` of a message in a broker's timer: the whole second before its time. The broker delivers
/// what is in a second when that second is over, and looks for a recalled message in the second that this rule gives.
pub const fn wheel_ms(due_ms: i64) -> i64 {
    due_ms.saturating_sub(1).div_euclid(WHEEL_SLOT_MS) * WHEEL_SLOT_MS
}

/// Returns when a broker delivers what is in its timer with a `TIMER_OUT_MS`: when the second is over.
pub const fn wheel_end_ms(out_ms: i64) -> i64 {
    out_ms.saturating_add(WHEEL_SLOT_MS)
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
