//! Chooses messages by what a consumer subscribed to: tags or an SQL92 expression.
//!
//! In:     tags, or the text of an expression.
//! Out:    whether a message is wanted.
//! Always: the rules are RocketMQ's. Text is parsed once, and one evaluation takes time that is bounded by its length.
//! Not here: which group subscribed to what.

pub mod sql92;

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::java;
use crate::record::RecordView;
use crate::record::properties::TAGS;
use sql92::Expression;

/// The approximate maximum of messages that one request of a client skips because of their tags. Then the answer names
/// the next offset, because a search through a long queue would delay other clients.
const SKIPPED_MAX: u64 = 16_384;
/// The same for an SQL92 expression, which needs each record and not only its queue entry.
const SKIPPED_RECORDS_MAX: u64 = 2_048;

/// What a consumer wants of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Messages with one of these tags.
    Tags(Tags),
    /// Messages whose properties fulfil an SQL92 expression.
    Sql(Arc<Expression>),
}

/// Tags and their codes, which queue entries contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    tags: Box<[String]>,
    codes: Box<[i64]>,
}

impl Selector {
    /// Selects messages with one of some tags.
    pub fn tags(tags: impl IntoIterator<Item = String>) -> Self {
        let tags: Box<[String]> = tags.into_iter().collect();
        let codes = tags.iter().map(|tag| java::tags_code(Some(tag))).collect();
        Self::Tags(Tags { tags, codes })
    }

    /// Selects messages by RocketMQ's tag expression, such as `a || b`. `None`: all messages.
    pub fn of_tag_expression(expression: &str) -> Option<Self> {
        let tags: Vec<String> =
            expression.split("||").map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        (!tags.is_empty() && !tags.iter().any(|tag| tag == "*")).then(|| Self::tags(tags))
    }

    /// Selects messages by an SQL92 expression. Fails with `InvalidOption` and the position in it.
    pub fn sql(expression: &str) -> Result<Self> {
        Ok(Self::Sql(Arc::new(Expression::parse(expression)?)))
    }

    /// Returns false if a queue entry's tag code alone shows that the message is not wanted.
    pub fn may_match(&self, tags_code: i64) -> bool {
        match self {
            Self::Tags(tags) => tags.codes.contains(&tags_code),
            Self::Sql(_) => true,
        }
    }

    /// Returns whether a message is wanted. Compares the tags, because tag codes collide.
    pub fn matches(&self, view: &RecordView<'_>) -> bool {
        match self {
            Self::Tags(wanted) => {
                view.properties.get_str(TAGS).is_some_and(|tag| wanted.tags.iter().any(|wanted| wanted == tag))
            }
            Self::Sql(expression) => expression.matches(|name| view.properties.get_str(name)),
        }
    }
}

/// Returns how many messages one request of a client may skip.
pub const fn skipped_max(selector: Option<&Selector>) -> u64 {
    match selector {
        Some(Selector::Sql(_)) => SKIPPED_RECORDS_MAX,
        Some(Selector::Tags(_)) | None => SKIPPED_MAX,
    }
}
