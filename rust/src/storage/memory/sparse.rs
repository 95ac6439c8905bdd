//! Stores a file's bytes in memory, where pages of zeros take no space.
//!
//! In:     byte ranges.
//! Out:    bytes.
//! Always: bytes past the length are zeros.
//! Not here: what of it is durable.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) const PAGE_BYTES: u64 = 4_096;
const PAGE: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(super) struct Sparse {
    pub(super) len: u64,
    /// Shared between copies until one is written.
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
}

impl Sparse {
    /// Fills the buffer; zeros past the length.
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) {
        let mut rest = buf;
        for piece in pieces(at..at.saturating_add(wide(rest.len())), PAGE_BYTES) {
            let Some((now, later)) = rest.split_at_mut_checked(span(&piece)) else { return };
            let page = self.pages.get(&(piece.start / PAGE_BYTES));
            match page.and_then(|page| page.get(in_page(&piece))) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            rest = later;
        }
    }

    /// Returns whether a range is zeros. Reads only the pages that are stored.
    pub(super) fn is_blank(&self, range: Range<u64>) -> bool {
        self.pages_in(&range).into_iter().all(|page| {
            let piece = range.start.max(page * PAGE_BYTES)..range.end.min((page + 1).saturating_mul(PAGE_BYTES));
            let bytes = self.pages.get(&page).and_then(|bytes| bytes.get(in_page(&piece)));
            bytes.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0))
        })
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        self.put(at, bytes);
        self.len = self.len.max(at.saturating_add(wide(bytes.len())));
    }

    /// Writes bytes without changing the length.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces(at..at.saturating_add(wide(bytes.len())), PAGE_BYTES) {
            let Some((now, later)) = rest.split_at_checked(span(&piece)) else { return };
            let page = self.pages.entry(piece.start / PAGE_BYTES).or_insert_with(|| Arc::new([0; PAGE]));
            if let Some(target) = Arc::make_mut(page).get_mut(in_page(&piece)) {
                target.copy_from_slice(now);
            }
            rest = later;
        }
    }

    pub(super) fn zero(&mut self, range: Range<u64>) {
        for page in self.pages_in(&range) {
            let piece = range.start.max(page * PAGE_BYTES)..range.end.min((page + 1).saturating_mul(PAGE_BYTES));
            if span(&piece) == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page)
                && let Some(target) = Arc::make_mut(bytes).get_mut(in_page(&piece))
            {
                target.fill(0);
            }
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.zero(len..u64::MAX);
        self.len = len;
    }

    /// Returns the pages of a range that are stored.
    pub(super) fn pages_in(&self, range: &Range<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        self.pages.range(range.start / PAGE_BYTES..=(range.end - 1) / PAGE_BYTES).map(|(page, _)| *page).collect()
    }
}

/// Returns a range cut at the multiples of `unit`.
pub(super) fn pieces(range: Range<u64>, unit: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / unit + 1).saturating_mul(unit).min(range.end);
        let piece = at..end;
        at = end;
        (!piece.is_empty()).then_some(piece)
    })
}

fn span(piece: &Range<u64>) -> usize {
    usize::try_from(piece.end.saturating_sub(piece.start)).unwrap_or(usize::MAX)
}

fn in_page(piece: &Range<u64>) -> Range<usize> {
    let start = usize::try_from(piece.start % PAGE_BYTES).unwrap_or(0);
    start..start + span(piece)
}

pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
