//! Replaces `local.rs` on systems other than Linux: a server listens only at TCP addresses there.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::io::{Interest, Ready};

use crate::base::error::{Error, Result};

fn refused<T>(address: impl Into<std::path::PathBuf>) -> Result<T> {
    let why = "a local socket needs Linux\nhint: listen at HOST:PORT";
    Err(Error::from_io("listen at", address, io::Error::new(io::ErrorKind::Unsupported, why)))
}

/// A socket that cannot be created here.
#[derive(Debug)]
pub enum LocalSocket {}

impl LocalSocket {
    pub(super) const fn try_clone(&self) -> io::Result<Self> {
        match *self {}
    }
}

/// A socket of a server that cannot be created here.
#[derive(Debug)]
pub(super) enum UnixListener {}

impl UnixListener {
    pub(super) const fn from_std(socket: LocalSocket) -> io::Result<Self> {
        match socket {}
    }

    #[allow(clippy::unused_async)] // As tokio's.
    pub(super) async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        match *self {}
    }
}

/// A connection that cannot be made here.
#[derive(Debug)]
pub(super) enum UnixStream {}

impl UnixStream {
    #[allow(clippy::unused_async)] // As tokio's.
    pub(super) async fn ready(&self, _interest: Interest) -> io::Result<Ready> {
        match *self {}
    }

    pub(super) const fn try_read(&self, _buffer: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) const fn try_write(&self, _bytes: &[u8]) -> io::Result<usize> {
        match *self {}
    }
}

/// Fails.
pub(super) fn bind(path: &Path) -> Result<UnixListener> {
    refused(path)
}

/// Returns whether a client may connect at all.
pub(super) const fn may_connect(client: &UnixStream) -> bool {
    match *client {}
}

/// A listening socket that cannot be created here.
#[derive(Debug)]
pub enum LocalListener {}

impl LocalListener {
    /// Fails.
    pub fn bind(address: &str) -> Result<Self> {
        refused(address)
    }

    /// Is never called.
    pub const fn wait(&self) -> Result<bool> {
        match *self {}
    }

    /// Is never called.
    pub const fn wake(&self) {
        match *self {}
    }

    /// Is never called.
    pub const fn socket(&self) -> Result<LocalSocket> {
        match *self {}
    }

    /// Is never called.
    pub const fn descriptors(&self) -> [i32; 2] {
        match *self {}
    }
}
