//! Policy: what the server asks of Python, which takes it when it likes.
//!
//! In: requests that the data path does not decide. Out: answers. Always: a bounded number waits; Python polls, nothing
//! here calls it; each connection has a share and its turn, so that none keeps the others out. Not here: any decision.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::budget::Charge;
use super::codes::{event, response};
use super::command::{Command, ExtFields};
use super::fields::Refusal;
use crate::sync::unmodelled::{Condvar, Mutex};

/// Requests that may wait, of all connections; then only those with few waiting ones may add more.
const WAITING_MAX: usize = 10_000;
/// Requests of one connection that may wait; what comes then is answered `SYSTEM_BUSY`.
const SHARE_MAX: usize = 1_000;
/// Requests that every connection may have waiting, however many others wait.
const SHARE_MIN: usize = 16;
/// Notes that may wait to be logged; more are dropped, since the counters know of them.
const NOTES_MAX: usize = 256;
/// Stands for the connection of notes.
const NOTES: u64 = 0;

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
    /// The memory of what nobody waits for; what somebody waits for is counted there.
    _charge: Option<Charge>,
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
    /// What waits, by connection.
    lines: HashMap<u64, VecDeque<Request>>,
    /// The connections with something in their lines, in the order in which they have their turn.
    turns: VecDeque<u64>,
    length: usize,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    closed: bool,
}

impl Policy {
    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, connection: u64, address: &str, command: Command) -> Result<Answer, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let address = address.to_owned();
        self.put(Request { number, connection, address, command, _charge: None }, Some(sender))?;
        receiver.await.map_err(|_| Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"))
    }

    /// Asks for something that nobody waits for.
    pub(super) fn tell(
        &self,
        connection: u64,
        address: &str,
        command: Command,
        charge: Option<Charge>,
    ) -> Result<(), Refusal> {
        self.put(Request { number: 0, connection, address: address.to_owned(), command, _charge: charge }, None)
    }

    fn put(&self, asked: Request, sender: Option<oneshot::Sender<Answer>>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"));
        }
        // That a connection has ended must be known, however many requests wait.
        if asked.command.code != event::CLOSED && state.is_full_for(asked.connection) {
            return Err(Refusal::new(response::SYSTEM_BUSY, "too many requests wait to be decided; try again"));
        }
        if let Some(sender) = sender {
            state.waiting.insert(asked.number, sender);
        }
        state.push(asked.connection, asked);
        drop(state);
        self.came.notify_all();
        Ok(())
    }

    /// Has something logged. Nobody waits for it, and where much is to be logged it is dropped.
    pub(super) fn note(&self, connection: u64, address: &str, command: Command) {
        let mut state = self.state.lock();
        if !state.closed && state.own(NOTES) < NOTES_MAX {
            let address = address.to_owned();
            state.push(NOTES, Request { number: 0, connection, address, command, _charge: None });
            drop(state);
            self.came.notify_all();
        }
    }

    /// The next request; waits for one, as long as the time is not over and `close` was not called.
    pub fn next(&self, timeout_ms: u64) -> Option<Request> {
        let mut state = self.state.lock();
        if state.length == 0 && !state.closed {
            state = self.came.wait_for(state, std::time::Duration::from_millis(timeout_ms));
        }
        state.pop()
    }

    /// Answers a request; false where nobody waits for it (any more).
    pub fn answer(&self, number: u64, answer: Answer) -> bool {
        let sender = self.state.lock().waiting.remove(&number);
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().length
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

impl State {
    /// How many of a connection wait.
    fn own(&self, connection: u64) -> usize {
        self.lines.get(&connection).map_or(0, VecDeque::len)
    }

    fn is_full_for(&self, connection: u64) -> bool {
        let own = self.own(connection);
        own >= SHARE_MAX || (self.length >= WAITING_MAX && own >= SHARE_MIN)
    }

    fn push(&mut self, connection: u64, asked: Request) {
        let line = self.lines.entry(connection).or_default();
        if line.is_empty() {
            self.turns.push_back(connection);
        }
        line.push_back(asked);
        self.length += 1;
    }

    /// The next request of the connection whose turn it is.
    fn pop(&mut self) -> Option<Request> {
        let connection = self.turns.pop_front()?;
        let line = self.lines.get_mut(&connection)?;
        let asked = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&connection);
        } else {
            self.turns.push_back(connection);
        }
        self.length -= 1;
        asked
    }
}
