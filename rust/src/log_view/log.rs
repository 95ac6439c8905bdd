//! The commit log as a reader finds it who does not open the store.
//!
//! In:     a store's directory.
//! Out:    how far the log may be read, its records in order, offsets at which records begin.
//! Always: takes no lock, keeps no file open, writes nothing; maps nothing above the visible end, where one is published.
//!
//! | the store                  | its end                                              | CRCs are needed                |
//! |----------------------------|------------------------------------------------------|--------------------------------|
//! | a txstore that writes      | what that one has published                          | nowhere                        |
//! | a broker that writes       | the first offset without a whole record: "not yet"   | from the last file but one on  |
//! | nobody writes              | where `tail` says that it ends                       | where the log may end          |
//!
//! A CRC that is not needed is still checked where a body is read.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::directory::{consume_queue_file_size, log_file_size, look, no_store};
use super::files::{LogFiles, WINDOW, Window};
use super::known::{KnownEnd, Verdict};
use super::tail::Tail;
use super::writer::Writer;
use crate::commit_log::{DIRECTORY, Step};
use crate::consume_queue::{ENTRY_SIZE, Entry, QUEUE_OFFSET_MAX, QueueFiles};
use crate::error::{Error, Result};
use crate::half::HALF_QUEUE;
use crate::names::{self, HALF_TOPIC, TRANSACTION_GROUP};
use crate::offsets::ConsumerOffsets;
use crate::published::Published;
use crate::record::RecordView;
use crate::record::decode::{DecodeError, Verify};
use crate::record::layout::RECORD_MAX;
use crate::segment::SegmentQueue;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::storage::Storage;
use crate::storage::disk::Disk;
use crate::units::{PhysicalOffset, to_usize};

/// Records that are looked at for one that a queue confirms, before the file is walked from its beginning.
const CANDIDATES_MAX: usize = 64;

/// The commit log as a reader finds it.
#[derive(Debug)]
pub struct Log {
    files: LogFiles,
    settings: Option<Settings>,
    published: Option<Published>,
    writer: Writer,
    /// One past the last record, as far as that is known without looking.
    published_end: Option<u64>,
    known: KnownEnd,
}

/// A part of the log, read in order.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Where it ended.
    pub(crate) at: u64,
    /// The store time of the last record that was read.
    pub(crate) last_ms: Option<i64>,
    /// Why it ended.
    pub(crate) stop: Stop,
}

/// Why a walk ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The limit, or no more files.
    Limit,
    /// The visitor had enough; the record it refused is the next one.
    Visitor,
    /// No record begins there.
    NoRecord(String),
}

