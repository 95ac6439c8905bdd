//! Lets a RocketMQ broker continue a store between two lives of txstore.
//!
//! In:     the files of a store that txstore has closed, a seed.
//! Out:    the files as a broker leaves them: stopped, killed, or after a power loss, perhaps after its own recovery.
//! Always: the broker truncates by position. What it cut stays in the log and in the queue files until it is
//!         overwritten. Its checkpoint names a time up to which every record was synced. A topic that it deletes and
//!         creates again begins at queue offset 0, and its old records stay in the log.
//! Not here: what txstore must then find. It is the log as this model reads it (simulation.rs).

use std::collections::{BTreeMap, BTreeSet};

use txstore::base::units::PhysicalOffset;
use txstore::record::properties::TAGS;
use txstore::record::{RecordCrc, RecordView, Scanned, Verify, decode};
use txstore::storage::memory::{CrashKeep, Memory};
use txstore::storage::{OpenMode, Storage};

use crate::broker::Broker;
use crate::chance::Chance;
use crate::history::{History, TOPICS};
use crate::watched::{Shown, crc};

/// Bytes of a queue entry: physical offset, size, tags code.
const ENTRY: u64 = 20;

/// A record of the log, as a broker's own recovery finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub at: u64,
    pub size: u64,
    pub crc: u32,
    pub stored_ms: i64,
    pub topic: String,
    queue: i32,
    pub queue_offset: u64,
    is_queued: bool,
    tags_code: i64,
}

/// What a broker left.
#[derive(Debug)]
pub struct Left {
    pub memory: Memory,
    /// Every record of the log.
    pub records: Vec<Record>,
    /// Where the broker began.
    pub began: u64,
    /// Where its log ends.
    pub end: u64,
    /// At least this part of the log survives a power loss.
    pub durable_end: u64,
    /// The topics' queues that it created again: records at lower physical offsets were deleted.
    pub begun: BTreeMap<(String, i32), u64>,
    pub was_stopped: bool,
    /// The time of the checkpoint.
    pub known_ms: i64,
    /// Where its timer's messages waited, and where they are delivered.
    pub delivered: Vec<(u64, u64)>,
    /// For how many milliseconds it ran.
    pub took_ms: i64,
    pub story: String,
}

pub struct Life<'c> {
    pub broker: Broker<'c>,
    pub memory: Memory,
    queue_file_size: u64,
    /// The physical offset of the first file.
    pub base: u64,
    began: u64,
    /// Up to this physical offset the log is in its files.
    written: u64,
    durable_end: u64,
    known_ms: i64,
    pub records: Vec<Record>,
    begun: BTreeMap<(String, i32), u64>,
    /// The ends of queues whose messages are all gone.
    floor: BTreeMap<(String, i32), u64>,
    dirty: BTreeSet<String>,
    /// Whether it is RocketMQ 5 with a timer. It then runs until its timer has delivered everything.
    has_timer: bool,
    delivered: Vec<(u64, u64)>,
    /// The time at which it began.
    began_ms: i64,
    story: String,
}

/// Returns the records of a log's bytes, and where a broker's recovery ends. `base` is the offset of the first byte.
fn walk(bytes: &[u8], base: u64, file_size: u64) -> (Vec<Record>, u64) {
    let (mut at, mut records) = (base, Vec::new());
    loop {
        let rest = &bytes[((at - base) as usize).min(bytes.len())..];
        let in_file = (file_size - at % file_size) as usize;
        match decode(
            &rest[..in_file.min(rest.len())],
            PhysicalOffset(at),
            Verify { body_crc: true, record_crc: RecordCrc::Ignore },
        ) {
            Ok(Scanned::Record(view)) => {
                records.push(record(&view, &rest[..view.size as usize]));
                at += u64::from(view.size);
            }
            Ok(Scanned::Blank { .. }) => at += in_file as u64,
            _ => return (records, at),
        }
    }
}

fn record(view: &RecordView<'_>, bytes: &[u8]) -> Record {
    let (topic, queue, is_queued) = (view.topic.to_owned(), view.queue_id.0, view.transaction_type().is_queued());
    Record {
        at: view.physical_offset.0,
        size: u64::from(view.size),
        crc: crc(bytes),
        stored_ms: view.store_timestamp.0,
        topic,
        queue,
        queue_offset: view.queue_offset.0,
        is_queued,
        tags_code: i64::from(java_hash(view.properties.get_str(TAGS).unwrap_or_default())),
    }
}

