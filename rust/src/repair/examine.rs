//! Examines a store's files one by one, without opening it.
//!
//! In:     a directory.
//! Out:    an `Examination`.
//! Always: writes nothing and takes no lock. After damage it continues at the next record, which states its own
//!         physical offset.
//! Not here: comparing derived files with the log in a store that opens.

use std::sync::Arc;

use super::filler::fits;
use super::{Damage, DamageKind, Examination, Lost};
use crate::base::error::{Error, Result};
use crate::base::names::valid_path_component;
use crate::base::units::{QueueId, TimestampMs, to_u64, to_usize};
use crate::index::consume_queue::{self, ENTRY_SIZE, Entry};
use crate::index::key_index::IndexGeometry;
use crate::log::commit_log::{self, Step, UNWRITTEN, step};
use crate::log::published::Published;
use crate::record::RecordView;
use crate::recovery::log_view::{KnownEnd, LogFiles, Tail, is_clean, next_record};
use crate::recovery::snapshot::Snapshot;
use crate::storage::checkpoint::Checkpoint;
use crate::storage::config_file;
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::Settings;
use crate::storage::{DirEntry, OpenMode, Storage};

/// Lost messages that are named. Further ones are only counted.
const LOST_MAX: usize = 10_000;
/// The files of `config/` that are JSON.
pub(super) const CONFIG_FILES: [&str; 4] =
    ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"];

/// Examines a store, one log file per step.
#[derive(Debug)]
pub struct Examiner {
    storage: Arc<dyn Storage>,
    log_files: LogFiles,
    files: Vec<(u64, DirEntry)>,
    next: usize,
    known: KnownEnd,
    out: Examination,
    /// The end of the log was reached. Later bytes do not belong to it.
    has_ended: bool,
    /// The newest store time of the records read so far.
    newest: TimestampMs,
    /// The store time of the record that was read last.
    last_ms: Option<i64>,
}

impl Examiner {
    /// Lists the files.
    pub fn begin(storage: Arc<dyn Storage>) -> Result<Self> {
        let settings = Settings::load(storage.as_ref())?;
        let mut files = SegmentQueue::files(storage.as_ref(), commit_log::DIRECTORY)?;
        let file_size = file_size(&files, settings.as_ref());
        // An empty last file was left by a crash at its creation.
        while files.last().is_some_and(|(_, file)| file.len == 0) {
            files.pop();
        }
        // This is read first, because a writer may continue in the meantime.
        let clean = is_clean(storage.as_ref())?;
        let published = Published::open(storage.as_ref())?;
        let snapshot = Snapshot::position_of(storage.as_ref())?;
        let known = KnownEnd::find(storage.as_ref(), settings.as_ref(), published.as_ref(), snapshot, clean, false)?;
        let first = files.first().map_or(0, |(base, _)| *base);
        let listed = files.iter().map(|(base, file)| (*base, file.len)).collect();
        Ok(Self {
            log_files: LogFiles::new(Arc::clone(&storage), file_size, listed),
            storage,
            files,
            next: 0,
            known,
            out: Examination { file_size, first, end: first, clean, ..Examination::default() },
            has_ended: false,
            newest: TimestampMs(1),
            last_ms: None,
        })
    }

    /// Returns how many files the log has.
    pub const fn files(&self) -> usize {
        self.files.len()
    }

    /// Examines the next file; false if all are done.
    pub fn step(&mut self) -> Result<bool> {
        let Some((base, entry)) = self.files.get(self.next).cloned() else { return Ok(false) };
        let path = format!("{}/{}", commit_log::DIRECTORY, entry.name);
        if entry.is_dir || base % self.out.file_size != 0 {
            let path = self.storage.root().join(&path);
            let what =
                "its name is not that of a log file\nhint: move it out of the directory, then check again".to_owned();
            return Err(Error::ForeignStore { path, what });
        }
        let expected = self.next.checked_sub(1).and_then(|before| self.files.get(before));
        if let Some(expected) = expected.map(|(before, _)| before + self.out.file_size).filter(|end| *end < base) {
            let missing = format!("{}/{expected:020}", commit_log::DIRECTORY);
            self.damaged(DamageKind::Missing, expected..base, missing, "it is not there".to_owned());
        }
        self.next += 1;
        self.file(base, &path, entry.len)?;
        Ok(true)
    }

