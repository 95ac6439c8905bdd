//! Policy: what the server asks of Python, which takes it when it likes.
//!
//! In: requests that the data path does not decide. Out: answers. Always: a bounded number waits; Python polls, nothing
//! here calls it. Not here: any decision.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::codes::{request, response};
use super::command::{Command, ExtFields};
use super::fields::Refusal;
use crate::sync::unmodelled::{Condvar, Mutex};

/// Requests that may stand in line; what comes then is answered `SYSTEM_BUSY`.
const LINE_MAX: usize = 10_000;

/// A request that Python is to answer.
#[derive(Debug)]
pub struct Request {
    /// Names it in the answer; 0 where nobody waits for one.
    pub number: u64,
    /// The connection that it came by.
    pub connection: u64,
    /// The client's address, for people.
    pub address: String,
    /// What is asked.
    pub command: Command,
}

/// What Python says to a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// The response code.
    pub code: i32,
    /// Words for people.
    pub remark: Option<String>,
    /// The response's fields.
    pub ext_fields: ExtFields,
    /// The response's body.
    pub body: Vec<u8>,
}

/// The line between the connections and Python.
#[derive(Debug, Default)]
pub struct Policy {
    state: Mutex<State>,
    came: Condvar,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    line: VecDeque<Request>,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    closed: bool,
}

impl Policy {
    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, connection: u64, address: &str, command: Command) -> Result<Answer, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(Request { number, connection, address: address.to_owned(), command }, Some(sender))?;
        receiver.await.map_err(|_| Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"))
    }

    /// Asks for something that nobody waits for.
    pub(super) fn tell(&self, connection: u64, address: &str, command: Command) -> Result<(), Refusal> {
        self.put(Request { number: 0, connection, address: address.to_owned(), command }, None)
    }

    fn put(&self, asked: Request, sender: Option<oneshot::Sender<Answer>>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"));
        }
        // That a connection has ended must be known, however long the line is.
        if state.line.len() >= LINE_MAX && asked.command.code != request::CLOSED {
            let remark = format!("{LINE_MAX} requests wait to be decided; try again");
            return Err(Refusal::new(response::SYSTEM_BUSY, remark));
        }
        if let Some(sender) = sender {
            state.waiting.insert(asked.number, sender);
        }
        state.line.push_back(asked);
        drop(state);
        self.came.notify_all();
        Ok(())
    }

    /// The next request; waits for one, as long as the time is not over and `close` was not called.
    pub fn next(&self, timeout_ms: u64) -> Option<Request> {
        let mut state = self.state.lock();
        if state.line.is_empty() && !state.closed {
            state = self.came.wait_for(state, std::time::Duration::from_millis(timeout_ms));
        }
        state.line.pop_front()
    }

    /// Answers a request; false where nobody waits for it (any more).
    pub fn answer(&self, number: u64, answer: Answer) -> bool {
        let sender = self.state.lock().waiting.remove(&number);
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }

    /// How many stand in line.
    pub fn waiting(&self) -> usize {
        self.state.lock().line.len()
    }

    /// Nothing is asked any more; whoever waits is told so. What stands in line can still be taken.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.came.notify_all();
    }
}
