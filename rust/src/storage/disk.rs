//! Implements storage on the files below one real directory.
//!
//! In:     relative paths and byte ranges.
//! Out:    bytes, maps and locks of the operating system.
//! Always: walks every path part by part from one directory handle, and no part may be a symbolic link. Files are 0600,
//!         directories 0700, handles close on exec.
//! Not here: what is synced when (the callers know the order).
#![allow(unsafe_code)] // Maps and locks have no safe form. Each block says which code keeps its invariant.

mod lock;

pub use self::lock::close_in_child;

use std::borrow::Cow;
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use rustix::fs::{self, AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use self::lock::{DiskLock, is_locked};
use super::path::{parent_and_name, parts};
use super::{DirEntry, File, Lock, OpenMode, ReadMap, SharedMap, Storage};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::TimestampMs;

const EXT_MAGIC: fs::FsWord = 0xEF53; // ext2 to ext4
const TMPFS_MAGIC: fs::FsWord = 0x0102_1994;
const NETWORK_MAGICS: [(fs::FsWord, &str); 6] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "CIFS"),
    (0x517B, "CIFS"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
];
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
const BLANK_BLOCK_BYTES: usize = 4096; // how many bytes `is_blank` reads in one step
const BLANK_BLOCKS_MAX: usize = 16;
/// A view of at most so many bytes is read at once, and nothing after it: reading ahead, which may be megabytes, would
/// cost more than the view.
const SMALL_VIEW: usize = 4 << 20;
const ZERO_BLOCK_BYTES: usize = 1 << 20; // the size of one write if holes cannot be punched

/// The files below one real directory.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
    handle: OwnedFd,
}

impl Disk {
    /// Opens the files below an existing directory.
    pub fn open(root: &Path) -> Result<Self> {
        let failed = |source: io::Error| Error::from_io("open", root, source);
        let root = std::path::absolute(root).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Only the store's own directory may be a symbolic link, because the user named it.
        let handle = retry_on_intr(|| fs::open(&root, flags, Mode::empty())).map_err(|e| failed(e.into()))?;
        Ok(Self { root, handle })
    }

    /// Opens the files like `open`, and creates the directory (not its parents) if it is missing.
    pub fn create(root: &Path) -> Result<Self> {
        let failed = |source: Errno| Error::from_io("create", root, source.into());
        match fs::mkdir(root, Mode::from_raw_mode(DIR_MODE)) {
            Ok(()) => {
                let disk = Self::open(root)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let above = retry_on_intr(|| fs::openat(&disk.handle, c"..", flags, Mode::empty())).map_err(failed)?;
                retry_on_intr(|| fs::fsync(&above)).map_err(failed)?;
                Ok(disk)
            }
            Err(Errno::EXIST) => Self::open(root),
            Err(source) => Err(failed(source)),
        }
    }

    fn error(&self, operation: &'static str, path: &str, source: impl Into<io::Error>) -> Error {
        Error::from_io(operation, self.root.join(path), source.into())
    }

