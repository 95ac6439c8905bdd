//! Keeps the counts of full log files in small files, so that they need not be counted again.
//!
//! In:     the counts of a full file of the log.
//! Out:    the same, if the log file is still the one that was counted.
//! Always: a file that is missing, damaged, of another version or of another log file means: count. Replaced as a whole.
//! Not here: counting (`tally`), when a writer keeps them (`store/keep_statistics.rs`).
//!
//! | value                                      | bytes       |
//! |--------------------------------------------|-------------|
//! | the log file: first physical offset, size  | 8, 8        |
//! | its last record: physical offset, size     | 8, 4        |
//! | CRC-32 of that record and the 8 bytes after | 4          |
//! | number of rows                             | 8           |
//! | each row: topic, queue id                  | 4 + n, 4    |
//! | messages, bytes                            | 8, 8        |
//! | store time of the first and the last, ms   | 8, 8        |

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::Log;
use super::tally::Tally;
use crate::base::error::{Error, Result};
use crate::base::units::{PhysicalOffset, QueueId, to_u64, to_usize};
use crate::storage::Storage;
use crate::storage::config_file::{read_file, replace_file};
use crate::storage::disk::{Disk, is_within};
use crate::storage::sealed::{Reader, Seal, Writer};
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::STATISTICS;

const SEAL: Seal = Seal { magic: *b"txstat\r\n", version: 1 };
/// Statistics of a hundred thousand queues are smaller.
const SIZE_MAX: u64 = 32 << 20;
/// A full log file ends with a blank record, whose first bytes show that no record follows the last one.
const BLANK_HEAD: u64 = 8;
/// The file in a folder of several stores that is locked to write: for each store one byte of it.
const LOCK: &str = "lock";

/// A folder of statistics of log files, named as these are.
#[derive(Debug)]
pub(crate) struct StatisticsFiles {
    storage: Arc<dyn Storage>,
    directory: String,
    /// Several processes may write.
    is_shared: bool,
}

/// What tells a full log file from any other that could be at its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    file: u64,
    file_size: u64,
    /// The last record.
    last: u64,
    size: u32,
    crc: u32,
}

impl StatisticsFiles {
    /// Returns those that a writer keeps in its store.
    pub(crate) fn of_store(storage: Arc<dyn Storage>) -> Self {
        Self { storage, directory: STATISTICS.to_owned(), is_shared: false }
    }

    /// Returns those that readers keep in a folder, which is created. Its parent must exist.
    pub(crate) fn at(path: &Path, log: &Log) -> Result<Self> {
        Self::check(path, log)?;
        let root = log.storage().root();
        let of_path = || format!("path-{:08x}", crc32fast::hash(root.as_os_str().as_encoded_bytes()));
        let id = log.settings().and_then(|settings| settings.id);
        let directory = id.map_or_else(of_path, |id| id.to_string());
        Ok(Self { storage: Arc::new(Disk::create(path)?), directory, is_shared: true })
    }

    /// Fails if a folder is in the store: readers write nothing there.
    pub(crate) fn check(path: &Path, log: &Log) -> Result<()> {
        let root = log.storage().root();
        if is_within(path, root)? {
            let what = format!("{} is in the store {}, into which no reader writes", path.display(), root.display());
            let hint = "hint: name a folder outside of the store";
            return Err(Error::InvalidOption { option: "statistics_path".to_owned(), what: format!("{what}\n{hint}") });
        }
        Ok(())
    }

    /// Removes those of log files before an offset, which retention has removed.
    pub(crate) fn remove_below(&self, first: u64) -> Result<()> {
        for (base, file) in SegmentQueue::files(self.storage.as_ref(), &self.directory)? {
            if base < first {
                self.storage.unlink(&format!("{}/{}", self.directory, file.name))?;
            }
        }
        Ok(())
    }

    fn path(&self, file: u64) -> String {
        format!("{}/{file:020}", self.directory)
    }

    /// Reads the statistics of a log file; `None` if they are missing or damaged.
    fn read(&self, file: u64) -> Result<Option<(Fingerprint, Vec<Tally>)>> {
        let bytes = read_file(self.storage.as_ref(), &self.path(file), SIZE_MAX)?;
        Ok(bytes.and_then(|bytes| decode(&bytes)).filter(|(found, _)| found.file == file))
    }

    fn write(&self, of: &Fingerprint, rows: &[&Tally]) -> Result<()> {
        let byte = crc32fast::hash(self.directory.as_bytes());
        let one = if self.is_shared { self.storage.lock(LOCK, byte.into())? } else { None };
        if self.is_shared && one.is_none() {
            // Another reader counted the same, and keeps it.
            return Ok(());
        }
        replace_file(self.storage.as_ref(), &self.path(of.file), &encode(of, rows), false)
    }
}

