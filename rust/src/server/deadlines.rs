//! Deadlines by which a client must have sent or read something.
//!
//! In:     what happens on a connection.
//! Out:    how long it may wait, and whether a deadline has passed.
//! Always: data that the server sends does not prove that the client is alive.

use std::time::Duration;

use crate::base::clock::{Clock, SystemClock};

/// The time to read some of the waiting bytes while the server stops.
const UNREAD_WHEN_STOPPING: Duration = Duration::from_secs(1);

/// The time limits of a client.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// The time to send something. Live clients send heartbeats every 30 s.
    pub idle: Duration,
    /// The time to send the rest of the first frame.
    pub first_frame: Duration,
    /// The time to send the rest of a later frame.
    pub frame: Duration,
    /// The time to read some of the waiting bytes.
    pub unread: Duration,
}

/// The deadlines of one connection.
#[derive(Debug)]
pub(super) struct Deadlines {
    limits: TimeLimits,
    heard_ms: i64,
    /// Whether a complete frame has arrived.
    had_frame: bool,
    /// Since when a frame is incomplete.
    frame_began_ms: Option<i64>,
    /// Since when the client has not read any of the waiting bytes.
    unread_since_ms: Option<i64>,
}

/// What a client did not do in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// It sent nothing.
    Silent,
    /// It did not send the rest of a frame.
    Frame,
    /// It did not read.
    Unread,
}

impl Deadlines {
    pub(super) fn new(limits: TimeLimits) -> Self {
        Self { limits, heard_ms: now_ms(), had_frame: false, frame_began_ms: None, unread_since_ms: None }
    }

    /// Notes that bytes have arrived.
    pub(super) fn heard(&mut self) {
        self.heard_ms = now_ms();
    }

    /// Notes that complete frames have arrived, and whether the next one has begun.
    pub(super) fn frames(&mut self, whole: usize, next_began: bool) {
        self.had_frame |= whole > 0;
        if !next_began {
            self.frame_began_ms = None;
        } else if whole > 0 || self.frame_began_ms.is_none() {
            self.frame_began_ms = Some(now_ms());
        }
    }

    /// Notes whether the client has read something, and whether bytes still wait.
    pub(super) fn written(&mut self, some: bool, waits: bool) {
        if !waits {
            self.unread_since_ms = None;
        } else if some || self.unread_since_ms.is_none() {
            self.unread_since_ms = Some(now_ms());
        }
    }

    /// Gives the client less time to read, because the server stops: its answers are worth a short wait only.
    pub(super) fn stopping(&mut self) {
        self.limits.unread = self.limits.unread.min(UNREAD_WHEN_STOPPING);
    }

    /// Returns the time until the next deadline.
    pub(super) fn next(&self) -> Duration {
        self.all().map(|(left, _)| left).min().unwrap_or(self.limits.idle)
    }

    /// Returns the deadline that has passed, if any.
    pub(super) fn missed(&self) -> Option<Missed> {
        self.all().find(|(left, _)| left.is_zero()).map(|(_, missed)| missed)
    }

    fn all(&self) -> impl Iterator<Item = (Duration, Missed)> {
        let frame = if self.had_frame { self.limits.frame } else { self.limits.first_frame };
        [
            (Some(self.heard_ms), self.limits.idle, Missed::Silent),
            (self.frame_began_ms, frame, Missed::Frame),
            (self.unread_since_ms, self.limits.unread, Missed::Unread),
        ]
        .into_iter()
        .filter_map(|(since_ms, limit, missed)| since_ms.map(|since_ms| (left(since_ms, limit), missed)))
    }
}

fn now_ms() -> i64 {
    SystemClock.monotonic_ms()
}

fn left(since_ms: i64, limit: Duration) -> Duration {
    let passed = Duration::from_millis((now_ms() - since_ms).try_into().unwrap_or(0));
    limit.saturating_sub(passed)
}
