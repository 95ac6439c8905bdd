//! Stream: a connection's socket, by TCP or by a file of this machine.
//!
//! In and out: bytes, without waiting. Not here: what they mean.

use std::io;
use std::net::SocketAddr;

use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            Self::Unix(stream) => stream.try_read(buffer),
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// The client's address; `None` for one of this machine that came by a file.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// An answer is not held back for more to come.
    pub(super) fn set_no_delay(&self) {
        if let Self::Tcp(stream) = self {
            // A socket that refuses is only slower.
            let _ = stream.set_nodelay(true);
        }
    }
}
