//! Reads the log's files by physical offset without opening them as a log.
//!
//! In:     which files there are.
//! Out:    views of their parts, whole records between damaged bytes, and what follows an offset.
//! Always: keeps no file open, writes nothing, and maps nothing above the limit it is given.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::find::{MAGIC_END, find_magic};
#[cfg(feature = "arrow")]
use crate::base::error::Error;
use crate::base::error::Result;
use crate::base::units::{to_u64, to_usize};
use crate::log::commit_log::{DIRECTORY, FILE_TAIL, Step, step, too_old};
use crate::record::RecordView;
use crate::record::decode::{DecodeError, Verify};
use crate::storage::segment::SegmentQueue;
use crate::storage::{OpenMode, ReadMap, Storage};

/// Bytes that are mapped at once. This bounds a scan's memory for a log of any length.
pub(super) const WINDOW: u64 = if cfg!(test) { 1 << 12 } else { 32 << 20 };
/// The first view of a walk or scan is smaller, because it may need only a few records; each further one is larger.
#[cfg(feature = "arrow")]
const FIRST_WINDOW: u64 = WINDOW / 32;

/// The files of a log.
#[derive(Debug)]
pub(crate) struct LogFiles {
    storage: Arc<dyn Storage>,
    file_size: u64,
    /// The first offset and the length of each file.
    files: Vec<(u64, u64)>,
}

/// What follows an offset at which no record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct After {
    /// One past the last byte of the offset's file that is not zero; the offset itself if all are zeros.
    pub(crate) bytes_end: u64,
    /// Where the first whole record of a later file begins.
    pub(crate) later_record: Option<u64>,
}

/// How many bytes the next view of a walk or scan has.
#[cfg(feature = "arrow")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(u64);

#[cfg(feature = "arrow")]
impl Default for Pace {
    fn default() -> Self {
        Self(FIRST_WINDOW)
    }
}

#[cfg(feature = "arrow")]
impl Pace {
    /// Returns where the next view from `at` may end at most.
    pub(crate) fn next(&mut self, at: u64, limit: u64, needed: u64) -> u64 {
        let bytes = self.0.max(needed);
        self.0 = self.0.saturating_mul(4).min(WINDOW);
        at.saturating_add(bytes).min(limit)
    }
}

/// A mapped part of one file.
#[derive(Debug)]
pub(crate) struct Window {
    map: Box<dyn ReadMap>,
    /// The log's range that is mapped.
    pub(crate) range: Range<u64>,
    /// Where its file ends.
    pub(crate) file_end: u64,
}

impl Window {
    /// Returns the bytes from an offset on.
    pub(crate) fn from(&self, at: u64) -> Cow<'_, [u8]> {
        let begin = at.saturating_sub(self.range.start);
        self.map.bytes(begin..self.map.len()).unwrap_or_default()
    }

    /// Returns what begins at `at`. `rest` is the window's bytes from there on. Too few bytes for a record header
    /// decide nothing, even if they are zeros, unless the file ends there too.
    #[inline]
    pub(crate) fn step<'a>(&self, rest: &'a [u8], at: u64, verify: Verify) -> Step<'a> {
        if to_u64(rest.len()) < FILE_TAIL && self.range.end < self.file_end {
            return Step::Bad(DecodeError::Truncated { needed: u32::try_from(FILE_TAIL).unwrap_or(u32::MAX) });
        }
        step(rest, at, self.file_end, verify)
    }
}

impl LogFiles {
    /// Creates the view from a listing of files: the first offset and the length of each.
    pub(crate) const fn new(storage: Arc<dyn Storage>, file_size: u64, files: Vec<(u64, u64)>) -> Self {
        Self { storage, file_size, files }
    }

    /// Returns the files of a log that is open.
    pub(crate) fn of(segments: &SegmentQueue) -> Self {
        let files = segments.all().iter().map(|segment| (segment.base(), segments.file_size())).collect();
        Self::new(Arc::clone(segments.storage()), segments.file_size(), files)
    }

    /// Returns the storage that holds the files.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Returns the size of one file in bytes.
    #[cfg(feature = "arrow")]
    pub(crate) const fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Returns the range from the beginning of the first file to the end of the last one.
    #[cfg(feature = "arrow")]
    pub(crate) fn range(&self) -> Range<u64> {
        let end = self.files.last().map_or(0, |(base, _)| base.saturating_add(self.file_size));
        self.files.first().map_or(0, |(base, _)| *base)..end
    }

    /// Returns the range of the file that holds an offset.
    pub(crate) fn file_of(&self, at: u64) -> Option<Range<u64>> {
        let next = self.files.partition_point(|(base, _)| *base <= at);
        let (base, _) = self.files.get(next.checked_sub(1)?)?;
        let file = *base..base.saturating_add(self.file_size);
        file.contains(&at).then_some(file)
    }

