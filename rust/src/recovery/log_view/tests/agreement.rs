//! Recovery, the Arrow scan and repair read the same damaged log and report the same: where it ends, what is
//! damaged, and at which byte.
//!
//! The logs are random: sessions of txstore and of a broker, closed or killed, then damaged. `TXSTORE_DAMAGED_LOGS`
//! sets how many there are, `TXSTORE_DAMAGED_SEED` the first seed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::arrow::{BadRecords, Counts, Log, Scan, ScanOptions, View};
use crate::base::clock::ManualClock;
use crate::base::error::Error;
use crate::base::options::{FlushDiskType, StoreOptions};
use crate::base::units::{PhysicalOffset, QueueId, TimestampMs, to_u64, to_usize};
use crate::record::message::{Envelope, Parts};
use crate::recovery::snapshot::Snapshot;
use crate::repair::{DamageKind, Examination, Examiner, mend};
use crate::storage::checkpoint::Checkpoint;
use crate::storage::memory::{CrashKeep, Memory};
use crate::storage::{OpenMode, Storage};
use crate::store::{NewMessage, Sent, Store, Wait};

const FILE: u64 = 4 << 10;
const CASES: u64 = 2_000;
const BEGAN_MS: i64 = 1_700_000_000_000;

/// A generator of random numbers from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn of<'a, T>(&mut self, among: &'a [T]) -> Option<&'a T> {
        among.get(to_usize(self.below(to_u64(among.len()))))
    }
}

fn options(read_only: bool) -> StoreOptions {
    StoreOptions {
        read_only,
        flush_disk_type: FlushDiskType::Async,
        commit_log_file_size: Some(FILE),
        consume_queue_file_size: Some(20 * 8),
        max_hash_slot_num: Some(16),
        max_index_num: Some(64),
        background: false,
        ..StoreOptions::default()
    }
}

/// A store under construction.
struct Case {
    chance: Chance,
    memory: Memory,
    clock: Arc<ManualClock>,
    sent: Vec<(Sent, i64)>,
    notes: Vec<String>,
}

