//! Provides the locks and atomics of everything that threads share.
//!
//! In:     nothing.
//! Out:    the standard library's locks, which no panic poisons, and its atomics. Under `cfg(loom)` loom's, with the
//!         same interface, so that `make loom` runs the engine's own code in every order.
//! Always: a lock consists of its own few bytes and the kernel's futex, so that new stores in a forked child share
//!         nothing with the parent's threads. (A fork copies `parking_lot`'s process-wide queue of waiting threads,
//!         full of threads that no longer exist.) In debug builds and with the feature `testing`, a lock that is taken
//!         against the order of the ranks is a panic.
//! Not here: what they guard; maps that other processes share.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
pub(crate) use modelled::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use unmodelled::{Condvar, Mutex, MutexGuard};

/// The ranks of mutexes, which are the rows of the drawing in `store/state.rs`. A thread that holds a ranked mutex waits
/// only for mutexes of higher ranks.
pub(crate) mod rank {
    /// The order is not checked.
    pub(crate) const NONE: u8 = 0;
    /// One group of ends; one round of deliveries; one count of what is pending.
    pub(crate) const TURN: u8 = 1;
    /// Maintenance.
    pub(crate) const MAINTENANCE: u8 = 2;
    /// The put lock.
    pub(crate) const PUT: u8 = 3;
    /// The small files, and the index.
    pub(crate) const FILES: u8 = 4;
    /// Locks that are held briefly.
    pub(crate) const BRIEF: u8 = 5;
}

/// Checks the order of the ranks. Not under loom, whose threads share one thread of the operating system.
#[cfg(all(any(debug_assertions, feature = "testing"), not(loom)))]
mod order {
    use std::cell::Cell;

    use super::rank::NONE;

    thread_local! {
        /// How many locks of each rank this thread holds, one byte for each rank.
        static HELD: Cell<u64> = const { Cell::new(0) };
    }

    /// A lock that this thread holds.
    #[derive(Debug)]
    pub(super) struct Held {
        one: u64,
    }

    impl Held {
        pub(super) fn new(rank: u8) -> Self {
            let one = if rank == NONE { 0 } else { 1 << (8 * rank) };
            HELD.set(HELD.get() + one);
            Self { one }
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() - self.one);
        }
    }

    /// Panics if this thread holds a lock of the same or a higher rank. A second panic would hide the first one.
    #[track_caller]
    pub(super) fn check(rank: u8) {
        let is_right = rank == NONE || HELD.get() >> (8 * rank) == 0 || std::thread::panicking();
        let highest = || (u64::BITS - 1).saturating_sub(HELD.get().leading_zeros()) / 8;
        assert!(is_right, "a lock of rank {rank} is taken under one of rank {}: see store/state.rs", highest());
    }
}

#[cfg(not(all(any(debug_assertions, feature = "testing"), not(loom))))]
mod order {
    #[derive(Debug)]
    pub(super) struct Held;

    impl Held {
        #[inline]
        pub(super) const fn new(_: u8) -> Self {
            Self
        }
    }

    #[inline]
    pub(super) const fn check(_: u8) {}
}

/// Defines locks on those of a crate with the standard library's interface.
macro_rules! locks {
    ($library:ident) => {
        use std::ops::{Deref, DerefMut};
        use std::sync::{PoisonError, TryLockError};

        use super::order::{Held, check};
        use super::rank;

        /// A mutex that a panic leaves usable: what it guards changes only where nothing panics.
        #[derive(Debug, Default)]
        pub(crate) struct Mutex<T, const RANK: u8 = { rank::NONE }>($library::sync::Mutex<T>);

        impl<T, const RANK: u8> Mutex<T, RANK> {
            #[cfg_attr(debug_assertions, track_caller)]
            #[inline]
            pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
                check(RANK);
                let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                MutexGuard { guard, held: Held::new(RANK) }
            }

            /// Takes the lock if it is free. Any order is right, because nothing waits.
            #[inline]
            pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
                let guard = match self.0.try_lock() {
                    Ok(guard) => guard,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => return None,
                };
                Some(MutexGuard { guard, held: Held::new(RANK) })
            }
        }

        /// Access to what a mutex guards. The mutex is free again when this is dropped.
        #[derive(Debug)]
        pub(crate) struct MutexGuard<'a, T> {
            guard: $library::sync::MutexGuard<'a, T>,
            held: Held,
        }

        impl<T> Deref for MutexGuard<'_, T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                &self.guard
            }
        }

        impl<T> DerefMut for MutexGuard<'_, T> {
            #[inline]
            fn deref_mut(&mut self) -> &mut T {
                &mut self.guard
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Condvar($library::sync::Condvar);

        impl Condvar {
            pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
                let MutexGuard { guard, held } = guard;
                MutexGuard { guard: self.0.wait(guard).unwrap_or_else(PoisonError::into_inner), held }
            }

            pub(crate) fn notify_all(&self) {
                self.0.notify_all();
            }
        }
    };
}

/// Locks for code that no model runs, under loom too.
#[cfg_attr(loom, allow(dead_code))] // Builds with loom use only a part of it.
pub(crate) mod unmodelled {
    use std::sync::{RwLockReadGuard, RwLockWriteGuard};
    use std::time::Duration;

    locks!(std);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }
    }

    impl<T, const RANK: u8> Mutex<T, RANK> {
        pub(crate) const fn ranked(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }
    }

    impl Condvar {
        pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
            let MutexGuard { guard, held } = guard;
            let (guard, _) = self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
            MutexGuard { guard, held }
        }
    }

    /// A lock like `Mutex`, for many readers.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::time::Duration;

    locks!(loom);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
    }

    impl<T, const RANK: u8> Mutex<T, RANK> {
        pub(crate) fn ranked(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
    }

    impl Condvar {
        /// Waits without a timeout, because time does not pass in a model. A lost wake-up shows as a thread that waits
        /// for ever.
        pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
            self.wait(guard)
        }
    }
}

#[cfg(all(test, any(debug_assertions, feature = "testing"), not(loom)))]
mod tests {
    //! A lock that is taken against the order is a panic, also where no other thread happens to meet it.

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[derive(Default)]
    struct Locks {
        unranked: Mutex<()>,
        put: Mutex<u8, { rank::PUT }>,
        other_put: Mutex<(), { rank::PUT }>,
        files: Mutex<(), { rank::FILES }>,
        changed: Condvar,
    }

    fn panics<T>(take: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(take)).is_err()
    }

    #[test]
    fn a_lock_of_the_same_or_a_lower_rank_is_not_waited_for() {
        let locks = Locks::default();
        let files = locks.files.lock();
        assert!(panics(|| locks.put.lock()));
        drop(files);
        let put = locks.put.lock();
        assert!(panics(|| locks.other_put.lock()));
        let _unranked = locks.unranked.lock();
        let _files = locks.files.lock();
        drop(put);
        assert!(panics(|| locks.put.lock()), "the files are still held");
        assert!(locks.put.try_lock().is_some(), "this waits for nothing");
        std::thread::scope(|scope| scope.spawn(|| drop(locks.put.lock())).join().unwrap());
    }

    #[test]
    fn a_lock_that_was_tried_or_waited_with_counts_until_it_is_free() {
        let locks = Locks::default();
        let files = locks.files.try_lock().unwrap();
        assert!(panics(|| locks.put.lock()));
        drop(files);
        let put = locks.changed.wait_for(locks.put.lock(), std::time::Duration::from_millis(1));
        assert!(panics(|| locks.other_put.lock()));
        drop(put);
        drop(locks.other_put.lock());
    }
}
