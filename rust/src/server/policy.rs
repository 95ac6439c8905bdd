//! The queue of events that wait for Python.
//!
//! In:     events.
//! Out:    answers.
//! Always: the number of waiting events is limited. Python polls, and no Rust code calls Python. Each connection has a
//!         share and a turn, so that none blocks the others.
//! Not here: any decision.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use super::budget::Charge;
use super::event::{Answer, Event};
use super::fields::Refusal;
use crate::base::sync::unmodelled::{Condvar, Mutex};
use crate::remoting::codes::response;

/// The maximum number of waiting requests of all connections. Above it, only connections with few waiting requests may
/// add more.
const WAITING_MAX: usize = 10_000;
/// The maximum number of waiting requests of one connection. Further ones are answered with `SYSTEM_BUSY`.
const SHARE_MAX: usize = 1_000;
/// The number of waiting requests that every connection may have, however many others wait.
const SHARE_MIN: usize = 16;
/// The maximum number of notes that wait to be logged. Further ones are dropped, because the counters include them.
const NOTES_MAX: usize = 256;
/// The connection id that is used for notes.
const NOTES: u64 = 0;

/// An event that waits for Python.
#[derive(Debug)]
pub struct Entry {
    /// Identifies the event in its answer. 0: no answer is expected.
    pub number: u64,
    /// The id of the connection.
    pub connection: u64,
    /// The client's address, for people.
    pub address: String,
    /// What happened.
    pub event: Event,
    /// The memory of a request, which may wait longer than its connection lives. `None`: an event of the server's own.
    pub charge: Option<Charge>,
}

/// The queue between the connections and Python.
#[derive(Debug, Default)]
pub struct Policy {
    state: Mutex<State>,
    came: Condvar,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The waiting events, by connection.
    lines: HashMap<u64, VecDeque<Entry>>,
    /// The connections with waiting events, in the order of their turns.
    turns: VecDeque<u64>,
    length: usize,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    closed: bool,
}

impl Policy {
    /// Sends an event to Python and waits for the answer.
    pub(super) async fn ask(
        &self,
        connection: u64,
        address: &str,
        event: Event,
        charge: Option<Charge>,
    ) -> Result<Answer, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let address = address.to_owned();
        self.put(Entry { number, connection, address, event, charge }, Some(sender))?;
        receiver.await.map_err(|_| Refusal::new(response::SERVICE_NOT_AVAILABLE, "the server is stopping"))
    }

    /// Sends an event that needs no answer.
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
        // Python must learn that a connection has ended, however many requests wait.
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

    /// Sends an event to be logged. No client waits for it, and it is dropped if too many wait.
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

    /// Answers an event. Returns false if the client no longer waits.
    pub fn answer(&self, number: u64, answer: Answer) -> bool {
        let sender = self.state.lock().waiting.remove(&number);
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }

    /// Drops the requests of a connection that is closed for holding too much. Its end is still told.
    pub(super) fn forget(&self, connection: u64) {
        let mut state = self.state.lock();
        for entry in state.take(connection) {
            if matches!(entry.event, Event::ConnectionClosed) {
                state.push(connection, entry);
            } else {
                state.waiting.remove(&entry.number);
            }
        }
    }

    /// Returns the number of waiting events.
    pub fn waiting(&self) -> usize {
        self.state.lock().length
    }

    /// Refuses new events and ends all waits for an answer. Events in the queue can still be taken.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.came.notify_all();
    }
}

impl State {
    /// Returns the number of waiting events of a connection.
    fn own(&self, connection: u64) -> usize {
        self.lines.get(&connection).map_or(0, VecDeque::len)
    }

    fn is_full_for(&self, connection: u64) -> bool {
        let own = self.own(connection);
        own >= SHARE_MAX || (self.length >= WAITING_MAX && own >= SHARE_MIN)
    }

    /// Removes the waiting events of a connection.
    fn take(&mut self, connection: u64) -> VecDeque<Entry> {
        let line = self.lines.remove(&connection).unwrap_or_default();
        if !line.is_empty() {
            self.turns.retain(|one| *one != connection);
            self.length -= line.len();
        }
        line
    }

    fn push(&mut self, connection: u64, entry: Entry) {
        let line = self.lines.entry(connection).or_default();
        if line.is_empty() {
            self.turns.push_back(connection);
        }
        line.push_back(entry);
        self.length += 1;
    }

    /// Returns the next event of the connection whose turn it is.
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

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn topic(name: &str) -> Event {
        Event::UnknownTopic { name: name.to_owned(), create: false }
    }

    #[test]
    fn what_is_forgotten_keeps_nobody_waiting() {
        let policy = Policy::default();
        for (connection, name) in [(1, "a"), (2, "b"), (1, "c"), (3, "d"), (1, "e")] {
            assert!(policy.tell(connection, "", topic(name), None).is_ok());
        }
        assert!(policy.tell(1, "", Event::ConnectionClosed, None).is_ok());
        policy.forget(1);
        policy.forget(4);
        assert_eq!(policy.waiting(), 3);
        let next = || policy.next(0).map(|entry| (entry.connection, matches!(entry.event, Event::ConnectionClosed)));
        assert_eq!([next(), next(), next(), next()], [Some((2, false)), Some((3, false)), Some((1, true)), None]);
    }

    #[test]
    fn who_waits_for_what_is_forgotten_is_told() {
        let policy = Policy::default();
        let mut asked = Box::pin(policy.ask(1, "", topic("a"), None));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(asked.as_mut().poll(&mut context).is_pending());
        policy.forget(1);
        assert!(matches!(asked.as_mut().poll(&mut context), std::task::Poll::Ready(Err(_))));
    }
}
