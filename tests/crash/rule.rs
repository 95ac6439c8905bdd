//! Computes the outcome of each transaction from the log alone, by a simple implementation of the rule
//! (docs/internals/transactions.md).
//!
//! In:     the log's records in order, and a broker's progress.
//! Out:    transactions with their copies, what names them, their outcome.
//! Always: shares only the record's decoder with the engine's replay.

use std::collections::{BTreeSet, HashMap};

use txstore::base::error::Outcome;
use txstore::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC};
use txstore::record::properties::{PRODUCER_GROUP, REAL_TOPIC, TRANSACTION_CHECK_TIMES, UNIQUE_KEY};
use txstore::record::{RecordView, TransactionType};
use txstore::transaction::HalfCopy;
use txstore::transaction::op::parse_op_body;

use crate::waits::real_topic;

/// A transaction as found in the log. Records are identified by their index in the log.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub copies: Vec<HalfCopy>,
    /// The index of each copy's record.
    pub halves: Vec<usize>,
    pub finals: Vec<usize>,
    pub discards: Vec<usize>,
    pub named: BTreeSet<u64>,
    /// The copy that was sent last. An op must name this copy, or a later one, to end the transaction.
    last_sent: Option<u64>,
    ended: bool,
    pub outcome: Option<Outcome>,
}

impl Transaction {
    pub fn newest(&self) -> HalfCopy {
        *self.copies.last().unwrap()
    }

    pub fn first(&self) -> HalfCopy {
        self.copies[0]
    }
}

/// Group, id, real topic, body's CRC.
type Key<'a> = (&'a str, &'a str, &'a str, u32);

#[derive(Default)]
struct Rule<'a> {
    all: Vec<Transaction>,
    by_key: HashMap<Key<'a>, Vec<usize>>,
    by_copy: HashMap<u64, usize>,
    minimum: u64,
}

fn key<'a>(view: &RecordView<'a>, topic: &'a str) -> Option<Key<'a>> {
    let group = view.properties.get_str(PRODUCER_GROUP).filter(|group| !group.is_empty())?;
    let id = view.properties.get_str(UNIQUE_KEY).filter(|id| !id.is_empty())?;
    Some((group, id, topic, view.body_crc))
}

impl<'a> Rule<'a> {
    fn half(&mut self, number: usize, view: &RecordView<'a>) {
        let key = key(view, view.properties.get_str(REAL_TOPIC).unwrap_or_default());
        let checks: u32 =
            view.properties.get_str(TRANSACTION_CHECK_TIMES).and_then(|checks| checks.parse().ok()).unwrap_or(0);
        let newest = key.and_then(|key| self.by_key.get(&key)?.last().copied());
        let joined = newest.filter(|newest| checks > 0 || !self.all[*newest].ended);
        let at = joined.unwrap_or_else(|| {
            self.all.push(Transaction::default());
            if let Some(key) = key {
                self.by_key.entry(key).or_default().push(self.all.len() - 1);
            }
            self.all.len() - 1
        });
        let copy = HalfCopy { queue_offset: view.queue_offset.0, physical_offset: view.physical_offset.0 };
        self.by_copy.insert(copy.queue_offset, at);
        let all = &mut self.all[at];
        all.copies.push(copy);
        all.halves.push(number);
        if checks == 0 || all.last_sent.is_none() {
            all.last_sent = Some(copy.queue_offset);
        }
    }

    /// Returns the transaction of a key with a copy at a physical offset; else the newest of the key, if `any_offset`.
    fn find(&self, key: Option<Key<'a>>, offset: u64, any_offset: bool) -> Option<usize> {
        let has_copy = |at: &&usize| self.all[**at].copies.iter().any(|copy| copy.physical_offset == offset);
        let Some(key) = key else {
            // A transaction without a key has no other copies, so it is found by its offset.
            return (0..self.all.len())
                .find(|at| has_copy(&at) && !self.by_key.values().flatten().any(|other| other == at));
        };
        let known = self.by_key.get(&key)?;
        known.iter().rev().find(has_copy).or_else(|| known.last().filter(|_| any_offset)).copied()
    }

    fn apply(&mut self, number: usize, view: &RecordView<'a>) {
        let offset = view.prepared_transaction_offset.0;
        match view.topic {
            HALF_TOPIC => self.half(number, view),
            DISCARD_TOPIC => {
                let real_topic = view.properties.get_str(REAL_TOPIC).unwrap_or_default();
                if let Some(at) = self.find(key(view, real_topic), offset, true) {
                    self.all[at].discards.push(number);
                    self.all[at].ended = true;
                }
            }
            OP_TOPIC => {
                for name in parse_op_body(view.body) {
                    if let Some(at) = self.by_copy.get(&name) {
                        self.all[*at].named.insert(name);
                        self.all[*at].ended = true;
                    }
                }
            }
            _ if view.transaction_type() == TransactionType::Commit => {
                if let Some(at) = self.find(key(view, real_topic(view)), offset, offset < self.minimum) {
                    self.all[at].finals.push(number);
                    self.all[at].ended = true;
                }
            }
            _ => {}
        }
    }
}

/// Returns every transaction of a log, in the order of their first halves. `broker_progress` is the half progress that
/// a broker stored; it has finished all halves below it.
pub fn transactions(log: &[RecordView<'_>], broker_progress: u64) -> Vec<Transaction> {
    let minimum = log.first().map_or(0, |first| first.physical_offset.0);
    let mut rule = Rule { minimum, ..Rule::default() };
    for (number, view) in log.iter().enumerate() {
        rule.apply(number, view);
    }
    for one in &mut rule.all {
        let last_sent = one.last_sent.unwrap_or(0);
        one.outcome = if !one.finals.is_empty() {
            Some(Outcome::Committed)
        } else if !one.discards.is_empty() {
            Some(Outcome::Discarded)
        } else if one.named.iter().any(|name| *name >= last_sent) {
            Some(Outcome::RolledBack)
        } else if one.newest().queue_offset < broker_progress {
            Some(Outcome::FinishedUnknown)
        } else {
            None
        };
    }
    rule.all
}
