//! Reads the commit log of a store that this process has not opened.
//!
//! In:     a store's directory.
//! Out:    how far the log may be read, its records in order, offsets at which records begin.
//! Always: takes no lock, keeps no file open, writes nothing. Maps nothing above the visible end if one is published.
//!
//! | the store                  | its end                                              | CRCs are needed                |
//! |----------------------------|------------------------------------------------------|--------------------------------|
//! | a txstore process writes   | the end that this process has published              | nowhere                        |
//! | a broker writes            | the first offset without a whole record: "not yet"   | from the last file but one on  |
//! | txstore is opening it      | the same                                             | where the log may end          |
//! | no process writes          | where `tail` says that it ends                       | where the log may end          |
//!
//! A CRC that is not needed is still checked where a body is read.

mod boundary;
mod queue;
mod skips;
mod statistics;
mod tally;
mod time;
mod walk;

use std::path::Path;
use std::sync::Arc;

pub(crate) use self::skips::Skips;
pub(crate) use self::statistics::StatisticsFiles;
pub(crate) use self::tally::Tally;
pub(crate) use self::walk::Stop;
use super::directory::{log_file_size, look, no_store};
use super::files::{LogFiles, Window};
use super::known::{KnownEnd, Verdict};
use super::tail::Tail;
use super::writer::{Seen, Writer, is_clean};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{HALF_TOPIC, TRANSACTION_GROUP};
use crate::base::units::PhysicalOffset;
use crate::index::offsets::ConsumerOffsets;
use crate::log::commit_log::{DIRECTORY, Step};
use crate::log::published::Published;
use crate::record::RecordView;
use crate::record::decode::{DecodeError, Verify};
use crate::record::layout::RECORD_MAX;
use crate::recovery::snapshot::Snapshot;
use crate::storage::Storage;
use crate::storage::disk::Disk;
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::Settings;
use crate::transaction::HALF_QUEUE;

/// How often a reader looks again because a process has opened or closed the store meanwhile.
pub(crate) const LOOKS_MAX: usize = 8;

/// The commit log of a store that this process has not opened.
#[derive(Debug)]
pub struct Log {
    files: LogFiles,
    settings: Option<Settings>,
    published: Option<Published>,
    seen: Seen,
    /// One past the last record, if a writer publishes it.
    published_end: Option<u64>,
    known: KnownEnd,
}

