//! Runs one kind of work, for callgrind to count; `python -m benches.instructions` starts it.
//!
//! In:     the work's name, the number of repetitions.
//! Out:    nothing.
//! Always: only what `measured` calls counts, on its own thread, so that filling a store and its flush thread are not
//!         counted.
//! Not here: the counts, and what they are compared with.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod common;

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use txstore::base::error::{Error, Result};
use txstore::base::options::FlushDiskType;
use txstore::base::units::{QueueId, QueueOffset};
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
use txstore::transaction::HalfCopy;
use txstore::transaction::scan::group_by_facts;

const BODY_BYTES: usize = 1024;
const BATCH: usize = 100;
const TOPIC: &str = "bench";

/// Runs the work that callgrind counts. It must stay a function of its own.
#[inline(never)]
fn measured(mut work: impl FnMut()) {
    work();
    std::hint::black_box(());
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (work, count) = (arguments.next().unwrap(), arguments.next().unwrap().parse::<usize>().unwrap());
    let folder = common::scratch();
    let store = common::open(folder.path(), FlushDiskType::Async);
    let (envelope, body) = (common::envelope(), common::bytes(BODY_BYTES));
    let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) };
    let many = vec![message; BATCH];
    let fill = || {
        for _ in 0..count.div_ceil(BATCH) {
            store.append(&many, Wait::Yes).unwrap().acknowledged().unwrap();
        }
    };
    match work.as_str() {
        "append" => measured(|| (0..count).for_each(|_| append(&store, &message))),
        "append_batch" => measured(fill),
        "prepare" => measured(|| drop(halves(&store, &message, count))),
        "commit" => ends(&store, &halves(&store, &message, count), EndKind::Commit),
        "roll_back" => ends(&store, &halves(&store, &message, count), EndKind::RollBack),
        "check" => {
            let pending = halves(&store, &message, count);
            assert_eq!(pending.len(), count);
            measured(|| round(&store));
        }
        "recover" => {
            fill();
            // Bytes that no sync covered are written once more, and their number would depend on the flush thread.
            store.flush().unwrap();
            let crashed = crashed(folder.path());
            let mut opened = None;
            measured(|| opened = Some(common::open(&crashed.path().join("store"), FlushDiskType::Async)));
            assert!(!opened.unwrap().open_report().clean);
        }
        "read" => {
            fill();
            measured(|| {
                for offset in (0..count).step_by(32) {
                    let offset = QueueOffset(u64::try_from(offset).unwrap());
                    std::hint::black_box(store.read(TOPIC, QueueId(0), offset, 32, None).unwrap());
                }
            });
        }
        other => panic!("no work is named {other}"),
    }
}

/// Copies what a kill would leave now to a folder of its own.
fn crashed(store: &Path) -> TempDir {
    let folder = common::scratch();
    let copied =
        Command::new("cp").args(["-r", "--sparse=always"]).arg(store).arg(folder.path().join("store")).status();
    assert!(copied.unwrap().success());
    folder
}

/// Writes as Python's calls do: without waiting if possible.
fn at_once<T>(write: impl Fn(Wait) -> Result<T>) -> T {
    match write(Wait::No) {
        Err(Error::WouldWait) => write(Wait::Yes).unwrap(),
        written => written.unwrap(),
    }
}

fn append(store: &Store, message: &NewMessage<'_>) {
    at_once(|wait| store.append_one(message, wait)?.acknowledged());
}

fn halves(store: &Store, message: &NewMessage<'_>, count: usize) -> Vec<HalfCopy> {
    let half = NewHalfMessage { message: *message, group: "bench", unique_id: None, owner: 0 };
    let prepare = |_| {
        let sent = at_once(|wait| store.prepare(&half, wait)?.acknowledged());
        HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 }
    };
    (0..count).map(prepare).collect()
}

fn ends(store: &Store, halves: &[HalfCopy], kind: EndKind) {
    let end = |half: &HalfCopy| End {
        half: *half,
        kind,
        transaction_id: None,
        group: Some("bench".to_owned()),
        decider: Decider::Producer,
    };
    let ends: Vec<End> = halves.iter().map(end).collect();
    measured(|| {
        for end in &ends {
            at_once(|wait| store.end_transaction(end, wait));
        }
    });
}

/// Runs a round of checks over all due halves, as the broker does.
fn round(store: &Store) {
    loop {
        let due = group_by_facts(store.halves_due(256).unwrap());
        for group in &due {
            let offsets = group.halves.iter().map(|half| half.newest.queue_offset);
            store.look_again_all(offsets, 3_600_000).unwrap();
        }
        if due.is_empty() {
            return;
        }
    }
}
