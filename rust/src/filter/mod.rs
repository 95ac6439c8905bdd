//! Chooses messages by what a consumer subscribed to: tags or an SQL92 expression.
//!
//! In:     tags, or the text of an expression.
//! Out:    whether a message is wanted.
//! Always: the rules are RocketMQ's. Text is parsed once, and a request of a client evaluates no more than its budget.
//! Not here: which group subscribed to what.

pub mod sql92;

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::java;
use crate::base::units::to_u64;
use crate::record::RecordView;
use crate::record::properties::TAGS;
use sql92::Expression;

/// The approximate maximum of messages that one request of a client skips because of their tags. Then the answer names
/// the next offset, because a search through a long queue would delay other clients.
const SKIPPED_MAX: u64 = 16_384;
/// The same for an SQL92 expression, which needs each record and not only its queue entry.
const SKIPPED_RECORDS_MAX: u64 = 2_048;
/// The maximum of messages for an expression in a call that holds a lock of its caller.
const RECORDS_AT_ONCE_MAX: u64 = 1_024;
/// The most that one request of a client evaluates of an SQL92 expression: bytes of messages' properties, each counted
/// as often as the expression names one. At the worst it takes about 0.1 s.
const EVALUATED_MAX: u64 = 64 << 20;

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
            Self::Sql(expression) => expression.matches_properties(view.properties),
        }
    }

    /// Returns what it costs to decide about a message.
    fn cost(&self, view: &RecordView<'_>) -> u64 {
        match self {
            Self::Tags(_) => 0,
            Self::Sql(expression) => to_u64(view.properties.0.len()).saturating_mul(expression.uses()),
        }
    }
}

/// What one request may still skip and evaluate. It always gets at least one message further.
#[derive(Clone, Copy, Debug)]
pub struct ReadBudget {
    entries: u64,
    evaluated: u64,
}

impl ReadBudget {
    /// No limit, for a reader in this process.
    pub const UNLIMITED: Self = Self { entries: u64::MAX, evaluated: u64::MAX };

    /// Returns the budget of a call that holds a lock of its caller, about a millisecond. Only an expression needs one.
    pub const fn without_waiting(selector: Option<&Selector>) -> Self {
        match selector {
            Some(Selector::Sql(_)) => Self { entries: RECORDS_AT_ONCE_MAX, evaluated: EVALUATED_MAX / 64 },
            Some(Selector::Tags(_)) | None => Self::UNLIMITED,
        }
    }

    /// Returns the budget of a client's request.
    pub const fn of_request(selector: Option<&Selector>) -> Self {
        let entries = match selector {
            Some(Selector::Sql(_)) => SKIPPED_RECORDS_MAX,
            Some(Selector::Tags(_)) | None => SKIPPED_MAX,
        };
        Self { entries, evaluated: EVALUATED_MAX }
    }

    /// Returns a budget of so many queue entries.
    pub const fn of_entries(entries: u64) -> Self {
        Self { entries, ..Self::UNLIMITED }
    }

    /// Returns the number of queue entries that are left.
    pub const fn entries(&self) -> u64 {
        if self.evaluated == 0 { 0 } else { self.entries }
    }

    /// Takes a queue entry.
    pub const fn pass(&mut self) {
        self.entries = self.entries.saturating_sub(1);
    }

    /// Takes what it costs to decide about a message.
    pub fn evaluate(&mut self, selector: Option<&Selector>, view: &RecordView<'_>) {
        if let Some(selector) = selector.filter(|_| self.evaluated < u64::MAX) {
            self.evaluated = self.evaluated.saturating_sub(selector.cost(view));
        }
    }
}
