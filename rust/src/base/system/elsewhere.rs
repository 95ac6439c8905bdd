//! Replaces `system.rs` on systems other than Linux.
//!
//! Out:    the same functions, as far as stores in memory and clients need them.

use std::io;
#[cfg(unix)]
use std::io::{Read, Write};
#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::net::UnixStream};

/// Fills `bytes` with random bits. Returns whether the system has them.
pub(crate) fn random(bytes: &mut [u8]) -> bool {
    getrandom::fill(bytes).is_ok()
}

/// Returns true: only a store on a disk asks, to tell whether its last writer is gone.
pub(crate) const fn is_running(_process: u32) -> bool {
    true
}

/// A socket that becomes readable when the event is set. An event loop waits for it.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct Event {
    read: UnixStream,
    write: UnixStream,
}

#[cfg(unix)]
impl Event {
    /// Creates an event that is not set.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self { read, write })
    }

    /// Makes the descriptor readable.
    pub(crate) fn set(&self) {
        // It fails only if the buffer is full, and then the descriptor is readable.
        let _ = (&self.write).write(&[1]);
    }

    /// Makes the descriptor unreadable until the next `set`.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.read).read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }

    /// Returns the number of the descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        self.read.as_raw_fd()
    }
}

/// An event that cannot be created: the loops of this system cannot wait for one.
#[cfg(not(unix))]
#[derive(Debug)]
pub(crate) enum Event {}

#[cfg(not(unix))]
impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a store in the process of an event loop needs Linux or macOS"))
    }

    pub(crate) const fn set(&self) {
        match *self {}
    }

    pub(crate) const fn clear(&self) {
        match *self {}
    }

    pub(crate) const fn descriptor(&self) -> i32 {
        match *self {}
    }
}
