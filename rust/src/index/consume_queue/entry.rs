//! Defines an entry of a consume queue: twenty bytes that point into the commit log.
//!
//! ```text
//! 0               8       12              20
//! | physical offset | size | tags code     |   big-endian, signed in RocketMQ
//! ```

use crate::base::units::{PhysicalOffset, QueueId};
use crate::record::RecordView;

/// Size of one entry in bytes.
pub const ENTRY_SIZE: usize = 20;
/// The highest queue offset: the position of a higher entry would be in no file.
pub const QUEUE_OFFSET_MAX: u64 = 1 << 58;
/// The size in a padding entry, which represents no message.
pub const PADDING_SIZE: u32 = 0x7FFF_FFFF;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the record begins.
    pub physical_offset: PhysicalOffset,
    /// Its size in bytes.
    pub size: u32,
    /// `String.hashCode` of its tags; 0 without tags. In the schedule topic the delivery timestamp.
    pub tags_code: i64,
}

impl Entry {
    /// An entry without a message, before the first message of a queue that does not begin at 0.
    pub const PADDING: Self = Self { physical_offset: PhysicalOffset(0), size: PADDING_SIZE, tags_code: 0 };

    /// Returns its bytes on disk.
    pub fn to_bytes(self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        let (offset, rest) = bytes.split_at_mut(8);
        let (size, tags) = rest.split_at_mut(4);
        offset.copy_from_slice(&self.physical_offset.0.to_be_bytes());
        size.copy_from_slice(&self.size.to_be_bytes());
        tags.copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    /// Reads an entry; `None` for zeros, too few bytes, or a negative number, which occur only after a queue's end.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (offset, rest) = bytes.split_first_chunk::<8>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let tags = rest.first_chunk::<8>()?;
        let (offset, size) = (u64::from_be_bytes(*offset), u32::from_be_bytes(*size));
        let plausible = size > 0 && size <= PADDING_SIZE && offset <= u64::MAX >> 1;
        plausible.then(|| Self { physical_offset: PhysicalOffset(offset), size, tags_code: i64::from_be_bytes(*tags) })
    }

    /// Returns whether this is a padding entry, which represents no message.
    pub fn is_padding(&self) -> bool {
        self.size == PADDING_SIZE
    }

    /// Returns whether a record at the entry's physical offset is the message of this entry: it has the entry's size, and
    /// names the queue and the queue offset of the entry.
    pub fn leads_to(&self, view: &RecordView<'_>, topic: &str, queue_id: QueueId, queue_offset: u64) -> bool {
        (view.topic, view.queue_id, view.queue_offset.0) == (topic, queue_id, queue_offset) && view.size == self.size
    }

    /// Returns one past the record's last byte.
    pub fn end(&self) -> u64 {
        self.physical_offset.0 + u64::from(self.size)
    }
}
