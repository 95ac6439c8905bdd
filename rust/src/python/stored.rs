//! `StoredMessage`: a record of the log, decoded on request.

use std::sync::atomic::{AtomicI32, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::error::{OrRaise, into_py};
use super::message::words;
use super::values::{decoded, utc};
use crate::base::error::Error;
use crate::base::names::{HALF_TOPIC, RETRY_PREFIX};
use crate::record::compression::{BODY_MAX, decompress};
use crate::record::message::DELAY_LEVEL_MAX;
use crate::record::properties::{
    KEYS, PRODUCER_GROUP, REAL_QUEUE_ID, REAL_TOPIC, RETRY_TOPIC, TAGS, TRANSACTION_ID, TRANSACTION_PREPARED,
};
use crate::record::{RecordView, TransactionType, Version};
use crate::store::StoredRecord;

/// A message in the log.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct StoredMessage {
    record: StoredRecord,
    /// A delay level if the consumer's user asked for a retry, a delay level plus `NACKED` after `nack`, otherwise one of
    /// the states below.
    asked: AtomicI32,
}

/// No consumer has delivered it.
const NOT_DELIVERED: i32 = i32::MIN;
/// Delivered and unacknowledged, and no retry was asked for.
const UNACKNOWLEDGED: i32 = NOT_DELIVERED + 1;
/// Acknowledged by the consumer.
const SETTLED: i32 = UNACKNOWLEDGED + 1;
/// The consumer has had it delivered again later, or moved to the dead letters.
const SENT_BACK: i32 = SETTLED + 1;
/// Returned to its queue, from which it is delivered again.
const GIVEN_BACK: i32 = SENT_BACK + 1;
/// The consumer's user called `ack`, and the consumer has not acknowledged it yet.
const ACKED: i32 = GIVEN_BACK + 1;
/// Added to the delay level if the consumer's user called `nack`, and the consumer has not sent it back yet.
const NACKED: i32 = 1000;
/// The message becomes a dead letter at once.
const DEAD: i32 = -1;
/// The first state after `nack`.
const NACKED_LEAST: i32 = NACKED + DEAD;
/// What `decision` returns after `ack`. It differs from all delay levels.
pub(super) const ACKNOWLEDGED: i32 = -2;

fn check_delay_level(py: Python<'_>, delay_level: i32) -> PyResult<()> {
    if (DEAD..=i32::from(DELAY_LEVEL_MAX)).contains(&delay_level) {
        return Ok(());
    }
    let what = format!(
        "must be between -1 and {DELAY_LEVEL_MAX}, got {delay_level}\nhint: pass 1 to {DELAY_LEVEL_MAX}, 0 for a longer delay each time, or -1 for a dead letter"
    );
    Err(Error::InvalidOption { option: "delay_level".into(), what }).or_raise(py)
}

impl StoredMessage {
    pub(super) const fn new(record: StoredRecord) -> Self {
        Self { record, asked: AtomicI32::new(NOT_DELIVERED) }
    }

    /// Creates a message that a consumer delivers to its user.
    pub(super) const fn unacknowledged(record: StoredRecord) -> Self {
        Self { record, asked: AtomicI32::new(UNACKNOWLEDGED) }
    }

    fn view(&self, py: Python<'_>) -> PyResult<RecordView<'_>> {
        self.record.view().or_raise(py)
    }

    /// Changes the state if `next` allows it. Otherwise raises why the message cannot be `done` (`"acknowledged"`, …).
    fn decide(&self, py: Python<'_>, done: &str, next: impl Fn(i32) -> Option<i32>) -> PyResult<()> {
        let Err(state) = self.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) else { return Ok(()) };
        let why = match state {
            NOT_DELIVERED => {
                "no consumer handed it out\nhint: only a consumer's message can be acknowledged or retried"
            }
            SETTLED => "it was already acknowledged\nhint: call this before the consumer's next poll or acknowledge",
            ACKED => "it was already acknowledged\nhint: the first call of ack and nack counts",
            GIVEN_BACK => {
                "it was returned to its queue and will be delivered again\nhint: call this before the loop is left or the consumer is closed"
            }
            SENT_BACK => "it was already sent back\nhint: the first call of ack and nack counts",
            _ if state >= NACKED + DEAD => "nack was called\nhint: the first call of ack and nack counts",
            _ => "retry was called\nhint: call either ack, nack or retry",
        };
        Err(Error::InvalidMessage { what: format!("message {} cannot be {done}: {why}", self.message_id(py)?) })
            .or_raise(py)
    }

