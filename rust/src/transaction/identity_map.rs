//! Maps the identity that a transaction's copies share to the transaction's key in the table.
//!
//! In:     identities of pending transactions. Identity 0 has no copies and is left out.
//! Out:    the newest transaction of an identity.
//! Always: the map grows and shrinks in small parts, so that no single call moves all of it.

use hashbrown::HashTable;

use super::Identity;
use super::slab::{Key, Slab};
use crate::base::units::to_usize;

/// The number of parts. They are chosen by bits of the hash that a part itself does not use first.
const PARTS: u64 = 64;
/// A part with a capacity above this number of identities may shrink.
const ROOM_MIN: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct IdentityMap {
    parts: Vec<HashTable<Key>>,
}

impl Default for IdentityMap {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashTable::new()).collect() }
    }
}

impl IdentityMap {
    /// Reserves memory for a number of identities.
    pub(super) fn reserve(&mut self, slab: &Slab, identities: usize) {
        // The identities are spread evenly, with small differences.
        let each = identities / self.parts.len().max(1) * 9 / 8;
        for part in &mut self.parts {
            part.reserve(each, |key| hash_of(slab, *key));
        }
    }

    /// Returns the newest transaction of an identity.
    pub(super) fn find(&self, slab: &Slab, identity: Identity) -> Option<Key> {
        let hash = hash(identity.0);
        self.parts.get(part_of(hash))?.find(hash, |key| is_same(slab, *key, identity.0)).copied()
    }

    /// Makes a transaction the newest of its identity.
    pub(super) fn link(&mut self, slab: &Slab, key: Key) {
        let identity = slab.get(key).map_or(0, |entry| entry.identity);
        let hash = hash(identity);
        let Some(part) = self.parts.get_mut(part_of(hash)).filter(|_| identity != 0) else { return };
        match part.find_mut(hash, |other| is_same(slab, *other, identity)) {
            Some(found) => *found = key,
            None => {
                part.insert_unique(hash, key, |other| hash_of(slab, *other));
            }
        }
    }

    /// Removes a transaction that has left the slab.
    pub(super) fn unlink(&mut self, slab: &Slab, key: Key, identity: u64) {
        let hash = hash(identity);
        let Some(part) = self.parts.get_mut(part_of(hash)) else { return };
        if let Ok(found) = part.find_entry(hash, |other| *other == key) {
            found.remove();
        }
        // The large capacity comes from a spike. Some of it is kept, so that it is not freed and allocated again too
        // often.
        if part.capacity() > ROOM_MIN && part.len() < part.capacity() / 8 {
            part.shrink_to(part.capacity() / 4, |other| hash_of(slab, *other));
        }
    }

    /// Returns the approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        self.parts.iter().map(|part| part.capacity() * 8 / 7 * (size_of::<Key>() + 1)).sum()
    }
}

fn is_same(slab: &Slab, key: Key, identity: u64) -> bool {
    slab.get(key).is_some_and(|entry| entry.identity == identity)
}

fn hash_of(slab: &Slab, key: Key) -> u64 {
    hash(slab.get(key).map_or(0, |entry| entry.identity))
}

fn part_of(hash: u64) -> usize {
    to_usize(hash >> 32 & (PARTS - 1))
}

/// Spreads numbers over all bits: Fibonacci hashing, with the fractional part of the golden ratio.
const fn hash(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}
