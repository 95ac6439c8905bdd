//! Provides the locks and atomics of everything that threads share.
//!
//! In:     nothing.
//! Out:    the standard library's locks, which no panic poisons, and its atomics. Under `cfg(loom)` loom's, with the
//!         same interface, so that `make loom` runs the engine's own code in every order.
//! Always: a lock consists of its own few bytes and the kernel's futex, so that new stores in a forked child share
//!         nothing with the parent's threads. (A fork copies `parking_lot`'s process-wide queue of waiting threads,
//!         full of threads that no longer exist.)
//! Not here: what they guard; maps that other processes share.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
pub(crate) use modelled::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use unmodelled::{Condvar, Mutex, MutexGuard};

/// Defines locks on those of a crate with the standard library's interface.
macro_rules! locks {
    ($library:ident) => {
        use std::sync::{PoisonError, TryLockError};
        pub(crate) use $library::sync::MutexGuard;

        /// A mutex that a panic leaves usable: what it guards changes only where nothing panics.
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

    impl Condvar {
        pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
            self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
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

    impl Condvar {
        /// Waits without a timeout, because time does not pass in a model. A lost wake-up shows as a thread that waits
        /// for ever.
        pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
            self.wait(guard)
        }
    }
}
