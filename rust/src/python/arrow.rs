//! `Scan`: reads a range of the log through Arrow's C interfaces.
//!
//! In:     the columns and rows to read.
//! Out:    capsules of a stream or a schema, and physical offsets.
//! Always: each call begins a new stream. The interpreter's lock is released while the log is read.
//! Not here: names with times, hints about topics (Python's `arrow.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyCapsule};

use super::call::detached;
use super::error::{OrRaise, into_py};
use super::frames::Frames;
use crate::arrow::options::{Topics, topics_matching, types_named};
use crate::arrow::schema::schema;
use crate::arrow::{BadRecords, Counts, HalfMissing, Log, ParallelScan, ScanOptions, Threads, View};
use crate::base::error::{Error, Result};
use crate::base::units::QueueId;

/// A range of the log. It can be read any number of times.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Scan {
    path: PathBuf,
    options: Arc<ScanOptions>,
    threads: Threads,
    counts: Arc<Counts>,
}

#[pymethods]
impl Scan {
    #[new]
    #[pyo3(signature = (path, *, view="messages", columns=None, topics=None, topic_pattern=None, system_topics=false,
        queues=None, only_queues=false, start_store_ms=None, end_store_ms=None, transaction_types=None, start=None,
        end=None, is_cut=false, batch_rows=None, batch_bytes=None, skip_bad_records=false, fail_on_data_loss=true,
        skip_bytes_min=None, shows_missing=false, statistics_path=None, threads=1,
        piece_bytes=Threads::PIECE_BYTES))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Each is a keyword.
    fn new(
        py: Python<'_>,
        path: PathBuf,
        view: &str,
        columns: Option<Vec<String>>,
        topics: Option<Vec<String>>,
        topic_pattern: Option<&str>,
        system_topics: bool,
        queues: Option<BTreeMap<String, QueuePairs>>,
        only_queues: bool,
        start_store_ms: Option<i64>,
        end_store_ms: Option<i64>,
        transaction_types: Option<Vec<String>>,
        start: Option<u64>,
        end: Option<u64>,
        is_cut: bool,
        batch_rows: Option<usize>,
        batch_bytes: Option<usize>,
        skip_bad_records: bool,
        fail_on_data_loss: bool,
        skip_bytes_min: Option<u64>,
        shows_missing: bool,
        statistics_path: Option<PathBuf>,
        threads: usize,
        piece_bytes: u64,
    ) -> PyResult<Self> {
        let options = || {
            let view = View::named(view)?;
            let mut options = ScanOptions::of(view);
            if let Some(names) = &columns {
                options.columns = view.choose(names)?;
            }
            if let Some(pattern) = topic_pattern {
                options.topics = topics_matching(pattern, system_topics)?;
            } else if let Some(names) = topics {
                options.topics = Topics::Named(names.into_iter().collect());
            } else if system_topics {
                options.topics = Topics::All;
            }
            options.types = transaction_types.as_deref().map(types_named).transpose()?;
            options.queues = queues.unwrap_or_default().into_iter().map(ranges).collect();
            options.store_ms = start_store_ms.unwrap_or(i64::MIN)..end_store_ms.unwrap_or(i64::MAX);
            options.batch_rows = batch_rows.unwrap_or(options.batch_rows);
            options.batch_bytes = batch_bytes.unwrap_or(options.batch_bytes);
            options.skip_bytes_min = skip_bytes_min.unwrap_or(options.skip_bytes_min);
            options.bad_records = if skip_bad_records { BadRecords::Skip } else { BadRecords::Fail };
            options.statistics_path = statistics_path;
            options.check()?;
            if shows_missing {
                options.half_missing = HalfMissing::Shown;
            }
            Ok(ScanOptions { only_queues, start, end, is_cut, fail_on_data_loss, ..options })
        };
        let checked = || Ok((Arc::new(options()?), Threads { count: threads, piece_bytes }.check()?));
        let (options, threads) = checked().or_raise(py)?;
        Ok(Self { path, options, threads, counts: Arc::default() })
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol allows a stream with another schema than the requested one. The consumer then casts it.
        drop(requested_schema);
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(self.reader(py)?), c"arrow_array_stream")
    }

    /// Reads the scan in frames of at least that many rows, except the last. Raises as `check` does.
    fn frames(&self, py: Python<'_>, rows: usize) -> PyResult<Frames> {
        Ok(Frames::new(self.reader(py)?, &self.counts, rows))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let exported = FFI_ArrowSchema::try_from(schema(&self.options.columns).as_ref());
        let exported = exported.map_err(|why| into_py(py, &Error::StorePoisoned { why: why.to_string() }))?;
        PyCapsule::new_with_value(py, exported, c"arrow_schema")
    }

    /// Opens the log and checks the range, as a stream does first.
    ///
    /// Raises `StoreIOError`, `ForeignStoreError`, `MissingFileError`, `InvalidOptionError`, `OffsetTooOldError`.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        // This stream is not read, so its counts are not those of the scan.
        self.stream(py, &Arc::default()).map(drop)
    }

    /// Raises the engine's error of the last failed stream, once. Does nothing if none failed.
    fn raise_failure(&self, py: Python<'_>) -> PyResult<()> {
        self.counts.failure.lock().take().map_or(Ok(()), |error| Err(into_py(py, &error)))
    }

    /// Returns the end of a range from `start` with that many rows of this scan, or bytes of the log.
    ///
    /// `start` must be the beginning of a record. The end is between two records, after at least one, and at most the
    /// visible end and the scan's end.
    #[pyo3(signature = (start, *, rows=None, bytes=None))]
    fn advance(&self, py: Python<'_>, start: u64, rows: Option<u64>, bytes: Option<u64>) -> PyResult<u64> {
        look(py, &self.path, |log| log.advance(&self.options, start, rows, bytes))
    }

    /// Returns how many rows of this scan a range between two records has, at most `most`. The end must not be after the
    /// visible end. In the views of ops, an op message counts as one row.
    #[pyo3(signature = (start, end, *, most))]
    fn count(&self, py: Python<'_>, start: u64, end: u64, most: u64) -> PyResult<u64> {
        look(py, &self.path, |log| log.count(&self.options, start..end, most))
    }

    /// The column names, in order.
    #[getter]
    fn columns(&self) -> Vec<&'static str> {
        self.options.columns.iter().map(|column| column.name()).collect()
    }

    /// The number of bad records that its streams have skipped so far.
    #[getter]
    fn bad_records(&self) -> u64 {
        self.counts.bad_records.load(Ordering::Relaxed)
    }

    /// Bytes of the log that were skipped with them.
    #[getter]
    fn bad_bytes(&self) -> u64 {
        self.counts.bad_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of its range that retention has removed.
    #[getter]
    fn lost_bytes(&self) -> u64 {
        self.counts.lost_bytes.load(Ordering::Relaxed)
    }

    fn __repr__(&self) -> String {
        format!("Scan({}, columns={:?})", self.path.display(), self.columns())
    }
}

