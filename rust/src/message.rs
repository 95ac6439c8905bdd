//! Message: what an application sends, checked and encoded once.
//!
//! In: topic, tags, keys, properties as the application wrote them. Out: an `Envelope` with the properties' text as the
//! record will hold it. Always: no separator hides in a name or value; no reserved name is set. Not here: the body, which
//! is borrowed at each call.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::java;
use crate::names;
use crate::record::layout::PROPERTIES_MAX;
use crate::record::properties::{self, DELAY, KEYS, Properties, SHARDING_KEY, TAGS};

/// The highest of RocketMQ's delay levels.
pub const DELAY_LEVEL_MAX: u8 = 18;

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
    /// The code of its tags.
    pub tags_code: i64,
    /// The hash that the topic's keys begin with.
    pub topic_hash: i32,
}

/// What an application may say of a message.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    /// The topic.
    pub topic: &'a str,
    /// One tag.
    pub tags: Option<&'a str>,
    /// Keys, separated by spaces.
    pub keys: &'a str,
    /// Names and values of its own.
    pub properties: &'a [(&'a str, &'a str)],
    /// A number of its own.
    pub flag: i32,
    /// 0, or one of RocketMQ's delay levels.
    pub delay_level: u8,
    /// Messages of one group go to one queue.
    pub message_group: Option<&'a str>,
}

/// A topic's name, checked, with what is computed from it once.
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
}

impl Envelope {
    /// Checks and encodes.
    pub fn new(parts: &Parts<'_>) -> Result<Self> {
        Self::of(Topic::new(parts.topic)?, parts)
    }

    /// As `new`, with the topic checked before.
    pub fn of(topic: Topic, parts: &Parts<'_>) -> Result<Self> {
        if parts.delay_level > DELAY_LEVEL_MAX {
            return Err(invalid(format!("delay level {} is not within 0 to {DELAY_LEVEL_MAX}", parts.delay_level)));
        }
        let mut text = Vec::new();
        if !parts.keys.is_empty() {
            add(&mut text, KEYS, parts.keys)?;
        }
        if let Some(tags) = parts.tags {
            if tags.trim().is_empty() || tags.contains("||") {
                return Err(invalid(format!("{tags:?} is not a tag\nhint: one word, or None for no tag")));
            }
            add(&mut text, TAGS, tags)?;
        }
        if parts.delay_level > 0 {
            properties::push(&mut text, DELAY, &parts.delay_level.to_string());
        }
        if let Some(group) = parts.message_group {
            add(&mut text, SHARDING_KEY, group)?;
        }
        for (name, value) in parts.properties {
            if properties::is_reserved(name) {
                return Err(invalid(format!(
                    "property {name:?} is RocketMQ's own\nhint: tags, keys, delay_level and message_group are arguments; else choose another name"
                )));
            }
            add(&mut text, name, value)?;
        }
        // One check for all sends; what the engine adds is checked when the record is encoded.
        if text.len() > PROPERTIES_MAX {
            return Err(invalid(format!(
                "the properties take {} bytes, at most {PROPERTIES_MAX} are allowed",
                text.len()
            )));
        }
        Ok(Self {
            topic: topic.name,
            tags_code: java::tags_code(parts.tags),
            topic_hash: topic.hash,
            properties: text,
            flag: parts.flag,
            delay_level: parts.delay_level,
        })
    }

    /// Its keys, separated by spaces.
    pub fn keys(&self) -> Option<&str> {
        Properties(&self.properties).get_str(KEYS)
    }
}

/// A body that may be stored.
pub fn check_body(body: &[u8], max_message_size: u32) -> Result<()> {
    if body.is_empty() {
        return Err(invalid(
            "the body is empty\nhint: RocketMQ stores no empty messages; send at least one byte".into(),
        ));
    }
    if u32::try_from(body.len()).map_or(true, |length| length > max_message_size) {
        return Err(invalid(format!(
            "the body has {} bytes, max_message_size allows {max_message_size}\nhint: store it elsewhere and send its place, or raise the option",
            body.len()
        )));
    }
    Ok(())
}

fn add(text: &mut Vec<u8>, name: &str, value: &str) -> Result<()> {
    if name.is_empty() {
        return Err(invalid("a property has an empty name".into()));
    }
    if value.is_empty() {
        // RocketMQ reads an empty one as not there, so it would be lost without a word.
        return Err(invalid(format!("property {name:?} is empty\nhint: RocketMQ keeps no empty values; leave it out")));
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
