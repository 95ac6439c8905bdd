//! Stores the table's transactions in blocks. A snapshot shares the blocks with the live table instead of copying them.
//!
//! In:     transactions, one by one.
//! Out:    their keys, and the blocks at one moment.
//! Always: a shared block never changes. The live table copies it before its next change there. A block with few
//!         transactions takes little memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pending::Pending;
use crate::base::units::{to_u64, to_usize};

/// Identifies a transaction of the table while it is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u32);

/// The number of transactions in one block. Copying a block takes a few microseconds, which an end or a check can
/// spare.
const BLOCK: u16 = 512;
/// A block with more transactions than this gets memory for all that it can have, so that it is not copied while it
/// grows.
const FEW: usize = 16;

/// The transactions of consecutive keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    entries: Vec<Option<Pending>>,
    free: Vec<u16>,
}

impl Block {
    /// Returns the block's transactions.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Pending> {
        self.entries.iter().flatten()
    }

    /// Adds a transaction to a block with room, and returns its entry.
    fn insert(&mut self, entry: Pending) -> u16 {
        let Some(at) = self.free.pop() else {
            if self.entries.len() == FEW {
                self.entries.reserve_exact(usize::from(BLOCK) - FEW);
                self.free.reserve_exact(usize::from(BLOCK));
            }
            self.entries.push(Some(entry));
            return u16::try_from(self.entries.len() - 1).unwrap_or(u16::MAX);
        };
        if let Some(slot) = self.entries.get_mut(usize::from(at)) {
            *slot = Some(entry);
        }
        at
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= usize::from(BLOCK)
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Returns the memory of its entries in bytes.
    fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Option<Pending>>() + self.free.capacity() * size_of::<u16>()
    }
}

/// All transactions of a table.
#[derive(Debug, Default)]
pub(super) struct Slab {
    blocks: Vec<Arc<Block>>,
    /// The blocks with free entries. The lowest is used first, so that the last blocks become empty.
    with_room: BTreeSet<u32>,
}

impl Slab {
    /// Returns a transaction.
    pub(super) fn get(&self, key: Key) -> Option<&Pending> {
        let (block, at) = parts(key);
        self.blocks.get(to_usize(block.into()))?.entries.get(usize::from(at))?.as_ref()
    }

    /// Returns a transaction for a change.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Pending> {
        let (block, at) = parts(key);
        Arc::make_mut(self.blocks.get_mut(to_usize(block.into()))?).entries.get_mut(usize::from(at))?.as_mut()
    }

    /// Adds a transaction.
    pub(super) fn insert(&mut self, entry: Pending) -> Key {
        let number = self.with_room.first().copied().unwrap_or_else(|| self.add_block());
        let Some(shared) = self.blocks.get_mut(to_usize(number.into())) else { return Key(u32::MAX) };
        let block = Arc::make_mut(shared);
        let at = block.insert(entry);
        if block.is_full() {
            self.with_room.remove(&number);
        }
        Key(number * u32::from(BLOCK) + u32::from(at))
    }

    /// Removes a transaction.
    pub(super) fn remove(&mut self, key: Key) -> Option<Pending> {
        self.get(key)?;
        let (number, at) = parts(key);
        let shared = self.blocks.get_mut(to_usize(number.into()))?;
        let block = Arc::make_mut(shared);
        let entry = block.entries.get_mut(usize::from(at))?.take()?;
        block.free.push(at);
        if block.is_empty() {
            *shared = Arc::default();
        }
        self.with_room.insert(number);
        Some(entry)
    }

    /// Returns all transactions with their keys, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Pending)> {
        (0..).zip(&self.blocks).flat_map(|(number, block)| {
            let key = move |at: u32| Key(number * u32::from(BLOCK) + at);
            (0..).zip(&block.entries).filter_map(move |(at, entry)| Some((key(at), entry.as_ref()?)))
        })
    }

    /// Returns the current blocks, shared.
    pub(super) fn share(&self) -> Vec<Arc<Block>> {
        self.blocks.clone()
    }

    /// Returns the approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        let used: usize = self.blocks.iter().map(|block| block.memory()).sum();
        used + self.blocks.capacity() * (size_of::<Arc<Block>>() + size_of::<Block>() + 16)
    }

    fn add_block(&mut self) -> u32 {
        let number = u32::try_from(to_u64(self.blocks.len())).unwrap_or(u32::MAX / u32::from(BLOCK));
        self.blocks.push(Arc::default());
        self.with_room.insert(number);
        number
    }
}

/// Returns a key's block, and its entry in the block.
fn parts(key: Key) -> (u32, u16) {
    let at = u16::try_from(key.0 % u32::from(BLOCK)).unwrap_or_default();
    (key.0 / u32::from(BLOCK), at)
}

impl Key {
    /// Returns the number that the maps of the table store.
    pub(super) const fn number(self) -> u32 {
        self.0
    }

    /// Returns the key of a number that the maps of the table store.
    pub(super) const fn from_number(number: u32) -> Self {
        Self(number)
    }
}
