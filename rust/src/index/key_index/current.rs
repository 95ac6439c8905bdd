//! Adds entries to the newest index file.
//!
//! In:     entries in log order.
//! Out:    blocks in the file: entries, then the slots that changed, then the header.
//! Always: the slots in memory equal the chains of the entries below the count.
//! Not here: which file is next.

use std::path::PathBuf;

use super::IndexEntry;
use super::layout::{
    ENTRY_BYTES, HEADER_BYTES, Header, IndexGeometry, SLOT_BYTES, StoredEntry, be_u32, index, slot_at, wide,
};
use crate::base::error::{Error, Result};
use crate::base::units::TimestampMs;
use crate::storage::File;

const PAGE_BYTES: usize = 4_096; // the page cache takes a whole page without reading it first
const BLOCK_BYTES: u64 = 1 << 20;
pub(super) const ENTRIES_AT_ONCE: u32 = 50_000; // about 1 MB in one block

#[derive(Debug)]
pub(super) struct Current {
    pub(super) file: Box<dyn File>,
    pub(super) header: Header,
    geometry: IndexGeometry,
    /// The allocator zeroes it lazily, so pages of unused slots take no memory.
    slots: Vec<u32>,
}

impl Current {
    /// Creates an empty file's state.
    pub(super) fn new(file: Box<dyn File>, geometry: IndexGeometry) -> Self {
        Self { file, header: Header::EMPTY, geometry, slots: vec![0; index(geometry.slots)] }
    }

    /// Continues a file. Rebuilds the slots from the entries if an unfinished write left them inconsistent.
    pub(super) fn load(file: Box<dyn File>, path: PathBuf, geometry: IndexGeometry) -> Result<Self> {
        let header = read_header(&*file)?;
        let mut current = Self::new(file, geometry);
        current.header = header;
        let mut is_ahead = false;
        read_slots(&*current.file, geometry, |first, values| {
            for (slot, value) in current.slots.iter_mut().skip(index(first)).zip(values) {
                is_ahead |= *value >= header.count;
                if *value != 0 {
                    *slot = *value;
                }
            }
            true
        })?;
        if is_ahead {
            current.roll_back(header.count, path)?;
        }
        Ok(current)
    }

    /// Truncates a file to a count: rebuilds the slots from the entries below it and writes those that differ.
    pub(super) fn load_rolled_back(
        file: Box<dyn File>,
        path: PathBuf,
        geometry: IndexGeometry,
        count: u32,
    ) -> Result<Self> {
        let header = read_header(&*file)?;
        let mut current = Self::new(file, geometry);
        current.header = header;
        current.roll_back(count, path)?;
        Ok(current)
    }

    fn roll_back(&mut self, count: u32, path: PathBuf) -> Result<()> {
        let (header, geometry) = (self.header, self.geometry);
        if count > header.count || count == 0 || count > geometry.entries {
            let what = format!("it counts {} entries where {count} are expected", header.count);
            return Err(Error::StoreCorrupt { file: path, offset: wide(HEADER_BYTES - SLOT_BYTES), what });
        }
        self.header = Header { used_slots: 0, count, ..header };
        self.slots = vec![0; index(geometry.slots)];
        let last = self.chain_entries(count, path)?;
        match last {
            None => self.header = Header::EMPTY,
            Some(last) => {
                self.header.end_offset = last.physical_offset;
                // An entry keeps only whole seconds. The header's own end is exact if nothing was cut.
                if count != header.count {
                    let since_begin = i64::from(last.seconds).saturating_mul(1_000);
                    self.header.end = TimestampMs(header.begin.0.saturating_add(since_begin));
                }
            }
        }
        self.file.punch(geometry.entry_at(count)..geometry.file_bytes())?;
        self.write_differing_slots()?;
        self.file.write_at(&self.header.encode(), 0)
    }

    /// Sets the slots from the entries below `count`, whose chains must match. Returns the last entry.
    fn chain_entries(&mut self, count: u32, path: PathBuf) -> Result<Option<StoredEntry>> {
        let (mut number, mut last) = (1, None);
        let mut block = Vec::new();
        while number < count {
            let entries = (count - number).min(ENTRIES_AT_ONCE);
            block.resize(index(entries) * ENTRY_BYTES, 0);
            self.file.read_at(&mut block, self.geometry.entry_at(number))?;
            for bytes in block.chunks_exact(ENTRY_BYTES) {
                let entry = StoredEntry::decode(bytes);
                if self.newest(entry.hash) != entry.previous {
                    let what = format!("entry {number} breaks the chain of its slot");
                    return Err(Error::StoreCorrupt { file: path, offset: self.geometry.entry_at(number), what });
                }
                self.link(entry.hash, number);
                last = Some(entry);
                number += 1;
            }
        }
        Ok(last)
    }

    /// Returns whether the file is full.
    pub(super) const fn is_full(&self) -> bool {
        self.header.count >= self.geometry.entries
    }

    /// Returns how many more entries fit.
    pub(super) fn room(&self) -> usize {
        index(self.geometry.entries.saturating_sub(self.header.count))
    }

