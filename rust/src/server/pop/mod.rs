//! Consumption by POP: messages are leased to clients one by one, and what is in flight lives in memory.
//!
//! In:     receives, acknowledgements and changes of invisible times, with the time.
//! Out:    messages with receipt handles; each group's offset, stored as all offsets are.
//! Always: a group's stored offset in a queue is its lowest unacknowledged message, so a crash loses nothing. What was
//!         acknowledged above it comes again, at most `queue::OUTSTANDING_MAX` messages a queue, and in all no more than
//!         a share of the server's memory has room for.
//! Not here: connections, waiting, the moves to the retry topic and to the dead letters (`grpc`).

pub mod handle;
pub mod queue;
pub mod reader;
pub mod room;
pub mod source;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use self::handle::Handles;
use self::reader::Reader;
use self::room::Room;
use super::budget::{Account, Charge};
use crate::base::error::Result;
use crate::base::sync::unmodelled::{Mutex, RwLock};
use crate::store::Store;

/// The most groups of one client.
pub const GROUPS_MAX: usize = 64;
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
    /// What all queues together may have outstanding.
    pub(super) room: Arc<Room>,
}

/// Who reads what.
#[derive(Debug, Default)]
struct Users {
    /// By group, the clients.
    clients: HashMap<String, HashSet<u64>>,
    /// By client, the number of its groups.
    groups: HashMap<u64, usize>,
    /// By client or connection, the readers through which it has received.
    readers: HashMap<u64, Vec<Used>>,
}

/// A reader that a client or a connection uses.
#[derive(Debug)]
struct Used {
    reader: Arc<Reader>,
    /// Its memory, which counts for the client.
    _charge: Option<Charge>,
}

impl Pop {
    /// Creates the state without readers. `memory_max`: the bytes of the whole server. Fails if the system has no
    /// randomness.
    pub fn new(memory_max: usize) -> Result<Self> {
        let (readers, numbers, users) = (RwLock::default(), AtomicU64::new(0), Mutex::default());
        let room = Arc::new(Room::new(memory_max));
        Ok(Self { handles: Handles::new()?, readers, numbers, users, room })
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
            Arc::new(Reader::new(group, topic, first_number, &self.room))
        });
        Arc::clone(reader)
    }

    /// Notes that a client is a member of a group. Returns false if it has too many groups.
    pub fn join(&self, group: &str, client: u64) -> bool {
        let mut users = self.users.lock();
        let Users { clients, groups, .. } = &mut *users;
        if clients.get(group).is_some_and(|members| members.contains(&client)) {
            return true;
        }
        let count = groups.entry(client).or_default();
        if *count >= GROUPS_MAX {
            return false;
        }
        *count += 1;
        clients.entry(group.to_owned()).or_default().insert(client)
    }

    /// Notes that a client is no longer a member of a group.
    pub fn leave(&self, group: &str, client: u64) {
        let mut users = self.users.lock();
        let Users { clients, groups, .. } = &mut *users;
        let Some(members) = clients.get_mut(group) else { return };
        if !members.remove(&client) {
            return;
        }
        if members.is_empty() {
            clients.remove(group);
        }
        match groups.get_mut(&client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(groups.remove(&client)),
        }
    }

    /// Returns the number of a group's members.
    pub fn members(&self, group: &str) -> usize {
        self.users.lock().clients.get(group).map_or(0, HashSet::len)
    }

    /// Returns the number of members of all groups.
    pub fn members_in_all(&self) -> usize {
        self.users.lock().groups.values().sum()
    }

    /// Returns a group's members.
    pub fn members_of(&self, group: &str) -> Vec<u64> {
        self.users.lock().clients.get(group).into_iter().flatten().copied().collect()
    }

    /// Returns the groups that have members, and read a topic.
    pub fn groups_of(&self, topic: &str) -> Vec<String> {
        let readers = self.readers.read();
        let reading = readers.iter().filter(|(_, topics)| topics.contains_key(topic)).map(|(group, _)| group);
        let users = self.users.lock();
        reading.filter(|group| users.clients.contains_key(*group)).cloned().collect()
    }

    /// Returns a group's readings of topics.
    pub fn of_group(&self, group: &str) -> Vec<Arc<Reader>> {
        self.readers.read().get(group).into_iter().flat_map(|topics| topics.values().cloned()).collect()
    }

    /// Notes that a client receives over a connection. `account`: where the memory of a reader counts.
    pub(super) fn receives(
        &self,
        reader: &Arc<Reader>,
        (client, connection): (u64, u64),
        account: Option<&Arc<Account>>,
    ) {
        let mut users = self.users.lock();
        for (user, account) in [(client, account), (connection, None)] {
            let readers = users.readers.entry(user).or_default();
            if !readers.iter().any(|used| Arc::ptr_eq(&used.reader, reader)) {
                let charge = account.map(|account| account.charge(reader.memory()));
                readers.push(Used { reader: Arc::clone(reader), _charge: charge });
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
        users.groups.remove(&client);
        let readers = users.readers.remove(&client).unwrap_or_default();
        drop(users);
        for used in readers {
            used.reader.client_gone(client, now_ms);
        }
    }

    /// Limits how long messages stay invisible whose answer may have been lost with a connection.
    pub fn connection_lost(&self, connection: u64, now_ms: i64) {
        let readers = self.users.lock().readers.remove(&connection).unwrap_or_default();
        for used in readers {
            used.reader.connection_lost(connection, now_ms);
        }
    }

    /// Replaces the file in which deliveries are noted, if most of it is out of date. A failure keeps the older file.
    pub fn replace_deliveries(&self, store: &Store) -> Result<()> {
        if !store.replace_deliveries()? {
            return Ok(());
        }
        let readers: Vec<_> = self.readers.read().values().flat_map(|topics| topics.values().cloned()).collect();
        for source in readers.iter().flat_map(|reader| reader.sources()) {
            source.note_all(store)?;
        }
        store.end_deliveries()
    }

    /// Forgets the readers that nobody uses and that have nothing in flight, or whose topic or group was deleted.
    pub fn forget_idle(&self, store: &Store) {
        self.readers.write().retain(|_, topics| {
            topics.retain(|_, reader| Arc::strong_count(reader) > 1 || !reader.is_idle(store));
            !topics.is_empty()
        });
    }
}
