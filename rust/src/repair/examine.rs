//! Examine: a store's files looked at one by one, without opening it.
//!
//! In: a directory. Out: an `Examination`. Always: writes nothing and takes no lock; behind a bad place it goes on at the
//! next record, which says itself where it stands. Not here: comparing what is derived with the log in a store that opens.

use std::sync::Arc;

use super::{Damage, DamageKind, Examination, Lost};
use crate::checkpoint::Checkpoint;
use crate::commit_log::{self, FILE_TAIL, Step, step};
use crate::config_file;
use crate::consume_queue::{self, ENTRY_SIZE, Entry};
use crate::error::{Error, Result};
use crate::index::IndexGeometry;
use crate::names::valid_path_component;
use crate::published::Published;
use crate::record::RecordView;
use crate::record::decode::{Scanned, decode};
use crate::segment::SegmentQueue;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::storage::{DirEntry, OpenMode, Storage};
use crate::store::is_clean;
use crate::units::{PhysicalOffset, QueueId, TimestampMs, to_u64, to_usize};

/// Lost messages that are named; more are counted.
const LOST_MAX: usize = 10_000;
/// The files of `config/` that are JSON.
pub(super) const CONFIG_FILES: [&str; 4] =
    ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"];

/// Looks at a store, one file of its log a step.
#[derive(Debug)]
pub struct Examiner {
    storage: Arc<dyn Storage>,
    settings: Settings,
    files: Vec<(u64, DirEntry)>,
    next: usize,
    /// The end that is known to have been durable.
    durable: u64,
    out: Examination,
    /// The last file with records, and what was met where they end in it: bytes that are no record, up to there.
    open_end: Option<(u64, u64, String)>,
    /// When the last record that was read was stored.
    newest: TimestampMs,
}

impl Examiner {
    /// Lists the files.
    pub fn begin(storage: Arc<dyn Storage>) -> Result<Self> {
        let settings = Settings::load(storage.as_ref())?;
        let mut files = SegmentQueue::files(storage.as_ref(), commit_log::DIRECTORY)?;
        let file_size = file_size(&files, settings.as_ref());
        // An empty file at the end is one that a crash left at its making.
        while files.last().is_some_and(|(_, file)| file.len == 0) {
            files.pop();
        }
        let settings = settings.unwrap_or_default();
        // Asked first: a writer may go on meanwhile.
        let durable = known_durable(storage.as_ref(), &settings)?;
        let first = files.first().map_or(0, |(base, _)| *base);
        let clean = is_clean(storage.as_ref())?;
        let out = Examination { file_size, first, end: first, clean, ..Examination::default() };
        Ok(Self { storage, settings, files, next: 0, durable, out, open_end: None, newest: TimestampMs(1) })
    }

    /// How many files the log has.
    pub const fn files(&self) -> usize {
        self.files.len()
    }

    /// Looks at the next file; false: there is none.
    pub fn step(&mut self) -> Result<bool> {
        let Some((base, entry)) = self.files.get(self.next).cloned() else { return Ok(false) };
        let path = format!("{}/{}", commit_log::DIRECTORY, entry.name);
        if entry.is_dir || base % self.out.file_size != 0 {
            let path = self.storage.root().join(&path);
            let what = "its name is none of this log's files\nhint: move it away, and look again".to_owned();
            return Err(Error::ForeignStore { path, what });
        }
        let expected = self.next.checked_sub(1).and_then(|before| self.files.get(before));
        if let Some(expected) = expected.map(|(before, _)| before + self.out.file_size).filter(|end| *end < base) {
            self.close_open_end(expected);
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
            // What a cut file lacks reads as zeros.
            bytes.to_mut().resize(to_usize(self.out.file_size), 0);
        }
        self.walk(base, path, &bytes);
        if self.out.damages.len() == damages && length == self.out.file_size {
            self.out.whole.push(base);
        }
        Ok(())
    }

