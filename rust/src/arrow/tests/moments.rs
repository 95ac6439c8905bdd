//! A reader finds what was acknowledged at every moment of a writer's life, and whatever a writer does meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;

use super::super::{Log, Scan, ScanOptions, View};
use crate::backup::{Source, verify_file};
use crate::base::clock::ManualClock;
use crate::base::error::Result;
use crate::base::options::{FlushDiskType, StoreOptions};
use crate::base::sync::Mutex;
use crate::base::units::{PhysicalOffset, QueueId, TimestampMs};
use crate::record::message::{Envelope, Parts};
use crate::storage::Storage;
use crate::storage::memory::{FaultKind, Memory};
use crate::store::{NewHalfMessage, NewMessage, Store, Wait};

const FILE: u64 = 16 << 10;

/// What a writer does, one after the other. Its halves make it allocate more than one file ahead when it opens.
const LIFE: &str = "ossshhhhhhhhhhhhLLshhhhcoscossLhhhhhhhhKoLsLsc";

/// A process that opens the store, writes, closes it or is killed.
#[derive(Debug)]
struct Writer {
    memory: Memory,
    store: Option<Store>,
    acts: std::str::Chars<'static>,
    /// Where each acknowledged record begins.
    acknowledged: Arc<Mutex<Vec<i64>>>,
}

fn open(memory: &Memory, read_only: bool) -> Result<Store> {
    let options = StoreOptions {
        flush_disk_type: FlushDiskType::Sync,
        commit_log_file_size: Some(FILE).filter(|_| !read_only),
        consume_queue_file_size: Some(20 * 8).filter(|_| !read_only),
        max_hash_slot_num: Some(16).filter(|_| !read_only),
        max_index_num: Some(64).filter(|_| !read_only),
        background: false,
        read_only,
        ..StoreOptions::default()
    };
    let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
    Store::open_with(Arc::new(memory.clone()), clock, options)
}

impl Writer {
    fn of(memory: &Memory) -> Self {
        Self { memory: memory.clone(), store: None, acts: LIFE.chars(), acknowledged: Arc::default() }
    }

    /// Does the next thing. Returns false after the last one.
    fn act(&mut self) -> bool {
        match self.acts.next() {
            None => return false,
            Some('o') => self.store = Some(open(&self.memory, false).unwrap()),
            Some('c') => self.store.take().unwrap().close().unwrap(),
            Some('K') => self.kill(),
            Some('h') => self.prepare(),
            Some('L') => self.send(5_000),
            Some(other) => {
                assert_eq!(other, 's');
                self.send(100);
            }
        }
        true
    }

    fn kill(&mut self) {
        self.memory.fail_at(0, FaultKind::Io, true);
        self.store = None;
        self.memory.clear_fault();
    }

    fn send(&self, bytes: usize) {
        let Some(store) = &self.store else { return };
        let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
        let message = NewMessage { envelope: &envelope, body: &vec![b'x'; bytes], queue_id: QueueId(0) };
        let sent = store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
        self.acknowledged.lock().push(sent.physical_offset.0.cast_signed());
    }

    fn prepare(&self) {
        let Some(store) = &self.store else { return };
        let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
        let message = NewMessage { envelope: &envelope, body: &[b'h'; 1_500], queue_id: QueueId(0) };
        let half = NewHalfMessage { message, group: "payments", unique_id: None, owner: 0 };
        let sent = store.prepare(&half, Wait::Yes).unwrap().acknowledged().unwrap();
        self.acknowledged.lock().push(sent.physical_offset.0.cast_signed());
    }
}

fn scanned(storage: &Arc<dyn Storage>, view: View) -> Result<Vec<RecordBatch>> {
    let log = Log::open_with(Arc::clone(storage))?;
    let mut scan = Scan::over(log, Arc::new(ScanOptions::of(view)), Arc::default())?;
    let mut batches = Vec::new();
    while let Some(batch) = scan.next_batch()? {
        batches.push(batch);
    }
    Ok(batches)
}

/// Returns where the records begin that a scan shows.
fn offsets(storage: &Arc<dyn Storage>) -> Result<Vec<i64>> {
    let of = |batch: &RecordBatch| {
        batch.column_by_name("physical_offset").unwrap().as_primitive::<Int64Type>().values().to_vec()
    };
    Ok(scanned(storage, View::CommitLog)?.iter().flat_map(of).collect())
}

/// Reads the store in each way, and demands all that was acknowledged before.
fn must_find(memory: &Memory, acknowledged: &[i64], when: &str) {
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let told = |error| panic!("{when}: {error}");
    let found = offsets(&storage).unwrap_or_else(told);
    assert!(acknowledged.iter().all(|offset| found.contains(offset)), "{when}: {acknowledged:?} in {found:?}");
    for view in [View::Transactions, View::Statistics] {
        scanned(&storage, view).unwrap_or_else(|error| panic!("{when}, {view:?}: {error}"));
    }
    let reader = open(memory, true).unwrap_or_else(|error| panic!("{when}: {error}"));
    must_show(&reader, acknowledged, when);
}

