//! Options of a server: where it listens, what clients may take, who they are.
//!
//! In:  what the caller wants.
//! Out: plain values.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::accounts::Accounts;
use super::deadlines::TimeLimits;
use super::tls::TlsOptions;

/// Where and how a server listens.
pub struct ServerOptions {
    /// Addresses of TCP; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// A socket's file.
    pub unix: Option<PathBuf>,
    /// Threads for connections.
    pub io_threads: usize,
    /// Connections that may be open; what comes then is closed at once.
    pub connections_max: u32,
    /// Bytes that all clients together may hold: buffers, answers that wait to be read, requests that wait.
    pub memory_max: usize,
    /// How long clients may take; then their connections are closed.
    pub limits: TimeLimits,
    /// The address that offset ids of messages name: the store's.
    pub host: SocketAddr,
    /// TLS for what comes by TCP; none: all is plain.
    pub tls: Option<TlsOptions>,
    /// Who may ask for what; none: everybody for everything.
    pub accounts: Option<Arc<Accounts>>,
}