impl Case {
    fn make(seed: u64) -> Self {
        let mut case = Self {
            chance: Chance(seed),
            memory: Memory::new(),
            clock: Arc::new(ManualClock::at(TimestampMs(BEGAN_MS))),
            sent: Vec::new(),
            notes: Vec::new(),
        };
        let sessions = 1 + case.chance.below(3);
        for number in 0..sessions {
            let is_last = number + 1 == sessions;
            // A broker refuses what a killed txstore left.
            if case.memory.len(crate::recovery::log_view::GUARD).unwrap().is_none() && case.chance.one_in(2) {
                case.brokers_session(is_last);
            } else {
                case.our_session(is_last);
            }
        }
        for _ in 0..case.chance.below(4) {
            case.damage();
        }
        case.forget();
        case
    }

    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    fn write(&mut self, store: &Store) {
        let topics = ["orders", "parcels", "t"];
        for _ in 0..=self.chance.below(25) {
            self.clock.advance(if self.chance.one_in(3) { self.chance.below(3_000).cast_signed() } else { 0 });
            let topic = self.chance.of(&topics).unwrap();
            let body = vec![b'x'; to_usize(1 + self.chance.below(500))];
            let envelope = Envelope::new(&Parts { topic, ..Parts::default() }).unwrap();
            let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) };
            let sent = store.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
            let stored_ms = store.read_at(sent.physical_offset).unwrap().view().unwrap().store_timestamp.0;
            self.sent.push((sent, stored_ms));
            if self.chance.one_in(6) {
                store.flush().unwrap();
            }
            if self.chance.one_in(12) {
                store.snapshot().unwrap();
            }
        }
    }

    fn our_session(&mut self, may_be_killed: bool) {
        let store = self.open(false).unwrap();
        self.write(&store);
        if may_be_killed && self.chance.one_in(2) {
            let keep = if self.chance.one_in(2) { CrashKeep::PageCache } else { CrashKeep::PowerLoss };
            self.memory = self.memory.crash(self.chance.next(), keep);
            self.note(format!("ours, {keep:?}"));
        } else {
            store.close().unwrap();
            self.note(format!("ours, closed at {}", self.end()));
        }
    }

    /// Appends as a broker what txstore would append, and changes no file of txstore's own.
    fn brokers_session(&mut self, may_be_killed: bool) {
        let before = self.memory.crash(0, CrashKeep::PageCache);
        let store = self.open(false).unwrap();
        self.write(&store);
        store.close().unwrap();
        self.memory.remove_dir("txstore").unwrap();
        for name in ["settings.json", "snapshot", "published"] {
            let path = format!("txstore/{name}");
            if let Some(length) = before.len(&path).unwrap() {
                let mut bytes = vec![0; to_usize(length)];
                before.open(&path, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
                self.memory.create_dir("txstore").unwrap();
                let file = self.memory.open(&path, OpenMode::Create).unwrap();
                file.write_at(&bytes, 0).unwrap();
                file.sync().unwrap();
                self.memory.sync_dir("txstore").unwrap();
            }
        }
        let last_ms = self.sent.last().map_or(0, |(_, stored_ms)| *stored_ms);
        let physic_ms = self.chance.of(&self.sent).map_or(0, |(_, stored_ms)| *stored_ms);
        let killed = may_be_killed && self.chance.one_in(2);
        let logics_ms = if killed { physic_ms } else { last_ms };
        Checkpoint::store(&self.memory, &Checkpoint { physic_ms, logics_ms, ..Checkpoint::default() }).unwrap();
        if killed {
            let abort = self.memory.open("abort", OpenMode::Create).unwrap();
            abort.write_at(b"1", 0).unwrap();
            abort.sync().unwrap();
            self.memory.sync_dir("").unwrap();
        }
        self.note(format!("a broker's, killed {killed}, to {}, physic {}", self.end(), physic_ms - BEGAN_MS));
    }

    fn end(&self) -> u64 {
        self.sent.last().map_or(0, |(sent, _)| sent.physical_offset.0 + u64::from(sent.size))
    }

    /// Overwrites some bytes with zeros, other bytes, or bytes of the log itself, including whole records of another
    /// offset.
    fn damage(&mut self) {
        let Some((sent, _)) = self.chance.of(&self.sent).cloned() else { return };
        let (record, size) = (sent.physical_offset.0, u64::from(sent.size));
        let record_end = self.sent.last().map_or(0, |(sent, _)| sent.physical_offset.0);
        let (from, length) = match self.chance.below(6) {
            0 => (record, size),
            1 => (record, size * (1 + self.chance.below(6))),
            2 => (record + self.chance.below(size), 1 + self.chance.below(40)),
            3 => (self.end(), 1 + self.chance.below(600)),
            4 => (self.chance.below(self.end() + FILE), 1 + self.chance.below(1_000)),
            _ => (record, FILE),
        };
        let base = from - from % FILE;
        let length = length.min(base + FILE - from);
        // What a broker has cut lies after everything that it keeps.
        let bytes = match self.chance.below(if from < record_end { 2 } else { 3 }) {
            0 => vec![0; to_usize(length)],
            1 => (0..length).map(|_| self.chance.below(256).to_le_bytes()[0]).collect(),
            _ => self.stale_bytes(from, length),
        };
        let path = format!("commitlog/{base:020}");
        if self.memory.len(&path).unwrap() == Some(FILE) {
            let file = self.memory.open(&path, OpenMode::Write).unwrap();
            file.write_at(&bytes, from - base).unwrap();
            file.sync().unwrap();
            let zeros = bytes.iter().all(|byte| *byte == 0);
            self.note(format!("{length} bytes at {from}, zeros {zeros}"));
        }
    }

    /// Returns a record of the log as if it had been at another offset, after some bytes of a body. A broker cuts what
    /// is newer than what it keeps, so the record is as new as the newest.
    fn stale_bytes(&mut self, from: u64, length: u64) -> Vec<u8> {
        let (sent, _) = self.chance.of(&self.sent).unwrap().clone();
        let base = sent.physical_offset.0 - sent.physical_offset.0 % FILE;
        let mut record = vec![0; to_usize(sent.size.into())];
        let file = self.memory.open(&format!("commitlog/{base:020}"), OpenMode::Read).unwrap();
        file.read_at(&mut record, sent.physical_offset.0 - base).unwrap();
        let before = self.chance.below(length.min(60));
        let newest_ms = self.sent.last().map_or(0, |(_, stored_ms)| *stored_ms);
        if let Some(stored_ms) = record.get_mut(56..64) {
            stored_ms.copy_from_slice(&newest_ms.to_be_bytes());
        }
        if let Some(says) = record.get_mut(28..36) {
            says.copy_from_slice(&(from + before).to_be_bytes());
        }
        let mut bytes = vec![b'x'; to_usize(before)];
        bytes.extend(record);
        bytes.truncate(to_usize(length));
        bytes
    }

    /// Removes or ages files other than the log that tell where it ends.
    fn forget(&mut self) {
        for path in ["txstore/snapshot", "txstore/published", "txstore/settings.json", "checkpoint"] {
            if self.chance.one_in(6) {
                self.memory.unlink(path).unwrap();
                self.note(format!("without {path}"));
            }
        }
    }

    fn open(&self, read_only: bool) -> Result<Store, Error> {
        Store::open_with(Arc::new(self.memory.clone()), self.clock.clone(), options(read_only))
    }
}

