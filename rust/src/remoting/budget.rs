//! Budget: the memory that clients may hold, counted for all connections together and for each.
//!
//! In:     bytes of buffers, of answers that wait, of requests that wait.
//! Out:    whether a connection holds too much, so that it must go.
//! Always: the sum stays below three quarters of the budget; the last quarter is for what is not counted. A connection may
//!         hold as much as all of them leave free, so one alone holds half of the three quarters, and a small one stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that clients may hold where nothing else is said.
pub const BUDGET_DEFAULT: usize = 512 << 20;
/// What a request that waits takes, beside its own bytes.
pub(super) const WAITING_COST: usize = 4 << 10;

/// The memory of all connections.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    held: AtomicUsize,
}

/// One connection's part of it.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    held: AtomicUsize,
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max: max / 4 * 3, held: AtomicUsize::new(0) })
    }

    /// Bytes that are held now.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

impl Account {
    /// For a new connection.
    pub(super) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), held: AtomicUsize::new(0) })
    }

    /// Holds bytes.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.budget.held.fetch_add(bytes, Relaxed);
        self.held.fetch_add(bytes, Relaxed);
        Charge { account: Arc::clone(self), bytes }
    }

    /// Whether the connection must go, so that others have memory.
    pub(super) fn is_too_much(&self) -> bool {
        // What is free shrinks also by what connections leave waiting that have gone: coming again gains nothing.
        self.held.load(Relaxed) > self.budget.max.saturating_sub(self.budget.held())
    }
}

impl Charge {
    /// Holds so many bytes from now on.
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
