//! The timer of a RocketMQ 5 broker that continues a store: reads its queue where txstore said, and delivers.
//!
//! In:     a broker's life at its end.
//! Out:    the delivered messages in the log, and the files that its timer leaves when it is stopped.
//! Always: delivers what it reads once, each when its second is over; some it writes to its queue again before, as it
//!         does with those that are far (docs/internals/format.md).
//! Not here: a timer that is stopped before it has delivered everything. The store is then refused, which
//!         `rust/src/store/tests/hand_over.rs` guards.

use txstore::base::units::PhysicalOffset;
use txstore::record::properties;
use txstore::record::{RecordCrc, RecordView, Scanned, Verify, decode};
use txstore::storage::memory::Memory;
use txstore::storage::{OpenMode, Storage};

use crate::broker_life::Life;
use crate::waits::{DUE, ENQUEUED, REAL_QUEUE, REAL_TOPIC, TAKEN, WHEEL};

const CHECKPOINT: &str = "config/timercheck";
const WHEEL_FILE: &str = "timerwheel";
const TIMER_LOG: &str = "timerlog";
const NEXT_ENTRY_AT: [u64; 2] = [16, 24];

/// Returns the entry of its queue that a broker's timer reads first.
pub fn next_entry(memory: &Memory) -> u64 {
    if memory.len(CHECKPOINT).unwrap().is_none() {
        return 0;
    }
    let file = memory.open(CHECKPOINT, OpenMode::Read).unwrap();
    let read = |at| {
        let mut bytes = [0; 8];
        file.read_at(&mut bytes, at).unwrap();
        u64::from_be_bytes(bytes)
    };
    NEXT_ENTRY_AT.map(read).into_iter().min().unwrap()
}

/// Leaves durable files of a broker's timer that has delivered what was due before `read_ms`, and read up to `next`.
pub fn leave(memory: &Memory, read_ms: i64, next: u64) {
    memory.create_dir(TIMER_LOG).unwrap();
    for path in [WHEEL_FILE, &format!("{TIMER_LOG}/{:020}", 0)] {
        memory.open(path, OpenMode::Create).unwrap().write_at(&[1; 52], 0).unwrap();
    }
    let file = memory.open(CHECKPOINT, OpenMode::Write).unwrap();
    file.write_at(&read_ms.to_be_bytes(), 0).unwrap();
    for at in NEXT_ENTRY_AT {
        file.write_at(&next.to_be_bytes(), at).unwrap();
    }
    memory.sync_file_system().unwrap();
}

/// Returns whether a broker's timer has left files with messages.
pub fn has_files(memory: &Memory) -> bool {
    let logs = memory.list(TIMER_LOG).unwrap().unwrap_or_default();
    !logs.is_empty() || memory.len(WHEEL_FILE).unwrap().is_some()
}

/// A message in the timer.
struct Waiting {
    /// Where txstore put it.
    physical_offset: u64,
    second_ms: i64,
    topic: String,
    queue: i32,
    body: Vec<u8>,
    /// Its properties without those that are the timer's own.
    properties: Vec<(String, String)>,
}

impl Waiting {
    fn of(view: &RecordView<'_>) -> Self {
        let real = |name| view.properties.get_str(name).unwrap();
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().to_owned();
        Self {
            physical_offset: view.physical_offset.0,
            second_ms: real(DUE).parse().unwrap(),
            topic: real(REAL_TOPIC).to_owned(),
            queue: real(REAL_QUEUE).parse().unwrap(),
            body: view.body.to_vec(),
            properties: view.properties.iter().map(|(name, value)| (text(name), text(value))).collect(),
        }
    }

    /// Returns the properties that a broker gives it, in its topic or in the timer's queue again.
    fn text(&self, now_ms: i64, is_delivered: bool) -> Vec<u8> {
        let mut text = Vec::new();
        let is_hiding = |name: &str| is_delivered && [REAL_TOPIC, REAL_QUEUE].contains(&name);
        for (name, value) in self.properties.iter().filter(|(name, _)| !is_hiding(name)) {
            properties::push(&mut text, name, value);
        }
        properties::push(&mut text, ENQUEUED, &now_ms.to_string());
        properties::push(&mut text, TAKEN, &now_ms.to_string());
        text
    }
}

impl Life<'_> {
    /// Delivers everything that waits in its timer, and leaves the files of the timer. Returns where each message waited
    /// and where it is delivered.
    pub fn deliver_timed(&mut self, count: &mut u64) -> Vec<(u64, u64)> {
        let next = next_entry(&self.memory);
        let mut waiting = Vec::new();
        for record in self.records.iter().filter(|record| record.topic == WHEEL && record.queue_offset >= next) {
            let from = (record.at - self.base) as usize;
            let bytes = &self.broker.log[from..from + record.size as usize];
            let verify = Verify { body_crc: true, record_crc: RecordCrc::Ignore };
            let Ok(Scanned::Record(view)) = decode(bytes, PhysicalOffset(record.at), verify) else {
                panic!("{record:?}")
            };
            waiting.push(Waiting::of(&view));
        }
        waiting.sort_by_key(|message| message.second_ms);
        let mut delivered = Vec::new();
        for message in &waiting {
            if self.broker.chance.one_in(4) {
                let text = message.text(self.broker.now_ms, false);
                self.broker.append(WHEEL, 0, 0, 0, &message.body, &text);
                self.write_followed_by_no_record(count);
            }
            self.broker.wait_until(message.second_ms + 1_000);
            let text = message.text(self.broker.now_ms, true);
            let (_, at) = self.broker.append(&message.topic, message.queue, 0, 0, &message.body, &text);
            self.write_followed_by_no_record(count);
            delivered.push((message.physical_offset, at));
        }
        self.tell(&format!("delivered {} timed messages", delivered.len()));
        self.leave_timer();
        delivered
    }

    fn leave_timer(&mut self) {
        let next = self.broker.next.get(&(WHEEL.to_owned(), 0)).copied().unwrap_or(0);
        // Everything due before this second is delivered.
        let read_ms = self.broker.now_ms - self.broker.now_ms % 1_000;
        self.put(CHECKPOINT, 0, &read_ms.to_be_bytes(), 4_096);
        for at in NEXT_ENTRY_AT {
            self.put(CHECKPOINT, at, &next.to_be_bytes(), 4_096);
        }
        self.put(WHEEL_FILE, 0, &[1; 64], 64);
        self.put(&format!("{TIMER_LOG}/{:020}", 0), 0, &[1; 52], 104);
        for path in [CHECKPOINT, WHEEL_FILE, &format!("{TIMER_LOG}/{:020}", 0)] {
            self.flush_file(path);
        }
    }
}
