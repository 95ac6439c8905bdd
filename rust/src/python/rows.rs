//! `SinkRows`: rows of Spark as the bodies of requests that store them.
//!
//! In:     columns in arrays of pyarrow, without lists: those come as lengths and values (Python's `sink/columns.py`).
//! Out:    bodies of requests.
//! Always: no Python object per message. The arrays' bytes are copied once and checked, because what another library
//!         passes through Arrow's C interface may be invalid text. The interpreter's lock is released while rows are
//!         encoded.
//! Not here: columns' names and types (Python), requests (`txstore.spark.sink`).

use std::collections::BTreeMap;

use arrow_array::{BinaryArray, Int32Array, Int64Array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::call::detached;
use super::error::OrRaise;
use super::unique_ids;
use crate::base::error::Error;
use crate::remoting::rows::{Keys, Lists, QueueBatch, Rows, TopicQueues};

type Arrays<'py> = Vec<Bound<'py, PyAny>>;

/// Rows to be sent.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct SinkRows {
    rows: Rows,
}

/// The queues of a topic, as a client numbers them.
#[pyclass(frozen, module = "txstore._native", from_py_object)]
#[derive(Clone)]
pub(super) struct SinkQueues {
    own: TopicQueues,
}

/// The half messages of one transaction.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct SinkHalves {
    /// The unique id of the first one.
    message_id: String,
    /// The body of the request that stores them.
    body: Py<PyBytes>,
}

/// Messages for one queue.
#[pyclass(frozen, get_all, module = "txstore._native")]
pub(super) struct SinkBatch {
    /// The topic.
    topic: String,
    /// The queue's number.
    queue: i64,
    /// How many messages it has.
    count: usize,
    /// The body of the request that stores them.
    body: Py<PyBytes>,
}

#[pymethods]
impl SinkQueues {
    #[new]
    fn new(queues: Vec<(i64, i32)>, turn: usize) -> Self {
        Self { own: TopicQueues { queues, turn } }
    }
}

#[pymethods]
impl SinkRows {
    #[new]
    fn new(py: Python<'_>, columns: BTreeMap<String, Arrays<'_>>, topic: Option<String>) -> PyResult<Self> {
        let mut rows = Rows {
            default_topic: topic,
            topic: None,
            body: BinaryArray::new_null(0),
            keys: None,
            tags: None,
            properties: None,
            queue_id: None,
            message_group: None,
        };
        for (name, arrays) in &columns {
            match (name.as_str(), arrays.as_slice()) {
                ("topic", [texts]) => rows.topic = Some(flat(texts, DataType::Binary)?.into()),
                ("body", [texts]) => rows.body = flat(texts, DataType::Binary)?.into(),
                ("keys", [texts]) => rows.keys = Some(Keys::Joined(flat(texts, DataType::Binary)?.into())),
                ("keys", [lengths, values @ ..]) => rows.keys = Some(Keys::Lists(lists(lengths, values)?)),
                ("tags", [texts]) => rows.tags = Some(flat(texts, DataType::Binary)?.into()),
                ("properties", [lengths, values @ ..]) => rows.properties = Some(lists(lengths, values)?),
                ("queue_id", [numbers]) => rows.queue_id = Some(Int64Array::from(flat(numbers, DataType::Int64)?)),
                ("message_group", [texts]) => rows.message_group = Some(flat(texts, DataType::Binary)?.into()),
                _ => return Err(invalid(format!("column {name} has {} arrays", arrays.len()))).or_raise(py),
            }
        }
        Ok(Self { rows })
    }

    /// How many rows there are.
    #[getter]
    fn count(&self) -> usize {
        self.rows.count()
    }

    /// Returns where the rows end that begin at `start` and are stored by one request.
    fn group_end(&self, start: usize, rows_max: usize, bytes_max: usize) -> usize {
        self.rows.group_end(start, rows_max, bytes_max)
    }

    /// Returns the topics of rows.
    fn topics(&self, py: Python<'_>, start: usize, end: usize) -> PyResult<Vec<String>> {
        detached(py, || self.rows.topics(start..end))
    }

    /// Encodes rows as the half messages of one transaction.
    fn halves(
        &self,
        py: Python<'_>,
        start: usize,
        end: usize,
        queues: BTreeMap<String, SinkQueues>,
        labels: Vec<(String, String)>,
    ) -> PyResult<SinkHalves> {
        let (queues, ids) = (own(queues), unique_ids(end.saturating_sub(start)));
        let body = detached(py, || self.rows.halves(start..end, &queues, &ids, &labels))?;
        let message_id = ids.into_iter().next().unwrap_or_default();
        Ok(SinkHalves { message_id, body: PyBytes::new(py, &body).unbind() })
    }

    /// Encodes rows as batches, one for each queue that they go to.
    fn batches(
        &self,
        py: Python<'_>,
        start: usize,
        end: usize,
        queues: BTreeMap<String, SinkQueues>,
    ) -> PyResult<Vec<SinkBatch>> {
        let (queues, ids) = (own(queues), unique_ids(end.saturating_sub(start)));
        let found = detached(py, || self.rows.batches(start..end, &queues, &ids))?;
        let batch = |QueueBatch { topic, queue, count, body }| SinkBatch {
            topic,
            queue,
            count,
            body: PyBytes::new(py, &body).unbind(),
        };
        Ok(found.into_iter().map(batch).collect())
    }
}

fn own(queues: BTreeMap<String, SinkQueues>) -> BTreeMap<String, TopicQueues> {
    queues.into_iter().map(|(topic, queues)| (topic, queues.own)).collect()
}

fn lists(lengths: &Bound<'_, PyAny>, values: &[Bound<'_, PyAny>]) -> PyResult<Lists> {
    let values = values.iter().map(|texts| Ok(flat(texts, DataType::Binary)?.into())).collect::<PyResult<_>>()?;
    Ok(Lists::new(&Int32Array::from(flat(lengths, DataType::Int32)?), values))
}

/// Copies an array of a type without children.
fn flat(array: &Bound<'_, PyAny>, kind: DataType) -> PyResult<ArrayData> {
    let buffers = array.call_method0("buffers")?.try_iter()?.map(|found| buffer(&found?));
    let mut buffers = buffers.collect::<PyResult<Vec<_>>>()?.into_iter();
    let validity = buffers.next().flatten();
    let data = buffers.map(|found| found.unwrap_or_else(|| Buffer::from(Vec::<u8>::new()))).collect();
    let offset = array.getattr("offset")?.extract()?;
    let read = ArrayData::try_new(kind, array.len()?, validity, offset, data, Vec::new());
    read.map_err(|why: ArrowError| invalid(format!("an array of pyarrow cannot be read: {why}"))).or_raise(array.py())
}

fn buffer(found: &Bound<'_, PyAny>) -> PyResult<Option<Buffer>> {
    if found.is_none() {
        return Ok(None);
    }
    let bytes: PyBackedBytes = found.call_method0("to_pybytes")?.extract()?;
    Ok(Some(Buffer::from(bytes::Bytes::from_owner(bytes))))
}

fn invalid(what: String) -> Error {
    Error::InvalidMessage { what }
}
