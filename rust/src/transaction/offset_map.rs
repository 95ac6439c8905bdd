//! Maps half queue offsets to keys of the table, in half queue order.
//!
//! In:     the queue offset of each pending transaction's newest copy.
//! Out:    the transaction at an offset, the first one, those after an offset.
//! Always: a page of consecutive offsets without transactions takes no memory, so memory shrinks after a spike.

use std::collections::BTreeMap;

use super::slab::Key;
use crate::base::units::{to_u64, to_usize};

/// The number of queue offsets in one page: the bits of a word.
const PAGE: u64 = 64;

#[derive(Clone, Debug)]
struct Page {
    /// One bit for each queue offset that has a transaction.
    used: u64,
    keys: [u32; 64],
}

/// Keys by queue offset.
#[derive(Clone, Debug, Default)]
pub(super) struct OffsetMap {
    pages: BTreeMap<u64, Box<Page>>,
    /// More transactions at queue offsets that the pages already contain. Only a store with several half queues, which
    /// is never written, has them.
    more: Vec<(u64, Key)>,
}

impl OffsetMap {
    /// Returns the transaction at a queue offset.
    pub(super) fn get(&self, queue_offset: u64) -> Option<Key> {
        self.pages.get(&(queue_offset / PAGE))?.get(queue_offset)
    }

    /// Adds a transaction.
    pub(super) fn insert(&mut self, queue_offset: u64, key: Key) {
        let page = self.pages.entry(queue_offset / PAGE);
        let page = page.or_insert_with(|| Box::new(Page { used: 0, keys: [0; 64] }));
        if page.used & bit(queue_offset) != 0 {
            self.more.push((queue_offset, key));
            return;
        }
        page.used |= bit(queue_offset);
        if let Some(slot) = page.keys.get_mut(to_usize(queue_offset % PAGE)) {
            *slot = key.number();
        }
    }

    /// Removes a transaction.
    pub(super) fn remove(&mut self, queue_offset: u64, key: Key) {
        let page = self.pages.get_mut(&(queue_offset / PAGE)).filter(|page| page.get(queue_offset) == Some(key));
        let Some(page) = page else {
            self.more.retain(|other| *other != (queue_offset, key));
            return;
        };
        page.used &= !bit(queue_offset);
        if page.used == 0 {
            self.pages.remove(&(queue_offset / PAGE));
        }
        if let Some(at) = self.more.iter().position(|(other, _)| *other == queue_offset) {
            let (_, key) = self.more.swap_remove(at);
            self.insert(queue_offset, key);
        }
    }

    /// Returns the transactions from a queue offset on, in order.
    pub(super) fn from(&self, queue_offset: u64) -> impl Iterator<Item = (u64, Key)> + '_ {
        let pages = self.pages.range(queue_offset / PAGE..);
        let all = pages.flat_map(|(number, page)| page.iter().map(move |(at, key)| (number * PAGE + at, key)));
        all.skip_while(move |(other, _)| *other < queue_offset)
    }

    /// Returns the approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        // A B-tree's nodes are about two thirds full.
        self.pages.len() * (size_of::<Page>() + size_of::<(u64, Box<Page>)>() * 3 / 2)
    }
}

impl Page {
    fn get(&self, queue_offset: u64) -> Option<Key> {
        (self.used & bit(queue_offset) != 0).then(|| self.key(queue_offset % PAGE)).flatten()
    }

    fn key(&self, at: u64) -> Option<Key> {
        self.keys.get(to_usize(at)).copied().map(Key::from_number)
    }

    fn iter(&self) -> impl Iterator<Item = (u64, Key)> + '_ {
        let is_used = |at: &u64| self.used & 1 << at != 0;
        (0..to_u64(self.keys.len())).filter(is_used).filter_map(|at| Some((at, self.key(at)?)))
    }
}

const fn bit(queue_offset: u64) -> u64 {
    1 << (queue_offset % PAGE)
}
