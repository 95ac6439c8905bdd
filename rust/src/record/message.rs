//! Checks and encodes an application's message once.
//!
//! In:     topic, tags, keys, properties as the application wrote them.
//! Out:    an `Envelope` with the properties' text as the record will hold it.
//! Always: no separator hides in a name or value; no reserved name is set.
//! Not here: the body, which is borrowed at each call.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names;
use crate::base::units::TimestampMs;
use crate::record::layout::{PROPERTIES_MAX, SYS_COMPRESSED, SYS_COMPRESSION_MASK};
use crate::record::properties::{
    self, DELAY, HANDED_OVER, KEY_SEPARATOR, KEYS, PRODUCER_GROUP, Properties, REAL_QUEUE_ID, REAL_TOPIC, SHARDING_KEY,
    TAGS, TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_RECALLED, TRANSACTION_CHECK_TIMES, TRANSACTION_ID,
    TRANSACTION_PREPARED, TRANSACTION_PREPARED_QUEUE_OFFSET, TRANSACTION_SET, TRANSACTION_TIMER, UNIQUE_KEY,
};
use crate::record::timer::{TIMERS, Timer};

/// The highest of RocketMQ's delay levels.
pub const DELAY_LEVEL_MAX: u8 = 18;

/// The properties that only the engine sets, and adds again where needed. A half message that arrived with one of these
/// would be mistaken for a broker's copy of a half message, and a message with a time for the recall of another, or
/// for one of another time.
pub(crate) const ENGINES_OWN: &[&str] = &[
    UNIQUE_KEY,
    TRANSACTION_PREPARED,
    PRODUCER_GROUP,
    REAL_TOPIC,
    REAL_QUEUE_ID,
    TRANSACTION_ID,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    TRANSACTION_SET,
    TRANSACTION_TIMER,
    TIMER_OUT_MS,
    TIMER_RECALLED,
    HANDED_OVER,
];

/// A message without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The topic.
    pub topic: Arc<str>,
    /// The properties' text.
    pub properties: Vec<u8>,
    /// The application's own flag.
    pub flag: i32,
    /// 0, or one of RocketMQ's delay levels.
    pub delay_level: u8,
    /// When to deliver it, if that is not at once.
    pub timer: Option<Timer>,
    /// The tags code.
    pub tags_code: i64,
    /// The hash of `TOPIC#`, with which the index hashes of its keys begin.
    pub topic_hash: i32,
    /// What a remote client stated about it; `None` if the message was created in this process.
    pub origin: Option<Origin>,
    /// The range of the keys in `properties`.
    keys: Option<Range<usize>>,
}

/// The values of a message that was created in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The unique id that its producer gave it.
    pub unique_id: Option<String>,
    /// Whether and how the body is compressed. No other bits are accepted from a client.
    pub sys_flag: i32,
    /// When it was created.
    pub born_timestamp: TimestampMs,
    /// The host that created it.
    pub born_host: SocketAddr,
    /// How often it was consumed before.
    pub reconsume_times: i32,
}

/// The parts of a message that an application may set.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    /// The topic.
    pub topic: &'a str,
    /// One tag.
    pub tags: Option<&'a str>,
    /// Keys, separated by spaces.
    pub keys: &'a str,
    /// The application's own names and values.
    pub properties: &'a [(&'a str, &'a str)],
    /// The application's own flag.
    pub flag: i32,
    /// 0, or one of RocketMQ's delay levels.
    pub delay_level: i64,
    /// When to deliver it, in milliseconds since the epoch.
    pub deliver_ms: Option<i64>,
    /// Messages of one group go to one queue.
    pub message_group: Option<&'a str>,
}

/// A topic's checked name, with the hashes computed from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    name: Arc<str>,
    hash: i32,
}

