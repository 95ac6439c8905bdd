//! Keeps what a node that rejoins must cut from its log, before the next opening cuts it.
//!
//! In:     up to where the log is the same as the new source's.
//! Out:    `txstore/diverged-TIME/`: the bytes of the log after it, and a report of their records.
//! Always: copies and report are durable before the cut is noted. Records that were acknowledged with two copies or
//!         more are not cut: then nothing has changed.
//! Not here: the cut itself, which the next opening makes (`open/rejoin`).
//!
//! | path                         | content                                                                  |
//! |------------------------------|--------------------------------------------------------------------------|
//! | `log/00000000000000001234`   | the bytes of one log file from this physical offset on                   |
//! | `report.jsonl`               | a line of JSON for the whole, then one for each record                   |
//! | `config/…`                   | the offsets of groups and of delayed messages, which are removed         |

use std::io::Write;

use serde_json::{Value, json};

use super::{Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMED_TOPIC};
use crate::base::units::{PhysicalOffset, to_u64, to_usize};
use crate::log::commit_log::Scanner;
use crate::record::{RecordView, TransactionType, properties};
use crate::storage::config_file::read_file;
use crate::storage::epochs::{Cut, Epoch, Epochs};
use crate::storage::{File, OpenMode};
use crate::transaction::HalfFacts;
use crate::transaction::op::parse_op_body;

/// Bytes that are copied in one call.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// Files of `config/` that tell how far something was done with the records.
const PROGRESS: [&str; 2] = ["consumerOffset.json", "delayOffset.json"];

/// What was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Records in the report.
    pub records: u64,
    /// Bytes of the log.
    pub bytes: u64,
}

impl Store {
    /// Returns how far this log and that of another node, which ends at `other_end`, are the same.
    pub fn common_end(&self, other: &Epochs, other_end: PhysicalOffset) -> PhysicalOffset {
        PhysicalOffset(self.epochs().common_end(self.shared.log.appended(), other, other_end.0))
    }

    /// Copies everything after `end` to `directory`, with a report, and notes that the next opening cuts it. The source
    /// has the epochs `source`, and `address` is where it is.
    ///
    /// Fails with `InvalidOption` if records after `end` may have been acknowledged with two copies or more.
    pub fn keep_diverged(&self, end: PhysicalOffset, source: &Epochs, address: &str, directory: &str) -> Result<Kept> {
        let shared = &self.shared;
        shared.check_writable("keeping records")?;
        let own = self.epochs();
        let log_end = shared.log.appended();
        shared.wait_durable(log_end)?;
        let acknowledged = acknowledged_end(&own, source, shared.visible_end(), log_end);
        if end.0 < acknowledged {
            return Err(too_far(end.0, acknowledged));
        }
        let storage = shared.storage.as_ref();
        storage.create_dir(&format!("{directory}/log"))?;
        let bytes = shared.copy_bytes(end.0, log_end, directory)?;
        shared.copy_progress(directory)?;
        let records = shared.write_report(end.0, log_end, &own, source, directory)?;
        storage.sync_dir(directory)?;
        shared.change_epochs(|epochs| {
            epochs.is_replica = true;
            epochs.accepted = epochs.accepted.max(source.last());
            epochs.source = Some(address.to_owned());
            epochs.cut = Some(Cut { end: end.0, kept: directory.to_owned() });
            Ok(())
        })?;
        Ok(Kept { records, bytes })
    }
}

/// Returns the end below which records may have been acknowledged with two copies or more.
///
/// A source that requires two copies shows what has them, and acknowledges nothing else. A replica that took part
/// cannot know what its copies were counted for. If the new epoch began without a replica, the copies on that one may
/// have counted, too, and a power loss may have taken what this node knew.
fn acknowledged_end(own: &Epochs, source: &Epochs, shown: u64, log_end: u64) -> u64 {
    let is_partial = own.first_unknown(source).is_some_and(|epoch: &Epoch| epoch.is_partial);
    let by_copies = match own.required {
        0 | 1 => 0,
        _ if is_partial => log_end,
        _ => shown,
    };
    by_copies.max(own.acknowledged)
}

fn too_far(end: u64, acknowledged: u64) -> Error {
    Error::InvalidOption {
        option: "replica_of".into(),
        what: format!(
            "the source's log differs from {end} on, and this node may have acknowledged records below {acknowledged} with two copies: they are not cut\nhint: keep this directory, and begin a replica in an empty one"
        ),
    }
}

