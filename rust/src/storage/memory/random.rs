//! Generates numbers from a seed.
//!
//! In:     a seed.
//! Out:    the same numbers for the same seed (`SplitMix64`), so that a failing run can be repeated.

#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `most`, both included.
    pub(super) fn up_to(&mut self, most: usize) -> usize {
        let values = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        usize::try_from(self.next() % values).unwrap_or(0)
    }
}
