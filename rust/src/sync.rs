//! Sync: the locks and atomics of everything that threads share.
//!
//! In: nothing. Out: `parking_lot`'s locks and the standard library's atomics; under `cfg(loom)` loom's, with the same
//! face, so that `make loom` runs the engine's own code in every order. Not here: what they guard; maps that other
//! processes share.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use modelled::{Condvar, Mutex};

/// loom's locks with `parking_lot`'s calls.
#[cfg(loom)]
#[allow(clippy::expect_used)] // A poisoned lock, or a guard without its lock, is this model's own mistake.
mod modelled {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().expect("no thread panics with the lock held")))
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock().ok().map(|guard| Guard(Some(guard)))
        }
    }

    /// The guard is handed to loom while it waits.
    pub(crate) struct Guard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("the lock is held")
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("the lock is held")
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
            let held = guard.0.take().expect("the lock is held");
            guard.0 = Some(self.0.wait(held).expect("no thread panics with the lock held"));
        }

        /// Time stands still in a model: a wake-up that is lost is found as a thread that waits for ever.
        pub(crate) fn wait_for<T>(&self, guard: &mut Guard<'_, T>, _: Duration) {
            self.wait(guard);
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
