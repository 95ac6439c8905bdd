//! Stores how far the log and what is derived from it are safe on disk.
//!
//! In:     times and offsets that are lower bounds over every synced file.
//! Out:    the file `checkpoint`, which brokers rely on.
//! Always: overwritten and synced before `store` returns.
//! Not here: what the bounds are.
//!
//! | bytes  | field                          |
//! |--------|--------------------------------|
//! | 0      | physic message timestamp, ms   |
//! | 8      | logics message timestamp, ms   |
//! | 16     | index message timestamp, ms    |
//! | 24     | master flushed offset          |
//! | 32     | confirm physical offset        |
//! | 40     | zeros up to 4,096              |

use crate::base::error::Result;
use crate::storage::{OpenMode, Storage};

const PATH: &str = "checkpoint";
const FILE_BYTES: usize = 4_096;
const FIELD_BYTES: usize = 8;
const FIELDS: usize = 5;
const _: () = assert!(FIELDS * FIELD_BYTES <= FILE_BYTES);

/// How far the log and what is derived from it are safe on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Store time of the newest record that is known to be durable.
    pub physic_ms: i64,
    /// Store time of the newest record whose queue entry is known to be durable.
    pub logics_ms: i64,
    /// Store time of the newest record whose index entries are known to be durable.
    pub index_ms: i64,
    /// Belongs to a replica; kept unchanged.
    pub master_flushed_offset: i64,
    /// Belongs to a replica; kept unchanged.
    pub confirm_physical_offset: i64,
}

impl Checkpoint {
    /// Reads the file; `None` if it is missing or too short.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        let mut bytes = [0; FIELDS * FIELD_BYTES];
        if storage.len(PATH)?.is_none_or(|len| usize::try_from(len).is_ok_and(|len| len < bytes.len())) {
            return Ok(None);
        }
        storage.open(PATH, OpenMode::Read)?.read_at(&mut bytes, 0)?;
        let mut fields = bytes.as_chunks::<FIELD_BYTES>().0.iter().map(|field| i64::from_be_bytes(*field));
        let mut next = || fields.next().unwrap_or(0);
        Ok(Some(Self {
            physic_ms: next(),
            logics_ms: next(),
            index_ms: next(),
            master_flushed_offset: next(),
            confirm_physical_offset: next(),
        }))
    }

    /// Overwrites the file and syncs it.
    pub fn store(storage: &dyn Storage, checkpoint: &Self) -> Result<()> {
        let is_new = storage.len(PATH)?.is_none();
        let file = storage.open(PATH, OpenMode::Create)?;
        file.write_at(&checkpoint.to_bytes(), 0)?;
        file.sync()?;
        if is_new { storage.sync_dir("") } else { Ok(()) }
    }

    fn to_bytes(self) -> [u8; FILE_BYTES] {
        let fields =
            [self.physic_ms, self.logics_ms, self.index_ms, self.master_flushed_offset, self.confirm_physical_offset];
        let mut bytes = [0; FILE_BYTES];
        for (slot, field) in bytes.as_chunks_mut::<FIELD_BYTES>().0.iter_mut().zip(fields) {
            *slot = field.to_be_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