impl Scan {
    /// Opens a stream with the threads asked for.
    fn reader(&self, py: Python<'_>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
        let reads_whole = matches!(self.options.view, View::Transactions | View::Statistics);
        if self.threads.count == 1 || reads_whole {
            return Ok(Box::new(self.stream(py, &self.counts)?));
        }
        let open = || ParallelScan::open(&self.path, &self.options, &self.counts, self.threads);
        Ok(Box::new(detached(py, open)?))
    }

    fn stream(&self, py: Python<'_>, counts: &Arc<Counts>) -> PyResult<crate::arrow::Scan> {
        let open = || crate::arrow::Scan::open(&self.path, Arc::clone(&self.options), Arc::clone(counts));
        detached(py, open)
    }
}

/// Returns what is found in the log of a store that another process may write.
fn look<T: Send>(py: Python<'_>, path: &Path, find: impl Fn(&Log) -> Result<T> + Send + Sync) -> PyResult<T> {
    detached(py, || Log::open(path)?.steady(find))
}

/// Queue offsets by queue id: the first one, and the end.
type QueuePairs = BTreeMap<i32, (i64, i64)>;

fn ranges((topic, queues): (String, QueuePairs)) -> (String, BTreeMap<i32, std::ops::Range<i64>>) {
    (topic, queues.into_iter().map(|(queue, (start, end))| (queue, start..end)).collect())
}

/// Returns the first physical offset of the log and its visible end. `known` is the start of a record, to search from.
#[pyfunction]
#[pyo3(signature = (path, known=None))]
pub(super) fn log_range(py: Python<'_>, path: PathBuf, known: Option<u64>) -> PyResult<(u64, u64)> {
    look(py, &path, |log| Ok((log.first(), log.visible_end(known)?)))
}

/// Returns the first physical offset that retention has left.
#[pyfunction]
pub(super) fn log_first(py: Python<'_>, path: PathBuf) -> PyResult<u64> {
    look(py, &path, |log| Ok(log.first()))
}

/// Returns the part of a range between two records that can hold records stored in a time range, in ms since the epoch.
/// The end time is excluded.
#[pyfunction]
#[pyo3(signature = (path, start, end, *, start_store_ms=None, end_store_ms=None))]
pub(super) fn log_time_range(
    py: Python<'_>,
    path: PathBuf,
    start: u64,
    end: u64,
    start_store_ms: Option<i64>,
    end_store_ms: Option<i64>,
) -> PyResult<(u64, u64)> {
    let store_ms = start_store_ms.unwrap_or(i64::MIN)..end_store_ms.unwrap_or(i64::MAX);
    let found = look(py, &path, |log| log.time_range(start..end, &store_ms))?;
    Ok((found.start, found.end))
}

