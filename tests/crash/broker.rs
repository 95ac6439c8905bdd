//! Writes a store as a RocketMQ broker leaves it, with everything that only a broker does.
//!
//! In:     a seed.
//! Out:    files: a log with put-backs, immunity copies, batched ops, final messages without op, parked copies with a
//!         prepared transaction offset of 0, transactions committed twice; its progress; perhaps a torn record at the
//!         end.
//! Always: a half below the stored progress is finished or was put back after it; an op below its own progress names
//!         only such halves (docs/internals/format.md). The queues are left for txstore to build, as after
//!         `consumequeue` was deleted.

use txstore::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC};
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use txstore::record::properties::{
    self, KEYS, PRODUCER_GROUP, REAL_QUEUE_ID, REAL_TOPIC, TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_ID,
    TRANSACTION_PREPARED, TRANSACTION_PREPARED_QUEUE_OFFSET, UNIQUE_KEY,
};
use txstore::record::{Draft, Position, blank, encode, encoded_size};
use txstore::storage::memory::Memory;
use txstore::storage::{OpenMode, Storage};
use txstore::transaction::op::fill_op_body;

use crate::chance::Chance;
use crate::crash::Origin;
use crate::history::{GROUPS, TOPICS};
use crate::watched::Shadow;

/// A transaction as its broker knows it.
#[derive(Clone, Debug)]
struct Half {
    number: u64,
    topic: usize,
    queue: i32,
    size: usize,
    /// Queue offset and physical offset of each copy.
    copies: Vec<(u64, u64)>,
    checks: u32,
    /// Whether an op names the copy, or it was put back.
    finished: Vec<bool>,
    ended: bool,
}

pub struct Broker<'c> {
    pub chance: &'c mut Chance,
    pub file_size: u64,
    /// The bytes of the log from `base` to `at`.
    pub log: Vec<u8>,
    base: u64,
    pub at: u64,
    pub next: std::collections::BTreeMap<(String, i32), u64>,
    pub now_ms: i64,
    halves: Vec<Half>,
    /// Half queue offsets that the next op will name.
    batch: Vec<u64>,
    ops: Vec<Vec<u64>>,
}

/// Writes the store that a machine then opens first.
pub fn store(memory: &Memory, chance: &mut Chance, file_size: u64, count: &mut u64) -> (Origin, Shadow) {
    let mut broker = Broker {
        chance,
        file_size,
        log: Vec::new(),
        base: 0,
        at: 0,
        next: std::collections::BTreeMap::new(),
        now_ms: 1_699_999_000_000,
        halves: Vec::new(),
        batch: Vec::new(),
        ops: Vec::new(),
    };
    let steps = 4 + broker.chance.index(30);
    for _ in 0..steps {
        broker.step(count);
    }
    broker.leave(memory)
}

impl<'c> Broker<'c> {
    /// Returns a broker that continues a log whose first byte is at `base`.
    pub fn continuing(
        chance: &'c mut Chance,
        file_size: u64,
        base: u64,
        log: &[u8],
        next: std::collections::BTreeMap<(String, i32), u64>,
        now_ms: i64,
    ) -> Self {
        let at = base + log.len() as u64;
        let (log, halves, batch, ops) = (log.to_vec(), Vec::new(), Vec::new(), Vec::new());
        Self { chance, file_size, log, base, at, next, now_ms, halves, batch, ops }
    }

