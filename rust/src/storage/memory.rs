//! Implements storage in memory that loses writes, tears them, and fails at the n-th call.
//!
//! In:     the same calls as a disk's.
//! Out:    the same answers; and on request a copy of the files after a crash.
//! Always: the same seed leads to the same result. Calls that change something are counted from 1. Files know their
//!         modification time if they have a clock.

mod content;
mod held;
mod maps;
mod random;
mod sparse;
mod tree;

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use super::path::names_something;
use super::{DirEntry, File, Lock, OpenMode, Opener, ReadMap, SharedMap, Storage};
use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::{Mutex, RwLock};
use crate::base::system;
use crate::base::units::TimestampMs;
pub use held::HeldSyncs;
use held::SyncGate;
use maps::{MemoryReadMap, MemorySharedMap};
use random::Random;
use sparse::wide;
use tree::{Inode, Node, Tree, parent};

const LEN_MAX: u64 = i64::MAX.cast_unsigned();

/// What survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKeep {
    /// The process was killed: the effect of every finished call survives.
    PageCache,
    /// The power was lost: synced bytes survive, and others by chance.
    PowerLoss,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO. Such a failed sync has written some sectors and drops the others.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EROFS.
    ReadOnly,
    /// A write stops with EIO after this many bytes. Any other call fails with EIO.
    Tear(usize),
    /// The machine stops: EIO, and no call has any effect. `crash` finds what the previous call left. With `sticky`, what
    /// the process then stores into shared maps reaches no file.
    Stop,
    /// As `Stop`, but a write has stored this many bytes before. Later calls have no effect.
    StopInside(usize),
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    call: u64,
    kind: FaultKind,
    sticky: bool,
}

/// The counters, and the calls that fail.
#[derive(Debug, Default)]
struct Faults {
    calls: u64,
    with_reads: bool,
    plan: Option<Plan>,
    /// The number of bytes that each call was to write, if that is recorded.
    writes: Option<Vec<usize>>,
}

/// Decides what survives a power loss: returns a number from 0 to its argument.
type Choose<'c> = dyn FnMut(usize) -> usize + 'c;

type Watch = dyn Fn(&Path) + Send + Sync;

/// Receives the path of each call before it happens.
#[derive(Default)]
struct Watcher(Option<Arc<Watch>>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(if self.0.is_some() { "Watcher" } else { "no Watcher" })
    }
}

/// Bytes that can still be allocated; `u64::MAX`: no limit.
#[derive(Debug)]
struct Space(u64);

impl Default for Space {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Space {
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        if self.0 < u64::MAX {
            self.0 = self.0.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Read by each call that changes something, until it has its effect. `kill` waits for them.
    changing: RwLock<()>,
    tree: Mutex<Tree>,
    faults: Mutex<Faults>,
    watcher: Mutex<Watcher>,
    space: Mutex<Space>,
    /// Held locks, by file and byte.
    locks: Mutex<HashSet<(usize, u64)>>,
    /// How often a store was opened here, including before a crash.
    opens: AtomicU64,
    /// The process id of the opener.
    process: u32,
    /// Gives the modification time of files. Without a clock it is unknown.
    clock: Mutex<Option<Arc<dyn Clock>>>,
    gate: Arc<SyncGate>,
}

/// A call that changes something, until it has its effect.
type Changing<'s> = RwLockReadGuard<'s, ()>;

/// Files in memory. A clone is another handle of the same files.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    root: PathBuf,
    shared: Arc<Shared>,
}

impl Memory {
    /// Creates storage without files and faults.
    pub fn new() -> Self {
        Self { root: PathBuf::from("/memory"), ..Self::default() }
    }

    /// Creates storage without files. Ids that stores make there differ from those of all others, while those of `new`
    /// repeat.
    pub fn with_own_ids() -> Self {
        let mut random = [0; 8];
        // Without random bits the ids repeat, which harms only tests that keep them.
        let _ = system::random(&mut random);
        let [process @ .., a, b, c, d] = random;
        let opens = AtomicU64::new(u64::from(u32::from_ne_bytes([a, b, c, d])));
        let shared = Shared { opens, process: u32::from_ne_bytes(process).max(1), ..Shared::default() };
        Self { root: PathBuf::from("/memory"), shared: Arc::new(shared) }
    }

