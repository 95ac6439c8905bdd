//! `BackupSource`, `verify_log_file`: what a backup of a store contains, and whether a copied file is whole.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use super::call::detached;
use crate::backup::{Source, Verified, verify_file};
use crate::base::sync::Mutex;
use crate::storage::Storage;
use crate::storage::disk::Disk;

/// A store of which a backup is taken. Another process may write it.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct BackupSource(Mutex<Source>);

#[pymethods]
impl BackupSource {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = || Disk::open(&path).and_then(|disk| Source::open(Arc::new(disk)));
        detached(py, opened).map(|source| Self(Mutex::new(source)))
    }

    /// Takes the present range of the log. False: writers kept changing the store in another way than by appending.
    fn look(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || self.0.lock().look())
    }

    /// The physical offset at which the log began at the last look.
    #[getter]
    fn first(&self) -> u64 {
        self.0.lock().first()
    }

    /// One past the last visible record at the last look.
    #[getter]
    fn end(&self) -> u64 {
        self.0.lock().end()
    }

    /// Bytes of a log file; 0 if there are none.
    #[getter]
    fn file_size(&self) -> u64 {
        self.0.lock().file_size()
    }

    /// The store's id, 32 hex digits, if it has one.
    #[getter]
    fn store_id(&self) -> Option<String> {
        self.0.lock().store_id()
    }

    /// Returns whether the range of the last look is still what the writer shows.
    fn is_still(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || self.0.lock().is_still())
    }

    /// Writes the settings and the marks of a store that was not closed to a directory.
    fn begin_copy(&self, py: Python<'_>, to: PathBuf) -> PyResult<()> {
        detached(py, || self.0.lock().begin_copy(&Disk::open(&to)?))
    }

    /// Returns the last file of each queue that has had messages and has none in the range.
    fn silent_queue_files(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        detached(py, || self.0.lock().silent_queue_files())
    }
}

/// What a file of a log holds.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct LogFileContent(Verified);

#[pymethods]
impl LogFileContent {
    /// How many records there are.
    #[getter]
    const fn records(&self) -> u64 {
        self.0.records
    }

    /// The CRC-32 of its bytes, as `zlib.crc32` returns it.
    #[getter]
    const fn crc32(&self) -> u32 {
        self.0.crc
    }
}

/// Verifies each record of the log file of the store at `path` that begins at `base`, up to the log's `end`.
#[pyfunction]
pub(super) fn verify_log_file(
    py: Python<'_>,
    path: PathBuf,
    file_size: u64,
    base: u64,
    end: u64,
) -> PyResult<LogFileContent> {
    let verified = || {
        let storage: Arc<dyn Storage> = Arc::new(Disk::open(&path)?);
        verify_file(&storage, file_size, base, end)
    };
    detached(py, verified).map(LogFileContent)
}
