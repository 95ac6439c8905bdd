//! A connection's socket: TCP, TCP with TLS, or a Unix socket.
//!
//! In:     bytes, without waiting.
//! Out:    bytes, without waiting.
//! Not here: the meaning of the bytes.

use std::io;
use std::net::SocketAddr;

use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use super::local::UnixStream;
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

    /// Writes buffered bytes. Returns whether the system has accepted all. With TLS, some may still be buffered here.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(true),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Ends the connection properly if the protocol has more to do than closing the socket.
    pub(super) fn close(&mut self) {
        if let Self::Tls(stream) = self {
            stream.close();
        }
    }

    /// Returns the client's address, or `None` for a local client that connected through a file.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Unix(_) => None,
            Self::Tls(stream) => stream.peer(),
        }
    }

    /// Sends each answer at once, without waiting for more bytes (`TCP_NODELAY`).
    pub(super) fn set_no_delay(&self) {
        match self {
            // If the socket refuses the option, it is only slower.
            Self::Tcp(stream) => drop(stream.set_nodelay(true)),
            Self::Tls(stream) => stream.set_no_delay(),
            Self::Unix(_) => {}
        }
    }
}
