//! Calls of Linux that other systems have under other names, or not at all.
//!
//! Out:    random bits, whether a process runs, events with a file descriptor.
//! Not here: files (`storage::disk`), time (`clock`), and the same functions for other systems (`system/elsewhere.rs`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Fills `bytes` with random bits. Returns whether the system has them.
pub(crate) fn random(bytes: &mut [u8]) -> bool {
    let len = bytes.len();
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty()).is_ok_and(|filled| filled == len)
}

/// Returns whether a process with that id runs on this machine.
pub(crate) fn is_running(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    let found = process.map(rustix::process::test_kill_process);
    // A process of another user cannot be signalled, but it runs.
    !matches!(found, Some(Err(rustix::io::Errno::SRCH)) | None)
}

/// A file descriptor that becomes readable when the event is set. An event loop waits for it.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// Creates an event that is not set.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable.
    pub(crate) fn set(&self) {
        // It fails only if nobody has read 2^64 - 2 events, and then the descriptor is readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until the next `set`.
    pub(crate) fn clear(&self) {
        // It fails if the event was not set, which is fine.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Returns the number of the descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