    /// Makes every later call fail, and returns what `survive` finds. A call of another thread has its effect before that,
    /// or fails.
    #[must_use]
    pub fn kill(&self, survive: impl FnOnce(&Self) -> Self) -> Self {
        let _no_call_is_halfway = self.shared.changing.write();
        self.fail_at(0, FaultKind::Stop, true);
        survive(self)
    }

    /// Returns a copy of the files after a crash at this moment, without locks and faults.
    #[must_use]
    pub fn crash(&self, seed: u64, keep: CrashKeep) -> Self {
        match keep {
            CrashKeep::PageCache => self.over(self.shared.tree.lock().without_process()),
            CrashKeep::PowerLoss => {
                let mut random = Random::new(seed);
                self.lose_power(|most| random.up_to(most))
            }
        }
    }

    /// Returns a copy of the files after a power loss. `choose` decides, from 0 to its argument, how many of a sector's
    /// changes were written, whether a name was, how long the file is.
    #[must_use]
    pub fn lose_power(&self, mut choose: impl FnMut(usize) -> usize) -> Self {
        self.over(self.shared.tree.lock().after_power_loss(&mut choose))
    }

    /// Uses this clock for the modification times of files.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        *self.shared.clock.lock() = Some(clock);
        self
    }

    fn over(&self, tree: Tree) -> Self {
        let opens = AtomicU64::new(self.shared.opens.load(Ordering::SeqCst));
        let clock = Mutex::new(self.shared.clock.lock().clone());
        let process = self.shared.process;
        let shared = Shared { tree: Mutex::new(tree), opens, process, clock, ..Shared::default() };
        Self { root: self.root.clone(), shared: Arc::new(shared) }
    }

    /// Makes a call fail, counted from 1 since the files were created. With `sticky`, every later call fails, too.
    pub fn fail_at(&self, call: u64, kind: FaultKind, sticky: bool) {
        self.shared.faults.lock().plan = Some(Plan { call, kind, sticky });
    }

    /// Ends all faults.
    pub fn clear_fault(&self) {
        self.shared.faults.lock().plan = None;
    }

    /// Sets whether calls that only read are counted, too.
    pub fn count_reads(&self, with_reads: bool) {
        self.shared.faults.lock().with_reads = with_reads;
    }

    /// Calls `watch` with the path before each call that reads or changes something. It may use these files itself.
    pub fn watch(&self, watch: impl Fn(&Path) + Send + Sync + 'static) {
        let before = self.shared.watcher.lock().0.replace(Arc::new(watch));
        drop(before); // Without the lock, because what it holds may use these files.
    }

    /// Calls `hook` before each call, with the number of calls before it. The hook's own calls do not count.
    pub fn before_each(&self, hook: impl Fn(u64) + Send + Sync + 'static) {
        let (calls, is_inside) = (AtomicU64::new(0), AtomicBool::new(false));
        self.watch(move |_| {
            if !is_inside.swap(true, Ordering::SeqCst) {
                hook(calls.fetch_add(1, Ordering::SeqCst));
                is_inside.store(false, Ordering::SeqCst);
            }
        });
    }

    /// Calls `hook` once, before the next call on a path below the root that begins with `prefix`.
    pub fn once_before(&self, prefix: &str, hook: impl FnOnce() + Send + 'static) {
        let (prefix, hook) = (self.root.join(prefix), Mutex::new(Some(hook)));
        self.watch(move |path| {
            let is_it = path.as_os_str().as_encoded_bytes().starts_with(prefix.as_os_str().as_encoded_bytes());
            let hook = if is_it { hook.lock().take() } else { None };
            if let Some(hook) = hook {
                hook();
            }
        });
    }

    /// Leaves this many bytes that can be allocated (each new file takes one); `u64::MAX`, the default, sets no limit.
    pub fn leave_space(&self, bytes: u64) {
        *self.shared.space.lock() = Space(bytes);
    }

    /// Records from now on how many bytes each counted call is to write; 0 if it does not write.
    pub fn note_writes(&self) {
        self.shared.faults.lock().writes = Some(Vec::new());
    }