/// Returns Java's `String.hashCode` of ASCII text.
fn java_hash(text: &str) -> i32 {
    text.bytes().fold(0, |hash: i32, byte| hash.wrapping_mul(31).wrapping_add(byte.into()))
}

/// Runs a broker on a closed store. `now_ms` is the wall clock.
pub fn live(
    memory: Memory,
    chance: &mut Chance,
    (file_size, queue_file_size): (u64, u64),
    now_ms: i64,
    history: &mut History,
) -> Left {
    let (base, bytes) = log_bytes(&memory);
    let (records, end) = walk(&bytes, base, file_size);
    let mut next: BTreeMap<(String, i32), u64> = history.gone_below.clone();
    let begun = history.begun.clone();
    for record in &records {
        let name = (record.topic.clone(), record.queue);
        if record.is_queued && begun.get(&name).is_none_or(|begun| record.at >= *begun) {
            let next = next.entry(name).or_insert(0);
            *next = (*next).max(record.queue_offset + 1);
        }
    }
    let floor = (history.gone_below.iter()).map(|(name, first)| (name.clone(), *first)).collect();
    let known_ms = records.last().map_or(0, |last| last.stored_ms);
    let has_timer = chance.one_in(2);
    let broker =
        Broker::continuing(chance, file_size, base, &bytes[..(end - base) as usize], next, now_ms.max(known_ms) + 1);
    let mut life = Life {
        broker,
        memory,
        queue_file_size,
        base,
        began: end,
        written: end,
        durable_end: end,
        known_ms,
        records,
        begun,
        floor,
        dirty: BTreeSet::new(),
        has_timer,
        delivered: Vec::new(),
        began_ms: now_ms.max(known_ms),
        story: String::new(),
    };
    life.all(&mut history.count)
}

