//! One file of a segment list: written by position, read through a map.
//!
//! In:     bytes at offsets of the whole list.
//! Out:    views of them.
//! Always: touches nothing outside the file's own range; the map is read-only.
//! Not here: which bytes are valid.

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::unmodelled::Mutex;
use crate::storage::{File, OpenMode, ReadMap, Storage};

/// Creates a sparse file of zeros. The file and its name are durable before it is used.
///
/// If that fails, the file is removed again: it would be found with its full length, which the disk may not have and no
/// later sync would write. If it cannot be removed, all writing stops.
pub fn make_file(storage: &dyn Storage, directory: &str, path: &str, size: u64) -> Result<Box<dyn File>> {
    make(storage, path, size, |file| file.sync().and_then(|()| storage.sync_dir(directory)))
}

/// Creates a sparse file of zeros. `sync_file_system` makes it durable, and until then nobody may rely on it. If its
/// length cannot be set, it is removed again.
pub fn make_file_unsynced(storage: &dyn Storage, path: &str, size: u64) -> Result<Box<dyn File>> {
    make(storage, path, size, |_| Ok(()))
}

fn make(
    storage: &dyn Storage,
    path: &str,
    size: u64,
    sync: impl FnOnce(&dyn File) -> Result<()>,
) -> Result<Box<dyn File>> {
    let file = storage.open(path, OpenMode::Create)?;
    match file.set_len(size).and_then(|()| sync(file.as_ref())) {
        Ok(()) => Ok(file),
        Err(error) => match storage.unlink(path) {
            Ok(()) => Err(error),
            Err(second) => Err(Error::StorePoisoned { why: format!("{error}; then {second}") }),
        },
    }
}

/// A file of fixed size that holds the list's bytes from `base` on (RocketMQ's `MappedFile`).
#[derive(Debug)]
pub struct Segment {
    base: u64,
    size: u64,
    path: String,
    root: PathBuf,
    file: Box<dyn File>,
    map: OnceLock<Box<dyn ReadMap>>,
    /// Why a sync failed. The lock is held while a sync runs.
    failed_sync: Mutex<Option<String>>,
}

impl Segment {
    /// Opens an existing file; its length must be `size`.
    pub fn open(storage: &dyn Storage, path: String, base: u64, size: u64, mode: OpenMode) -> Result<Self> {
        let file = storage.open(&path, mode)?;
        Ok(Self::of(storage, file, path, base, size))
    }

    fn of(storage: &dyn Storage, file: Box<dyn File>, path: String, base: u64, size: u64) -> Self {
        let root = storage.root().to_owned();
        Self { base, size, path, root, file, map: OnceLock::new(), failed_sync: Mutex::new(None) }
    }

    /// Creates the file, sparse. The file and its name are durable before it is used.
    pub fn create(storage: &dyn Storage, directory: &str, path: String, base: u64, size: u64) -> Result<Self> {
        let file = make_file(storage, directory, &path, size)?;
        Ok(Self::of(storage, file, path, base, size))
    }

    /// Returns the offset of this file's first byte in the list.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Returns the offset after this file's last byte in the list.
    pub const fn end(&self) -> u64 {
        self.base + self.size
    }

    /// Returns whether this file holds the byte at an offset of the list.
    pub const fn holds(&self, offset: u64) -> bool {
        self.base <= offset && offset < self.end()
    }

    /// Returns the path below the store's directory.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes bytes at an offset of the list.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(bytes, offset - self.base)
    }

    /// Allocates space for a range of the list.
    pub fn allocate(&self, range: Range<u64>) -> Result<()> {
        self.file.allocate(self.local(&range))
    }

    /// Makes a range of the list read as zeros.
    pub fn punch(&self, range: Range<u64>) -> Result<()> {
        self.file.punch(self.local(&range))
    }

    /// Makes what was written durable. After one failure it always fails, because the system reports an error to one
    /// caller only, and the next sync of another thread would succeed without the bytes.
    pub fn sync(&self) -> Result<()> {
        let mut failed = self.failed_sync.lock();
        if let Some(why) = failed.as_ref().filter(|_| !mutated(Mutant::SyncRetried)) {
            return Err(Error::StorePoisoned { why: why.clone() });
        }
        self.file.sync().inspect_err(|error| *failed = Some(error.to_string()))
    }

    /// Sets the length again. The next sync makes it durable even if the sync at the file's creation failed.
    pub fn renew_length(&self) -> Result<()> {
        self.file.set_len(self.size)
    }

    /// Returns the bytes of a range of the list, which must lie within this file.
    pub fn bytes(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
        let local = self.local(&range);
        self.map()?.bytes(local.clone()).ok_or_else(|| Error::StoreCorrupt {
            file: self.root.join(&self.path),
            offset: local.end,
            what: format!("the file ends before, it should have {} bytes", self.size),
        })
    }

    /// Returns the file's full path, for messages.
    pub fn full_path(&self) -> PathBuf {
        self.root.join(&self.path)
    }

    /// Returns an error about a byte of this file.
    pub fn corrupt(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::StoreCorrupt { file: self.full_path(), offset: offset.saturating_sub(self.base), what: what.into() }
    }

    fn map(&self) -> Result<&dyn ReadMap> {
        if self.map.get().is_none() {
            // Two threads may both map the file. The second map is dropped at once.
            let _ = self.map.set(self.file.map_read()?);
        }
        self.map.get().map(AsRef::as_ref).ok_or(Error::StoreClosed)
    }

    fn local(&self, range: &Range<u64>) -> Range<u64> {
        debug_assert!(range.start >= self.base && range.end <= self.end() && range.start <= range.end);
        range.start.saturating_sub(self.base)..range.end.saturating_sub(self.base)
    }
}