    fn newest(&self, hash: u32) -> u32 {
        self.slots.get(index(self.geometry.slot_of(hash))).copied().unwrap_or(0)
    }

    /// Makes an entry the newest of its slot.
    fn link(&mut self, hash: u32, number: u32) {
        if let Some(slot) = self.slots.get_mut(index(self.geometry.slot_of(hash))) {
            // This count is only informative: damage in it must not stop an addition.
            self.header.used_slots = self.header.used_slots.saturating_add(u32::from(*slot == 0));
            *slot = number;
        }
    }

    /// Adds entries that fit. The count grows when they and their slots are written.
    pub(super) fn append(&mut self, entries: &[IndexEntry]) -> Result<()> {
        let Some(last) = entries.last() else { return Ok(()) };
        let at = self.geometry.entry_at(self.header.count);
        let mut block = Vec::with_capacity(entries.len() * ENTRY_BYTES);
        let mut pages = Vec::with_capacity(entries.len());
        for entry in entries {
            self.add(entry, &mut block);
            pages.push(page_of(self.geometry.slot_of(entry.hash)));
        }
        self.header.end = last.store_timestamp;
        self.header.end_offset = last.physical_offset;
        self.file.write_at(&block, at)?;
        pages.sort_unstable();
        pages.dedup();
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            self.write_pages(run)?;
        }
        self.file.write_at(&self.header.encode(), 0)
    }

    fn add(&mut self, entry: &IndexEntry, block: &mut Vec<u8>) {
        let number = self.header.count;
        if number == 1 {
            self.header.begin = entry.store_timestamp;
            self.header.begin_offset = entry.physical_offset;
        }
        let seconds = entry.store_timestamp.0.saturating_sub(self.header.begin.0) / 1_000;
        let stored = StoredEntry {
            hash: entry.hash,
            physical_offset: entry.physical_offset,
            seconds: u32::try_from(seconds.clamp(0, i64::from(i32::MAX))).unwrap_or(0),
            previous: self.newest(entry.hash),
        };
        stored.encode_to(block);
        self.link(entry.hash, number);
        self.header.count = number + 1;
    }

    /// Returns the slots in a page of the file.
    fn slots_of(&self, page: u64) -> std::ops::Range<usize> {
        let first_at = |page: u64| (page * wide(PAGE_BYTES)).saturating_sub(wide(HEADER_BYTES)) / wide(SLOT_BYTES);
        let clamp = |slot: u64| usize::try_from(slot).unwrap_or(usize::MAX).min(self.slots.len());
        clamp(first_at(page))..clamp(first_at(page + 1))
    }

    /// Writes the slots of adjacent pages.
    fn write_pages(&self, pages: &[u64]) -> Result<()> {
        let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok(()) };
        let range = self.slots_of(*first).start..self.slots_of(*last).end;
        let at = wide(HEADER_BYTES) + wide(range.start) * wide(SLOT_BYTES);
        let slots = self.slots.get(range).unwrap_or_default();
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_be_bytes()).collect();
        self.file.write_at(&bytes, at)
    }

    fn write_differing_slots(&self) -> Result<()> {
        let mut pages = Vec::new();
        read_slots(&*self.file, self.geometry, |first, values| {
            let ours = self.slots.iter().skip(index(first));
            for (slot, _) in (first..).zip(values.iter().zip(ours)).filter(|(_, (theirs, ours))| theirs != ours) {
                pages.push(page_of(slot));
            }
            pages.dedup();
            true
        })?;
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            self.write_pages(run)?;
        }
        Ok(())
    }
}

/// Returns the page of the file that holds a slot.
fn page_of(slot: u32) -> u64 {
    slot_at(slot) / wide(PAGE_BYTES)
}

pub(super) fn read_header(file: &dyn File) -> Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_at(&mut bytes, 0)?;
    Ok(Header::decode(&bytes))
}

pub(super) fn read_entry(file: &dyn File, geometry: IndexGeometry, number: u32) -> Result<StoredEntry> {
    let mut bytes = [0; ENTRY_BYTES];
    file.read_at(&mut bytes, geometry.entry_at(number))?;
    Ok(StoredEntry::decode(&bytes))
}

/// Passes all slots to `take` in blocks, each with its first slot, while `take` wants more.
pub(super) fn read_slots(
    file: &dyn File,
    geometry: IndexGeometry,
    mut take: impl FnMut(u32, &[u32]) -> bool,
) -> Result<()> {
    let (mut at, end) = (slot_at(0), slot_at(geometry.slots));
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    let mut first = 0;
    while at < end {
        bytes.resize(usize::try_from((end - at).min(BLOCK_BYTES)).unwrap_or(0), 0);
        file.read_at(&mut bytes, at)?;
        values.clear();
        values.extend(bytes.chunks_exact(SLOT_BYTES).map(|slot| be_u32(slot, 0)));
        if !take(first, &values) {
            break;
        }
        at += wide(bytes.len());
        first += u32::try_from(values.len()).unwrap_or(u32::MAX);
    }
    Ok(())
}
