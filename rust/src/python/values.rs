//! Converts facts of the engine to Python's own types.
//!
//! In:     outcomes.
//! Out:    members of `TransactionState`.
//! Not here: errors (`error.rs`).

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::base::error::Outcome;

/// Returns the name of a transaction's state. None: it is pending.
pub(super) fn state_name(outcome: Option<Outcome>) -> &'static str {
    outcome.map_or("pending", Outcome::name)
}

/// Returns the member of `TransactionState`. None: the transaction is pending.
pub(super) fn transaction_state(py: Python<'_>, outcome: Option<Outcome>) -> PyResult<Bound<'_, PyAny>> {
    static STATES: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    STATES.import(py, "txstore.transaction_state", "TransactionState")?.call1((state_name(outcome),))
}
