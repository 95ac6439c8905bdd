//! `Frames` and `Frame`: the batches of a scan, some rows at a time, for consumers that read a stream as a whole.
//!
//! In:     a stream of batches.
//! Out:    Arrow streams of a few batches each.
//! Always: the interpreter's lock is released while batches are read.
//! Not here: what is read.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyCapsule};

use super::call::detached;
use crate::arrow::Counts;
use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::Mutex;

/// Reads a scan frame by frame. Created by `Scan.frames`.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Frames {
    stream: Mutex<Box<dyn RecordBatchReader + Send>>,
    counts: Arc<Counts>,
    rows: usize,
}

#[pymethods]
impl Frames {
    const fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        detached(py, || self.read())
    }
}

impl Frames {
    pub(super) fn new(stream: Box<dyn RecordBatchReader + Send>, counts: &Arc<Counts>, rows: usize) -> Self {
        Self { stream: Mutex::new(stream), counts: Arc::clone(counts), rows: rows.max(1) }
    }

    /// Reads the next batches; `None` after the last one.
    fn read(&self) -> Result<Option<Frame>> {
        let mut stream = self.stream.lock();
        let (mut batches, mut rows) = (Vec::new(), 0);
        while rows < self.rows {
            let Some(batch) = stream.next() else { break };
            let batch = batch.map_err(|error| self.failure(&error))?;
            rows += batch.num_rows();
            if batch.num_rows() > 0 {
                batches.push(batch);
            }
        }
        Ok((rows > 0).then(|| Frame { schema: stream.schema(), batches }))
    }

    fn failure(&self, error: &ArrowError) -> Error {
        let known = self.counts.failure.lock().take();
        known.unwrap_or_else(|| Error::StorePoisoned { why: error.to_string() })
    }
}

/// A few batches.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Frame {
    schema: Arc<Schema>,
    batches: Vec<RecordBatch>,
}

impl Frame {
    pub(super) fn of(batch: RecordBatch) -> Self {
        Self { schema: batch.schema(), batches: vec![batch] }
    }
}

#[pymethods]
impl Frame {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The consumer casts what it wants otherwise.
        drop(requested_schema);
        let batches = RecordBatchIterator::new(self.batches.clone().into_iter().map(Ok), Arc::clone(&self.schema));
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), c"arrow_array_stream")
    }
}
