//! Stores the state at a physical offset of the log, to open faster: `txstore/snapshot`.
//!
//! In:     the table of transactions, the queues' ends, the index's mark.
//! Out:    the same, if the file is whole and fits the log.
//! Always: everything derived from the log below the position was synced before the snapshot was written. The snapshot
//!         is never needed for correctness: without it the whole log is read.
//! Not here: the header (`storage::sealed`).

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{QueueId, to_u64, to_usize};
use crate::index::key_index::IndexMark;
use crate::index::timed::{Timed, Waiting};
use crate::storage::Storage;
use crate::storage::config_file::{open_present, replace_file};
use crate::storage::sealed::{HEADER, Reader, Seal, Writer};
use crate::transaction::op_progress::OpProgress;
use crate::transaction::outcome::DecidedHalves;
use crate::transaction::pending::Pending;
use crate::transaction::table::{Frozen, NewHalf, Table};
use crate::transaction::{HalfCopy, Identity};

const PATH: &str = "txstore/snapshot";
/// A file of another version is ignored: the whole log is scanned once.
const SEAL: Seal = Seal { magic: *b"txsnap\r\n", version: 4 };
/// Size of a pending transaction with one copy, in bytes.
const PENDING_SIZE_MIN: usize = 2 * 8 + 2 * 8 + 8 * 4;

/// A record that must be in the log for the snapshot to fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Where it begins.
    pub physical_offset: u64,
    /// Its size in bytes.
    pub size: u32,
    /// The CRC-32 of all its bytes.
    pub crc: u32,
}

/// A queue's extent at the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueExtent {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its queue id.
    pub queue_id: QueueId,
    /// The first remaining entry.
    pub first: u64,
    /// One past the last entry.
    pub next: u64,
}

/// Everything derived from the log below `position`.
#[derive(Debug)]
pub struct Snapshot {
    /// The physical offset up to which the log is included.
    pub position: u64,
    /// The last record before the position; `None` in an empty log.
    pub anchor: Option<Anchor>,
    /// The newest store timestamp before the position.
    pub newest_store_ms: i64,
    /// The queues.
    pub queues: Vec<QueueExtent>,
    /// The last index file.
    pub index: Option<IndexMark>,
    /// The transactions, with wall times.
    pub table: Table,
    /// The timed messages that wait.
    pub timed: Waiting,
}

impl Snapshot {
    /// Encodes a snapshot of a live table. The table's ages use the monotonic clock; `to_wall_ms` added to its times
    /// gives wall time.
    pub fn encode(&self, table: &Frozen, to_wall_ms: i64) -> Vec<u8> {
        let mut out = Writer::new();
        out.u64(self.position);
        out.i64(self.newest_store_ms);
        out.u64(self.anchor.map_or(u64::MAX, |anchor| anchor.physical_offset));
        out.u32(self.anchor.map_or(0, |anchor| anchor.size));
        out.u32(self.anchor.map_or(0, |anchor| anchor.crc));
        out.u64(to_u64(self.queues.len()));
        for queue in &self.queues {
            out.text(&queue.topic);
            out.u32(queue.queue_id.0.cast_unsigned());
            out.u64(queue.first);
            out.u64(queue.next);
        }
        out.text(self.index.as_ref().map_or("", |mark| &mark.file));
        out.u32(self.index.as_ref().map_or(0, |mark| mark.count));
        write_table(&mut out, table, to_wall_ms);
        out.u64(self.timed.len());
        for message in self.timed.iter() {
            out.i64(message.due_ms);
            out.u64(message.physical_offset);
        }
        out.seal(SEAL)
    }

    /// Replaces the file.
    pub fn store(storage: &dyn Storage, bytes: &[u8]) -> Result<()> {
        replace_file(storage, PATH, bytes, false)
    }

    /// Removes the file, so that the next `open` reads the whole log.
    pub fn remove(storage: &dyn Storage) -> Result<()> {
        storage.unlink(PATH)?;
        storage.sync_dir("txstore")
    }

    /// Reads the file; `None` if it is missing or damaged.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        read_file(storage, Self::decode)
    }

    /// Returns the position of the snapshot in the file; 0 if it is missing or damaged.
    pub fn position_of(storage: &dyn Storage) -> Result<u64> {
        Ok(read_file(storage, |bytes| Reader::open(SEAL, bytes)?.u64())?.unwrap_or(0))
    }

    /// Decodes a snapshot; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader::open(SEAL, bytes)?;
        let (position, newest_store_ms) = (input.u64()?, input.i64()?);
        let anchor = Anchor { physical_offset: input.u64()?, size: input.u32()?, crc: input.u32()? };
        let mut queues = Vec::new();
        for _ in 0..input.u64()? {
            queues.push(QueueExtent {
                topic: input.text()?.into(),
                queue_id: QueueId(input.u32()?.cast_signed()),
                first: input.u64()?,
                next: input.u64()?,
            });
        }
        let mark = IndexMark { file: input.text()?.to_owned(), count: input.u32()? };
        Some(Self {
            position,
            newest_store_ms,
            anchor: Some(anchor).filter(|anchor| anchor.physical_offset != u64::MAX),
            queues,
            index: Some(mark).filter(|mark| !mark.file.is_empty()),
            table: read_table(&mut input)?,
            timed: read_timed(&mut input)?,
        })
    }
}

fn read_file<T>(storage: &dyn Storage, take: impl FnOnce(&[u8]) -> Option<T>) -> Result<Option<T>> {
    let Some(file) = open_present(storage, PATH)? else { return Ok(None) };
    let length = file.len()?;
    if length <= to_u64(HEADER) {
        return Ok(None);
    }
    // The file is mapped because with a million pending transactions it is large, and it is read only once.
    Ok(file.map_read()?.bytes(0..length).and_then(|bytes| take(&bytes)))
}

