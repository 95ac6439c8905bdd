//! Encodes the small binary files of txstore's own: a header that seals values, little-endian.
//!
//! In:     values, a file's magic and version.
//! Out:    bytes; the values again, if the bytes are whole.
//! Always: a file of another magic or version, or with any other byte, is not read.
//!
//! ```text
//! 0         8         12     16
//! | magic   | version | crc  | values …              the CRC-32 is the values'
//! ```

use crate::base::units::to_usize;

/// The size of the header in bytes.
pub(crate) const HEADER: usize = 16;

/// What tells one kind of file from the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    /// The first eight bytes.
    pub(crate) magic: [u8; 8],
    /// A file of another version is ignored.
    pub(crate) version: u32,
}

/// Writes values.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        Self(vec![0; HEADER])
    }

    /// Returns the file's bytes.
    pub(crate) fn seal(self, seal: Seal) -> Vec<u8> {
        let mut bytes = self.0;
        let crc = crc32fast::hash(bytes.get(HEADER..).unwrap_or_default());
        let header = seal.magic.into_iter().chain(seal.version.to_le_bytes()).chain(crc.to_le_bytes());
        for (slot, byte) in bytes.iter_mut().zip(header) {
            *slot = byte;
        }
        bytes
    }

    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.bytes(text.as_bytes());
    }
}

/// Reads values. Each is `None` after the end.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads the header; `None` if the file is of another kind, or damaged.
    pub(crate) fn open(seal: Seal, bytes: &'a [u8]) -> Option<Self> {
        let mut input = Self(bytes);
        let is_kind = input.take(seal.magic.len())? == seal.magic && input.u32()? == seal.version;
        let crc = input.u32()?;
        (is_kind && crc32fast::hash(input.0) == crc).then_some(input)
    }

    /// Returns how many bytes are left.
    pub(crate) const fn left(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(*self.take(8)?.first_chunk()?))
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        Some(i32::from_le_bytes(*self.take(4)?.first_chunk()?))
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.u32()?;
        std::str::from_utf8(self.take(to_usize(u64::from(length)))?).ok()
    }
}
