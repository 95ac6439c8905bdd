//! Stream: a connection's socket, by TCP (plain, or behind TLS) or by a file of this machine.
//!
//! In and out: bytes, without waiting. Not here: what they mean.

use std::io;
use std::net::SocketAddr;

use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream};

use super::tls::TlsStream;

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
            Self::Tls(stream) => stream.ready(interest).await,
        }
    }

    pub(super) fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            Self::Unix(stream) => stream.try_read(buffer),
            Self::Tls(stream) => stream.try_read(buffer),
        }
    }

    pub(super) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tls(stream) => stream.try_write(bytes),
        }
    }

    /// Whether what was taken has gone to the system; behind TLS some may wait here.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(true),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Says farewell, where that is more than closing.
    pub(super) fn close(&mut self) {
        if let Self::Tls(stream) = self {
            stream.close();
        }
    }

    /// The client's address; `None` for one of this machine that came by a file.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
            Self::Tls(stream) => stream.peer(),
        }
    }

    /// An answer is not held back for more to come.
    pub(super) fn set_no_delay(&self) {
        match self {
            // A socket that refuses is only slower.
            Self::Tcp(stream) => drop(stream.set_nodelay(true)),
            Self::Tls(stream) => stream.set_no_delay(),
            Self::Unix(_) => {}
        }
    }
}
