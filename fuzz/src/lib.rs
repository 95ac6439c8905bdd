//! Targets: what must hold for any bytes that the engine reads.
//!
//! In: an input. Out: nothing, or a panic that names what does not hold. Always: a function of the input alone, on storage
//! in memory; so libFuzzer drives each, and a plain test replays the seeds (replay.rs). Not here: crashes in between
//! calls (tests/crash).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::as_conversions)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::missing_panics_doc)]

pub mod access;
pub mod body;
pub mod config;
pub mod frame;
pub mod grpc;
pub mod half;
pub mod index;
pub mod names;
pub mod offsets;
pub mod properties;
pub mod queue;
pub mod record;
pub mod snapshot;
pub mod sql92;
pub mod store;

/// An input that is read from its beginning; after its end every byte is 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next eight bytes.
    pub fn long(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.bytes(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// So many bytes, or what is left.
    pub fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Bytes after their length.
    pub fn text(&mut self) -> &'a [u8] {
        let length = self.byte();
        self.bytes(length.into())
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
