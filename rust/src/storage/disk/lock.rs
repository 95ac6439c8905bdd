//! Locks single bytes of a file, with open-file-description locks.
//!
//! In:     an open file, a byte.
//! Out:    a held lock.
//! Always: the process that took a lock unlocks it explicitly when it is dropped, so that a forked child's copy of the
//!         descriptor does not keep it. A forked child never unlocks, because the lock belongs to the open file
//!         description, which it shares with its parent. It only closes its copies, so that it does not keep the lock
//!         of a parent that was killed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use rustix::io::{Errno, retry_on_intr};

use crate::base::mutant::{Mutant, mutated};
use crate::storage::Lock;

/// No descriptor.
const NONE: RawFd = -1;

/// An entry that holds the descriptor of one lock of this process, for `close_in_child`.
///
/// The list only grows, a free entry is used again, and no lock guards it: a fork may come at any moment, and a mutex
/// that another thread holds at that moment would stay locked in the child for ever.
#[derive(Debug)]
struct Held {
    descriptor: AtomicI32,
    next: AtomicPtr<Held>,
}

impl Held {
    const fn new(descriptor: RawFd) -> Self {
        Self { descriptor: AtomicI32::new(descriptor), next: AtomicPtr::new(null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: the pointer is null or comes from `Box::leak` in `note`, so it is valid for ever.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// Notes a descriptor in the first free entry, or in a new one at the end.
    fn note(descriptor: RawFd) -> &'static Self {
        let mut entry: &'static Self = &FIRST;
        loop {
            if entry.descriptor.compare_exchange(NONE, descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return entry;
            }
            if let Some(next) = entry.next() {
                entry = next;
                continue;
            }
            let new = Box::into_raw(Box::new(Self::new(NONE)));
            if entry.next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: another thread added an entry first, so no other code has seen this one.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

static FIRST: Held = Held::new(NONE);

/// Closes this process's copies of all locks. Call it in a child right after the fork. The parent keeps its locks.
pub fn close_in_child() {
    let mut entry = Some(&FIRST).filter(|_| !mutated(Mutant::ChildKeepsLocks));
    while let Some(held) = entry {
        drop(owned(held.descriptor.swap(NONE, Ordering::AcqRel)));
        entry = held.next();
    }
}

fn owned(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: a noted descriptor is owned by its entry alone: `DiskLock::take` handed over its ownership, and the swap
    // that took it out of the entry returns it to one caller only.
    (descriptor != NONE).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A held lock of one byte.
#[derive(Debug)]
pub(super) struct DiskLock {
    held: &'static Held,
    byte: u64,
    process: u32,
}

impl DiskLock {
    /// Takes the exclusive lock of a byte; `None` if it is held elsewhere.
    pub(super) fn take(file: OwnedFd, byte: u64) -> Result<Option<Self>, Errno> {
        // The descriptor is noted before it is locked, so that a fork in between leaves no unknown copy that holds the
        // lock.
        let lock = Self { held: Held::note(file.into_raw_fd()), byte, process: process() };
        match lock.ask(libc::F_OFD_SETLK, libc::F_WRLCK) {
            Ok(_) => Ok(Some(lock)),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ask(&self, command: i32, kind: i32) -> Result<i32, Errno> {
        // SAFETY: the descriptor is open while it is noted, and only `drop` takes it out in this process.
        let file = unsafe { BorrowedFd::borrow_raw(self.held.descriptor.load(Ordering::Acquire)) };
        one_byte_lock(file, command, kind, self.byte)
    }
}

impl Drop for DiskLock {
    fn drop(&mut self) {
        // In a forked child the entry may already belong to a lock of its own, and the lock itself is the parent's.
        if self.process == process() {
            // Closing alone would keep the lock while any forked child lives. An error changes nothing: the descriptor
            // is closed anyway.
            let _ = (!mutated(Mutant::ClosedNotUnlocked)).then(|| self.ask(libc::F_OFD_SETLK, libc::F_UNLCK));
            drop(owned(self.held.descriptor.swap(NONE, Ordering::AcqRel)));
        }
    }
}

impl Lock for DiskLock {}

fn process() -> u32 {
    std::process::id()
}

/// Returns whether a process holds the exclusive lock of a byte.
pub(super) fn is_locked(file: &OwnedFd, byte: u64) -> Result<bool, Errno> {
    // A shared lock conflicts only with exclusive ones, which is what the call asks for.
    Ok(one_byte_lock(file.as_fd(), libc::F_OFD_GETLK, libc::F_RDLCK, byte)? != libc::F_UNLCK)
}

/// Requests or tests an open-file-description lock of one byte. Returns the kind of lock in the answer.
fn one_byte_lock(handle: BorrowedFd<'_>, command: i32, kind: i32, byte: u64) -> Result<i32, Errno> {
    let start = libc::off_t::try_from(byte).map_err(|_| Errno::INVAL)?;
    let (kind, whence) = (i16::try_from(kind), i16::try_from(libc::SEEK_SET));
    let (Ok(l_type), Ok(l_whence)) = (kind, whence) else { return Err(Errno::INVAL) };
    // SAFETY: `flock` is a plain C structure of integers, for which all zeros is a value; l_pid must be 0 here.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) = (l_type, l_whence, start, 1);
    // SAFETY: the handle is open while it is borrowed and `lock` is a live structure of the type that both commands
    // take; the call keeps no pointer to it.
    retry_on_intr(|| match unsafe { libc::fcntl(handle.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    })?;
    Ok(i32::from(lock.l_type))
}
