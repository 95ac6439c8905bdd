//! Reads the time. No other module does.
//!
//! In:     nothing.
//! Out:    wall time for records, monotonic time for ages.
//! Always: an age is a difference of monotonic readings, so a jump of the wall clock has no effect on it.

use std::fmt::Debug;
#[cfg(any(test, feature = "memory"))]
use std::sync::atomic::{AtomicI64, Ordering};

use crate::base::units::TimestampMs;

/// A source of time.
pub trait Clock: Send + Sync + Debug {
    /// Returns the wall clock, in milliseconds since the epoch.
    fn wall(&self) -> TimestampMs;
    /// Returns the milliseconds since some fixed moment; never decreases.
    fn monotonic_ms(&self) -> i64;
}

/// The system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> TimestampMs {
        TimestampMs(since_epoch_ms())
    }

    fn monotonic_ms(&self) -> i64 {
        // It also advances while the machine sleeps, so transactions age then, too.
        since_boot_ms()
    }
}

// Each write asks, and this takes fewer instructions than `SystemTime`.
#[cfg(target_os = "linux")]
fn since_epoch_ms() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[cfg(not(target_os = "linux"))]
fn since_epoch_ms() -> i64 {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(target_os = "linux")]
fn since_boot_ms() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[cfg(not(target_os = "linux"))]
fn since_boot_ms() -> i64 {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let first = FIRST.get_or_init(std::time::Instant::now);
    i64::try_from(first.elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// A clock that a test sets.
#[cfg(any(test, feature = "memory"))]
#[derive(Debug, Default)]
pub struct ManualClock {
    wall_ms: AtomicI64,
    monotonic_ms: AtomicI64,
}

#[cfg(any(test, feature = "memory"))]
impl ManualClock {
    /// Creates a clock whose wall time is `wall`.
    pub const fn at(wall: TimestampMs) -> Self {
        Self { wall_ms: AtomicI64::new(wall.0), monotonic_ms: AtomicI64::new(0) }
    }

    /// Advances both clocks by `milliseconds`.
    pub fn advance(&self, milliseconds: i64) {
        self.wall_ms.fetch_add(milliseconds, Ordering::SeqCst);
        self.monotonic_ms.fetch_add(milliseconds, Ordering::SeqCst);
    }

    /// Moves only the wall clock, forwards or back.
    pub fn jump_wall(&self, milliseconds: i64) {
        self.wall_ms.fetch_add(milliseconds, Ordering::SeqCst);
    }
}

#[cfg(any(test, feature = "memory"))]
impl Clock for ManualClock {
    fn wall(&self) -> TimestampMs {
        TimestampMs(self.wall_ms.load(Ordering::SeqCst))
    }

    fn monotonic_ms(&self) -> i64 {
        self.monotonic_ms.load(Ordering::SeqCst)
    }
}
