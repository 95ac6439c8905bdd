//! The engine's events for Python: one frozen class for each.
//!
//! In:     an entry of the policy's queue.
//! Out:    an object with the event's fields.
//! Always: `connection` is the id of the client's connection, `address` is the client's address, for people.

use pyo3::prelude::*;

use super::remoting::RemotingCommand;
use crate::server::accounts::ACCESS_KEY;
use crate::server::budget::Charge;
use crate::server::event::Event;
use crate::server::policy::Entry;

/// A client's request that Python answers.
#[pyclass(frozen, extends = RemotingCommand, module = "txstore._native")]
pub(super) struct RemotingRequest {
    #[pyo3(get)]
    number: u64,
    #[pyo3(get)]
    connection: u64,
    #[pyo3(get)]
    address: String,
    /// The memory of a request that no client waits for. It is counted until Python has handled the request.
    _charge: Option<Charge>,
}

#[pymethods]
impl RemotingRequest {
    /// The account that signed the request. Verified if the server has accounts. Otherwise it has no meaning.
    #[getter]
    fn account(this: PyRef<'_, Self>) -> Option<String> {
        this.as_super().command.ext_fields.get(ACCESS_KEY).map(str::to_owned)
    }

    fn __repr__(this: PyRef<'_, Self>) -> String {
        format!("RemotingRequest(code={}, connection={})", this.as_super().command.code, this.connection)
    }
}

/// Asks whether a topic exists that the engine does not know.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct UnknownTopic {
    number: u64,
    connection: u64,
    address: String,
    name: String,
    create: bool,
}

/// Asks whether a consumer group exists that the engine does not know.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct UnknownGroup {
    number: u64,
    connection: u64,
    address: String,
    name: String,
}

/// Asks for the id of a producer group that is new on its connection.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct NewProducer {
    number: u64,
    connection: u64,
    address: String,
    group: String,
    account: Option<String>,
}

/// Asks whether a slave of RocketMQ may copy the log from the end of its own on.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct SlaveConnected {
    number: u64,
    connection: u64,
    address: String,
    physical_offset: u64,
}

/// Tells that a connection has ended.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct ConnectionClosed {
    connection: u64,
    address: String,
}

/// Tells that a connection was closed because of what the client sent.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct ConnectionRefused {
    connection: u64,
    address: String,
    reason: String,
}

/// Tells that a request was denied. Sent only the first time on a connection.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct RequestDenied {
    connection: u64,
    address: String,
    request: String,
    reason: String,
}

/// Tells that a group skips a damaged message.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct MessageSkipped {
    group: String,
    topic: String,
    queue_id: i32,
    queue_offset: u64,
    reason: String,
}

/// Reports a client's response to a request of the server.
#[pyclass(frozen, extends = RemotingCommand, module = "txstore._native")]
pub(super) struct ClientAnswer {
    #[pyo3(get)]
    connection: u64,
    #[pyo3(get)]
    address: String,
    /// See `RemotingRequest`.
    _charge: Option<Charge>,
}

/// An event that needs an answer. Python passes it back with the answer.
#[derive(FromPyObject)]
pub(super) enum Question<'py> {
    Request(Bound<'py, RemotingRequest>),
    Topic(Bound<'py, UnknownTopic>),
    Group(Bound<'py, UnknownGroup>),
    Producer(Bound<'py, NewProducer>),
    Slave(Bound<'py, SlaveConnected>),
}

impl Question<'_> {
    /// Returns the number that identifies the event in its answer.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Request(request) => request.get().number,
            Self::Topic(topic) => topic.get().number,
            Self::Group(group) => group.get().number,
            Self::Producer(producer) => producer.get().number,
            Self::Slave(slave) => slave.get().number,
        }
    }
}

impl NewProducer {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}

/// Creates the Python object of an event.
pub(super) fn to_object(py: Python<'_>, entry: Entry) -> PyResult<Bound<'_, PyAny>> {
    let Entry { number, connection, address, event, charge } = entry;
    Ok(match event {
        Event::Request(command) => {
            let request = RemotingRequest { number, connection, address, _charge: charge };
            Bound::new(py, RemotingCommand::base(command).add_subclass(request))?.into_any()
        }
        Event::UnknownTopic { name, create } => {
            Bound::new(py, UnknownTopic { number, connection, address, name, create })?.into_any()
        }
        Event::UnknownGroup { name } => Bound::new(py, UnknownGroup { number, connection, address, name })?.into_any(),
        Event::NewProducer { group, account } => {
            Bound::new(py, NewProducer { number, connection, address, group, account })?.into_any()
        }
        Event::SlaveConnected { physical_offset } => {
            Bound::new(py, SlaveConnected { number, connection, address, physical_offset })?.into_any()
        }
        Event::ConnectionClosed => Bound::new(py, ConnectionClosed { connection, address })?.into_any(),
        Event::ConnectionRefused { reason } => {
            Bound::new(py, ConnectionRefused { connection, address, reason })?.into_any()
        }
        Event::RequestDenied { request, reason } => {
            Bound::new(py, RequestDenied { connection, address, request, reason })?.into_any()
        }
        Event::MessageSkipped { group, topic, queue_id, queue_offset, reason } => {
            Bound::new(py, MessageSkipped { group, topic, queue_id, queue_offset, reason })?.into_any()
        }
        Event::ClientAnswer(command) => {
            let answer = ClientAnswer { connection, address, _charge: charge };
            Bound::new(py, RemotingCommand::base(command).add_subclass(answer))?.into_any()
        }
    })
}
