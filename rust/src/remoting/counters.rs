//! Counters: what connections and requests have done since the server began.
//!
//! In: events. Out: figures. Always: they only grow, but for the gauges. Not here: messages (`traffic`), ends of
//! transactions (`half/counts`), names of metrics (Python).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What has happened so far.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)*
            /// Connections that are open now.
            pub connections: AtomicI64,
            /// Pulls that wait for messages now.
            pub pulls_held: AtomicI64,
        }

        impl Counters {
            /// Names and figures.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name.load(Relaxed)),)*
                    ("connections", self.connections.load(Relaxed).try_into().unwrap_or(0)),
                    ("pulls_held", self.pulls_held.load(Relaxed).try_into().unwrap_or(0)),
                ]
            }
        }
    };
}

counters! {
    /// Connections that were accepted.
    connections_accepted,
    /// Connections that were refused: too many are open.
    connections_refused,
    /// Connections that were closed for what they sent or did not read.
    connections_dropped,
    /// Connections among them that held more memory than there was for each.
    connections_over_budget,
    /// Connections that did not come to TLS where they had to: plain ones, handshakes that failed or took too long.
    handshakes_failed,
    /// Half seconds that the timer of the connections' threads has counted: it stands still where they do.
    io_beats,
    /// Commands that arrived.
    commands_in,
    /// Frames that were none.
    frames_malformed,
    /// Requests that were answered with an error.
    requests_refused,
    /// Requests among them that nobody known had signed.
    requests_not_signed,
    /// Requests among them that their account may not have done.
    requests_not_allowed,
    /// Ends that said: unknown.
    ends_unknown,
    /// Ends that answered a check.
    ends_from_check,
}

impl Counters {
    /// One more.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
