//! One transaction of the log as a row.
//!
//! In:     the records of its halves, and what the table knows of it after the last record.
//! Out:    a row.
//! Not here: finding the records.

use super::pending::Pending;
use super::{HalfCopy, HalfFacts};
use crate::base::error::Outcome;
use crate::base::units::QueueId;
use crate::record::RecordView;

/// One transaction of the log.
#[derive(Clone, Debug)]
pub struct TransactionRow {
    /// The transaction id.
    pub transaction_id: Option<String>,
    /// The producer group.
    pub group: Option<String>,
    /// The real topic.
    pub topic: String,
    /// The real queue, from the newest half message.
    pub queue_id: QueueId,
    /// The outcome. `None`: the transaction is pending.
    pub outcome: Option<Outcome>,
    /// The half messages, oldest first.
    pub halves: Vec<HalfCopy>,
    /// Physical offsets of the final messages in the real topic.
    pub finals: Vec<u64>,
    /// Physical offsets of the discarded copies.
    pub discards: Vec<u64>,
    /// Physical offsets of the op messages that name one of its halves.
    pub ops: Vec<u64>,
    /// When the first half message was stored, in milliseconds.
    pub prepared_ms: i64,
    /// When a broker first put it back for a check, in milliseconds. txstore's own checks leave no trace in the log.
    pub first_check_ms: Option<i64>,
    /// When the deciding record was stored, in milliseconds.
    pub ended_ms: Option<i64>,
    /// The number of checks that a broker noted in the newest half message.
    pub checks: u16,
}

/// What a row takes from the record of one half.
#[derive(Debug)]
pub(crate) struct HalfRecord {
    transaction_id: Option<String>,
    group: Option<String>,
    topic: String,
    queue_id: QueueId,
    stored_ms: i64,
    is_put_back: bool,
}

impl HalfRecord {
    /// Reads a record of the half topic.
    pub(crate) fn of(view: &RecordView<'_>) -> Self {
        let facts = HalfFacts::of(view);
        Self {
            transaction_id: facts.unique_id.map(str::to_owned),
            group: Some(facts.group).filter(|group| !group.is_empty()).map(str::to_owned),
            topic: facts.real_topic.to_owned(),
            queue_id: facts.real_queue_id,
            stored_ms: view.store_timestamp.0,
            is_put_back: !facts.sent,
        }
    }
}

/// What a row takes from the records of all halves of a transaction, oldest first.
#[derive(Debug)]
pub(crate) struct HalfRecords {
    first: HalfRecord,
    newest_queue_id: QueueId,
    first_check_ms: Option<i64>,
}

impl HalfRecords {
    /// Begins with the oldest half.
    pub(crate) fn begin(first: HalfRecord) -> Self {
        let first_check_ms = first.is_put_back.then_some(first.stored_ms);
        Self { newest_queue_id: first.queue_id, first_check_ms, first }
    }

    /// Adds the next half.
    pub(crate) fn add(&mut self, next: &HalfRecord) {
        self.newest_queue_id = next.queue_id;
        self.first_check_ms = self.first_check_ms.or(next.is_put_back.then_some(next.stored_ms));
    }
}

impl TransactionRow {
    /// Returns the row of a transaction. `is_passed`: a broker's progress has passed its halves.
    pub(crate) fn of(halves: HalfRecords, entry: Pending, is_passed: bool) -> Self {
        let evidence = entry.evidence();
        let (copies, checks) = (entry.copies().map(|(copy, _)| copy).collect(), entry.checks);
        let more = entry.more.map(|more| *more).unwrap_or_default();
        let HalfRecords { first, newest_queue_id, first_check_ms } = halves;
        Self {
            transaction_id: first.transaction_id,
            group: first.group,
            topic: first.topic,
            queue_id: newest_queue_id,
            outcome: evidence.outcome().or(is_passed.then_some(Outcome::FinishedUnknown)),
            halves: copies,
            finals: more.finals,
            discards: more.discards,
            ops: more.ops,
            prepared_ms: first.stored_ms,
            first_check_ms,
            ended_ms: more.ended_ms.filter(|_| evidence.outcome().is_some()),
            checks,
        }
    }
}
