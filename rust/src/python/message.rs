//! `Message` and `SendResult`: what an application sends, and the offsets of the stored message.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDateTime, PyDelta, PyDict, PyMapping, PyString, PyTuple, PyType};

use super::error::{OrRaise, into_py};
use super::values::{decoded, encoded, utc};
use crate::base::error::Error;
use crate::base::sync::unmodelled::Mutex;
use crate::record::message::{Envelope, Parts, Topic, push_key};
use crate::record::message_id::offset_message_id;
use crate::record::properties::{Properties, SHARDING_KEY, TAGS, is_reserved};
use crate::record::recall_handle::RecallHandle;
use crate::record::timer::Timer;
use crate::store::Sent;

/// The broker's name in the recall handles of an embedded store, which no client looks up.
const BROKER_NAME: &str = "txstore";

/// A message to send. Immutable. Checked when it is created.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Message {
    pub(super) envelope: Envelope,
    body: Py<PyBytes>,
    /// Read for every send.
    pub(super) topic: Py<PyString>,
    group: Option<Py<PyString>>,
    pub(super) transaction_id: Option<Box<str>>,
}

impl Message {
    pub(super) fn body_bytes<'py>(&'py self, py: Python<'py>) -> &'py [u8] {
        self.body.as_bytes(py)
    }

    /// Returns the same message with shared contents.
    fn shared(&self, py: Python<'_>) -> Self {
        Self {
            envelope: self.envelope.clone(),
            body: self.body.clone_ref(py),
            topic: self.topic.clone_ref(py),
            group: self.group.as_ref().map(|group| group.clone_ref(py)),
            transaction_id: None,
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        Properties(&self.envelope.properties).get_str(name)
    }
}

#[pymethods]
impl Message {
    #[new]
    #[pyo3(signature = (topic, body, *, tags=None, keys=None, properties=None, flag=0, delay_level=0, deliver_at=None, message_group=None))]
    #[allow(clippy::too_many_arguments)] // Each is a keyword of the Python class.
    fn new(
        py: Python<'_>,
        topic: &Bound<'_, PyString>,
        body: &Bound<'_, PyAny>,
        tags: Option<&str>,
        keys: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
        flag: i32,
        delay_level: i64,
        deliver_at: Option<&Bound<'_, PyAny>>,
        message_group: Option<&Bound<'_, PyString>>,
    ) -> PyResult<Self> {
        let body = match body.cast::<PyBytes>() {
            Ok(bytes) => bytes.clone().unbind(),
            Err(_) => copy_body(py, body)?,
        };
        // The store checks the size, because the option max_message_size may allow more than RocketMQ's default.
        crate::record::message::check_body(body.as_bytes(py), u32::MAX).or_raise(py)?;
        let keys = keys.map(|keys| joined(py, keys)).transpose()?.unwrap_or_default();
        let own: Vec<(String, String)> = properties.map(pairs).transpose()?.unwrap_or_default();
        let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let group = message_group.map(|group| group.to_str()).transpose()?;
        let (name, own_group) = (topic.to_str()?, message_group.map(|group| group.clone().unbind()));
        let deliver_ms = deliver_at.map(|time| deliver_ms(py, time)).transpose()?;
        let parts = Parts {
            topic: name,
            tags,
            keys: &keys,
            properties: &own,
            flag,
            delay_level,
            deliver_ms,
            message_group: group,
        };
        let envelope = Envelope::of(checked(py, topic, name)?, &parts).or_raise(py)?;
        Ok(Self { envelope, body, topic: topic.clone().unbind(), group: own_group, transaction_id: None })
    }

    /// Creates a message whose body is the value, as JSON or by another `serializer`; `value` decodes it again.
    ///
    /// The default writes dataclasses, Pydantic models and plain values. The other arguments are those of `Message`.
    /// Raises `InvalidMessageError` for a value that cannot be encoded, and the errors of `Message`.
    #[classmethod]
    #[pyo3(signature = (topic, value, *, serializer=None, tags=None, keys=None, properties=None, flag=0, delay_level=0, deliver_at=None, message_group=None))]
    #[allow(clippy::too_many_arguments)] // Each is a keyword of the Python class.
    fn of(
        cls: &Bound<'_, PyType>,
        topic: &Bound<'_, PyString>,
        value: &Bound<'_, PyAny>,
        serializer: Option<&Bound<'_, PyAny>>,
        tags: Option<&str>,
        keys: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
        flag: i32,
        delay_level: i64,
        deliver_at: Option<&Bound<'_, PyAny>>,
        message_group: Option<&Bound<'_, PyString>>,
    ) -> PyResult<Self> {
        let body = encoded(value, serializer)?;
        Self::new(cls.py(), topic, &body, tags, keys, properties, flag, delay_level, deliver_at, message_group)
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

    /// The topic, as given.
    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.topic.clone_ref(py)
    }

