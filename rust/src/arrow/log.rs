//! Log: the commit log as a reader finds it, without opening the store.
//!
//! In: a store's directory. Out: which files there are, how far they may be read, views of parts of them. Always: takes
//! no lock, keeps no file open, writes nothing; maps nothing behind the visible end, where one is published. Not here:
//! rows.
//!
//! | the store                  | its end                                              | CRCs are needed from   |
//! |----------------------------|------------------------------------------------------|------------------------|
//! | a txstore that writes      | what that one has published                          | nowhere                |
//! | a broker that writes       | the first place without a whole record: "not yet"    | the last file but one  |
//! | closed well                | the first place where nothing was written            | nowhere                |
//! | left by a crash            | the torn tail, if no durable record stands behind it | the known durable end  |
//!
//! A CRC that is not needed is still checked where a body is read.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memchr::memmem;
use serde_json::Value;

use super::options::{ScanOptions, TopicMemory};
use crate::checkpoint::Checkpoint;
use crate::commit_log::{DIRECTORY, FILE_TAIL, Step, step};
use crate::config_file;
use crate::consume_queue::{ENTRY_SIZE, Entry, QueueFiles};
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
use crate::storage::disk::Disk;
use crate::storage::{OpenMode, ReadMap, Storage};
use crate::store::{
    LOCK, PUBLISHER_BYTE, WRITER_BYTE, consume_queue_file_size, is_clean, log_file_size, look, no_store,
};
use crate::units::{PhysicalOffset, to_u64, to_usize};

/// Bytes that are mapped at once: what a scan holds of the log, however long it is.
const WINDOW: u64 = if cfg!(test) { 1 << 12 } else { 32 << 20 };
/// Places that are looked at for one that a queue confirms, before the file is walked from its beginning.
const CANDIDATES_MAX: usize = 64;

/// Who is known to write the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// A txstore process, at this epoch.
    Ours(u64),
    /// Somebody who publishes nothing.
    Other,
    /// Nobody; the last one closed it well.
    None,
    /// Nobody; the last one did not close it.
    Crashed,
}

/// The commit log as a reader finds it.
#[derive(Debug)]
pub struct Log {
    storage: Arc<dyn Storage>,
    settings: Option<Settings>,
    published: Option<Published>,
    writer: Writer,
    file_size: u64,
    /// Where the first file begins, and where the last one ends.
    range: Range<u64>,
    /// One past the last record, as far as that is known without looking.
    published_end: Option<u64>,
    /// Below it records are whole, unless they are damaged.
    durable: u64,
}

/// A mapped part of one file.
#[derive(Debug)]
pub(super) struct Window {
    map: Box<dyn ReadMap>,
    /// The log's range that is mapped.
    pub(super) range: Range<u64>,
    /// Where its file ends.
    pub(super) file_end: u64,
}

