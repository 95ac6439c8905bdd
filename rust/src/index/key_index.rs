//! Finds messages by the hash of a key.
//!
//! In:     hashes of keys with their records' offsets, in log order.
//! Out:    candidates, newest first. Hashes collide, so the caller compares the key itself. The index is derived: it
//!         may be deleted and rebuilt.
//! Always: a file's entries are written before the slots that point to them, and the slots before the header that
//!         counts the entries.
//! Not here: keys and their hashes.

mod current;
mod geometry;
mod layout;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, TimestampMs};
use crate::storage::segment::make_file;
use crate::storage::{DirEntry, File, OpenMode, Storage};

use current::{Current, ENTRIES_AT_ONCE, read_entry, read_header};
pub use geometry::{find_geometry, verify_geometry};
pub use layout::IndexGeometry;
use layout::{ENTRY_BYTES, Header, SLOT_BYTES, StoredEntry, be_u32, slot_at};

const DIR: &str = "index";
const NAME_DIGITS: usize = 17;

/// One key of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The absolute value of `TOPIC#KEY`'s hash code.
    pub hash: u32,
    /// The record's physical offset.
    pub physical_offset: PhysicalOffset,
    /// When the record was stored.
    pub store_timestamp: TimestampMs,
}

/// The end of the index, as a snapshot keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexMark {
    /// The last file's name.
    pub file: String,
    /// Its header's count: entries + 1.
    pub count: u32,
}

/// A file of the index and its header.
#[derive(Debug)]
struct Known {
    name: String,
    header: Header,
    /// The handle for queries, opened by the first one.
    handle: OnceLock<Box<dyn File>>,
}

impl Known {
    const fn new(name: String, header: Header) -> Self {
        Self { name, header, handle: OnceLock::new() }
    }
}

/// The files of the index.
#[derive(Debug)]
pub struct IndexFiles {
    storage: Arc<dyn Storage>,
    geometry: IndexGeometry,
    writable: bool,
    files: Vec<Known>,
    /// The last file, once an entry was added to it.
    current: Option<Current>,
    /// Whether the current file has bytes that are not synced.
    dirty: bool,
    /// Full files that are not synced yet.
    full: Vec<Box<dyn File>>,
    /// A power loss may have damaged entries from here on.
    trusted: Option<IndexMark>,
    /// New files have later names than this one, though it may be gone.
    names_after: Option<String>,
}

impl IndexFiles {
    /// Opens the files like `open`, where the geometry is known to be the store's own. A file of another length is
    /// damaged, so that all are rebuilt: a writer removes them, a reader ignores them.
    pub fn open_own(storage: Arc<dyn Storage>, geometry: IndexGeometry, writable: bool) -> Result<Self> {
        let found = index_files(&*storage)?;
        // A crash left an empty file at its creation.
        if found.iter().all(|file| file.len == 0 || file.len == geometry.file_bytes()) {
            return Self::open(storage, geometry, writable);
        }
        for file in found.iter().rev().filter(|_| writable) {
            storage.unlink(&path_of(&file.name))?;
            storage.sync_dir(DIR)?;
        }
        Ok(Self {
            storage,
            geometry,
            writable,
            files: Vec::new(),
            current: None,
            dirty: false,
            full: Vec::new(),
            trusted: None,
            names_after: None,
        })
    }

    /// Opens the files in `index/`, which must all have this geometry. Creates none.
    pub fn open(storage: Arc<dyn Storage>, geometry: IndexGeometry, writable: bool) -> Result<Self> {
        if geometry.slots == 0 || geometry.entries < 2 {
            let what = format!(
                "an index file needs slots and entries, not {} slots and {} entries",
                geometry.slots, geometry.entries
            );
            return Err(Error::InvalidOption { option: "max_index_num".to_owned(), what });
        }
        if writable && storage.list(DIR)?.is_some() {
            remove_empty(&*storage)?;
            // A killed process may have removed a file without a sync. What is missing now must stay missing.
            storage.sync_dir(DIR)?;
        }
        let mut files = Vec::new();
        for entry in index_files(&*storage)? {
            let path = path_of(&entry.name);
            if entry.len != geometry.file_bytes() {
                return Err(geometry::wrong(geometry, &format!("{path} has {} bytes", entry.len)));
            }
            let header = read_header(&*storage.open(&path, OpenMode::Read)?)?;
            files.push(Known::new(entry.name, header));
        }
        Ok(Self {
            storage,
            geometry,
            writable,
            files,
            current: None,
            dirty: false,
            full: Vec::new(),
            trusted: None,
            names_after: None,
        })
    }

    /// Gives no new file the name of a mark's file or an earlier one. So the mark of a snapshot that stays on disk, used
    /// or not, never fits files that were built again, whose entries are divided differently.
    pub fn name_after(&mut self, mark: Option<&IndexMark>) {
        self.names_after = mark.map(|mark| mark.file.clone());
    }

