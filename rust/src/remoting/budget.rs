//! Budget: the memory that clients may hold, counted for all connections together and for each.
//!
//! In: bytes of buffers, of answers that wait, of requests that wait. Out: whether a connection holds too much. Always: the
//! sum stays below the budget. Above half of it a connection must go that holds more than its equal part of that half;
//! those that hold less may fill no more than the other half. Not here: ending a connection.

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
    connections: AtomicUsize,
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
        Arc::new(Self { max, held: AtomicUsize::new(0), connections: AtomicUsize::new(0) })
    }

    /// Bytes that are held now.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

impl Account {
    /// For a new connection.
    pub(super) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        budget.connections.fetch_add(1, Relaxed);
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
        let half = self.budget.max / 2;
        let connections = self.budget.connections.load(Relaxed).max(1);
        self.budget.held() > half && self.held.load(Relaxed) > half / connections
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.connections.fetch_sub(1, Relaxed);
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
    fn who_holds_more_than_an_equal_part_goes_when_half_is_held() {
        let budget = Budget::new(1_000);
        let (large, small) = (Account::new(&budget), Account::new(&budget));
        let mut much = large.charge(500);
        let _little = small.charge(250);
        assert!(large.is_too_much());
        assert!(!small.is_too_much());
        much.set(250);
        assert!(!large.is_too_much(), "{budget:?}");
        drop(much);
        assert_eq!(budget.held(), 250);
    }

    #[test]
    fn one_that_holds_much_stays_while_there_is_enough() {
        let budget = Budget::new(1_000);
        let alone = Account::new(&budget);
        let _much = alone.charge(500);
        assert!(!alone.is_too_much());
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
