//! `WaitingHalf`, `DueHalves`, `EndResult`, `TransactionRow`: facts about transactions.

use pyo3::prelude::*;

use crate::half::scan::{Alike, Waiting};
use crate::store::Ended;

/// Facts about one pending transaction.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct WaitingHalf(pub(super) Waiting);

#[pymethods]
impl WaitingHalf {
    #[getter]
    const fn half_queue_offset(&self) -> u64 {
        self.0.newest.queue_offset
    }

    #[getter]
    const fn prepared_transaction_offset(&self) -> u64 {
        self.0.newest.physical_offset
    }

    #[getter]
    fn producer_group(&self) -> &str {
        &self.0.group
    }

    #[getter]
    const fn owner(&self) -> u32 {
        self.0.owner
    }

    #[getter]
    const fn running(&self) -> bool {
        self.0.running
    }

    #[getter]
    const fn age_ms(&self) -> i64 {
        self.0.age_ms
    }

    #[getter]
    const fn stored_age_ms(&self) -> i64 {
        self.0.stored_age_ms
    }

    #[getter]
    const fn immunity_ms(&self) -> Option<i64> {
        self.0.immunity_ms
    }

    #[getter]
    const fn checks(&self) -> u16 {
        self.0.checks
    }

    #[getter]
    const fn last_check_age_ms(&self) -> Option<i64> {
        self.0.last_check_age_ms
    }

    #[getter]
    const fn answered(&self) -> bool {
        self.0.answered
    }

    #[getter]
    const fn look_again_in_ms(&self) -> i64 {
        self.0.look_again_in_ms
    }

    fn __repr__(&self) -> String {
        format!(
            "WaitingHalf(half_queue_offset={}, producer_group={:?}, age_ms={}, checks={}, running={})",
            self.0.newest.queue_offset,
            self.0.group,
            self.0.age_ms,
            self.0.checks,
            if self.0.running { "True" } else { "False" }
        )
    }
}

/// Due pending transactions with the same facts.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct DueHalves(pub(super) Alike);

#[pymethods]
impl DueHalves {
    #[getter]
    fn halves(&self) -> Vec<WaitingHalf> {
        self.0.halves.iter().cloned().map(WaitingHalf).collect()
    }

    #[getter]
    fn half_queue_offsets(&self) -> Vec<u64> {
        self.places().collect()
    }

    #[getter]
    fn youngest(&self) -> WaitingHalf {
        WaitingHalf(self.0.youngest.clone())
    }

    #[getter]
    fn oldest(&self) -> WaitingHalf {
        WaitingHalf(self.0.oldest.clone())
    }

    const fn __len__(&self) -> usize {
        self.0.halves.len()
    }

    fn __repr__(&self) -> String {
        format!("DueHalves({} like {})", self.0.halves.len(), self.youngest().__repr__())
    }
}

impl DueHalves {
    /// Returns their half queue offsets.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        self.0.halves.iter().map(|half| half.newest.queue_offset)
    }
}

/// The result of an end.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct EndResult(pub(super) Ended);

#[pymethods]
impl EndResult {
    #[getter]
    const fn outcome(&self) -> &'static str {
        self.0.outcome.name()
    }

    #[getter]
    const fn already(&self) -> bool {
        self.0.already
    }

    #[getter]
    fn physical_offset(&self) -> Option<u64> {
        self.0.place.map(|(physical_offset, _)| physical_offset.0)
    }

    #[getter]
    fn queue_offset(&self) -> Option<u64> {
        self.0.place.map(|(_, queue_offset)| queue_offset.0)
    }

    fn __repr__(&self) -> String {
        format!("EndResult(outcome={:?}, already={})", self.outcome(), if self.0.already { "True" } else { "False" })
    }
}

/// One transaction of the log.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct TransactionRow(pub(super) crate::store::TransactionRow);

#[pymethods]
impl TransactionRow {
    #[getter]
    fn transaction_id(&self) -> Option<&str> {
        self.0.transaction_id.as_deref()
    }

    #[getter]
    fn producer_group(&self) -> Option<&str> {
        self.0.group.as_deref()
    }

    #[getter]
    fn topic(&self) -> &str {
        &self.0.topic
    }

    #[getter]
    fn state(&self) -> &'static str {
        self.0.outcome.map_or("pending", crate::error::Outcome::name)
    }

    #[getter]
    fn halves(&self) -> Vec<(u64, u64)> {
        self.0.halves.iter().map(|copy| (copy.queue_offset, copy.physical_offset)).collect()
    }

    #[getter]
    fn finals(&self) -> Vec<u64> {
        self.0.finals.clone()
    }

    #[getter]
    fn discards(&self) -> Vec<u64> {
        self.0.discards.clone()
    }

    #[getter]
    fn ops(&self) -> Vec<u64> {
        self.0.ops.clone()
    }

    #[getter]
    const fn prepared_timestamp_ms(&self) -> i64 {
        self.0.prepared_ms
    }

    #[getter]
    const fn ended_timestamp_ms(&self) -> Option<i64> {
        self.0.ended_ms
    }

    #[getter]
    const fn checks(&self) -> u16 {
        self.0.checks
    }

    fn __repr__(&self) -> String {
        format!(
            "TransactionRow(transaction_id={:?}, topic={:?}, state={:?})",
            self.0.transaction_id,
            self.0.topic,
            self.state()
        )
    }
}

/// How the transactions of one topic ended.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct TopicEnds(pub(super) String, pub(super) crate::half::counts::TopicEnds);

#[pymethods]
impl TopicEnds {
    #[getter]
    fn topic(&self) -> &str {
        &self.0
    }

    #[getter]
    const fn committed(&self) -> u64 {
        self.1.committed
    }

    #[getter]
    const fn rolled_back(&self) -> u64 {
        self.1.rolled_back
    }

    #[getter]
    const fn discarded(&self) -> u64 {
        self.1.discarded
    }

    /// Returns commits by their time: pairs of the bound in ms (`None` for the last bucket) and the number of commits.
    #[getter]
    fn latency(&self) -> Vec<(Option<i64>, u64)> {
        let bounds = crate::half::counts::LATENCY_BOUNDS_MS.into_iter().map(Some).chain([None]);
        bounds.zip(self.1.latency).collect()
    }

    #[getter]
    const fn latency_ms(&self) -> u64 {
        self.1.latency_ms
    }
}
