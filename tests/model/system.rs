//! Runs the model's steps on a store in memory, and compares the two after each.

use std::sync::Arc;

use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use txstore::base::clock::ManualClock;
use txstore::base::error::{Error, Outcome};
use txstore::base::options::{FlushDiskType, StoreOptions};
use txstore::base::units::{QueueId, QueueOffset, TimestampMs};
use txstore::record::message::{Envelope, Parts};
use txstore::storage::memory::{CrashKeep, Memory};
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
use txstore::transaction::HalfCopy;

use crate::model::{Model, Step, TOPICS, outcome};

const GROUP: &str = "services";
const READERS: &str = "readers";
const QUEUE: QueueId = QueueId(0);

/// A store, with the offsets of its transactions in the model's order.
pub struct System {
    memory: Memory,
    clock: Arc<ManualClock>,
    store: Store,
    halves: Vec<HalfCopy>,
    ended: Vec<bool>,
}

fn topic(number: usize) -> String {
    format!("t{number}")
}

fn body(number: usize) -> Vec<u8> {
    format!("{number}:{}", "x".repeat(number * 37 % 400)).into_bytes()
}

fn open(memory: &Memory, clock: &Arc<ManualClock>, read_only: bool) -> Store {
    let options = StoreOptions {
        read_only,
        flush_disk_type: FlushDiskType::Sync,
        commit_log_file_size: Some(4 << 10),
        consume_queue_file_size: Some(20 * 8),
        max_hash_slot_num: Some(16),
        max_index_num: Some(64),
        background: false,
        ..StoreOptions::default()
    };
    Store::open_with(Arc::new(memory.clone()), Arc::clone(clock) as _, options).unwrap()
}

/// Returns the numbers in a topic, in its order.
fn numbers(store: &Store, number: usize) -> Vec<usize> {
    let (records, _) = store.read(&topic(number), QUEUE, QueueOffset(0), usize::MAX, None).unwrap();
    let number = |body: &[u8]| std::str::from_utf8(body).unwrap().split(':').next().unwrap().parse().unwrap();
    records.iter().map(|record| number(record.view().unwrap().body)).collect()
}

impl System {
    fn send(&self, to: usize, numbers: &[usize]) {
        let envelope = Envelope::new(&Parts { topic: &topic(to), keys: "k", ..Parts::default() }).unwrap();
        let bodies: Vec<_> = numbers.iter().map(|number| body(*number)).collect();
        let messages: Vec<_> =
            bodies.iter().map(|body| NewMessage { envelope: &envelope, body, queue_id: QUEUE }).collect();
        self.store.append(&messages, Wait::Yes).unwrap().acknowledged().unwrap();
    }

