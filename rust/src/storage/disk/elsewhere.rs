//! Replaces `disk.rs` on systems other than Linux, where no store on a disk can be opened.

use std::io;
use std::path::Path;

use super::{DirEntry, File, Lock, OpenMode, Storage};
use crate::base::error::{Error, Result};

const WHY: &str = "a store on a disk needs Linux\nhint: connect to a server there with txstore.connect, or test with a \
                   store in memory (txstore.testing.FakeBroker)";

/// A disk that cannot be opened here.
#[derive(Debug)]
pub enum Disk {}

impl Disk {
    /// Fails.
    pub fn open(root: &Path) -> Result<Self> {
        Err(Error::from_io("open", root, io::Error::new(io::ErrorKind::Unsupported, WHY)))
    }

    /// Fails.
    pub fn create(root: &Path) -> Result<Self> {
        Self::open(root)
    }
}

/// Returns false: nothing is in a store on a disk.
#[cfg(feature = "arrow")]
pub(crate) const fn is_within(_path: &Path, _directory: &Path) -> Result<bool> {
    Ok(false)
}

/// Returns `None`: no store can be there.
pub const fn network_file_system(_root: &Path) -> Result<Option<&'static str>> {
    Ok(None)
}

/// Does nothing: no lock is held.
pub const fn close_in_child() {}

impl Storage for Disk {
    fn root(&self) -> &Path {
        match *self {}
    }

    fn open(&self, _path: &str, _mode: OpenMode) -> Result<Box<dyn File>> {
        match *self {}
    }

    fn list(&self, _dir: &str) -> Result<Option<Vec<DirEntry>>> {
        match *self {}
    }

    fn len(&self, _path: &str) -> Result<Option<u64>> {
        match *self {}
    }

    fn create_dir(&self, _dir: &str) -> Result<()> {
        match *self {}
    }

    fn create_dir_unsynced(&self, _dir: &str) -> Result<()> {
        match *self {}
    }

    fn rename(&self, _from: &str, _to: &str) -> Result<()> {
        match *self {}
    }

    fn unlink(&self, _path: &str) -> Result<()> {
        match *self {}
    }

    fn remove_dir(&self, _dir: &str) -> Result<()> {
        match *self {}
    }

    fn sync_dir(&self, _dir: &str) -> Result<()> {
        match *self {}
    }

    fn sync_file_system(&self) -> Result<()> {
        match *self {}
    }

    fn lock(&self, _path: &str, _byte: u64) -> Result<Option<Box<dyn Lock>>> {
        match *self {}
    }

    fn is_locked(&self, _path: &str, _byte: u64) -> Result<bool> {
        match *self {}
    }
}
