//! A message's record, copied out of the log.
//!
//! In:     bytes of a record, from the log or from a broker that stored it.
//! Out:    the record, decoded on request.
//! Always: the bytes are exactly one complete record.

use bytes::{Bytes, BytesMut};

use crate::base::error::{Error, Result};
use crate::base::units::{PhysicalOffset, to_usize};
use crate::index::consume_queue::Entry;
use crate::record::RecordView;
use crate::record::decode::{DecodeError, Scanned, Verify, body_of, decode};
use crate::record::layout::PHYSICAL_OFFSET_AT;

/// The size of the allocation that several copies share. One copy that is kept keeps all of it.
const COPIES_BYTES: usize = 64 << 10;

/// A record, copied out of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    bytes: Bytes,
    physical_offset: PhysicalOffset,
}

impl StoredRecord {
    pub(super) fn new(bytes: &[u8], physical_offset: PhysicalOffset) -> Self {
        Self { bytes: Bytes::copy_from_slice(bytes), physical_offset }
    }

    /// Copies the record at the start of `bytes`. It comes from the broker that stored it and verified its checksums.
    pub fn received(bytes: &[u8]) -> std::result::Result<Self, DecodeError> {
        let physical_offset = bytes.get(PHYSICAL_OFFSET_AT..).and_then(|rest| rest.first_chunk::<8>());
        let physical_offset = physical_offset.ok_or(DecodeError::BadLength { field: "total size" })?;
        let physical_offset = PhysicalOffset(u64::from_be_bytes(*physical_offset));
        match decode(bytes, physical_offset, Verify::NOTHING)? {
            Scanned::Record(view) => {
                let size = usize::try_from(view.size).unwrap_or(usize::MAX);
                Ok(Self::new(bytes.get(..size).unwrap_or_default(), physical_offset))
            }
            Scanned::Blank { size } => Err(DecodeError::BadSize { found: size }),
        }
    }

    /// Returns the record's bytes as stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the sysflag, and the body as stored.
    pub fn body(&self) -> (i32, &[u8]) {
        // A `StoredRecord` is created only from bytes that were decoded before.
        body_of(&self.bytes).unwrap_or_default()
    }

    /// Decodes the record. Its checksums were verified when it was read.
    pub fn view(&self) -> Result<RecordView<'_>> {
        match decode(&self.bytes, self.physical_offset, Verify::NOTHING) {
            Ok(Scanned::Record(view)) => Ok(view),
            _ => Err(Error::MessageNotFound { what: format!("no record at {}", self.physical_offset) }),
        }
    }
}

/// Copies the records of one read next to each other, because an allocation costs more than a copy of a small record.
pub(super) struct Copier {
    buffer: BytesMut,
    still_to_come: usize,
}

impl Copier {
    /// Allocates as many bytes as the records of `entries` have.
    pub(super) fn of<'a>(entries: impl Iterator<Item = &'a Entry>) -> Self {
        Self { buffer: BytesMut::new(), still_to_come: entries.map(|entry| to_usize(entry.size.into())).sum() }
    }

    pub(super) fn copy(&mut self, bytes: &[u8], physical_offset: PhysicalOffset) -> StoredRecord {
        if self.buffer.capacity() < bytes.len() {
            self.buffer = BytesMut::with_capacity(self.still_to_come.min(COPIES_BYTES).max(bytes.len()));
        }
        self.still_to_come = self.still_to_come.saturating_sub(bytes.len());
        self.buffer.extend_from_slice(bytes);
        StoredRecord { bytes: self.buffer.split().freeze(), physical_offset }
    }
}
