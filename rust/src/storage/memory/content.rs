//! Tracks a file's current bytes, its durable bytes, and the changes between them.
//!
//! In:     writes, lengths, holes, syncs.
//! Out:    bytes now, or bytes after a power loss.
//! Always: after a power loss each 512-byte sector is as it was after one of the writes since the last sync, or before
//!         them all, independently of other sectors; the length likewise.
//! Not here: names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Choose;
use super::sparse::{PAGE_BYTES, Sparse, pieces, wide};
use crate::base::units::TimestampMs;

const SECTOR_BYTES: u64 = 512;
const VALUE_BYTES: u64 = 8;
const VALUES_MIN: usize = 512; // one page, so that later maps of more values fit

/// A change that is not durable yet.
#[derive(Clone, Debug)]
enum Pending {
    Write { at: u64, bytes: Vec<u8> },
    Zero { range: Range<u64> },
    Len { len: u64 },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    now: Sparse,
    durable: Sparse,
    pending: Vec<Pending>,
    /// Values mapped by `map_shared`. Their stores are copied into the file before any other access.
    shared: Option<Arc<[AtomicU64]>>,
    /// When it was last written.
    modified: Option<TimestampMs>,
}

impl Content {
    pub(super) const fn modified(&self) -> Option<TimestampMs> {
        self.modified
    }

    pub(super) const fn len(&self) -> u64 {
        self.now.len
    }

    pub(super) fn read(&mut self, at: u64, buf: &mut [u8]) {
        self.take_over();
        self.now.read(at, buf);
    }

