//! A group's reading of one topic: its queues, by turns, and the messages that came back in its retry topic.
//!
//! In:     clients that want messages.
//! Out:    messages; wake-ups for the clients that wait.
//! Always: every client gets messages of all queues, whichever queue it asks for.
//! Not here: waiting, moving messages to other topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

use super::handle::Lease;
use super::queue::{Holder, Order, Terms};
use super::room::Room;
use super::source::{BYTES_MAX, Message, Progress, Source};
use crate::base::error::Result;
use crate::base::names::RETRY_PREFIX;
use crate::base::sync::unmodelled::RwLock;
use crate::base::units::QueueId;
use crate::filter::Selector;
use crate::store::Store;

/// How often a message is delivered from its queue before it moves to the retry topic.
const DELIVERIES_MAX: u32 = 2;
/// In the retry topic each delivery has a copy of its own, which counts the deliveries before it.
const RETRY_DELIVERIES_MAX: u32 = 1;
/// About how much memory a queue takes, in bytes.
const SOURCE_COST: usize = 512;
/// How long a message stays invisible after its client is gone, in milliseconds.
const GONE_MS: i64 = 1_000;
/// How long a message of a push consumer stays invisible after its connection is lost, in milliseconds.
const LOST_MS: i64 = 60_000;

/// A group's reading of one topic.
#[derive(Debug)]
pub struct Reader {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    queues: RwLock<Vec<Arc<Source>>>,
    retries: Arc<Source>,
    /// Wakes one client that waits. It takes what it may have and wakes the next one.
    pub changed: Arc<Notify>,
    turn: AtomicUsize,
    first_number: u64,
    room: Arc<Room>,
}

/// What a client wants.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Whether the group keeps the order of each queue.
    pub fifo: bool,
    /// What it wants. `None`: all messages.
    pub selector: Option<Selector>,
    /// The maximum number of messages.
    pub messages_max: usize,
}

/// What a client gets.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The messages, each with where it was taken.
    pub messages: Vec<(Arc<Source>, Message)>,
    /// Damaged messages, which are skipped: where, queue offset, reason.
    pub skipped: Vec<(Arc<Source>, u64, String)>,
}

impl Reader {
    /// Creates the reading of a topic. `first_number` precedes the numbers of all its leases.
    pub fn new(group: &str, topic: &str, first_number: u64, room: &Arc<Room>) -> Self {
        let retry_topic = format!("{RETRY_PREFIX}{group}");
        Self {
            group: group.to_owned(),
            topic: topic.to_owned(),
            queues: RwLock::default(),
            retries: Arc::new(Source::of_retries(retry_topic, topic, group, (first_number, room))),
            changed: Arc::default(),
            turn: AtomicUsize::new(0),
            first_number,
            room: Arc::clone(room),
        }
    }

    /// Returns about how much memory it takes, in bytes, besides what is in flight.
    pub fn memory(&self) -> usize {
        (self.queues.read().len() + 2) * SOURCE_COST
    }

    /// Reads the queues that a topic has now, and stores where the group begins in new ones.
    pub fn open_queues(&self, store: &Store, count: i32) -> Result<()> {
        let known = |queues: &Vec<Arc<Source>>| i32::try_from(queues.len()).unwrap_or(i32::MAX);
        if known(&self.queues.read()) == count {
            return Ok(());
        }
        self.retries.begin(store)?;
        let mut queues = self.queues.write();
        // A topic that was deleted and created again may have fewer.
        queues.truncate(usize::try_from(count).unwrap_or(0));
        for queue_id in known(&queues)..count {
            let numbers = (self.first_number, &self.room);
            let source = Source::of_topic(&self.topic, QueueId(queue_id), &self.group, numbers);
            source.begin(store)?;
            queues.push(Arc::new(source));
        }
        Ok(())
    }

