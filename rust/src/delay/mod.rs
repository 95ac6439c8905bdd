//! Delay: messages that are to be delivered later, as RocketMQ's delay levels have it; pure.
//!
//! In: messages with a level, records of the schedule topic. Out: where such a message waits, when it is due, what is
//! delivered in its stead. Always: what is delivered is the message as it was sent, and names the record that it was.
//! Not here: when it is due by this process's clocks (`due`), appending, how far each level is (`progress`).
//!
//! ```text
//! sent, level 3 ─► SCHEDULE_TOPIC_XXXX, queue 2    + REAL_TOPIC, REAL_QID; its entry's tags code is the time of delivery
//!                        │ due
//!                        ▼
//!                  its topic and queue             less these and DELAY; prepared transaction offset = where it waited
//! ```

mod due;
mod progress;

pub use due::{DueTimes, Moment};
pub use progress::{DelayOffsets, DelayProgress};

use std::net::SocketAddr;

use crate::message::DELAY_LEVEL_MAX;
use crate::names::{HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, valid_path_component};
use crate::record::layout::SYS_TRANSACTION_MASK;
use crate::record::properties::{self, DELAY, REAL_QUEUE_ID, REAL_TOPIC, TIMER_DELAY_SEC, TIMER_DELIVER_MS};
use crate::record::{Draft, RecordView, TransactionType};
use crate::units::{QueueId, TimestampMs};

/// RocketMQ's delay levels 1 to 18, in milliseconds (`messageDelayLevel`).
const LEVELS_MS: [i64; 18] = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
    600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
];

/// The properties that make a record wait, and are not delivered: all that a broker clears, and what hides the topic.
pub const WAITING: &[&str] = &[DELAY, REAL_TOPIC, REAL_QUEUE_ID, TIMER_DELIVER_MS, TIMER_DELAY_SEC];

/// How long a message of this level waits, in milliseconds; a level above the highest is the highest.
pub fn level_ms(level: usize) -> i64 {
    level.checked_sub(1).map_or(0, |index| LEVELS_MS.get(index).or(LEVELS_MS.last()).copied().unwrap_or(0))
}

/// The queue in which messages of this level wait.
pub fn queue_of(level: u8) -> QueueId {
    QueueId(i32::from(level.clamp(1, DELAY_LEVEL_MAX)) - 1)
}

/// Notes in a message's properties where it is to be delivered.
pub fn hide(topic: &str, queue_id: QueueId, text: &mut Vec<u8>) {
    properties::push(text, REAL_TOPIC, topic);
    properties::push(text, REAL_QUEUE_ID, itoa::Buffer::new().format(queue_id.0));
}

/// How long the messages of a queue wait, in milliseconds; `None` for a level that only a broker knows.
fn level_of(queue_id: QueueId) -> Option<i64> {
    LEVELS_MS.get(usize::try_from(queue_id.0).ok()?).copied()
}

/// When a message of this level that is stored `now` is to be delivered, by the wall clock. The store time will not do:
/// it stays ahead for as long as the clock was ahead once.
pub fn delivery_ms(level: u8, now: TimestampMs) -> i64 {
    now.0.saturating_add(level_ms(level.into()))
}

/// What is delivered for a record of the schedule topic, or why nothing can be.
pub fn delivery_draft<'a>(
    waiting: &RecordView<'a>,
    store_host: SocketAddr,
    text: &'a mut Vec<u8>,
) -> Result<Draft<'a>, String> {
    let topic = waiting.properties.get_str(REAL_TOPIC).unwrap_or_default();
    let queue_id = waiting.properties.get_str(REAL_QUEUE_ID).and_then(|id| id.parse().ok()).unwrap_or(-1);
    let own = [SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC].contains(&topic);
    if !valid_path_component(topic) || queue_id < 0 || own {
        return Err(format!("it names queue {queue_id} of topic {topic:?}, which cannot be"));
    }
    text.clear();
    properties::copy_without(waiting.properties, WAITING, text);
    Ok(Draft {
        topic,
        queue_id: QueueId(queue_id),
        flag: waiting.flag,
        // A broker's retry of a committed message keeps its bits; it is no transaction's record any more.
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

/// Whether `delivered`, which names the place of `waiting`, is what became of it.
pub fn is_delivery_of(delivered: &RecordView<'_>, waiting: &RecordView<'_>) -> bool {
    delivered.transaction_type() == TransactionType::None
        && waiting.topic == SCHEDULE_TOPIC
        && waiting.properties.get_str(REAL_TOPIC) == Some(delivered.topic)
        && delivered.unique_id().is_some()
        && waiting.unique_id() == delivered.unique_id()
}

#[cfg(test)]
mod tests;
