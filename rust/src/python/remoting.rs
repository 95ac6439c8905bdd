//! The Remoting protocol for Python clients: frames, records in answers, messages in requests.
//!
//! In:     bytes of a connection, messages.
//! Out:    bytes, commands, stored messages.
//! Always: invalid data from the other side raises `ProtocolError`.
//! Not here: the meaning of codes, connections.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::error::{OrRaise, protocol_error};
use super::message::Message;
use super::stored::StoredMessage;
use crate::base::error::Error;
use crate::record::properties::{self, REAL_QUEUE_ID, REAL_TOPIC, UNIQUE_KEY};
use crate::remoting::batch::push_message;
use crate::remoting::command::FLAG_ONE_WAY;
use crate::remoting::{self, Command};
use crate::store::StoredRecord;

/// A request or response that has arrived.
#[pyclass(frozen, subclass, module = "txstore._native")]
pub(super) struct RemotingCommand {
    pub(super) command: Command,
}

impl RemotingCommand {
    /// Begins an object of a class that extends this one.
    #[cfg(feature = "server")]
    pub(super) fn base(command: Command) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Self { command })
    }
}

#[pymethods]
impl RemotingCommand {
    #[getter]
    const fn code(&self) -> i32 {
        self.command.code
    }

    #[getter]
    const fn opaque(&self) -> i32 {
        self.command.opaque
    }

    #[getter]
    fn language(&self) -> &'static str {
        self.command.language_name()
    }

    #[getter]
    const fn version(&self) -> i32 {
        self.command.version
    }

    #[getter]
    const fn is_response(&self) -> bool {
        self.command.is_response()
    }

    #[getter]
    const fn is_one_way(&self) -> bool {
        self.command.is_one_way()
    }

    #[getter]
    fn remark(&self) -> Option<&str> {
        self.command.remark.as_deref()
    }

    #[getter]
    fn ext_fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (name, value) in self.command.ext_fields.iter() {
            fields.set_item(name, value)?;
        }
        Ok(fields)
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.command.body)
    }

    #[pyo3(signature = (code, remark=None, *, body=None))]
    fn response<'py>(
        &self,
        py: Python<'py>,
        code: i32,
        remark: Option<String>,
        body: Option<&[u8]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let response = self.command.response(code, remark);
        frame(py, &response, body.unwrap_or_default())
    }

    fn __repr__(&self) -> String {
        format!("RemotingCommand(code={}, opaque={})", self.command.code, self.command.opaque)
    }
}

/// Decodes commands from bytes that arrive in pieces of any size.
#[pyclass(module = "txstore._native")]
pub(super) struct FrameReader {
    reader: remoting::FrameReader,
}

#[pymethods]
impl FrameReader {
    #[new]
    fn new() -> Self {
        Self { reader: remoting::FrameReader::default() }
    }

    fn feed(&mut self, py: Python<'_>, data: &[u8]) -> PyResult<Vec<RemotingCommand>> {
        self.reader.feed(data);
        let mut whole = Vec::new();
        while let Some(command) = self.reader.take().map_err(|error| protocol_error(py, &error.to_string()))? {
            whole.push(RemotingCommand { command });
        }
        Ok(whole)
    }
}

/// Encodes a request as a frame.
#[pyfunction]
#[pyo3(signature = (code, opaque, ext_fields, body=None, *, one_way=false))]
pub(super) fn encode_request<'py>(
    py: Python<'py>,
    code: i32,
    opaque: i32,
    ext_fields: &Bound<'_, PyDict>,
    body: Option<&[u8]>,
    one_way: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut request = Command::request(code, opaque);
    for (name, value) in ext_fields {
        request.ext_fields.set(name.extract::<String>()?, value.extract::<String>()?);
    }
    if one_way {
        request.flag |= FLAG_ONE_WAY;
    }
    frame(py, &request, body.unwrap_or_default())
}

/// Encodes a frame. The body, which may be large, is copied once.
fn frame<'py>(py: Python<'py>, command: &Command, body: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let mut head = Vec::with_capacity(512);
    remoting::encode_head(command, body.len(), &mut head)
        .map_err(|error| Error::InvalidMessage { what: error.to_string() })
        .or_raise(py)?;
    PyBytes::new_with(py, head.len() + body.len(), |bytes| {
        if let Some((first, rest)) = bytes.split_at_mut_checked(head.len()) {
            first.copy_from_slice(&head);
            rest.copy_from_slice(body);
        }
        Ok(())
    })
}

/// Decodes the concatenated records of an answer. With `unacknowledged`, a consumer will deliver them to its user.
#[pyfunction]
#[pyo3(signature = (data, *, unacknowledged=false))]
pub(super) fn decode_records(py: Python<'_>, data: &[u8], unacknowledged: bool) -> PyResult<Vec<StoredMessage>> {
    let mut rest = data;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let record = StoredRecord::received(rest)
            .map_err(|error| protocol_error(py, &format!("the {}. record of an answer: {error}", found.len() + 1)))?;
        rest = rest.get(record.bytes().len()..).unwrap_or_default();
        found.push(if unacknowledged { StoredMessage::unacknowledged(record) } else { StoredMessage::new(record) });
    }
    Ok(found)
}

/// Returns a message's properties as a request contains them: its own, its unique id, and more.
#[pyfunction]
pub(super) fn properties_text(message: &Message, unique_id: &str, more: Vec<(String, String)>) -> String {
    let mut text = message.envelope.properties.clone();
    properties::push(&mut text, UNIQUE_KEY, unique_id);
    for (name, value) in more {
        properties::push(&mut text, &name, &value);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Encodes several messages as the body of a batch, each with its unique id. With `queue_ids`, each is a half message
/// and contains its real topic and queue.
#[pyfunction]
#[pyo3(signature = (messages, unique_ids, queue_ids=None))]
pub(super) fn batch_body<'py>(
    py: Python<'py>,
    messages: Vec<PyRef<'py, Message>>,
    unique_ids: Vec<String>,
    queue_ids: Option<Vec<i32>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut bytes = Vec::new();
    let mut queue_ids = queue_ids.into_iter().flatten();
    for (message, unique_id) in messages.iter().zip(unique_ids) {
        let mut own = message.envelope.properties.clone();
        properties::push(&mut own, UNIQUE_KEY, &unique_id);
        if let Some(queue_id) = queue_ids.next() {
            properties::push(&mut own, REAL_TOPIC, &message.envelope.topic);
            properties::push(&mut own, REAL_QUEUE_ID, &queue_id.to_string());
        }
        push_message(&mut bytes, message.envelope.flag, message.body_bytes(py), &own).or_raise(py)?;
    }
    Ok(PyBytes::new(py, &bytes))
}
