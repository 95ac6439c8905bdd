//! Runs a fixed script on a store in memory, and keeps what its client asked and the answers.
//!
//! In:     steps.
//! Out:    everything that was acknowledged, and everything that was tried.
//! Always: an error ends one step, not the script, as an application would continue.
//! Not here: whether what is found afterwards is right (check.rs).

use std::sync::Arc;

use txstore::base::clock::ManualClock;
use txstore::base::error::{Error, Outcome, Result};
use txstore::base::options::{FlushDiskType, StoreOptions};
use txstore::base::units::{PhysicalOffset, QueueId, TimestampMs};
use txstore::record::message::{Envelope, Parts};
use txstore::storage::memory::Memory;
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Unacknowledged, Wait};
use txstore::transaction::HalfCopy;

pub const GROUP: &str = "services";
const TOPICS: [&str; 2] = ["orders", "payments"];

/// A message that was acknowledged.
#[derive(Clone, Debug)]
pub struct Sent {
    pub topic: String,
    pub physical_offset: PhysicalOffset,
    pub body: Vec<u8>,
}

/// A half message that was acknowledged.
#[derive(Clone, Debug)]
pub struct Half {
    pub id: String,
    pub copy: HalfCopy,
    /// The outcome of an acknowledged end.
    pub outcome: Option<Outcome>,
}

/// What the client knows.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub sent: Vec<Sent>,
    pub halves: Vec<Half>,
    /// The numbers of messages and halves that a successful flush covered.
    pub flushed: (usize, usize),
    /// Outcomes that a successful flush covered.
    pub flushed_outcomes: Vec<(String, Outcome)>,
    /// The last number of a body.
    count: u64,
}

#[derive(Debug)]
pub struct World {
    pub memory: Memory,
    pub clock: Arc<ManualClock>,
    pub options: StoreOptions,
    pub known: Known,
    pub store: Option<Store>,
    /// Errors of the steps.
    pub errors: Vec<Error>,
}

pub fn options(flush: FlushDiskType) -> StoreOptions {
    StoreOptions {
        flush_disk_type: flush,
        commit_log_file_size: Some(4 << 10),
        consume_queue_file_size: Some(20 * 8),
        max_hash_slot_num: Some(16),
        max_index_num: Some(64),
        background: false,
        ..StoreOptions::default()
    }
}

pub fn open(memory: &Memory, clock: &Arc<ManualClock>, options: &StoreOptions) -> Result<Store> {
    Store::open_with(Arc::new(memory.clone()), Arc::clone(clock) as _, options.clone())
}

impl World {
    pub fn new(flush: FlushDiskType) -> Self {
        Self {
            memory: Memory::new(),
            clock: Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000))),
            options: options(flush),
            known: Known::default(),
            store: None,
            errors: Vec::new(),
        }
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    pub fn open(&mut self) {
        self.store = None;
        let opened = open(&self.memory, &self.clock, &self.options);
        self.store = self.note(opened);
    }

    fn body(&mut self, size: usize) -> Vec<u8> {
        self.known.count += 1;
        let mut body = format!("{}:", self.known.count).into_bytes();
        body.resize(size.max(body.len()), b'x');
        body
    }

    /// Sends messages as one batch.
    pub fn send(&mut self, which: usize, messages: usize, size: usize) {
        let Some(store) = self.store.take() else { return };
        self.clock.advance(1);
        let topic = TOPICS[which % 2];
        let parts = Parts { topic, keys: "k1 k2", tags: Some("t"), ..Parts::default() };
        let envelope = Envelope::new(&parts).unwrap();
        let bodies: Vec<_> = (0..messages).map(|_| self.body(size)).collect();
        let batch: Vec<_> = bodies
            .iter()
            .map(|body| NewMessage { envelope: &envelope, body, queue_id: QueueId((which / 2 % 2) as i32) })
            .collect();
        if let Some(sent) = self.note(store.append(&batch, Wait::Yes).and_then(Unacknowledged::acknowledged)) {
            for (sent, body) in sent.into_iter().zip(bodies) {
                self.known.sent.push(Sent { topic: topic.into(), physical_offset: sent.physical_offset, body });
            }
        }
        self.store = Some(store);
    }

    pub fn prepare(&mut self, which: usize, size: usize) {
        let Some(store) = self.store.take() else { return };
        self.clock.advance(1);
        let envelope = Envelope::new(&Parts { topic: TOPICS[which % 2], keys: "h", ..Parts::default() }).unwrap();
        let body = self.body(size);
        let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId((which / 2 % 2) as i32) };
        let half = NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 };
        if let Some(sent) = self.note(store.prepare(&half, Wait::Yes).and_then(Unacknowledged::acknowledged)) {
            let copy = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
            self.known.halves.push(Half { id: sent.unique_id.to_string(), copy, outcome: None });
        }
        self.store = Some(store);
    }

    pub fn end_at(&mut self, at: usize, kind: EndKind) {
        let Some(store) = self.store.take() else { return };
        self.clock.advance(1);
        let half = &self.known.halves[at];
        let end = End {
            half: half.copy,
            kind,
            transaction_id: Some(half.id.clone()),
            group: Some(GROUP.into()),
            decider: Decider::Producer,
        };
        match store.end_transaction(&end, Wait::Yes) {
            Ok(ended) => self.known.halves[at].outcome = Some(ended.outcome),
            // An earlier end failed, but reached the log. The store's answer counts.
            Err(Error::AlreadyEnded { outcome, .. }) => self.known.halves[at].outcome = Some(outcome),
            Err(error) => self.errors.push(error),
        }
        self.store = Some(store);
    }

    pub fn flush(&mut self) {
        let Some(store) = self.store.take() else { return };
        if self.note(store.flush()).is_some() {
            self.known.flushed = (self.known.sent.len(), self.known.halves.len());
            self.known.flushed_outcomes =
                self.known.halves.iter().filter_map(|half| Some((half.id.clone(), half.outcome?))).collect();
        }
        self.store = Some(store);
    }

    pub fn call(&mut self, call: impl Fn(&Store) -> Result<()>) {
        let Some(store) = self.store.take() else { return };
        self.note(call(&store));
        self.store = Some(store);
    }

    pub fn close(&mut self) {
        if let Some(store) = self.store.take() {
            self.note(store.close());
        }
    }

    /// Runs a fixed script: every operation, over several files of the log and of a queue.
    pub fn script(&mut self) {
        self.open();
        self.send(0, 2, 40);
        self.prepare(0, 300);
        self.prepare(1, 500);
        self.send(1, 1, 700);
        self.end_at_if(0, EndKind::Commit);
        self.prepare(2, 400);
        self.call(Store::flush_round);
        self.end_at_if(1, EndKind::RollBack);
        self.prepare(3, 900);
        self.call(Store::snapshot);
        self.end_at_if(2, EndKind::Discard);
        self.send(3, 3, 500);
        self.prepare(0, 200);
        self.flush();
        self.call(Store::write_offsets);
        self.send(2, 1, 1_500);
        self.end_at_if(3, EndKind::Commit);
        self.close();
    }

    fn end_at_if(&mut self, at: usize, kind: EndKind) {
        if at < self.known.halves.len() {
            self.end_at(at, kind);
        }
    }
}