    /// Returns the recorded sizes, so that a test knows where a call can be torn.
    pub fn noted_writes(&self) -> Vec<usize> {
        self.shared.faults.lock().writes.clone().unwrap_or_default()
    }

    /// Makes every sync of a file wait, as a slow disk does, until the value is dropped.
    #[must_use]
    pub fn hold_syncs(&self) -> HeldSyncs {
        HeldSyncs::of(&self.shared.gate)
    }

    /// Returns how many calls were counted.
    pub fn calls(&self) -> u64 {
        self.shared.faults.lock().calls
    }

    fn error(&self, operation: &'static str, path: &str, source: impl Into<io::Error>) -> Error {
        Error::from_io(operation, self.root.join(path), source.into())
    }

    fn changes(&self, operation: &'static str, path: &str) -> Result<Changing<'_>> {
        let (changing, fault) = self.shared.next_change(|| self.root.join(path));
        fault.map_or(Ok(changing), |fault| Err(self.error(operation, path, fault.error())))
    }

    fn reads(&self, operation: &'static str, path: &str) -> Result<()> {
        self.shared
            .next_read(|| self.root.join(path))
            .map_or(Ok(()), |fault| Err(self.error(operation, path, fault.error())))
    }

    /// Returns the normalized path, and the node at it.
    fn find(&self, tree: &Tree, operation: &'static str, path: &str) -> Result<Option<Node>> {
        if !names_something(path) {
            return Err(self.error(operation, path, io::ErrorKind::InvalidInput));
        }
        tree.find(path).map_err(|e| self.error(operation, path, e))
    }

    /// Returns a directory's normalized path.
    fn dir<'p>(&self, operation: &'static str, path: &'p str) -> Result<&'p str> {
        match path {
            "" | "." => Ok(""),
            _ if names_something(path) => Ok(path),
            _ => Err(self.error(operation, path, io::ErrorKind::InvalidInput)),
        }
    }

    /// Creates the missing directories of a path. Calls `created` with the path of each.
    fn make_dirs(&self, dir: &str, created: impl Fn(&mut Tree, &str)) -> Result<()> {
        let _changing = self.changes("create", dir)?;
        let path = self.dir("create", dir)?;
        let mut tree = self.shared.tree.lock();
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for part in ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty()) {
            match tree.find(part).map_err(|e| self.error("create", dir, e))? {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(self.error("create", dir, io::ErrorKind::NotADirectory)),
                None => {
                    tree.put(part, Node::Dir);
                    created(&mut tree, part);
                }
            }
        }
        Ok(())
    }

    fn file(&self, operation: &'static str, path: &str, make: bool) -> Result<Inode> {
        let mut tree = self.shared.tree.lock();
        match self.find(&tree, operation, path)? {
            Some(Node::File(inode)) => Ok(inode),
            Some(Node::Dir) => Err(self.error(operation, path, io::ErrorKind::IsADirectory)),
            None if make && tree.find(parent(path)).is_ok_and(|above| above.is_some()) => {
                self.shared.space.lock().take(1).map_err(|e| self.error(operation, path, e))?;
                let inode = Inode::default();
                tree.put(path, Node::File(Arc::clone(&inode)));
                Ok(inode)
            }
            None => Err(self.error(operation, path, io::ErrorKind::NotFound)),
        }
    }
}

impl Shared {
    /// Counts a call that changes something, and returns its fault. A path is made only for a watcher.
    fn next_change(&self, path: impl FnOnce() -> PathBuf) -> (Changing<'_>, Option<FaultKind>) {
        self.tell_watcher(path); // First, because it may use these files itself.
        let changing = self.changing.read();
        (changing, self.fault(false))
    }

    /// Counts a call that only reads, and returns its fault.
    fn next_read(&self, path: impl FnOnce() -> PathBuf) -> Option<FaultKind> {
        self.tell_watcher(path);
        self.fault(true)
    }

    fn fault(&self, only_reads: bool) -> Option<FaultKind> {
        let (fault, sticky) = self.count(only_reads)?;
        if sticky && matches!(fault, FaultKind::Stop | FaultKind::StopInside(_)) {
            self.tree.lock().files().iter().for_each(|file| file.lock().unshare());
        }
        Some(fault)
    }

    fn tell_watcher(&self, path: impl FnOnce() -> PathBuf) {
        let watch = self.watcher.lock().0.clone();
        if let Some(watch) = watch {
            watch(&path());
        }
    }

