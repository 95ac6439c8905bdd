//! Outcome: what the log says became of a half; pure.
//!
//! In: which records of a transaction were seen. Out: its outcome, or that it pends. Always: a final message outweighs a
//! discarded copy, that outweighs an op; so the decision is one record (docs/transactions.md); a queue offset of which
//! nothing was noted is finished, outcome unknown. Not here: where records are.

use crate::error::Outcome;

/// Two bits for each half queue offset that is decided. Offsets between them that no record has (a repair, or a broker that
/// lost records, leaves such gaps) are zeros, so zero means what is known of them: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecidedHalves {
    base: u64,
    bits: Vec<u8>,
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
        Self { base, bits: Vec::new(), count: 0 }
    }

    /// As a snapshot holds them: the first queue offset, how many are decided, four to a byte.
    pub fn parts(&self) -> (u64, u64, &[u8]) {
        (self.base, self.count, &self.bits)
    }

    /// Back from a snapshot.
    pub const fn from_parts(base: u64, count: u64, bits: Vec<u8>) -> Self {
        Self { base, bits, count }
    }

    /// Whether nothing was noted yet.
    pub const fn is_untouched(&self) -> bool {
        self.bits.is_empty()
    }

    /// How many are decided.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Bytes in memory.
    pub fn memory(&self) -> usize {
        self.bits.capacity()
    }

    /// Notes an outcome; below the first queue offset nothing is kept.
    pub fn set(&mut self, queue_offset: u64, outcome: Outcome) {
        let Some(place) = queue_offset.checked_sub(self.base) else { return };
        let (byte, shift) = (crate::units::to_usize(place / 4), place % 4 * 2);
        if self.bits.len() <= byte {
            self.bits.resize(byte + 1, 0);
        }
        let code: u8 = match outcome {
            Outcome::FinishedUnknown => 0,
            Outcome::RolledBack => 1,
            Outcome::Discarded => 2,
            Outcome::Committed => 3,
        };
        if let Some(bits) = self.bits.get_mut(byte) {
            *bits = (*bits & !(3 << shift)) | (code << shift);
        }
        self.count += 1;
    }

    /// Forgets those below a queue offset, four at a time.
    pub fn forget_below(&mut self, queue_offset: u64) {
        let bytes = queue_offset.saturating_sub(self.base) / 4;
        let gone = crate::units::to_usize(bytes).min(self.bits.len());
        self.bits.drain(..gone);
        self.bits.shrink_to_fit();
        let gone = crate::units::to_u64(gone) * 4;
        self.base += gone;
        self.count = self.count.saturating_sub(gone);
    }

    /// The outcome at a queue offset; `None` outside of what is kept. The caller knows that it does not pend.
    pub fn get(&self, queue_offset: u64) -> Option<Outcome> {
        let place = queue_offset.checked_sub(self.base)?;
        let bits = self.bits.get(crate::units::to_usize(place / 4))?;
        Some(match bits >> (place % 4 * 2) & 3 {
            0 => Outcome::FinishedUnknown,
            1 => Outcome::RolledBack,
            2 => Outcome::Discarded,
            _ => Outcome::Committed,
        })
    }
}
