//! One client's connection, as request handlers see it.
//!
//! In:     its number, its address, its account of memory.
//! Out:    where to send answers, and what the server knows of the client.
//! Not here: its bytes (`connection`), what it may do (`service`).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use super::budget::Account;
use super::outbox::Outbox;
use crate::base::error::Result;
use crate::base::sync::unmodelled::Mutex;
use crate::store::StoredRecord;

/// What a connection has reported that copies nothing.
pub(super) const NOT_A_SLAVE: u64 = u64::MAX;

/// A connected client of the gRPC protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcClient {
    /// Its id.
    pub id: String,
    /// The address of the connection over which it became known.
    pub address: String,
    /// The language of its software, as clients name it.
    pub language: &'static str,
    /// The milliseconds since its last request.
    pub silent_ms: i64,
}

/// Sends checks to a client that does not speak the remoting protocol.
pub(super) trait SendCheck: std::fmt::Debug + Send + Sync {
    /// Returns what operators want to know of the client.
    fn facts(&self) -> GrpcClient;

    /// Returns whether a check would reach the client now.
    fn is_listening(&self) -> bool;

    /// Sends the check of a half message's transaction. Returns false if it cannot be sent.
    fn send_check(&self, half: &StoredRecord) -> Result<bool>;
}

/// How checks reach a client.
#[derive(Debug)]
pub(super) enum Checker {
    /// As commands of the remoting protocol.
    Outbox,
    /// Down the stream of a gRPC client.
    Grpc(Arc<dyn SendCheck>),
    /// Not at all: the gRPC client has gone.
    Gone,
}

/// One client's connection, as request handlers see it. A gRPC client has one of its own, whatever connection it uses.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) born_host: SocketAddr,
    pub(super) outbox: Outbox,
    pub(super) account: Arc<Account>,
    /// Ids of the live producers, by producer group and by the account that sent for the group.
    pub(super) producers: Mutex<HashMap<(String, Option<String>), u32>>,
    /// Whether Python knows this connection, and so must be notified when it ends.
    pub(super) known: AtomicBool,
    /// Whether a request of this connection was denied. Only the first one is logged, later ones are counted.
    pub(super) denied: AtomicBool,
    /// The `opaque` of each request to the client that it has not answered.
    pub(super) asked: Mutex<HashSet<i32>>,
    /// The number of offset updates that wait for Python.
    pub(super) updates_waiting: AtomicUsize,
    /// The end of the log that a slave of RocketMQ reported last; `NOT_A_SLAVE` in any other connection.
    pub(super) reported: AtomicU64,
    /// Whether it needs no account, because it connected through the store's own socket.
    pub(super) is_trusted: bool,
    /// What sends checks to a gRPC client. Not set: its connection speaks the remoting protocol.
    checker: OnceLock<Weak<dyn SendCheck>>,
}

impl Session {
    /// `peer` is the client's address, or `None` for a local client that connected through a file.
    pub(super) fn new(id: u64, peer: Option<SocketAddr>, account: Arc<Account>, is_trusted: bool) -> Self {
        Self {
            id,
            address: peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string()),
            born_host: peer.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)),
            outbox: Outbox::new(Arc::clone(&account)),
            account,
            producers: Mutex::default(),
            known: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            asked: Mutex::default(),
            updates_waiting: AtomicUsize::new(0),
            reported: AtomicU64::new(NOT_A_SLAVE),
            is_trusted,
            checker: OnceLock::new(),
        }
    }

    /// Sets what sends checks to a gRPC client.
    pub(super) fn checked_by(&self, checker: &Arc<dyn SendCheck>) {
        // It is set once, when the client becomes known.
        let _ = self.checker.set(Arc::downgrade(checker));
    }

    /// Returns how checks reach the client.
    pub(super) fn checker(&self) -> Checker {
        match self.checker.get().map(Weak::upgrade) {
            None => Checker::Outbox,
            Some(Some(client)) => Checker::Grpc(client),
            Some(None) => Checker::Gone,
        }
    }

    /// Returns whether an offset update waits for Python. That older update would overwrite one made directly.
    pub(super) fn has_updates_waiting(&self) -> bool {
        self.updates_waiting.load(Relaxed) > 0
    }
}

/// Counts a waiting offset update until dropped, even if its connection ends first.
pub(super) struct UpdateWaiting<'a>(&'a AtomicUsize);

impl<'a> UpdateWaiting<'a> {
    pub(super) fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Relaxed);
        Self(waiting)
    }
}

impl Drop for UpdateWaiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
