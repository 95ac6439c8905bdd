//! Converts errors to exceptions. The only such table.
//!
//! In:     `crate::Error`.
//! Out:    an exception of `txstore.errors`, with the facts as attributes.
//! Not here: texts.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::values::transaction_state;
use crate::base::error::Error;

/// Converts an error to an exception.
pub(super) fn into_py(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|failed| failed)
}

/// Returns the exception for invalid data from the other side of a connection. It is not an error of the engine.
pub(super) fn protocol_error(py: Python<'_>, what: &str) -> PyErr {
    let made = || py.import("txstore.errors")?.getattr("ProtocolError")?.call1((what,));
    made().map_or_else(|failed| failed, PyErr::from_value)
}

/// Converts the error of a result to an exception.
pub(super) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for crate::base::error::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| into_py(py, &error))
    }
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let facts = PyDict::new(py);
    let class = match error {
        Error::InvalidMessage { .. } => "InvalidMessageError",
        Error::InvalidName { .. } => "InvalidNameError",
        Error::InvalidOption { option, .. } => {
            facts.set_item("option", option)?;
            "InvalidOptionError"
        }
        Error::MessageNotFound { .. } => "MessageNotFoundError",
        Error::TransactionNotFound { .. } => "TransactionNotFoundError",
        Error::OffsetTooOld { minimum, .. } => {
            facts.set_item("minimum", minimum)?;
            "OffsetTooOldError"
        }
        Error::AlreadyEnded { outcome, .. } => {
            facts.set_item("outcome", transaction_state(py, Some(*outcome))?)?;
            "AlreadyEndedError"
        }
        Error::StillPending { .. } => "StillPendingError",
        Error::WrongGroup { .. } => "WrongGroupError",
        Error::LateEnd { .. } => "LateEndError",
        Error::EndHeld { .. } => {
            facts.set_item("code", crate::remoting::codes::of_error(error))?;
            "BrokerBusyError"
        }
        Error::StoreForked { .. } => "StoreForkedError",
        Error::ReadOnly { .. } | Error::Replica { .. } | Error::Fenced { .. } => "ReadOnlyError",
        Error::StoreLocked { pid, .. } => {
            facts.set_item("pid", pid)?;
            "StoreLockedError"
        }
        Error::DiskFull { path, source } => {
            system(&facts, path, source)?;
            "DiskFullError"
        }
        Error::TooManyPending { .. } => "TooManyPendingError",
        // Every call that may not wait is repeated as one that may, so Python never sees this error.
        Error::WouldWait => "TxStoreError",
        Error::TooManyFiles { path, source } => {
            system(&facts, path, source)?;
            "TooManyFilesError"
        }
        Error::StoreCorrupt { file, offset, .. } => {
            facts.set_item("file", file.to_string_lossy())?;
            facts.set_item("offset", offset)?;
            "StoreCorruptError"
        }
        Error::MissingFile { .. } => "MissingFileError",
        Error::ForeignStore { .. } => "ForeignStoreError",
        Error::StorePoisoned { .. } => "StorePoisonedError",
        Error::StoreClosed => "StoreClosedError",
        Error::Io { path, source, .. } => {
            system(&facts, path, source)?;
            "StoreIOError"
        }
    };
    let class = py.import("txstore.errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((error.to_string(),), Some(&facts))?))
}

fn system(facts: &Bound<'_, PyDict>, path: &std::path::Path, source: &std::io::Error) -> PyResult<()> {
    facts.set_item("errno", source.raw_os_error())?;
    facts.set_item("filename", path.to_string_lossy())
}
