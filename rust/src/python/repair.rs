//! `Examiner`, `mend_store`: examine and repair a store without opening it. Facts are passed as JSON.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use serde_json::{Value, json};

use super::call::detached;
use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;
use crate::repair::{Damage, Examination, Lost, mend, report};
use crate::storage::Storage;
use crate::storage::disk::Disk;

/// Examines a store that may not open.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Examiner(Mutex<Option<crate::repair::Examiner>>);

#[pymethods]
impl Examiner {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let begun = || Disk::open(&path).and_then(|disk| crate::repair::Examiner::begin(Arc::new(disk)));
        detached(py, begun).map(|examiner| Self(Mutex::new(Some(examiner))))
    }

    /// The number of files of the log.
    #[getter]
    fn files(&self) -> usize {
        self.0.lock().as_ref().map_or(0, crate::repair::Examiner::files)
    }

    /// Examines the next file of the log. False: there are no more. Raises `ForeignStoreError`, `OSErrors`.
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        let step = || self.0.lock().as_mut().map_or(Ok(false), crate::repair::Examiner::step);
        detached(py, step)
    }

    /// Returns the findings as JSON. Call it once, after the last step.
    fn facts(&self, py: Python<'_>) -> PyResult<String> {
        let finish = || {
            let examiner = self.0.lock().take().ok_or(Error::StoreClosed)?;
            Ok(facts(&examiner.finish()?).to_string())
        };
        detached(py, finish)
    }
}

/// Repairs the store at `path`. Saves copies below `copies_below` in the directory `copies`.
#[pyfunction]
pub(super) fn mend_store(py: Python<'_>, path: PathBuf, copies: PathBuf, copies_below: &str) -> PyResult<String> {
    let mended = || -> Result<String> {
        let storage: Arc<dyn Storage> = Arc::new(Disk::open(&path)?);
        let copies = Disk::create(&copies)?;
        let found = crate::repair::Examiner::begin(Arc::clone(&storage))?.finish()?;
        let done = mend(&storage, &copies, copies_below, &found)?;
        let done = json!({
            "copied": done.copied, "filled": done.filled, "cleared": done.cleared, "made": done.made,
            "removed": done.removed,
        });
        report(&copies, copies_below, &json!({"found": facts(&found), "done": done}).to_string())?;
        Ok(done.to_string())
    };
    detached(py, mended)
}

fn facts(found: &Examination) -> Value {
    let damage = |damage: &Damage| {
        json!({
            "kind": damage.kind.name(), "from": damage.from, "to": damage.to, "file": damage.file, "what": damage.what,
            "records_discarded": damage.records_discarded,
            "records_before": damage.records_before, "records_after": found.records - damage.records_before,
        })
    };
    let lost = |lost: &Lost| {
        json!({
            "topic": lost.topic, "queue_id": lost.queue_id.0, "queue_offset": lost.queue_offset,
            "physical_offset": lost.physical_offset,
        })
    };
    json!({
        "file_size": found.file_size, "first": found.first, "end": found.end, "records": found.records,
        "clean": found.clean, "damages": found.damages.iter().map(damage).collect::<Vec<_>>(), "torn": found.torn,
        "derived": found.derived.iter().map(|(file, what)| json!({"file": file, "what": what})).collect::<Vec<_>>(),
        "lost": found.lost.iter().map(lost).collect::<Vec<_>>(), "lost_count": found.lost_count,
        "whole": found.whole,
    })
}