/// Returns the bytes of all log files, and the physical offset of the first one.
pub fn log_bytes(memory: &Memory) -> (u64, Vec<u8>) {
    let files = crate::crash::files(memory, "commitlog");
    let files: Vec<(u64, Vec<u8>)> = (files.into_iter())
        .filter_map(|(path, bytes)| Some((path.strip_prefix("commitlog/")?.parse().ok()?, bytes)))
        .collect();
    (files.first().map_or(0, |(base, _)| *base), files.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

impl Life<'_> {
    fn all(&mut self, count: &mut u64) -> Left {
        self.put("abort", 0, b"1", 1);
        self.flush_file("abort");
        loop {
            for _ in 0..=self.broker.chance.index(14) {
                self.step(count);
            }
            match self.broker.chance.below(4) {
                0 => return self.stopped(count),
                1 => self.torn_record(),
                2 => self.tell("killed"),
                _ => self.lose_power(),
            }
            let (records, end) = self.on_disk();
            (self.records, self.written) = (records, end);
            if !self.has_timer && self.broker.chance.one_in(3) {
                return self.left(false);
            }
            self.recover();
        }
    }

    pub fn tell(&mut self, what: &str) {
        self.story.push_str(what);
        self.story.push_str("; ");
    }

    fn step(&mut self, count: &mut u64) {
        match self.broker.chance.below(16) {
            0 => self.delete_and_create(count),
            1..=4 => self.flush(),
            _ => {
                self.broker.step(count);
                self.write_followed_by_no_record(count);
            }
        }
    }

    /// Deletes a topic and creates it again, with at least one message.
    fn delete_and_create(&mut self, count: &mut u64) {
        let topic = TOPICS[self.broker.chance.index(TOPICS.len())];
        self.flush();
        self.memory.remove_dir(&format!("consumequeue/{topic}")).unwrap();
        self.memory.create_dir("consumequeue").unwrap();
        self.memory.sync_dir("consumequeue").unwrap();
        self.tell(&format!("deleted {topic} at {}", self.written));
        for queue in [0, 1] {
            let name = (topic.to_owned(), queue);
            self.broker.next.remove(&name);
            self.floor.remove(&name);
            self.begun.insert(name, self.written);
        }
        // A queue that stays unused leaves too few traces for an exact model.
        self.broker.message(topic, 0, count);
        self.broker.message(topic, 1, count);
        self.write();
        while self.is_followed_by_a_record() {
            self.broker.plain(count);
            self.write();
        }
        self.flush();
    }

    /// Writes what is new. After a record that ends exactly where an older one begins, a broker would find the older one
    /// again.
    pub fn write_followed_by_no_record(&mut self, count: &mut u64) {
        self.write();
        while self.is_followed_by_a_record() {
            self.broker.plain(count);
            self.write();
            self.flush();
        }
    }

    /// Writes what is new, without a sync: the log, then the queue entries.
    fn write(&mut self) {
        let (from, file_size) = (self.written, self.broker.file_size);
        let bytes = self.broker.log[(from - self.base) as usize..].to_vec();
        let mut at = from;
        while at < self.broker.at {
            let (file, position) = (at - at % file_size, at % file_size);
            let end = (file + file_size).min(self.broker.at);
            // At the end of a full file a broker writes only the header of the blank record.
            let part = &bytes[(at - from) as usize..(end - from) as usize];
            let used = part.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            self.put(&format!("commitlog/{file:020}"), position, &part[..used], file_size);
            at = end;
        }
        self.written = self.broker.at;
        let (new, _) = walk(&bytes, from, file_size);
        for record in new {
            self.put_entry(&record);
            self.records.push(record);
        }
    }

    fn put_entry(&mut self, record: &Record) {
        if !record.is_queued {
            return;
        }
        let mut entry = Vec::new();
        entry.extend_from_slice(&record.at.to_be_bytes());
        entry.extend_from_slice(&(record.size as u32).to_be_bytes());
        entry.extend_from_slice(&record.tags_code.to_be_bytes());
        let (at, size) = (record.queue_offset * ENTRY, self.queue_file_size);
        let path = format!("consumequeue/{}/{}/{:020}", record.topic, record.queue, at - at % size);
        self.put(&path, at % size, &entry, size);
    }

    /// Writes bytes to a file, which is created with its full length.
    pub fn put(&mut self, path: &str, position: u64, bytes: &[u8], length: u64) {
        if self.memory.len(path).unwrap().is_none() {
            let mut dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
            self.memory.create_dir(dir).unwrap();
            let file = self.memory.open(path, OpenMode::Create).unwrap();
            file.set_len(length).unwrap();
            file.sync().unwrap();
            loop {
                self.memory.sync_dir(dir).unwrap();
                let Some((above, _)) = dir.rsplit_once('/') else { break };
                dir = above;
            }
            self.memory.sync_dir("").unwrap();
        }
        self.memory.open(path, OpenMode::Write).unwrap().write_at(bytes, position).unwrap();
        self.dirty.insert(path.to_owned());
    }

    pub fn flush_file(&mut self, path: &str) {
        self.memory.open(path, OpenMode::Write).unwrap().sync().unwrap();
        self.dirty.remove(path);
    }

    /// Syncs log and queues, then writes the checkpoint.
    fn flush(&mut self) {
        for path in self.dirty.clone() {
            if self.memory.len(&path).unwrap().is_some() {
                self.flush_file(&path);
            }
        }
        self.dirty.clear();
        self.durable_end = self.written;
        let Some(last_ms) = self.records.last().map(|last| last.stored_ms) else { return };
        // The checkpoint is written less often than the log is synced.
        if self.broker.chance.one_in(3) {
            return;
        }
        self.checkpoint(last_ms);
    }

    fn checkpoint(&mut self, last_ms: i64) {
        let fields: Vec<u8> = [last_ms; 3].into_iter().flat_map(i64::to_be_bytes).collect();
        self.put("checkpoint", 0, &fields, 4_096);
        self.flush_file("checkpoint");
        self.known_ms = last_ms;
    }

    fn on_disk(&self) -> (Vec<Record>, u64) {
        let (base, bytes) = log_bytes(&self.memory);
        walk(&bytes, base, self.broker.file_size)
    }

    fn is_followed_by_a_record(&self) -> bool {
        self.on_disk().1 > self.written
    }

    /// Loses power. A record that is torn outside its body may pass a broker's recovery, and no model can tell what is in
    /// it, so this chooses a loss without one.
    fn lose_power(&mut self) {
        for _ in 0..16 {
            let seed = self.broker.chance.number();
            let left = self.memory.crash(seed, CrashKeep::PowerLoss);
            let (base, bytes) = log_bytes(&left);
            let is_whole = |record: &Record| {
                let range = (record.at - base) as usize..(record.at + record.size - base) as usize;
                self.broker.log.get(range.clone()) == bytes.get(range)
            };
            if walk(&bytes, base, self.broker.file_size).0.iter().all(is_whole) {
                self.memory = left;
                self.dirty.clear();
                self.tell("lost power");
                return;
            }
        }
        self.tell("killed");
    }

    /// The broker is killed while it writes a record. If older bytes would complete it and an older record follow, as
    /// may happen to a whole one, it is killed before.
    fn torn_record(&mut self) {
        let (at, log, next) = (self.broker.at, self.broker.log.clone(), self.broker.next.clone());
        self.broker.message(TOPICS[0], 0, &mut 0);
        let file_size = self.broker.file_size;
        let same_file = at % file_size != 0 && (self.broker.at - 1) / file_size == at / file_size;
        let bytes = self.broker.log[log.len()..].to_vec();
        (self.broker.at, self.broker.log, self.broker.next) = (at, log, next);
        if same_file {
            let torn = &bytes[..20 + self.broker.chance.index(bytes.len() - 21)];
            let (base, mut after) = log_bytes(&self.memory);
            after.drain(..(at - base) as usize);
            after[..torn.len()].copy_from_slice(torn);
            if walk(&after, at, file_size).0.len() > 1 {
                self.tell("killed");
            } else {
                self.put(&format!("commitlog/{:020}", at - at % file_size), at % file_size, torn, file_size);
                self.tell("torn record");
            }
        }
    }

    /// The broker recovers: it ends the log before the first bytes that are not a record, and its queues before the
    /// first entry after that. It removes later files, and makes nothing zeros.
    fn recover(&mut self) {
        for (path, _) in crate::crash::files(&self.memory, "commitlog") {
            let file = path.strip_prefix("commitlog/").and_then(|name| name.parse::<u64>().ok());
            if file.is_some_and(|file| file > self.written) {
                self.memory.unlink(&path).unwrap();
                self.dirty.remove(&path);
            }
        }
        self.memory.sync_dir("commitlog").unwrap();
        self.durable_end = self.durable_end.min(self.written);
        let mut next = self.floor.clone();
        for record in self.records.clone() {
            let name = (record.topic.clone(), record.queue);
            let is_left = self.begun.get(&name).is_none_or(|begun| record.at >= *begun);
            if record.is_queued && is_left {
                let next = next.entry(name).or_insert(0);
                *next = (*next).max(record.queue_offset + 1);
                if record.at >= self.began {
                    self.put_entry(&record);
                }
            }
        }
        let (base, mut bytes) = log_bytes(&self.memory);
        bytes.truncate((self.written - base) as usize);
        self.broker.recovered(bytes, self.written, next);
        self.tell(&format!("recovered at {}", self.written));
    }

    fn stopped(&mut self, count: &mut u64) -> Left {
        if self.has_timer {
            self.delivered = self.deliver_timed(count);
        }
        self.flush();
        if let Some(last_ms) = self.records.last().map(|last| last.stored_ms) {
            self.checkpoint(last_ms);
        }
        self.memory.unlink("abort").unwrap();
        self.memory.sync_dir("").unwrap();
        self.tell("stopped");
        self.left(true)
    }

    fn left(&mut self, was_stopped: bool) -> Left {
        Left {
            memory: self.memory.clone(),
            records: std::mem::take(&mut self.records),
            began: self.began,
            end: self.written,
            durable_end: self.durable_end.min(self.written),
            begun: self.begun.clone(),
            was_stopped,
            known_ms: self.known_ms,
            delivered: std::mem::take(&mut self.delivered),
            took_ms: self.broker.now_ms - self.began_ms,
            story: std::mem::take(&mut self.story),
        }
    }
}

impl Left {
    /// Returns the records that a reader must find.
    pub fn shown(&self) -> impl Iterator<Item = Shown> {
        self.records.iter().map(|record| Shown { physical_offset: record.at, crc: record.crc })
    }

    /// Returns a record of the broker that was certainly durable and is not the last one.
    pub fn durable_record(&self, which: usize) -> Option<&Record> {
        let last = self.records.last()?.at;
        let is_known = |record: &&Record| {
            record.at >= self.began && record.at < last && (self.was_stopped || record.stored_ms <= self.known_ms)
        };
        let found: Vec<&Record> = self.records.iter().filter(is_known).collect();
        (!found.is_empty()).then(|| found[which % found.len()])
    }
}
