//! `LogFile`, `Expired`: the facts for retention, and its result.

use pyo3::prelude::*;

/// Facts about one file of the log.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct LogFile(pub(super) crate::store::retention::LogFile);

#[pymethods]
impl LogFile {
    /// The physical offset of its first byte.
    #[getter]
    const fn first(&self) -> u64 {
        self.0.first
    }

    /// The physical offset after its last byte.
    #[getter]
    const fn end(&self) -> u64 {
        self.0.end
    }

    /// Time since the record after its newest one was stored. A jump of the wall clock does not make it older.
    #[getter]
    const fn age_ms(&self) -> i64 {
        self.0.age_ms
    }

    /// Whether this file or an earlier one has a half of a pending transaction or a waiting delayed message.
    #[getter]
    const fn held(&self) -> bool {
        self.0.is_held
    }

    /// Whether this file or an earlier one has a message that a group of its topic has not acknowledged.
    ///
    /// A topic that no group reads has no unread messages.
    #[getter]
    const fn unread(&self) -> bool {
        self.0.is_unread
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The result of a removal.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Expired(pub(super) crate::store::Expired);

#[pymethods]
impl Expired {
    /// The physical offset at which the log now begins.
    #[getter]
    const fn minimum(&self) -> u64 {
        self.0.minimum
    }

    /// How many files of the log were removed.
    #[getter]
    const fn log_files(&self) -> usize {
        self.0.log_files
    }

    /// How many files of queues were removed.
    #[getter]
    const fn queue_files(&self) -> usize {
        self.0.queue_files
    }

    /// How many files of the index were removed.
    #[getter]
    const fn index_files(&self) -> usize {
        self.0.index_files
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
