//! Converts facts of the engine to Python's own types.
//!
//! In:     outcomes, times.
//! Out:    members of `TransactionState`, aware datetimes; values of bodies, which `txstore.serialization` converts.
//! Not here: errors (`error.rs`).

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDateTime, PyDelta, PyType, PyTzInfo};

use crate::base::error::Outcome;

/// The first and the last millisecond that a `datetime` can tell, since the epoch.
const DATETIME_MS: (i64, i64) = (-62_135_596_800_000, 253_402_300_799_999);
const DAY_MS: i64 = 86_400_000;

/// Returns the name of a transaction's state. None: it is pending.
pub(super) fn state_name(outcome: Option<Outcome>) -> &'static str {
    outcome.map_or("pending", Outcome::name)
}

/// Returns the member of `TransactionState`. None: the transaction is pending.
pub(super) fn transaction_state(py: Python<'_>, outcome: Option<Outcome>) -> PyResult<Bound<'_, PyAny>> {
    static STATES: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    STATES.import(py, "txstore.transaction_state", "TransactionState")?.call1((state_name(outcome),))
}

/// Converts milliseconds since the epoch to a datetime in UTC, clamped to datetime's range.
pub(super) fn utc(py: Python<'_>, timestamp_ms: i64) -> PyResult<Bound<'_, PyAny>> {
    let ms = timestamp_ms.clamp(DATETIME_MS.0, DATETIME_MS.1);
    let (days, rest) = (i32::try_from(ms.div_euclid(DAY_MS))?, i32::try_from(ms.rem_euclid(DAY_MS))?);
    let epoch = PyDateTime::new(py, 1970, 1, 1, 0, 0, 0, 0, Some(&*PyTzInfo::utc(py)?))?;
    // In whole numbers: as a floating-point number, a time far from the epoch is not exact.
    epoch.add(PyDelta::new(py, days, rest / 1_000, rest % 1_000 * 1_000, false)?)
}

/// Returns the body for a value. User code may run, so no lock of ours may be held.
pub(super) fn encoded<'py>(
    value: &Bound<'py, PyAny>,
    serializer: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ENCODE.import(value.py(), "txstore.serialization", "encode")?.call1((value, serializer))
}

/// Returns the value of a message's body. User code may run, so no lock of ours may be held.
pub(super) fn decoded<'py>(
    message: &Bound<'py, PyAny>,
    kind: &Bound<'py, PyAny>,
    serializer: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static DECODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECODE.import(message.py(), "txstore.serialization", "decode")?.call1((message, kind, serializer))
}