    fn refused(&self, operation: &'static str, path: &str) -> Error {
        let why = "the path is not below the store's directory";
        self.error(operation, path, io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// Returns the handle of a directory, walked part by part. Fails with `ENOENT` if a part is missing.
    fn dir(&self, parts: &[&str]) -> Result<OwnedFd, Errno> {
        let mut here = self.handle.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        for part in parts {
            here = open_dir(here.as_fd(), part)?;
        }
        Ok(here)
    }

    /// Returns a path's directory handle and last part, or the error of the call that failed.
    fn parent<'p>(&self, operation: &'static str, path: &'p str) -> Result<(Result<OwnedFd, Errno>, &'p str)> {
        let (above, name) = parent_and_name(path).ok_or_else(|| self.refused(operation, path))?;
        Ok((self.dir(&above), name))
    }

    /// Creates the missing directories of a path. Calls `created` with the directory that got a new entry.
    fn make_dirs(&self, dir: &str, created: impl Fn(&OwnedFd) -> Result<(), Errno>) -> Result<()> {
        let parts = parts(dir).ok_or_else(|| self.refused("create", dir))?;
        let failed = |source: Errno| self.error("create", dir, source);
        let mut here = self.dir(&[]).map_err(failed)?;
        for part in parts {
            match fs::mkdirat(&here, part, Mode::from_raw_mode(DIR_MODE)) {
                Ok(()) => created(&here).map_err(failed)?,
                Err(Errno::EXIST) => {}
                Err(source) => return Err(failed(source)),
            }
            here = open_dir(here.as_fd(), part).map_err(failed)?;
        }
        Ok(())
    }

    fn open_file(&self, operation: &'static str, path: &str, flags: OFlags) -> Result<Result<OwnedFd, Errno>> {
        let (above, name) = self.parent(operation, path)?;
        // Without NONBLOCK, opening a pipe would wait for its other end. Everything except a regular file is refused
        // afterwards.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(above.and_then(|above| retry_on_intr(|| fs::openat(&above, name, flags, Mode::from_raw_mode(FILE_MODE)))))
    }
}

/// Returns whether a path is a directory or leads into it, by its names and symbolic links. The path need not exist, but
/// its parent must.
#[cfg(feature = "arrow")]
pub(crate) fn is_within(path: &Path, directory: &Path) -> Result<bool> {
    let failed = |source: io::Error| Error::from_io("create", path, source);
    // Of a directory that no file system has, nothing on a disk is a part.
    let Ok(directory) = directory.canonicalize() else { return Ok(false) };
    let full = std::path::absolute(path).map_err(failed)?;
    let full = match (full.canonicalize(), full.parent(), full.file_name()) {
        (Err(why), Some(parent), Some(name)) if why.kind() == io::ErrorKind::NotFound => {
            parent.canonicalize().map_err(failed)?.join(name)
        }
        (found, _, _) => found.map_err(failed)?,
    };
    Ok(full.starts_with(directory))
}

fn open_dir(above: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| fs::openat(above, name, flags, Mode::empty()))
}

impl Storage for Disk {
    fn root(&self) -> &Path {
        &self.root
    }

    fn open(&self, path: &str, mode: OpenMode) -> Result<Box<dyn File>> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE,
        };
        let handle = self.open_file("open", path, flags)?.map_err(|e| self.error("open", path, e))?;
        let file = DiskFile { handle, path: self.root.join(path), writable: mode != OpenMode::Read };
        let stat = fs::fstat(&file.handle).map_err(|e| file.error("open", e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(file.error("open", io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        Ok(Box::new(file))
    }

    fn list(&self, dir: &str) -> Result<Option<Vec<DirEntry>>> {
        let parts = parts(dir).ok_or_else(|| self.refused("list", dir))?;
        let handle = match self.dir(&parts) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(None),
            Err(source) => return Err(self.error("list", dir, source)),
        };
        let mut entries = dir_entries(handle.as_fd()).map_err(|e| self.error("list", dir, e))?;
        entries.sort();
        Ok(Some(entries))
    }

    fn len(&self, path: &str) -> Result<Option<u64>> {
        let (above, name) = self.parent("stat", path)?;
        match above.and_then(|above| fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(None),
            Ok(stat) => Ok(Some(u64::try_from(stat.st_size).unwrap_or(0))),
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(self.error("stat", path, source)),
        }
    }

    fn modified(&self, path: &str) -> Result<Option<TimestampMs>> {
        let (above, name) = self.parent("stat", path)?;
        match above.and_then(|above| fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) => {
                let rest = i64::try_from(stat.st_mtime_nsec).unwrap_or(0) / 1_000_000;
                Ok(Some(TimestampMs(stat.st_mtime.saturating_mul(1_000).saturating_add(rest))))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(self.error("stat", path, source)),
        }
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.make_dirs(dir, |above| retry_on_intr(|| fs::fsync(above)))
    }

    fn create_dir_unsynced(&self, dir: &str) -> Result<()> {
        self.make_dirs(dir, |_| Ok(()))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from_dir, from_name) = self.parent("rename", from)?;
        let (to_dir, to_name) = self.parent("rename", to)?;
        let from_dir = from_dir.map_err(|e| self.error("rename", from, e))?;
        let to_dir = to_dir.map_err(|e| self.error("rename", to, e))?;
        fs::renameat(&from_dir, from_name, &to_dir, to_name).map_err(|e| self.error("rename", from, e))
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (above, name) = self.parent("remove", path)?;
        match above.and_then(|above| fs::unlinkat(&above, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(self.error("remove", path, source)),
        }
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        let (above, name) = self.parent("remove", dir)?;
        match above.and_then(|above| remove_tree(above.as_fd(), name)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(self.error("remove", dir, source)),
        }
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let parts = parts(dir).ok_or_else(|| self.refused("sync", dir))?;
        let synced = self.dir(&parts).and_then(|handle| retry_on_intr(|| fs::fsync(&handle)));
        synced.map_err(|e| self.error("sync", dir, e))
    }

    fn sync_file_system(&self) -> Result<()> {
        retry_on_intr(|| fs::syncfs(&self.handle)).map_err(|e| self.error("sync", "", e))
    }

    fn lock(&self, path: &str, byte: u64) -> Result<Option<Box<dyn Lock>>> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let handle = self.open_file("lock", path, flags)?.map_err(|e| self.error("lock", path, e))?;
        match DiskLock::take(handle, byte).map_err(|e| self.error("lock", path, e))? {
            Some(held) => Ok(Some(Box::new(held))),
            None => Ok(None),
        }
    }

    fn is_locked(&self, path: &str, byte: u64) -> Result<bool> {
        let handle = match self.open_file("read the lock of", path, OFlags::RDONLY)? {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(false),
            Err(source) => return Err(self.error("read the lock of", path, source)),
        };
        is_locked(&handle, byte).map_err(|e| self.error("read the lock of", path, e))
    }
}