fn write_table(out: &mut Writer, table: &Frozen, to_wall_ms: i64) {
    out.u64(table.lowest());
    let (base, count, bits) = table.decided.parts();
    out.u64(base);
    out.u64(count);
    out.u64(to_u64(table.decided.bytes()));
    bits.for_each(|piece| out.bytes(piece));
    let (op_end, runs) = table.ops.parts();
    let runs: Vec<_> = runs.collect();
    out.u64(op_end);
    out.u64(to_u64(runs.len()));
    for (first, highest) in runs {
        out.u64(first);
        out.u64(highest);
    }
    let groups = table.groups();
    out.u64(to_u64(groups.len()));
    for group in groups {
        out.text(group);
    }
    let mut pending: Vec<_> = table.iter().collect();
    pending.sort_unstable_by_key(|entry| entry.newest.queue_offset);
    out.u64(to_u64(pending.len()));
    out.reserve(pending.len() * PENDING_SIZE_MIN);
    for entry in pending {
        write_pending(out, entry, to_wall_ms);
    }
}

/// Writes one transaction. Nearly all have one copy, so the list of further copies is present only if there are some.
fn write_pending(out: &mut Writer, entry: &Pending, to_wall_ms: i64) {
    write_copy(out, entry.newest);
    out.u64(entry.identity);
    out.i64(entry.stored_ms + to_wall_ms);
    out.i32(entry.immunity_ms().and_then(|immunity| i32::try_from(immunity).ok()).unwrap_or(-1));
    out.u32(entry.size);
    out.u32(entry.group_number());
    out.u32(u32::from(entry.checks));
    let copies: Vec<_> = entry.copies().collect();
    let newest_sent = copies.last().is_some_and(|(_, sent)| *sent);
    out.u32(u32::from(newest_sent));
    out.u32(u32::try_from(copies.len() - 1).unwrap_or(u32::MAX));
    for (copy, sent) in copies.iter().take(copies.len() - 1) {
        write_copy(out, *copy);
        out.u32(u32::from(*sent));
    }
    let more = entry.more().filter(|_| !mutated(Mutant::NamedNotKept));
    let named: Vec<_> = more.into_iter().flat_map(|more| &more.named).collect();
    out.u32(u32::try_from(named.len()).unwrap_or(u32::MAX));
    for queue_offset in named {
        out.u64(*queue_offset);
    }
    let set_sizes = entry.more().map_or(&[][..], |more| &more.set_sizes);
    out.u32(u32::try_from(set_sizes.len()).unwrap_or(u32::MAX));
    for size in set_sizes {
        out.u32(*size);
    }
}

fn read_table(input: &mut Reader<'_>) -> Option<Table> {
    let lowest = input.u64()?;
    let (base, count, length) = (input.u64()?, input.u64()?, input.u64()?);
    let bits = input.take(to_usize(length))?;
    let mut table = Table::new(lowest);
    table.decided = DecidedHalves::from_parts(base, count, bits);
    let op_end = input.u64()?;
    let mut runs = Vec::new();
    for _ in 0..input.u64()? {
        runs.push((input.u64()?, input.u64()?));
    }
    table.ops = OpProgress::from_parts(op_end, runs);
    let groups = (0..input.u64()?).map(|_| input.text()).collect::<Option<Vec<_>>>()?;
    let pending = input.u64()?;
    // A count larger than the bytes can hold is damage, so no memory is reserved for it.
    table.reserve(to_usize(pending).min(input.left() / PENDING_SIZE_MIN));
    for _ in 0..pending {
        read_pending(input, &groups, &mut table)?;
    }
    Some(table)
}

fn read_timed(input: &mut Reader<'_>) -> Option<Waiting> {
    let mut timed = Waiting::default();
    for _ in 0..input.u64()? {
        timed.insert(Timed { due_ms: input.i64()?, physical_offset: input.u64()? });
    }
    Some(timed)
}

fn read_pending(input: &mut Reader<'_>, groups: &[&str], table: &mut Table) -> Option<()> {
    let copy = read_copy(input)?;
    let identity = input.u64()?;
    let stored_ms = input.i64()?;
    let immunity_ms = input.i32()?;
    let (size, group, checks) = (input.u32()?, input.u32()?, input.u32()?);
    let sent = input.u32()? != 0;
    let older = (0..input.u32()?).map(|_| Some((read_copy(input)?, input.u32()? != 0))).collect::<Option<Vec<_>>>()?;
    let named = (0..input.u32()?).map(|_| input.u64()).collect::<Option<Vec<_>>>()?;
    let set_sizes = (0..input.u32()?).map(|_| input.u32()).collect::<Option<Vec<_>>>()?;
    let half = NewHalf {
        copy,
        identity: Some(Identity(identity)).filter(|identity| identity.0 != 0),
        group: groups.get(to_usize(u64::from(group)))?,
        size,
        stored_ms,
        immunity_ms: Some(i64::from(immunity_ms)).filter(|immunity| *immunity >= 0),
        checks: u16::try_from(checks).ok()?,
        owner: 0,
        sent,
    };
    table.restore(&half, &older, &set_sizes, named);
    Some(())
}

fn write_copy(out: &mut Writer, copy: HalfCopy) {
    out.u64(copy.queue_offset);
    out.u64(copy.physical_offset);
}

fn read_copy(input: &mut Reader<'_>) -> Option<HalfCopy> {
    Some(HalfCopy { queue_offset: input.u64()?, physical_offset: input.u64()? })
}

#[cfg(test)]
mod tests;
