//! Events: what the engine asks of Python, and what it tells Python.
//!
//! In:     what happens on connections.
//! Out:    values that Python takes from `policy`.
//! Always: an event that asks is answered once; the others need no answer.

use super::codes::response;
use super::command::{Command, ExtFields};

/// Something that Python decides or must know.
#[derive(Debug)]
pub enum Event {
    /// Asks for the response to a client's request.
    Request(Command),
    /// Asks whether the topic exists. The answer comes after Python has set the topic in `tables`.
    UnknownTopic {
        /// The topic's name; it is valid.
        name: String,
        /// Whether to create the topic if clients may do so.
        create: bool,
    },
    /// Asks for the number of a producer group that is new on its connection.
    NewProducer {
        /// The group's name; it is valid.
        group: String,
        /// The account that signed the request.
        account: Option<String>,
    },
    /// Tells that a connection has ended.
    ConnectionClosed,
    /// Tells that a connection was closed because of what the client sent.
    ConnectionRefused {
        /// What was wrong.
        reason: String,
    },
    /// Tells that an account was missing or had no permission; only the first time on a connection.
    RequestDenied {
        /// The request's code.
        code: i32,
        /// What the account lacks.
        reason: String,
    },
    /// Tells a client's response to what it was asked.
    ClientAnswer(Command),
}

/// Python's answer to an event that asks.
#[derive(Debug)]
pub enum Answer {
    /// The response to a request. For the other events: `SUCCESS`, or why the client is refused.
    Response(Response),
    /// The number of a producer group.
    Producer(u32),
}

/// What a response says.
#[derive(Debug, Default)]
pub struct Response {
    /// The response code.
    pub code: i32,
    /// Words for people.
    pub remark: Option<String>,
    /// The response's fields.
    pub ext_fields: ExtFields,
    /// The response's body.
    pub body: Vec<u8>,
}

impl Response {
    pub(super) const fn is_success(&self) -> bool {
        self.code == response::SUCCESS
    }
}
