//! The options of a server: addresses, limits for clients, TLS and accounts.
//!
//! In:     what the caller wants.
//! Out:    plain values.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::accounts::Accounts;
use super::copies::CopyRules;
use super::deadlines::TimeLimits;
use super::local::LocalSocket;
use super::network::Network;
use super::tls::TlsOptions;

/// The options of the gRPC protocol.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// The address to listen at. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The broker's name in routes.
    pub broker_name: String,
    /// Whether a topic with a declared message type accepts only messages of this type.
    pub checks_message_types: bool,
}

/// The port at which slaves of RocketMQ copy the log.
#[derive(Clone, Debug)]
pub struct HaOptions {
    /// The address to listen at. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The networks from which slaves may connect, in addition to this machine.
    pub allow: Vec<Network>,
}

/// The options of a server.
pub struct ServerOptions {
    /// TCP addresses. Port 0 selects a free port.
    pub listen: Vec<SocketAddr>,
    /// The path of a Unix socket.
    pub unix: Option<PathBuf>,
    /// The store's own socket, for processes of the same user.
    pub local: Option<LocalSocket>,
    /// The number of threads for connections.
    pub io_threads: usize,
    /// The maximum number of open connections. Further ones are closed at once.
    pub connections_max: u32,
    /// The maximum number of bytes that all clients together may hold: buffers, unread answers, waiting requests.
    pub memory_max: usize,
    /// Time limits for clients. The connection is closed after a limit.
    pub limits: TimeLimits,
    /// The broker's name, by which clients find its address.
    pub broker_name: String,
    /// The store's address, for the offset ids of messages.
    pub host: SocketAddr,
    /// TLS for TCP connections. `None`: without TLS.
    pub tls: Option<TlsOptions>,
    /// The gRPC protocol. `None`: it is not served.
    pub grpc: Option<GrpcOptions>,
    /// The port for slaves of RocketMQ. `None`: it is not served.
    pub ha: Option<HaOptions>,
    /// How many copies of the log a write needs.
    pub copies: CopyRules,
    /// The accounts and their permissions. `None`: everybody may do everything.
    pub accounts: Option<Arc<Accounts>>,
}
