//! Deadlines: until when a client must have sent something.
//!
//! In: what a connection sees. Out: how long it may wait, and whether a deadline has passed. Always: what is sent to a
//! client is no sign that it lives.

use std::time::Duration;

use crate::clock::{Clock, SystemClock};

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// To send something; live clients send heartbeats every 30 s.
    pub idle: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { idle: Duration::from_mins(2) }
    }
}

/// The deadlines of one connection.
#[derive(Debug)]
pub(super) struct Deadlines {
    limits: TimeLimits,
    heard_ms: i64,
}

impl Deadlines {
    pub(super) fn new(limits: TimeLimits) -> Self {
        Self { limits, heard_ms: now_ms() }
    }

    /// Bytes have arrived.
    pub(super) fn heard(&mut self) {
        self.heard_ms = now_ms();
    }

    /// How long until the next deadline.
    pub(super) fn next(&self) -> Duration {
        left(self.heard_ms, self.limits.idle)
    }

    /// Whether the client has sent nothing for too long.
    pub(super) fn is_silent(&self) -> bool {
        left(self.heard_ms, self.limits.idle).is_zero()
    }
}

fn now_ms() -> i64 {
    SystemClock.monotonic_ms()
}

fn left(since_ms: i64, limit: Duration) -> Duration {
    let passed = Duration::from_millis((now_ms() - since_ms).try_into().unwrap_or(0));
    limit.saturating_sub(passed)
}