/// Demands all that was acknowledged before of a store that is open for reading.
fn must_show(reader: &Store, acknowledged: &[i64], when: &str) {
    let (records, _) = reader.scan(PhysicalOffset(0), 1_000).unwrap_or_else(|error| panic!("{when}: {error}"));
    let read: Vec<i64> = records.iter().map(|one| one.view().unwrap().physical_offset.0.cast_signed()).collect();
    assert!(acknowledged.iter().all(|offset| read.contains(offset)), "{when}: {acknowledged:?} in {read:?}");
}

/// Does something in a thread of its own: the order of locks counts within a store, and a thread may hold another's.
fn elsewhere<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| threads.spawn(act).join()).unwrap()
}

#[test]
fn what_was_acknowledged_is_found_at_every_moment_of_a_writers_life() {
    let memory = Memory::new();
    let mut writer = Writer::of(&memory);
    assert!(writer.act() && writer.act(), "otherwise there is no store yet");
    let (storage, acknowledged, looks) =
        (memory.clone(), Arc::clone(&writer.acknowledged), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&looks);
    memory.before_each(move |call| {
        let known = acknowledged.lock().clone();
        elsewhere(|| must_find(&storage, &known, &format!("before call {call}")));
        seen.fetch_add(1, Ordering::SeqCst);
    });
    while writer.act() {}
    memory.watch(|_| ());
    assert!(looks.load(Ordering::SeqCst) > 500);
}

/// The scan begins while no process writes. The writer that comes fills a file before each later call of the scan.
#[test]
fn a_writer_that_comes_during_a_scan_and_fills_files_hides_no_record_and_makes_none_missing() {
    let memory = Memory::new();
    let mut writer = Writer::of(&memory);
    (0..24).for_each(|_| assert!(writer.act()));
    assert!(writer.store.is_none());
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let log = Log::open_with(storage).unwrap();
    let mut scan = Scan::over(log, Arc::new(ScanOptions::of(View::CommitLog)), Arc::default()).unwrap();
    writer.act();
    let acknowledged = writer.acknowledged.lock().len();
    memory.before_each(move |_| elsewhere(|| (0..3).for_each(|_| writer.send(6_000))));
    let mut rows = 0;
    while let Some(batch) = scan.next_batch().unwrap() {
        rows += batch.num_rows();
    }
    assert!(rows >= acknowledged, "{rows}");
}

/// Calls `read` with what is acknowledged after some acts of the writer, which continues before each of its calls from one
/// of them on. `TXSTORE_MOMENTS=every` begins at each call.
fn while_a_writer_lives(prepare: impl Fn(&Memory) -> Reader, read: impl Fn(&Memory, &mut Reader, &[i64], &str)) {
    let step = if std::env::var("TXSTORE_MOMENTS").is_ok_and(|which| which == "every") { 1 } else { 47 };
    for lived in 2..LIFE.len() {
        let first = 7 * u64::try_from(lived).unwrap() % u64::try_from(step).unwrap();
        for call in (first..).step_by(step) {
            let memory = Memory::new();
            let mut writer = Writer::of(&memory);
            (0..2).for_each(|_| assert!(writer.act()));
            let mut reader = prepare(&memory);
            (2..lived).for_each(|_| assert!(writer.act()));
            let known = writer.acknowledged.lock().clone();
            let (writer, calls) = (Mutex::new(writer), Arc::new(AtomicU64::new(0)));
            let seen = Arc::clone(&calls);
            memory.before_each(move |before| {
                seen.store(before, Ordering::SeqCst);
                if before >= call {
                    elsewhere(|| writer.lock().act());
                }
            });
            read(&memory, &mut reader, &known, &format!("after {lived} acts, from call {call} on"));
            memory.watch(|_| ());
            if calls.load(Ordering::SeqCst) < call {
                break;
            }
        }
    }
}

/// A reader that was opened before.
type Reader = Option<Store>;

#[test]
fn what_was_acknowledged_is_found_whatever_a_writer_does_meanwhile() {
    while_a_writer_lives(|_| None, |memory, _, known, when| must_find(memory, known, when));
}

#[test]
fn a_reader_that_was_there_before_finds_what_was_acknowledged_whatever_a_writer_does_meanwhile() {
    while_a_writer_lives(
        |memory| Some(open(memory, true).unwrap()),
        |_, reader, known, when| {
            let reader = reader.as_ref().unwrap();
            for _ in 0..3 {
                must_show(reader, known, when);
                reader.stat().unwrap_or_else(|e| panic!("{when}: {e}"));
            }
        },
    );
}

#[test]
fn a_backup_has_what_was_acknowledged_whatever_a_writer_does_meanwhile() {
    while_a_writer_lives(
        |_| None,
        |memory, _, known, when| {
            let storage: Arc<dyn Storage> = Arc::new(memory.clone());
            let mut source = Source::open(Arc::clone(&storage)).unwrap_or_else(|e| panic!("{when}: {e}"));
            for pass in 0.. {
                assert!(pass < 8, "{when}: it does not come to rest");
                if !source.look().unwrap_or_else(|e| panic!("{when}: {e}")) {
                    continue;
                }
                let files = (source.first()..source.end()).step_by(usize::try_from(FILE).unwrap());
                let verified = files.map(|base| verify_file(&storage, FILE, base, source.end())).find_map(Result::err);
                if source.is_still().unwrap() {
                    assert!(verified.is_none(), "{when}: {verified:?}");
                    break;
                }
            }
            assert!(known.iter().all(|offset| offset.cast_unsigned() < source.end()), "{when}");
        },
    );
}