/// Returns the entries of a directory, unsorted. Leaves out entries that disappear in the meantime.
fn dir_entries(handle: BorrowedFd<'_>) -> Result<Vec<DirEntry>, Errno> {
    let mut entries = Vec::new();
    for entry in retry_on_intr(|| fs::Dir::read_from(handle))? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = match fs::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(source) => return Err(source),
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let len = if is_dir { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) };
        entries.push(DirEntry { name: name.to_string_lossy().into_owned(), is_dir, len });
    }
    Ok(entries)
}

fn remove_tree(above: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let handle = open_dir(above, name)?;
    for entry in dir_entries(handle.as_fd())? {
        if entry.is_dir {
            remove_tree(handle.as_fd(), &entry.name)?;
        } else {
            fs::unlinkat(&handle, entry.name.as_str(), AtFlags::empty())?;
        }
    }
    fs::unlinkat(above, name, AtFlags::REMOVEDIR)
}

#[derive(Debug)]
struct DiskFile {
    handle: OwnedFd,
    path: PathBuf,
    writable: bool,
}

impl DiskFile {
    #[cold]
    fn error(&self, operation: &'static str, source: impl Into<io::Error>) -> Error {
        Error::from_io(operation, &self.path, source.into())
    }

    fn too_short(&self, operation: &'static str) -> Error {
        self.error(operation, io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before"))
    }

    /// Writes zeros over everything that is not a hole, up to the file's end.
    fn write_zeros(&self, range: Range<u64>) -> Result<()> {
        let end = range.end.min(self.len()?);
        let zeros = vec![0; ZERO_BLOCK_BYTES];
        let mut at = range.start;
        while at < end {
            at = match fs::seek(&self.handle, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(()),
                Err(_) => at,
            };
            let bytes = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(ZERO_BLOCK_BYTES);
            self.write_at(zeros.get(..bytes).unwrap_or_default(), at)?;
            at += u64::try_from(bytes).unwrap_or(u64::MAX).max(1);
        }
        Ok(())
    }
}

/// Returns the kind of file system that a directory is on, if other machines may have it mounted, or if it may not keep
/// locks and sockets as a local one does.
pub fn network_file_system(root: &Path) -> Result<Option<&'static str>> {
    let stat = retry_on_intr(|| fs::statfs(root)).map_err(|error| Error::from_io("look at", root, error.into()))?;
    Ok(network_kind(stat.f_type))
}

fn network_kind(file_system: fs::FsWord) -> Option<&'static str> {
    NETWORK_MAGICS.iter().find(|(magic, _)| *magic == file_system).map(|(_, kind)| *kind)
}

/// Returns whether written bytes can be written again on a full disk. If a file system copies on write (btrfs; XFS for
/// blocks that a copy of the file shares), storing through a map needs space. Without it a signal ends the process. An
/// unknown file system counts as one of these.
fn keeps_its_blocks(file_system: fs::FsWord) -> bool {
    [EXT_MAGIC, TMPFS_MAGIC].contains(&file_system) || mutated(Mutant::MappedEverywhere)
}

impl DiskFile {
    fn keeps_its_blocks(&self) -> bool {
        fs::fstatfs(&self.handle).is_ok_and(|stat| keeps_its_blocks(stat.f_type))
    }