/// The report of one of the three: the log's end, or the first damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    End(u64),
    Damaged(u64),
    AnotherFault,
}

/// Returns whether something is wrong in a record without a checksum of it. Only recovery looks at the queue offset and the
/// topic, and only a scan unpacks the body.
fn is_another_fault(error: &Error) -> bool {
    let text = error.to_string();
    ["queue offset", "cannot name a directory", "the body's compression", "the body is not a complete"]
        .iter()
        .any(|what| text.contains(what))
}

fn says(result: Result<u64, Error>) -> Says {
    match result {
        Ok(end) => Says::End(end),
        Err(error) if is_another_fault(&error) => Says::AnotherFault,
        Err(Error::StoreCorrupt { file, offset, .. }) => {
            let base: u64 = file.file_name().unwrap().to_str().unwrap().parse().unwrap();
            Says::Damaged(base + offset)
        }
        Err(Error::MissingFile { from, .. }) => Says::Damaged(from.0),
        Err(other) => panic!("{other:?}"),
    }
}

/// Returns what a scan reports, how many rows it has, and how many damaged ranges and bytes it skipped.
fn scan(memory: &Memory, bad_records: BadRecords) -> (Says, usize, u64, u64) {
    let options = ScanOptions { bad_records, ..ScanOptions::of(View::CommitLog) };
    let counts = Arc::new(Counts::default());
    let log = Log::open_with(Arc::new(memory.clone())).unwrap();
    let mut scan = Scan::over(log, Arc::new(options), Arc::clone(&counts)).unwrap();
    let mut rows = 0;
    let result = loop {
        match scan.next_batch() {
            Ok(Some(batch)) => rows += batch.num_rows(),
            Ok(None) => break Ok(scan.position()),
            Err(error) => break Err(error),
        }
    };
    let bad = counts.bad_records.load(Ordering::Relaxed);
    (says(result), rows, bad, counts.bad_bytes.load(Ordering::Relaxed))
}

fn examine(memory: &Memory) -> Examination {
    Examiner::begin(Arc::new(memory.clone())).unwrap().finish().unwrap()
}

fn recovered(case: &Case, read_only: bool) -> Says {
    says(case.open(read_only).map(|store| store.stat().unwrap().max_physical_offset))
}

/// Returns what recovery may report for an examination. Damage below a snapshot is not read again.
fn expected(case: &Case, found: &Examination) -> Vec<Says> {
    let damaged_from = |from: u64| found.damages.iter().map(|damage| damage.from).find(|at| *at >= from);
    let of = |from: u64| damaged_from(from).map_or(Says::End(found.end), Says::Damaged);
    let position = Snapshot::position_of(&case.memory).unwrap();
    vec![of(0), of(position)]
}

