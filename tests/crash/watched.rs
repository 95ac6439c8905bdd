//! Wraps files in memory and records what the log was meant to hold.
//!
//! In:     the engine's calls.
//! Out:    the same answers; the shadow of the log: every byte written to it, by physical offset, whether or not it
//!         reached a disk.
//! Always: a record that a recovery shows must be in the shadow. The wrapper can read the store as another process
//!         does, immediately before the log is synced.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use std::sync::Mutex;

use txstore::base::clock::ManualClock;
use txstore::base::error::Result;
use txstore::base::options::StoreOptions;
use txstore::base::units::{PhysicalOffset, TimestampMs};
use txstore::storage::memory::Memory;
use txstore::storage::{DirEntry, File, Lock, OpenMode, Opener, ReadMap, SharedMap, Storage};
use txstore::store::{Store, StoredRecord};

/// What the log was meant to hold.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    bytes: Vec<u8>,
    /// Writes that failed or were undone. After a power loss they may exist anyway.
    doubtful: Vec<(u64, Vec<u8>)>,
}

impl Shadow {
    /// Replaces the shadow by the log that was found. No other earlier bytes may come back.
    pub fn settle(&mut self, log: &[StoredRecord], end: u64) {
        self.bytes.truncate(end as usize);
        self.doubtful.clear();
        for record in log {
            self.put(record.view().unwrap().physical_offset.0, record.bytes());
        }
    }

    /// Replaces everything after `began` by what a broker left there.
    pub fn continue_with(&mut self, began: u64, log: &[u8], base: u64) {
        self.bytes.truncate(began as usize);
        self.doubtful.clear();
        let from = began.max(base);
        self.put(from, &log[(from - base) as usize..]);
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let (start, end) = (at as usize, at as usize + bytes.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(bytes);
    }

    fn doubt(&mut self, at: u64, bytes: &[u8]) {
        if bytes.iter().any(|byte| *byte != 0) {
            self.doubtful.push((at, bytes.to_vec()));
        }
    }

    fn take_back(&mut self, range: Range<u64>) {
        let end = (range.end as usize).min(self.bytes.len());
        let start = (range.start as usize).min(end);
        let old = self.bytes[start..end].to_vec();
        self.bytes[start..end].fill(0);
        self.doubt(start as u64, &old);
    }

    /// Returns whether a record with these bytes was written at this offset.
    pub fn holds(&self, at: u64, record: &[u8]) -> bool {
        let is_there = |from: u64, bytes: &[u8]| {
            let start = at.checked_sub(from).unwrap_or(u64::MAX) as usize;
            start < bytes.len() && bytes.get(start..start + record.len()) == Some(record)
        };
        is_there(0, &self.bytes) || self.doubtful.iter().any(|(from, bytes)| is_there(*from, bytes))
    }
}

/// A record that a reader was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub physical_offset: u64,
    pub crc: u32,
}

#[derive(Debug)]
pub struct Watched {
    pub memory: Memory,
    pub shadow: Arc<Mutex<Shadow>>,
    /// Whether a reader looks at the store before the log is synced.
    pub peeks: AtomicBool,
    /// The records that such a reader was shown.
    pub shown: Arc<Mutex<Vec<Shown>>>,
    clock: Arc<ManualClock>,
    options: StoreOptions,
}

impl Watched {
    pub fn new(memory: Memory, shadow: Shadow, clock: Arc<ManualClock>, options: &StoreOptions) -> Self {
        let options = StoreOptions { read_only: true, ..options.clone() };
        Self {
            memory,
            shadow: Arc::new(Mutex::new(shadow)),
            peeks: AtomicBool::new(false),
            shown: Arc::default(),
            clock,
            options,
        }
    }
}

/// Returns all records that a store shows, from the log's beginning.
pub fn all_shown(store: &Store) -> Result<Vec<Shown>> {
    let mut from = PhysicalOffset(store.stat()?.min_physical_offset);
    let mut shown = Vec::new();
    loop {
        let (records, next) = store.scan(from, 1_000)?;
        if records.is_empty() {
            return Ok(shown);
        }
        for record in &records {
            shown.push(Shown { physical_offset: record.view()?.physical_offset.0, crc: crc(record.bytes()) });
        }
        from = next;
    }
}

pub fn crc(bytes: &[u8]) -> u32 {
    txstore::record::crc32(bytes)
}

