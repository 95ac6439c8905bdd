//! Sync: the locks and atomics of everything that threads share.
//!
//! In:     nothing.
//! Out:    the standard library's locks, which no panic poisons, and its atomics; under `cfg(loom)` loom's, with the
//!         same face, so that `make loom` runs the engine's own code in every order.
//! Always: a lock is its own few bytes and the kernel's futex, so that a forked child's new stores meet nothing of its
//!         parent's threads (the queue of waiting threads that `parking_lot` keeps for the whole process is copied by a
//!         fork, full of threads that are gone).
//! Not here: what they guard; maps that other processes share.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
pub(crate) use modelled::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use unmodelled::{Condvar, Mutex, MutexGuard};

/// Locks from a crate that has the standard library's.
macro_rules! locks {
    ($library:ident) => {
        use std::sync::{PoisonError, TryLockError};
        pub(crate) use $library::sync::MutexGuard;

        /// A panic with the lock held leaves it usable: what it guards is only changed where nothing panics.
        #[derive(Debug, Default)]
        pub(crate) struct Mutex<T>($library::sync::Mutex<T>);

        impl<T> Mutex<T> {
            pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
                self.0.lock().unwrap_or_else(PoisonError::into_inner)
            }

            pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
                match self.0.try_lock() {
                    Ok(guard) => Some(guard),
                    Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                }
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Condvar($library::sync::Condvar);

        impl Condvar {
            pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
                self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
            }

            pub(crate) fn notify_all(&self) {
                self.0.notify_all();
            }
        }
    };
}

/// For what no model runs through, under loom too.
#[cfg_attr(loom, allow(dead_code))] // The rest of it is for builds without loom.
pub(crate) mod unmodelled {
    use std::sync::{RwLockReadGuard, RwLockWriteGuard};
    use std::time::Duration;

    locks!(std);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }
    }

    impl Condvar {
        pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
            self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
        }
    }

    /// As `Mutex`, for many readers.
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

    impl Condvar {
        /// Time stands still in a model: a wake-up that is lost is found as a thread that waits for ever.
        pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
            self.wait(guard)
        }
    }
}
