//! The row of files itself: finds the file of an offset, adds one at the end, removes some at either end.
//!
//! In:     a directory of files named by their first byte's offset, 20 digits.
//! Out:    the segment of an offset.
//! Always: the files are of one size and follow each other without a gap.
//! Not here: where the valid bytes end.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::segment::Segment;
use crate::storage::{DirEntry, OpenMode, Storage};
use crate::sync::unmodelled::RwLock;
use crate::units::{PhysicalOffset, TimestampMs, to_usize};

/// A row of segments (RocketMQ's `MappedFileQueue`).
#[derive(Debug)]
pub struct SegmentQueue {
    storage: Arc<dyn Storage>,
    directory: String,
    size: u64,
    segments: RwLock<Vec<Arc<Segment>>>,
}

impl SegmentQueue {
    /// Opens the files of a directory. A gap between them is `MissingFile`, another length `ForeignStore`.
    pub fn open(storage: Arc<dyn Storage>, directory: &str, size: u64, read_only: bool) -> Result<Self> {
        let mode = if read_only { OpenMode::Read } else { OpenMode::Write };
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for (base, entry) in Self::files(storage.as_ref(), directory)? {
            let path = format!("{directory}/{}", entry.name);
            if read_only && segments.is_empty() && storage.len(&path)?.is_none() {
                // Its writer has removed it since it was listed.
                continue;
            }
            if entry.len == 0 {
                // A crash left it between its making and its length; nothing was ever in it. Another thing of that name
                // than a file is an error.
                storage.open(&path, OpenMode::Read)?;
                continue;
            }
            if entry.len != size {
                return Err(Error::ForeignStore {
                    path: storage.root().join(&path),
                    what: format!("it has {} bytes, the other files {size}", entry.len),
                });
            }
            if let Some(last) = segments.last().filter(|last| last.end() != base) {
                return Err(missing(storage.as_ref(), directory, last.end(), base));
            }
            segments.push(Arc::new(Segment::open(storage.as_ref(), path, base, size, mode)?));
        }
        Ok(Self { storage, directory: directory.to_owned(), size, segments: RwLock::new(segments) })
    }

    /// Returns the error of files that should hold `from..to` and are not there.
    pub fn missing(&self, from: u64, to: u64) -> Error {
        missing(self.storage.as_ref(), &self.directory, from, to)
    }

    /// The files of a row with their bases, in order; other names are passed over.
    pub fn files(storage: &dyn Storage, directory: &str) -> Result<Vec<(u64, DirEntry)>> {
        let entries = storage.list(directory)?.unwrap_or_default();
        let numbered = |entry: DirEntry| {
            let is_base = entry.name.len() == 20 && entry.name.bytes().all(|byte| byte.is_ascii_digit());
            entry.name.parse().ok().filter(|_| is_base).map(|base| (base, entry))
        };
        Ok(entries.into_iter().filter_map(numbered).collect())
    }

    /// Returns where the files are.
    pub const fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Returns bytes of one file.
    pub const fn file_size(&self) -> u64 {
        self.size
    }

    /// Returns the first offset that a file holds; 0 without files.
    pub fn first(&self) -> u64 {
        self.segments.read().first().map_or(0, |segment| segment.base())
    }

