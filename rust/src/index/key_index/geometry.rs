//! Finds how many slots and entries a broker's index files have.
//!
//! In:     files whose length alone is known.
//! Out:    a geometry under which their chains are consistent, or an error that asks for it.
//! Always: writes nothing.

use super::current::{read_entry, read_header, read_slots};
use super::layout::{ENTRY_BYTES, HEADER_BYTES, IndexGeometry, SLOT_BYTES, wide};
use super::{DIR, index_files};
use crate::base::error::{Error, Result};
use crate::storage::{File, OpenMode, Storage};

const ENTRIES_PER_SLOT: u32 = 4; // RocketMQ's defaults
const SLOTS_LOOKED_AT: usize = 1_000; // in each file; by chance fewer than ten would match

/// Returns the geometry of the files in `index/` if it has four entries per slot; `None` without files.
pub fn find_geometry(storage: &dyn Storage) -> Result<Option<IndexGeometry>> {
    let files = index_files(storage)?;
    let Some(first) = files.first() else { return Ok(None) };
    let per_slot = wide(SLOT_BYTES) + u64::from(ENTRIES_PER_SLOT) * wide(ENTRY_BYTES);
    let slots = first.len.saturating_sub(wide(HEADER_BYTES)) / per_slot;
    let slots = u32::try_from(slots).unwrap_or(0);
    let geometry = IndexGeometry { slots, entries: slots.saturating_mul(ENTRIES_PER_SLOT) };
    verify_geometry(storage, geometry)?;
    Ok(Some(geometry))
}

/// Checks that the files in `index/` have this geometry. If not, the error asks for the right one.
pub fn verify_geometry(storage: &dyn Storage, geometry: IndexGeometry) -> Result<()> {
    for entry in index_files(storage)? {
        let path = format!("{DIR}/{}", entry.name);
        if geometry.slots == 0 || entry.len != geometry.file_bytes() {
            return Err(wrong(geometry, &format!("{path} has {} bytes", entry.len)));
        }
        if let Some(slot) = odd_slot(&*storage.open(&path, OpenMode::Read)?, geometry)? {
            return Err(wrong(geometry, &format!("slot {slot} of {path} points to no entry")));
        }
    }
    Ok(())
}

pub(super) fn wrong(geometry: IndexGeometry, seen: &str) -> Error {
    let IndexGeometry { slots, entries } = geometry;
    let what = format!(
        "the index files have not {slots} slots and {entries} entries: {seen}\n\
         hint: give max_hash_slot_num and max_index_num as the broker has them that wrote the store, \
         or remove the directory {DIR}, which can be built again"
    );
    Error::InvalidOption { option: "max_hash_slot_num".to_owned(), what }
}

/// Returns a slot whose newest entry belongs to another slot.
fn odd_slot(file: &dyn File, geometry: IndexGeometry) -> Result<Option<u32>> {
    let count = read_header(file)?.count;
    let mut used = Vec::new();
    read_slots(file, geometry, |first, values| {
        used.extend((first..).zip(values.iter().copied()).filter(|(_, newest)| *newest != 0));
        used.len() < SLOTS_LOOKED_AT
    })?;
    for (slot, newest) in used.into_iter().take(SLOTS_LOOKED_AT) {
        if newest >= geometry.entries {
            return Ok(Some(slot));
        }
        // An entry after the count was left unfinished by a crash, so it is ignored.
        if newest < count {
            let entry = read_entry(file, geometry, newest)?;
            if geometry.slot_of(entry.hash) != slot || entry.previous >= newest {
                return Ok(Some(slot));
            }
        }
    }
    Ok(None)
}
