//! Listens on Unix sockets for other processes of this machine, also before a server is needed.
//!
//! In:     the path of a socket to create, or an abstract name (`@NAME`).
//! Out:    the news that a client has connected; the socket, for a server.
//! Always: waiting takes no processor time and no client's connection, so an idle socket costs nothing.
//! Not here: who may listen (the holder of the store's lock), names, and removing the socket's file.

use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
pub use std::os::unix::net::UnixListener as LocalSocket;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
pub(super) use tokio::net::{UnixListener, UnixStream};

use crate::base::error::{Error, Result};
use crate::base::system::Event;

/// Listens at a path for a server.
pub(super) fn bind(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path).map_err(|error| Error::from_io("listen at", path, error))
}

/// Returns whether a client may connect at all. A Unix socket serves its owner and root.
pub(super) fn may_connect(client: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    client.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

/// A listening Unix socket.
#[derive(Debug)]
pub struct LocalListener {
    listener: LocalSocket,
    wake: Event,
}

impl LocalListener {
    /// Creates the socket and listens. Fails if the path exists, is too long, or cannot hold a socket.
    pub fn bind(address: &str) -> Result<Self> {
        let failed = |error: io::Error| Error::from_io("listen at", address, error);
        let listener = match address.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).and_then(|address| LocalSocket::bind_addr(&address)),
            None => LocalSocket::bind(address),
        };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, wake: Event::new().map_err(failed)? })
    }

    /// Waits until a client has connected. Returns false if `wake` was called instead.
    pub fn wait(&self) -> Result<bool> {
        let failed =
            |error: rustix::io::Errno| Error::from_io("wait for a client of", "the local socket", error.into());
        let mut ready = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ready, None)).map_err(failed)?;
        let is_woken = ready.last().is_some_and(|wake| !wake.revents().is_empty());
        if is_woken {
            // Another call of `wait` begins from zero. The count does not matter.
            self.wake.clear();
        }
        Ok(!is_woken)
    }

    /// Ends a call of `wait`, the next one if none is waiting.
    pub fn wake(&self) {
        self.wake.set();
    }

    /// Returns another handle of the listening socket, for a server.
    pub fn socket(&self) -> Result<LocalSocket> {
        self.listener.try_clone().map_err(|error| Error::from_io("share", "the local socket", error))
    }

    /// Returns the numbers of its descriptors, which a forked child closes.
    pub fn descriptors(&self) -> [i32; 2] {
        [self.listener.as_raw_fd(), self.wake.descriptor()]
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    use super::LocalListener;

    fn name(of: &str) -> String {
        format!("@txstore-test-{}-{of}", std::process::id())
    }

    /// A program that listens for commands waits in one thread, and closing must end that wait.
    #[test]
    fn a_wait_ends_with_a_client_and_with_a_wake() {
        let name = name("wait");
        let listener = LocalListener::bind(&name).unwrap();
        listener.wake();
        assert!(!listener.wait().unwrap());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| listener.wait().unwrap());
            let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
            let _client = UnixStream::connect_addr(&address).unwrap();
            assert!(waiting.join().unwrap());
        });
        // The client was not accepted, so that the server finds it.
        assert!(listener.wait().unwrap());
        assert!(listener.socket().unwrap().accept().is_ok());
    }

    /// Two processes never listen at one name.
    #[test]
    fn a_name_is_used_once() {
        let name = name("once");
        let _first = LocalListener::bind(&name).unwrap();
        assert!(LocalListener::bind(&name).is_err());
    }
}
