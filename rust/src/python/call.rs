//! Calls the engine from Python so that other Python threads never wait with the caller.
//!
//! In:     a call of the engine.
//! Out:    its result. An error or a panic becomes an exception.
//! Always: the engine never waits while the interpreter's lock is held. Every call of the engine that can fail goes
//!         through here (`tests/unit/test_tidy.py`).

use pyo3::prelude::*;

use super::error::OrRaise;
use crate::base::error::{Error, Result};
use crate::store::{Unacknowledged, Wait};

/// Runs a call that may wait. Releases the interpreter's lock.
pub(super) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| guarded(call)).or_raise(py)
}

/// Runs a call that seldom waits and takes less time than releasing the interpreter's lock.
///
/// `now` never waits: it fails with `WouldWait` if it would have to. Only then `waiting` runs, without the
/// interpreter's lock.
pub(super) fn now_or_detached<T: Send>(
    py: Python<'_>,
    now: impl FnOnce() -> Result<T>,
    waiting: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    match guarded(now) {
        Err(Error::WouldWait) => detached(py, waiting),
        done => done.or_raise(py),
    }
}

/// Writes at once if the call need not wait. Otherwise waits without the interpreter's lock.
pub(super) fn written<'s, T: Send>(
    py: Python<'_>,
    write: impl Fn(Wait) -> Result<Unacknowledged<'s, T>> + Sync,
) -> PyResult<T> {
    match guarded(|| write(Wait::No)) {
        Err(Error::WouldWait) => detached(py, || write(Wait::Yes)?.acknowledged()),
        Ok(written) if written.needs_sync() => detached(py, || written.acknowledged()),
        written => written.and_then(Unacknowledged::acknowledged).or_raise(py),
    }
}

/// Writes without waiting for a sync. Returns what was written, and the physical offset up to which the log must be
/// durable before the write counts; 0 if it counts already.
///
/// Only with `wait` it waits for a lock or for space, without the interpreter's lock. Otherwise `None` says that it would
/// have to wait, and that nothing has changed.
pub(super) fn unacknowledged<'s, T: Send>(
    py: Python<'_>,
    wait: bool,
    write: impl Fn(Wait) -> Result<Unacknowledged<'s, T>> + Sync,
) -> PyResult<Option<(T, u64)>> {
    let written = if wait { py.detach(|| guarded(|| write(Wait::Yes))) } else { guarded(|| write(Wait::No)) };
    match written.map(Unacknowledged::into_parts) {
        Err(Error::WouldWait) => Ok(None),
        written => written.map(|(value, end)| Some((value, end.map_or(0, |end| end.0)))).or_raise(py),
    }
}

/// Runs a call of the engine. A panic, which is a bug, becomes an ordinary error.
fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Err(Error::StorePoisoned { why: format!("a panic in the engine, which is a bug: {text}") })
    })
}