fn agree(seed: u64) {
    let case = Case::make(seed);
    let found = examine(&case.memory);
    let about = format!("seed {seed}: {:#?}\n{:#?}\n{:?}", case.notes, found.damages, (found.end, found.torn));
    let first = found.damages.first().map_or(Says::End(found.end), |damage| Says::Damaged(damage.from));
    let reader = recovered(&case, true);
    if reader == Says::AnotherFault {
        return;
    }
    assert!(expected(&case, &found).contains(&reader), "recovery says {reader:?}; {about}");
    let (scanned, rows, ..) = scan(&case.memory, BadRecords::Fail);
    assert!(scanned == first || scanned == Says::AnotherFault, "a scan says {scanned:?}; {about}");
    let log = Log::open_with(Arc::new(case.memory.clone())).unwrap();
    let visible = log.visible_end(None).unwrap();
    if found.damages.is_empty() && scanned == first {
        assert_eq!((visible, to_u64(rows)), (found.end, found.records), "{about}");
    }
    let (skipped, rows, ranges, bytes) = scan(&case.memory, BadRecords::Skip);
    let lost: u64 = merged(&found);
    // Only a scan decompresses bodies, and skips a record whose body it cannot decompress.
    if found.damages.iter().all(|damage| damage.records_discarded == 0) && ranges <= to_u64(found.damages.len()) {
        assert_eq!(to_u64(rows), found.records, "passing over damage, {skipped:?}; {about}");
    }
    // If the log ends damaged, the length of the damage is not known to the byte.
    if found.damages.iter().all(|damage| damage.kind == DamageKind::Bad && damage.records_discarded == 0)
        && ranges <= to_u64(found.damages.len())
    {
        assert_eq!(bytes, lost, "passing over damage, {skipped:?}; {about}");
    }
    // A writer keeps everything that a reader found, and nothing that was cut comes back.
    let case = Case { memory: case.memory.crash(0, CrashKeep::PageCache), ..case };
    let written = recovered(&case, false);
    if written == Says::AnotherFault {
        return;
    }
    assert_eq!(written, reader, "a writer's recovery; {about}");
    if let Says::End(end) = written {
        let case = Case { memory: case.memory.crash(seed, CrashKeep::PowerLoss), ..case };
        assert_eq!(recovered(&case, true), Says::End(end), "after a writer; {about}");
        return;
    }
    let case = Case { memory: case.memory.crash(0, CrashKeep::PageCache), ..case };
    let storage: Arc<dyn Storage> = Arc::new(case.memory.clone());
    mend(&storage, &case.memory, "txstore/repair-1", &found).unwrap_or_else(|error| panic!("{error}; {about}"));
    let again = examine(&case.memory);
    assert!(again.damages.is_empty(), "{:?}; {about}", again.damages);
    let store = match case.open(false) {
        Ok(store) => store,
        Err(error) if is_another_fault(&error) => return,
        Err(error) => panic!("after a repair: {error}; {about}"),
    };
    let end = store.stat().unwrap().max_physical_offset;
    assert_eq!(end, found.end, "after a repair; {about}");
    let (records, _) = store.scan(PhysicalOffset(store.stat().unwrap().min_physical_offset), usize::MAX).unwrap();
    let kept = records.iter().filter(|record| !crate::repair::is_filler(&record.view().unwrap()));
    assert_eq!(to_u64(kept.count()), found.records, "after a repair; {about}");
}

/// Returns the number of damaged bytes, each counted once.
fn merged(found: &Examination) -> u64 {
    let (mut end, mut bytes) = (0, 0);
    for damage in &found.damages {
        bytes += damage.to.saturating_sub(damage.from.max(end));
        end = damage.to.max(end);
    }
    bytes
}

#[test]
fn recovery_scan_and_repair_agree_on_damaged_logs() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let cases = number("TXSTORE_DAMAGED_LOGS").unwrap_or(CASES);
    let first = number("TXSTORE_DAMAGED_SEED").unwrap_or(0);
    println!("TXSTORE_DAMAGED_SEED={first}, {cases} logs");
    for seed in first..first + cases {
        agree(seed);
    }
}
