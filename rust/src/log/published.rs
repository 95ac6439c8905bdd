//! Publishes how far readers in other processes may read.
//!
//! In:     the writer's ends as they move.
//! Out:    the side file `txstore/published`, mapped by readers.
//! Always: one writer. Each value is written as one aligned 64-bit value, released by the writer and acquired by
//!         readers. An odd epoch says that the store is being changed in another way than by appending. The file is
//!         never replaced, so that a reader's map stays valid. A value that a full disk refuses is kept and written
//!         with a later one: until then readers in other processes see less, never more.
//! Not here: byte 1 of `lock`, without which the values are not valid.
//!
//! Little-endian, in values of 8 bytes:
//!
//! | value | what                                                             |
//! |-------|------------------------------------------------------------------|
//! | 0     | magic `TXSPUBLI`                                                 |
//! | 1     | version (low 4 bytes), CRC-32 of the 12 bytes before it (high 4) |
//! | 2–7   | zeros                                                            |
//! | 8     | epoch                                                            |
//! | 9     | appended: one past the last whole record                         |
//! | 10    | durable: one past the last synced record                         |
//! | 11    | dispatched: below it, queues hold every record                   |
//! | 12    | minimum: the first byte that retention left                      |
//! | 13    | 1: a sync failed, and what is not durable may never be           |
//! | 14–15 | zeros                                                            |

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::error::Result;
use crate::base::sync::fence;
use crate::base::units::PhysicalOffset;
use crate::storage::{File, OpenMode, SharedMap, Storage};

const DIR: &str = "txstore";
const PATH: &str = "txstore/published";
const MAGIC: [u8; 8] = *b"TXSPUBLI";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64; // one cache line, so that readers of the header never share one with the writer
const LIVE_BYTES: usize = 64;
const FILE_BYTES: usize = HEADER_BYTES + LIVE_BYTES;
const VALUE_BYTES: usize = size_of::<u64>();
const VALUES: usize = FILE_BYTES / VALUE_BYTES;

const EPOCH: usize = HEADER_BYTES / VALUE_BYTES;
const APPENDED: usize = EPOCH + 1;
const DURABLE: usize = APPENDED + 1;
const DISPATCHED: usize = DURABLE + 1;
const MINIMUM: usize = DISPATCHED + 1;
const SYNC_FAILED: usize = MINIMUM + 1;
const _: () = assert!(SYNC_FAILED < VALUES);

/// How far readers in other processes may read.
#[derive(Debug)]
pub struct Published {
    map: Box<dyn SharedMap>,
    file: Box<dyn File>,
    /// The values that the writer has set. The file may not have them yet.
    wanted: [AtomicU64; VALUES],
    /// Some value could not be written.
    is_incomplete: AtomicBool,
}

impl Published {
    /// Opens the page for writing. Creates the file, or keeps its values if its header is good.
    pub fn create(storage: &dyn Storage) -> Result<Self> {
        storage.create_dir(DIR)?;
        let file = storage.open(PATH, OpenMode::Create)?;
        if has_good_header(&*file)? {
            // A failed sync may have left bytes that are readable but never reach the disk. The next sync writes these.
            let mut bytes = [0; FILE_BYTES];
            file.read_at(&mut bytes, 0)?;
            file.write_at(&bytes, 0)?;
        } else {
            make_empty(&*file)?;
            storage.sync_dir(DIR)?;
        }
        Self::of(file)
    }

    /// Clears all values, because they no longer describe the store. Returns whether there were any. The epoch is odd
    /// until a writer has opened the store.
    pub fn clear(storage: &dyn Storage) -> Result<bool> {
        if storage.len(PATH)?.is_none() {
            return Ok(false);
        }
        make_empty(&*storage.open(PATH, OpenMode::Write)?)?;
        Ok(true)
    }

    fn of(file: Box<dyn File>) -> Result<Self> {
        let map = file.map_shared(VALUES)?;
        let wanted = std::array::from_fn(|index| AtomicU64::new(u64::from_le(map.load(index))));
        Ok(Self { map, file, wanted, is_incomplete: AtomicBool::new(false) })
    }

    /// Creates the page over values that a model holds.
    #[cfg(loom)]
    pub(crate) fn over(map: Box<dyn SharedMap>, file: Box<dyn File>) -> Self {
        let wanted = std::array::from_fn(|_| AtomicU64::new(0));
        Self { map, file, wanted, is_incomplete: AtomicBool::new(false) }
    }

    /// Opens the page for reading; `None` if the file is missing or its header is bad.
    pub fn open(storage: &dyn Storage) -> Result<Option<Self>> {
        if storage.len(PATH)?.is_none() {
            return Ok(None);
        }
        let file = storage.open(PATH, OpenMode::Read)?;
        if !has_good_header(&*file)? {
            return Ok(None);
        }
        Self::of(file).map(Some)
    }

    fn load(&self, index: usize) -> u64 {
        u64::from_le(self.map.load(index))
    }

    /// Writes a value, or notes that a full disk refused it.
    fn store(&self, index: usize, to: u64) {
        if let Some(wanted) = self.wanted.get(index) {
            wanted.store(to, Ordering::Release);
        }
        if self.map.store(index, to.to_le()).is_err() {
            self.is_incomplete.store(true, Ordering::SeqCst);
        } else if self.is_incomplete.load(Ordering::Relaxed) {
            // A failure is retried with each later value and each sync.
            let _ = self.catch_up();
        }
    }

