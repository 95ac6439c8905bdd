//! Counts how transactions ended and what checks answered, since the store was opened.
//!
//! In:     ends and checks, all under the put lock.
//! Out:    statistics, by topic where that is useful.
//! Always: counts only grow. Topics above a limit are counted together.
//! Not here: the number of pending transactions.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::base::error::{Error, Outcome};

/// Bucket bounds for the time from half message to commit, in milliseconds. The same as RocketMQ's.
pub const LATENCY_BOUNDS_MS: [i64; 6] = [5_000, 60_000, 600_000, 3_600_000, 12 * 3_600_000, 24 * 3_600_000];
/// The maximum number of topics with their own counts.
const TOPICS_MAX: usize = 10_000;
/// The name under which all other topics are counted. No topic can have this name.
pub const OTHER: &str = "(other)";

/// How the transactions of one topic ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicEnds {
    /// Transactions that were committed.
    pub committed: u64,
    /// Transactions that were rolled back.
    pub rolled_back: u64,
    /// Transactions that were discarded.
    pub discarded: u64,
    /// Commits by the time since their half message was stored: one bucket up to each bound, and one above the last.
    pub latency: [u64; LATENCY_BOUNDS_MS.len() + 1],
    /// The sum of the commits' times in milliseconds.
    pub latency_ms: u64,
}

/// A topic's number among the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicNumber(usize);

/// The counts since the store was opened.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    topics: Vec<(Arc<str>, TopicEnds)>,
    numbers: HashMap<Arc<str>, TopicNumber>,
    /// Ends that repeated the decision.
    pub repeated: u64,
    /// Ends that contradicted the decision.
    pub contrary: u64,
    /// Ends after the immunity time.
    pub late: u64,
    /// Ends by a producer group other than the one that began the transaction.
    pub wrong_group: u64,
    /// Ends of unknown transactions: forged, or ended long ago.
    pub not_found: u64,
    /// Ends that failed because of the store.
    pub failed: u64,
    /// Checks that were sent, here or to a client.
    pub checks_sent: u64,
    /// Checks that were answered with a commit.
    pub checks_committed: u64,
    /// Checks that were answered with a rollback.
    pub checks_rolled_back: u64,
    /// Checks that were answered with "unknown".
    pub checks_unknown: u64,
    /// Checks without an answer when the next check was sent or the transaction was discarded.
    pub checks_unanswered: u64,
}

impl Counts {
    /// Returns the number of a topic. New topics above the limit share one number.
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

    /// Returns the counts of every topic that had an ended transaction.
    pub fn topics(&self) -> &[(Arc<str>, TopicEnds)] {
        &self.topics
    }

    /// Counts a transaction that ended `age_ms` after its half message was stored.
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

    /// Counts a check that was answered by an end.
    pub fn check_ended(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Committed => self.checks_committed += 1,
            Outcome::RolledBack => self.checks_rolled_back += 1,
            // There was no answer: the policy discarded the transaction.
            Outcome::Discarded | Outcome::FinishedUnknown => {}
        }
    }

    /// Counts an end that was refused.
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

    /// Returns the counts that have no topic, with their names.
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