    /// Counts a call, and returns its fault and whether every later call fails, too.
    fn count(&self, only_reads: bool) -> Option<(FaultKind, bool)> {
        let mut faults = self.faults.lock();
        if only_reads && !faults.with_reads {
            return None;
        }
        faults.calls += 1;
        if let Some(writes) = &mut faults.writes {
            writes.push(0);
        }
        let calls = faults.calls;
        let plan = faults.plan.filter(|plan| calls == plan.call || (plan.sticky && calls > plan.call))?;
        match plan.kind {
            FaultKind::StopInside(_) if calls > plan.call => Some((FaultKind::Stop, true)),
            kind => Some((kind, plan.sticky)),
        }
    }
}

impl FaultKind {
    fn error(self) -> io::Error {
        match self {
            Self::Io | Self::Tear(_) | Self::Stop | Self::StopInside(_) => io::Error::from_raw_os_error(libc::EIO),
            Self::NoSpace => io::Error::from_raw_os_error(libc::ENOSPC),
            Self::ReadOnly => io::Error::from_raw_os_error(libc::EROFS),
        }
    }
}

impl Storage for Memory {
    fn root(&self) -> &Path {
        &self.root
    }

    fn opener(&self) -> Opener {
        let opens = self.shared.opens.fetch_add(1, Ordering::SeqCst);
        // The number follows from the process id, so that a repeated simulation writes the same bytes.
        let process = self.shared.process.max(1);
        let random = 0x0074_7873_746F_7265 << 64 | u128::from(process - 1) << 96 | u128::from(opens);
        Opener { process, opens, random: Some(random) }
    }

    fn open(&self, path: &str, mode: OpenMode) -> Result<Box<dyn File>> {
        let make = mode == OpenMode::Create;
        let _changing = if make { Some(self.changes("open", path)?) } else { None };
        if !make {
            self.reads("open", path)?;
        }
        let inode = self.file("open", path, make)?;
        let writable = mode != OpenMode::Read;
        Ok(Box::new(MemoryFile { shared: Arc::clone(&self.shared), inode, path: self.root.join(path), writable }))
    }

    fn list(&self, dir: &str) -> Result<Option<Vec<DirEntry>>> {
        self.reads("list", dir)?;
        let path = self.dir("list", dir)?;
        let tree = self.shared.tree.lock();
        match tree.find(path).map_err(|e| self.error("list", dir, e))? {
            None => return Ok(None),
            Some(Node::File(_)) => return Err(self.error("list", dir, io::ErrorKind::NotADirectory)),
            Some(Node::Dir) => {}
        }
        let entry = |(name, node): (&str, &Node)| match node {
            Node::Dir => DirEntry { name: name.to_owned(), is_dir: true, len: 0 },
            Node::File(inode) => DirEntry { name: name.to_owned(), is_dir: false, len: inode.lock().len() },
        };
        let mut entries: Vec<DirEntry> = tree.names(path).map(entry).collect();
        entries.sort();
        Ok(Some(entries))
    }

    fn len(&self, path: &str) -> Result<Option<u64>> {
        self.reads("stat", path)?;
        match self.find(&self.shared.tree.lock(), "stat", path)? {
            Some(Node::File(inode)) => Ok(Some(inode.lock().len())),
            Some(Node::Dir) | None => Ok(None),
        }
    }

    fn modified(&self, path: &str) -> Result<Option<TimestampMs>> {
        self.reads("stat", path)?;
        match self.find(&self.shared.tree.lock(), "stat", path)? {
            Some(Node::File(inode)) => Ok(inode.lock().modified()),
            Some(Node::Dir) | None => Ok(None),
        }
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.make_dirs(dir, |tree, part| tree.sync(parent(part)))
    }

