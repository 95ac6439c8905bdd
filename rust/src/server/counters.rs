//! Counters of connections and requests since the server was started.
//!
//! In:     events.
//! Out:    counts.
//! Always: they only grow, except for the gauges.
//! Not here: messages (`traffic`), ends of transactions (`transaction/counts`), names of metrics (Python).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters since the start.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)*
            /// Connections that are open now.
            pub connections: AtomicI64,
            /// gRPC clients that are known now.
            pub grpc_clients: AtomicI64,
            /// Pulls that wait for messages now.
            pub pulls_held: AtomicI64,
        }

        impl Counters {
            /// Returns names and values.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name.load(Relaxed)),)*
                    ("connections", self.connections.load(Relaxed).try_into().unwrap_or(0)),
                    ("grpc_clients", self.grpc_clients.load(Relaxed).try_into().unwrap_or(0)),
                    ("pulls_held", self.pulls_held.load(Relaxed).try_into().unwrap_or(0)),
                ]
            }
        }
    };
}

counters! {
    /// Accepted connections.
    connections_accepted,
    /// Connections that were refused because too many were open.
    connections_refused,
    /// Connections that were closed because of what they sent or did not read.
    connections_dropped,
    /// Closed connections that held too much memory.
    connections_over_budget,
    /// Connections that did not complete a required TLS handshake: without TLS, failed, or too slow.
    handshakes_failed,
    /// Half seconds that the timer of the connections' threads has counted. The count stops if these threads are
    /// blocked.
    io_beats,
    /// Commands that arrived.
    commands_in,
    /// Malformed frames.
    frames_malformed,
    /// Requests that were answered with an error.
    requests_refused,
    /// Refused requests without the signature of a known account.
    requests_not_signed,
    /// Refused requests for which the account had no permission.
    requests_not_allowed,
    /// Ends with the state "unknown".
    ends_unknown,
    /// Ends that answered a check.
    ends_from_check,
}

impl Counters {
    /// Adds one to a counter.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