impl Window {
    /// The bytes from a place on.
    pub(super) fn from(&self, at: u64) -> Cow<'_, [u8]> {
        let begin = at.saturating_sub(self.range.start);
        self.map.bytes(begin..self.map.len()).unwrap_or_default()
    }

    /// What stands at `at`, where `rest` begins, the window's last bytes. Too few of them for a record's beginning say
    /// nothing yet, also if they are zeros, unless the file ends there, too.
    #[inline]
    pub(super) fn step<'a>(&self, rest: &'a [u8], at: u64, verify: Verify) -> Step<'a> {
        if to_u64(rest.len()) < FILE_TAIL && self.range.end < self.file_end {
            return Step::Bad(DecodeError::Truncated { needed: u32::try_from(FILE_TAIL).unwrap_or(u32::MAX) });
        }
        step(rest, at, self.file_end, verify)
    }
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
            storage,
            settings,
            published,
            writer: Writer::None,
            file_size,
            range: 0..0,
            published_end: None,
            durable: 0,
        };
        log.refresh()?;
        Ok(log)
    }

    /// Looks again at who writes, which files there are and how far they may be read.
    pub(super) fn refresh(&mut self) -> Result<()> {
        let storage = self.storage.as_ref();
        if self.published.is_none() {
            self.published = Published::open(storage)?;
        }
        self.writer = self.find_writer()?;
        if self.file_size == 0 {
            self.settings = Settings::load(storage)?;
            self.file_size = log_file_size(storage, self.settings.as_ref())?.unwrap_or(0);
        }
        self.range = self.find_files()?;
        self.published_end = match (&self.writer, &self.published) {
            (Writer::Ours(_), Some(published)) => Some(published.appended().0),
            _ => None,
        };
        self.durable = self.find_durable()?;
        Ok(())
    }

    fn find_writer(&self) -> Result<Writer> {
        let storage = self.storage.as_ref();
        let epoch = self.published.as_ref().map(Published::epoch).filter(|epoch| epoch.is_multiple_of(2));
        Ok(match epoch {
            Some(epoch) if storage.is_locked(LOCK, PUBLISHER_BYTE)? => Writer::Ours(epoch),
            _ if storage.is_locked(LOCK, WRITER_BYTE)? => Writer::Other,
            _ if is_clean(storage)? => Writer::None,
            _ => Writer::Crashed,
        })
    }

    /// The files' range; they follow each other, and all have one size.
    fn find_files(&self) -> Result<Range<u64>> {
        let mut range: Option<Range<u64>> = None;
        for (base, file) in SegmentQueue::files(self.storage.as_ref(), DIRECTORY)? {
            // A crash left it between its making and its length; nothing was ever in it.
            if file.len == 0 {
                continue;
            }
            let path = || self.storage.root().join(DIRECTORY).join(&file.name);
            if file.len != self.file_size {
                let what = format!("it has {} bytes, the other files {}", file.len, self.file_size);
                return Err(Error::ForeignStore { path: path(), what });
            }
            match &mut range {
                None => range = Some(base..base + self.file_size),
                Some(range) if range.end == base => range.end += self.file_size,
                Some(range) => {
                    let (from, to) = (PhysicalOffset(range.end), PhysicalOffset(base));
                    return Err(Error::MissingFile { path: self.file_path(range.end), from, to });
                }
            }
        }
        Ok(range.unwrap_or(0..0))
    }

    fn find_durable(&self) -> Result<u64> {
        let last_but_one = self.range.end.saturating_sub(2 * self.file_size).max(self.range.start);
        Ok(match self.writer {
            Writer::Ours(_) | Writer::None => u64::MAX,
            Writer::Other => last_but_one,
            Writer::Crashed => {
                let published = self.published.as_ref().map_or(0, |published| published.durable().0);
                let snapshot = || Snapshot::load(self.storage.as_ref()).map(|found| found.map_or(0, |it| it.position));
                if published > 0 { published } else { snapshot()? }
            }
        })
    }

    /// The first place that is left.
    pub const fn first(&self) -> u64 {
        self.range.start
    }

    /// How far it may be read, where a writer says so.
    pub const fn published_end(&self) -> Option<u64> {
        self.published_end
    }

    /// The store's files.
    pub(super) fn storage(&self) -> &dyn Storage {
        self.storage.as_ref()
    }

    /// Whether txstore alone wrote what is left.
    pub(super) fn is_all_ours(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.is_all_ours(self.first(), self.range.end))
    }

    /// Below it a broker finished every half, even where the log does not tell how; 0 in a log that txstore alone wrote.
    pub fn half_progress(&self) -> Result<u64> {
        let (offsets, _) = ConsumerOffsets::load(self.storage())?;
        let stored = offsets.get(HALF_TOPIC, TRANSACTION_GROUP, HALF_QUEUE);
        Ok(stored.filter(|_| !self.is_all_ours()).unwrap_or(0))
    }

    /// Shows every record up to the visible end.
    pub(super) fn each(&self, mut show: impl FnMut(&RecordView<'_>)) -> Result<u64> {
        let end = self.visible_end(None)?;
        let walked = self.walk(self.first(), end, |view| {
            show(view);
            true
        })?;
        match walked {
            Walked::Bad(bad, why) => Err(self.corrupt(bad, &why)),
            Walked::End(end) => Ok(end),
        }
    }

    /// The record at a place where one begins. `near` is the view that the last one was found in: places in order need
    /// few.
    pub(super) fn read<T>(
        &self,
        place: PhysicalOffset,
        near: &mut Option<Window>,
        take: impl Fn(&RecordView<'_>) -> T,
    ) -> Result<T> {
        for needed in [0, RECORD_MAX.into()] {
            let known = near.take().filter(|window| needed == 0 && window.range.contains(&place.0));
            let window = match known {
                Some(window) => window,
                None => self.window(place.0, u64::MAX, needed)?.ok_or_else(|| self.corrupt(place.0, "no record"))?,
            };
            let bytes = window.from(place.0);
            match window.step(&bytes, place.0, self.verify(place.0, false)) {
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
        Err(self.corrupt(place.0, "no record is here"))
    }

    /// Whether what was read since the last `refresh` is to be believed.
    pub(super) fn is_still(&self) -> bool {
        match (self.writer, &self.published) {
            (Writer::Ours(epoch), Some(published)) => published.is_still(epoch),
            _ => true,
        }
    }

    /// The visible end: where the next record will stand.
    ///
    /// Where no writer publishes it, it is looked for from `known` on, a place where a record begins; best the last
    /// one that was found.
    pub fn visible_end(&self, known: Option<u64>) -> Result<u64> {
        if let Some(end) = self.published_end {
            return Ok(end);
        }
        let from = known.filter(|known| self.range.contains(known)).map_or_else(|| self.late_place(), Ok)?;
        let mut at = from;
        loop {
            let walked = self.walk(at, u64::MAX, |view| {
                at = view.physical_offset.0 + u64::from(view.size);
                true
            })?;
            match walked {
                Walked::End(end) => return Ok(end),
                Walked::Bad(end, _) if self.is_tail(end)? => return Ok(end),
                // Damage: the log goes on behind it, and the scan will say what it is.
                Walked::Bad(bad, why) => match self.resume_behind(bad)? {
                    Some(next) => at = next,
                    None => return Err(self.corrupt(bad, &why)),
                },
            }
        }
    }

    /// A place near the end where a record begins: in the last file that holds records, where one is found by halving.
    fn late_place(&self) -> Result<u64> {
        let mut file = self.range.end.saturating_sub(self.file_size).max(self.range.start);
        while file > self.range.start && !self.begins_with_a_record(file)? {
            file -= self.file_size;
        }
        // Halving finds some record far behind; walking on from it finds the end for certain.
        let (mut low, mut high) = (file, (file + self.file_size).min(self.range.end));
        while high - low > WINDOW {
            let middle = low + (high - low) / 2;
            let near = middle..(middle + WINDOW / 4).min(high);
            match self.confirmed(near)? {
                Some(found) => low = found,
                None => high = middle,
            }
        }
        Ok(low)
    }

    /// Whether a bad record at `at` is the torn tail of a crash, or one that a broker is just writing; else it is
    /// damage.
    pub(super) fn is_tail(&self, at: u64) -> Result<bool> {
        if at < self.durable || self.writer == Writer::None {
            return Ok(false);
        }
        let mut next = self.file_of(at).map_or(self.range.end, |file| file.end);
        while next < self.range.end {
            if self.begins_with_a_record(next)? {
                return Ok(false);
            }
            next += self.file_size;
        }
        // A whole record behind it that is older than what the checkpoint says is safe was safe, too.
        let safe_ms = Checkpoint::load(self.storage.as_ref())?.map_or(0, |checkpoint| checkpoint.physic_ms);
        let file_end = self.file_of(at).map_or(at, |file| file.end);
        let mut is_damage = false;
        if safe_ms > 0 && self.writer == Writer::Crashed {
            self.candidates(at + 1..file_end, |view| {
                is_damage = view.store_timestamp.0 < safe_ms;
                !is_damage
            })?;
        }
        Ok(!is_damage)
    }

    fn begins_with_a_record(&self, file: u64) -> Result<bool> {
        let Some(window) = self.window(file, u64::MAX, 0)? else { return Ok(false) };
        let bytes = window.from(file);
        Ok(matches!(window.step(&bytes, file, self.whole(file)), Step::Record(_)))
    }

    /// The first place at or behind `at`, in front of `end`, where a record begins; `end` if there is none.
    ///
    /// A body may hold bytes that look like a record, even one of that place. So a place counts only if the record's
    /// own queue points to it, or if walking from the file's first record leads there.
    pub fn boundary(&self, at: u64, end: u64) -> Result<u64> {
        let at = at.max(self.range.start);
        let Some(file) = self.file_of(at).filter(|_| at < end) else { return Ok(end) };
        if at == file.start {
            return Ok(at);
        }
        let until = file.end.min(end);
        if let Some(found) = self.confirmed(at..until)? {
            return Ok(found);
        }
        let mut found = until;
        let walked = self.walk(file.start, until, |view| {
            let is_before = view.physical_offset.0 < at;
            if !is_before {
                found = view.physical_offset.0;
            }
            is_before
        })?;
        match walked {
            Walked::Bad(bad, _) => Ok(self.resume_behind(bad.max(at))?.unwrap_or(until).min(until)),
            Walked::End(_) => Ok(found),
        }
    }

    /// The first place of a range where a record begins to which its queue points.
    fn confirmed(&self, range: Range<u64>) -> Result<Option<u64>> {
        let size = consume_queue_file_size(self.storage.as_ref(), self.settings.as_ref())?;
        let Some(size) = size.filter(|size| *size > 0) else { return Ok(None) };
        let queues = QueueFiles::new(Arc::clone(&self.storage), size, true);
        let (mut found, mut looked) = (None, 0);
        self.candidates(range, |view| {
            looked += 1;
            if is_in_queue(&queues, view) {
                found = Some(view.physical_offset.0);
            }
            found.is_none() && looked < CANDIDATES_MAX
        })?;
        Ok(found)
    }

    /// Where the log goes on behind a bad record: at the next whole one, or at the next file.
    pub(super) fn resume_behind(&self, bad: u64) -> Result<Option<u64>> {
        let Some(file) = self.file_of(bad) else { return Ok(None) };
        let mut found = None;
        self.candidates(bad + 1..file.end, |view| {
            found = Some(view.physical_offset.0);
            false
        })?;
        Ok(found.or_else(|| Some(file.end).filter(|next| self.range.contains(next))))
    }

    /// Shows whole records, CRC and all, that begin in a range of one file and say that they stand where they do, until
    /// `visit` has enough. Between two of them may be anything.
    fn candidates(&self, range: Range<u64>, mut visit: impl FnMut(&RecordView<'_>) -> bool) -> Result<()> {
        let (mut at, mut needed) = (range.start, 0);
        while at < range.end {
            let Some(window) = self.window(at, u64::MAX, needed)? else { break };
            let bytes = window.from(at);
            let mut rest: &[u8] = &bytes;
            needed = 0;
            while let Some(distance) = find_magic(rest).filter(|distance| at + to_u64(*distance) < range.end) {
                at += to_u64(distance);
                rest = rest.get(distance..).unwrap_or_default();
                let skipped = match window.step(rest, at, self.whole(at)) {
                    Step::Record(view) if !visit(&view) => return Ok(()),
                    Step::Record(view) => u64::from(view.size),
                    Step::Bad(DecodeError::Truncated { needed: more })
                        if window.range.end < window.file_end && at + u64::from(more) <= window.file_end =>
                    {
                        needed = more.into();
                        break;
                    }
                    _ => 1,
                };
                at += skipped;
                rest = rest.get(to_usize(skipped)..).unwrap_or_default();
            }
            if needed == 0 {
                // The magic may begin in the last bytes of this window and end in the next.
                let next = (window.range.end + 1).saturating_sub(MAGIC_END).max(at);
                at = if window.range.end >= window.file_end || next == at { range.end } else { next };
            }
        }
        Ok(())
    }

    /// Shows each record from a place on where one begins, until `visit` has enough.
    fn walk(&self, from: u64, limit: u64, mut visit: impl FnMut(&RecordView<'_>) -> bool) -> Result<Walked> {
        let (mut at, mut needed) = (from, 0);
        while at < limit {
            let Some(window) = self.window(at, limit, needed)? else { break };
            let bytes = window.from(at);
            let mut rest: &[u8] = &bytes;
            needed = 0;
            while !rest.is_empty() {
                match window.step(rest, at, self.verify(at, false)) {
                    Step::Record(view) => {
                        if !visit(&view) {
                            return Ok(Walked::End(at));
                        }
                        at += u64::from(view.size);
                        rest = rest.get(to_usize(view.size.into())..).unwrap_or_default();
                    }
                    Step::FileEnd => {
                        at = window.file_end;
                        rest = &[];
                    }
                    Step::Unwritten => return Ok(Walked::End(at)),
                    Step::Bad(DecodeError::Truncated { needed: more })
                        if window.range.end < window.file_end.min(limit) =>
                    {
                        needed = more.into();
                        rest = &[];
                    }
                    Step::Bad(why) => return Ok(Walked::Bad(at, why.to_string())),
                    Step::BadBlank(why) => return Ok(Walked::Bad(at, why)),
                }
            }
        }
        Ok(Walked::End(at))
    }

    /// How a record is looked at: its CRCs where its body is read, or where a crash may have torn it.
    #[inline]
    pub(super) fn verify(&self, at: u64, body: bool) -> Verify {
        if !body && at < self.durable { Verify::NOTHING } else { self.whole(at) }
    }

    /// Everything that can be checked of a record.
    fn whole(&self, at: u64) -> Verify {
        self.settings.as_ref().map_or(Verify::BODY, |settings| settings.verify(at))
    }

    /// A view of the bytes from `at` on: of at least `needed`, up to the file's end or to `limit`. `None` behind the
    /// last file.
    pub(super) fn window(&self, at: u64, limit: u64, needed: u64) -> Result<Option<Window>> {
        let Some(file) = self.file_of(at) else { return Ok(None) };
        let limit = limit.min(self.published_end.unwrap_or(u64::MAX)).min(file.end);
        if at >= limit {
            return Ok(None);
        }
        let end = at.saturating_add(needed.max(WINDOW)).min(limit);
        let path = format!("{DIRECTORY}/{:020}", file.start);
        if self.storage.len(&path)?.is_none() {
            return Err(Self::gone(at, file.end));
        }
        let map = self.storage.open(&path, OpenMode::Read)?.map_range(at - file.start..end - file.start)?;
        Ok(Some(Window { map, range: at..end, file_end: file.end }))
    }

    /// The range of the file that holds a place.
    pub(super) fn file_of(&self, at: u64) -> Option<Range<u64>> {
        if !self.range.contains(&at) {
            return None;
        }
        let start = at - (at - self.range.start) % self.file_size;
        Some(start..start + self.file_size)
    }

    /// The error of a place that retention removed.
    pub(super) fn gone(at: u64, minimum: u64) -> Error {
        Error::OffsetTooOld { place: "the commit log".into(), requested: at, minimum }
    }

    fn file_path(&self, base: u64) -> std::path::PathBuf {
        self.storage.root().join(format!("{DIRECTORY}/{base:020}"))
    }

    /// An error about a place of the log.
    pub(super) fn corrupt(&self, at: u64, what: &str) -> Error {
        let base = self.file_of(at).map_or(at, |file| file.start);
        Error::StoreCorrupt { file: self.file_path(base), offset: at - base, what: what.to_owned() }
    }

    /// Where a range from `start` on, where a record begins, ends after so many wanted rows or so many bytes: at a
    /// record's end.
    pub fn advance(&self, options: &ScanOptions, start: u64, rows: Option<u64>, bytes: Option<u64>) -> Result<u64> {
        let visible = self.visible_end(Some(start))?;
        let end = options.end.map_or(visible, |end| end.min(visible)).max(start);
        let start = start.max(self.first());
        let by_bytes = bytes.map_or(end, |bytes| start.saturating_add(bytes).min(end));
        let Some(rows) = rows else {
            // At least one record, or the range would never end.
            return if by_bytes < end { self.boundary(by_bytes.max(start + 1), end) } else { Ok(end) };
        };
        let (mut left, mut at, mut topics) = (rows, start, TopicMemory::default());
        let walked = self.walk(start, end, |view| {
            let wanted = options.wants(view, &mut topics);
            let is_room = at == start || (at < by_bytes && (left > 0 || !wanted));
            if is_room {
                left -= u64::from(wanted && left > 0);
                at = view.physical_offset.0 + u64::from(view.size);
            }
            is_room
        })?;
        match walked {
            Walked::Bad(bad, _) if at == bad || at == start => Ok(self.resume_behind(bad)?.unwrap_or(end).min(end)),
            // Nothing is behind the last one but the blank rest of its file.
            Walked::End(reached) if reached > at && left > 0 && at < by_bytes => Ok(reached.min(end)),
            _ => Ok(at.min(end)),
        }
    }

    /// The topics that have queues, or are to have some, sorted. A new queue's file is written after its first messages.
    pub fn topics(&self) -> Result<Vec<String>> {
        let entries = self.storage.list(crate::consume_queue::DIRECTORY)?.unwrap_or_default();
        let queues = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name);
        let file = config_file::load(self.storage.as_ref(), "topics.json")?.value.unwrap_or_default();
        let table = file.get("topicConfigTable").and_then(Value::as_object);
        let configured = table.into_iter().flat_map(|table| table.keys().cloned());
        Ok(queues.chain(configured).collect::<BTreeSet<_>>().into_iter().collect())
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

/// How a walk ended.
enum Walked {
    /// Where nothing is written, or the visitor had enough.
    End(u64),
    /// At a place that holds no record.
    Bad(u64, String),
}

/// What both versions' magics begin with; the last byte is 0xA7 or 0xAB.
const MAGIC_HEAD: [u8; 3] = [0xDA, 0xA3, 0x20];
/// The magic's last byte stands so far behind a record's beginning.
const MAGIC_END: u64 = 8;

/// No queue offset is higher: its entry's position would be no file's.
const QUEUE_OFFSET_MAX: u64 = 1 << 58;

/// The distance to the first place where a record's magic stands behind four bytes.
fn find_magic(bytes: &[u8]) -> Option<usize> {
    const SIZE: usize = size_of::<u32>();
    let behind = bytes.get(SIZE..)?;
    let is_magic = |at: &usize| matches!(behind.get(at + MAGIC_HEAD.len()), Some(0xA7 | 0xAB));
    memmem::find_iter(behind, &MAGIC_HEAD).find(is_magic)
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