    fn create_dir_unsynced(&self, dir: &str) -> Result<()> {
        self.make_dirs(dir, |_, _| ())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _changing = self.changes("rename", from)?;
        let mut tree = self.shared.tree.lock();
        let node = self.find(&tree, "rename", from)?;
        let Some(node @ Node::File(_)) = node else {
            return Err(self.error("rename", from, io::ErrorKind::NotFound));
        };
        if matches!(self.find(&tree, "rename", to)?, Some(Node::Dir)) {
            return Err(self.error("rename", from, io::ErrorKind::IsADirectory));
        }
        if tree.find(parent(to)).is_ok_and(|above| above.is_none()) {
            return Err(self.error("rename", to, io::ErrorKind::NotFound));
        }
        tree.rename(from, to, node);
        Ok(())
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let _changing = self.changes("remove", path)?;
        let mut tree = self.shared.tree.lock();
        match self.find(&tree, "remove", path)? {
            Some(Node::File(_)) => tree.remove(path),
            Some(Node::Dir) => return Err(self.error("remove", path, io::ErrorKind::IsADirectory)),
            None => {}
        }
        Ok(())
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        let _changing = self.changes("remove", dir)?;
        let mut tree = self.shared.tree.lock();
        match self.find(&tree, "remove", dir)? {
            Some(Node::Dir) => tree.remove(dir),
            Some(Node::File(_)) => return Err(self.error("remove", dir, io::ErrorKind::NotADirectory)),
            None => {}
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let _changing = self.changes("sync", dir)?;
        let path = self.dir("sync", dir)?;
        let mut tree = self.shared.tree.lock();
        match tree.find(path).map_err(|e| self.error("sync", dir, e))? {
            Some(Node::Dir) => tree.sync(path),
            _ => return Err(self.error("sync", dir, io::ErrorKind::NotFound)),
        }
        Ok(())
    }

    fn sync_file_system(&self) -> Result<()> {
        let (_changing, fault) = self.shared.next_change(|| self.root.clone());
        let mut tree = self.shared.tree.lock();
        let Some(fault) = fault else {
            tree.files().iter().for_each(|file| file.lock().sync());
            tree.sync_all();
            return Ok(());
        };
        if !matches!(fault, FaultKind::Stop | FaultKind::StopInside(_)) {
            // As with a failed sync of each file, some of it reached the disk, and the rest never will.
            let mut random = Random::new(self.shared.faults.lock().calls);
            tree.files().iter().for_each(|file| file.lock().fail_sync(&mut |most| random.up_to(most)));
        }
        Err(self.error("sync", "", fault.error()))
    }

    fn lock(&self, path: &str, byte: u64) -> Result<Option<Box<dyn Lock>>> {
        let _changing = self.changes("lock", path)?;
        let inode = self.file("lock", path, true)?;
        let locked = (identity(&inode), byte);
        if !self.shared.locks.lock().insert(locked) {
            return Ok(None);
        }
        Ok(Some(Box::new(MemoryLock { shared: Arc::clone(&self.shared), _inode: inode, locked })))
    }

    fn is_locked(&self, path: &str, byte: u64) -> Result<bool> {
        self.reads("read the lock of", path)?;
        match self.find(&self.shared.tree.lock(), "read the lock of", path)? {
            Some(Node::File(inode)) => Ok(self.shared.locks.lock().contains(&(identity(&inode), byte))),
            Some(Node::Dir) | None => Ok(false),
        }
    }
}

/// Returns a number that is unique among the existing files.
fn identity(inode: &Inode) -> usize {
    Arc::as_ptr(inode).addr()
}

#[derive(Debug)]
struct MemoryLock {
    shared: Arc<Shared>,
    _inode: Inode, // keeps the file's number unique
    locked: (usize, u64),
}

impl Lock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.shared.locks.lock().remove(&self.locked);
    }
}

#[derive(Debug)]
struct MemoryFile {
    shared: Arc<Shared>,
    inode: Inode,
    path: PathBuf,
    writable: bool,
}

impl MemoryFile {
    fn error(&self, operation: &'static str, source: impl Into<io::Error>) -> Error {
        Error::from_io(operation, &self.path, source.into())
    }

    fn reads(&self, operation: &'static str) -> Result<()> {
        self.shared.next_read(|| self.path.clone()).map_or(Ok(()), |fault| Err(self.error(operation, fault.error())))
    }

