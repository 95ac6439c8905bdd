//! `LogFile`, `Expired`: the facts for retention, and its result.

use pyo3::prelude::*;

/// Facts about one file of the log.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct LogFile(pub(super) crate::retention::LogFile);

#[pymethods]
impl LogFile {
    #[getter]
    const fn first(&self) -> u64 {
        self.0.first
    }

    #[getter]
    const fn end(&self) -> u64 {
        self.0.end
    }

    #[getter]
    const fn age_ms(&self) -> i64 {
        self.0.age_ms
    }

    #[getter]
    const fn held(&self) -> bool {
        self.0.is_held
    }

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
    #[getter]
    const fn minimum(&self) -> u64 {
        self.0.minimum
    }

    #[getter]
    const fn log_files(&self) -> usize {
        self.0.log_files
    }

    #[getter]
    const fn queue_files(&self) -> usize {
        self.0.queue_files
    }

    #[getter]
    const fn index_files(&self) -> usize {
        self.0.index_files
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