    /// Returns the slots and entries of each file.
    pub const fn geometry(&self) -> IndexGeometry {
        self.geometry
    }

    /// Returns how many files there are.
    pub const fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether there are no files.
    pub const fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the highest end of any file. Entries below it are already in the index.
    pub fn end(&self) -> Option<PhysicalOffset> {
        self.files.iter().map(|file| file.header.end_offset).max()
    }

    /// Returns the end of the index; `None` without files.
    pub fn mark(&self) -> Option<IndexMark> {
        self.files.last().map(|file| IndexMark { file: file.name.clone(), count: file.header.count })
    }

    /// Returns whether the files still end their entries of records before `position` at the mark; true without a mark.
    ///
    /// A file that was built again may have the name of an earlier one and begin with another entry.
    pub fn ends_at(&self, mark: Option<&IndexMark>, position: PhysicalOffset) -> Result<bool> {
        let Some(mark) = mark else { return Ok(true) };
        let Some(at) = self.files.iter().position(|file| file.name == mark.file) else { return Ok(false) };
        let mut later = self.files.iter().skip(at);
        let counts = mark.count..=self.geometry.entries;
        let Some(file) = later.next().filter(|file| counts.contains(&file.header.count)) else { return Ok(false) };
        if mutated(Mutant::IndexMarkNotCompared) {
            return Ok(true);
        }
        let handle = self.storage.open(&path_of(&file.name), OpenMode::Read)?;
        let is_before = |number| Ok(read_entry(&*handle, self.geometry, number)?.physical_offset < position);
        let ends_before = mark.count <= 1 || is_before(mark.count - 1)?;
        let next_is_after = if file.header.count > mark.count {
            !is_before(mark.count)?
        } else {
            later.next().is_none_or(|next| next.header.count <= 1 || next.header.begin_offset >= position)
        };
        Ok(ends_before && next_is_after)
    }

    /// Truncates the index to a mark, or to nothing. If an error names a damaged file, the caller may truncate to
    /// nothing and rebuild the index.
    pub fn roll_back(&mut self, mark: Option<&IndexMark>) -> Result<()> {
        self.for_writing("rolling the index back")?;
        self.current = None;
        let keep = match mark {
            None => 0,
            Some(mark) => self.files.iter().position(|file| file.name == mark.file).ok_or_else(|| self.gone(mark))? + 1,
        };
        let later = self.files.split_off(keep);
        self.unlink(later.into_iter().rev())?;
        let Some((mark, file)) = mark.zip(self.files.last_mut()) else { return Ok(()) };
        let path = path_of(&mark.file);
        let handle = self.storage.open(&path, OpenMode::Write)?;
        let full_path = self.storage.root().join(path);
        let current = Current::load_rolled_back(handle, full_path, self.geometry, mark.count)?;
        file.header = current.header;
        self.current = Some(current);
        self.dirty = true;
        Ok(())
    }

    fn gone(&self, mark: &IndexMark) -> Error {
        let what = format!("the index file is missing, though a snapshot counts {} in it", mark.count);
        Error::StoreCorrupt { file: self.full_path(&mark.file), offset: 0, what }
    }

    /// Removes the files whose entries all point below `minimum`, except the last file. Returns how many it removed.
    pub fn remove_below(&mut self, minimum: PhysicalOffset) -> Result<usize> {
        self.for_writing("removing index files")?;
        let all_but_last = self.files.len().saturating_sub(1);
        let old = self.files.iter().take(all_but_last).take_while(|file| file.header.end_offset < minimum).count();
        let removed: Vec<_> = self.files.drain(..old).collect();
        self.unlink(removed.into_iter())?;
        Ok(old)
    }

    /// Removes files in the given order, from an end of the list inwards, so that no crash leaves a gap.
    fn unlink(&self, files: impl Iterator<Item = Known>) -> Result<()> {
        let mut some = false;
        for file in files {
            self.storage.unlink(&path_of(&file.name))?;
            some = true;
        }
        if some { self.storage.sync_dir(DIR) } else { Ok(()) }
    }

    /// Adds entries, in log order. After an error the count in the last good header is valid: roll back and add them
    /// again.
    pub fn append(&mut self, entries: &[IndexEntry]) -> Result<()> {
        self.for_writing("adding to the index")?;
        let mut rest = entries;
        while let Some(first) = rest.first() {
            let mut current = self.take_current(first.store_timestamp)?;
            let (now, later) = rest.split_at(rest.len().min(current.room()));
            self.dirty = true;
            // An error drops `current`. Its slots in memory are newer than the file, so the next call reads them again.
            current.append(now)?;
            if let Some(file) = self.files.last_mut() {
                file.header = current.header;
            }
            self.current = Some(current);
            rest = later;
        }
        Ok(())
    }

