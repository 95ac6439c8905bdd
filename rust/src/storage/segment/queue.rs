//! Manages a segment list: finds the file of an offset, adds files at the end, removes them at either end.
//!
//! In:     a directory of files named by their first byte's offset, 20 digits.
//! Out:    the segment of an offset.
//! Always: the files have one size and follow each other without a gap.
//! Not here: where the valid bytes end.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::unmodelled::RwLock;
use crate::base::units::{PhysicalOffset, TimestampMs, to_usize};
use crate::storage::segment::Segment;
use crate::storage::{DirEntry, OpenMode, Storage};

/// A list of segments (RocketMQ's `MappedFileQueue`).
#[derive(Debug)]
pub struct SegmentQueue {
    storage: Arc<dyn Storage>,
    directory: String,
    size: u64,
    segments: RwLock<Vec<Arc<Segment>>>,
}

impl SegmentQueue {
    /// Opens the files of a directory. Fails with `MissingFile` for a gap between them and with `ForeignStore` for
    /// another length.
    pub fn open(storage: Arc<dyn Storage>, directory: &str, size: u64, read_only: bool) -> Result<Self> {
        let mode = if read_only { OpenMode::Read } else { OpenMode::Write };
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for (base, entry) in Self::files(storage.as_ref(), directory)? {
            let path = format!("{directory}/{}", entry.name);
            if read_only && segments.is_empty() && storage.len(&path)?.is_none() {
                // The writer has removed the file since it was listed.
                continue;
            }
            if entry.len == 0 {
                // A crash left this file between its creation and setting its length, so it never held anything. If the
                // name is not a file, opening fails.
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

    /// Returns the error for missing files that should hold `from..to`.
    pub fn missing(&self, from: u64, to: u64) -> Error {
        missing(self.storage.as_ref(), &self.directory, from, to)
    }

    /// Returns the files of a segment list with their bases, in order. Ignores other names.
    ///
    /// A writer may add files while they are listed: the listing may then have a file, and have missed the one before
    /// it, or have found that one before its length was set. A gap is one only if the next listing has it, too.
    pub fn files(storage: &dyn Storage, directory: &str) -> Result<Vec<(u64, DirEntry)>> {
        let mut known = None;
        loop {
            let files = Self::listed(storage, directory)?;
            let gap = files.iter().zip(files.iter().skip(1)).find_map(|((base, file), (next, _))| {
                let end = base.saturating_add(file.len);
                (end != *next).then_some((end, *next))
            });
            if gap.is_none() || gap == known || mutated(Mutant::GapsAtOnce) {
                return Ok(files);
            }
            known = gap;
        }
    }

    fn listed(storage: &dyn Storage, directory: &str) -> Result<Vec<(u64, DirEntry)>> {
        let entries = storage.list(directory)?.unwrap_or_default();
        let numbered = |entry: DirEntry| {
            let is_base = entry.name.len() == 20 && entry.name.bytes().all(|byte| byte.is_ascii_digit());
            entry.name.parse().ok().filter(|_| is_base).map(|base| (base, entry))
        };
        Ok(entries.into_iter().filter_map(numbered).collect())
    }

    /// Returns the storage that holds the files.
    pub const fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Returns the size of one file in bytes.
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

    /// Returns the file that holds an offset. Creates it if it is the next one of the list.
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

    /// Opens the file that another process added after the last one. Returns whether there was one.
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
            // The writer has removed the file since it was listed, and has published that before.
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

    /// Closes all files. A reader that uses one keeps it until it has read.
    pub fn close(&self) {
        self.segments.write().clear();
    }

    /// Replaces the open files by those that exist now.
    pub fn open_again(&self) -> Result<()> {
        let now = Self::open(Arc::clone(&self.storage), &self.directory, self.size, true)?;
        let segments = now.all();
        *self.segments.write() = segments;
        Ok(())
    }

    /// Closes the files that begin above an offset: the writer has only reserved them, and may remove them.
    pub fn forget_above(&self, offset: u64) {
        self.segments.write().retain(|segment| segment.base() <= offset || mutated(Mutant::FilesNeverOpenedAgain));
    }

    /// Closes the files that end at or below an offset. A reader that holds one can continue in it.
    pub fn forget_below(&self, offset: u64) {
        self.segments.write().retain(|segment| segment.end() > offset);
    }

    /// Removes the files that end at or below an offset, except the last file. Returns how many it removed.
    pub fn remove_below(&self, offset: u64) -> Result<usize> {
        let mut expired = self.all();
        expired.pop();
        expired.retain(|segment| segment.end() <= offset);
        for segment in &expired {
            // Files are removed from the front, each durably before the next, because a power loss may undo any of
            // several removals and leave a gap.
            self.storage.unlink(segment.path())?;
            self.storage.sync_dir(&self.directory)?;
            self.forget_below(segment.end());
        }
        Ok(expired.len())
    }

    /// Removes the empty files that `open` ignored, because a broker would not accept them as part of the list.
    pub fn remove_empty(&self) -> Result<()> {
        for (_, entry) in Self::files(self.storage.as_ref(), &self.directory)?.iter().filter(|(_, file)| file.len == 0)
        {
            self.storage.unlink(&format!("{}/{}", self.directory, entry.name))?;
            self.storage.sync_dir(&self.directory)?;
        }
        Ok(())
    }

    /// Removes the files that begin at or after an offset.
    pub fn remove_from(&self, offset: u64) -> Result<()> {
        let mut segments = self.segments.write();
        let keep = segments.partition_point(|segment| segment.base() < offset);
        let removed = segments.split_off(keep);
        if removed.is_empty() {
            return Ok(());
        }
        // Files are removed from the end, each durably before the next, because a power loss may undo any of several
        // removals and leave a gap.
        for segment in removed.iter().rev() {
            self.storage.unlink(segment.path())?;
            self.storage.sync_dir(&self.directory)?;
        }
        Ok(())
    }

    /// Returns when a file was last written, by the wall clock; `None` if that is not known.
    pub fn modified(&self, segment: &Segment) -> Result<Option<TimestampMs>> {
        self.storage.modified(segment.path())
    }

    /// Makes every file that a range touches durable.
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
