//! Events that the engine sends to Python: requests for a decision, and notifications.
//!
//! In:     what happens on connections.
//! Out:    values that Python takes from `policy`.
//! Always: a request for a decision is answered once. Notifications get no answer.

use crate::remoting::codes::response;
use crate::remoting::command::{Command, ExtFields};

/// Something that Python decides or must know.
#[derive(Debug)]
pub enum Event {
    /// Asks for the response to a client's request.
    Request(Command),
    /// Asks whether the topic exists. The answer comes after Python has set the topic in `tables`.
    UnknownTopic {
        /// The topic's name. It was validated.
        name: String,
        /// Whether to create the topic if clients may do so.
        create: bool,
    },
    /// Asks whether a consumer group exists, or may be created. The answer comes after Python has set it in `tables`.
    UnknownGroup {
        /// The group's name. It was validated.
        name: String,
    },
    /// Asks for the id of a producer group that is new on its connection.
    NewProducer {
        /// The group's name. It was validated.
        group: String,
        /// The account that signed the request.
        account: Option<String>,
    },
    /// Asks whether a slave of RocketMQ may copy the log from the end of its own on. `SYSTEM_BUSY`: ask again later.
    SlaveConnected {
        /// Where the slave's log ends. 0: it is empty.
        physical_offset: u64,
    },
    /// Tells that a connection has ended.
    ConnectionClosed,
    /// Tells that a connection was closed because of what the client sent.
    ConnectionRefused {
        /// What was wrong.
        reason: String,
    },
    /// Tells that an account was missing or had no permission. Sent only the first time on a connection.
    RequestDenied {
        /// The request's code, or the name of the RPC.
        request: String,
        /// What the account lacks.
        reason: String,
    },
    /// Tells that a group cannot read a damaged message, and continues after it.
    MessageSkipped {
        /// The group.
        group: String,
        /// The topic of the queue.
        topic: String,
        /// The queue.
        queue_id: i32,
        /// The message's queue offset.
        queue_offset: u64,
        /// What is wrong with the message.
        reason: String,
    },
    /// Reports a client's response to a request of the server.
    ClientAnswer(Command),
}

/// Python's answer to a request for a decision.
#[derive(Debug)]
pub enum Answer {
    /// The response to a request. For the other events: `SUCCESS`, or the reason of the refusal.
    Response(Response),
    /// The id of a producer group.
    Producer(u32),
}

/// The contents of a response.
#[derive(Debug, Default)]
pub struct Response {
    /// The response code.
    pub code: i32,
    /// A text for people.
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
