//! Limits the memory that clients may hold together.
//!
//! In:     bytes of buffers, of waiting answers and of waiting requests.
//! Out:    the connections that hold too much and must be closed.
//! Always: the total stays below three quarters of the budget, and the more memory the process takes that is not counted
//!         here, the less is left. If clients hold more, those that hold most are closed first. So
//!         a connection that holds little stays open, whatever others hold; it waits while memory of closed ones is freed.
//!         What it still has to write is dropped at once by the thread that found it, since the server's other threads
//!         may all be busy making more answers.
//! Not here: the closing (`service`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Notify;

use crate::base::clock::{Clock, SystemClock};
use crate::base::sync::unmodelled::Mutex;
use crate::storage::process::anonymous_bytes;

/// Bytes that a waiting request takes besides its own.
pub(super) const WAITING_COST: usize = 4 << 10;

/// The time between two measurements of the memory that is not counted.
const MEASURED_EVERY_MS: i64 = 50;

/// The memory of all connections.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    /// The bytes of connections that stay.
    held: AtomicUsize,
    /// The bytes of connections that are being closed.
    leaving: AtomicUsize,
    /// What the process had when the server started.
    before: usize,
    /// What it has taken since then besides what is counted: tables of names, copies in Python, the allocator's blocks.
    uncounted: AtomicUsize,
    measured_ms: AtomicI64,
    /// The connections that are open or have left something that waits.
    accounts: Mutex<HashMap<u64, Weak<Account>>>,
    /// The connections that were closed because they held most.
    chosen: Mutex<Vec<u64>>,
    some_chosen: Notify,
    /// What drops the answers that wait for a connection.
    dropper: OnceLock<Weak<dyn DropAnswers>>,
}

/// Drops what a connection still has to write.
pub(super) trait DropAnswers: std::fmt::Debug + Send + Sync {
    fn drop_answers(&self, connection: u64);
}

/// The memory of one connection.
#[derive(Debug)]
pub(super) struct Account {
    connection: u64,
    budget: Arc<Budget>,
    holding: Mutex<Holding>,
}

#[derive(Debug, Default)]
struct Holding {
    bytes: usize,
    is_leaving: bool,
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
            leaving: AtomicUsize::new(0),
            before: anonymous_bytes().unwrap_or(usize::MAX),
            uncounted: AtomicUsize::new(0),
            measured_ms: AtomicI64::new(SystemClock.monotonic_ms()),
            accounts: Mutex::default(),
            chosen: Mutex::default(),
            some_chosen: Notify::new(),
            dropper: OnceLock::new(),
        })
    }

    /// Sets what drops the answers of connections that must be closed.
    pub(super) fn dropped_by(&self, dropper: Weak<dyn DropAnswers>) {
        // It is set once, when the server starts.
        let _ = self.dropper.set(dropper);
    }

    /// Returns the uncounted bytes, at most 50 ms old.
    pub(super) fn uncounted(&self) -> usize {
        self.measure();
        self.uncounted.load(Relaxed)
    }

    /// Returns the number of bytes held now, also by connections that are being closed.
    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed) + self.leaving.load(Relaxed)
    }

    /// Returns whether memory of closed connections must be freed before clients may hold more.
    pub(super) fn is_full(&self) -> bool {
        self.measure();
        self.make_room();
        self.held() > self.limit()
    }

    /// Waits until connections were closed because they held most, and returns them.
    pub(super) async fn chosen(&self) -> Vec<u64> {
        loop {
            let chosen = std::mem::take(&mut *self.chosen.lock());
            if !chosen.is_empty() {
                return chosen;
            }
            self.some_chosen.notified().await;
        }
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

    /// If all hold more than the limit, chooses those that hold most until an eighth of it is free, so that the next
    /// search is not soon.
    fn make_room(&self) {
        let is_too_much = || self.held.load(Relaxed) > self.limit();
        if !is_too_much() {
            return;
        }
        // Dropped after the lock is released, because the end of an account takes the lock.
        let mut by_bytes: Vec<(usize, Arc<Account>)>;
        let accounts = self.accounts.lock();
        if !is_too_much() {
            return;
        }
        by_bytes = accounts.values().filter_map(Weak::upgrade).map(|account| (account.bytes(), account)).collect();
        by_bytes.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        let enough = self.limit() / 8 * 7;
        let mut leaving = Vec::new();
        for (_, account) in &by_bytes {
            if self.held.load(Relaxed) <= enough {
                break;
            }
            if account.leave() {
                leaving.push(account.connection);
            }
        }
        drop(accounts);
        if let Some(dropper) = self.dropper.get().and_then(Weak::upgrade) {
            for connection in &leaving {
                dropper.drop_answers(*connection);
            }
        }
        self.chosen.lock().append(&mut leaving);
        self.some_chosen.notify_one();
    }
}