    /// Returns a file with space for an entry: the current one, the last one, or a new one.
    fn take_current(&mut self, stored: TimestampMs) -> Result<Current> {
        let current = match (self.current.take(), self.files.last()) {
            (Some(current), _) => Some(current),
            (None, Some(file)) if file.header.count < self.geometry.entries => {
                let handle = self.storage.open(&path_of(&file.name), OpenMode::Write)?;
                Some(Current::load(handle, self.full_path(&file.name), self.geometry)?)
            }
            _ => None,
        };
        match current {
            Some(current) if !current.is_full() => Ok(current),
            full => {
                if self.dirty {
                    self.full.extend(full.map(|full| full.file));
                }
                self.create(stored)
            }
        }
    }

    fn create(&mut self, stored: TimestampMs) -> Result<Current> {
        let last = self.files.last().map(|file| file.name.as_str());
        let rejected = self.names_after.as_deref().filter(|_| !mutated(Mutant::RejectedNamesTaken));
        let name = layout::file_name(stored, last.max(rejected));
        self.storage.create_dir(DIR)?;
        let file = make_file(&*self.storage, DIR, &path_of(&name), self.geometry.file_bytes())?;
        self.files.push(Known::new(name, Header::EMPTY));
        Ok(Current::new(file, self.geometry))
    }

    /// Makes durable what was added.
    pub fn sync(&mut self) -> Result<()> {
        for file in self.full.drain(..) {
            file.sync()?;
        }
        if self.dirty {
            match (&self.current, self.files.last()) {
                (Some(current), _) => current.file.sync()?,
                (None, Some(last)) => self.storage.open(&path_of(&last.name), OpenMode::Write)?.sync()?,
                (None, None) => {}
            }
            self.dirty = false;
        }
        Ok(())
    }

    /// Closes the open handles. The next call opens its file by name.
    pub fn close_handles(&mut self) {
        self.current = None;
        self.full.clear();
        for file in &mut self.files {
            file.handle = OnceLock::new();
        }
    }

    /// Returns the offsets of records with that hash, newest first: at most `max`, all within the range.
    pub fn query(&self, hash: u32, max: usize, within: Range<PhysicalOffset>) -> Result<Vec<PhysicalOffset>> {
        let mut found = Vec::new();
        for file in self.files.iter().rev() {
            if found.len() >= max {
                break;
            }
            self.query_file(file, hash, max, &within, &mut found)?;
        }
        Ok(found)
    }

    fn query_file(
        &self,
        file: &Known,
        hash: u32,
        max: usize,
        within: &Range<PhysicalOffset>,
        found: &mut Vec<PhysicalOffset>,
    ) -> Result<()> {
        let Some((handle, count)) = self.handle(file)? else { return Ok(()) };
        self.walk_chain(handle, (self.geometry.slot_of(hash), self.trusted_in(file)), count, |entry| {
            if entry.hash == hash && within.contains(&entry.physical_offset) {
                found.push(entry.physical_offset);
            }
            found.len() < max
        })
    }

    /// Returns the physical offset and the hash of each entry that a slot's chain reaches.
    pub fn chained(&self) -> Result<Vec<(PhysicalOffset, u32)>> {
        let mut found = Vec::new();
        for file in &self.files {
            let Some((handle, count)) = self.handle(file)? else { continue };
            for slot in 0..self.geometry.slots {
                self.walk_chain(handle, (slot, u32::MAX), count, |entry| {
                    found.push((entry.physical_offset, entry.hash));
                    true
                })?;
            }
        }
        Ok(found)
    }

    /// Notes that a power loss may have taken entries after a mark, but neither slots nor entries that lead to them.
    pub fn distrust_after(&mut self, mark: Option<&IndexMark>) {
        self.trusted = mark.cloned();
    }

    /// Returns the number of the first entry of a file that a power loss may have damaged.
    fn trusted_in(&self, file: &Known) -> u32 {
        match self.trusted.as_ref().filter(|_| !mutated(Mutant::LostEntriesEndChains)) {
            Some(mark) if mark.file == file.name => mark.count,
            Some(mark) if mark.file < file.name => 1,
            _ => u32::MAX,
        }
    }

