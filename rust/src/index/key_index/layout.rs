//! Defines the bytes of an index file.
//!
//! In:     a header or an entry, or its bytes.
//! Out:    the other one, and its position in the file.
//! Always: entry numbers start at 1; entry 0 stays zeros.
//! Not here: reading and writing.
//!
//! | bytes                   | what                                                             |
//! |-------------------------|------------------------------------------------------------------|
//! | 0                       | begin timestamp 8, end timestamp 8, in ms                        |
//! | 16                      | begin physical offset 8, end physical offset 8                   |
//! | 32                      | used slots 4, entry count + 1 4                                  |
//! | 40                      | slots × 4: the slot's newest entry number, 0 if it is empty      |
//! | 40 + 4 × slots          | entries × 20: hash 4, physical offset 8, seconds 4, previous 4   |

use crate::base::units::{PhysicalOffset, TimestampMs};

pub(super) const HEADER_BYTES: usize = 40;
pub(super) const SLOT_BYTES: usize = 4;
pub(super) const ENTRY_BYTES: usize = 20;
const SECTOR_BYTES: u64 = 512; // what a disk writes as a whole

/// The number of slots and entries in an index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexGeometry {
    /// RocketMQ's `maxHashSlotNum`.
    pub slots: u32,
    /// RocketMQ's `maxIndexNum`; at most one fewer is stored.
    pub entries: u32,
}

impl Default for IndexGeometry {
    fn default() -> Self {
        Self { slots: 5_000_000, entries: 20_000_000 }
    }
}

impl IndexGeometry {
    /// Returns the length of each file.
    pub fn file_bytes(self) -> u64 {
        self.entry_at(self.entries)
    }

    /// Returns the position of an entry in the file.
    pub(super) fn entry_at(self, number: u32) -> u64 {
        slot_at(self.slots) + u64::from(number) * wide(ENTRY_BYTES)
    }

    /// Returns whether a power loss may keep an entry without the number of the previous one, in the next sector.
    pub(super) fn may_be_torn(self, number: u32) -> bool {
        let at = self.entry_at(number);
        at / SECTOR_BYTES != (at + wide(ENTRY_BYTES) - 1) / SECTOR_BYTES
    }

    /// Returns whether two entries, of which `first` is the earlier one, are wholly in one sector.
    pub(super) fn share_a_sector(self, first: u32, last: u32) -> bool {
        let end = self.entry_at(last) + wide(ENTRY_BYTES) - 1;
        self.entry_at(first) / SECTOR_BYTES == end / SECTOR_BYTES
    }

    /// Returns the slot of a hash.
    pub(super) fn slot_of(self, hash: u32) -> u32 {
        hash.checked_rem(self.slots).unwrap_or(0)
    }
}

/// Returns the position of a slot in the file.
pub(super) fn slot_at(slot: u32) -> u64 {
    wide(HEADER_BYTES) + u64::from(slot) * wide(SLOT_BYTES)
}

/// The first 40 bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) begin: TimestampMs,
    pub(super) end: TimestampMs,
    pub(super) begin_offset: PhysicalOffset,
    pub(super) end_offset: PhysicalOffset,
    pub(super) used_slots: u32,
    /// The number that the next entry gets: entries + 1.
    pub(super) count: u32,
}

impl Header {
    pub(super) const EMPTY: Self = Self {
        begin: TimestampMs(0),
        end: TimestampMs(0),
        begin_offset: PhysicalOffset(0),
        end_offset: PhysicalOffset(0),
        used_slots: 0,
        count: 1,
    };

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            begin: TimestampMs(be_u64(bytes, 0).cast_signed()),
            end: TimestampMs(be_u64(bytes, 8).cast_signed()),
            begin_offset: PhysicalOffset(be_u64(bytes, 16)),
            end_offset: PhysicalOffset(be_u64(bytes, 24)),
            used_slots: be_u32(bytes, 32),
            // A file without entries says 0; a negative number is damage.
            count: u32::try_from(be_u32(bytes, 36).cast_signed()).unwrap_or(0).max(1),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(self.begin.0.to_be_bytes());
        bytes.extend(self.end.0.to_be_bytes());
        bytes.extend(self.begin_offset.0.to_be_bytes());
        bytes.extend(self.end_offset.0.to_be_bytes());
        bytes.extend(self.used_slots.to_be_bytes());
        bytes.extend(self.count.to_be_bytes());
        bytes
    }
}

/// An entry as stored in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredEntry {
    pub(super) hash: u32,
    pub(super) physical_offset: PhysicalOffset,
    /// Since the file's begin timestamp.
    pub(super) seconds: u32,
    /// The number of the previous entry in its slot; 0 if it is the first.
    pub(super) previous: u32,
}

impl StoredEntry {
    /// What is where no entry was written.
    pub(super) const NONE: Self = Self { hash: 0, physical_offset: PhysicalOffset(0), seconds: 0, previous: 0 };

    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            hash: be_u32(bytes, 0),
            physical_offset: PhysicalOffset(be_u64(bytes, 4)),
            seconds: be_u32(bytes, 12),
            previous: be_u32(bytes, 16),
        }
    }

    pub(super) fn encode_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.hash.to_be_bytes());
        bytes.extend(self.physical_offset.0.to_be_bytes());
        bytes.extend(self.seconds.to_be_bytes());
        bytes.extend(self.previous.to_be_bytes());
    }
}

/// Returns the name of a file whose first entry was stored at that time: `yyyyMMddHHmmssSSS` in UTC, and higher than
/// `last`.
pub(super) fn file_name(stored: TimestampMs, last: Option<&str>) -> String {
    let ms = u64::try_from(stored.0).unwrap_or(0).min(253_402_300_799_999); // the last millisecond of the year 9999
    let (days, in_day) = (ms / 86_400_000, ms % 86_400_000);
    let (hours, minutes, seconds) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1_000 % 60);
    let time = (hours * 10_000 + minutes * 100 + seconds) * 1_000 + in_day % 1_000;
    let wanted = date(days) * 1_000_000_000 + time;
    // Brokers sort files by name and read it as a number, not as a date. A clock that went back must not change the
    // order.
    let above = last.and_then(|last| last.parse::<u64>().ok()).map_or(0, |last| last.saturating_add(1));
    format!("{:017}", wanted.max(above))
}

/// Returns the day as `yyyyMMdd`, counted in 400-year eras of years that begin in March.
fn date(days_since_epoch: u64) -> u64 {
    const EPOCH_DAY: u64 = 719_468; // days from 0000-03-01 to 1970-01-01
    const ERA_DAYS: u64 = 146_097;
    let days = days_since_epoch + EPOCH_DAY;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    year * 10_000 + month * 100 + day_of_month
}

pub(super) fn be_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |value| u32::from_be_bytes(*value))
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |value| u64::from_be_bytes(*value))
}

/// Converts a number of bytes to a position.
pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Converts a number to an index in memory.
pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