    /// Continues with the log that the broker's recovery found. It ends no transaction from before.
    pub fn recovered(&mut self, log: Vec<u8>, at: u64, next: std::collections::BTreeMap<(String, i32), u64>) {
        (self.log, self.at, self.next) = (log, at, next);
        self.log.resize((at - self.base) as usize, 0);
        (self.halves, self.batch, self.ops) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// Waits for a time.
    pub fn wait_until(&mut self, ms: i64) {
        self.now_ms = self.now_ms.max(ms);
    }

    /// Sends a message to some queue.
    pub fn plain(&mut self, count: &mut u64) {
        let (topic, queue) = (self.chance.index(2), self.chance.index(2) as i32);
        self.message(TOPICS[topic], queue, count);
    }

    pub fn message(&mut self, topic: &str, queue: i32, count: &mut u64) {
        *count += 1;
        let mut body = format!("m{count}:broker").into_bytes();
        body.resize(body.len() + self.chance.pick(&[0, 7, 120, 600]), b'y');
        self.append(topic, queue, 0, 0, &body, b"TAGS\x01t\x02");
    }

    pub fn step(&mut self, count: &mut u64) {
        self.now_ms += 1 + self.chance.below(2_000) as i64;
        let which = self.chance.index(64);
        let open: Vec<usize> = (0..self.halves.len()).filter(|at| !self.halves[*at].ended).collect();
        let at = (!open.is_empty()).then(|| open[which % open.len()]);
        if self.chance.one_in(12) && !self.halves.is_empty() {
            // A check may cross an end, so ended transactions are put back, too.
            let at = which % self.halves.len();
            self.put_back(at, None);
            return;
        }
        match (self.chance.below(14), at) {
            (0..=1, _) | (_, None) if self.chance.one_in(2) => {
                self.plain(count);
            }
            (0..=4, _) | (_, None) => {
                *count += 1;
                let half = Half {
                    number: *count,
                    topic: self.chance.index(2),
                    queue: self.chance.index(2) as i32,
                    size: self.chance.pick(&[1, 100, 700]),
                    copies: Vec::new(),
                    checks: 0,
                    finished: Vec::new(),
                    ended: false,
                };
                self.halves.push(half);
                self.half(self.halves.len() - 1, None);
            }
            // The client resent it.
            (5, Some(at)) if self.halves[at].checks == 0 => self.half(at, None),
            (5..=6, Some(at)) => self.put_back(at, None),
            (7, Some(at)) => self.put_back(at, Some(self.halves[at].copies[0].0)),
            (8..=9, Some(at)) => self.commit(at),
            (10, Some(at)) => {
                self.name(at);
                self.halves[at].ended = true;
            }
            (11, Some(at)) => {
                self.parked(at);
                self.name(at);
                self.halves[at].ended = true;
            }
            (12, _) => self.write_op(),
            // A broker that receives two commits commits twice.
            (_, Some(at)) => {
                self.commit(at);
                if self.chance.one_in(3) {
                    self.final_message(at);
                }
            }
        }
    }

    fn commit(&mut self, at: usize) {
        self.final_message(at);
        // If the broker is killed between the two writes, no op names the half.
        if !self.chance.one_in(4) {
            self.name(at);
        }
        self.halves[at].ended = true;
    }

    fn name(&mut self, at: usize) {
        let half = &mut self.halves[at];
        let which = if half.copies.len() > 1 && half.checks > 0 {
            half.copies.len() - 1
        } else {
            self.chance.index(half.copies.len())
        };
        // An op that names the half that was sent last, or a later copy, ends it.
        let last = half.copies.len() - 1;
        let which = which.max(if half.checks == 0 { last } else { which });
        half.finished[which] = true;
        self.batch.push(half.copies[which].0);
        if self.chance.one_in(2) {
            self.write_op();
        }
    }

    fn write_op(&mut self) {
        let names = std::mem::take(&mut self.batch);
        if names.is_empty() {
            return;
        }
        let mut body = String::new();
        fill_op_body(&names, usize::MAX, &mut body);
        self.append(OP_TOPIC, 0, 0, 0, body.as_bytes(), b"TAGS\x01d\x02");
        self.ops.push(names);
    }

    fn text(&self, at: usize, hidden: bool, first: Option<u64>) -> Vec<u8> {
        let half = &self.halves[at];
        let mut text = Vec::new();
        let id = format!("BROKER-{}", half.number);
        properties::push(&mut text, KEYS, "h");
        properties::push(&mut text, UNIQUE_KEY, &id);
        properties::push(&mut text, TRANSACTION_PREPARED, "true");
        properties::push(&mut text, PRODUCER_GROUP, GROUPS[half.number as usize % 2]);
        if hidden {
            properties::push(&mut text, REAL_TOPIC, TOPICS[half.topic]);
            properties::push(&mut text, REAL_QUEUE_ID, &half.queue.to_string());
        }
        properties::push(&mut text, TRANSACTION_ID, &id);
        if half.checks > 0 {
            properties::push(&mut text, TRANSACTION_CHECK_TIMES, &half.checks.to_string());
        }
        if let Some(first) = first {
            properties::push(&mut text, TRANSACTION_PREPARED_QUEUE_OFFSET, &first.to_string());
        }
        properties::push(&mut text, TAGS, "t");
        text
    }

    fn body(&self, at: usize) -> Vec<u8> {
        let half = &self.halves[at];
        let mut body = format!("h{}:", half.number).into_bytes();
        body.resize(half.size.max(body.len()), b'b');
        body
    }

    fn half(&mut self, at: usize, first: Option<u64>) {
        let (text, body) = (self.text(at, true, first), self.body(at));
        let copy = self.append(HALF_TOPIC, 0, 0, 0, &body, &text);
        self.halves[at].copies.push(copy);
        self.halves[at].finished.push(false);
    }

    /// Puts the half back. The previous copy counts as finished.
    fn put_back(&mut self, at: usize, first: Option<u64>) {
        self.halves[at].checks += 1;
        self.halves[at].finished.iter_mut().for_each(|finished| *finished = true);
        self.half(at, first);
    }

    fn final_message(&mut self, at: usize) {
        let hidden = self.chance.one_in(2);
        let text = self.text(at, hidden, None);
        let (half, body) = (self.halves[at].clone(), self.body(at));
        let offset = half.copies[self.chance.index(half.copies.len())].1;
        self.append(TOPICS[half.topic], half.queue, 8, offset, &body, &text);
    }

    fn parked(&mut self, at: usize) {
        let (text, body) = (self.text(at, true, None), self.body(at));
        self.append(DISCARD_TOPIC, 0, 0, 0, &body, &text);
    }

    /// Appends a record and returns its queue offset and physical offset.
    pub fn append(&mut self, topic: &str, queue: i32, bits: i32, offset: u64, body: &[u8], text: &[u8]) -> (u64, u64) {
        let draft = Draft {
            topic,
            queue_id: QueueId(queue),
            flag: 0,
            sys_flag: bits,
            born_timestamp: TimestampMs(self.now_ms - 5),
            born_host: "127.0.0.1:40000".parse().unwrap(),
            store_host: "127.0.0.1:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: PhysicalOffset(offset),
            body,
            body_crc: None,
            properties: text,
        };
        let size = u64::from(encoded_size(&draft, false).unwrap());
        let left = self.file_size - self.at % self.file_size;
        if size + 8 > left {
            self.log.extend_from_slice(&blank(left as u32));
            self.at += left;
            self.log.resize((self.at - self.base) as usize, 0);
        }
        // The checkpoint names a record by its time, so each has its own.
        self.now_ms += 1;
        let next = self.next.entry((topic.to_owned(), queue)).or_insert(0);
        let (queue_offset, physical_offset) = (*next, self.at);
        *next += 1;
        let position = Position {
            physical_offset: PhysicalOffset(physical_offset),
            queue_offset: QueueOffset(queue_offset),
            store_timestamp: TimestampMs(self.now_ms),
        };
        encode(&draft, position, false, &mut self.log).unwrap();
        self.at += size;
        (queue_offset, physical_offset)
    }

    /// Returns the half progress: below it every half is finished or has been put back after it.
    fn progress(&mut self) -> u64 {
        let named: Vec<u64> = self.ops.iter().flatten().copied().collect();
        let mut open: Vec<u64> = Vec::new();
        for half in &self.halves {
            for ((copy, _), finished) in half.copies.iter().zip(&half.finished) {
                // A broker still processes a copy that no op names yet.
                let waits_for_op = self.batch.contains(copy);
                if !finished || waits_for_op || (half.ended && !named.contains(copy) && half.checks == 0) {
                    open.push(*copy);
                }
            }
        }
        let end = self.next.get(&(HALF_TOPIC.to_owned(), 0)).copied().unwrap_or(0);
        let most = open.into_iter().min().unwrap_or(end);
        // The broker stores its progress only from time to time.
        if self.chance.one_in(3) { self.chance.below(most + 1) } else { most }
    }

    fn leave(mut self, memory: &Memory) -> (Origin, Shadow) {
        let half_progress = self.progress();
        let op_progress = self.ops.iter().take_while(|names| names.iter().all(|name| *name < half_progress)).count();
        let broker_end = self.at;
        let mut shadow = Shadow::default();
        shadow.put(0, &self.log);
        if self.chance.one_in(3) {
            // The broker was killed during a write.
            let (at, kept) = (self.at, self.log.len());
            self.append(TOPICS[0], 0, 0, 0, &[b'z'; 300], b"TAGS\x01t\x02");
            let torn = 20 + self.chance.index(200);
            self.log.truncate(if self.at - at > 400 { kept } else { kept + torn });
        }
        for (number, bytes) in self.log.chunks(self.file_size as usize).enumerate() {
            memory.create_dir("commitlog").unwrap();
            let path = format!("commitlog/{:020}", number as u64 * self.file_size);
            let file = memory.open(&path, OpenMode::Create).unwrap();
            file.set_len(self.file_size).unwrap();
            file.write_at(bytes, 0).unwrap();
            file.sync().unwrap();
        }
        memory.create_dir("commitlog").unwrap();
        memory.create_dir("config").unwrap();
        let offsets = format!(
            "{{\"offsetTable\":{{\"{HALF_TOPIC}@CID_RMQ_SYS_TRANS\":{{0:{half_progress}}},\"{OP_TOPIC}@CID_RMQ_SYS_TRANS\":{{0:{op_progress}}},\"orders@elsewhere\":{{0:99,1:0}}}}}}"
        );
        let file = memory.open("config/consumerOffset.json", OpenMode::Create).unwrap();
        file.write_at(offsets.as_bytes(), 0).unwrap();
        file.sync().unwrap();
        memory.open("abort", OpenMode::Create).unwrap().sync().unwrap();
        for dir in ["commitlog", "config", ""] {
            memory.sync_dir(dir).unwrap();
        }
        (Origin { broker_end, broker_progress: half_progress }, shadow)
    }
}