    fn file(&mut self, base: u64, path: &str, length: u64) -> Result<()> {
        let file_end = base + self.out.file_size;
        let damages = self.out.damages.len();
        if length != self.out.file_size {
            let what = format!("it has {length} bytes, the log's files have {}", self.out.file_size);
            let from = base + length.min(self.out.file_size);
            self.damaged(DamageKind::Length, from..file_end, path.to_owned(), what);
        }
        let file = self.storage.open(path, OpenMode::Read)?;
        let map = if length > 0 { Some(file.map_read()?) } else { None };
        let read = map.as_ref().and_then(|map| map.bytes(0..map.len().min(self.out.file_size)));
        let mut bytes = read.unwrap_or_default();
        if to_u64(bytes.len()) < self.out.file_size {
            // The missing bytes of a truncated file read as zeros.
            bytes.to_mut().resize(to_usize(self.out.file_size), 0);
        }
        self.walk(base, path, &bytes)?;
        if !self.has_ended && self.out.damages.len() == damages && length == self.out.file_size {
            self.out.whole.push(base);
        }
        Ok(())
    }

    /// Reads the records of a file. Notes damage and continues reading after it.
    fn walk(&mut self, base: u64, path: &str, bytes: &[u8]) -> Result<()> {
        let file_end = base + self.out.file_size;
        let mut at = base;
        while at < file_end && !self.has_ended {
            let rest = bytes.get(to_usize(at - base)..).unwrap_or_default();
            let why = match step(rest, at, file_end, self.known.settings.verify(at)) {
                Step::Record(view) => {
                    self.record(at, &view);
                    at += u64::from(view.size);
                    continue;
                }
                Step::FileEnd => {
                    self.out.end = file_end;
                    return Ok(());
                }
                Step::Unwritten => UNWRITTEN.to_owned(),
                Step::Bad(why) => why.to_string(),
                Step::BadBlank(why) => why,
            };
            at = self.no_record(rest, at, file_end, path, why)?;
        }
        Ok(())
    }

    fn record(&mut self, at: u64, view: &RecordView<'_>) {
        self.out.records += 1;
        self.newest = self.newest.max(view.store_timestamp);
        self.last_ms = Some(view.store_timestamp.0);
        if view.transaction_type().is_queued() {
            self.note_queue(view);
        }
        self.out.end = at + u64::from(view.size);
    }

    fn note_queue(&mut self, view: &RecordView<'_>) {
        if let Some(queues) = self.out.queued.get_mut(view.topic) {
            queues.insert(view.queue_id);
        } else {
            self.out.queued.insert(view.topic.to_owned(), [view.queue_id].into());
        }
    }

    /// Handles an offset where no record begins: the log ends there, or continues after damage. Returns where reading
    /// continues.
    fn no_record(&mut self, rest: &[u8], at: u64, file_end: u64, path: &str, why: String) -> Result<u64> {
        let verdict = self.known.verdict(&self.log_files, at, self.last_ms)?;
        if !matches!(verdict.tail, Tail::Damaged(_)) {
            self.has_ended = true;
            self.out.torn = matches!(verdict.tail, Tail::Torn | Tail::Stale).then_some((at, verdict.bytes_end));
            return Ok(at);
        }
        let verify = |at| self.known.settings.verify(at);
        if let Some(found) = next_record(rest, at, file_end, verify) {
            let mut next = found.physical_offset;
            let discards_next = !fits(next - at, verify(at));
            if discards_next {
                next += found.size;
                self.last_ms = Some(found.stored_ms);
            }
            self.damaged(DamageKind::Bad, at..next, path.to_owned(), why);
            if let Some(damage) = self.out.damages.last_mut() {
                damage.records_discarded = discards_next.into();
            }
            self.out.end = next;
            return Ok(next);
        }
        if verdict.later_record.is_some() {
            self.damaged(DamageKind::Bad, at..file_end, path.to_owned(), why);
            self.out.end = file_end;
            return Ok(file_end);
        }
        self.has_ended = true;
        if verdict.bytes_end > at {
            self.damaged(DamageKind::Tail, at..verdict.bytes_end, path.to_owned(), why);
        }
        Ok(at)
    }

