//! The outcome rule: decides from the log what became of a half message. Pure functions.
//!
//! In:     which records of a transaction the log contains.
//! Out:    its outcome, or that it is pending.
//! Always: a final message outweighs a discarded copy, and that outweighs an op. So one record makes the decision
//!         (docs/internals/transactions.md). A queue offset without a note is finished with an unknown outcome.
//! Not here: the positions of records.

use std::sync::Arc;

use crate::base::error::Outcome;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{to_u64, to_usize};

/// The size of one block in bytes.
const BLOCK: usize = 16 << 10;

/// The outcomes of decided halves, two bits for each half queue offset. An offset without a record (a repair, or a
/// broker that lost records, leaves such gaps) is zero, so zero means that nothing is known.
///
/// The bits are stored in blocks. Clones share blocks, and the first change of a shared block copies only that block.
#[derive(Clone, Debug, Default)]
pub struct DecidedHalves {
    /// The first queue offset that is stored.
    base: u64,
    /// Bytes of the first block that are before `base`.
    skipped: usize,
    /// Bytes from the start of the first block.
    length: usize,
    /// Slices of `BLOCK` bytes. An array would be created on the stack first.
    blocks: Vec<Arc<[u8]>>,
    count: u64,
}

/// The records of a transaction that were found after its half message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// A final message that names one of the copies.
    pub final_message: bool,
    /// A copy in the discard topic.
    pub discarded: bool,
    /// An op that names the last sent half or a later copy.
    pub op: Op,
}

/// What the op of a transaction means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Op {
    /// No op was found.
    #[default]
    None,
    /// If no other record decides, the transaction was rolled back.
    RollsBack,
    /// A repair replaced lost records directly before the op. The lost records may have decided the transaction.
    AfterLoss,
}

impl Evidence {
    /// Applies the outcome rule.
    pub const fn outcome(self) -> Option<Outcome> {
        match self {
            Self { final_message: true, .. } => Some(Outcome::Committed),
            Self { discarded: true, .. } => Some(Outcome::Discarded),
            Self { op: Op::AfterLoss, .. } => Some(Outcome::FinishedUnknown),
            Self { op: Op::RollsBack, .. } => Some(Outcome::RolledBack),
            Self { op: Op::None, .. } => None,
        }
    }
}

impl DecidedHalves {
    /// Returns an empty set for halves from queue offset `base` on.
    pub const fn from(base: u64) -> Self {
        Self { base, skipped: 0, length: 0, blocks: Vec::new(), count: 0 }
    }

    /// Returns the parts that a snapshot stores: the first queue offset, the count, and the outcomes, four to a byte.
    pub fn parts(&self) -> (u64, u64, impl Iterator<Item = &[u8]>) {
        let pieces = (0..).zip(&self.blocks).map(|(number, block)| {
            let from = if number == 0 { self.skipped } else { 0 };
            let to = self.length.saturating_sub(number * BLOCK).min(BLOCK);
            block.get(from..to).unwrap_or_default()
        });
        (self.base, self.count, pieces)
    }

    /// Restores the outcomes from a snapshot.
    pub fn from_parts(base: u64, count: u64, bits: &[u8]) -> Self {
        let blocks = bits.chunks(BLOCK).map(|chunk| {
            let mut block = chunk.to_vec();
            block.resize(BLOCK, 0);
            Arc::from(block)
        });
        Self { base, skipped: 0, length: bits.len(), blocks: blocks.collect(), count }
    }

    /// Returns whether no outcome was noted yet.
    pub const fn is_untouched(&self) -> bool {
        self.length == self.skipped
    }

    /// Returns the number of bytes that contain outcomes.
    pub const fn bytes(&self) -> usize {
        self.length - self.skipped
    }

    /// Returns the number of decided halves.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the memory use in bytes.
    pub fn memory(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// Notes an outcome. Ignores queue offsets below the first one.
    pub fn set(&mut self, queue_offset: u64, outcome: Outcome) {
        let Some(index) = queue_offset.checked_sub(self.base) else { return };
        let (byte, shift) = (self.skipped + to_usize(index / 4), index % 4 * 2);
        self.length = self.length.max(byte + 1);
        while self.blocks.len() * BLOCK < self.length {
            self.blocks.push(Arc::from(vec![0; BLOCK]));
        }
        let code: u8 = match outcome {
            Outcome::FinishedUnknown => 0,
            Outcome::RolledBack => 1,
            Outcome::Discarded => 2,
            Outcome::Committed => 3,
        };
        let code = if mutated(Mutant::GapsAreCommitted) { 3 - code } else { code };
        let block = self.blocks.get_mut(byte / BLOCK).map(Arc::make_mut);
        if let Some(bits) = block.and_then(|block| block.get_mut(byte % BLOCK)) {
            *bits = (*bits & !(3 << shift)) | (code << shift);
        }
        self.count += 1;
    }

    /// Removes the outcomes below a queue offset, four at a time.
    pub fn forget_below(&mut self, queue_offset: u64) {
        let gone = to_usize(queue_offset.saturating_sub(self.base) / 4).min(self.bytes());
        self.skipped += gone;
        self.base += to_u64(gone) * 4;
        self.count = self.count.saturating_sub(to_u64(gone) * 4);
        let blocks = self.skipped / BLOCK;
        self.blocks.drain(..blocks);
        self.skipped -= blocks * BLOCK;
        self.length -= blocks * BLOCK;
    }

    /// Returns the outcome at a queue offset, or `None` if it is not stored. The half must not be pending.
    pub fn get(&self, queue_offset: u64) -> Option<Outcome> {
        let index = queue_offset.checked_sub(self.base)?;
        let byte = Some(self.skipped + to_usize(index / 4)).filter(|byte| *byte < self.length)?;
        let bits = self.blocks.get(byte / BLOCK)?.get(byte % BLOCK)?;
        let code = bits >> (index % 4 * 2) & 3;
        Some(match if mutated(Mutant::GapsAreCommitted) { 3 - code } else { code } {
            0 => Outcome::FinishedUnknown,
            1 => Outcome::RolledBack,
            2 => Outcome::Discarded,
            _ => Outcome::Committed,
        })
    }
}

impl PartialEq for DecidedHalves {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |of: &Self| of.parts().2.flatten().copied().collect::<Vec<_>>();
        (self.base, self.count) == (other.base, other.count) && bytes(self) == bytes(other)
    }
}
