//! Checks the names of topics and groups, and defines the system's own topics.
//!
//! In:     a name.
//! Out:    nothing, or an error that says what is wrong and what is allowed.
//! Always: RocketMQ 5.4's rules.
//! Not here: whether a topic or group exists.

use crate::base::error::{Error, Result};

/// Holds the half messages.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Holds the op messages.
pub const OP_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Topic of the records that replace lost ones, and producer group of records that no producer sent.
pub const REPAIR_TOPIC: &str = "TXSTORE_REPAIR";
/// The same for records that are too short for the longer name.
pub const SHORT_REPAIR_TOPIC: &str = "~";
/// Holds the discarded half messages.
pub const DISCARD_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// Holds the delayed messages.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Holds the messages that wait for a given time. A broker keeps it as one of its own topics and does not read it.
pub const TIMED_TOPIC: &str = "rmq_sys_txstore_timed";
/// Holds the messages that wait in a RocketMQ 5 broker's own timer. txstore writes there only to hand messages over.
pub const WHEEL_TOPIC: &str = "rmq_sys_wheel_timer";
/// The group whose offsets tell how far half and op messages are processed.
pub const TRANSACTION_GROUP: &str = "CID_RMQ_SYS_TRANS";
/// Prefix of the names of the system's own groups.
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";
/// The topic whose settings a topic gets when its first message creates it.
pub const TEMPLATE_TOPIC: &str = "TBW102";
/// Prefix of a group's retry topic.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of a group's dead letter topic.
pub const DEAD_LETTER_PREFIX: &str = "%DLQ%";

/// Prefix of the topics of a broker's light queues. Their entries lead to messages of other topics.
pub const LIGHT_QUEUE_PREFIX: &str = "%LMQ%";

/// The longest topic, in bytes.
pub const TOPIC_MAX: usize = 127;
/// The longest retry or dead letter topic, in bytes.
pub const RETRY_TOPIC_MAX: usize = 255;
/// The longest group, in bytes. It is short because retry topics contain it.
pub const GROUP_MAX: usize = 120;
/// The longest name of a directory entry on Linux's file systems, in bytes.
pub const PATH_COMPONENT_MAX: usize = 255;

const SYSTEM_PREFIX: &str = "rmq_sys_";
const SYSTEM_TOPICS: &[&str] = &[
    TEMPLATE_TOPIC,
    SCHEDULE_TOPIC,
    "BenchmarkTest",
    HALF_TOPIC,
    "RMQ_SYS_TRACE_TOPIC",
    OP_TOPIC,
    DISCARD_TOPIC,
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
];
const SHOWN_MAX: usize = 64;

/// Returns whether a topic is a system topic.
pub fn is_system_topic(name: &str) -> bool {
    SYSTEM_TOPICS.contains(&name) || name.starts_with(SYSTEM_PREFIX)
}

/// Checks that clients may send to this topic.
pub fn validate_topic(name: &str) -> Result<()> {
    let is_group_topic = name.starts_with(RETRY_PREFIX) || name.starts_with(DEAD_LETTER_PREFIX);
    validate("topic", name, if is_group_topic { RETRY_TOPIC_MAX } else { TOPIC_MAX })?;
    if is_system_topic(name) {
        let what = format!("topic {} is reserved for the system\nhint: use another name", shown(name));
        return Err(Error::InvalidName { what });
    }
    Ok(())
}

/// Checks that a group may have this name.
pub fn validate_group(name: &str) -> Result<()> {
    validate("group", name, GROUP_MAX)
}

/// Returns whether a name may be part of a path below the store. Checked wherever a path is built.
pub fn valid_path_component(name: &str) -> bool {
    (1..=PATH_COMPONENT_MAX).contains(&name.len()) && name.bytes().all(is_allowed) && name != "." && name != ".."
}

fn validate(kind: &str, name: &str, len_max: usize) -> Result<()> {
    if name.is_empty() {
        let what = format!("the {kind} is empty\nhint: 1 to {len_max} characters of a-z A-Z 0-9 _ - % |");
        return Err(Error::InvalidName { what });
    }
    if let Some(bad) = name.chars().find(|char| !u8::try_from(*char).is_ok_and(is_allowed)) {
        let what = format!("{kind} {} contains {bad:?}; allowed are a-z A-Z 0-9 _ - % |", shown(name));
        return Err(Error::InvalidName { what });
    }
    if name.len() > len_max {
        let what = format!("{kind} {} has {} characters; at most {len_max} are allowed", shown(name), name.len());
        return Err(Error::InvalidName { what });
    }
    Ok(())
}

const fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'%' | b'|')
}

/// Returns a name as an error shows it: escaped, and truncated if it is long.
fn shown(name: &str) -> String {
    match name.char_indices().nth(SHOWN_MAX).and_then(|(end, _)| name.get(..end)) {
        Some(beginning) => format!("{beginning:?}…"),
        None => format!("{name:?}"),
    }
}

#[cfg(test)]
mod tests;
