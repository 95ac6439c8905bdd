//! `MemoryStorage` and `HandClock`: a store without files, in a time that a test sets.
//!
//! In:     moments, crashes.
//! Out:    storage that `Store.open` takes as a path.
//! Always: a crash leaves its storage to the stores that are open there, and returns another one with what survived.
//! Not here: faults of single calls, and the wrong variants of this engine, which are for its own tests.

use std::sync::Arc;

use pyo3::prelude::*;

use super::call::detached;
use crate::base::clock::{Clock, ManualClock};
use crate::base::options::StoreOptions;
use crate::base::units::TimestampMs;
use crate::storage::memory::{CrashKeep, Memory};
use crate::store::Store;

/// A clock that only its owner moves.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct HandClock(Arc<ManualClock>);

#[pymethods]
impl HandClock {
    #[new]
    fn new(time_ms: i64) -> Self {
        Self(Arc::new(ManualClock::at(TimestampMs(time_ms))))
    }

    fn time_ms(&self) -> i64 {
        self.0.wall().0
    }

    fn monotonic_ms(&self) -> i64 {
        self.0.monotonic_ms()
    }

    fn advance(&self, milliseconds: i64) {
        self.0.advance(milliseconds);
    }

    fn jump(&self, milliseconds: i64) {
        self.0.jump_wall(milliseconds);
    }
}

/// The files of a store, in memory.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct MemoryStorage {
    memory: Memory,
    clock: Arc<ManualClock>,
}

#[pymethods]
impl MemoryStorage {
    #[new]
    fn new(clock: &Bound<'_, HandClock>) -> Self {
        let clock = Arc::clone(&clock.get().0);
        let memory = Memory::with_own_ids().with_clock(Arc::<ManualClock>::clone(&clock));
        Self { memory, clock }
    }

    #[pyo3(signature = (*, power_loss, seed=None))]
    fn crash(&self, py: Python<'_>, power_loss: bool, seed: Option<u64>) -> Self {
        let survive = |memory: &Memory| match (power_loss, seed) {
            (false, _) => memory.crash(0, CrashKeep::PageCache),
            (true, Some(seed)) => memory.crash(seed, CrashKeep::PowerLoss),
            (true, None) => memory.lose_power(|_| 0),
        };
        let memory = py.detach(|| self.memory.kill(survive));
        Self { memory, clock: Arc::clone(&self.clock) }
    }
}

impl MemoryStorage {
    /// Opens the store in these files.
    pub(super) fn open(&self, py: Python<'_>, options: StoreOptions) -> PyResult<Store> {
        let (memory, clock) = (self.memory.clone(), Arc::clone(&self.clock));
        detached(py, || Store::open_with(Arc::new(memory), clock, options))
    }
}
