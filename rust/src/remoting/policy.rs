//! The queue of events that wait for Python.
//!
//! In: events. Out: answers. Always: a bounded number waits; Python polls, nothing
//! here calls it; each connection has a share and its turn, so that none keeps the others out. Not here: any decision.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::budget::Charge;
use super::codes::response;
use super::event::{Answer, Event};
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

/// An event that waits for Python.
#[derive(Debug)]
pub struct Entry {
    /// Names the event in its answer; 0 if no answer is awaited.
    pub number: u64,
    /// The connection that it concerns.
    pub connection: u64,
    /// The client's address, for people.
    pub address: String,
    /// What happened.
    pub event: Event,
    /// The memory of an event that no client waits for. What a client waits for is counted at its connection.
    pub charge: Option<Charge>,
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
    lines: HashMap<u64, VecDeque<Entry>>,
    /// The connections with something in their lines, in the order in which they have their turn.
    turns: VecDeque<u64>,
    length: usize,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    closed: bool,
}

impl Policy {
    /// Asks, and waits for the answer.
    pub(super) async fn ask(&self, connection: u64, address: &str, event: Event) -> Result<Answer, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let address = address.to_owned();
        self.put(Entry { number, connection, address, event, charge: None }, Some(sender))?;
        receiver.await.map_err(|_| Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"))
    }

    /// Tells something that needs no answer.
    pub(super) fn tell(
        &self,
        connection: u64,
        address: &str,
        event: Event,
        charge: Option<Charge>,
    ) -> Result<(), Refusal> {
        self.put(Entry { number: 0, connection, address: address.to_owned(), event, charge }, None)
    }

    fn put(&self, entry: Entry, sender: Option<oneshot::Sender<Answer>>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"));
        }
        // That a connection has ended must be known, however many requests wait.
        if !matches!(entry.event, Event::ConnectionClosed) && state.is_full_for(entry.connection) {
            return Err(Refusal::new(response::SYSTEM_BUSY, "too many requests wait to be decided; try again"));
        }
        if let Some(sender) = sender {
            state.waiting.insert(entry.number, sender);
        }
        state.push(entry.connection, entry);
        drop(state);
        self.came.notify_all();
        Ok(())
    }

    /// Has something logged. Nobody waits for it, and where much is to be logged it is dropped.
    pub(super) fn note(&self, connection: u64, address: &str, event: Event) {
        let mut state = self.state.lock();
        if !state.closed && state.own(NOTES) < NOTES_MAX {
            let address = address.to_owned();
            state.push(NOTES, Entry { number: 0, connection, address, event, charge: None });
            drop(state);
            self.came.notify_all();
        }
    }

    /// Waits for the next event until the time is over or `close` is called.
    pub fn next(&self, timeout_ms: u64) -> Option<Entry> {
        let mut state = self.state.lock();
        if state.length == 0 && !state.closed {
            state = self.came.wait_for(state, std::time::Duration::from_millis(timeout_ms));
        }
        state.pop()
    }

    /// Answers an event; false if the client no longer waits.
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

    fn push(&mut self, connection: u64, entry: Entry) {
        let line = self.lines.entry(connection).or_default();
        if line.is_empty() {
            self.turns.push_back(connection);
        }
        line.push_back(entry);
        self.length += 1;
    }

    /// The next event of the connection whose turn it is.
    fn pop(&mut self) -> Option<Entry> {
        let connection = self.turns.pop_front()?;
        let line = self.lines.get_mut(&connection)?;
        let entry = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&connection);
        } else {
            self.turns.push_back(connection);
        }
        self.length -= 1;
        entry
    }
}