    fn text(&self, py: Python<'_>, name: &str) -> PyResult<Option<&str>> {
        Ok(self.view(py)?.properties.get_str(name))
    }
}

#[pymethods]
impl StoredMessage {
    /// The topic. For a retried message from a consumer, the topic that it was sent to.
    #[getter]
    fn topic(&self, py: Python<'_>) -> PyResult<&str> {
        let view = self.view(py)?;
        // A consumer's user knows a retried message by the topic to which it was sent.
        let origin = (self.asked.load(Ordering::Relaxed) != NOT_DELIVERED && view.topic.starts_with(RETRY_PREFIX))
            .then(|| view.properties.get_str(RETRY_TOPIC));
        Ok(origin.flatten().unwrap_or(view.topic))
    }

    /// Acknowledges this message alone, whatever happens to the others that the consumer handed out with it.
    ///
    /// Without it, the consumer acknowledges its messages when it is asked for the next ones. Any thread may call this,
    /// and repeat it. It only marks the message: the consumer acknowledges it when it is used next, and at the latest
    /// when it writes or reports its offsets, or is closed. Raises `InvalidMessageError` if the message does not come
    /// from a consumer, or after `nack`, `retry`, or its return to its queue.
    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        self.decide(py, "acknowledged", |state| match state {
            UNACKNOWLEDGED => Some(ACKED),
            ACKED | SETTLED => Some(state),
            _ => None,
        })
    }

    /// Has this message delivered again later, also if an exception follows.
    ///
    /// `delay_level` as for `retry`. Any thread may call this, and repeat it; the first call counts. It only marks the
    /// message, as `ack` does. Raises `InvalidMessageError` if the message does not come from a consumer, or is
    /// acknowledged or returned to its queue, `InvalidOptionError`.
    #[pyo3(signature = (delay_level=0))]
    fn nack(&self, py: Python<'_>, delay_level: i32) -> PyResult<()> {
        check_delay_level(py, delay_level)?;
        self.decide(py, "retried", |state| match state {
            UNACKNOWLEDGED | DEAD..NACKED_LEAST => Some(NACKED + delay_level),
            NACKED_LEAST.. | SENT_BACK => Some(state),
            _ => None,
        })
    }

    /// Asks the consumer to deliver the message again later, instead of acknowledging it.
    ///
    /// `delay_level` 0: RocketMQ's delay, longer each time (10 s, 30 s, 1 min, …), the 17th time to the dead letters; 1
    /// to 18: this delay level; -1: to the dead letters. Written when the consumer acknowledges. Raises
    /// `InvalidMessageError` if the message does not come from a consumer or is acknowledged, `InvalidOptionError`.
    #[pyo3(signature = (delay_level=0))]
    fn retry(&self, py: Python<'_>, delay_level: i32) -> PyResult<()> {
        check_delay_level(py, delay_level)?;
        self.decide(py, "retried", |state| match state {
            UNACKNOWLEDGED | DEAD..NACKED_LEAST => Some(delay_level),
            _ => None,
        })
    }

    /// What `ack` (`ACKNOWLEDGED`) or `nack` (its delay level) decided; None before, and after `settle`. For consumers.
    #[getter]
    fn decision(&self) -> Option<i32> {
        match self.asked.load(Ordering::Relaxed) {
            ACKED => Some(ACKNOWLEDGED),
            nacked @ NACKED_LEAST.. => Some(nacked - NACKED),
            _ => None,
        }
    }

    /// Closes the message after its return to its queue. Returns False after `ack` or `nack`. For consumers.
    fn give_back(&self) -> bool {
        let give = |state| match state {
            UNACKNOWLEDGED | DEAD..NACKED_LEAST => Some(GIVEN_BACK),
            _ => None,
        };
        match self.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give) {
            Ok(_) => true,
            Err(state) => state != ACKED && state < NACKED_LEAST,
        }
    }

    /// Closes the message. Returns the delay level that `retry` or `nack` asked for, or None. For consumers.
    fn settle(&self) -> Option<i32> {
        let settled = |state| Some(if state >= DEAD || state == SENT_BACK { SENT_BACK } else { SETTLED });
        match self.asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, settled) {
            Ok(nacked @ NACKED_LEAST..) => Some(nacked - NACKED),
            Ok(level @ DEAD..) => Some(level),
            _ => None,
        }
    }

    /// The queue's number in the topic.
    #[getter]
    fn queue_id(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.view(py)?.queue_id.0)
    }

    /// The position in the queue, in entries.
    #[getter]
    fn queue_offset(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.queue_offset.0)
    }

    /// The position in the commit log, in bytes.
    #[getter]
    fn physical_offset(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.physical_offset.0)
    }

    /// The size of the whole record in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.record.bytes().len()
    }

    /// The record's version: 1, or 2, in which the topic may be longer than 127 bytes.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u8> {
        Ok(match self.view(py)?.version {
            Version::V1 => 1,
            Version::V2 => 2,
        })
    }

    /// The unique id, otherwise the offset id.
    #[getter]
    fn message_id(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.view(py)?.message_id())
    }

    /// The offset id: the broker's address and the physical offset, in hex.
    #[getter]
    fn offset_message_id(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.view(py)?.offset_message_id())
    }

    /// `__transactionId__`, otherwise the unique id of a transaction's record, otherwise None.
    #[getter]
    fn transaction_id(&self, py: Python<'_>) -> PyResult<Option<&str>> {
        let view = self.view(py)?;
        let is_transaction = view.transaction_type() != TransactionType::None
            || view.properties.get(TRANSACTION_PREPARED).is_some_and(|prepared| prepared == b"true");
        Ok(view.properties.get_str(TRANSACTION_ID).or_else(|| view.unique_id().filter(|_| is_transaction)))
    }

    /// The body as the application sent it, decompressed. Raises `StoreCorruptError` if it cannot be decompressed.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let (sys_flag, body) = self.record.body();
        match decompress(sys_flag, body, BODY_MAX) {
            Ok(body) => Ok(PyBytes::new(py, &body)),
            Err(why) => Err(into_py(
                py,
                &Error::StoreCorrupt { file: "commitlog".into(), offset: self.physical_offset(py)?, what: why },
            )),
        }
    }

    /// Returns the body's value as a `kind`, such as a dataclass or a Pydantic model; from JSON or by the `serializer`.
    ///
    /// Raises `DecodeError`, which says where what was found, and `InvalidOptionError` for a type that JSON cannot be
    /// converted to.
    #[pyo3(signature = (kind, *, serializer=None))]
    fn value<'py>(
        slf: &Bound<'py, Self>,
        kind: &Bound<'py, PyAny>,
        serializer: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        decoded(slf.as_any(), kind, serializer)
    }

    /// The body as stored, perhaps compressed.
    #[getter]
    fn stored_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.record.body().1)
    }

    /// The CRC-32 of the stored body, without its highest bit.
    #[getter]
    fn body_crc(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.view(py)?.body_crc)
    }

    /// The keys; empty without any.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        words(py, self.text(py, KEYS)?)
    }

    /// The tag; None without one.
    #[getter]
    fn tags(&self, py: Python<'_>) -> PyResult<Option<&str>> {
        self.text(py, TAGS)
    }

    /// All properties, including the system's, without the record's CRC (a fresh dict; the last of equal names).
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for (name, value) in self.view(py)?.properties.iter() {
            all.set_item(String::from_utf8_lossy(name), String::from_utf8_lossy(value))?;
        }
        Ok(all)
    }

    /// The properties' text as stored.
    #[getter]
    fn properties_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.view(py)?.properties.0))
    }

    /// The whole record as stored.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.record.bytes())
    }

    /// The application's own number.
    #[getter]
    fn flag(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.view(py)?.flag)
    }

    /// RocketMQ's flags of the record: compression, the kind of transaction, IPv6 addresses.
    #[getter]
    fn sys_flag(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.view(py)?.sys_flag)
    }

    /// 'none', 'prepared', 'commit' or 'rollback'; 'prepared' for every record of the half topic.
    #[getter]
    fn transaction_type(&self, py: Python<'_>) -> PyResult<&'static str> {
        let view = self.view(py)?;
        Ok(match view.transaction_type() {
            _ if view.topic == HALF_TOPIC => "prepared",
            TransactionType::None => "none",
            TransactionType::Prepared => "prepared",
            TransactionType::Commit => "commit",
            TransactionType::Rollback => "rollback",
        })
    }

    /// When the client created it, by the client's clock, in UTC.
    #[getter]
    fn born_timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        utc(py, self.view(py)?.born_timestamp.0)
    }

    /// When it was stored, in UTC.
    #[getter]
    fn store_timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        utc(py, self.view(py)?.store_timestamp.0)
    }

    /// `born_timestamp` as the record and RocketMQ's protocol have it, in ms since the epoch.
    #[getter]
    fn born_timestamp_ms(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.view(py)?.born_timestamp.0)
    }

    /// `store_timestamp` as the record and RocketMQ's protocol have it, in ms since the epoch.
    #[getter]
    fn store_timestamp_ms(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.view(py)?.store_timestamp.0)
    }

    /// `ADDRESS:PORT`, IPv6 in brackets.
    #[getter]
    fn born_host(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.view(py)?.born_host.address().to_string())
    }

    /// `ADDRESS:PORT` of the broker that stored it, IPv6 in brackets.
    #[getter]
    fn store_host(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.view(py)?.store_host.address().to_string())
    }

    /// How often it was delivered before.
    #[getter]
    fn reconsume_times(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.view(py)?.reconsume_times)
    }

    /// The physical offset of its half message; 0 if there is none.
    #[getter]
    fn prepared_transaction_offset(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.view(py)?.prepared_transaction_offset.0)
    }

    /// The destination topic of a half or discarded message, otherwise `topic`.
    #[getter]
    fn real_topic(&self, py: Python<'_>) -> PyResult<&str> {
        let view = self.view(py)?;
        Ok(view.properties.get_str(REAL_TOPIC).unwrap_or(view.topic))
    }

    /// The destination queue of a half or discarded message, otherwise `queue_id`.
    #[getter]
    fn real_queue_id(&self, py: Python<'_>) -> PyResult<i32> {
        let view = self.view(py)?;
        Ok(view.properties.get_str(REAL_QUEUE_ID).and_then(|id| id.parse().ok()).unwrap_or(view.queue_id.0))
    }

    /// The producer group of a transactional message; None for others.
    #[getter]
    fn producer_group(&self, py: Python<'_>) -> PyResult<Option<&str>> {
        self.text(py, PRODUCER_GROUP)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let view = self.view(py)?;
        Ok(format!(
            "StoredMessage(message_id={:?}, topic={:?}, queue_id={}, queue_offset={}, {} bytes)",
            view.message_id(),
            view.topic,
            view.queue_id,
            view.queue_offset,
            view.body.len()
        ))
    }
}