    /// Returns whether a range is zeros.
    pub(super) fn is_blank(&mut self, range: Range<u64>) -> bool {
        self.take_over();
        self.now.is_blank(range)
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8], now: Option<TimestampMs>) {
        if bytes.is_empty() {
            return;
        }
        self.modified = now;
        self.take_over();
        self.now.write(at, bytes);
        self.pending.push(Pending::Write { at, bytes: bytes.to_vec() });
        self.hand_over(&(at..at + wide(bytes.len())));
    }

    pub(super) fn zero(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.now.len);
        if range.is_empty() {
            return;
        }
        self.take_over();
        self.now.zero(range.clone());
        self.hand_over(&range);
        self.pending.push(Pending::Zero { range });
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.zero(len..self.now.len);
        self.now.set_len(len);
        self.pending.push(Pending::Len { len });
    }

    pub(super) fn sync(&mut self) {
        self.take_over();
        for change in self.pending.drain(..) {
            match change {
                Pending::Write { at, bytes } => self.durable.write(at, &bytes),
                Pending::Zero { range } => self.durable.zero(range),
                Pending::Len { len } => self.durable.set_len(len),
            }
        }
    }

    /// Fails a sync: some sectors reached the disk, and the others never will, though they can still be read.
    pub(super) fn fail_sync(&mut self, choose: &mut Choose<'_>) {
        self.durable = self.without_power(choose);
        self.pending.clear();
    }

    /// Returns the same file after its process was killed: no finished call is lost, nothing became durable.
    pub(super) fn without_process(&mut self) -> Self {
        self.take_over();
        Self { shared: None, ..self.clone() }
    }

    /// Returns the same file after a power loss, all of it durable.
    pub(super) fn after_power_loss(&mut self, choose: &mut Choose<'_>) -> Self {
        let survived = self.without_power(choose);
        Self { now: survived.clone(), durable: survived, pending: Vec::new(), shared: None, modified: self.modified }
    }

    fn without_power(&mut self, choose: &mut Choose<'_>) -> Sparse {
        self.take_over();
        let mut file = self.durable.clone();
        for changes in self.sector_changes().values() {
            for (piece, change) in changes.iter().take(choose(changes.len())) {
                match change {
                    Pending::Write { at, bytes } => file.put(piece.start, slice(bytes, *at, piece)),
                    Pending::Zero { .. } | Pending::Len { .. } => file.zero(piece.clone()),
                }
            }
        }
        let lens = self.len_changes();
        file.set_len(lens.get(choose(lens.len() - 1)).copied().unwrap_or(0));
        file
    }

    /// Returns the changes of each sector since the last sync, in order.
    fn sector_changes(&self) -> BTreeMap<u64, Vec<(Range<u64>, &Pending)>> {
        let mut written = BTreeSet::new(); // pages, so that a hole in a large file costs only where bytes were written
        let mut sectors: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for change in &self.pending {
            let mut ranges = Vec::new();
            match change {
                Pending::Write { at, bytes } => ranges.push(*at..at + wide(bytes.len())),
                Pending::Zero { range } => ranges = self.used_parts(range, &written),
                Pending::Len { .. } => {}
            }
            for piece in ranges.into_iter().flat_map(|range| pieces(range, SECTOR_BYTES)) {
                written.insert(piece.start / PAGE_BYTES);
                sectors.entry(piece.start / SECTOR_BYTES).or_default().push((piece, change));
            }
        }
        sectors
    }

    fn used_parts(&self, range: &Range<u64>, written: &BTreeSet<u64>) -> Vec<Range<u64>> {
        let mut pages: BTreeSet<u64> = self.durable.pages_in(range).into_iter().collect();
        pages.extend(written.range(range.start / PAGE_BYTES..=(range.end - 1) / PAGE_BYTES));
        let part = |page: u64| range.start.max(page * PAGE_BYTES)..range.end.min((page + 1) * PAGE_BYTES);
        pages.into_iter().map(part).collect()
    }

    /// Returns the lengths the file had since the last sync, the durable one first.
    fn len_changes(&self) -> Vec<u64> {
        let mut lens = vec![self.durable.len];
        let mut len = self.durable.len;
        for change in &self.pending {
            let next = match change {
                Pending::Write { at, bytes } => len.max(at + wide(bytes.len())),
                Pending::Len { len } => *len,
                Pending::Zero { .. } => len,
            };
            if next != len {
                lens.push(next);
            }
            len = next;
        }
        lens
    }

    /// Returns the file's first values, shared; `None` if other maps have fewer.
    pub(super) fn share(&mut self, values: usize) -> Option<Arc<[AtomicU64]>> {
        if self.shared.is_none() {
            let shared: Arc<[AtomicU64]> = (0..values.max(VALUES_MIN)).map(|_| AtomicU64::new(0)).collect();
            let range = 0..wide(shared.len()) * VALUE_BYTES;
            self.shared = Some(shared);
            self.hand_over(&range);
        }
        self.shared.clone().filter(|shared| shared.len() >= values)
    }

    /// Leaves the maps of the file to a process that was killed: its later stores do not reach the file.
    pub(super) fn unshare(&mut self) {
        self.take_over();
        self.shared = None;
    }

    /// Copies stores into the shared values since the last access into the file.
    fn take_over(&mut self) {
        let Some(shared) = self.shared.clone() else { return };
        for (at, value) in (0..self.now.len).step_by(8).zip(shared.iter()) {
            let (bytes, mut known) = (value.load(Ordering::Acquire).to_ne_bytes(), [0; 8]);
            self.now.read(at, &mut known);
            if bytes != known && at + VALUE_BYTES <= self.now.len {
                self.now.write(at, &bytes);
                self.pending.push(Pending::Write { at, bytes: bytes.to_vec() });
            }
        }
    }

    /// Copies a change of the file's bytes into the shared values.
    fn hand_over(&self, range: &Range<u64>) {
        for (at, value) in (0..range.end).step_by(8).zip(self.shared.iter().flat_map(|shared| shared.iter())) {
            if at + VALUE_BYTES > range.start {
                let mut bytes = [0; 8];
                self.now.read(at, &mut bytes);
                value.store(u64::from_ne_bytes(bytes), Ordering::Release);
            }
        }
    }
}

/// Returns the part of a write's bytes that falls into a piece.
fn slice<'b>(bytes: &'b [u8], at: u64, piece: &Range<u64>) -> &'b [u8] {
    let from = usize::try_from(piece.start.saturating_sub(at)).unwrap_or(usize::MAX);
    let to = usize::try_from(piece.end.saturating_sub(at)).unwrap_or(usize::MAX);
    bytes.get(from..to).unwrap_or_default()
}
