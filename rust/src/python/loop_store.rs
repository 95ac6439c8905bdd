//! `LoopStore`: writes for an event loop, whose thread must not wait for the disk.
//!
//! In:     messages, half messages and ends.
//! Out:    what was written, and how far the log must be durable before the write counts.
//! Always: no call waits for a sync. A thread syncs, and a file descriptor tells the loop.

use std::sync::Arc;

use pyo3::prelude::*;

use super::call::{detached, unacknowledged};
use super::error::{OrRaise, into_py};
use super::message::{Message, SendResult};
use super::sending::{first_half, new_half, new_message, new_messages};
use super::store::{Store, half};
use super::transaction::EndResult;
use crate::base::units::PhysicalOffset;
use crate::store::{Decider, End, EndKind, SyncThread};

/// Writes to an open store for an event loop.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct LoopStore {
    store: Arc<crate::store::Store>,
    host: std::net::SocketAddr,
    syncs: SyncThread,
}

#[pymethods]
impl LoopStore {
    #[staticmethod]
    fn start(py: Python<'_>, store: &Bound<'_, Store>) -> PyResult<Self> {
        let Store { store, host } = store.get();
        let syncs = detached(py, || SyncThread::start(Arc::clone(store)))?;
        Ok(Self { store: Arc::clone(store), host: *host, syncs })
    }

    #[pyo3(signature = (message, queue_id, wait, /))]
    fn append(
        &self,
        py: Python<'_>,
        message: &Bound<'_, Message>,
        queue_id: i64,
        wait: bool,
    ) -> PyResult<Option<(SendResult, u64)>> {
        let new = new_message(py, message, queue_id).or_raise(py)?;
        let written = unacknowledged(py, wait, |wait| self.store.append_one(&new, wait))?;
        Ok(written.map(|(sent, end)| (SendResult::new(sent, message.get().topic.clone_ref(py), self.host, false), end)))
    }

    #[pyo3(signature = (messages, queue_ids, wait, /))]
    fn append_many(
        &self,
        py: Python<'_>,
        messages: Vec<Bound<'_, Message>>,
        queue_ids: Vec<i64>,
        wait: bool,
    ) -> PyResult<Option<(Vec<SendResult>, u64)>> {
        let new = new_messages(py, &messages, queue_ids).or_raise(py)?;
        let written = unacknowledged(py, wait, |wait| self.store.append(&new, wait))?;
        let result = |(sent, message): (_, &Bound<'_, Message>)| {
            SendResult::new(sent, message.get().topic.clone_ref(py), self.host, false)
        };
        Ok(written.map(|(sent, end)| (sent.into_iter().zip(&messages).map(result).collect(), end)))
    }

    #[pyo3(signature = (message, queue_id, producer_group, owner, wait, /))]
    fn prepare(
        &self,
        py: Python<'_>,
        message: &Bound<'_, Message>,
        queue_id: i64,
        producer_group: &str,
        owner: u32,
        wait: bool,
    ) -> PyResult<Option<(SendResult, u64)>> {
        let half = new_half(py, message, queue_id, producer_group, owner).or_raise(py)?;
        let written = unacknowledged(py, wait, |wait| self.store.prepare(&half, wait))?;
        Ok(written.map(|(sent, end)| (SendResult::new(sent, message.get().topic.clone_ref(py), self.host, true), end)))
    }

    #[pyo3(signature = (messages, queue_ids, producer_group, owner, wait, /))]
    fn prepare_many(
        &self,
        py: Python<'_>,
        messages: Vec<Bound<'_, Message>>,
        queue_ids: Vec<i64>,
        producer_group: &str,
        owner: u32,
        wait: bool,
    ) -> PyResult<Option<(SendResult, u64)>> {
        let new = new_messages(py, &messages, queue_ids).or_raise(py)?;
        let written = unacknowledged(py, wait, |wait| self.store.prepare_many(&new, producer_group, owner, wait))?;
        written.map(|(sent, end)| Ok((first_half(py, sent, &messages, self.host)?, end))).transpose()
    }

    #[pyo3(signature = (
        half_queue_offset, prepared_transaction_offset, wait, /, *, commit, transaction_id=None, producer_group=None,
        by_hand=false
    ))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Each is an argument of the Python call.
    fn end_transaction(
        &self,
        py: Python<'_>,
        half_queue_offset: i128,
        prepared_transaction_offset: i128,
        wait: bool,
        commit: bool,
        transaction_id: Option<String>,
        producer_group: Option<String>,
        by_hand: bool,
    ) -> PyResult<Option<(Py<PyAny>, u64)>> {
        let end = End {
            half: half(half_queue_offset, prepared_transaction_offset).or_raise(py)?,
            kind: if commit { EndKind::Commit } else { EndKind::RollBack },
            transaction_id,
            group: producer_group,
            decider: if by_hand { Decider::Operator } else { Decider::Producer },
        };
        let Some((ended, durable_first)) = unacknowledged(py, wait, |wait| self.store.end_unacknowledged(&end, wait))?
        else {
            return Ok(None);
        };
        let ended = match ended {
            Ok(ended) => Bound::new(py, EndResult(ended))?.into_any().unbind(),
            Err(error) => into_py(py, &error).into_value(py).into_any(),
        };
        Ok(Some((ended, durable_first)))
    }

    fn request_sync(&self, end: u64) {
        self.syncs.request(PhysicalOffset(end));
    }

    fn durable(&self, py: Python<'_>) -> PyResult<u64> {
        self.syncs.durable().or_raise(py).map(|end| end.0)
    }

    #[getter]
    fn durable_end(&self) -> u64 {
        self.store.durable_end().0
    }

    fn fileno(&self) -> i32 {
        self.syncs.descriptor()
    }

    fn stop(&self) {
        self.syncs.stop();
    }
}
