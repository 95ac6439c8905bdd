//! Keeps how often messages were handed out to groups, so that the end of the process does not forget it.
//!
//! In:     what a group's queue hands out; at the first use, the files of earlier runs.
//! Out:    `txstore/deliveries/NUMBER`; the counts of earlier runs.
//! Always: a note is in the page cache when its call returns, and nothing is synced. A note that is torn or damaged
//!         ends its file, and a missing file is an empty one: then messages are counted from 1 again, and none is lost.
//!         A file is removed when a newer one has all that it says. Its length is bounded by what is in flight.
//!
//! ```text
//! 0        4                    20    24            ..           ..
//! | length | magic, version, crc | kind | topic, name | queue id: 4 | runs …    a note; `length` bytes follow it
//! | first queue offset: 8 | messages: 4 | deliveries: 4 |                       a run
//! ```

use std::collections::BTreeMap;

use crate::base::error::Result;
use crate::base::units::{QueueId, to_u64, to_usize};
use crate::storage::sealed::{Reader, Seal, Writer};
use crate::storage::{File, OpenMode, Storage};

/// Where the files are.
pub const DIRECTORY: &str = "txstore/deliveries";
const SEAL: Seal = Seal { magic: *b"TXDELIV\0", version: 1 };
/// The most counts that are read. All queues of a server with the usual memory have fewer in flight.
const COUNTS_MAX: usize = 1 << 20;
/// The most bytes of a file that are read.
const READ_MAX: u64 = 128 << 20;
/// A file of fewer bytes is never replaced.
const LONG: u64 = 1 << 20;
/// A file is replaced when it is so many times as long as it was with the counts of that time alone.
const GROWTH: u64 = 4;

/// The kinds of notes: of some messages; of all messages of the queue that count; the same of a queue in which the group
/// had no offset when the file began.
const SOME: u32 = 0;
const ALL: u32 = 1;
const UNKNOWN: u32 = 2;

/// How often messages were delivered from a queue, by queue offset.
pub type Counts = BTreeMap<u64, u32>;

/// A group's queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumed {
    /// The topic.
    pub topic: String,
    /// The name under which the group's offset is stored.
    pub name: String,
    /// The queue.
    pub queue_id: QueueId,
}

/// How often messages were delivered. See the module.
#[derive(Debug, Default)]
pub struct Deliveries {
    /// What earlier runs noted, of queues that nobody has read in this one.
    earlier: BTreeMap<Consumed, Earlier>,
    file: Option<Current>,
    /// The number of the newest file.
    newest: u64,
    /// The numbers of files that are not replaced yet.
    older: Vec<u64>,
}

/// What earlier runs noted of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Earlier {
    counts: Counts,
    /// The group has no offset in the queue. Either it is deleted, or it was killed with the server before its first
    /// offset was stored, and will be back.
    is_unknown: bool,
}

/// The file that is written.
#[derive(Debug)]
struct Current {
    file: Box<dyn File>,
    number: u64,
    length: u64,
    /// Its length when it had replaced the one before.
    began: u64,
}

impl Deliveries {
    /// Reads the files. Leaves out what groups have acknowledged; `committed`: a queue's lowest unacknowledged offset.
    /// What a group without an offset had is kept for one run.
    pub fn load(storage: &dyn Storage, committed: impl Fn(&Consumed) -> Option<u64>) -> Result<Self> {
        let names = storage.list(DIRECTORY)?.unwrap_or_default();
        let mut older: Vec<u64> = names.iter().filter_map(|entry| entry.name.parse().ok()).collect();
        older.sort_unstable();
        let mut earlier = BTreeMap::new();
        for number in &older {
            // One that cannot be read is like one that is missing.
            if let Ok(bytes) = read(storage, &path(*number)) {
                read_notes(&bytes, &mut earlier);
            }
        }
        earlier.retain(|queue, earlier: &mut Earlier| {
            let known = committed(queue);
            let is_back = known.is_some() || !earlier.is_unknown;
            earlier.is_unknown = known.is_none();
            earlier.counts = earlier.counts.split_off(&known.unwrap_or(0));
            is_back && !earlier.counts.is_empty()
        });
        let newest = older.last().copied().unwrap_or(0);
        Ok(Self { earlier, file: None, newest, older })
    }

    /// Takes what earlier runs noted of a queue.
    pub fn take(&mut self, queue: &Consumed) -> Counts {
        self.earlier.remove(queue).unwrap_or_default().counts
    }

    /// Notes how often messages of a queue were delivered. `all`: no other message of the queue counts any more.
    pub fn note(&mut self, storage: &dyn Storage, queue: &Consumed, all: bool, counts: &[(u64, u32)]) -> Result<()> {
        if self.file.is_none() {
            if self.older.is_empty() && counts.is_empty() {
                return Ok(());
            }
            self.begin(storage)?;
        }
        self.append(&to_bytes(queue, if all { ALL } else { SOME }, counts))
    }