    /// The body, as bytes.
    #[getter]
    fn body(&self, py: Python<'_>) -> Py<PyBytes> {
        self.body.clone_ref(py)
    }

    /// The tag; None without one.
    #[getter]
    fn tags(&self) -> Option<&str> {
        self.text(TAGS)
    }

    /// The keys; empty without any.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        words(py, self.envelope.keys())
    }

    /// The application's own properties (a fresh dict).
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let own = PyDict::new(py);
        for (name, value) in Properties(&self.envelope.properties).iter() {
            let name = String::from_utf8_lossy(name);
            if !is_reserved(&name) {
                own.set_item(name, String::from_utf8_lossy(value))?;
            }
        }
        Ok(own)
    }

    /// The application's own number, which the store keeps.
    #[getter]
    fn flag(&self) -> i32 {
        self.envelope.flag
    }

    /// RocketMQ's delay level: 0 (none) to 18.
    #[getter]
    fn delay_level(&self) -> u8 {
        self.envelope.delay_level
    }

    /// When the message is delivered, in UTC; None for at once or by a delay level.
    #[getter]
    fn deliver_at<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.envelope.timer.and_then(Timer::at).map(|at| utc(py, at.0)).transpose()
    }

    /// The name whose messages go to one queue, in order; None without one.
    #[getter]
    fn message_group(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.group.as_ref().map(|group| group.clone_ref(py))
    }

    /// The topic, if its queues take this message in turn; None with a message group, a delay level or a time.
    #[getter]
    fn turn_topic(&self, py: Python<'_>) -> Option<Py<PyString>> {
        let ordinary = self.group.is_none() && self.envelope.delay_level == 0 && self.envelope.timer.is_none();
        ordinary.then(|| self.topic.clone_ref(py))
    }

    /// The unique id, in the copy that a local transaction gets; None before.
    #[getter]
    fn transaction_id(&self) -> Option<&str> {
        self.transaction_id.as_deref()
    }

    /// Returns a copy with another delay level. A level above 0 replaces the time of delivery.
    #[pyo3(signature = (*, delay_level))]
    fn replace(&self, py: Python<'_>, delay_level: i64) -> PyResult<Self> {
        let properties = Properties(&self.envelope.properties);
        let own: Vec<(String, String)> = properties
            .iter()
            .map(|(name, value)| {
                (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned())
            })
            .filter(|(name, _)| !is_reserved(name))
            .collect();
        let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let parts = Parts {
            topic: &self.envelope.topic,
            tags: self.text(TAGS),
            keys: self.envelope.keys().unwrap_or_default(),
            properties: &own,
            flag: self.envelope.flag,
            delay_level,
            deliver_ms: self.envelope.timer.and_then(Timer::at).map(|at| at.0).filter(|_| delay_level == 0),
            message_group: self.text(SHARDING_KEY),
        };
        let envelope = Envelope::new(&parts).or_raise(py)?;
        Ok(Self { envelope, transaction_id: self.transaction_id.clone(), ..self.shared(py) })
    }

    /// Returns a copy with the id of its transaction.
    fn with_transaction_id(&self, py: Python<'_>, transaction_id: &str) -> Self {
        Self { transaction_id: Some(transaction_id.into()), ..self.shared(py) }
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            self.envelope == other.envelope
                && self.body.as_bytes(py) == other.body.as_bytes(py)
                && self.transaction_id == other.transaction_id
        })
    }

    fn __hash__(&self, py: Python<'_>) -> u64 {
        u64::from(crate::record::crc32(self.body.as_bytes(py))) << 32
            | u64::from(crate::record::crc32(&self.envelope.properties))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let tags = self.text(TAGS).map_or_else(String::new, |tags| format!(", tags={tags:?}"));
        let keys = self.envelope.keys().map_or_else(String::new, |keys| format!(", keys={keys:?}"));
        format!("Message(topic={:?}, {} bytes{tags}{keys})", self.envelope.topic, self.body.as_bytes(py).len())
    }
}

/// Returns a time in milliseconds since the epoch. A part of a millisecond counts as a whole one, because no message is
/// delivered early.
fn deliver_ms(py: Python<'_>, time: &Bound<'_, PyAny>) -> PyResult<i64> {
    let invalid = |what: String| into_py(py, &Error::InvalidMessage { what });
    let time = time.cast::<PyDateTime>().map_err(|_| {
        let kind = time.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string());
        invalid(format!("deliver_at must be a datetime, got {kind}\nhint: datetime.now(UTC) + timedelta(hours=2)"))
    })?;
    if time.call_method0("utcoffset")?.is_none() {
        let what = format!(
            "deliver_at has no time zone: {time}\nhint: datetime.now(UTC) + timedelta(hours=2), or time.astimezone()"
        );
        return Err(invalid(what));
    }
    // In whole numbers, as in `utc`. The division rounds down, so the difference is taken from the time to the epoch.
    let (epoch, millisecond) = (utc(py, 0)?, PyDelta::new(py, 0, 0, 1_000, false)?);
    let before: i64 = epoch.sub(time)?.call_method1("__floordiv__", (millisecond,))?.extract()?;
    Ok(before.saturating_neg())
}