impl Shared {
    /// Copies a range of the log, one file for each log file. Returns how many bytes.
    fn copy_bytes(&self, from: u64, to: u64, directory: &str) -> Result<u64> {
        for segment in self.log.segments.all() {
            let (mut at, stop) = (from.max(segment.base()), to.min(segment.end()));
            if at >= stop {
                continue;
            }
            let begin = at;
            let file = self.new_file(&format!("{directory}/log/{begin:020}"))?;
            while at < stop {
                let next = stop.min(at + COPIED_AT_ONCE);
                file.write_at(&segment.bytes(at..next)?, at - begin)?;
                at = next;
            }
            file.sync()?;
        }
        self.storage.sync_dir(&format!("{directory}/log"))?;
        Ok(to - from)
    }

    fn copy_progress(&self, directory: &str) -> Result<()> {
        let storage = self.storage.as_ref();
        storage.create_dir(&format!("{directory}/config"))?;
        for name in PROGRESS {
            let path = format!("config/{name}");
            let Some(bytes) = read_file(storage, &path, u64::MAX)? else { continue };
            let file = self.new_file(&format!("{directory}/{path}"))?;
            file.write_at(&bytes, 0)?;
            file.sync()?;
        }
        storage.sync_dir(&format!("{directory}/config"))
    }

    /// Writes the report. Returns the number of records.
    fn write_report(&self, from: u64, to: u64, own: &Epochs, source: &Epochs, directory: &str) -> Result<u64> {
        let file = self.new_file(&format!("{directory}/report.jsonl"))?;
        let epochs = |of: &Epochs| of.list.iter().map(|epoch| json!([epoch.number, epoch.start])).collect::<Vec<_>>();
        let whole = json!({
            "cut_at": from, "log_end": to, "bytes": to - from,
            "epochs": epochs(own), "source_epochs": epochs(source),
            "log": "the bytes are in log/, in files named by the physical offset of their first byte",
        });
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = writeln!(text, "{whole}");
        let (mut records, mut written) = (0, 0);
        let settings = self.configuration.settings.lock().clone();
        let scan = Scanner::new(&self.log, PhysicalOffset(from), to).run(
            |offset| settings.verify(offset),
            |view, _| {
                records += 1;
                let _ = writeln!(text, "{}", line(view));
                if text.len() > to_usize(COPIED_AT_ONCE) {
                    written += flush_text(file.as_ref(), &mut text, written)?;
                }
                Ok(true)
            },
        )?;
        if let Some(why) = scan.damage_before(to) {
            let what = format!("{why}; the logs may not be the same up to {from}");
            return Err(Error::StoreCorrupt { file: "commitlog".into(), offset: scan.end, what });
        }
        flush_text(file.as_ref(), &mut text, written)?;
        file.sync()?;
        Ok(records)
    }

    fn new_file(&self, path: &str) -> Result<Box<dyn File>> {
        let file = self.storage.open(path, OpenMode::Create)?;
        file.set_len(0)?; // A rejoin that crashed may have left one.
        Ok(file)
    }
}

fn flush_text(file: &dyn File, text: &mut Vec<u8>, at: u64) -> Result<u64> {
    file.write_at(text, at)?;
    let bytes = to_u64(text.len());
    text.clear();
    Ok(bytes)
}

/// Returns what a report says of a record.
fn line(view: &RecordView<'_>) -> Value {
    let text = |name| view.properties.get_str(name);
    let half = HalfFacts::of(view);
    let mut line = json!({
        "kind": kind(view), "physical_offset": view.physical_offset.0, "bytes": view.size, "topic": view.topic,
        "queue_id": view.queue_id.0, "queue_offset": view.queue_offset.0, "message_id": view.message_id(),
        "stored_ms": view.store_timestamp.0,
    });
    let Value::Object(fields) = &mut line else { return line };
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    add("keys", text(properties::KEYS).map(Value::from));
    add("tags", text(properties::TAGS).map(Value::from));
    if !half.real_topic.is_empty() {
        add("real_topic", Some(half.real_topic.into()));
        add("producer_group", Some(half.group.into()));
    }
    match view.topic {
        OP_TOPIC => add("half_queue_offsets", Some(parse_op_body(view.body).collect::<Vec<_>>().into())),
        _ if view.transaction_type() == TransactionType::Commit => {
            add("half_physical_offset", Some(view.prepared_transaction_offset.0.into()));
        }
        _ => {}
    }
    line
}

fn kind(view: &RecordView<'_>) -> &'static str {
    match (view.topic, view.transaction_type()) {
        (HALF_TOPIC, _) => "half",
        (OP_TOPIC, _) => "end",
        (DISCARD_TOPIC, _) => "discarded",
        (SCHEDULE_TOPIC, _) => "delayed",
        (TIMED_TOPIC, _) => "timed",
        (_, TransactionType::Commit) => "committed",
        _ => "message",
    }
}