    fn damaged(&mut self, kind: DamageKind, range: std::ops::Range<u64>, file: String, what: String) {
        let (records_before, stored) = (self.out.records, self.newest);
        let (from, to) = (range.start, range.end);
        self.out.damages.push(Damage { kind, from, to, file, what, records_discarded: 0, records_before, stored });
    }

    /// Examines the rest: where the log should begin and end, derived files, lost messages.
    pub fn finish(mut self) -> Result<Examination> {
        while self.step()? {}
        let storage = Arc::clone(&self.storage);
        self.check_front(storage.as_ref())?;
        self.check_end()?;
        self.derived(storage.as_ref())?;
        let size = self.out.file_size.max(1);
        // The length of a file is repaired before its bytes.
        let order = |damage: &Damage| (damage.from / size, damage.kind != DamageKind::Length, damage.from);
        self.out.damages.sort_by_key(order);
        self.queues(storage.as_ref())?;
        Ok(self.out)
    }

    fn check_front(&mut self, storage: &dyn Storage) -> Result<()> {
        let ours = self.known.settings.open_range().is_some();
        let published = Published::open(storage)?.filter(|published| published.appended().0 > 0 && ours);
        if let Some(from) = published.map(|published| published.minimum().0).filter(|from| *from < self.out.first) {
            let file = format!("{}/{from:020}", commit_log::DIRECTORY);
            self.damaged(DamageKind::Front, from..self.out.first, file, "it is not there".to_owned());
        }
        Ok(())
    }

    /// Notes damage if the log is known to have reached past its readable end.
    fn check_end(&mut self) -> Result<()> {
        let end = self.out.end;
        let verdict = self.known.verdict(&self.log_files, end, self.last_ms)?;
        if matches!(verdict.tail, Tail::Damaged(_)) && verdict.written > end {
            let file = end - end % self.out.file_size.max(1);
            let path = format!("{}/{file:020}", commit_log::DIRECTORY);
            let what = "the log is known to have ended later".to_owned();
            self.damaged(DamageKind::End, end..verdict.written, path, what);
        }
        Ok(())
    }

    /// Notes damaged files that are derived from the log or have a second copy.
    fn derived(&mut self, storage: &dyn Storage) -> Result<()> {
        let mut bad = Vec::new();
        for name in CONFIG_FILES {
            let damaged = config_file::load(storage, name)?.damaged;
            bad.extend(damaged.into_iter().map(|what| (format!("config/{name}"), what)));
        }
        if storage.len("txstore/snapshot")?.is_some() && Snapshot::load(storage)?.is_none() {
            bad.push(("txstore/snapshot".to_owned(), "it is not a snapshot".to_owned()));
        }
        if storage.len("txstore/published")?.is_some() && Published::open(storage)?.is_none() {
            bad.push(("txstore/published".to_owned(), "its header is damaged".to_owned()));
        }
        if storage.len("txstore/settings.json")?.is_some() && Settings::load(storage)?.is_none() {
            bad.push(("txstore/settings.json".to_owned(), "it is damaged".to_owned()));
        }
        if storage.len("checkpoint")?.is_some() && Checkpoint::load(storage)?.is_none() {
            bad.push(("checkpoint".to_owned(), "its length is wrong".to_owned()));
        }
        let checkpoint = Checkpoint::load(storage)?.unwrap_or_default();
        if self.out.clean && self.out.records > 0 && checkpoint.physic_ms > self.newest.0 {
            bad.push(("checkpoint".to_owned(), "it is ahead of the log".to_owned()));
        }
        if let (Some(slots), Some(entries)) = (self.known.settings.index_slots, self.known.settings.index_entries) {
            let bytes = IndexGeometry { slots, entries }.file_bytes();
            let files = storage.list("index")?.unwrap_or_default();
            for file in files.into_iter().filter(|file| file.len > 0 && file.len != bytes) {
                bad.push((format!("index/{}", file.name), format!("it has {} bytes, not {bytes}", file.len)));
            }
        }
        self.out.derived.append(&mut bad);
        Ok(())
    }