    /// Calls `take` with the entries of a slot's chain, newest first, until it returns false. From the entry `trusted` on,
    /// what is wrong is passed over.
    fn walk_chain(
        &self,
        file: &dyn File,
        (slot, trusted): (u32, u32),
        count: u32,
        mut take: impl FnMut(&StoredEntry) -> bool,
    ) -> Result<()> {
        let mut bytes = [0; SLOT_BYTES];
        file.read_at(&mut bytes, slot_at(slot))?;
        let (mut number, mut above) = (be_u32(&bytes, 0), self.geometry.entries);
        // Entry numbers only decrease along a chain, so a damaged chain ends, too.
        while number > 0 && number < above {
            let entry = read_entry(file, self.geometry, number)?;
            let is_there = number < trusted || entry != StoredEntry::NONE;
            let is_of_slot = is_there && self.geometry.slot_of(entry.hash) == slot;
            // Entries at or above the count are just being added. They are only followed to older ones.
            if (!is_of_slot && number < trusted) || (is_of_slot && number < count && !take(&entry)) {
                break;
            }
            above = number;
            number = if number < trusted || (is_of_slot && self.leads_on(file, slot, number, &entry)?) {
                entry.previous
            } else {
                self.newest_below(file, slot, number)?
            };
        }
        Ok(())
    }

    /// Returns whether an entry that a power loss may have damaged leads to one of its slot, or surely to none.
    fn leads_on(&self, file: &dyn File, slot: u32, number: u32, entry: &StoredEntry) -> Result<bool> {
        if entry.previous == 0 {
            return Ok(!self.geometry.may_be_torn(number) && self.is_followed(file, number)?);
        }
        let leads = entry.previous < number
            && self.geometry.slot_of(read_entry(file, self.geometry, entry.previous)?.hash) == slot;
        Ok(leads)
    }

    /// Returns whether the sector of an entry surely contains the next one, too. The last entry that a killed process wrote
    /// may lack its end.
    fn is_followed(&self, file: &dyn File, number: u32) -> Result<bool> {
        let next = number.saturating_add(1);
        let is_near = self.geometry.share_a_sector(number, next) && next < self.geometry.entries;
        Ok(is_near && read_entry(file, self.geometry, next)? != StoredEntry::NONE)
    }

    /// Returns the number of the newest entry of a slot below `number`; 0 if there is none.
    fn newest_below(&self, file: &dyn File, slot: u32, number: u32) -> Result<u32> {
        let mut end = number;
        let mut block = Vec::new();
        while end > 1 {
            let first = end.saturating_sub(ENTRIES_AT_ONCE).max(1);
            block.resize(layout::index(end - first) * ENTRY_BYTES, 0);
            file.read_at(&mut block, self.geometry.entry_at(first))?;
            let entries = (first..end).zip(block.chunks_exact(ENTRY_BYTES).map(StoredEntry::decode));
            let is_of_slot = |(_, entry): &(u32, StoredEntry)| {
                *entry != StoredEntry::NONE && self.geometry.slot_of(entry.hash) == slot
            };
            if let Some((found, _)) = entries.rev().find(is_of_slot) {
                return Ok(found);
            }
            end = first;
        }
        Ok(0)
    }

    /// Returns the handle and the count of a file; `None` in a reader if the writer has removed the file since.
    fn handle<'f>(&self, file: &'f Known) -> Result<Option<(&'f dyn File, u32)>> {
        let handle = if let Some(handle) = file.handle.get() {
            handle
        } else {
            let path = path_of(&file.name);
            if !self.writable && self.storage.len(&path)?.is_none() {
                return Ok(None);
            }
            let opened = self.storage.open(&path, OpenMode::Read)?;
            file.handle.get_or_init(|| opened)
        };
        // Another process may be adding entries to this file.
        let count = if self.writable { file.header.count } else { read_header(&**handle)?.count };
        Ok(Some((&**handle, count)))
    }

    fn full_path(&self, name: &str) -> PathBuf {
        self.storage.root().join(path_of(name))
    }

    const fn for_writing(&self, what: &'static str) -> Result<()> {
        if self.writable { Ok(()) } else { Err(Error::ReadOnly { what }) }
    }
}

fn path_of(name: &str) -> String {
    format!("{DIR}/{name}")
}

/// Returns the index's files by name. Leaves out empty ones, whose length was lost in a crash.
fn index_files(storage: &dyn Storage) -> Result<Vec<DirEntry>> {
    let mut entries = named_files(storage)?;
    entries.retain(|entry| entry.len > 0);
    Ok(entries)
}

fn remove_empty(storage: &dyn Storage) -> Result<()> {
    for entry in named_files(storage)?.into_iter().filter(|entry| entry.len == 0) {
        storage.unlink(&path_of(&entry.name))?;
    }
    Ok(())
}

fn named_files(storage: &dyn Storage) -> Result<Vec<DirEntry>> {
    let mut entries = storage.list(DIR)?.unwrap_or_default();
    let is_name = |name: &str| name.len() == NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
    entries.retain(|entry| !entry.is_dir && is_name(&entry.name));
    Ok(entries)
}

#[cfg(test)]
mod tests;
