//! A log made from an input: half, op, final, discarded and plain records in any order, at offsets as a writer assigns them.

use std::collections::BTreeMap;

use txstore::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC};
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use txstore::record::encode::{blank, encode};
use txstore::record::{Draft, Position, properties};
use txstore::storage::checkpoint::Checkpoint;
use txstore::storage::config_file::replace_file;
use txstore::storage::memory::Memory;
use txstore::storage::settings::{OwnRange, Settings};
use txstore::storage::{OpenMode, Storage};
use txstore::transaction::op::fill_op_body;

use super::Input;

pub(super) const FILE_SIZE: u64 = 4 << 10;
const FILES_MAX: u64 = 4;
const RECORDS_MAX: u8 = 40;
const BEGAN_MS: i64 = 1_700_000_000_000;
const TOPICS: [&str; 3] = ["t0", "t1", "t2"];

/// A log that grows.
struct Log {
    bytes: Vec<u8>,
    with_crc: bool,
    halves: Vec<u64>,
    next: BTreeMap<(&'static str, i32), u64>,
}

/// Writes the log's files; ours with settings, a broker's without; unclean ones with `abort`.
pub(super) fn write_log(memory: &Memory, input: &mut Input<'_>, ours: bool, unclean: bool) {
    let mut log = Log { bytes: Vec::new(), with_crc: ours, halves: Vec::new(), next: BTreeMap::new() };
    for _ in 0..input.byte() % RECORDS_MAX {
        log.record(input);
    }
    memory.create_dir("commitlog").unwrap();
    for (number, bytes) in log.bytes.chunks(FILE_SIZE as usize).enumerate() {
        let base = number as u64 * FILE_SIZE;
        let file = memory.open(&format!("commitlog/{base:020}"), OpenMode::Create).unwrap();
        file.set_len(FILE_SIZE).unwrap();
        file.write_at(bytes, 0).unwrap();
    }
    if ours {
        let range = OwnRange { start: 0, end: None, crc: true };
        let settings = Settings {
            append_prop_crc: true,
            commit_log_file_size: Some(FILE_SIZE),
            ranges: vec![range],
            ..Settings::default()
        };
        settings.store(memory).unwrap();
    }
    if unclean {
        memory.open("abort", OpenMode::Create).unwrap();
        let physic_ms = BEGAN_MS + i64::from(input.byte());
        let checkpoint = Checkpoint { physic_ms, logics_ms: 0, index_ms: 0, ..Checkpoint::default() };
        Checkpoint::store(memory, &checkpoint).unwrap();
    } else {
        let progress = input.byte() & 7;
        let text = format!("{{\"offsetTable\":{{\"{HALF_TOPIC}@CID_RMQ_SYS_TRANS\":{{0:{progress}}}}}}}");
        replace_file(memory, "config/consumerOffset.json", text.as_bytes(), false).unwrap();
    }
}

impl Log {
    /// Five bytes say what it is.
    fn record(&mut self, input: &mut Input<'_>) {
        let (kind, names, offset, checks, shift) =
            (input.byte(), input.byte(), input.byte(), input.byte(), input.byte());
        let real_topic = TOPICS[usize::from(names & 3) % TOPICS.len()];
        let real_queue = i32::from(names >> 2 & 1);
        let mut text = Vec::new();
        properties::push(&mut text, "UNIQ_KEY", &format!("u{}", names >> 3 & 3));
        properties::push(&mut text, "PGROUP", &format!("g{}", names >> 5 & 1));
        if checks > 0 {
            properties::push(&mut text, "TRANSACTION_CHECK_TIMES", &(checks - 1).to_string());
        }
        let hidden = |mut text: Vec<u8>| {
            properties::push(&mut text, "REAL_TOPIC", real_topic);
            properties::push(&mut text, "REAL_QID", &real_queue.to_string());
            text
        };
        let body = [names >> 6];
        let pto = match self.halves.len() {
            0 => u64::from(offset),
            many => self.halves[usize::from(offset) % many] + u64::from(offset >> 7),
        };
        match kind & 7 {
            0 | 1 => {
                self.halves.push(self.bytes.len() as u64);
                self.push(HALF_TOPIC, 0, shift, i32::from(kind & 8) >> 1, 0, &body, &hidden(text));
            }
            2 | 3 => {
                let named = [offset & 15, checks & 15, offset >> 4];
                let named: Vec<u64> = named.iter().take(1 + usize::from(shift >> 6)).map(|at| u64::from(*at)).collect();
                let mut body = String::new();
                fill_op_body(&named, 64, &mut body);
                self.push(OP_TOPIC, 0, shift, 0, 0, body.as_bytes(), b"TAGS\x01d\x02");
            }
            4 => self.push(real_topic, real_queue, shift, 8, pto, &body, &text),
            5 => self.push(DISCARD_TOPIC, 0, shift, 0, if kind & 8 == 0 { pto } else { 0 }, &body, &hidden(text)),
            6 => self.push(real_topic, real_queue, shift, i32::from(kind & 0x18) >> 1, 0, &body, &text),
            _ => {
                let body = vec![b'x'; usize::from(offset) * 8];
                self.push(real_topic, real_queue, shift, 0, 0, &body, &text);
            }
        }
    }

    /// `shift` moves the queue offset away from the next one; mostly it does not.
    #[allow(clippy::too_many_arguments)]
    fn push(&mut self, topic: &'static str, queue: i32, shift: u8, flag: i32, pto: u64, body: &[u8], text: &[u8]) {
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = Draft {
            topic,
            queue_id: QueueId(queue),
            flag: 0,
            sys_flag: flag,
            born_timestamp: TimestampMs(1),
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: PhysicalOffset(pto),
            body,
            body_crc: None,
            properties: text,
        };
        let next = self.next.entry((topic, queue)).or_default();
        let queue_offset = match shift & 0x3F {
            0x3D => *next + u64::from(shift >> 6),
            0x3E => next.saturating_sub(1),
            0x3F => u64::from(shift) << 20,
            _ => *next,
        };
        *next = queue_offset + 1;
        let mut bytes = Vec::new();
        let put = |at: usize, bytes: &mut Vec<u8>| {
            bytes.clear();
            let position = Position {
                physical_offset: PhysicalOffset(at as u64),
                queue_offset: QueueOffset(queue_offset),
                store_timestamp: TimestampMs(BEGAN_MS + at as i64),
            };
            encode(&draft, position, self.with_crc, bytes).unwrap();
        };
        put(self.bytes.len(), &mut bytes);
        let left = FILE_SIZE as usize - self.bytes.len() % FILE_SIZE as usize;
        if bytes.len() + 8 > left {
            let mut rest = blank(left as u32).to_vec();
            rest.resize(left, 0);
            self.bytes.extend_from_slice(&rest);
            put(self.bytes.len(), &mut bytes);
        }
        if self.bytes.len() + bytes.len() < (FILES_MAX * FILE_SIZE) as usize {
            self.bytes.extend_from_slice(&bytes);
        }
    }
}