impl Topic {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self> {
        names::validate_topic(name)?;
        Ok(Self { name: name.into(), hash: java::topic_hash(name) })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Envelope {
    /// Checks and encodes a message.
    pub fn new(parts: &Parts<'_>) -> Result<Self> {
        Self::of(Topic::new(parts.topic)?, parts)
    }

    /// Checks and encodes a message whose topic was checked before.
    pub fn of(topic: Topic, parts: &Parts<'_>) -> Result<Self> {
        let delay_level = u8::try_from(parts.delay_level).ok().filter(|level| *level <= DELAY_LEVEL_MAX);
        let delay_level = delay_level.ok_or_else(|| {
            invalid(format!("delay_level must be between 0 and {DELAY_LEVEL_MAX}, got {}", parts.delay_level))
        })?;
        if delay_level > 0 && parts.deliver_ms.is_some() {
            return Err(invalid("delay_level and deliver_at exclude each other\nhint: leave one of them out".into()));
        }
        let mut text = Vec::new();
        if !parts.keys.is_empty() {
            add(&mut text, KEYS, parts.keys)?;
        }
        if let Some(tags) = parts.tags {
            if tags.trim().is_empty() || tags.contains("||") {
                return Err(invalid(format!("{tags:?} is not a tag\nhint: use one word, or None for no tag")));
            }
            add(&mut text, TAGS, tags)?;
        }
        if delay_level > 0 {
            properties::push(&mut text, DELAY, &delay_level.to_string());
        }
        if let Some(deliver_ms) = parts.deliver_ms {
            properties::push(&mut text, TIMER_DELIVER_MS, itoa::Buffer::new().format(deliver_ms));
        }
        if let Some(group) = parts.message_group {
            add(&mut text, SHARDING_KEY, group)?;
        }
        for (name, value) in parts.properties {
            if properties::is_reserved(name) || ENGINES_OWN.contains(name) {
                return Err(invalid(format!(
                    "property {name:?} is RocketMQ's own\nhint: tags, keys, delay_level, deliver_at and message_group are arguments; where a message is forwarded, leave it out; else choose another name"
                )));
            }
            add(&mut text, name, value)?;
        }
        // One check covers all sends. What the engine adds is checked when the record is encoded.
        if text.len() > PROPERTIES_MAX {
            return Err(invalid(format!(
                "the properties have {} bytes; at most {PROPERTIES_MAX} are allowed",
                text.len()
            )));
        }
        Ok(Self {
            topic: topic.name,
            tags_code: java::tags_code(parts.tags),
            topic_hash: topic.hash,
            keys: Properties(&text).range_of(KEYS),
            properties: text,
            flag: parts.flag,
            delay_level,
            timer: parts.deliver_ms.map(|deliver_ms| Timer::At(TimestampMs(deliver_ms))),
            origin: None,
        })
    }

    /// Creates the envelope of a message that a client sent. `properties` is the received text. Properties that only
    /// the engine may set are removed, so that no client can forge them.
    pub fn received(topic: Topic, properties: &str, flag: i32, mut origin: Origin) -> Result<Self> {
        let came = Properties(properties.as_bytes());
        if properties.len() > PROPERTIES_MAX {
            let what = format!("the properties have {} bytes; at most {PROPERTIES_MAX} are allowed", properties.len());
            return Err(invalid(what));
        }
        let timer = Timer::of(came)?;
        origin.sys_flag &= SYS_COMPRESSED | SYS_COMPRESSION_MASK;
        origin.unique_id = came.get_str(UNIQUE_KEY).map(str::to_owned);
        let level = came.get_str(DELAY).map_or(Ok(0), str::parse::<i32>);
        let level = level.map_err(|_| invalid("property DELAY is not a number".into()))?;
        let mut text = Vec::with_capacity(properties.len());
        let forgeable: &[&str] = if mutated(Mutant::ForgedPropertiesKept) { &[] } else { ENGINES_OWN };
        // The timer of a message that has none, as of one that was delivered at its time and is sent on, is void.
        let void: &[&str] = if timer.is_some() { &[] } else { TIMERS };
        let dropped: Vec<&str> = forgeable.iter().chain(void).copied().collect();
        properties::copy_without(came, &dropped, &mut text);
        Ok(Self {
            topic: topic.name,
            tags_code: java::tags_code(Properties(&text).get_str(TAGS)),
            topic_hash: topic.hash,
            keys: Properties(&text).range_of(KEYS),
            // A broker reduces a higher level to the highest one.
            delay_level: u8::try_from(level.max(0)).unwrap_or(u8::MAX).min(DELAY_LEVEL_MAX),
            timer,
            properties: text,
            flag,
            origin: Some(origin),
        })
    }

    /// Returns the unique id that its producer gave it.
    pub fn unique_id(&self) -> Option<&str> {
        self.origin.as_ref().and_then(|origin| origin.unique_id.as_deref())
    }

    /// Returns its keys, separated by spaces.
    pub fn keys(&self) -> Option<&str> {
        std::str::from_utf8(self.properties.get(self.keys.clone()?)?).ok()
    }
}

/// Checks that a body may be stored.
pub fn check_body(body: &[u8], max_message_size: u32) -> Result<()> {
    if body.is_empty() {
        return Err(invalid(
            "the body is empty\nhint: RocketMQ stores no empty messages; send at least one byte".into(),
        ));
    }
    if u32::try_from(body.len()).map_or(true, |length| length > max_message_size) {
        return Err(invalid(format!(
            "the body has {} bytes, max_message_size allows {max_message_size}\nhint: store the body elsewhere and send a reference to it, or raise the option",
            body.len()
        )));
    }
    Ok(())
}

/// Adds a key to the keys of a message, which spaces separate.
pub fn push_key(words: &mut String, key: &str) -> Result<()> {
    if key.is_empty() || key.contains(KEY_SEPARATOR) {
        return Err(invalid(format!("key {key:?} is empty or contains a space\nhint: spaces separate keys")));
    }
    if !words.is_empty() {
        words.push(KEY_SEPARATOR);
    }
    words.push_str(key);
    Ok(())
}

fn add(text: &mut Vec<u8>, name: &str, value: &str) -> Result<()> {
    if name.is_empty() {
        return Err(invalid("a property has an empty name".into()));
    }
    if value.is_empty() {
        // RocketMQ treats an empty value as missing, so it would be lost silently.
        return Err(invalid(format!(
            "property {name:?} is empty\nhint: RocketMQ does not keep empty values; omit the property"
        )));
    }
    for part in [name, value] {
        if let Some(found) = part.chars().find(|found| matches!(found, '\0' | '\u{1}' | '\u{2}')) {
            return Err(invalid(format!(
                "property {name:?} contains {found:?}\nhint: \\x00, \\x01 and \\x02 separate properties on disk; leave them out"
            )));
        }
    }
    properties::push(text, name, value);
    Ok(())
}

fn invalid(what: String) -> Error {
    Error::InvalidMessage { what }
}