/// Returns the physical offset at which a log file begins.
fn base(path: &str) -> Option<u64> {
    path.strip_prefix("commitlog/")?.parse().ok()
}

impl Storage for Watched {
    fn root(&self) -> &Path {
        self.memory.root()
    }

    fn opener(&self) -> Opener {
        self.memory.opener()
    }

    fn open(&self, path: &str, mode: OpenMode) -> Result<Box<dyn File>> {
        let file = self.memory.open(path, mode)?;
        let Some(base) = base(path) else { return Ok(file) };
        let peek = Peek {
            memory: self.memory.clone(),
            clock: Arc::clone(&self.clock),
            options: self.options.clone(),
            shown: Arc::clone(&self.shown),
        };
        let peeks = self.peeks.load(Ordering::Relaxed).then_some(peek);
        Ok(Box::new(LogFile { file, base, shadow: Arc::clone(&self.shadow), peek: peeks }))
    }

    fn list(&self, dir: &str) -> Result<Option<Vec<DirEntry>>> {
        self.memory.list(dir)
    }

    fn len(&self, path: &str) -> Result<Option<u64>> {
        self.memory.len(path)
    }

    fn modified(&self, path: &str) -> Result<Option<TimestampMs>> {
        self.memory.modified(path)
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.memory.create_dir(dir)
    }

    fn create_dir_unsynced(&self, dir: &str) -> Result<()> {
        self.memory.create_dir_unsynced(dir)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.memory.rename(from, to)
    }

    fn unlink(&self, path: &str) -> Result<()> {
        self.memory.unlink(path)
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        self.memory.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.memory.sync_dir(dir)
    }

    fn sync_file_system(&self) -> Result<()> {
        self.memory.sync_file_system()
    }

    fn lock(&self, path: &str, byte: u64) -> Result<Option<Box<dyn Lock>>> {
        self.memory.lock(path, byte)
    }

    fn is_locked(&self, path: &str, byte: u64) -> Result<bool> {
        self.memory.is_locked(path, byte)
    }
}

/// Another process that reads the store.
#[derive(Debug)]
struct Peek {
    memory: Memory,
    clock: Arc<ManualClock>,
    options: StoreOptions,
    shown: Arc<Mutex<Vec<Shown>>>,
}

impl Peek {
    /// Reads the store on a thread of its own: another process does not hold the locks of this one.
    fn look_from_outside(&self) {
        std::thread::scope(|scope| scope.spawn(|| self.look()).join()).unwrap();
    }

    fn look(&self) {
        let opened =
            Store::open_with(Arc::new(self.memory.clone()), Arc::clone(&self.clock) as _, self.options.clone());
        // Before the first file has its length there is nothing to read.
        if let Ok(shown) = opened.and_then(|store| all_shown(&store)) {
            self.shown.lock().unwrap().extend(shown);
        }
    }
}

#[derive(Debug)]
struct LogFile {
    file: Box<dyn File>,
    base: u64,
    shadow: Arc<Mutex<Shadow>>,
    peek: Option<Peek>,
}

impl File for LogFile {
    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.file.allocate(range)
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        self.file.punch(range.clone())?;
        self.shadow.lock().unwrap().take_back(self.base + range.start..self.base + range.end);
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> Result<()> {
        self.file.read_at(buf, position)
    }

    fn write_at(&self, buf: &[u8], position: u64) -> Result<()> {
        // Recovery writes again what it found, torn or not, so this write is not intended content.
        let mut before = vec![0; buf.len()];
        if self.file.read_at(&mut before, position).is_ok() && before == buf {
            return self.file.write_at(buf, position);
        }
        let written = self.file.write_at(buf, position);
        let mut shadow = self.shadow.lock().unwrap();
        match &written {
            Ok(()) => shadow.put(self.base + position, buf),
            Err(_) => shadow.doubt(self.base + position, buf),
        }
        written
    }

    fn sync(&self) -> Result<()> {
        if let Some(peek) = &self.peek {
            peek.look_from_outside();
        }
        self.file.sync()
    }

    fn map_read(&self) -> Result<Box<dyn ReadMap>> {
        self.file.map_read()
    }

    fn map_range(&self, range: Range<u64>) -> Result<Box<dyn ReadMap>> {
        self.file.map_range(range)
    }

    fn map_shared(&self, values: usize) -> Result<Box<dyn SharedMap>> {
        self.file.map_shared(values)
    }
}