    /// Writes the values that a full disk refused, if there are any.
    fn catch_up(&self) -> Result<()> {
        if !self.is_incomplete.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        // The epoch is written last, because it says that the others are right.
        for index in (EPOCH..VALUES).rev() {
            let Some(wanted) = self.wanted.get(index) else { continue };
            loop {
                let value = wanted.load(Ordering::SeqCst);
                self.map
                    .store(index, value.to_le())
                    .inspect_err(|_| self.is_incomplete.store(true, Ordering::SeqCst))?;
                // Another thread may have written a newer one in between.
                if wanted.load(Ordering::SeqCst) == value {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the epoch: which state of the store the other values belong to. It is odd while the store is being
    /// changed.
    pub fn epoch(&self) -> u64 {
        self.load(EPOCH)
    }

    /// Returns whether everything read since `epoch` was taken belongs to it. Call it after each batch, and drop the
    /// batch if it returns false.
    pub fn is_still(&self, epoch: u64) -> bool {
        fence(Ordering::SeqCst); // reads before the fence stay before it
        epoch.is_multiple_of(2) && self.epoch() == epoch
    }

    /// Begins a change of the store that is not an append. Readers drop what they read until it ends. Fails if
    /// the readers could not be notified.
    pub fn begin_change(&self) -> Result<()> {
        // A crash may have left an odd epoch. The next change must have another one.
        self.store(EPOCH, next_odd(self.epoch()));
        self.catch_up()?;
        fence(Ordering::SeqCst); // changes after the fence stay after it
        Ok(())
    }

    /// Ends the change.
    pub fn end_change(&self) {
        let epoch = self.epoch();
        if !epoch.is_multiple_of(2) {
            self.store(EPOCH, epoch.wrapping_add(1));
        }
    }

    /// Returns one past the last whole record.
    pub fn appended(&self) -> PhysicalOffset {
        PhysicalOffset(self.load(APPENDED))
    }

    /// Sets `appended`.
    pub fn set_appended(&self, to: PhysicalOffset) {
        self.store(APPENDED, to.0);
    }

    /// Returns one past the last synced record.
    pub fn durable(&self) -> PhysicalOffset {
        PhysicalOffset(self.load(DURABLE))
    }

    /// Sets `durable`.
    pub fn set_durable(&self, to: PhysicalOffset) {
        self.store(DURABLE, to.0);
    }

    /// Returns the offset below which queues hold every record.
    pub fn dispatched(&self) -> PhysicalOffset {
        PhysicalOffset(self.load(DISPATCHED))
    }

    /// Sets `dispatched`.
    pub fn set_dispatched(&self, to: PhysicalOffset) {
        self.store(DISPATCHED, to.0);
    }

    /// Returns the first byte that retention left.
    pub fn minimum(&self) -> PhysicalOffset {
        PhysicalOffset(self.load(MINIMUM))
    }

    /// Sets `minimum`.
    pub fn set_minimum(&self, to: PhysicalOffset) {
        self.store(MINIMUM, to.0);
    }

    /// Returns whether a sync failed that had to keep an acknowledgement: after `durable` the disk may hold other
    /// bytes than are read.
    pub fn sync_failed(&self) -> bool {
        self.load(SYNC_FAILED) == 1
    }

    /// Sets `sync_failed`.
    pub fn set_sync_failed(&self, to: bool) {
        self.store(SYNC_FAILED, u64::from(to));
    }

    /// Makes the values durable. The next `open` learns from them which records must exist.
    pub fn sync(&self) -> Result<()> {
        self.catch_up()?;
        self.file.sync()
    }
}

/// Returns the epoch of the next change.
const fn next_odd(epoch: u64) -> u64 {
    epoch.wrapping_add(if epoch.is_multiple_of(2) { 1 } else { 2 })
}

/// Writes a page without values, with an odd epoch that differs from the file's. Readers may have it mapped.
fn make_empty(file: &dyn File) -> Result<()> {
    let mut epoch = [0; VALUE_BYTES];
    if file.len()? >= bytes_of(FILE_BYTES) {
        file.read_at(&mut epoch, bytes_of(EPOCH * VALUE_BYTES))?;
    }
    // The file is never truncated, not even for a moment, because a reader may have it mapped. The header is written
    // last.
    file.set_len(bytes_of(FILE_BYTES))?;
    let mut live = [0; LIVE_BYTES];
    for (byte, of_epoch) in live.iter_mut().zip(next_odd(u64::from_le_bytes(epoch)).to_le_bytes()) {
        *byte = of_epoch;
    }
    file.write_at(&live, bytes_of(HEADER_BYTES))?;
    file.write_at(&header(), 0)?;
    file.sync()
}

fn header() -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut crc = crc32fast::Hasher::new();
    crc.update(&MAGIC);
    crc.update(&VERSION.to_le_bytes());
    let fields = [&MAGIC[..], &VERSION.to_le_bytes(), &crc.finalize().to_le_bytes()].concat();
    for (target, byte) in bytes.iter_mut().zip(fields) {
        *target = byte;
    }
    bytes
}

fn has_good_header(file: &dyn File) -> Result<bool> {
    if file.len()? < bytes_of(FILE_BYTES) {
        return Ok(false);
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes == header())
}

/// Converts a number of bytes to a position.
fn bytes_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