    fn walk(&mut self, base: u64, path: &str, bytes: &[u8]) {
        let file_end = base + self.out.file_size;
        let mut at = base;
        while at < file_end {
            let rest = bytes.get(to_usize(at - base)..).unwrap_or_default();
            let why = match step(rest, at, file_end, self.settings.verify(at)) {
                Step::Record(view) => {
                    self.record(base, at, &view);
                    at += u64::from(view.size);
                    continue;
                }
                Step::FileEnd => {
                    self.seen(base, file_end);
                    return;
                }
                Step::Unwritten if to_u64(rest.len()) < FILE_TAIL => return,
                Step::Unwritten => "zeros, where a record should begin".to_owned(),
                Step::Bad(why) => why.to_string(),
                Step::BadBlank(why) => why,
            };
            let Some(next) = self.next_record(rest, at, file_end) else {
                // Whether this is the log's end shows in the files behind.
                let written = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| to_u64(last) + 1);
                let is_first = self.open_end.is_none();
                if is_first {
                    self.open_end = Some((at, at + written, why));
                } else if written > 0 {
                    self.damaged(DamageKind::Tail, at..at + written, path.to_owned(), why);
                }
                return;
            };
            self.close_open_end(base);
            self.damaged(DamageKind::Bad, at..next, path.to_owned(), why);
            at = next;
        }
    }

    fn record(&mut self, base: u64, at: u64, view: &RecordView<'_>) {
        self.close_open_end(base);
        self.out.records += 1;
        self.newest = self.newest.max(view.store_timestamp);
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

    /// The file is full.
    fn seen(&mut self, base: u64, file_end: u64) {
        self.close_open_end(base);
        self.out.end = file_end;
    }

    /// Records stand in the file at `base`, so what was no record in a file in front is damage up to that file's end.
    fn close_open_end(&mut self, base: u64) {
        let Some((from, _, why)) = self.open_end.take_if(|(from, ..)| *from < base) else { return };
        let size = self.out.file_size;
        let file = from - from % size;
        let path = format!("{}/{file:020}", commit_log::DIRECTORY);
        self.out.whole.retain(|whole| *whole != file);
        self.damaged(DamageKind::Bad, from..file + size, path, why);
    }

    /// Where behind a bad place a record stands, or the blank that fills the file.
    fn next_record(&self, rest: &[u8], at: u64, file_end: u64) -> Option<u64> {
        (1..rest.len().saturating_sub(8)).find_map(|skipped| {
            let rest = rest.get(skipped..)?;
            let place = at + to_u64(skipped);
            match rest.get(4..7)? {
                [0xDA, 0xA3, 0x20] => {
                    matches!(decode(rest, PhysicalOffset(place), self.settings.verify(place)), Ok(Scanned::Record(_)))
                        .then_some(place)
                }
                [0xCB, 0xD4, 0x31] => matches!(
                    decode(rest, PhysicalOffset(place), self.settings.verify(place)),
                    Ok(Scanned::Blank { size }) if place + u64::from(size) == file_end
                )
                .then_some(place),
                _ => None,
            }
        })
    }

    fn damaged(&mut self, kind: DamageKind, range: std::ops::Range<u64>, file: String, what: String) {
        let (records_before, stored) = (self.out.records, self.newest);
        self.out.damages.push(Damage { kind, from: range.start, to: range.end, file, what, records_before, stored });
    }

    /// Looks at the rest: where the log should begin and end, what is derived, what is lost.
    pub fn finish(mut self) -> Result<Examination> {
        while self.step()? {}
        let storage = Arc::clone(&self.storage);
        self.judge_front(storage.as_ref())?;
        self.judge_tail();
        self.derived(storage.as_ref())?;
        let size = self.out.file_size.max(1);
        // A file gets its length before its bytes.
        let order = |damage: &Damage| (damage.from / size, damage.kind != DamageKind::Length, damage.from);
        self.out.damages.sort_by_key(order);
        self.queues(storage.as_ref())?;
        Ok(self.out)
    }

    fn judge_front(&mut self, storage: &dyn Storage) -> Result<()> {
        let ours = self.settings.ranges.last().is_some_and(|range| range.end.is_none());
        let published = Published::open(storage)?.filter(|published| published.appended().0 > 0 && ours);
        if let Some(from) = published.map(|published| published.minimum().0).filter(|from| *from < self.out.first) {
            let file = format!("{}/{from:020}", commit_log::DIRECTORY);
            self.damaged(DamageKind::Front, from..self.out.first, file, "it is not there".to_owned());
        }
        Ok(())
    }

    fn judge_tail(&mut self) {
        let (end, clean, durable) = (self.out.end, self.out.clean, self.durable);
        if let Some((from, to, why)) = self.open_end.take().filter(|(from, to, _)| to > from) {
            if clean || end < durable {
                let file = from - from % self.out.file_size;
                self.out.whole.retain(|whole| *whole != file);
                let path = format!("{}/{file:020}", commit_log::DIRECTORY);
                self.damaged(DamageKind::Tail, from..to, path, why);
            } else {
                self.out.torn = Some((from, to));
            }
        }
        if end < durable {
            let file = end - end % self.out.file_size.max(1);
            let path = format!("{}/{file:020}", commit_log::DIRECTORY);
            let what = "the log ended further behind, by what is known of it".to_owned();
            self.damaged(DamageKind::End, end..durable, path, what);
        }
    }

    /// Files that are built from the log, or have a second copy, and are not as they must be.
    fn derived(&mut self, storage: &dyn Storage) -> Result<()> {
        let mut bad = Vec::new();
        for name in CONFIG_FILES {
            let damaged = config_file::load(storage, name)?.damaged;
            bad.extend(damaged.into_iter().map(|what| (format!("config/{name}"), what)));
        }
        if storage.len("txstore/snapshot")?.is_some() && Snapshot::load(storage)?.is_none() {
            bad.push(("txstore/snapshot".to_owned(), "it is no snapshot".to_owned()));
        }
        if storage.len("txstore/published")?.is_some() && Published::open(storage)?.is_none() {
            bad.push(("txstore/published".to_owned(), "its header is damaged".to_owned()));
        }
        if storage.len("txstore/settings.json")?.is_some() && Settings::load(storage)?.is_none() {
            bad.push(("txstore/settings.json".to_owned(), "it is damaged".to_owned()));
        }
        if storage.len("checkpoint")?.is_some() && Checkpoint::load(storage)?.is_none() {
            bad.push(("checkpoint".to_owned(), "it has not its length".to_owned()));
        }
        let checkpoint = Checkpoint::load(storage)?.unwrap_or_default();
        if self.out.clean && self.out.records > 0 && checkpoint.physic_ms > self.newest.0 {
            bad.push(("checkpoint".to_owned(), "it is ahead of the log".to_owned()));
        }
        if let (Some(slots), Some(entries)) = (self.settings.index_slots, self.settings.index_entries) {
            let bytes = IndexGeometry { slots, entries }.file_bytes();
            let files = storage.list("index")?.unwrap_or_default();
            for file in files.into_iter().filter(|file| file.len > 0 && file.len != bytes) {
                bad.push((format!("index/{}", file.name), format!("it has {} bytes, not {bytes}", file.len)));
            }
        }
        self.out.derived.append(&mut bad);
        Ok(())
    }

    /// The queues' entries: which name what is lost, and whether their files have one length.
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
        let size = self.settings.consume_queue_file_size.or_else(|| most_frequent(&lengths));
        for (path, length) in lengths.into_iter().filter(|(_, length)| Some(*length) != size) {
            let what = format!("it has {length} bytes, the other queue files {}", size.unwrap_or(0));
            self.out.derived.push((path, what));
        }
        Ok(())
    }

    fn entries(&mut self, storage: &dyn Storage, path: &str, place: (&str, QueueId, u64)) -> Result<()> {
        let (topic, queue_id, base) = place;
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

fn known_durable(storage: &dyn Storage, settings: &Settings) -> Result<u64> {
    let published = Published::open(storage)?.map_or(0, |published| published.durable().0.min(published.appended().0));
    let snapshot = Snapshot::load(storage)?.map_or(0, |snapshot| snapshot.position);
    let closed = settings.ranges.last().and_then(|range| range.end).filter(|_| is_clean(storage).unwrap_or(false));
    Ok(published.max(snapshot).max(closed.unwrap_or(0)))
}

/// Bytes of a file of the log: as remembered, else as the names are apart, else as the most files are long.
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