    /// Takes messages: of a queue after the other, each time from the next one on.
    pub fn take(&self, store: &Store, wish: &Wish, terms: &Terms) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let mut bytes = 0;
        for source in self.by_turns() {
            let left = wish.messages_max.saturating_sub(gathered.messages.len());
            if left == 0 || (bytes >= BYTES_MAX && !gathered.messages.is_empty()) {
                break;
            }
            let order = order(&source, wish.fifo);
            // The subscription of those in the retry topic was applied when they were delivered first.
            let selector = wish.selector.as_ref().filter(|_| !source.is_retry());
            let batch = match source.take(store, order, terms, selector, (left, bytes)) {
                Ok(batch) => batch,
                Err(error) if gathered.messages.is_empty() => return Err(error),
                // The next call gets the error.
                Err(_) => break,
            };
            bytes = batch.bytes;
            gathered.messages.extend(batch.messages.into_iter().map(|message| (Arc::clone(&source), message)));
            gathered.skipped.extend(batch.skipped.into_iter().map(|(at, why)| (Arc::clone(&source), at, why)));
        }
        Ok(gathered)
    }

    fn by_turns(&self) -> Vec<Arc<Source>> {
        let mut sources = self.sources();
        let turn = self.turn.fetch_add(1, Relaxed).checked_rem(sources.len()).unwrap_or(0);
        sources.rotate_left(turn);
        sources
    }

    /// Returns all queues, the retry topic's last.
    pub fn sources(&self) -> Vec<Arc<Source>> {
        self.queues.read().iter().chain([&self.retries]).cloned().collect()
    }

    /// Returns the queue of a lease.
    pub fn source(&self, lease: Lease) -> Option<Arc<Source>> {
        let Some(queue_id) = lease.queue_id else { return Some(Arc::clone(&self.retries)) };
        self.queues.read().get(usize::try_from(queue_id.0).ok()?).cloned()
    }

    /// Returns when the next message in flight is visible again, if any is in flight.
    pub fn next_visible_ms(&self) -> Option<i64> {
        self.sources().iter().filter_map(|source| source.next_visible_ms()).min()
    }

    /// Returns whether there are new messages that may be taken now.
    pub fn has_new(&self, store: &Store, now_ms: i64) -> Result<bool> {
        for source in self.sources() {
            if source.has_new(store, now_ms)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the messages of a client visible soon, because it is gone.
    pub fn client_gone(&self, client: u64, now_ms: i64) {
        self.release_all(|holder| holder.client == client, now_ms + GONE_MS);
    }

    /// Limits how long messages stay invisible that were answered over a connection that is lost. Perhaps their client
    /// lives, and has not got them.
    pub fn connection_lost(&self, connection: u64, now_ms: i64) {
        self.release_all(|holder| holder.connection == connection, now_ms + LOST_MS);
    }

    fn release_all(&self, of: impl Fn(Holder) -> bool + Copy, at_ms: i64) {
        let mut had_any = false;
        for source in self.sources() {
            had_any |= source.release_all(of, at_ms);
        }
        if had_any {
            self.changed.notify_one();
        }
    }

    /// Returns whether nothing would be lost if its state were forgotten.
    pub fn is_idle(&self, store: &Store) -> bool {
        self.sources().iter().all(|source| source.is_idle(store))
    }

    /// Returns how far the group is in each queue, the retry topic's last. Leaves out queues that it does not read now.
    pub fn progress(&self, store: &Store, now_ms: i64) -> Result<Vec<Progress>> {
        self.sources().iter().filter_map(|source| source.progress(store, now_ms).transpose()).collect()
    }
}

const fn order(source: &Source, fifo: bool) -> Order {
    match (fifo, source.is_retry()) {
        (true, _) => Order::Fifo,
        (false, true) => Order::Any { deliveries_max: RETRY_DELIVERIES_MAX },
        (false, false) => Order::Any { deliveries_max: DELIVERIES_MAX },
    }
}
