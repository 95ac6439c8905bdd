//! `PulledRecords`: what a broker answered to pulls, as Arrow record batches.
//!
//! In:     answers to pulls, and which queue offsets of them are rows.
//! Out:    frames of one batch each.
//! Always: the bytes of an answer are decoded where they are, without the interpreter's lock.
//! Not here: connections, queues (`txstore.spark.network`).

use std::ops::Range;

use pyo3::prelude::*;

use super::call::detached;
use super::error::{OrRaise, protocol_error};
use super::frames::Frame;
use super::remoting::RemotingCommand;
use crate::arrow::options::{Topics, types_named};
use crate::arrow::{BadRecords, Pulled, ScanOptions, View};
use crate::base::error::Error;

/// Collects the records of answers into batches.
#[pyclass(module = "txstore._native")]
pub(super) struct PulledRecords {
    pulled: Pulled,
    answer: Option<Answer>,
}

/// An answer that is being read.
struct Answer {
    command: Py<RemotingCommand>,
    at: usize,
    queue: Range<u64>,
}

#[pymethods]
impl PulledRecords {
    #[new]
    #[pyo3(signature = (columns, *, transaction_types=None, start_store_ms=None, end_store_ms=None, batch_rows=None,
        batch_bytes=None, skip_bad_records=false))]
    #[allow(clippy::too_many_arguments)] // Each is a keyword.
    fn new(
        py: Python<'_>,
        columns: Vec<String>,
        transaction_types: Option<Vec<String>>,
        start_store_ms: Option<i64>,
        end_store_ms: Option<i64>,
        batch_rows: Option<usize>,
        batch_bytes: Option<usize>,
        skip_bad_records: bool,
    ) -> PyResult<Self> {
        let pulled = || {
            let mut options = ScanOptions::of(View::Messages);
            options.columns = options.view.choose(&columns)?;
            options.topics = Topics::All;
            options.types = transaction_types.as_deref().map(types_named).transpose()?;
            options.store_ms = start_store_ms.unwrap_or(i64::MIN)..end_store_ms.unwrap_or(i64::MAX);
            options.batch_rows = batch_rows.unwrap_or(options.batch_rows);
            options.batch_bytes = batch_bytes.unwrap_or(options.batch_bytes);
            options.bad_records = if skip_bad_records { BadRecords::Skip } else { BadRecords::Fail };
            Pulled::new(options)
        };
        Ok(Self { pulled: pulled().or_raise(py)?, answer: None })
    }

    /// Sets the answer that `full` reads next. Rows are its records with a queue offset from `start` to before `end`.
    fn add(&mut self, answer: Py<RemotingCommand>, start: u64, end: u64) {
        self.answer = Some(Answer { command: answer, at: 0, queue: start..end });
    }

    /// Reads the answer on. Returns a full batch, or `None` once the answer is read.
    fn full(&mut self, py: Python<'_>) -> PyResult<Option<Frame>> {
        let Some(answer) = &mut self.answer else { return Ok(None) };
        let (pulled, bytes) = (&mut self.pulled, answer.command.get().command.body.as_slice());
        let read = detached(py, || Ok(pulled.append(bytes, answer.at, &answer.queue)))?;
        answer.at = read.map_err(|why| protocol_error(py, &why.to_string()))?;
        if answer.at < bytes.len() {
            return self.rest(py);
        }
        self.answer = None;
        Ok(None)
    }

    /// Returns the batch as far as it is filled, or `None` if it has no rows.
    fn rest(&mut self, py: Python<'_>) -> PyResult<Option<Frame>> {
        if self.pulled.rows() == 0 {
            return Ok(None);
        }
        let pulled = &mut self.pulled;
        let finish = || pulled.finish().map_err(|why| Error::StorePoisoned { why: why.to_string() });
        detached(py, finish).map(Frame::of).map(Some)
    }

    /// How many rows wait for `rest`.
    #[getter]
    const fn rows(&self) -> usize {
        self.pulled.rows()
    }

    /// How many bad records were skipped.
    #[getter]
    const fn bad_records(&self) -> u64 {
        self.pulled.bad().0
    }
}
