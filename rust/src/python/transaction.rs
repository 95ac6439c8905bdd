//! `WaitingHalf`, `DueHalves`, `EndResult`, `TransactionRow`: facts about transactions.

use pyo3::prelude::*;

use super::error::OrRaise;
use super::values::{state_name, transaction_state, utc};
use crate::base::error::{Error, Outcome};
use crate::base::units::QueueId;
use crate::store::Ended;
use crate::transaction::HalfCopy;
use crate::transaction::scan::{DueGroup, Waiting};

/// Facts about one pending transaction.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct WaitingHalf(pub(super) Waiting);

#[pymethods]
impl WaitingHalf {
    /// The half queue offset of its newest copy, which identifies it in the calls below.
    #[getter]
    const fn half_queue_offset(&self) -> u64 {
        self.0.newest.queue_offset
    }

    /// The physical offset of its newest copy.
    #[getter]
    const fn prepared_transaction_offset(&self) -> u64 {
        self.0.newest.physical_offset
    }

    /// The producer group, which checks ask.
    #[getter]
    fn producer_group(&self) -> &str {
        &self.0.group
    }

    /// The producer id that `prepare` was called with; 0 after a restart.
    #[getter]
    const fn owner(&self) -> u32 {
        self.0.owner
    }

    /// Whether its local transaction still runs here (`local_transaction_ended` was not called yet).
    #[getter]
    const fn running(&self) -> bool {
        self.0.running
    }

    /// Time since it was stored, or since its local transaction ended here, by a monotonic clock.
    #[getter]
    const fn age_ms(&self) -> i64 {
        self.0.age_ms
    }

    /// Time since it was stored, for the retention time.
    #[getter]
    const fn stored_age_ms(&self) -> i64 {
        self.0.stored_age_ms
    }

    /// `CHECK_IMMUNITY_TIME_IN_SECONDS` of the message, in milliseconds.
    #[getter]
    const fn immunity_ms(&self) -> Option<i64> {
        self.0.immunity_ms
    }

    /// How many checks were sent.
    #[getter]
    const fn checks(&self) -> u16 {
        self.0.checks
    }

    /// Time since the last check was sent; None if there was none since the store was opened.
    #[getter]
    const fn last_check_age_ms(&self) -> Option<i64> {
        self.0.last_check_age_ms
    }

    /// Whether the last check was answered; True before the first.
    #[getter]
    const fn answered(&self) -> bool {
        self.0.answered
    }

    /// Time until `halves_due` returns it again; 0 or less: it is due.
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
pub(super) struct DueHalves(pub(super) DueGroup);

#[pymethods]
impl DueHalves {
    /// The transactions, the longest due first.
    #[getter]
    fn halves(&self) -> Vec<WaitingHalf> {
        self.0.halves.iter().cloned().map(WaitingHalf).collect()
    }

    /// The half queue offsets of `halves`, in the same order.
    #[getter]
    fn half_queue_offsets(&self) -> Vec<u64> {
        self.queue_offsets().collect()
    }

    /// The facts with the least value of each age. The values may be of different transactions.
    #[getter]
    fn youngest(&self) -> WaitingHalf {
        WaitingHalf(self.0.youngest.clone())
    }

    /// The facts with the greatest value of each age.
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
    pub(super) fn queue_offsets(&self) -> impl Iterator<Item = u64> {
        self.0.halves.iter().map(|half| half.newest.queue_offset)
    }
}

/// Raises an error if a transaction has ended with another outcome than an end wants.
#[pyfunction]
pub(super) fn allow_end_again(py: Python<'_>, transaction_id: &str, outcome: &str, wanted: &str) -> PyResult<()> {
    let found = parse_outcome(py, outcome)?;
    found.allow_again(parse_outcome(py, wanted)?, || transaction_id.to_owned()).or_raise(py)
}

fn parse_outcome(py: Python<'_>, name: &str) -> PyResult<Outcome> {
    let found = Outcome::from_name(name).ok_or_else(|| Error::InvalidOption {
        option: "outcome".to_owned(),
        what: format!("unknown outcome {name:?}"),
    });
    found.or_raise(py)
}

/// The result of an end.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct EndResult(pub(super) Ended);

#[pymethods]
impl EndResult {
    /// How the transaction ended: COMMITTED, `ROLLED_BACK` or DISCARDED.
    #[getter]
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        transaction_state(py, Some(self.0.outcome))
    }

    /// Whether the transaction had this outcome before, so that nothing was written.
    #[getter]
    const fn already(&self) -> bool {
        self.0.already
    }

    /// The offset of the final message, if this call wrote one.
    #[getter]
    fn physical_offset(&self) -> Option<u64> {
        self.0.offsets.map(|(physical_offset, _)| physical_offset.0)
    }

    /// The queue offset of the final message, if this call wrote one.
    #[getter]
    fn queue_offset(&self) -> Option<u64> {
        self.0.offsets.map(|(_, queue_offset)| queue_offset.0)
    }

