//! Defines the only interface between the engine and the operating system's files.
//!
//! In:     paths below the store's directory, byte ranges.
//! Out:    bytes, or an `Error` that names the file and the call.
//! Always: no other module opens, writes, syncs, renames or removes a file. Paths are relative, without `..`, and no
//!         symbolic link is followed.
//! Not here: what the bytes mean.

pub mod ahead;
pub mod checkpoint;
pub mod config_file;
#[cfg_attr(not(all(target_os = "linux", not(txstore_without_disk))), path = "disk/elsewhere.rs")]
pub mod disk;
pub mod epochs;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
mod path;
pub mod process;
pub(crate) mod sealed;
pub mod segment;
pub mod settings;

use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::error::Result;
use crate::base::system;
use crate::base::units::TimestampMs;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Opens an existing file, only to read.
    Read,
    /// Opens an existing file, to read and write.
    Write,
    /// Opens a file to read and write, and creates it (0600) if it is missing.
    Create,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// A file's length in bytes; 0 for a directory.
    pub len: u64,
}

/// Identifies one opening of a store. Keeps the unique ids of two writers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// The process id.
    pub process: u32,
    /// How often this process opened a store before.
    pub opens: u64,
    /// Random bits for the id of a new store; `None` if the system has none.
    pub random: Option<u128>,
}

/// The files below one directory.
pub trait Storage: Send + Sync + Debug {
    /// Returns the store's directory, for messages.
    fn root(&self) -> &std::path::Path;
    /// Counts an opening, and returns its identity.
    fn opener(&self) -> Opener {
        static OPENS: AtomicU64 = AtomicU64::new(0);
        let mut random = [0; 16];
        let random = system::random(&mut random).then_some(u128::from_ne_bytes(random));
        Opener { process: std::process::id(), opens: OPENS.fetch_add(1, Ordering::Relaxed), random }
    }
    /// Returns whether a process with that id runs on this machine.
    fn is_running(&self, process: u32) -> bool {
        system::is_running(process)
    }
    /// Opens a file.
    fn open(&self, path: &str, mode: OpenMode) -> Result<Box<dyn File>>;
    /// Returns the entries of a directory, sorted by name; `None` if the directory is missing.
    fn list(&self, dir: &str) -> Result<Option<Vec<DirEntry>>>;
    /// Returns the length of a file; `None` if there is no such file.
    fn len(&self, path: &str) -> Result<Option<u64>>;
    /// Returns when a file was last written, by the wall clock; `None` if that is not known.
    fn modified(&self, _path: &str) -> Result<Option<TimestampMs>> {
        Ok(None)
    }
    /// Creates a directory (0700) and its missing parents, and syncs each new entry.
    fn create_dir(&self, dir: &str) -> Result<()>;
    /// Creates a directory (0700) and its missing parents. `sync_file_system` makes them durable.
    fn create_dir_unsynced(&self, dir: &str) -> Result<()>;
    /// Renames a file over another.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Removes a file. A missing file is ignored.
    fn unlink(&self, path: &str) -> Result<()>;
    /// Removes a directory and everything below it. A missing directory is ignored.
    fn remove_dir(&self, dir: &str) -> Result<()>;
    /// Makes the entries of a directory durable.
    fn sync_dir(&self, dir: &str) -> Result<()>;
    /// Makes everything durable that was written to the file system so far, contents and names, also by other processes
    /// (syncfs).
    fn sync_file_system(&self) -> Result<()>;
    /// Takes the exclusive lock of one byte of a file while the value lives; `None` if it is held elsewhere. Creates
    /// the file if it is missing. Uses open-file-description locks, which RocketMQ's POSIX locks respect.
    fn lock(&self, path: &str, byte: u64) -> Result<Option<Box<dyn Lock>>>;
    /// Returns whether a process holds the exclusive lock of that byte. Takes no lock and creates no file.
    fn is_locked(&self, path: &str, byte: u64) -> Result<bool>;
}

/// An open file.
pub trait File: Send + Sync + Debug {
    /// Returns the length in bytes.
    fn len(&self) -> Result<u64>;
    /// Returns whether the file has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Sets the length; new bytes are zeros and take no space.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Allocates space for a range, so that writing there cannot find the disk full. The bytes do not change.
    fn allocate(&self, range: Range<u64>) -> Result<()>;
    /// Makes a range read as zeros and frees its space if the file system can. The length does not change.
    fn punch(&self, range: Range<u64>) -> Result<()>;
    /// Returns whether a range is known to be zeros without much reading; false if that cannot be found out quickly.
    fn is_blank(&self, _range: Range<u64>) -> Result<bool> {
        Ok(false)
    }
    /// Reads exactly `buf.len()` bytes. Fails if the file ends before.
    fn read_at(&self, buf: &mut [u8], position: u64) -> Result<()>;
    /// Writes all of `buf`; short writes and interruptions are continued.
    fn write_at(&self, buf: &[u8], position: u64) -> Result<()>;
    /// Makes what was written, and the length, durable (fdatasync).
    fn sync(&self) -> Result<()>;
    /// Returns a read-only view of the file's present length.
    fn map_read(&self) -> Result<Box<dyn ReadMap>>;
    /// Returns a read-only view of a range alone, which must lie within the file. Bytes after it are not mapped.
    fn map_range(&self, range: Range<u64>) -> Result<Box<dyn ReadMap>>;
    /// Maps 64-bit values at the file's beginning, which other processes see at once.
    fn map_shared(&self, values: usize) -> Result<Box<dyn SharedMap>>;
}

/// A read-only view of a file.
pub trait ReadMap: Send + Sync + Debug {
    /// Returns the view's length in bytes.
    fn len(&self) -> u64;
    /// Returns whether the view has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the bytes of a range, or `None` if it reaches past the view. Borrowed from the map on a real disk.
    fn bytes(&self, range: Range<u64>) -> Option<Cow<'_, [u8]>>;
}

/// Aligned 64-bit values shared with other processes.
pub trait SharedMap: Send + Sync + Debug {
    /// Reads value `index` (acquire); 0 past the end.
    fn load(&self, index: usize) -> u64 {
        self.values().get(index).map_or(0, |value| value.load(Ordering::Acquire))
    }
    /// Writes value `index` (release). Ignores an index past the end. Fails if the file system needs space for it and
    /// has none.
    fn store(&self, index: usize, to: u64) -> Result<()> {
        if let Some(value) = self.values().get(index) {
            value.store(to, Ordering::Release);
        }
        Ok(())
    }
    /// Returns the values themselves; empty if they are not stored through the map.
    fn values(&self) -> &[AtomicU64];
}

/// A held lock. Dropping it unlocks, except in a forked child, which never unlocks what its parent holds.
pub trait Lock: Send + Sync + Debug {}
