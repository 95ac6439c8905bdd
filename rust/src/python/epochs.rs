//! `StoreEpochs`: which node may write a store's log. Epochs are passed as the text of their file.

use std::path::PathBuf;

use pyo3::prelude::*;

use super::call::detached;
use super::store::Store;
use crate::base::error::{Error, Result};
use crate::base::units::PhysicalOffset;
use crate::storage::Storage;
use crate::storage::disk::Disk;
use crate::storage::epochs::{Epochs, RecordMark};
use crate::storage::settings::{Settings, StoreId};

/// What an open store knows of epochs.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct StoreEpochs(std::sync::Arc<crate::store::Store>);

#[pymethods]
impl StoreEpochs {
    #[new]
    fn new(store: &Bound<'_, Store>) -> Self {
        Self(std::sync::Arc::clone(&store.get().store))
    }

    /// The text of `txstore/epochs.json`.
    #[getter]
    fn text(&self) -> String {
        self.0.epochs().to_text()
    }

    /// The number of the log's last epoch.
    #[getter]
    fn number(&self) -> u64 {
        self.0.epoch()
    }

    /// The highest epoch that this node has heard of.
    #[getter]
    fn accepted(&self) -> u64 {
        self.0.accepted_epoch()
    }

    /// Whether another node has replaced this one as the source.
    #[getter]
    fn fenced(&self) -> bool {
        self.0.epochs().is_fenced()
    }

    #[pyo3(signature = (number, source=None))]
    fn accept(&self, py: Python<'_>, number: u64, source: Option<&str>) -> PyResult<u64> {
        detached(py, || self.0.accept_epoch(number, source)).map(|end| end.0)
    }

    #[pyo3(signature = (*, partial, instead_of=None))]
    fn begin(&self, py: Python<'_>, partial: bool, instead_of: Option<&str>) -> PyResult<u64> {
        detached(py, || self.0.begin_epoch(partial, instead_of)).map(|epoch| epoch.start)
    }

    fn follow(&self, py: Python<'_>, source: &str, address: &str) -> PyResult<()> {
        detached(py, || self.0.follow_epochs(&parsed(source)?, address))
    }

    fn note_copies_required(&self, py: Python<'_>, required: u64) -> PyResult<()> {
        detached(py, || self.0.note_copies_required(required))
    }

    fn forget(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        detached(py, || self.0.note_node(name, None))
    }

    fn last_mark(&self, py: Python<'_>) -> PyResult<Option<(u64, u32, u32)>> {
        let mark = detached(py, || self.0.last_mark())?;
        Ok(mark.map(|mark| (mark.physical_offset, mark.size, mark.crc)))
    }

    fn has_record(&self, py: Python<'_>, mark: (u64, u32, u32)) -> bool {
        let (physical_offset, size, crc) = mark;
        py.detach(|| self.0.has_record(&RecordMark { physical_offset, size, crc }))
    }

    fn common_end(&self, py: Python<'_>, other: &str, other_end: u64) -> PyResult<u64> {
        detached(py, || Ok(self.0.common_end(&parsed(other)?, PhysicalOffset(other_end)).0))
    }

    fn keep_diverged(
        &self,
        py: Python<'_>,
        end: u64,
        source: &str,
        address: &str,
        directory: &str,
    ) -> PyResult<(u64, u64)> {
        let kept = || self.0.keep_diverged(PhysicalOffset(end), &parsed(source)?, address, directory);
        detached(py, kept).map(|kept| (kept.records, kept.bytes))
    }
}

/// Returns the text of the epochs of the store at `path`, which may be open; None if it has none.
#[pyfunction]
pub(super) fn read_epochs(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    let read = || Epochs::load(&Disk::open(&path)?);
    detached(py, read).map(|epochs| epochs.map(|epochs| epochs.to_text()))
}

/// Makes the directory of a store that is not open a replica of the source with these epochs, at `address`.
#[pyfunction]
pub(super) fn begin_replica(py: Python<'_>, path: PathBuf, source: &str, address: &str) -> PyResult<()> {
    let begun = || {
        let mut epochs = Epochs::default();
        epochs.follow(&parsed(source)?, address);
        epochs.store(&Disk::open(&path)?)
    };
    detached(py, begun)
}

/// Makes the directory of a store that is not open a replica of the RocketMQ broker at `address`, with files of its
/// sizes.
#[pyfunction]
#[pyo3(signature = (path, address, *, mapped_file_size_commit_log, mapped_file_size_consume_queue, max_hash_slot_num, max_index_num))]
pub(super) fn begin_replica_of_rocketmq(
    py: Python<'_>,
    path: PathBuf,
    address: &str,
    mapped_file_size_commit_log: u64,
    mapped_file_size_consume_queue: u64,
    max_hash_slot_num: u32,
    max_index_num: u32,
) -> PyResult<()> {
    let begun = || {
        let storage = Disk::open(&path)?;
        let mut epochs = Epochs::default();
        epochs.follow(&Epochs::default(), address);
        epochs.store(&storage)?;
        let settings = Settings {
            commit_log_file_size: Some(mapped_file_size_commit_log),
            consume_queue_file_size: Some(mapped_file_size_consume_queue),
            index_slots: Some(max_hash_slot_num),
            index_entries: Some(max_index_num),
            id: storage.opener().random.map(StoreId::new),
            ..Settings::default()
        };
        // A directory with settings is a replica.
        settings.store(&storage)
    };
    detached(py, begun)
}

fn parsed(text: &str) -> Result<Epochs> {
    let what = || "the text is damaged, or of another release".to_owned();
    Epochs::parse(text.as_bytes()).ok_or_else(|| Error::InvalidOption { option: "epochs".into(), what: what() })
}
