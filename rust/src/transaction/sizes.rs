//! Counts the sizes of pending half messages, so that the log keeps enough space to end them all.
//!
//! In:     the size of each record whose transaction begins to be pending, or ends.
//! Out:    their sum, and an upper bound of the largest.
//! Always: constant time and memory. The bound is at most twice the largest size, and exact until a record of its class
//!         has been removed.

/// The number of size classes: one for each number of significant bits.
const CLASSES: usize = 33;

/// The sizes of records, added and removed in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    bytes: u64,
    count: u64,
    /// The number of records in each class, and their largest size since the class was empty.
    classes: [(u32, u32); CLASSES],
    /// A bit for each class that has records.
    used: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { bytes: 0, count: 0, classes: [(0, 0); CLASSES], used: 0 }
    }
}

impl Sizes {
    /// Returns the sum of the sizes in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of records.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns an upper bound of the largest size.
    pub fn largest(&self) -> u32 {
        let highest = (u64::BITS - self.used.leading_zeros()).checked_sub(1);
        let class = highest.and_then(|class| self.classes.get(crate::base::units::to_usize(class.into())));
        class.map_or(0, |(_, largest)| *largest)
    }

    pub(super) fn add(&mut self, size: u32) {
        self.bytes += u64::from(size);
        self.count += 1;
        let class = class_of(size);
        self.used |= 1 << class;
        if let Some((count, largest)) = self.classes.get_mut(crate::base::units::to_usize(class.into())) {
            *largest = if *count == 0 { size } else { size.max(*largest) };
            *count += 1;
        }
    }

    pub(super) fn remove(&mut self, size: u32) {
        self.bytes -= u64::from(size);
        self.count -= 1;
        let class = class_of(size);
        if let Some((count, _)) = self.classes.get_mut(crate::base::units::to_usize(class.into())) {
            *count -= 1;
            if *count == 0 {
                self.used &= !(1 << class);
            }
        }
    }
}

const fn class_of(size: u32) -> u32 {
    u32::BITS - size.leading_zeros()
}