impl Log {
    /// The log of the store in a directory.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(Arc::new(Disk::open(path)?))
    }

    /// The log of a store on any storage.
    pub fn open_with(storage: Arc<dyn Storage>) -> Result<Self> {
        if !look(storage.as_ref())? {
            return Err(no_store(storage.as_ref()));
        }
        let settings = Settings::load(storage.as_ref())?;
        let file_size = log_file_size(storage.as_ref(), settings.as_ref())?.unwrap_or(0);
        let published = Published::open(storage.as_ref())?;
        let mut log = Self {
            files: LogFiles::new(storage, file_size, Vec::new()),
            settings,
            published,
            writer: Writer::None,
            published_end: None,
            known: KnownEnd::default(),
        };
        log.refresh()?;
        Ok(log)
    }

    /// Looks again at who writes, which files there are and how far they may be read.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let storage = Arc::clone(self.files.storage());
        let storage = storage.as_ref();
        if self.published.is_none() {
            self.published = Published::open(storage)?;
        }
        self.writer = Writer::find(storage, self.published.as_ref())?;
        // A store that was closed meanwhile says now how far it goes.
        self.settings = Settings::load(storage)?;
        let mut file_size = self.files.file_size();
        if file_size == 0 {
            file_size = log_file_size(storage, self.settings.as_ref())?.unwrap_or(0);
        }
        self.files = LogFiles::new(Arc::clone(self.files.storage()), file_size, list(storage, file_size)?);
        self.published_end = match (&self.writer, &self.published) {
            (Writer::Ours(_), Some(published)) => Some(published.appended().0),
            _ => None,
        };
        self.known = self.find_known()?;
        Ok(())
    }

    fn find_known(&self) -> Result<KnownEnd> {
        let storage = self.storage();
        let (clean, in_use) = (self.writer == Writer::None, self.writer == Writer::Other);
        let snapshot = if self.published_end.is_some() { 0 } else { Snapshot::position_of(storage)? };
        let (settings, published) = (self.settings.as_ref(), self.published.as_ref());
        let mut known = KnownEnd::find(storage, settings, published, snapshot, clean, in_use)?;
        if let Some(end) = self.published_end {
            // All of it may be read, so all of it is whole.
            known.durable = end;
        }
        if in_use {
            let range = self.files.range();
            let last_but_one = range.end.saturating_sub(2 * self.files.file_size()).max(range.start);
            known.durable = known.durable.max(last_but_one);
        }
        Ok(known)
    }

    /// The first offset that is left.
    pub fn first(&self) -> u64 {
        self.files.range().start
    }

    /// How far it may be read, where a writer says so.
    pub const fn published_end(&self) -> Option<u64> {
        self.published_end
    }

    /// What the store remembers about itself.
    pub(crate) const fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// The store's files.
    pub(crate) fn storage(&self) -> &dyn Storage {
        self.files.storage().as_ref()
    }

    /// Whether txstore alone wrote what is left.
    pub(crate) fn is_all_ours(&self) -> bool {
        let range = self.files.range();
        self.settings.as_ref().is_some_and(|settings| settings.is_all_ours(range.start, range.end))
    }

    /// Below it a broker finished every half, even where the log does not tell how; 0 in a log that txstore alone wrote.
    pub fn half_progress(&self) -> Result<u64> {
        let (offsets, _) = ConsumerOffsets::load(self.storage())?;
        let stored = offsets.get(HALF_TOPIC, TRANSACTION_GROUP, HALF_QUEUE);
        Ok(stored.filter(|_| !self.is_all_ours()).unwrap_or(0))
    }

    /// Shows every record up to the visible end.
    pub(crate) fn each(&self, mut show: impl FnMut(&RecordView<'_>)) -> Result<u64> {
        let end = self.visible_end(None)?;
        let walk = self.walk(self.first(), end, |view| {
            show(view);
            true
        })?;
        match walk.stop {
            Stop::NoRecord(why) => Err(self.corrupt(walk.at, &why)),
            Stop::Limit | Stop::Visitor => Ok(walk.at),
        }
    }

    /// The record that begins at an offset. `near` is the view that the last one was found in: offsets in order need
    /// few.
    pub(crate) fn read<T>(
        &self,
        offset: PhysicalOffset,
        near: &mut Option<Window>,
        take: impl Fn(&RecordView<'_>) -> T,
    ) -> Result<T> {
        for needed in [0, RECORD_MAX.into()] {
            let known = near.take().filter(|window| needed == 0 && window.range.contains(&offset.0));
            let window = match known {
                Some(window) => window,
                None => self.window(offset.0, u64::MAX, needed)?.ok_or_else(|| self.corrupt(offset.0, "no record"))?,
            };
            let bytes = window.from(offset.0);
            match window.step(&bytes, offset.0, self.verify(offset.0, None, false)) {
                Step::Record(view) => {
                    let taken = take(&view);
                    drop(bytes);
                    *near = Some(window);
                    return Ok(taken);
                }
                Step::Bad(DecodeError::Truncated { .. }) if needed == 0 => {}
                _ => break,
            }
        }
        Err(self.corrupt(offset.0, "no record is here"))
    }

    /// Whether what was read since the last `refresh` is to be believed.
    pub(crate) fn is_still(&self) -> bool {
        match (self.writer, &self.published) {
            (Writer::Ours(epoch), Some(published)) => published.is_still(epoch),
            _ => true,
        }
    }

    /// The visible end: where the next record will begin.
    ///
    /// Where no writer publishes it, it is looked for from `from` on, an offset at which a record begins; best the last
    /// one that was found. Damage before the end does not change it: reading meets that later, and names it.
    pub fn visible_end(&self, from: Option<u64>) -> Result<u64> {
        if let Some(end) = self.published_end {
            return Ok(end);
        }
        let range = self.files.range();
        let mut at = from.filter(|from| range.contains(from)).map_or_else(|| self.late_record(), Ok)?;
        let mut last_ms = None;
        while range.contains(&at) {
            let walk = self.walk_from(at, last_ms, u64::MAX, |_| true)?;
            let Stop::NoRecord(_) = walk.stop else { return Ok(walk.at.max(self.known.durable)) };
            let verdict = self.verdict(walk.at, walk.last_ms)?;
            if !matches!(verdict.tail, Tail::Damaged(_)) {
                return Ok(walk.at);
            }
            at = self.resume_after(walk.at, &verdict)?;
            if at >= verdict.written {
                return Ok(at);
            }
            last_ms = walk.last_ms;
        }
        Ok(at.max(self.known.durable))
    }

    /// Whether the log ends at `at`, where no record begins. `last_ms` is the store time of the record before it.
    pub(crate) fn verdict(&self, at: u64, last_ms: Option<i64>) -> Result<Verdict> {
        let last_ms = match last_ms {
            None => self.stored_before(at)?,
            known => known,
        };
        self.known.verdict(&self.files, at, last_ms)
    }

    /// The store time of the last record before an offset at which none begins.
    fn stored_before(&self, at: u64) -> Result<Option<i64>> {
        let mut before = at;
        while let Some(file) = before.checked_sub(1).and_then(|byte| self.files.file_of(byte)) {
            let (mut from, mut last_ms) = (file.start, None);
            loop {
                let walk = self.walk_from(from, last_ms, before, |_| true)?;
                last_ms = walk.last_ms;
                if !matches!(walk.stop, Stop::NoRecord(_)) {
                    break;
                }
                let next = walk.at.saturating_add(1)..before.min(file.end);
                match self.files.record_in(next, |at| self.whole(at))? {
                    Some(next) => from = next,
                    None => break,
                }
            }
            if last_ms.is_some() {
                return Ok(last_ms);
            }
            before = file.start;
        }
        Ok(None)
    }

    /// An offset near the end at which a record begins, found by halving. What a broker has cut may still be there, as
    /// whole records, so only one counts that is known to be before the end.
    fn late_record(&self) -> Result<u64> {
        let (range, file_size) = (self.files.range(), self.files.file_size());
        let mut file = range.end.saturating_sub(file_size).max(range.start);
        while file > range.start && !self.begins_before_the_end(file)? {
            file -= file_size;
        }
        // Halving finds some record long before the end; walking on from it finds the end for certain.
        let (mut low, mut high) = (file, (file + file_size).min(range.end));
        while high - low > WINDOW {
            let middle = low + (high - low) / 2;
            let near = middle..(middle + WINDOW / 4).min(high);
            match self.confirmed(near, |view| self.is_before_the_end(view))? {
                Some(found) => low = found,
                None => high = middle,
            }
        }
        Ok(low)
    }

    /// Whether a file begins with a record that is before the log's end. Without a checkpoint nothing was cut before a
    /// later file that holds records.
    fn begins_before_the_end(&self, file: u64) -> Result<bool> {
        let Some(window) = self.window(file, u64::MAX, 0)? else { return Ok(false) };
        let bytes = window.from(file);
        Ok(match window.step(&bytes, file, self.whole(file)) {
            Step::Record(view) => self.known.safe_ms <= 0 || self.is_before_the_end(&view),
            _ => false,
        })
    }

    /// A record is before the log's end if it is durable by what is known.
    fn is_before_the_end(&self, view: &RecordView<'_>) -> bool {
        view.physical_offset.0 < self.known.durable || view.store_timestamp.0 < self.known.safe_ms
    }

    /// The first offset from `at` on, below `end`, at which a record begins; `end` if there is none.
    ///
    /// A body may hold bytes that look like a record, even one of that offset. So an offset counts only if the record's
    /// own queue points to it, or if walking from the file's first record leads there.
    pub fn boundary(&self, at: u64, end: u64) -> Result<u64> {
        let at = at.max(self.first());
        let Some(file) = self.files.file_of(at).filter(|_| at < end) else { return Ok(end) };
        if at == file.start {
            return Ok(at);
        }
        let until = file.end.min(end);
        if let Some(found) = self.confirmed(at..until, |_| true)? {
            return Ok(found);
        }
        let mut found = until;
        let walk = self.walk(file.start, until, |view| {
            let is_before = view.physical_offset.0 < at;
            if !is_before {
                found = view.physical_offset.0;
            }
            is_before
        })?;
        match walk.stop {
            Stop::NoRecord(_) => {
                let from = walk.at.max(at).saturating_add(1);
                Ok(self.files.record_in(from..until, |at| self.whole(at))?.unwrap_or(until))
            }
            Stop::Limit | Stop::Visitor => Ok(found),
        }
    }

    /// The first offset of a range at which a wanted record begins to which its queue points.
    fn confirmed(&self, range: Range<u64>, wants: impl Fn(&RecordView<'_>) -> bool) -> Result<Option<u64>> {
        let size = consume_queue_file_size(self.storage(), self.settings.as_ref())?;
        let Some(size) = size.filter(|size| *size > 0) else { return Ok(None) };
        let queues = QueueFiles::new(Arc::clone(self.files.storage()), size, true);
        let (mut found, mut looked) = (None, 0);
        let show = |view: &RecordView<'_>| {
            looked += 1;
            if wants(view) && is_in_queue(&queues, view) {
                found = Some(view.physical_offset.0);
            }
            found.is_none() && looked < CANDIDATES_MAX
        };
        self.files.records_in(range, |at| self.whole(at), show)?;
        Ok(found)
    }

    /// Where the log goes on after damage at an offset: at the next whole record, else where it is known to have ended.
    pub(crate) fn resume_after(&self, damaged: u64, verdict: &Verdict) -> Result<u64> {
        let Some(file) = self.files.file_of(damaged) else { return Ok(verdict.written.max(damaged)) };
        let found = self.files.record_in(damaged + 1..file.end, |at| self.whole(at))?;
        let goes_on = verdict.later_record.is_some() || verdict.written > file.end;
        let later = || if goes_on { file.end } else { verdict.written.max(damaged + 1) };
        Ok(found.unwrap_or_else(later))
    }

    /// Where the log goes on after damage at an offset that is known to be before its end.
    pub(crate) fn resume_before(&self, damaged: u64, end: u64) -> Result<u64> {
        let Some(file) = self.files.file_of(damaged) else { return Ok(end) };
        let until = file.end.min(end);
        Ok(self.files.record_in(damaged + 1..until, |at| self.whole(at))?.unwrap_or(until))
    }

    /// Shows each record from an offset on at which one begins, until `visit` has enough.
    pub(crate) fn walk(&self, from: u64, limit: u64, visit: impl FnMut(&RecordView<'_>) -> bool) -> Result<Walk> {
        self.walk_from(from, None, limit, visit)
    }

    fn walk_from(
        &self,
        from: u64,
        mut last_ms: Option<i64>,
        limit: u64,
        mut visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Walk> {
        let (mut at, mut needed) = (from, 0);
        while at < limit {
            let Some(window) = self.window(at, limit, needed)? else { break };
            let bytes = window.from(at);
            let mut rest: &[u8] = &bytes;
            needed = 0;
            while !rest.is_empty() {
                let why = match window.step(rest, at, self.verify(at, last_ms, false)) {
                    Step::Record(view) => {
                        if !visit(&view) {
                            return Ok(Walk { at, last_ms, stop: Stop::Visitor });
                        }
                        at += u64::from(view.size);
                        last_ms = Some(view.store_timestamp.0);
                        rest = rest.get(to_usize(view.size.into())..).unwrap_or_default();
                        continue;
                    }
                    Step::FileEnd => {
                        at = window.file_end;
                        rest = &[];
                        continue;
                    }
                    Step::Bad(DecodeError::Truncated { needed: more })
                        if window.range.end < window.file_end.min(limit) =>
                    {
                        needed = more.into();
                        rest = &[];
                        continue;
                    }
                    Step::Unwritten => UNWRITTEN.to_owned(),
                    Step::Bad(why) => why.to_string(),
                    Step::BadBlank(why) => why,
                };
                return Ok(Walk { at, last_ms, stop: Stop::NoRecord(why) });
            }
        }
        Ok(Walk { at, last_ms, stop: Stop::Limit })
    }

    /// How a record is looked at: its CRCs where its body is read, or where the log may end. `last_ms` is the store time
    /// of the record before it.
    #[inline]
    pub(crate) fn verify(&self, at: u64, last_ms: Option<i64>, body: bool) -> Verify {
        let is_known = at < self.known.durable || last_ms.is_some_and(|last_ms| last_ms < self.known.safe_ms);
        if !body && is_known { Verify::NOTHING } else { self.whole(at) }
    }

    /// Everything that can be checked of a record.
    fn whole(&self, at: u64) -> Verify {
        self.settings.as_ref().map_or(Verify::BODY, |settings| settings.verify(at))
    }

    /// A view of the bytes from `at` on: of at least `needed`, up to the file's end or to `limit`. `None` after the last
    /// file.
    pub(crate) fn window(&self, at: u64, limit: u64, needed: u64) -> Result<Option<Window>> {
        self.files.window(at, limit.min(self.published_end.unwrap_or(u64::MAX)), needed)
    }

    /// The error of an offset that retention removed.
    pub(crate) fn gone(at: u64, minimum: u64) -> Error {
        LogFiles::gone(at, minimum)
    }

    /// An error about an offset of the log.
    pub(crate) fn corrupt(&self, at: u64, what: &str) -> Error {
        self.files.corrupt(at, what)
    }

    /// Cuts a range into about `parts` even ones, each from a record's beginning to another's.
    pub fn cut(&self, range: Range<u64>, parts: u64) -> Result<Vec<Range<u64>>> {
        let parts = parts.max(1);
        let bytes = range.end.saturating_sub(range.start);
        let mut cuts = Vec::new();
        let mut begin = range.start;
        for part in 1..=parts {
            let ideal = range.start + bytes / parts * part + bytes % parts * part / parts;
            let end = if part == parts { range.end } else { self.boundary(ideal.max(begin), range.end)? };
            if end > begin {
                cuts.push(begin..end);
                begin = end;
            }
        }
        Ok(cuts)
    }
}

/// What is wrong with an offset where nothing is written, and a record should begin.
pub(crate) const UNWRITTEN: &str = "zeros, where a record should begin";

/// The files of the log; they follow each other, and all have one size.
fn list(storage: &dyn Storage, file_size: u64) -> Result<Vec<(u64, u64)>> {
    let mut files: Vec<(u64, u64)> = Vec::new();
    for (base, file) in SegmentQueue::files(storage, DIRECTORY)? {
        // A crash left it between its making and its length; nothing was ever in it.
        if file.len == 0 {
            continue;
        }
        let path = |name: &str| storage.root().join(DIRECTORY).join(name);
        if file.len != file_size {
            let what = format!("it has {} bytes, the other files {file_size}", file.len);
            return Err(Error::ForeignStore { path: path(&file.name), what });
        }
        if let Some(end) = files.last().map(|(base, _)| base + file_size).filter(|end| *end != base) {
            let (from, to) = (PhysicalOffset(end), PhysicalOffset(base));
            return Err(Error::MissingFile { path: path(&format!("{end:020}")), from, to });
        }
        files.push((base, file.len));
    }
    Ok(files)
}

/// Whether a record's own queue has an entry that points to it.
fn is_in_queue(queues: &QueueFiles, view: &RecordView<'_>) -> bool {
    if !view.transaction_type().is_queued() || !names::valid_path_component(view.topic) || view.queue_id.0 < 0 {
        return false;
    }
    if view.queue_offset.0 >= QUEUE_OFFSET_MAX {
        return false;
    }
    // A queue whose file is missing or too short confirms nothing.
    let entry = queues.read(&view.topic.into(), view.queue_id, view.queue_offset.0, 1).unwrap_or_default();
    let entry = entry.get(..ENTRY_SIZE).and_then(Entry::from_bytes);
    entry.is_some_and(|entry| entry.physical_offset == view.physical_offset && entry.size == view.size)
}
