//! `OutboxRow`: a message as a row of the database table `txstore_outbox`.
//!
//! In:     a message that a user sends, or the bytes of a row.
//! Out:    the bytes of the row, and what a forwarder must know to append it.
//! Not here: the form of the bytes (`record::outbox`), the table (Python).

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::error::OrRaise;
use super::message::Message;
use super::values::utc;
use crate::base::clock::{Clock, SystemClock};
use crate::base::error::{Error, Result};
use crate::base::units::QueueId;
use crate::record::message::{Envelope, check_body};
use crate::record::outbox;
use crate::record::properties::{self, Properties, SHARDING_KEY, UNIQUE_KEY};
use crate::record::timer::Timer;
use crate::store::NewMessage;

/// A message in the outbox of a database. Immutable.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct OutboxRow {
    envelope: Envelope,
    producer_group: Box<str>,
    queue_id: i32,
    data: Py<PyBytes>,
    body: Range<usize>,
}

impl OutboxRow {
    fn new(py: Python<'_>, data: Py<PyBytes>) -> Result<Self> {
        let bytes = data.as_bytes(py);
        let host = std::net::SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), 0);
        let outbox::OutboxRow { envelope, producer_group, queue_id, body } = outbox::decode(bytes, host)?;
        check_body(body, u32::MAX)?;
        let (producer_group, body) = (producer_group.into(), bytes.len() - body.len()..bytes.len());
        Ok(Self { envelope, producer_group, queue_id, data, body })
    }

    /// Returns the message as it is to be stored.
    pub(super) fn message<'a>(&'a self, py: Python<'a>, queue_id: QueueId) -> NewMessage<'a> {
        let body = self.data.as_bytes(py).get(self.body.clone()).unwrap_or_default();
        NewMessage { envelope: &self.envelope, body, queue_id }
    }

    pub(super) fn topic(&self) -> &str {
        &self.envelope.topic
    }
}

#[pymethods]
impl OutboxRow {
    /// Decodes a row.
    #[new]
    fn decode(py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<Self> {
        Self::new(py, data.clone().unbind()).or_raise(py)
    }

    /// Returns a new row for a message, with a new unique id. Without a queue, it is chosen when the row is forwarded.
    #[staticmethod]
    #[pyo3(signature = (message, producer_group, queue_id=None))]
    fn of(py: Python<'_>, message: &Bound<'_, Message>, producer_group: &str, queue_id: Option<i32>) -> PyResult<Self> {
        let message = message.get();
        let (queue_id, born) = (queue_id.unwrap_or(outbox::ANY_QUEUE), SystemClock.wall());
        let body = message.body_bytes(py);
        let row = outbox::encode(&message.envelope, body, producer_group, queue_id, &super::unique_id(), born);
        Self::new(py, PyBytes::new(py, &row.or_raise(py)?).unbind()).or_raise(py)
    }

    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyBytes> {
        self.data.clone_ref(py)
    }

    #[getter]
    fn message_id(&self) -> &str {
        self.envelope.unique_id().unwrap_or_default()
    }

    #[getter(topic)]
    fn topic_name(&self) -> &str {
        self.topic()
    }

    #[getter]
    fn producer_group(&self) -> &str {
        &self.producer_group
    }

    #[getter]
    fn message_group(&self) -> Option<&str> {
        Properties(&self.envelope.properties).get_str(SHARDING_KEY)
    }

    #[getter]
    const fn delay_level(&self) -> u8 {
        self.envelope.delay_level
    }

    #[getter]
    fn deliver_at<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.envelope.timer.and_then(Timer::at).map(|at| utc(py, at.0)).transpose()
    }

    #[getter]
    fn queue_id(&self) -> Option<i32> {
        (self.queue_id != outbox::ANY_QUEUE).then_some(self.queue_id)
    }

    #[getter]
    fn born_timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        utc(py, self.envelope.origin.as_ref().map_or(0, |origin| origin.born_timestamp.0))
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data.as_bytes(py).get(self.body.clone()).unwrap_or_default())
    }

    /// The properties as a client sends them, with the unique id.
    #[getter]
    fn properties_text(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = self.envelope.properties.clone();
        properties::push(&mut text, UNIQUE_KEY, self.message_id());
        let not_text = |_| Error::InvalidMessage { what: "the properties are not UTF-8".into() };
        String::from_utf8(text).map_err(not_text).or_raise(py)
    }

    #[getter]
    const fn flag(&self) -> i32 {
        self.envelope.flag
    }

    fn __repr__(&self) -> String {
        let (topic, id) = (&self.envelope.topic, self.message_id());
        format!("OutboxRow(topic={topic:?}, message_id={id:?}, {} bytes)", self.body.len())
    }
}