    /// Counts a change up to `end`. The caller handles the returned fault.
    fn changes(&self, operation: &'static str, end: Option<u64>) -> Result<(Changing<'_>, Option<FaultKind>)> {
        let (changing, fault) = self.shared.next_change(|| self.path.clone());
        if !self.writable {
            return Err(self.error(operation, io::Error::from_raw_os_error(libc::EBADF)));
        }
        if end.is_none_or(|end| end > LEN_MAX) {
            return Err(self.error(operation, io::Error::from_raw_os_error(libc::EFBIG)));
        }
        Ok((changing, fault))
    }

    fn changes_or_fails(&self, operation: &'static str, end: u64) -> Result<Changing<'_>> {
        let (changing, fault) = self.changes(operation, Some(end))?;
        fault.map_or(Ok(changing), |fault| Err(self.error(operation, fault.error())))
    }
}

impl File for MemoryFile {
    fn len(&self) -> Result<u64> {
        self.reads("stat")?;
        Ok(self.inode.lock().len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let _changing = self.changes_or_fails("set the length of", len)?;
        self.inode.lock().set_len(len);
        Ok(())
    }

    fn allocate(&self, range: Range<u64>) -> Result<()> {
        let _changing = self.changes_or_fails("reserve space for", range.end)?;
        self.shared.space.lock().take(range.end - range.start).map_err(|e| self.error("reserve space for", e))
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        let _changing = self.changes_or_fails("free space of", range.end)?;
        self.inode.lock().zero(range);
        Ok(())
    }

    fn is_blank(&self, range: Range<u64>) -> Result<bool> {
        let end = range.end.min(self.len()?);
        self.reads("read")?;
        Ok(self.inode.lock().is_blank(range.start..end))
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> Result<()> {
        self.reads("read")?;
        let mut content = self.inode.lock();
        let is_inside = position.checked_add(wide(buf.len())).is_some_and(|end| end <= content.len());
        if !is_inside && !buf.is_empty() {
            return Err(self.error("read", io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before")));
        }
        content.read(position, buf);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], position: u64) -> Result<()> {
        let end = position.checked_add(wide(buf.len())).or(buf.is_empty().then_some(0));
        let (_changing, fault) = self.changes("write", end)?;
        if let Some(last) = self.shared.faults.lock().writes.as_mut().and_then(|writes| writes.last_mut()) {
            *last = buf.len();
        }
        let written = match fault {
            None => buf,
            Some(FaultKind::Tear(bytes) | FaultKind::StopInside(bytes)) => buf.get(..bytes).unwrap_or(buf),
            Some(_) => &[],
        };
        let now = self.shared.clock.lock().as_ref().map(|clock| clock.wall());
        self.inode.lock().write(position, written, now);
        fault.map_or(Ok(()), |fault| Err(self.error("write", fault.error())))
    }

    fn sync(&self) -> Result<()> {
        self.shared.gate.pass();
        let (_changing, fault) = self.shared.next_change(|| self.path.clone());
        let Some(fault) = fault else {
            self.inode.lock().sync();
            return Ok(());
        };
        if !matches!(fault, FaultKind::Stop | FaultKind::StopInside(_)) {
            let mut random = Random::new(self.shared.faults.lock().calls);
            self.inode.lock().fail_sync(&mut |most| random.up_to(most));
        }
        Err(self.error("sync", fault.error()))
    }

    fn map_read(&self) -> Result<Box<dyn ReadMap>> {
        let len = self.len()?;
        Ok(Box::new(MemoryReadMap { inode: Arc::clone(&self.inode), range: 0..len }))
    }

    fn map_range(&self, range: Range<u64>) -> Result<Box<dyn ReadMap>> {
        if range.end > self.len()? || range.start > range.end {
            return Err(self.error("map", io::ErrorKind::UnexpectedEof));
        }
        Ok(Box::new(MemoryReadMap { inode: Arc::clone(&self.inode), range }))
    }

    fn map_shared(&self, values: usize) -> Result<Box<dyn SharedMap>> {
        self.reads("map")?;
        let mut content = self.inode.lock();
        let is_inside = values > 0 && wide(values).checked_mul(8).is_some_and(|bytes| bytes <= content.len());
        let shared = if is_inside { content.share(values) } else { None };
        let shared = shared.ok_or_else(|| self.error("map", io::ErrorKind::UnexpectedEof))?;
        Ok(Box::new(MemorySharedMap { shared, values, writable: self.writable }))
    }
}

#[cfg(test)]
mod tests;
