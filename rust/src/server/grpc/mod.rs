//! Serves RocketMQ's gRPC protocol: the `MessagingService` of its version 2.
//!
//! In:     HTTP/2 connections, a `Service` that the remoting protocol shares.
//! Out:    answers; checks down the telemetry streams.
//! Always: the same store, tables, accounts, memory budget and policy as for the remoting protocol. A client is known by
//!         its `x-mq-client-id` and has a session of its own, whichever connection it uses.
//! Not here: the rules of topics, groups and checks (Python).
//!
//! ```text
//! connection ─► router ─► call ─► access ─► route · settings · send · transaction · receive …
//!   bytes         one row     who    may        one RPC a file
//!                 an RPC      asks   it?
//! ```

mod access;
mod call;
mod clients;
mod codec;
mod connection;
mod consumers;
mod heartbeat;
mod leases;
mod link;
mod message;
mod moves;
#[cfg(feature = "testing")]
pub mod probe;
mod recall;
mod receive;
mod route;
mod router;
mod send;
mod settings;
mod shape;
mod status;
mod telemetry;
mod transaction;
mod unserved;
mod wire;

use std::sync::Arc;

use clients::Clients;

pub(super) use connection::serve;

use super::options::GrpcOptions;
use super::service::Service;

/// The state that all gRPC connections share.
#[derive(Debug)]
pub(super) struct Messaging {
    service: Arc<Service>,
    clients: Clients,
    broker_name: String,
    checks_message_types: bool,
}

impl Messaging {
    pub(super) fn new(service: Arc<Service>, options: &GrpcOptions) -> Arc<Self> {
        let clients = Clients::new(Arc::clone(&service));
        let (broker_name, checks_message_types) = (options.broker_name.clone(), options.checks_message_types);
        Arc::new(Self { service, clients, broker_name, checks_message_types })
    }

    /// Removes the clients that are gone, each second. Never returns.
    pub(super) async fn expire(&self) {
        self.clients.expire_again_and_again().await;
    }
}