    fn written_map(&self, watched: DiskWatchedMap) -> Result<Box<dyn SharedMap>> {
        let handle = self.handle.try_clone().map_err(|e| self.error("map", e))?;
        Ok(Box::new(DiskWrittenMap { watched, file: Self { handle, path: self.path.clone(), writable: true } }))
    }
}

impl File for DiskFile {
    fn len(&self) -> Result<u64> {
        let stat = fs::fstat(&self.handle).map_err(|e| self.error("stat", e))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        retry_on_intr(|| fs::ftruncate(&self.handle, len)).map_err(|e| self.error("set the length of", e))
    }

    fn allocate(&self, range: Range<u64>) -> Result<()> {
        let Some(bytes) = range.end.checked_sub(range.start).filter(|bytes| *bytes > 0) else { return Ok(()) };
        match retry_on_intr(|| fs::fallocate(&self.handle, FallocateFlags::KEEP_SIZE, range.start, bytes)) {
            // Such a file system allocates space when the bytes are written, and reports a full disk then.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(source) => Err(self.error("reserve space for", source)),
        }
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        let Some(bytes) = range.end.checked_sub(range.start).filter(|bytes| *bytes > 0) else { return Ok(()) };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fs::fallocate(&self.handle, flags, range.start, bytes)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(range),
            Err(source) => Err(self.error("free space of", source)),
        }
    }

    fn is_blank(&self, range: Range<u64>) -> Result<bool> {
        let (mut at, end) = (range.start, range.end.min(self.len()?));
        let mut bytes = [0; BLANK_BLOCK_BYTES];
        for _ in 0..BLANK_BLOCKS_MAX {
            at = match fs::seek(&self.handle, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => return Ok(true),
                Err(_) => at,
            };
            if at >= end {
                return Ok(true);
            }
            let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(BLANK_BLOCK_BYTES);
            let block = bytes.get_mut(..length).unwrap_or_default();
            self.read_at(block, at)?;
            if block.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += u64::try_from(length).unwrap_or(u64::MAX);
        }
        Ok(at >= end)
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = position.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            match pread(&self.handle, rest, at) {
                Ok(0) => return Err(self.too_short("read")),
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(source) => return Err(self.error("read", source)),
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], position: u64) -> Result<()> {
        let (mut rest, mut at) = (buf, position);
        while !rest.is_empty() {
            match pwrite(&self.handle, rest, at) {
                Ok(0) => return Err(self.error("write", io::Error::from(io::ErrorKind::WriteZero))),
                Ok(bytes) => {
                    rest = rest.get(bytes..).unwrap_or_default();
                    at = at.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
                }
                Err(Errno::INTR) => {}
                Err(source) => return Err(self.error("write", source)),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // Only an interruption, which did nothing, is retried: after a real failure the pages count as clean.
        retry_on_intr(|| fs::fdatasync(&self.handle)).map_err(|e| self.error("sync", e))
    }

    fn map_read(&self) -> Result<Box<dyn ReadMap>> {
        let len = self.len()?;
        if len == 0 {
            return Ok(Box::new(DiskReadMap { map: None }));
        }
        let bytes = usize::try_from(len).map_err(|_| self.error("map", Errno::OVERFLOW))?;
        // SAFETY: the map is read-only and no store file is truncated while it is open (docs/operate/failures.md), so
        // no access faults. Only bytes past the visible end may change under the view; callers read those only as plain
        // integers and bytes, whose every value is allowed, and verify them afterwards.
        let map = unsafe { MmapOptions::new().len(bytes).map(&self.handle) }.map_err(|e| self.error("map", e))?;
        Ok(Box::new(DiskReadMap { map: Some(map) }))
    }

    fn map_range(&self, range: Range<u64>) -> Result<Box<dyn ReadMap>> {
        if range.end > self.len()? || range.start > range.end {
            return Err(self.too_short("map"));
        }
        if range.is_empty() {
            return Ok(Box::new(DiskReadMap { map: None }));
        }
        let bytes = usize::try_from(range.end - range.start).map_err(|_| self.error("map", Errno::OVERFLOW))?;
        // SAFETY: as in `map_read`, of a part of the file.
        let map = unsafe { MmapOptions::new().offset(range.start).len(bytes).map(&self.handle) };
        let map = map.map_err(|e| self.error("map", e))?;
        if bytes <= SMALL_VIEW {
            // Advice may be ignored.
            let _ = map.advise(Advice::Random).and_then(|()| map.advise(Advice::WillNeed));
        }
        Ok(Box::new(DiskReadMap { map: Some(map) }))
    }

    fn map_shared(&self, values: usize) -> Result<Box<dyn SharedMap>> {
        let bytes = values.checked_mul(size_of::<AtomicU64>()).ok_or_else(|| self.error("map", Errno::OVERFLOW))?;
        if self.len()? < u64::try_from(bytes).unwrap_or(u64::MAX) || bytes == 0 {
            return Err(self.too_short("map"));
        }
        let mut options = MmapOptions::new();
        let options = options.len(bytes);
        // SAFETY (both): the file is at least that long and never truncated; its bytes are touched only through the
        // atomics below and by writes of whole values, by this process and by others.
        if self.writable && self.keeps_its_blocks() {
            let map = unsafe { options.map_mut(&self.handle) }.map_err(|e| self.error("map", e))?;
            return Ok(Box::new(DiskSharedMap { map, values }));
        }
        let map = unsafe { options.map(&self.handle) }.map_err(|e| self.error("map", e))?;
        let watched = DiskWatchedMap { map, values };
        if self.writable { self.written_map(watched) } else { Ok(Box::new(watched)) }
    }
}

#[derive(Debug)]
struct DiskReadMap {
    map: Option<Mmap>,
}

impl DiskReadMap {
    fn all(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl ReadMap for DiskReadMap {
    fn len(&self) -> u64 {
        u64::try_from(self.all().len()).unwrap_or(u64::MAX)
    }

    fn bytes(&self, range: Range<u64>) -> Option<Cow<'_, [u8]>> {
        let (from, to) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        self.all().get(from..to).map(Cow::Borrowed)
    }
}

/// The values for their only writer.
#[derive(Debug)]
struct DiskSharedMap {
    map: MmapMut,
    values: usize,
}

impl SharedMap for DiskSharedMap {
    fn values(&self) -> &[AtomicU64] {
        // SAFETY: a map begins at a page, so the values are aligned; it is `values` * 8 bytes long, lives as long as
        // `self`, is written through these atomics only, and each bit pattern is an integer.
        #[allow(clippy::cast_ptr_alignment)] // a page is aligned for anything
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), self.values)
        }
    }
}

