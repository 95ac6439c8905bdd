//! Views of a file in memory: copies of its bytes to read, and values that are shared.
//!
//! In:     a file, a range.
//! Out:    its bytes now; values that all maps of the file see.
//! Not here: when stores into shared values reach the file (`content`).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tree::Inode;
use crate::storage::{ReadMap, SharedMap};

#[derive(Debug)]
pub(super) struct MemoryReadMap {
    pub(super) inode: Inode,
    pub(super) range: Range<u64>,
}

impl ReadMap for MemoryReadMap {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn bytes(&self, range: Range<u64>) -> Option<Cow<'_, [u8]>> {
        let bytes = range.end.checked_sub(range.start).filter(|_| range.end <= self.len())?;
        let mut bytes = vec![0; usize::try_from(bytes).ok()?];
        self.inode.lock().read(self.range.start + range.start, &mut bytes);
        Some(Cow::Owned(bytes))
    }
}

#[derive(Debug)]
pub(super) struct MemorySharedMap {
    pub(super) shared: Arc<[AtomicU64]>,
    pub(super) values: usize,
    pub(super) writable: bool,
}

impl SharedMap for MemorySharedMap {
    fn load(&self, index: usize) -> u64 {
        self.shared.get(..self.values).and_then(|all| all.get(index)).map_or(0, |value| value.load(Ordering::Acquire))
    }

    fn values(&self) -> &[AtomicU64] {
        if self.writable { self.shared.get(..self.values).unwrap_or_default() } else { &[] }
    }
}