    /// Returns a view of at least `needed` bytes from `at` on, up to the end of the file or to `limit`. `None` if no
    /// file holds `at`.
    pub(crate) fn window(&self, at: u64, limit: u64, needed: u64) -> Result<Option<Window>> {
        let Some(file) = self.file_of(at) else { return Ok(None) };
        let path = Self::path(file.start);
        let Some(length) = self.storage.len(&path)? else { return Err(too_old(at, file.end)) };
        let limit = limit.min(file.end).min(file.start.saturating_add(length));
        if at >= limit {
            return Ok(None);
        }
        let end = at.saturating_add(needed.max(WINDOW)).min(limit);
        let map = self.storage.open(&path, OpenMode::Read)?.map_range(at - file.start..end - file.start)?;
        Ok(Some(Window { map, range: at..end, file_end: file.end }))
    }

    /// Returns the bytes of a range of one file; fewer if the file is shorter.
    #[cfg(feature = "arrow")]
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let Some(file) = self.file_of(range.start) else { return Ok(Vec::new()) };
        let path = Self::path(file.start);
        let length = self.storage.len(&path)?.unwrap_or(0);
        let end = range.end.min(file.start.saturating_add(length)).max(range.start);
        let mut bytes = vec![0; to_usize(end - range.start)];
        self.storage.open(&path, OpenMode::Read)?.read_at(&mut bytes, range.start - file.start)?;
        Ok(bytes)
    }

    /// Calls `visit` for each whole record in a range of one file that states its own offset correctly, until `visit`
    /// has enough. There may be any bytes between two records.
    pub(crate) fn records_in(
        &self,
        range: Range<u64>,
        verify: impl Fn(u64) -> Verify,
        mut visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<()> {
        let (mut at, mut needed) = (range.start, 0);
        while at < range.end {
            let Some(window) = self.window(at, u64::MAX, needed)? else { break };
            let bytes = window.from(at);
            let mut rest: &[u8] = &bytes;
            needed = 0;
            while let Some(distance) = find_magic(rest).filter(|distance| at + to_u64(*distance) < range.end) {
                at += to_u64(distance);
                rest = rest.get(distance..).unwrap_or_default();
                let skipped = match window.step(rest, at, verify(at)) {
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

    /// Returns the first whole record that begins in a range of one file.
    pub(crate) fn record_in(&self, range: Range<u64>, verify: impl Fn(u64) -> Verify) -> Result<Option<u64>> {
        let mut found = None;
        self.records_in(range, verify, |view| {
            found = Some(view.physical_offset.0);
            false
        })?;
        Ok(found)
    }

    /// Returns what follows an offset.
    pub(crate) fn after(&self, at: u64, verify: impl Fn(u64) -> Verify) -> Result<After> {
        let bytes_end = match self.file_of(at) {
            Some(file) => self.bytes_end(at..file.end)?.max(at),
            None => at,
        };
        let mut later_record = None;
        for (base, _) in self.files.iter().filter(|(base, _)| *base > at) {
            let file = *base..base.saturating_add(self.file_size);
            if self.bytes_end(file.clone())? > file.start {
                later_record = self.record_in(file, &verify)?;
            }
            if later_record.is_some() {
                break;
            }
        }
        Ok(After { bytes_end, later_record })
    }

    /// Returns one past the last nonzero byte of a range of one file, or the range's beginning if all are zeros.
    fn bytes_end(&self, range: Range<u64>) -> Result<u64> {
        let Some(file) = self.file_of(range.start) else { return Ok(range.start) };
        let path = Self::path(file.start);
        let Some(length) = self.storage.len(&path)? else { return Ok(range.start) };
        let handle = self.storage.open(&path, OpenMode::Read)?;
        let (from, mut to) = (range.start - file.start, range.end.min(file.start.saturating_add(length)) - file.start);
        // Most of a file after the end of the log is a hole; holes are not read.
        while from < to && !handle.is_blank(from..to)? {
            let part = to.saturating_sub(WINDOW).max(from)..to;
            if !handle.is_blank(part.clone())? {
                let map = handle.map_range(part.clone())?;
                let bytes = map.bytes(0..map.len()).unwrap_or_default();
                if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                    return Ok(file.start + part.start + to_u64(last) + 1);
                }
            }
            to = part.start;
        }
        Ok(range.start)
    }

    fn path(base: u64) -> String {
        format!("{DIRECTORY}/{base:020}")
    }

    /// Returns an error about an offset of the log.
    #[cfg(feature = "arrow")]
    pub(crate) fn corrupt(&self, at: u64, what: &str) -> Error {
        let base = self.file_of(at).map_or(at, |file| file.start);
        Error::StoreCorrupt {
            file: self.storage.root().join(Self::path(base)),
            offset: at - base,
            what: what.to_owned(),
        }
    }
}
