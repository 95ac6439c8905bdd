//! What readers may see, and how they learn of new messages.
//!
//! In:     ends of the log, as appends and syncs reach them.
//! Out:    the visible end, in this process and in the published page. Wakes waiting readers.
//! Always: nothing above the visible end is shown. No wake-up is lost.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::{Shared, Store};
use crate::base::error::Result;
use crate::base::sync::rank::BRIEF;
use crate::base::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, fence};
use crate::base::units::PhysicalOffset;
use crate::log::published::Published;

/// How often a reader of another process's store looks again, in milliseconds. It cannot be woken.
const LOOK_AGAIN_MS: i64 = 20;

/// A counter to wait on. With a flag, one thread could reset it before another has seen it.
#[derive(Debug, Default)]
pub(super) struct Wake {
    count: Mutex<u64, BRIEF>,
    changed: Condvar,
}

impl Wake {
    /// Wakes all waiters.
    pub(super) fn set(&self) {
        let mut count = self.count.lock();
        *count = count.wrapping_add(1);
        self.changed.notify_all();
    }

    /// Returns the counter. Read it before you check the condition that you wait for.
    pub(super) fn seen(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until the counter differs from `seen` or the time is over. Returns the counter.
    pub(super) fn wait_ms(&self, seen: u64, milliseconds: u64) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            count = self.changed.wait_for(count, std::time::Duration::from_millis(milliseconds));
        }
        *count
    }
}

/// What readers can see.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// The published page. A writer has it from the start, a reader as soon as a writer has created it.
    page: OnceLock<Published>,
    /// Readers wait here for messages.
    arrival: Wake,
    /// The number of readers that wait or are about to wait.
    waiters: AtomicUsize,
    /// Nothing above this is shown, whatever the log has. `u64::MAX`: no limit.
    limit: AtomicU64,
}

impl Readers {
    pub(super) fn new(page: Option<Published>, limit: u64) -> Self {
        let page = page.map(OnceLock::from).unwrap_or_default();
        Self { page, limit: AtomicU64::new(limit), ..Self::default() }
    }

    /// Returns the page that readers in other processes read, or `None` before a writer has created it.
    pub(super) fn page(&self) -> Option<&Published> {
        self.page.get()
    }

    /// Stores a page that a writer has created. If another thread has also opened it, one of the two is kept.
    pub(super) fn set_page(&self, page: Published) {
        let _ = self.page.set(page);
    }

    /// Publishes to other processes how far they may read.
    pub(super) fn publish_visible(&self, end: u64) {
        if let Some(published) = self.page() {
            published.set_appended(PhysicalOffset(end.min(self.limit.load(Ordering::Acquire))));
        }
    }

    /// Lets readers see what is below `end`. Never less than before.
    pub(super) fn release(&self, end: u64) {
        self.limit.fetch_max(end, Ordering::AcqRel);
    }

    /// Wakes waiting readers, if there are any.
    #[inline]
    pub(super) fn announce(&self) {
        // The fence guarantees that the waiter sees the new end, or this thread sees the waiter.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.arrival.set();
        }
    }

    /// Wakes all waiting readers because the store closes.
    pub(super) fn wake_all(&self) {
        self.arrival.set();
    }
}

impl Shared {
    /// Returns how far readers may read.
    pub(super) fn visible_end(&self) -> u64 {
        // A reader's log ends where its writer shows it.
        let ends_at_durable = self.options.shows_only_durable() && !self.options.read_only;
        let end = if ends_at_durable { self.log.durable() } else { self.log.appended() };
        end.min(self.readers.limit.load(Ordering::Acquire))
    }

    /// Waits until the log is durable up to `end`.
    pub(super) fn wait_durable(&self, end: u64) -> Result<()> {
        let publish = |durable: u64| {
            if let Some(published) = self.readers.page() {
                published.set_durable(PhysicalOffset(durable));
            }
            if self.options.shows_only_durable() {
                self.readers.publish_visible(durable);
            }
        };
        self.commit.wait(&self.log, end, publish).map_err(|error| self.poison_on(error))
    }

    /// Waits until an end of the log is above `physical_offset`, or the time is over. Returns that end.
    pub(super) fn wait_for_end(
        &self,
        physical_offset: PhysicalOffset,
        timeout_ms: u64,
        end_of: impl Fn(&Self) -> u64,
    ) -> Result<PhysicalOffset> {
        self.refresh()?;
        let timeout_ms = i64::try_from(timeout_ms).unwrap_or(i64::MAX);
        let until_ms = self.clock.monotonic_ms().saturating_add(timeout_ms);
        self.readers.waiters.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `announce`. Without it, a processor may read the end before this waiter is counted.
        fence(Ordering::SeqCst);
        let result = self.wait_until(physical_offset, until_ms, end_of);
        self.readers.waiters.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn wait_until(
        &self,
        physical_offset: PhysicalOffset,
        until_ms: i64,
        end_of: impl Fn(&Self) -> u64,
    ) -> Result<PhysicalOffset> {
        loop {
            let seen = self.readers.arrival.seen();
            // Checked after `seen`, because a close before `seen` wakes no waiter later.
            self.check_open()?;
            let end = end_of(self);
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
        self.shared.wait_for_end(physical_offset, timeout_ms, Shared::visible_end)
    }
}