impl Log {
    /// Opens the log of the store in a directory.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(Arc::new(Disk::open(path)?))
    }

    /// Opens the log of a store on any storage.
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
            seen: Seen { writer: Writer::Nobody, epoch: None },
            published_end: None,
            known: KnownEnd::default(),
        };
        log.refresh()?;
        Ok(log)
    }

    /// Updates the writer, the list of files and the end up to which they may be read.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let storage = Arc::clone(self.files.storage());
        let storage = storage.as_ref();
        if self.published.is_none() {
            self.published = Published::open(storage)?;
        }
        self.seen = Seen::of(storage, self.published.as_ref())?;
        // A store that was closed in the meantime now records its end.
        self.settings = Settings::load(storage)?;
        let mut file_size = self.files.file_size();
        if file_size == 0 {
            file_size = log_file_size(storage, self.settings.as_ref())?.unwrap_or(0);
        }
        let published = self.published.as_ref().filter(|_| self.seen.writer == Writer::Ours);
        self.published_end = published.map(|published| published.appended().0);
        // After the end, so that every file up to it is listed.
        self.files = LogFiles::new(Arc::clone(self.files.storage()), file_size, list(storage, file_size)?);
        self.known = self.find_known()?;
        Ok(())
    }

    fn find_known(&self) -> Result<KnownEnd> {
        let storage = self.storage();
        let writer = self.seen.writer;
        let clean = writer == Writer::Nobody && is_clean(storage)?;
        let in_use = matches!(writer, Writer::Opening | Writer::Broker);
        let snapshot = if self.published_end.is_some() { 0 } else { Snapshot::position_of(storage)? };
        let (settings, published) = (self.settings.as_ref(), self.published.as_ref());
        let mut known = KnownEnd::find(storage, settings, published, snapshot, clean, in_use)?;
        if let Some(end) = self.published_end {
            // Everything up to the published end may be read, so it is whole.
            known.durable = end;
        }
        // A txstore process that is opening the store may have made more files ahead.
        if writer == Writer::Broker || (mutated(Mutant::OpeningIsABroker) && in_use) {
            let range = self.files.range();
            let last_but_one = range.end.saturating_sub(2 * self.files.file_size()).max(range.start);
            known.durable = known.durable.max(last_but_one);
        }
        Ok(known)
    }

    /// Returns the first physical offset that retention has left.
    pub fn first(&self) -> u64 {
        self.files.range().start
    }

    /// Returns the size of one file in bytes; 0 if there are no files and none is remembered.
    pub(crate) const fn file_size(&self) -> u64 {
        self.files.file_size()
    }

    /// Returns the end that the writer publishes, if there is one.
    pub const fn published_end(&self) -> Option<u64> {
        self.published_end
    }

    /// Returns the settings that the store remembers.
    pub(crate) const fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Returns the store's files.
    pub(crate) fn storage(&self) -> &dyn Storage {
        self.files.storage().as_ref()
    }

    /// Returns whether txstore alone wrote all remaining files.
    pub(crate) fn is_all_ours(&self) -> bool {
        let range = self.files.range();
        self.settings.as_ref().is_some_and(|settings| settings.is_all_ours(range.start, range.end))
    }

    /// Returns the half-queue offset below which a broker finished every half message, even where the log does not show
    /// how. 0 in a log that txstore alone wrote.
    pub fn half_progress(&self) -> Result<u64> {
        let (offsets, _) = ConsumerOffsets::load(self.storage())?;
        let stored = offsets.get(HALF_TOPIC, TRANSACTION_GROUP, HALF_QUEUE);
        Ok(stored.filter(|_| !self.is_all_ours()).unwrap_or(0))
    }

    /// Calls `show` for each record up to the visible end.
    #[cfg(test)]
    pub(crate) fn each(&self, mut show: impl FnMut(&RecordView<'_>)) -> Result<()> {
        let walk = self.walk(self.first(), self.visible_end(None)?, |view| {
            show(view);
            true
        })?;
        match walk.stop {
            Stop::NoRecord(why) => Err(self.corrupt(walk.at, &why)),
            Stop::Limit | Stop::Visitor => Ok(()),
        }
    }

    /// Reads the record that begins at an offset. `near` keeps the view of the last call, so ascending offsets need few
    /// views.
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

    /// Returns whether what was read since the last `refresh` is still valid.
    pub(crate) fn is_still(&self) -> Result<bool> {
        match (self.seen, &self.published) {
            (Seen { writer: Writer::Ours, epoch: Some(epoch) }, Some(published)) => Ok(published.is_still(epoch)),
            _ if mutated(Mutant::NobodyStays) => Ok(true),
            (seen, published) => Ok(Seen::of(self.storage(), published.as_ref())? == seen),
        }
    }

    /// Returns what `look` finds, or its error, while no process opens or closes the store. Fails with `StoreClosed` if
    /// that happens again and again.
    pub(crate) fn steady<T>(&mut self, mut look: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        for _ in 0..LOOKS_MAX {
            let found = look(self);
            if self.is_still()? {
                return found;
            }
            self.refresh()?;
        }
        Err(Error::StoreClosed)
    }

    /// Returns the visible end: where the next record will begin.
    ///
    /// If no writer publishes it, the search starts at `from`, an offset at which a record begins; the end that was
    /// found last is best. Damage before the end does not change the end: a read reports it later.
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

    /// Returns whether the log ends at `at`, where no record begins. `last_ms` is the store time of the record before.
    pub(crate) fn verdict(&self, at: u64, last_ms: Option<i64>) -> Result<Verdict> {
        let last_ms = match last_ms {
            None => self.last_before(at)?.map(|last| last.store_ms),
            known => known,
        };
        self.known.verdict(&self.files, at, last_ms)
    }

    /// Returns which CRCs of a record are checked: those of records whose body is read, and those where the log may
    /// end. `last_ms` is the store time of the record before.
    #[inline]
    pub(crate) fn verify(&self, at: u64, last_ms: Option<i64>, body: bool) -> Verify {
        let is_known = at < self.known.durable || last_ms.is_some_and(|last_ms| last_ms < self.known.safe_ms);
        if !body && is_known { Verify::NOTHING } else { self.whole(at) }
    }

    /// Returns the settings that check everything in a record.
    fn whole(&self, at: u64) -> Verify {
        self.settings.as_ref().map_or(Verify::BODY, |settings| settings.verify(at))
    }

    /// Returns a view of the bytes from `at` on: of at least `needed`, up to the file's end or to `limit`. `None` after
    /// the last file.
    pub(crate) fn window(&self, at: u64, limit: u64, needed: u64) -> Result<Option<Window>> {
        self.files.window(at, limit.min(self.published_end.unwrap_or(u64::MAX)), needed)
    }

    /// Returns an error about an offset of the log.
    pub(crate) fn corrupt(&self, at: u64, what: &str) -> Error {
        self.files.corrupt(at, what)
    }
}

/// Returns the files of the log. They follow each other and have one size.
fn list(storage: &dyn Storage, file_size: u64) -> Result<Vec<(u64, u64)>> {
    let mut files: Vec<(u64, u64)> = Vec::new();
    for (base, file) in SegmentQueue::files(storage, DIRECTORY)? {
        // A crash left this file after its creation and before its length was set, so it never held anything.
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