/// Checks a topic. Most messages have the same topic object as the previous one, which is checked only once.
fn checked(py: Python<'_>, topic: &Bound<'_, PyString>, name: &str) -> PyResult<Topic> {
    static LAST: Mutex<Option<(Py<PyString>, Topic)>> = Mutex::new(None);
    let mut last = LAST.try_lock();
    if let Some((_, known)) = last.as_deref().and_then(Option::as_ref).filter(|(object, _)| object.is(topic)) {
        return Ok(known.clone());
    }
    let new = Topic::new(name).or_raise(py)?;
    if let Some(last) = last.as_deref_mut() {
        *last = Some((topic.clone().unbind(), new.clone()));
    }
    Ok(new)
}

/// Copies a body that is not of type bytes.
fn copy_body(py: Python<'_>, body: &Bound<'_, PyAny>) -> PyResult<Py<PyBytes>> {
    if body.cast::<PyString>().is_ok() {
        let what = "the body is a str, not bytes\nhint: encode it with text.encode()".to_owned();
        return Err(into_py(py, &Error::InvalidMessage { what }));
    }
    let kind = body.get_type().name()?;
    let buffer = pyo3::buffer::PyBuffer::<u8>::get(body).map_err(|_| {
        let what = format!("the body is a {kind}, not bytes\nhint: encode it first, for example as JSON");
        into_py(py, &Error::InvalidMessage { what })
    })?;
    Ok(PyBytes::new(py, &buffer.to_vec(py)?).unbind())
}

/// Returns keys in RocketMQ's format: words separated by spaces.
fn joined(py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = keys.cast::<PyString>() {
        return Ok(text.to_str()?.trim().to_owned());
    }
    let mut words = String::new();
    for key in keys.try_iter()? {
        let key: String = key?.extract()?;
        push_key(&mut words, &key).or_raise(py)?;
    }
    Ok(words)
}

fn pairs(properties: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    if let Ok(dict) = properties.cast::<PyDict>() {
        return dict.iter().map(|(name, value)| Ok((name.extract()?, value.extract()?))).collect();
    }
    properties.cast::<PyMapping>()?.items()?.iter().map(|pair| pair.extract()).collect()
}

/// Returns a tuple of the words of a text.
pub(super) fn words<'py>(py: Python<'py>, text: Option<&str>) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, text.unwrap_or_default().split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
}

/// The offsets of a stored message.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct SendResult {
    sent: Sent,
    topic: Py<PyString>,
    host: std::net::SocketAddr,
    half: bool,
}

impl SendResult {
    pub(super) const fn new(sent: Sent, topic: Py<PyString>, host: std::net::SocketAddr, half: bool) -> Self {
        Self { sent, topic, host, half }
    }
}

#[pymethods]
impl SendResult {
    /// The unique id (32 hex digits), RocketMQ's msgId.
    #[getter]
    fn message_id(&self) -> &str {
        &self.sent.unique_id
    }

    /// The offset id: the broker's address and the physical offset, in hex.
    #[getter]
    fn offset_message_id(&self) -> String {
        offset_message_id(self.host, self.sent.physical_offset)
    }

    /// The topic. For a half message: the topic that it was sent to.
    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.topic.clone_ref(py)
    }

    /// The queue's number in the topic.
    #[getter]
    const fn queue_id(&self) -> i32 {
        self.sent.queue_id.0
    }

    /// The position in the queue, in entries.
    #[getter]
    const fn queue_offset(&self) -> u64 {
        self.sent.queue_offset.0
    }

    /// The position in the commit log, in bytes.
    #[getter]
    const fn physical_offset(&self) -> u64 {
        self.sent.physical_offset.0
    }

    /// The transaction's id for a half message; otherwise None.
    #[getter]
    fn transaction_id(&self) -> Option<&str> {
        self.half.then(|| &*self.sent.unique_id)
    }

    /// The handle with which the message can be recalled while it waits for its time; None if it does not wait.
    #[getter]
    fn recall_handle(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let Some(due_ms) = self.sent.due_ms else { return Ok(None) };
        let topic = self.topic.to_str(py)?.to_owned();
        let unique_id = self.sent.unique_id.to_string();
        Ok(Some(RecallHandle { topic, broker_name: BROKER_NAME.to_owned(), due_ms, unique_id }.encode()))
    }

    fn __repr__(&self) -> String {
        format!(
            "SendResult(message_id={:?}, topic={:?}, queue_id={}, queue_offset={})",
            &*self.sent.unique_id,
            self.topic.to_string(),
            self.sent.queue_id,
            self.sent.queue_offset
        )
    }
}
