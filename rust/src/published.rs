//! Published ends: how far readers in other processes may read.
//!
//! In:     the writer's ends as they move.
//! Out:    the side file `txstore/published`, mapped by readers.
//! Always: one writer; each value is written as one aligned 64-bit value, released by the writer and acquired by
//!         readers; an odd epoch says that the store is being changed in another way than by appending. The file is
//!         never replaced, so that a reader's map stays that of the file. A value that a full disk refuses is kept and
//!         written with a later one: until then readers in other processes see less, never more.
//! Not here: byte 1 of `lock`, without which nothing here holds.
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

use crate::error::Result;
use crate::storage::{File, OpenMode, SharedMap, Storage};
use crate::sync::fence;
use crate::units::PhysicalOffset;

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
    /// What a writer has set, although the file may not have it yet.
    wanted: [AtomicU64; VALUES],
    /// A value could not be written.
    is_behind: AtomicBool,
}

impl Published {
    /// Returns the writer's: makes the file, or opens it and keeps its values if its header is good.
    pub fn create(storage: &dyn Storage) -> Result<Self> {
        storage.create_dir(DIR)?;
        let file = storage.open(PATH, OpenMode::Create)?;
        if has_good_header(&*file)? {
            // A sync that failed once may have left bytes that are read but never go to the disk: the next sync takes these.
            let mut bytes = [0; FILE_BYTES];
            file.read_at(&mut bytes, 0)?;
            file.write_at(&bytes, 0)?;
        } else {
            make_empty(&*file)?;
            storage.sync_dir(DIR)?;
        }
        Self::of(file)
    }

    /// Takes all values back, because what is told of the store is not true any more; says whether there were any. The
    /// epoch is odd until a writer has opened the store.
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
        Ok(Self { map, file, wanted, is_behind: AtomicBool::new(false) })
    }

    /// Over values that a model holds.
    #[cfg(loom)]
    pub(crate) fn over(map: Box<dyn SharedMap>, file: Box<dyn File>) -> Self {
        let wanted = std::array::from_fn(|_| AtomicU64::new(0));
        Self { map, file, wanted, is_behind: AtomicBool::new(false) }
    }

    /// Opens a reader's; `None` if there is no such file or its header is bad.
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
            self.is_behind.store(true, Ordering::SeqCst);
        } else if self.is_behind.load(Ordering::Relaxed) {
            // It failed before, and is tried again with each value and each sync.
            let _ = self.catch_up();
        }
    }

    /// Writes what a full disk refused, if it did.
    fn catch_up(&self) -> Result<()> {
        if !self.is_behind.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        // The epoch is last: it says that the others are right.
        for index in (EPOCH..VALUES).rev() {
            let Some(wanted) = self.wanted.get(index) else { continue };
            loop {
                let value = wanted.load(Ordering::SeqCst);
                self.map.store(index, value.to_le()).inspect_err(|_| self.is_behind.store(true, Ordering::SeqCst))?;
                // Another thread may have written a newer one in between.
                if wanted.load(Ordering::SeqCst) == value {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns which state of the store the other values belong to; odd while it is being changed.
    pub fn epoch(&self) -> u64 {
        self.load(EPOCH)
    }

    /// Returns whether everything read since `epoch` was taken belongs to it. Ask after each batch, and drop it if not.
    pub fn is_still(&self, epoch: u64) -> bool {
        fence(Ordering::SeqCst); // what was read before stays before
        epoch.is_multiple_of(2) && self.epoch() == epoch
    }

    /// The writer begins a change that is no append: readers drop what they read until it ends. Fails where readers
    /// could not be told of it.
    pub fn begin_change(&self) -> Result<()> {
        // A crash may have left an odd one: the next change is another one.
        self.store(EPOCH, next_odd(self.epoch()));
        self.catch_up()?;
        fence(Ordering::SeqCst); // what is changed after it stays after
        Ok(())
    }

    /// The change is over.
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

    /// Below it, queues hold every record.
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

    /// Returns whether a sync failed that had to keep an acknowledgement: behind `durable` the disk may hold other
    /// bytes than are read.
    pub fn sync_failed(&self) -> bool {
        self.load(SYNC_FAILED) == 1
    }

    /// Sets `sync_failed`.
    pub fn set_sync_failed(&self, to: bool) {
        self.store(SYNC_FAILED, u64::from(to));
    }

    /// Makes the values durable: the next opening learns from them what must not be missing.
    pub fn sync(&self) -> Result<()> {
        self.catch_up()?;
        self.file.sync()
    }
}

/// Returns the epoch of the next change.
const fn next_odd(epoch: u64) -> u64 {
    epoch.wrapping_add(if epoch.is_multiple_of(2) { 1 } else { 2 })
}

/// A page without values, in an epoch that is odd and another one than the file had: readers may have it mapped.
fn make_empty(file: &dyn File) -> Result<()> {
    let mut epoch = [0; VALUE_BYTES];
    if file.len()? >= bytes_of(FILE_BYTES) {
        file.read_at(&mut epoch, bytes_of(EPOCH * VALUE_BYTES))?;
    }
    // Never shorter, not even for a moment: a reader may have the file mapped. The header goes last.
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
    for (place, byte) in bytes.iter_mut().zip(fields) {
        *place = byte;
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

/// Returns a number of bytes as a position.
fn bytes_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