impl Log {
    /// Returns the kept counts of a full log file; `None` if there are none.
    pub(crate) fn kept(&self, files: &StatisticsFiles, file: u64) -> Option<Vec<Tally>> {
        // What cannot be read is counted again.
        let (of, rows) = files.read(file).ok().flatten()?;
        (self.fingerprint(file, of.last, of.size).ok().flatten() == Some(of)).then_some(rows)
    }

    /// Counts the messages of a range that begins and ends with a log file or with the log, and keeps the counts of its
    /// full files.
    pub(super) fn count_and_keep(&self, range: Range<u64>, files: Option<&StatisticsFiles>) -> Result<Vec<Tally>> {
        let file_size = self.files.file_size().max(1);
        let Some(files) = files else { return self.count_queues(range) };
        let is_full = |file: &u64| file.saturating_add(file_size) <= range.end;
        let bases = range.clone().step_by(to_usize(file_size)).take_while(is_full);
        // A broker may begin meanwhile, and cut the log. So a file is looked at before and after.
        let before: Vec<_> = bases.filter_map(|file| self.last_of(file).ok().flatten()).collect();
        let rows = self.count_queues(range)?;
        for of in before {
            if self.fingerprint(of.file, of.last, of.size)? == Some(of) {
                files.write(&of, &rows.iter().filter(|row| row.file == of.file).collect::<Vec<_>>())?;
            }
        }
        Ok(rows)
    }

    /// Keeps the counts of a full log file in the store. Returns whether they were not there. Only the store's writer
    /// may call this.
    pub(crate) fn keep_statistics(&self, file: u64) -> Result<bool> {
        let files = StatisticsFiles::of_store(Arc::clone(self.files.storage()));
        if self.kept(&files, file).is_some() {
            return Ok(false);
        }
        self.count_and_keep(file..file.saturating_add(self.files.file_size()), Some(&files)).map(|_| true)
    }

    /// Returns the fingerprint of a full log file; `None` if it has no record.
    fn last_of(&self, file: u64) -> Result<Option<Fingerprint>> {
        let last = self.last_before(file.saturating_add(self.files.file_size()))?;
        let Some(last) = last.filter(|last| last.physical_offset >= file) else { return Ok(None) };
        let size = self.read(PhysicalOffset(last.physical_offset), &mut None, |view| view.size)?;
        self.fingerprint(file, last.physical_offset, size)
    }

    /// Returns the fingerprint of a log file if its last record is at an offset; `None` if it cannot be there.
    fn fingerprint(&self, file: u64, last: u64, size: u32) -> Result<Option<Fingerprint>> {
        let file_size = self.files.file_size();
        let until = last.saturating_add(size.into()).saturating_add(BLANK_HEAD);
        if last < file || until > file.saturating_add(file_size) {
            return Ok(None);
        }
        let bytes = self.files.read(last..until)?;
        let is_whole = to_u64(bytes.len()) == until - last;
        Ok(is_whole.then(|| Fingerprint { file, file_size, last, size, crc: crc32fast::hash(&bytes) }))
    }
}

fn encode(of: &Fingerprint, rows: &[&Tally]) -> Vec<u8> {
    let mut out = Writer::new();
    for value in [of.file, of.file_size, of.last] {
        out.u64(value);
    }
    out.u32(of.size);
    out.u32(of.crc);
    out.u64(to_u64(rows.len()));
    for row in rows {
        out.text(&row.topic);
        out.i32(row.queue_id.0);
        out.u64(row.messages);
        out.u64(row.bytes);
        out.i64(row.first_ms);
        out.i64(row.last_ms);
    }
    out.seal(SEAL)
}

fn decode(bytes: &[u8]) -> Option<(Fingerprint, Vec<Tally>)> {
    let mut input = Reader::open(SEAL, bytes)?;
    let (file, file_size, last) = (input.u64()?, input.u64()?, input.u64()?);
    let of = Fingerprint { file, file_size, last, size: input.u32()?, crc: input.u32()? };
    let rows = input.u64()?;
    let mut row = || {
        Some(Tally {
            file,
            topic: input.text()?.into(),
            queue_id: QueueId(input.i32()?),
            messages: input.u64()?,
            bytes: input.u64()?,
            first_ms: input.i64()?,
            last_ms: input.i64()?,
        })
    };
    Some((of, (0..rows).map(|_| row()).collect::<Option<_>>()?))
}