    /// Returns all files, in order.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    /// Returns the file that holds an offset.
    pub fn at(&self, offset: u64) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let first = segments.first()?.base();
        let index = offset.checked_sub(first)? / self.size;
        segments.get(to_usize(index)).cloned()
    }

    /// Returns the file that holds an offset; made if it is the next one of the row.
    pub fn at_or_create(&self, offset: u64) -> Result<Arc<Segment>> {
        loop {
            if let Some(segment) = self.at(offset) {
                return Ok(segment);
            }
            let base = self.segments.read().last().map_or(offset - offset % self.size, |last| last.end());
            let path = format!("{}/{base:020}", self.directory);
            let made = Segment::create(self.storage.as_ref(), &self.directory, path, base, self.size)?;
            self.segments.write().push(Arc::new(made));
        }
    }

    /// Opens the file that another process added after the last one, if there is one; says whether.
    pub fn extend(&self) -> Result<bool> {
        let mut segments = self.segments.write();
        let next = segments.last().map(|last| last.end());
        let Some((base, _)) = Self::files(self.storage.as_ref(), &self.directory)?
            .into_iter()
            .find(|(base, file)| file.len == self.size && next.is_none_or(|next| *base == next))
        else {
            return Ok(false);
        };
        let path = format!("{}/{base:020}", self.directory);
        if self.storage.len(&path)?.is_none() {
            // Its writer has removed it since it was listed; it has published that before.
            return Ok(false);
        }
        segments.push(Arc::new(Segment::open(self.storage.as_ref(), path, base, self.size, OpenMode::Read)?));
        Ok(true)
    }

    /// Returns whether the directory has files after the last one that is open.
    pub fn is_continued(&self) -> Result<bool> {
        let end = self.segments.read().last().map_or(0, |last| last.end());
        let files = Self::files(self.storage.as_ref(), &self.directory)?;
        Ok(files.iter().any(|(base, file)| file.len == self.size && *base >= end))
    }

    /// Opens the files that are there now, in place of those that were open.
    pub fn open_again(&self) -> Result<()> {
        let now = Self::open(Arc::clone(&self.storage), &self.directory, self.size, true)?;
        let segments = now.all();
        *self.segments.write() = segments;
        Ok(())
    }

    /// Forgets the files that begin above an offset: a writer has only reserved them, and may remove them.
    pub fn forget_above(&self, offset: u64) {
        self.segments.write().retain(|segment| segment.base() <= offset);
    }

    /// Forgets the files that end at or below an offset; who holds one reads on in it.
    pub fn forget_below(&self, offset: u64) {
        self.segments.write().retain(|segment| segment.end() > offset);
    }

    /// Removes the files that end at or below an offset, never the last one. How many they were.
    pub fn remove_below(&self, offset: u64) -> Result<usize> {
        let mut expired = self.all();
        expired.pop();
        expired.retain(|segment| segment.end() <= offset);
        for segment in &expired {
            // From the front, each for good before the next: lost power may undo any of several removals, and leave a gap.
            self.storage.unlink(segment.path())?;
            self.storage.sync_dir(&self.directory)?;
            self.forget_below(segment.end());
        }
        Ok(expired.len())
    }

    /// Removes the files without a byte, which opening passed over: a broker would not take them for files of the row.
    pub fn remove_empty(&self) -> Result<()> {
        for (_, entry) in Self::files(self.storage.as_ref(), &self.directory)?.iter().filter(|(_, file)| file.len == 0)
        {
            self.storage.unlink(&format!("{}/{}", self.directory, entry.name))?;
            self.storage.sync_dir(&self.directory)?;
        }
        Ok(())
    }

    /// Removes the files that begin at or behind an offset.
    pub fn remove_from(&self, offset: u64) -> Result<()> {
        let mut segments = self.segments.write();
        let keep = segments.partition_point(|segment| segment.base() < offset);
        let removed = segments.split_off(keep);
        if removed.is_empty() {
            return Ok(());
        }
        // From the end, each for good before the next: lost power may undo any of several removals, and leave a gap.
        for segment in removed.iter().rev() {
            self.storage.unlink(segment.path())?;
            self.storage.sync_dir(&self.directory)?;
        }
        Ok(())
    }

    /// Returns when a file was written last, by the wall clock of then; `None` if that is not known.
    pub fn modified(&self, segment: &Segment) -> Result<Option<TimestampMs>> {
        self.storage.modified(segment.path())
    }

    /// Makes a range durable: every file that it touches.
    pub fn sync(&self, from: u64, to: u64) -> Result<()> {
        let touched: Vec<_> =
            self.all().into_iter().filter(|segment| segment.base() < to && from < segment.end()).collect();
        touched.iter().try_for_each(|segment| segment.sync())
    }
}

fn missing(storage: &dyn Storage, directory: &str, from: u64, to: u64) -> Error {
    Error::MissingFile {
        path: storage.root().join(format!("{directory}/{from:020}")),
        from: PhysicalOffset(from),
        to: PhysicalOffset(to),
    }
}