    fn __repr__(&self) -> String {
        format!(
            "EndResult(outcome={:?}, already={})",
            self.0.outcome.name(),
            if self.0.already { "True" } else { "False" }
        )
    }
}

/// One transaction of the log.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct TransactionRow(pub(super) crate::store::TransactionRow);

#[pymethods]
impl TransactionRow {
    /// Makes a row from the facts that a server sent. Times are in milliseconds since the epoch.
    #[new]
    #[pyo3(signature = (
        *, transaction_id, producer_group, topic, state, halves, finals, discards, ops, prepared_timestamp_ms,
        ended_timestamp_ms, checks
    ))]
    #[allow(clippy::too_many_arguments)] // Python passes each fact by its name.
    fn new(
        py: Python<'_>,
        transaction_id: Option<String>,
        producer_group: Option<String>,
        topic: String,
        state: &str,
        halves: Vec<(u64, u64)>,
        finals: Vec<u64>,
        discards: Vec<u64>,
        ops: Vec<u64>,
        prepared_timestamp_ms: i64,
        ended_timestamp_ms: Option<i64>,
        checks: u16,
    ) -> PyResult<Self> {
        let outcome = if state == state_name(None) { None } else { Some(parse_outcome(py, state)?) };
        let copy = |(queue_offset, physical_offset)| HalfCopy { queue_offset, physical_offset };
        Ok(Self(crate::store::TransactionRow {
            transaction_id,
            group: producer_group,
            topic,
            queue_id: QueueId(0), // Python does not see it.
            outcome,
            halves: halves.into_iter().map(copy).collect(),
            finals,
            discards,
            ops,
            prepared_ms: prepared_timestamp_ms,
            first_check_ms: None, // Python does not see it.
            ended_ms: ended_timestamp_ms,
            checks,
        }))
    }

    /// The unique id; None if its records have none.
    #[getter]
    fn transaction_id(&self) -> Option<&str> {
        self.0.transaction_id.as_deref()
    }

    /// The producer group; None if its records have none.
    #[getter]
    fn producer_group(&self) -> Option<&str> {
        self.0.group.as_deref()
    }

    /// The real topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.0.topic
    }

    /// The state that the log tells.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        transaction_state(py, self.0.outcome)
    }

    /// (half queue offset, physical offset) of each copy, oldest first.
    #[getter]
    fn halves(&self) -> Vec<(u64, u64)> {
        self.0.halves.iter().map(|copy| (copy.queue_offset, copy.physical_offset)).collect()
    }

    /// Physical offsets of its messages in the real topic. More than one: a broker committed it twice.
    #[getter]
    fn finals(&self) -> Vec<u64> {
        self.0.finals.clone()
    }

    /// Physical offsets of its copies in `TRANS_CHECK_MAX_TIME_TOPIC`.
    #[getter]
    fn discards(&self) -> Vec<u64> {
        self.0.discards.clone()
    }

    /// Physical offsets of the op messages that name one of its halves.
    #[getter]
    fn ops(&self) -> Vec<u64> {
        self.0.ops.clone()
    }

    /// When its first half was stored, in UTC.
    #[getter]
    fn prepared_timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        utc(py, self.0.prepared_ms)
    }

    /// When the record that decided it was stored, in UTC; None without one.
    #[getter]
    fn ended_timestamp<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.ended_ms.map(|ended_ms| utc(py, ended_ms)).transpose()
    }

    /// `TRANSACTION_CHECK_TIMES` of its newest copy, as counted by a RocketMQ broker.
    #[getter]
    const fn checks(&self) -> u16 {
        self.0.checks
    }

    fn __repr__(&self) -> String {
        format!(
            "TransactionRow(transaction_id={:?}, topic={:?}, state={:?})",
            self.0.transaction_id,
            self.0.topic,
            state_name(self.0.outcome)
        )
    }
}

/// How the transactions of one topic ended.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct TopicEnds(pub(super) String, pub(super) crate::transaction::counts::TopicEnds);

#[pymethods]
impl TopicEnds {
    /// The real topic.
    #[getter]
    fn topic(&self) -> &str {
        &self.0
    }

    /// How many were committed.
    #[getter]
    const fn committed(&self) -> u64 {
        self.1.committed
    }

    /// How many were rolled back.
    #[getter]
    const fn rolled_back(&self) -> u64 {
        self.1.rolled_back
    }

    /// How many were discarded.
    #[getter]
    const fn discarded(&self) -> u64 {
        self.1.discarded
    }

    /// Commits by time since the half was stored: (upper bound in ms, None for the rest; count), not cumulative.
    #[getter]
    fn latency(&self) -> Vec<(Option<i64>, u64)> {
        let bounds = crate::transaction::counts::LATENCY_BOUNDS_MS.into_iter().map(Some).chain([None]);
        bounds.zip(self.1.latency).collect()
    }

    /// The sum of these times over all commits.
    #[getter]
    const fn latency_ms(&self) -> u64 {
        self.1.latency_ms
    }
}
