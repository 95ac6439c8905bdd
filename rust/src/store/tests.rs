//! Tests of the store: each promise of docs/internals/transactions.md by its name, on storage in memory.

mod adopted_progress;
mod brokers_end;
mod concurrency;
mod delays;
mod deleted_by_broker;
mod deletion;
mod derived;
mod durable;
mod ends;
mod epochs;
mod filtered;
mod foreign;
mod hand_over;
mod identities;
#[cfg(loom)]
mod interleavings;
#[cfg(feature = "arrow")]
mod kept_statistics;
mod locks;
mod log;
mod lost_halves;
mod once;
mod readers;
mod recovery;
mod replicas;
mod retention;
mod several;
mod slaves;
mod snapshots;
mod take_over;
mod timed;
mod transactions;
mod without_waiting;

use std::sync::Arc;

use super::*;
use crate::base::clock::ManualClock;
use crate::base::error::Error;
use crate::base::options::{FlushDiskType, Role};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use crate::record::message::{Envelope, Parts};
use crate::storage::memory::{CrashKeep, Memory};
use crate::storage::{DirEntry, OpenMode};
use crate::transaction::HalfCopy;

const QUEUE: QueueId = QueueId(0);
const GROUP: &str = "services";

/// A store in memory with a clock that does not advance by itself.
struct Bench {
    memory: Memory,
    clock: Arc<ManualClock>,
    options: StoreOptions,
}

impl Bench {
    fn new(flush: FlushDiskType) -> Self {
        let options = StoreOptions {
            flush_disk_type: flush,
            commit_log_file_size: Some(4 << 10),
            consume_queue_file_size: Some(20 * 8),
            max_hash_slot_num: Some(16),
            max_index_num: Some(64),
            background: false,
            ..StoreOptions::default()
        };
        let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
        Self { memory: Memory::new().with_clock(clock.clone()), clock, options }
    }

    fn sync() -> Self {
        Self::new(FlushDiskType::Sync)
    }

    fn with(mut self, change: impl FnOnce(&mut StoreOptions)) -> Self {
        change(&mut self.options);
        self
    }

    fn try_open(&self) -> Result<Store> {
        Store::open_with(Arc::new(self.memory.clone()), self.clock.clone(), self.options.clone())
    }

    fn open(&self) -> Store {
        self.try_open().unwrap()
    }

    fn read_only(&self) -> Store {
        let options = StoreOptions { read_only: true, role: Role::Alone, ..self.options.clone() };
        Store::open_with(Arc::new(self.memory.clone()), self.clock.clone(), options).unwrap()
    }

    /// Returns the files as a crash leaves them.
    fn crashed(&self, seed: u64, keep: CrashKeep) -> Self {
        let (clock, options) = (Arc::clone(&self.clock), self.options.clone());
        Self { memory: self.memory.crash(seed, keep), clock, options }
    }

    fn killed(&self) -> Self {
        self.crashed(0, CrashKeep::PageCache)
    }

    fn read(&self, path: &str, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.open(path, OpenMode::Read).unwrap().read_at(&mut bytes, at).unwrap();
        bytes
    }

    fn write(&self, path: &str, at: u64, bytes: &[u8]) {
        let file = self.memory.open(path, OpenMode::Write).unwrap();
        file.write_at(bytes, at).unwrap();
        file.sync().unwrap();
    }

    /// Returns every file with its bytes.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            for DirEntry { name, is_dir, len } in self.memory.list(&directory).unwrap().unwrap() {
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                if is_dir {
                    directories.push(path);
                } else {
                    let bytes = self.read(&path, 0, usize::try_from(len).unwrap());
                    found.push((path, bytes));
                }
            }
        }
        found.sort();
        found
    }
}

fn envelope(topic: &str) -> Envelope {
    Envelope::new(&Parts { topic, keys: "k", tags: Some("t"), ..Parts::default() }).unwrap()
}

fn send(store: &Store, topic: &str, body: &[u8]) -> Result<Sent> {
    let envelope = envelope(topic);
    let message = NewMessage { envelope: &envelope, body, queue_id: QUEUE };
    store.append(&[message], Wait::Yes).and_then(Unacknowledged::acknowledged).map(|mut sent| sent.remove(0))
}

fn prepare_as(store: &Store, body: &[u8], unique_id: Option<&str>) -> Result<Sent> {
    let envelope = envelope("orders");
    let message = NewMessage { envelope: &envelope, body, queue_id: QueueId(1) };
    store
        .prepare(&NewHalfMessage { message, group: GROUP, unique_id, owner: 0 }, Wait::Yes)
        .and_then(Unacknowledged::acknowledged)
}

fn prepare(store: &Store, body: &[u8]) -> Sent {
    prepare_as(store, body, None).unwrap()
}

fn copy_of(sent: &Sent) -> HalfCopy {
    HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 }
}

fn end_of(sent: &Sent, kind: EndKind) -> End {
    End {
        half: copy_of(sent),
        kind,
        transaction_id: Some(sent.unique_id.to_string()),
        group: Some(GROUP.into()),
        decider: Decider::Producer,
    }
}

fn end(store: &Store, sent: &Sent, kind: EndKind) -> Result<Ended> {
    store.end_transaction(&end_of(sent, kind), Wait::Yes)
}

fn bodies(store: &Store, topic: &str, queue_id: i32) -> Vec<Vec<u8>> {
    let (records, _) = store.read(topic, QueueId(queue_id), QueueOffset(0), usize::MAX, None).unwrap();
    records.iter().map(|record| record.view().unwrap().body.to_vec()).collect()
}

fn appended(store: &Store) -> u64 {
    store.stat().unwrap().max_physical_offset
}

fn pending(store: &Store) -> Vec<u64> {
    let waiting = store.halves_waiting(None, usize::MAX).unwrap();
    waiting.iter().map(|waiting| waiting.newest.queue_offset).collect()
}