    /// Examines the queues: which entries name lost messages, and whether the files have one length.
    fn queues(&mut self, storage: &dyn Storage) -> Result<()> {
        let mut lengths: Vec<(String, u64)> = Vec::new();
        for topic in storage.list(consume_queue::DIRECTORY)?.unwrap_or_default() {
            if !topic.is_dir || !valid_path_component(&topic.name) {
                continue;
            }
            let directory = format!("{}/{}", consume_queue::DIRECTORY, topic.name);
            for queue in storage.list(&directory)?.unwrap_or_default() {
                let Some(queue_id) = queue.name.parse().ok().filter(|_| queue.is_dir).map(QueueId) else { continue };
                let directory = format!("{directory}/{}", queue.name);
                let files = SegmentQueue::files(storage, &directory)?;
                for (base, file) in files.into_iter().filter(|(_, file)| file.len > 0 && !file.is_dir) {
                    let path = format!("{directory}/{}", file.name);
                    self.entries(storage, &path, (&topic.name, queue_id, base))?;
                    lengths.push((path, file.len));
                }
            }
        }
        let size = self.known.settings.consume_queue_file_size.or_else(|| most_frequent(&lengths));
        for (path, length) in lengths.into_iter().filter(|(_, length)| Some(*length) != size) {
            let what = format!("it has {length} bytes, the other queue files {}", size.unwrap_or(0));
            self.out.derived.push((path, what));
        }
        Ok(())
    }

    fn entries(&mut self, storage: &dyn Storage, path: &str, queue_file: (&str, QueueId, u64)) -> Result<()> {
        let (topic, queue_id, base) = queue_file;
        let map = storage.open(path, OpenMode::Read)?.map_read()?;
        let bytes = map.bytes(0..map.len()).unwrap_or_default();
        let (entries, _) = bytes.as_chunks::<ENTRY_SIZE>();
        let first = base / to_u64(ENTRY_SIZE);
        for (queue_offset, entry) in (first..).zip(entries) {
            let Some(entry) = Entry::from_bytes(entry).filter(|entry| !entry.is_padding()) else { continue };
            let at = entry.physical_offset.0;
            if !self.out.damages.iter().any(|damage| (damage.from..damage.to).contains(&at)) {
                continue;
            }
            self.out.lost_count += 1;
            if self.out.lost.len() < LOST_MAX {
                let topic = topic.to_owned();
                self.out.lost.push(Lost { topic, queue_id, queue_offset, physical_offset: at });
            }
        }
        Ok(())
    }
}

/// Returns the size of a log file in bytes: the remembered size, else the distance between file names, else the most
/// common length.
fn file_size(files: &[(u64, DirEntry)], settings: Option<&Settings>) -> u64 {
    let remembered = settings.and_then(|settings| settings.commit_log_file_size);
    let apart = || files.windows(2).filter_map(|pair| Some(pair.get(1)?.0 - pair.first()?.0)).min();
    let lengths: Vec<_> = files.iter().map(|(_, file)| (String::new(), file.len)).collect();
    remembered.or_else(apart).or_else(|| most_frequent(&lengths)).unwrap_or(0)
}

fn most_frequent(lengths: &[(String, u64)]) -> Option<u64> {
    let count = |wanted: u64| lengths.iter().filter(|(_, length)| *length == wanted).count();
    lengths.iter().map(|(_, length)| *length).max_by_key(|length| count(*length))
}
