//! What a scan of the log costs: how much it keeps in memory, how often it compares that with the files, and how many
//! records it reads again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::queue_facts::BUFFERED_MAX;
use super::*;
use crate::base::options::StoreOptions;
use crate::base::units::{QueueId, TimestampMs, to_u64};
use crate::index::consume_queue::{ENTRY_SIZE, Entry, NewFiles};
use crate::index::key_index::{IndexEntry, IndexGeometry};
use crate::log::commit_log;
use crate::record::Draft;
use crate::record::decode::Verify;
use crate::record::layout::{SYS_COMMIT, SYS_ROLLBACK};
use crate::storage::memory::Memory;
use crate::storage::segment::SegmentQueue;
use crate::storage::{OpenMode, Storage};

struct Files {
    log: CommitLog,
    queues: QueueFiles,
    index: IndexFiles,
    known: Known,
}

fn open(memory: &Memory, read_only: bool) -> Files {
    let storage = Arc::new(memory.clone());
    let segments = SegmentQueue::open(storage.clone(), commit_log::DIRECTORY, 1 << 20, read_only).unwrap();
    let geometry = IndexGeometry { slots: 1 << 10, entries: 1 << 20 };
    Files {
        log: CommitLog::new(segments),
        queues: QueueFiles::new(storage.clone(), 32 << 20, read_only),
        index: IndexFiles::open(storage, geometry, !read_only).unwrap(),
        known: Known {
            read_only,
            clean: true,
            end: KnownEnd::default(),
            limit: u64::MAX,
            followed: false,
            half_progress: 0,
            delays: DelayProgress::new(),
        },
    }
}

/// Calls `act` with a run over an empty log.
fn with_run(memory: &Memory, read_only: bool, act: impl FnOnce(&mut Run<'_>)) {
    let Files { log, queues, mut index, known } = open(memory, read_only);
    let (settings, mut derived, mut report) = (Settings::default(), Derived::empty(0, 0), RecoveryReport::default());
    let mut run = Run::new(&log, &queues, &settings, &known, &mut derived, &mut report);
    run.begin(Some(&mut index), None).unwrap();
    act(&mut run);
}

/// Adds the queue entry of a message, as its record does.
fn push(run: &mut Run<'_>, number: u64) {
    let queues = &mut run.derived.dispatcher.queues;
    let slot = queues.find_or_insert("orders", QueueId(0));
    queues.push(slot, Entry { physical_offset: PhysicalOffset(number * 200), size: 200, tags_code: 0 });
}

#[test]
fn a_reader_drops_queue_entries_that_the_files_have_once_they_are_many() {
    let memory = Memory::new();
    let many = to_u64(BUFFERED_MAX / ENTRY_SIZE);
    with_run(&memory, false, |run| {
        (0..=many + 1).for_each(|number| push(run, number));
        for block in run.derived.dispatcher.queues.blocks() {
            run.queue_files.write(&block, NewFiles::Synced).unwrap();
        }
    });
    with_run(&memory, true, |run| {
        (0..=many).for_each(|number| push(run, number));
        run.settle_if_much().unwrap();
        assert_eq!(run.derived.dispatcher.queues.buffered(), 0);
        push(run, many + 1);
        run.settle_if_much().unwrap();
        assert_eq!(run.derived.dispatcher.queues.buffered(), ENTRY_SIZE, "one entry is not worth a look at its file");
    });
}

/// Each message has a unique id and two keys.
#[test]
fn a_writer_writes_index_entries_once_they_are_many() {
    let memory = Memory::new();
    with_run(&memory, false, |run| {
        let (before, mut most) = (memory.calls(), 0);
        for number in 0..50_000 {
            push(run, number);
            let entry = |hash| IndexEntry {
                hash,
                physical_offset: PhysicalOffset(number * 200),
                store_timestamp: TimestampMs(1_700_000_000_000),
            };
            run.derived.dispatcher.index.extend([1, 2, 3].map(entry));
            most = most.max(run.derived.dispatcher.index.len());
            run.settle_if_much().unwrap();
        }
        assert!(most < 70_000, "{most} index entries were in memory");
        let calls = memory.calls() - before;
        assert!(calls < 100, "{calls} calls");
    });
}

/// Recovery may have written entries of the queue that a broker deleted, in a store that was closed.
#[test]
fn a_queue_that_was_begun_again_ends_in_its_file_also_after_lost_power() {
    let memory = Memory::new();
    with_run(&memory, false, |run| {
        (0..5).for_each(|number| push(run, number));
        run.settle().unwrap();
        memory.sync_file_system().unwrap();
        let queues = &mut run.derived.dispatcher.queues;
        let slot = queues.find("orders", QueueId(0)).unwrap();
        queues.begin_again(slot, 2);
        queues.set_synced();
        run.derived.begun_again.insert(slot, 1_000);
        cut_begun_again(run.queue_files, run.derived).unwrap();
    });
    let files = QueueFiles::new(Arc::new(memory.lose_power(|_| 0)), 32 << 20, true);
    let entries = files.read(&"orders".into(), QueueId(0), 0, 5).unwrap();
    let sizes: Vec<u8> = entries.chunks(ENTRY_SIZE).map(|entry| entry[11]).collect();
    assert!(sizes.starts_with(&[200, 200]) && sizes[2..].iter().all(|size| *size == 0), "{sizes:?}");
}

/// Only a message that was delayed names the record in which it waited. Ordinary messages name physical offset 0.
#[test]
fn a_scan_reads_no_other_record_for_a_message_that_was_not_delayed() {
    let memory = Memory::new();
    let mut bytes = Vec::new();
    let host = StoreOptions::default().store_host;
    for (number, sys_flag) in (0..300).zip([0, SYS_COMMIT, SYS_ROLLBACK].into_iter().cycle()) {
        let named = if sys_flag == 0 { 0 } else { 100 };
        let draft = Draft {
            sys_flag,
            born_host: host,
            store_host: host,
            prepared_transaction_offset: PhysicalOffset(named),
            body: b"body",
            ..Draft::plain()
        };
        let at = to_u64(bytes.len());
        bytes.extend(draft.record_at(at, number - number / 3, 1));
    }
    memory.create_dir(commit_log::DIRECTORY).unwrap();
    let file = memory.open("commitlog/00000000000000000000", OpenMode::Create).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_at(&bytes, 0).unwrap();

    let Files { log, queues, mut index, known } = open(&memory, false);
    let reads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&reads);
    log.set_verify(Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Verify::BODY
    }));
    let recovered = recover(&log, &queues, Some(&mut index), &Settings::default(), None, &known).unwrap();
    assert_eq!(recovered.derived.end, to_u64(bytes.len()));
    let reads = reads.load(Ordering::Relaxed);
    assert!(reads < 10, "{reads} records were read again");
}
