//! Counts: how transactions ended, and what checks brought, since the store was opened.
//!
//! In: ends as they are judged, checks as they are sent and answered; all under the put lock. Out: figures, by topic where
//! that tells something. Always: they only grow; topics beyond a bound are counted together. Not here: what pends.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::error::{Error, Outcome};

/// Bounds of the buckets of times from half to commit, in milliseconds: RocketMQ's.
pub const LATENCY_BOUNDS_MS: [i64; 6] = [5_000, 60_000, 600_000, 3_600_000, 12 * 3_600_000, 24 * 3_600_000];
/// Topics that are counted apart.
const TOPICS_MAX: usize = 10_000;
/// Where all others are counted; no topic can be called so.
pub const OTHER: &str = "(other)";

/// How the transactions of one topic ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicEnds {
    /// Transactions that were committed.
    pub committed: u64,
    /// Transactions that were rolled back.
    pub rolled_back: u64,
    /// Transactions that were given up.
    pub discarded: u64,
    /// Commits by the time since their half was stored: up to each bound, and beyond the last.
    pub latency: [u64; LATENCY_BOUNDS_MS.len() + 1],
    /// Milliseconds that commits took altogether.
    pub latency_ms: u64,
}

/// A topic's number among the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicNumber(usize);

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    topics: Vec<(Arc<str>, TopicEnds)>,
    numbers: HashMap<Arc<str>, TopicNumber>,
    /// Ends that said again what was decided.
    pub repeated: u64,
    /// Ends that said the contrary of what was decided.
    pub contrary: u64,
    /// Ends that came behind their immunity time.
    pub late: u64,
    /// Ends by a group that did not begin the transaction.
    pub wrong_group: u64,
    /// Ends of what is not there: forged, or long gone.
    pub not_found: u64,
    /// Ends that failed for the store's sake.
    pub failed: u64,
    /// Checks that were sent, here or to a client.
    pub checks_sent: u64,
    /// Checks that were answered: commit.
    pub checks_committed: u64,
    /// Checks that were answered: roll back.
    pub checks_rolled_back: u64,
    /// Checks that were answered: not known yet.
    pub checks_unknown: u64,
    /// Checks without an answer when the next one was sent, or the transaction was given up.
    pub checks_unanswered: u64,
}

impl Counts {
    /// The number of a topic; a new one's beyond the bound is that of all others.
    pub fn topic(&mut self, topic: &str) -> TopicNumber {
        if let Some(number) = self.numbers.get(topic) {
            return *number;
        }
        let name = if self.topics.len() < TOPICS_MAX { topic } else { OTHER };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let (name, number): (Arc<str>, _) = (name.into(), TopicNumber(self.topics.len()));
        self.topics.push((Arc::clone(&name), TopicEnds::default()));
        self.numbers.insert(name, number);
        number
    }

    /// Every topic of which a transaction ended.
    pub fn topics(&self) -> &[(Arc<str>, TopicEnds)] {
        &self.topics
    }

    /// A transaction of a topic ended, so long after its half was stored.
    pub fn ended(&mut self, topic: TopicNumber, outcome: Outcome, age_ms: i64) {
        let Some((_, ends)) = self.topics.get_mut(topic.0) else { return };
        match outcome {
            Outcome::Committed => {
                ends.committed += 1;
                let bucket = LATENCY_BOUNDS_MS.iter().position(|bound| age_ms <= *bound);
                let bucket = bucket.unwrap_or(LATENCY_BOUNDS_MS.len());
                if let Some(count) = ends.latency.get_mut(bucket) {
                    *count += 1;
                }
                ends.latency_ms += u64::try_from(age_ms).unwrap_or(0);
            }
            Outcome::Discarded => ends.discarded += 1,
            _ => ends.rolled_back += 1,
        }
    }

    /// A check was answered by an end.
    pub fn check_ended(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Committed => self.checks_committed += 1,
            Outcome::RolledBack => self.checks_rolled_back += 1,
            // Nobody answered: the policy gave the transaction up.
            Outcome::Discarded | Outcome::FinishedUnknown => {}
        }
    }

    /// An end was refused.
    pub fn refused(&mut self, error: &Error) {
        let count = match error {
            Error::AlreadyEnded { .. } => &mut self.contrary,
            Error::LateEnd { .. } => &mut self.late,
            Error::WrongGroup { .. } => &mut self.wrong_group,
            Error::TransactionNotFound { .. } => &mut self.not_found,
            _ => &mut self.failed,
        };
        *count += 1;
    }

    /// The figures that have no topic, by name.
    pub fn all(&self) -> [(&'static str, u64); 14] {
        let sum = |of: fn(&TopicEnds) -> u64| self.topics.iter().map(|(_, ends)| of(ends)).sum();
        [
            ("ends_committed", sum(|ends| ends.committed)),
            ("ends_rolled_back", sum(|ends| ends.rolled_back)),
            ("ends_discarded", sum(|ends| ends.discarded)),
            ("ends_repeated", self.repeated),
            ("ends_contrary", self.contrary),
            ("ends_late", self.late),
            ("ends_wrong_group", self.wrong_group),
            ("ends_not_found", self.not_found),
            ("ends_failed", self.failed),
            ("checks_sent", self.checks_sent),
            ("checks_committed", self.checks_committed),
            ("checks_rolled_back", self.checks_rolled_back),
            ("checks_unknown", self.checks_unknown),
            ("checks_unanswered", self.checks_unanswered),
        ]
    }
}