/// The values for a reader. A store into them would fault, so the reader never gets the atomics.
#[derive(Debug)]
struct DiskWatchedMap {
    map: Mmap,
    values: usize,
}

impl SharedMap for DiskWatchedMap {
    fn load(&self, index: usize) -> u64 {
        if index >= self.values {
            return 0;
        }
        // SAFETY: as in `DiskSharedMap`. The pages are read-only, where only relaxed loads of this size are allowed, so
        // the ordering comes from the fence.
        #[allow(clippy::cast_ptr_alignment)]
        let cell = unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(index) };
        let mut value = cell.load(Ordering::Relaxed);
        loop {
            fence(Ordering::Acquire);
            // If the writer writes values with `pwrite`, the kernel copies eight bytes at once on all processors that
            // we know. If one copies them in parts, two equal reads still give a whole value.
            let again = cell.load(Ordering::Relaxed);
            if again == value {
                return value;
            }
            value = again;
        }
    }

    fn store(&self, _index: usize, _to: u64) -> Result<()> {
        Ok(())
    }

    fn values(&self) -> &[AtomicU64] {
        &[]
    }
}

/// The values for their only writer on a file system where storing through a map may need space. Each is written with
/// `pwrite`, which reports a full disk as an error.
#[derive(Debug)]
struct DiskWrittenMap {
    watched: DiskWatchedMap,
    file: DiskFile,
}

impl SharedMap for DiskWrittenMap {
    fn load(&self, index: usize) -> u64 {
        self.watched.load(index)
    }

    fn store(&self, index: usize, to: u64) -> Result<()> {
        if index >= self.watched.values {
            return Ok(());
        }
        // Earlier writes must be seen before this one, and the kernel's copy has no ordering of its own.
        fence(Ordering::SeqCst);
        let position = u64::try_from(index.saturating_mul(size_of::<u64>())).unwrap_or(u64::MAX);
        self.file.write_at(&to.to_ne_bytes(), position)
    }

    fn values(&self) -> &[AtomicU64] {
        &[]
    }
}

#[cfg(test)]
mod tests;