    fn prepare(&self, id: usize, to: usize) -> HalfCopy {
        let envelope = Envelope::new(&Parts { topic: &topic(to), ..Parts::default() }).unwrap();
        let message = NewMessage { envelope: &envelope, body: &body(id), queue_id: QUEUE };
        let id = format!("id{id}");
        let half = NewHalfMessage { message, group: GROUP, unique_id: Some(&id), owner: 0 };
        let sent = match self.store.prepare(&half, Wait::Yes) {
            Err(Error::AlreadyEnded { .. }) => {
                // A resend is refused in the minutes after the end; later the id is free again.
                self.clock.advance(11 * 60_000);
                self.store.prepare(&half, Wait::Yes)
            }
            sent => sent,
        };
        let sent = sent.unwrap().acknowledged().unwrap();
        HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 }
    }

    fn begin(&mut self, half: HalfCopy) {
        assert!(!self.halves.contains(&half), "a new transaction has an offset of its own");
        self.halves.push(half);
        self.ended.push(false);
    }

    fn end(&mut self, model: &Model, which: usize, kind: EndKind) {
        let end = End {
            half: self.halves[which],
            kind,
            transaction_id: Some(format!("id{}", model.transactions[which].id)),
            group: Some(GROUP.into()),
            decider: Decider::Producer,
        };
        let expected = model.transactions[which].outcome.unwrap();
        let again = std::mem::replace(&mut self.ended[which], true);
        match self.store.end_transaction(&end, Wait::Yes) {
            Ok(ended) => assert_eq!((ended.outcome, ended.already), (outcome(kind), again)),
            Err(Error::AlreadyEnded { outcome: found, .. }) => assert_eq!((found, again), (expected, true)),
            Err(error) => panic!("{error}"),
        }
        assert!(!again || expected != outcome(kind) || self.ended[which]);
    }

    fn resume(&mut self, model: &Model, which: usize) {
        let id = format!("id{}", model.transactions[which].id);
        // The model has taken the step already: one more transaction means that there was one to resume.
        if model.transactions.len() > self.halves.len() {
            let sent = self.store.resume(&id).unwrap();
            self.begin(HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 });
        } else {
            let refused = self.store.resume(&id);
            let newest = model.transactions[model.newest(which)].outcome;
            match refused {
                Err(Error::StillPending { .. }) => assert_eq!(newest, None),
                Err(Error::AlreadyEnded { outcome, .. }) => assert_eq!(newest, Some(outcome)),
                other => panic!("resumed what is {newest:?}: {other:?}"),
            }
        }
    }

    fn acknowledge(&self, number: usize, of: u64, model: &Model) {
        let (name, end) = (topic(number), model.topics[number].len() as u64);
        if of > end {
            assert!(self.store.set_consumer_offset(&name, READERS, QUEUE, of).is_err(), "after the end");
        }
        self.store.set_consumer_offset(&name, READERS, QUEUE, of.min(end)).unwrap();
    }

    /// Compares everything that a store shows with the model.
    fn agrees(&self, store: &Store, model: &Model) {
        for (number, expected) in model.topics.iter().enumerate() {
            assert_eq!(&numbers(store, number), expected, "topic {number}");
            let range = store.queue_range(&topic(number), QUEUE).unwrap();
            assert_eq!(range, (0, expected.len() as u64));
        }
        let waiting: Vec<_> =
            store.halves_waiting(None, usize::MAX).unwrap().into_iter().map(|waiting| waiting.newest).collect();
        let pending: Vec<_> = model.pending().map(|at| self.halves[at]).collect();
        assert_eq!(waiting, pending, "pending transactions");
        let rows: Vec<_> = store
            .transactions()
            .unwrap()
            .into_iter()
            .map(|row| (row.halves[0], row.outcome, row.finals.len()))
            .collect();
        let committed = |outcome: Option<Outcome>| usize::from(outcome == Some(Outcome::Committed));
        let expected: Vec<_> = (self.halves.iter().zip(&model.transactions))
            .map(|(half, transaction)| (*half, transaction.outcome, committed(transaction.outcome)))
            .collect();
        assert_eq!(rows, expected, "every transaction's outcome");
    }

    fn offsets_agree(&self, model: &Model) {
        for number in 0..TOPICS {
            let found = self.store.consumer_offset(&topic(number), READERS, QUEUE).unwrap().unwrap_or(0);
            assert_eq!(found, model.offsets[number], "what was acknowledged of topic {number}");
        }
    }
}

impl StateMachineTest for System {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let (memory, clock) = (Memory::new(), Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000))));
        let store = open(&memory, &clock, false);
        Self { memory, clock, store, halves: Vec::new(), ended: Vec::new() }
    }

    fn apply(mut self_: Self, model: &<Model as ReferenceStateMachine>::State, step: Step) -> Self {
        self_.clock.advance(7);
        match step {
            Step::Send { topic, messages } => {
                let all = &model.topics[topic];
                self_.send(topic, &all[all.len() - messages..]);
            }
            Step::Prepare { topic } => {
                let half = self_.prepare(model.next, topic);
                self_.begin(half);
            }
            Step::Resend { which } => {
                let newest = model.newest(which);
                let half = self_.prepare(model.transactions[newest].id, model.transactions[newest].topic);
                if newest < self_.halves.len() {
                    assert_eq!(half, self_.halves[newest], "a resend of a pending half is the same half");
                } else {
                    self_.begin(half);
                }
            }
            Step::End { which, kind } => self_.end(model, which, kind),
            Step::Resume { which } => self_.resume(model, which),
            Step::Acknowledge { topic, of } => self_.acknowledge(topic, of, model),
            Step::FlushRound => self_.store.flush_round().unwrap(),
            Step::Snapshot => self_.store.snapshot().unwrap(),
            Step::WriteOffsets => self_.store.write_offsets().unwrap(),
            Step::Reopen => {
                self_.store.close().unwrap();
                self_.store = open(&self_.memory, &self_.clock, false);
                assert!(self_.store.open_report().clean);
            }
            Step::Kill => {
                self_.store.write_offsets().unwrap();
                self_.memory = self_.memory.crash(0, CrashKeep::PageCache);
                self_.store = open(&self_.memory, &self_.clock, false);
            }
            Step::Look => self_.agrees(&open(&self_.memory, &self_.clock, true), model),
        }
        self_
    }

    fn check_invariants(self_: &Self, model: &Model) {
        self_.agrees(&self_.store, model);
        self_.offsets_agree(model);
    }
}
