//! Outcome: what the log says became of a half; pure.
//!
//! In: which records of a transaction were seen. Out: its outcome, or that it pends. Always: a final message outweighs a
//! discarded copy, that outweighs an op; so the decision is one record (docs/transactions.md); a queue offset of which
//! nothing was noted is finished, outcome unknown. Not here: where records are.

use std::sync::Arc;

use crate::error::Outcome;
use crate::units::{to_u64, to_usize};

/// Bytes of one block.
const BLOCK: usize = 16 << 10;

/// Two bits for each half queue offset that is decided. Offsets between them that no record has (a repair, or a broker that
/// lost records, leaves such gaps) are zeros, so zero means what is known of them: nothing.
///
/// They are kept in blocks: a clone shares them, and the first change of a shared block copies that block alone.
#[derive(Clone, Debug, Default)]
pub struct DecidedHalves {
    /// The first queue offset that is kept.
    base: u64,
    /// Bytes of the first block that are before `base`.
    skipped: usize,
    /// Bytes from the first block's beginning on.
    length: usize,
    /// Slices of `BLOCK` bytes: an array would be made on the stack first.
    blocks: Vec<Arc<[u8]>>,
    count: u64,
}

/// What was seen of a transaction behind its half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// A final message that names one of its copies.
    pub final_message: bool,
    /// A copy in the discard topic.
    pub discarded: bool,
    /// An op that names its last sent half or a copy behind it.
    pub op: Op,
}

/// What the op of a transaction tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Op {
    /// There is none.
    #[default]
    None,
    /// Where nothing else decides, it was rolled back.
    RollsBack,
    /// Right in front of it a repair has put something in place of what was lost, which may have decided.
    BehindLoss,
}

impl Evidence {
    /// The outcome rule.
    pub const fn outcome(self) -> Option<Outcome> {
        match self {
            Self { final_message: true, .. } => Some(Outcome::Committed),
            Self { discarded: true, .. } => Some(Outcome::Discarded),
            Self { op: Op::BehindLoss, .. } => Some(Outcome::FinishedUnknown),
            Self { op: Op::RollsBack, .. } => Some(Outcome::RolledBack),
            Self { op: Op::None, .. } => None,
        }
    }
}

impl DecidedHalves {
    /// None yet, for halves from queue offset `base` on.
    pub const fn from(base: u64) -> Self {
        Self { base, skipped: 0, length: 0, blocks: Vec::new(), count: 0 }
    }

    /// As a snapshot holds them: the first queue offset, how many are decided, and four to a byte, in pieces.
    pub fn parts(&self) -> (u64, u64, impl Iterator<Item = &[u8]>) {
        let pieces = (0..).zip(&self.blocks).map(|(number, block)| {
            let from = if number == 0 { self.skipped } else { 0 };
            let to = self.length.saturating_sub(number * BLOCK).min(BLOCK);
            block.get(from..to).unwrap_or_default()
        });
        (self.base, self.count, pieces)
    }

    /// Back from a snapshot.
    pub fn from_parts(base: u64, count: u64, bits: &[u8]) -> Self {
        let blocks = bits.chunks(BLOCK).map(|chunk| {
            let mut block = chunk.to_vec();
            block.resize(BLOCK, 0);
            Arc::from(block)
        });
        Self { base, skipped: 0, length: bits.len(), blocks: blocks.collect(), count }
    }

    /// Whether nothing was noted yet.
    pub const fn is_untouched(&self) -> bool {
        self.length == self.skipped
    }

    /// Bytes that hold outcomes.
    pub const fn bytes(&self) -> usize {
        self.length - self.skipped
    }

    /// How many are decided.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Bytes in memory.
    pub fn memory(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// Notes an outcome; below the first queue offset nothing is kept.
    pub fn set(&mut self, queue_offset: u64, outcome: Outcome) {
        let Some(place) = queue_offset.checked_sub(self.base) else { return };
        let (byte, shift) = (self.skipped + to_usize(place / 4), place % 4 * 2);
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
        let block = self.blocks.get_mut(byte / BLOCK).map(Arc::make_mut);
        if let Some(bits) = block.and_then(|block| block.get_mut(byte % BLOCK)) {
            *bits = (*bits & !(3 << shift)) | (code << shift);
        }
        self.count += 1;
    }

    /// Forgets those below a queue offset, four at a time.
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

    /// The outcome at a queue offset; `None` outside of what is kept. The caller knows that it does not pend.
    pub fn get(&self, queue_offset: u64) -> Option<Outcome> {
        let place = queue_offset.checked_sub(self.base)?;
        let byte = Some(self.skipped + to_usize(place / 4)).filter(|byte| *byte < self.length)?;
        let bits = self.blocks.get(byte / BLOCK)?.get(byte % BLOCK)?;
        Some(match bits >> (place % 4 * 2) & 3 {
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
