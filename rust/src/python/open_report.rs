//! `OpenReport`: what opening a store found and did.

use pyo3::prelude::*;

/// What opening a store found and did.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct OpenReport(pub(super) crate::store::OpenReport);

#[pymethods]
impl OpenReport {
    /// Whether the store was closed cleanly.
    #[getter]
    const fn clean(&self) -> bool {
        self.0.clean
    }

    /// The physical offset at which the scan began: that of the snapshot, or the log's first.
    #[getter]
    const fn scanned_from(&self) -> u64 {
        self.0.scanned_from
    }

    /// Bytes of the log that the opening scanned.
    #[getter]
    const fn scanned_bytes(&self) -> u64 {
        self.0.scanned_bytes
    }

    /// Bytes of the torn tail that was truncated, or would be if the store is opened read-only.
    #[getter]
    const fn truncated_bytes(&self) -> u64 {
        self.0.truncated_bytes
    }

    /// Halves whose missing op message was written, or would be if the store is opened read-only.
    #[getter]
    const fn healed_ops(&self) -> u64 {
        self.0.healed_ops
    }

    /// How long the opening took.
    #[getter]
    const fn duration(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0.milliseconds)
    }

    /// What was found and repaired or ignored, one text each.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings.clone()
    }

    fn __repr__(&self) -> String {
        format!(
            "OpenReport(clean={}, scanned_bytes={}, truncated_bytes={}, healed_ops={}, milliseconds={})",
            if self.0.clean { "True" } else { "False" },
            self.0.scanned_bytes,
            self.0.truncated_bytes,
            self.0.healed_ops,
            self.0.milliseconds
        )
    }
}