/// Splits a range of the log into about `parts` equal ranges that begin and end at record boundaries.
#[pyfunction]
pub(super) fn log_cut(py: Python<'_>, path: PathBuf, start: u64, end: u64, parts: u64) -> PyResult<Vec<(u64, u64)>> {
    let cuts = look(py, &path, |log| log.cut(start..end, parts))?;
    Ok(cuts.into_iter().map(|range| (range.start, range.end)).collect())
}

/// Returns the topics of the store's queues.
#[pyfunction]
pub(super) fn log_topics(py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
    look(py, &path, Log::topics)
}

/// Returns the numbers of a topic's queues, sorted.
#[pyfunction]
pub(super) fn log_queue_ids(py: Python<'_>, path: PathBuf, topic: &str) -> PyResult<Vec<i32>> {
    look(py, &path, |log| log.queue_ids(topic))
}

/// Returns the first queue offset of a queue that is still in the log and the end, or `None` if it has never had a
/// message.
#[pyfunction]
pub(super) fn log_queue_range(
    py: Python<'_>,
    path: PathBuf,
    topic: &str,
    queue_id: i32,
) -> PyResult<Option<(u64, u64)>> {
    let found = look(py, &path, |log| log.queue_range(topic, QueueId(queue_id)))?;
    Ok(found.map(|range| (range.start, range.end)))
}

/// Returns the first queue offset of a queue whose message was stored at or after a time, in ms since the epoch, or
/// `None` if all messages are older.
#[pyfunction]
pub(super) fn log_queue_offset_since(
    py: Python<'_>,
    path: PathBuf,
    topic: &str,
    queue_id: i32,
    store_ms: i64,
) -> PyResult<Option<u64>> {
    look(py, &path, |log| log.queue_offset_since(topic, QueueId(queue_id), store_ms))
}

/// Returns where the first message of a queue at or after a queue offset begins in the log, or the visible end if the
/// queue ends before.
#[pyfunction]
pub(super) fn log_queue_position(
    py: Python<'_>,
    path: PathBuf,
    topic: &str,
    queue_id: i32,
    queue_offset: u64,
) -> PyResult<u64> {
    look(py, &path, |log| log.physical_offset_of(topic, QueueId(queue_id), queue_offset))
}

/// Returns a broker's progress of the half queue, or 0 if only txstore wrote the log.
#[pyfunction]
pub(super) fn log_half_progress(py: Python<'_>, path: PathBuf) -> PyResult<u64> {
    look(py, &path, Log::half_progress)
}

/// Returns the first record boundary at or after `at`, or the visible end if there is none.
#[pyfunction]
pub(super) fn log_boundary(py: Python<'_>, path: PathBuf, at: u64) -> PyResult<u64> {
    look(py, &path, |log| log.boundary(at, log.visible_end(None)?))
}

/// Identifies a record among all others that could be at its physical offset.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct RecordName(crate::arrow::RecordName);

#[pymethods]
impl RecordName {
    /// The position in the commit log, in bytes.
    #[getter]
    const fn physical_offset(&self) -> u64 {
        self.0.physical_offset
    }

    /// The unique id, otherwise the offset id.
    #[getter]
    fn message_id(&self) -> &str {
        &self.0.message_id
    }

    /// When it was stored, in ms since the epoch.
    #[getter]
    const fn store_timestamp_ms(&self) -> i64 {
        self.0.store_timestamp_ms
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// Returns the store's id, or `None` if no txstore version with ids has opened the store for writing.
#[pyfunction]
pub(super) fn log_store_id(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    let id = look(py, &path, |log| Ok(log.store_id()))?;
    Ok(id.map(|id| id.to_string()))
}

/// Returns the name of the record that begins at `at`, or `None` if no record begins there.
#[pyfunction]
pub(super) fn log_record(py: Python<'_>, path: PathBuf, at: u64) -> PyResult<Option<RecordName>> {
    let name = look(py, &path, |log| log.record_at(at))?;
    Ok(name.map(RecordName))
}

/// Returns the name of the last record that begins before `end`, or `None` if retention has removed all.
#[pyfunction]
pub(super) fn log_last_record(py: Python<'_>, path: PathBuf, end: u64) -> PyResult<Option<RecordName>> {
    let name = look(py, &path, |log| log.name_before(end))?;
    Ok(name.map(RecordName))
}
