//! Messages with RocketMQ's delay levels. Pure functions.
//!
//! In:     messages with a level, records of the schedule topic.
//! Out:    the queue of such a message, its due time, and the draft to deliver.
//! Always: the delivered message is the message as it was sent, and names the delayed record.
//! Not here: the due time on this process's clocks (`due`), appending, the progress of each level (`progress`).
//!
//! ```text
//! sent, level 3 ─► SCHEDULE_TOPIC_XXXX, queue 2    + REAL_TOPIC, REAL_QID; tags code in its entry = delivery time
//!                        │ due
//!                        ▼
//!                  its topic and queue             without these, DELAY; prepared transaction offset = old offset
//! ```

mod due;
mod progress;

pub use due::{DueTimes, Moment};
pub use progress::{DelayOffsets, DelayProgress};

use std::net::SocketAddr;

use crate::base::names::{HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMED_TOPIC, WHEEL_TOPIC, valid_path_component};
use crate::base::units::{QueueId, TimestampMs};
use crate::record::layout::SYS_TRANSACTION_MASK;
use crate::record::message::DELAY_LEVEL_MAX;
use crate::record::properties::{self, DELAY, REAL_QUEUE_ID, REAL_TOPIC, TIMER_DELAY_SEC, TIMER_DELIVER_MS};
use crate::record::{Draft, RecordView, TransactionType};

/// RocketMQ's delay levels 1 to 18, in milliseconds (`messageDelayLevel`).
const LEVELS_MS: [i64; 18] = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
    600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
];

/// The properties of a delayed record that are not delivered: those that a broker clears, and those that hide the
/// topic.
pub const WAITING: &[&str] = &[DELAY, REAL_TOPIC, REAL_QUEUE_ID, TIMER_DELIVER_MS, TIMER_DELAY_SEC];

/// Returns the delay of a level in milliseconds. A level above the highest means the highest.
pub fn level_ms(level: usize) -> i64 {
    level.checked_sub(1).map_or(0, |index| LEVELS_MS.get(index).or(LEVELS_MS.last()).copied().unwrap_or(0))
}

/// Returns the queue of the schedule topic for a level.
pub fn queue_of(level: u8) -> QueueId {
    QueueId(i32::from(level.clamp(1, DELAY_LEVEL_MAX)) - 1)
}

/// Adds the real topic and queue to a message's properties.
pub fn hide(topic: &str, queue_id: QueueId, text: &mut Vec<u8>) {
    properties::push(text, REAL_TOPIC, topic);
    properties::push(text, REAL_QUEUE_ID, itoa::Buffer::new().format(queue_id.0));
}

/// Returns the delay of a queue's messages in milliseconds, or `None` for a level that only a broker knows.
fn level_of(queue_id: QueueId) -> Option<i64> {
    LEVELS_MS.get(usize::try_from(queue_id.0).ok()?).copied()
}

/// Returns the wall-clock time to deliver a message of this level that is stored `now`. The store timestamp cannot be
/// used: it stays ahead for as long as the clock was once ahead.
pub fn delivery_ms(level: u8, now: TimestampMs) -> i64 {
    now.0.saturating_add(level_ms(level.into()))
}

/// Returns the draft to deliver for a waiting record, or the reason why there is none. `dropped`: its properties that
/// are not delivered.
pub fn delivery_draft<'a>(
    waiting: &RecordView<'a>,
    dropped: &[&str],
    store_host: SocketAddr,
    text: &'a mut Vec<u8>,
) -> Result<Draft<'a>, String> {
    let topic = waiting.properties.get_str(REAL_TOPIC).unwrap_or_default();
    let queue_id = waiting.properties.get_str(REAL_QUEUE_ID).and_then(|id| id.parse().ok()).unwrap_or(-1);
    let own = [SCHEDULE_TOPIC, TIMED_TOPIC, WHEEL_TOPIC, HALF_TOPIC, OP_TOPIC].contains(&topic);
    if !valid_path_component(topic) || queue_id < 0 || own {
        return Err(format!("it contains the invalid queue {queue_id} of topic {topic:?}"));
    }
    text.clear();
    properties::copy_without(waiting.properties, dropped, text);
    Ok(Draft {
        topic,
        queue_id: QueueId(queue_id),
        flag: waiting.flag,
        // A broker's retry of a committed message keeps these bits, but it no longer belongs to a transaction.
        sys_flag: waiting.sys_flag & !SYS_TRANSACTION_MASK,
        born_timestamp: waiting.born_timestamp,
        born_host: waiting.born_host.address(),
        store_host,
        reconsume_times: waiting.reconsume_times,
        prepared_transaction_offset: waiting.physical_offset,
        body: waiting.body,
        body_crc: Some(waiting.body_crc),
        properties: text,
    })
}

/// Returns whether `delivered`, which names the physical offset of `waiting`, is its delivery from the topic `from`.
pub fn is_delivery_of(delivered: &RecordView<'_>, waiting: &RecordView<'_>, from: &str) -> bool {
    delivered.transaction_type() == TransactionType::None
        && waiting.topic == from
        && waiting.properties.get_str(REAL_TOPIC) == Some(delivered.topic)
        && delivered.unique_id().is_some()
        && waiting.unique_id() == delivered.unique_id()
}

#[cfg(test)]
mod tests;
