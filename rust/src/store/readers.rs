//! Readers: what they may see, and how they learn that there is more.
//!
//! In:     ends of the log, as appends and syncs reach them.
//! Out:    the visible end, in this process and in the published page; readers that wait are woken.
//! Always: nothing above the visible end is shown. A wake-up is never lost.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::{Shared, Store};
use crate::error::Result;
use crate::options::FlushDiskType;
use crate::published::Published;
use crate::sync::{AtomicUsize, Condvar, Mutex, fence};
use crate::units::PhysicalOffset;

/// How often a reader of another process's store looks again: no one can wake it.
const LOOK_AGAIN_MS: i64 = 20;

/// A count to wait on: one thread would take a flag down before another has seen it.
#[derive(Debug, Default)]
pub(super) struct Wake {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Wake {
    /// Wakes all that wait.
    pub(super) fn set(&self) {
        let mut count = self.count.lock();
        *count = count.wrapping_add(1);
        self.changed.notify_all();
    }

    /// Returns the count. Take it before you look at what you wait for.
    pub(super) fn seen(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until the count differs from `seen`, or the time is over; returns the count.
    pub(super) fn wait_ms(&self, seen: u64, milliseconds: u64) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            count = self.changed.wait_for(count, std::time::Duration::from_millis(milliseconds));
        }
        *count
    }
}

/// What readers are told.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// A writer's page from the start; a reader's as soon as a writer has made it.
    page: OnceLock<Published>,
    /// Readers that wait for messages sleep here.
    arrival: Wake,
    /// How many sleep, or are about to.
    waiters: AtomicUsize,
}

impl Readers {
    pub(super) fn new(page: Option<Published>) -> Self {
        Self { page: page.map(OnceLock::from).unwrap_or_default(), ..Self::default() }
    }

    /// The page that readers in other processes read; `None` before any writer has made it.
    pub(super) fn page(&self) -> Option<&Published> {
        self.page.get()
    }

    /// Keeps a page that a writer has made since. Another thread may have opened it, too: one of the two is kept.
    pub(super) fn set_page(&self, page: Published) {
        let _ = self.page.set(page);
    }

    /// Tells readers in other processes how far they may read.
    pub(super) fn publish_visible(&self, end: u64) {
        if let Some(published) = self.page() {
            published.set_appended(PhysicalOffset(end));
        }
    }

    /// Wakes readers that wait, if there are any.
    #[inline]
    pub(super) fn announce(&self) {
        // Either the waiter sees the new end, or this sees the waiter.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.arrival.set();
        }
    }

    /// Wakes all readers that wait: the store closes.
    pub(super) fn wake_all(&self) {
        self.arrival.set();
    }
}

impl Shared {
    /// How far readers may read.
    pub(super) fn visible_end(&self) -> u64 {
        match self.options.flush_disk_type {
            FlushDiskType::Sync if !self.options.read_only => self.log.durable(),
            _ => self.log.appended(),
        }
    }

    /// Waits until the log is durable up to `end`.
    pub(super) fn wait_durable(&self, end: u64) -> Result<()> {
        let publish = |durable: u64| {
            if let Some(published) = self.readers.page() {
                published.set_durable(PhysicalOffset(durable));
            }
            if self.options.flush_disk_type == FlushDiskType::Sync {
                self.readers.publish_visible(durable);
            }
        };
        self.commit.wait(&self.log, end, publish).map_err(|error| self.poison_on(error))
    }

    /// Waits until a message after `physical_offset` is visible, or the time is over. Returns the visible end.
    fn wait_visible(&self, physical_offset: PhysicalOffset, until_ms: i64) -> Result<PhysicalOffset> {
        loop {
            let seen = self.readers.arrival.seen();
            // Asked after `seen`: a close that came before it wakes no one any more.
            self.check_open()?;
            let end = self.visible_end();
            let left_ms = until_ms - self.clock.monotonic_ms();
            if end > physical_offset.0 || left_ms <= 0 {
                return self.check_open().map(|()| PhysicalOffset(end));
            }
            let nap_ms = if self.options.read_only { left_ms.min(LOOK_AGAIN_MS) } else { left_ms };
            self.readers.arrival.wait_ms(seen, u64::try_from(nap_ms).unwrap_or(0));
            self.refresh()?;
        }
    }
}

impl Store {
    /// Waits until a message after `physical_offset` is visible, or the time is over. Returns the visible end.
    pub fn wait_for_messages(&self, physical_offset: PhysicalOffset, timeout_ms: u64) -> Result<PhysicalOffset> {
        let shared = &self.shared;
        shared.refresh()?;
        let timeout_ms = i64::try_from(timeout_ms).unwrap_or(i64::MAX);
        let until_ms = shared.clock.monotonic_ms().saturating_add(timeout_ms);
        shared.readers.waiters.fetch_add(1, Ordering::SeqCst);
        // The other half of the fence in `announce`: without it a processor may look at the end before it is counted.
        fence(Ordering::SeqCst);
        let result = shared.wait_visible(physical_offset, until_ms);
        shared.readers.waiters.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
