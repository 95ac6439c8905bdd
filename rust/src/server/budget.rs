//! Limits the memory that clients may hold, in total and per connection.
//!
//! In:     bytes of buffers, of waiting answers and of waiting requests.
//! Out:    whether a connection holds too much and must be closed.
//! Always: the total stays below three quarters of the budget, and the more memory the process takes that is not counted
//!         here, the less is left. A connection may hold as much as all connections leave free. So a single connection
//!         may hold half of the three quarters, and a small connection is not closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use crate::base::clock::{Clock, SystemClock};
use crate::storage::process::anonymous_bytes;

/// Bytes that a waiting request takes besides its own.
pub(super) const WAITING_COST: usize = 4 << 10;

/// The time between two measurements of the memory that is not counted.
const MEASURED_EVERY_MS: i64 = 50;

/// The memory of all connections.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    held: AtomicUsize,
    /// What the process had when the server started.
    before: usize,
    /// What it has taken since then besides what is counted: tables of names, copies in Python, the allocator's blocks.
    uncounted: AtomicUsize,
    measured_ms: AtomicI64,
}

/// The memory of one connection.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    held: AtomicUsize,
}

/// A number of bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            held: AtomicUsize::new(0),
            before: anonymous_bytes().unwrap_or(usize::MAX),
            uncounted: AtomicUsize::new(0),
            measured_ms: AtomicI64::new(SystemClock.monotonic_ms()),
        })
    }

    /// Returns the uncounted bytes, at most 50 ms old.
    pub(super) fn uncounted(&self) -> usize {
        self.measure();
        self.uncounted.load(Relaxed)
    }

    /// Returns how many bytes may be counted: what the uncounted memory leaves, from one to three quarters.
    fn limit(&self) -> usize {
        let quarter = self.max / 4;
        self.max.saturating_sub(self.uncounted.load(Relaxed)).clamp(quarter, 3 * quarter)
    }

    /// Measures the uncounted memory, if the last measurement is old.
    fn measure(&self) {
        let (now_ms, last_ms) = (SystemClock.monotonic_ms(), self.measured_ms.load(Relaxed));
        let is_old = now_ms - last_ms >= MEASURED_EVERY_MS;
        if is_old && self.measured_ms.compare_exchange(last_ms, now_ms, Relaxed, Relaxed).is_ok() {
            let taken = anonymous_bytes().unwrap_or(0).saturating_sub(self.before);
            self.uncounted.store(taken.saturating_sub(self.held()), Relaxed);
        }
    }

    /// Returns the number of bytes held now.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

impl Account {
    /// Creates the account of a new connection.
    pub(super) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), held: AtomicUsize::new(0) })
    }

    /// Holds a number of bytes until the charge is dropped.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.budget.held.fetch_add(bytes, Relaxed);
        self.held.fetch_add(bytes, Relaxed);
        Charge { account: Arc::clone(self), bytes }
    }

    /// Returns whether the connection must be closed so that others have memory.
    pub(super) fn is_too_much(&self) -> bool {
        // The free part also shrinks by what closed connections leave waiting, so reconnecting gains nothing.
        self.budget.measure();
        self.held.load(Relaxed) > self.budget.limit().saturating_sub(self.budget.held())
    }
}

impl Charge {
    /// Changes the number of bytes held.
    pub(super) fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes >= before {
            self.account.budget.held.fetch_add(bytes - before, Relaxed);
            self.account.held.fetch_add(bytes - before, Relaxed);
        } else {
            self.account.budget.held.fetch_sub(before - bytes, Relaxed);
            self.account.held.fetch_sub(before - bytes, Relaxed);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_more_than_is_free_goes() {
        let budget = Budget::new(1_000);
        let (large, small) = (Account::new(&budget), Account::new(&budget));
        let mut much = large.charge(500);
        let _little = small.charge(100);
        assert!(large.is_too_much());
        assert!(!small.is_too_much());
        much.set(250);
        assert!(!large.is_too_much(), "{budget:?}");
        drop(much);
        assert_eq!(budget.held(), 100);
    }

    #[test]
    fn one_that_holds_much_stays_while_there_is_enough() {
        let budget = Budget::new(1_000);
        let alone = Account::new(&budget);
        let _much = alone.charge(375);
        assert!(!alone.is_too_much());
    }

    #[test]
    fn coming_again_gains_nothing() {
        let budget = Budget::new(1_000_000);
        let mut waiting = Vec::new();
        for _ in 0..100 {
            let account = Account::new(&budget);
            while !account.is_too_much() {
                waiting.push(account.charge(1_000));
            }
        }
        assert!(budget.held() < 1_000_000, "{budget:?}");
    }

    #[test]
    fn uncounted_memory_leaves_less() {
        let budget = Budget::new(1_000);
        assert_eq!(budget.limit(), 750);
        for (uncounted, limit) in [(100, 750), (400, 600), (700, 300), (10_000, 250)] {
            budget.uncounted.store(uncounted, Relaxed);
            assert_eq!(budget.limit(), limit);
        }
    }

    #[test]
    fn the_sum_stays_below_the_budget() {
        let budget = Budget::new(1_000_000);
        let mut held = Vec::new();
        let accounts: Vec<_> = (0..100).map(|_| Account::new(&budget)).collect();
        for bytes in 1..2_000 {
            for account in &accounts {
                if !account.is_too_much() {
                    held.push(account.charge(bytes));
                }
            }
        }
        assert!(budget.held() < 1_000_000 + 100 * 2_000, "{budget:?}");
    }
}
