//! The bytes that a connection still has to write.
//!
//! In:     commands, from any thread.
//! Out:    bytes, as fast as the client reads.
//! Always: the number of waiting bytes is limited. A client that does not read is disconnected.
//! Not here: reading.

use std::io;
use std::sync::Arc;

use tokio::sync::Notify;

use super::budget::{Account, Charge};
use super::stream::Stream;
use crate::base::sync::unmodelled::Mutex;
use crate::remoting::command::Command;
use crate::remoting::frame::encode;

/// The maximum number of bytes that wait for a client to read them. More than the longest frame.
pub(super) const OUT_MAX: usize = 32 << 20;
/// When a client leaves this many bytes unread, the server stops reading from it until it has read.
pub(super) const OUT_PAUSE: usize = 1 << 20;
/// Bytes by which a long buffer grows. It is not doubled, so that one answer cannot take far more than the memory left.
const OUT_STEP: usize = 2 << 20;
/// The bytes of an answer without its body, usually.
const HEADER_BYTES: usize = 1 << 10;
const KEPT_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    /// Signals that there is something to write, or that the connection must be closed.
    pub(super) changed: Notify,
    account: Arc<Account>,
}

#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    written: usize,
    closed: bool,
    overfull: bool,
    /// The memory that `bytes` holds.
    charge: Charge,
}

impl Waiting {
    fn abandon(&mut self) {
        self.overfull = true;
        (self.bytes, self.written) = (Vec::new(), 0);
        self.charge.set(0);
    }
}

impl Outbox {
    pub(super) fn new(account: Arc<Account>) -> Self {
        let charge = account.charge(0);
        let waiting = Waiting { bytes: Vec::new(), written: 0, closed: false, overfull: false, charge };
        Self { waiting: Mutex::new(waiting), changed: Notify::new(), account }
    }

    /// Adds a command. Returns false if the connection is closed or too many bytes wait.
    pub(super) fn put(&self, command: &Command) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.closed || waiting.overfull {
            return false;
        }
        if waiting.bytes.len() - waiting.written + command.body.len() > OUT_MAX {
            waiting.overfull = true;
            self.changed.notify_one();
            return false;
        }
        let was_empty = waiting.bytes.is_empty();
        let needed = command.body.len() + HEADER_BYTES;
        if waiting.bytes.len() > OUT_PAUSE && waiting.bytes.capacity() - waiting.bytes.len() < needed {
            waiting.bytes.reserve_exact(needed.max(OUT_STEP));
        }
        if let Err(error) = encode(command, &mut waiting.bytes) {
            let instead = command.response(crate::remoting::codes::response::SYSTEM_ERROR, Some(error.to_string()));
            if encode(&instead, &mut waiting.bytes).is_err() {
                return false;
            }
        }
        let bytes = waiting.bytes.capacity();
        waiting.charge.set(bytes);
        drop(waiting);
        // Without the lock, because this may drop what other connections have to write.
        if self.account.is_too_much() {
            self.abandon();
            return false;
        }
        if was_empty {
            self.changed.notify_one();
        }
        true
    }

    /// Drops what waits and ends the connection, so that other connections get the memory at once.
    pub(super) fn abandon(&self) {
        self.waiting.lock().abandon();
        self.changed.notify_one();
    }

    /// Writes as much as the socket accepts. Returns the minimum of bytes left, and whether the socket accepted some.
    /// After an error the connection is unusable.
    pub(super) fn write_to(&self, stream: &mut Stream) -> io::Result<(usize, bool)> {
        let mut waiting = self.waiting.lock();
        if waiting.overfull {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answers"));
        }
        let mut took_some = false;
        while waiting.written < waiting.bytes.len() {
            match stream.try_write(waiting.bytes.get(waiting.written..).unwrap_or_default()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    waiting.written += written;
                    took_some = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let left = waiting.bytes.len() - waiting.written;
        if left == 0 {
            waiting.written = 0;
            waiting.bytes.clear();
            if waiting.bytes.capacity() > KEPT_MAX {
                waiting.bytes = Vec::new();
            }
            let bytes = waiting.bytes.capacity();
            waiting.charge.set(bytes);
        } else if waiting.written > OUT_PAUSE {
            let written = std::mem::take(&mut waiting.written);
            waiting.bytes.drain(..written);
        }
        Ok((if stream.flush()? { left } else { left.max(1) }, took_some))
    }

    /// Returns whether the client must read before the server reads more from it.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.overfull || waiting.bytes.len() - waiting.written > OUT_PAUSE
    }

    /// Returns whether another answer would still be written.
    pub(super) fn is_open(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.closed && !waiting.overfull
    }

    /// Rejects all further commands.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.changed.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }
}
