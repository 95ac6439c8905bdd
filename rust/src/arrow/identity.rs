//! Tells whether a store is the one that was read before, by its id and by single records.
//!
//! In:     a log, an offset where a record begins or ends.
//! Out:    the store's id; the name that tells that record from any other that could be at its offset.
//! Always: few reads, whatever the log's size.

use super::Log;
use crate::base::error::{Error, Result};
use crate::base::units::PhysicalOffset;
use crate::record::RecordView;
use crate::storage::settings::StoreId;

/// Tells a record from any other that could be at its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordName {
    /// Its first byte in the log.
    pub physical_offset: u64,
    /// The unique id, else the offset id.
    pub message_id: String,
    /// When it was stored, in milliseconds since the epoch.
    pub store_timestamp_ms: i64,
}

impl RecordName {
    fn of(view: &RecordView<'_>) -> Self {
        Self {
            physical_offset: view.physical_offset.0,
            message_id: view.message_id(),
            store_timestamp_ms: view.store_timestamp.0,
        }
    }
}

impl Log {
    /// Returns the store's id; `None` in a store that no txstore with ids has opened for writing.
    pub fn store_id(&self) -> Option<StoreId> {
        self.settings().and_then(|settings| settings.id)
    }

    /// Returns the record that begins at an offset; `None` if no record does.
    pub fn record_at(&self, at: u64) -> Result<Option<RecordName>> {
        match self.read(PhysicalOffset(at), &mut None, RecordName::of) {
            Ok(name) => Ok(Some(name)),
            Err(Error::StoreCorrupt { .. } | Error::OffsetTooOld { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the last record that begins before `end`; `None` if retention has left none.
    pub fn name_before(&self, end: u64) -> Result<Option<RecordName>> {
        self.last_before(end)?.map_or(Ok(None), |last| self.record_at(last.physical_offset))
    }
}