impl Account {
    /// Creates the account of a new connection.
    pub(super) fn new(budget: &Arc<Budget>, connection: u64) -> Arc<Self> {
        let account = Arc::new(Self { connection, budget: Arc::clone(budget), holding: Mutex::default() });
        budget.accounts.lock().insert(connection, Arc::downgrade(&account));
        account
    }

    /// Holds a number of bytes until the charge is dropped.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let mut charge = Charge { account: Arc::clone(self), bytes: 0 };
        charge.set(bytes);
        charge
    }

    /// Returns whether the connection must be closed so that others have memory.
    pub(super) fn is_too_much(&self) -> bool {
        self.budget.measure();
        self.budget.make_room();
        self.holding.lock().is_leaving
    }

    fn bytes(&self) -> usize {
        self.holding.lock().bytes
    }

    /// From now on counts the bytes among those of closed connections. Returns false if that is so already.
    fn leave(&self) -> bool {
        let mut holding = self.holding.lock();
        if std::mem::replace(&mut holding.is_leaving, true) {
            return false;
        }
        self.budget.held.fetch_sub(holding.bytes, Relaxed);
        self.budget.leaving.fetch_add(holding.bytes, Relaxed);
        true
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.budget.accounts.lock().remove(&self.connection);
    }
}

impl Charge {
    /// Changes the number of bytes held.
    pub(super) fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let mut holding = self.account.holding.lock();
        let budget = &self.account.budget;
        let total = if holding.is_leaving { &budget.leaving } else { &budget.held };
        if bytes >= before {
            holding.bytes += bytes - before;
            total.fetch_add(bytes - before, Relaxed);
        } else {
            holding.bytes -= before - bytes;
            total.fetch_sub(before - bytes, Relaxed);
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

    /// A budget whose uncounted memory is what a test sets.
    fn budget(max: usize) -> Arc<Budget> {
        let budget = Budget::new(max);
        budget.measured_ms.store(i64::MAX, Relaxed);
        budget
    }

    #[test]
    fn the_largest_goes_when_another_wants_more() {
        let budget = budget(1_000);
        let (large, small) = (Account::new(&budget, 1), Account::new(&budget, 2));
        let much = large.charge(700);
        assert!(!large.is_too_much(), "{budget:?}");
        let _little = small.charge(100);
        assert!(!small.is_too_much(), "{budget:?}");
        assert!(large.is_too_much(), "{budget:?}");
        assert_eq!(*budget.chosen.lock(), [1]);
        assert_eq!(budget.held(), 800);
        drop(much);
        assert_eq!(budget.held(), 100);
    }

    #[test]
    fn coming_again_gains_nothing() {
        let budget = budget(1_000_000);
        let mut waiting = Vec::new();
        for connection in 0..100 {
            let account = Account::new(&budget, connection);
            for _ in 0..100 {
                waiting.push((connection, account.charge(1_000)));
                account.is_too_much();
                // What closed connections left is dropped.
                let chosen = std::mem::take(&mut *budget.chosen.lock());
                waiting.retain(|(of, _)| !chosen.contains(of));
            }
        }
        assert!(budget.held() <= 750_000, "{}", budget.held());
    }

    #[test]
    fn uncounted_memory_leaves_less() {
        let budget = budget(1_000);
        assert_eq!(budget.limit(), 750);
        for (uncounted, limit) in [(100, 750), (400, 600), (700, 300), (10_000, 250)] {
            budget.uncounted.store(uncounted, Relaxed);
            assert_eq!(budget.limit(), limit);
        }
    }

    #[test]
    fn uncounted_memory_costs_those_that_hold_most_first() {
        let budget = budget(1_000);
        let small = Account::new(&budget, 0);
        let _little = small.charge(10);
        let large: Vec<_> = (1..=4).map(|connection| Account::new(&budget, connection)).collect();
        let _much: Vec<_> =
            large.iter().zip([100, 105, 120, 140]).map(|(account, bytes)| account.charge(bytes)).collect();
        assert!(!small.is_too_much(), "{budget:?}");
        budget.uncounted.store(10_000, Relaxed);
        assert!(!small.is_too_much(), "{budget:?}");
        assert_eq!(*budget.chosen.lock(), [4, 3]);
        let staying: Vec<_> = large.iter().map(|account| !account.is_too_much()).collect();
        assert_eq!(staying, [true, true, false, false]);
    }

    #[test]
    fn one_account_ends_while_another_looks_for_the_largest() {
        let budget = budget(1_000);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let budget = &budget;
                scope.spawn(move || {
                    for turn in 0..2_000 {
                        let account = Account::new(budget, thread * 10_000 + turn);
                        let _charge = account.charge(400);
                        account.is_too_much();
                    }
                });
            }
        });
        assert_eq!((budget.held(), budget.accounts.lock().len()), (0, 0));
    }
}