    /// Begins a new file, if most of the present one is out of date. Returns whether there are files to replace: then
    /// the caller notes all counts of all queues whose counts were taken, and ends the replacement.
    pub fn replace(&mut self, storage: &dyn Storage) -> Result<bool> {
        let long = |current: &Current| current.length >= LONG.max(current.began.saturating_mul(GROWTH));
        if self.older.is_empty() && self.file.as_ref().is_some_and(long) {
            self.begin(storage)?;
        }
        Ok(self.file.is_some() && !self.older.is_empty())
    }

    /// Removes the older files.
    pub fn end(&mut self, storage: &dyn Storage) -> Result<()> {
        if let Some(current) = &mut self.file {
            current.began = current.length;
        }
        let mut done = Ok(());
        for number in self.older.drain(..) {
            // One that cannot be removed is read again, before the newer ones.
            done = done.and(storage.unlink(&path(number)));
        }
        done
    }

    /// Begins a new file with what earlier runs noted and nobody has taken.
    fn begin(&mut self, storage: &dyn Storage) -> Result<()> {
        let notes = self.earlier.iter().flat_map(|(queue, earlier)| {
            let counts: Vec<_> = earlier.counts.iter().map(|(at, deliveries)| (*at, *deliveries)).collect();
            to_bytes(queue, if earlier.is_unknown { UNKNOWN } else { ALL }, &counts)
        });
        let notes: Vec<u8> = notes.collect();
        storage.create_dir_unsynced(DIRECTORY)?;
        let number = self.newest.saturating_add(1);
        let file = storage.open(&path(number), OpenMode::Create)?;
        if let Err(error) = file.set_len(0).and_then(|()| file.write_at(&notes, 0)) {
            storage.unlink(&path(number))?;
            return Err(error);
        }
        let before = self.file.replace(Current { file, number, length: to_u64(notes.len()), began: 0 });
        self.older.extend(before.map(|before| before.number));
        self.newest = number;
        Ok(())
    }

    /// A failed write is overwritten by the next one.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(current) = &mut self.file {
            current.file.write_at(bytes, current.length)?;
            current.length += to_u64(bytes.len());
        }
        Ok(())
    }
}

fn path(number: u64) -> String {
    format!("{DIRECTORY}/{number:020}")
}

fn read(storage: &dyn Storage, path: &str) -> Result<Vec<u8>> {
    let file = storage.open(path, OpenMode::Read)?;
    let mut bytes = vec![0; to_usize(file.len()?.min(READ_MAX))];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn to_bytes(queue: &Consumed, kind: u32, counts: &[(u64, u32)]) -> Vec<u8> {
    let mut note = Writer::new();
    note.u32(kind);
    note.text(&queue.topic);
    note.text(&queue.name);
    note.i32(queue.queue_id.0);
    for (first, messages, deliveries) in runs(counts) {
        note.u64(first);
        note.u32(messages);
        note.u32(deliveries);
    }
    let note = note.seal(SEAL);
    let length = u32::try_from(note.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &note].concat()
}

/// Joins messages that follow each other and were delivered as often: first, messages, deliveries.
fn runs(counts: &[(u64, u32)]) -> Vec<(u64, u32, u32)> {
    let mut runs: Vec<(u64, u32, u32)> = Vec::new();
    for (at, deliveries) in counts {
        match runs.last_mut() {
            Some((first, messages, same))
                if same == deliveries && first.checked_add(u64::from(*messages)) == Some(*at) =>
            {
                *messages += 1;
            }
            _ => runs.push((*at, 1, *deliveries)),
        }
    }
    runs
}

/// Reads notes up to the first one that is torn or damaged.
fn read_notes(mut bytes: &[u8], into: &mut BTreeMap<Consumed, Earlier>) {
    let mut left = COUNTS_MAX.saturating_sub(into.values().map(|earlier| earlier.counts.len()).sum());
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let Some((note, rest)) = rest.split_at_checked(to_usize(u64::from(u32::from_le_bytes(*length)))) else {
            return;
        };
        if read_note(note, into, &mut left).is_none() {
            return;
        }
        bytes = rest;
    }
}

fn read_note(bytes: &[u8], into: &mut BTreeMap<Consumed, Earlier>, left: &mut usize) -> Option<()> {
    let mut note = Reader::open(SEAL, bytes)?;
    let kind = note.u32()?;
    let (topic, name) = (note.text()?.to_owned(), note.text()?.to_owned());
    let Earlier { counts, is_unknown } =
        into.entry(Consumed { topic, name, queue_id: QueueId(note.i32()?) }).or_default();
    *is_unknown = kind == UNKNOWN;
    if kind != SOME {
        *left += counts.len();
        counts.clear();
    }
    while note.left() > 0 {
        let (first, messages, deliveries) = (note.u64()?, note.u32()?, note.u32()?);
        for at in (first..first.checked_add(u64::from(messages))?).take(*left) {
            *left -= usize::from(counts.insert(at, deliveries).is_none());
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
