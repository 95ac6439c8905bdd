//! Consumption by POP: messages are leased to clients one by one, and what is in flight lives in memory.
//!
//! In:     receives, acknowledgements and changes of invisible times, with the time.
//! Out:    messages with receipt handles; each group's offset, stored as all offsets are.
//! Always: a group's stored offset in a queue is its lowest unacknowledged message, so a crash loses nothing. What was
//!         acknowledged above it comes again, at most `queue::OUTSTANDING_MAX` messages a queue.
//! Not here: connections, waiting, the moves to the retry topic and to the dead letters (`grpc`).

pub mod handle;
pub mod queue;
pub mod reader;
pub mod source;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use self::handle::Handles;
use self::reader::Reader;
use crate::base::error::Result;
use crate::base::sync::unmodelled::{Mutex, RwLock};

/// The distance between the first lease numbers of two readers, so that no number is used twice.
const NUMBERS: u64 = 1 << 32;

/// What all groups have in flight.
#[derive(Debug)]
pub struct Pop {
    /// The receipt handles of this process.
    pub handles: Handles,
    /// By group, then by topic.
    readers: RwLock<HashMap<String, HashMap<String, Arc<Reader>>>>,
    numbers: AtomicU64,
    users: Mutex<Users>,
}

/// Who reads what.
#[derive(Debug, Default)]
struct Users {
    /// By group, the clients.
    clients: HashMap<String, HashSet<u64>>,
    /// By client or connection, the readers through which it has received.
    readers: HashMap<u64, Vec<Arc<Reader>>>,
}

impl Pop {
    /// Creates the state without readers. Fails if the system has no randomness.
    pub fn new() -> Result<Self> {
        let (readers, numbers, users) = (RwLock::default(), AtomicU64::new(0), Mutex::default());
        Ok(Self { handles: Handles::new()?, readers, numbers, users })
    }

    /// Returns a group's reading of a topic, if it has one.
    pub fn known(&self, group: &str, topic: &str) -> Option<Arc<Reader>> {
        self.readers.read().get(group)?.get(topic).cloned()
    }

    /// Returns a group's reading of a topic. Creates it if it is new.
    pub fn reader(&self, group: &str, topic: &str) -> Arc<Reader> {
        if let Some(known) = self.known(group, topic) {
            return known;
        }
        let mut readers = self.readers.write();
        let of_group = readers.entry(group.to_owned()).or_default();
        let reader = of_group.entry(topic.to_owned()).or_insert_with(|| {
            let first_number = self.numbers.fetch_add(NUMBERS, Relaxed);
            Arc::new(Reader::new(group, topic, first_number))
        });
        Arc::clone(reader)
    }

    /// Notes that a client is a member of a group.
    pub fn join(&self, group: &str, client: u64) {
        let mut users = self.users.lock();
        match users.clients.get_mut(group) {
            Some(members) => drop(members.insert(client)),
            None => drop(users.clients.insert(group.to_owned(), HashSet::from([client]))),
        }
    }

    /// Returns the number of a group's members.
    pub fn members(&self, group: &str) -> usize {
        self.users.lock().clients.get(group).map_or(0, HashSet::len)
    }

    /// Notes that a client receives over a connection.
    pub fn receives(&self, reader: &Arc<Reader>, client: u64, connection: u64) {
        let mut users = self.users.lock();
        for user in [client, connection] {
            let readers = users.readers.entry(user).or_default();
            if !readers.iter().any(|known| Arc::ptr_eq(known, reader)) {
                readers.push(Arc::clone(reader));
            }
        }
    }

    /// Makes the messages of a client visible soon, because it is gone.
    pub fn client_gone(&self, client: u64, now_ms: i64) {
        let mut users = self.users.lock();
        users.clients.retain(|_, members| {
            members.remove(&client);
            !members.is_empty()
        });
        let readers = users.readers.remove(&client).unwrap_or_default();
        drop(users);
        for reader in readers {
            reader.client_gone(client, now_ms);
        }
    }

    /// Limits how long messages stay invisible whose answer may have been lost with a connection.
    pub fn connection_lost(&self, connection: u64, now_ms: i64) {
        let readers = self.users.lock().readers.remove(&connection).unwrap_or_default();
        for reader in readers {
            reader.connection_lost(connection, now_ms);
        }
    }

    /// Forgets the readers that nobody uses and that have nothing in flight.
    pub fn forget_idle(&self) {
        self.readers.write().retain(|_, topics| {
            topics.retain(|_, reader| Arc::strong_count(reader) > 1 || !reader.is_idle());
            !topics.is_empty()
        });
    }
}
