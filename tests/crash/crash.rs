//! Kills a process or cuts the power, then opens the store again, perhaps with another crash.
//!
//! In:     a machine at some moment.
//! Out:    a machine whose store is open, whose history is what survived; or the promise that is broken.
//! Always: after each recovery the whole store is checked (promises.rs), and what the files said before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use txstore::base::clock::{Clock, ManualClock};
use txstore::base::error::Error;
use txstore::base::names::{HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP};
use txstore::base::options::{FlushDiskType, StoreOptions};
use txstore::base::units::{QueueId, QueueOffset};
use txstore::index::offsets::ConsumerOffsets;
use txstore::storage::checkpoint::Checkpoint;
use txstore::storage::memory::{CrashKeep, FaultKind, Memory};
use txstore::storage::{OpenMode, Storage};
use txstore::store::Store;

use crate::ages::Ages;
use crate::broker_life::{Left, log_bytes};
use crate::history::{Acknowledged, Half, Held, History, broken, hold};
use crate::machine::{Machine, TIMEOUT_MS};
use crate::promises::{Expected, Found, FoundTransaction, check, progress_is_exact};
use crate::watched::all_shown;

/// What is known of a store in addition to its history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// The physical offset below which a broker wrote.
    pub broker_end: u64,
    /// The half-queue offset below which a broker finished all halves.
    pub broker_progress: u64,
}

impl Machine {
    /// Returns the machine after a crash: other files, no store, the same clients.
    #[must_use]
    pub fn crashed(mut self, memory: Memory) -> Self {
        let shadow = self.storage.shadow.lock().unwrap().clone();
        // Later calls of the old process have no effect.
        self.memory.fail_at(self.memory.calls() + 1, FaultKind::Stop, true);
        self.store = None;
        let mut next = Self::over(memory, shadow, self.clock, self.options, self.history);
        (next.peeks, next.ends, next.expired) = (self.peeks, self.ends, self.expired);
        next.has_sets = self.has_sets;
        (next.delivered, next.jumps, next.database) = (self.delivered, self.jumps, self.database);
        (next.delivered_timed, next.recalled) = (self.delivered_timed, self.recalled);
        (next.handed_over, next.delivered_by_brokers) = (self.handed_over, self.delivered_by_brokers);
        next
    }

    /// Returns the machine after a crash and a boot, which restarts the monotonic clock.
    #[must_use]
    pub fn rebooted(self, memory: Memory) -> Self {
        let clock = Arc::new(ManualClock::at(self.clock.wall()));
        Self { clock, ..self }.crashed(memory)
    }

    /// Returns the machine on the files that a broker left.
    #[must_use]
    pub fn continued(self, left: &Left) -> Self {
        let mut next = self.crashed(left.memory.clone());
        let (base, log) = log_bytes(&next.memory);
        let log = &log[..((left.end - base) as usize).min(log.len())];
        next.storage.shadow.lock().unwrap().continue_with(left.began, log, base);
        next.clock.advance(left.took_ms);
        next.a_broker_delivered(&left.delivered, left.end);
        let history = &mut next.history;
        for name in left.begun.iter().filter(|(_, begun)| **begun >= left.began).map(|(name, _)| name) {
            history.deleted.remove(name);
            history.gone_below.remove(name);
        }
        history.begun.clone_from(&left.begun);
        history.shown.extend(left.shown());
        // Counts of checks are in our snapshot, which need not fit what a broker left.
        history.halves.iter_mut().for_each(|half| half.checks_kept = 0);
        history.durable_end = left.durable_end;
        next
    }

    /// Returns the end of the log that must have survived a crash of this kind.
    pub fn must_end(&self, keep: CrashKeep) -> u64 {
        match (self.options.flush_disk_type, keep) {
            (FlushDiskType::Async, CrashKeep::PowerLoss) => self.history.durable_end,
            _ => u64::MAX,
        }
    }

    fn reader_of(&self, memory: &Memory) -> Held<Store> {
        let options = StoreOptions { read_only: true, ..self.options.clone() };
        Store::open_with(Arc::new(memory.clone()), Arc::clone(&self.clock) as _, options)
            .or_else(|error| refused(&error))
    }

    pub fn crc(&self) -> bool {
        self.options.append_prop_crc == Some(true)
    }

    /// Opens what a crash left, checks all of it, and continues from there.
    pub fn recover(&mut self, must_end: u64, origin: Origin, thorough: bool) -> Held<Found> {
        let raw = Raw::of(&self.memory);
        let store = match self.try_open() {
            Ok(store) => store,
            Err(error) => return refused(&error),
        };
        let shadow = self.storage.shadow.lock().unwrap().clone();
        let expected = Expected {
            history: &self.history,
            shadow: &shadow,
            must_end,
            broker_end: origin.broker_end,
            broker_progress: origin.broker_progress,
            raw_progress: Some(raw.progress),
            crc: self.crc(),
            is_handed_over: self.is_handed_over,
            thorough,
        };
        let found = check(&store, expected)?;
        if !found.is_blurred {
            progress_is_exact(&store)?;
            raw.checkpoint_is_not_ahead(&found)?;
            self.database.forget_below(store.stat().unwrap().min_physical_offset, &self.history.halves);
            self.database.agrees(&found, must_end, self.options.transaction_flush_disk_type)?;
            self.adopt(&store, &found, origin)?;
            self.a_broker_reads_what_was_handed_over(&store)?;
            self.ages = Ages::opened(&self.memory, &found.log, &self.options, self.clock.as_ref());
        }
        self.storage.shadow.lock().unwrap().settle(&found.log, found.end);
        self.store = Some(store);
        Ok(found)
    }

    /// Checks all of an open store.
    pub fn check_now(&mut self, store: &Store, origin: Origin) -> Held {
        let shadow = self.storage.shadow.lock().unwrap().clone();
        let expected = Expected {
            history: &self.history,
            shadow: &shadow,
            must_end: u64::MAX,
            broker_end: origin.broker_end,
            broker_progress: origin.broker_progress,
            raw_progress: None,
            crc: self.crc(),
            is_handed_over: self.is_handed_over,
            thorough: false,
        };
        let found = check(store, expected)?;
        self.database.agrees(&found, u64::MAX, self.options.transaction_flush_disk_type)
    }

    /// Checks L8: a reader opens what a crash left, finds the same, and changes nothing. D1: what it found stays.
    pub fn read_only_opening(&mut self, must_end: u64, origin: Origin) -> Held {
        let left = files(&self.memory, "");
        let store = match self.open_reader() {
            Ok(store) => store,
            // Nothing was ever made durable, so the store may not exist yet.
            Err(Error::ForeignStore { .. }) if self.history.durable_end == 0 => return Ok(()),
            Err(error) => return refused(&error),
        };
        let shadow = self.storage.shadow.lock().unwrap().clone();
        let expected = Expected {
            history: &self.history,
            shadow: &shadow,
            must_end,
            broker_end: origin.broker_end,
            broker_progress: origin.broker_progress,
            raw_progress: None,
            crc: self.crc(),
            is_handed_over: self.is_handed_over,
            thorough: true,
        };
        check(&store, expected)?;
        match all_shown(&store) {
            Ok(shown) => self.history.shown.extend(shown),
            Err(error) => return broken("D1", error.to_string()),
        }
        drop(store);
        hold(files(&self.memory, "") == left, "L8", || "a read-only opening wrote".into())
    }

    /// Continues the history from what was found. What is missing was promised to no client.
    fn adopt(&mut self, store: &Store, found: &Found, origin: Origin) -> Held {
        let mut next = History { durable_end: found.end, ..std::mem::take(&mut self.history) };
        for (number, message) in &mut next.messages {
            message.physical_offset = found.messages.get(number).copied();
            message.end = found.end;
        }
        next.messages.retain(|_, message| message.physical_offset.is_some());
        next.shown.retain(|shown| found.offsets.get(&shown.physical_offset) == Some(&shown.crc));
        next.answers.retain(|(copy, _)| found.transactions.iter().any(|one| one.copies.contains(copy)));
        next.adopt_delayed(found, self.clock.as_ref());
        next.adopt_timed(found);
        let before = std::mem::take(&mut next.halves);
        let now_ms = self.clock.monotonic_ms();
        next.halves = found.transactions.iter().map(|one| adopted(one, &before, found.end, now_ms, origin)).collect();
        for ((topic, queue, group), known) in &mut next.offsets {
            let (topic, group) = (crate::history::TOPICS[*topic], crate::history::READERS[*group]);
            let offset = store.consumer_offset(topic, group, QueueId(*queue)).unwrap().unwrap_or(0);
            *known = Acknowledged { last: offset, written: offset };
        }
        self.history = next;
        self.ages(store, found)
    }

    /// Checks T11, T13: checks continue from the number that was kept, ages from the store time; each half is due by
    /// its age.
    fn ages(&mut self, store: &Store, found: &Found) -> Held {
        let now_ms = self.clock.monotonic_ms();
        let wall_ms = self.clock.wall().0.max(found.newest_ms);
        let stored: BTreeMap<u64, (i64, u16)> = (found.transactions.iter())
            .map(|one| (one.copies.last().unwrap().queue_offset, (one.stored_ms, one.checks)))
            .collect();
        for facts in store.halves_waiting(None, usize::MAX).unwrap() {
            let jumped = self.history.jumped;
            let (stored_ms, own) = stored[&facts.newest.queue_offset];
            let Some(at) = self.history.half_at(facts.newest) else { return broken("T2", format!("{facts:?}")) };
            let half = &mut self.history.halves[at];
            let kept = half.checks_kept.max(own)..=half.checks.max(half.checks_most).max(own);
            hold(kept.contains(&facts.checks), "T11", || format!("{facts:?}, {kept:?} checks were sent: {half:?}"))?;
            let age_ms = (wall_ms - stored_ms).max(0);
            let fits = facts.stored_age_ms == age_ms || half.foreign || (jumped && facts.stored_age_ms >= 0);
            hold(fits, "T13", || format!("{facts:?} is {age_ms} ms old"))?;
            let due = facts.look_again_in_ms == facts.immunity_ms.unwrap_or(TIMEOUT_MS) - facts.age_ms;
            hold(due && !facts.running, "T11", || format!("{facts:?} is due otherwise"))?;
            half.stored_ms = now_ms - facts.stored_age_ms;
            half.due_ms = now_ms + facts.look_again_in_ms;
            (half.checks, half.running) = (facts.checks, false);
        }
        Ok(())
    }
}

fn adopted(one: &FoundTransaction, before: &[Half], end: u64, now_ms: i64, origin: Origin) -> Half {
    let known = one.known.map(|at| &before[at]);
    Half {
        id: one.id.clone(),
        group: one.group.clone(),
        topic: one.topic.clone(),
        body: one.body.clone(),
        copies: one.copies.clone(),
        end,
        asked: known.map(|half| half.asked.clone()).unwrap_or_default(),
        reported: one.outcome.map(|outcome| (outcome, end)),
        running: false,
        checks: known.map_or(one.checks, |half| half.checks),
        checks_most: known.map_or(one.checks, |half| half.checks_most.max(half.checks)),
        checks_kept: known.map_or(0, |half| half.checks_kept),
        immunity_ms: one.immunity_ms,
        stored_ms: now_ms,
        due_ms: now_ms,
        foreign: known.is_none_or(|half| half.foreign) && one.copies[0].physical_offset < origin.broker_end,
        part: one.part,
        time: one.time,
    }
}

/// Reports an error as a broken promise. L7, L8: nothing that a crash leaves is damage.
fn refused<T>(error: &Error) -> Held<T> {
    let promise = if matches!(error, Error::StoreCorrupt { .. }) { "L7" } else { "L8" };
    broken(promise, format!("what a crash left cannot be opened: {error:?}"))
}

/// The content of the small files before the store was opened.
struct Raw {
    progress: (u64, u64),
    checkpoint: Checkpoint,
}

impl Raw {
    fn of(memory: &Memory) -> Self {
        let offsets = ConsumerOffsets::load(memory).map(|(offsets, _)| offsets).unwrap_or_default();
        let stored = |topic| offsets.get(topic, TRANSACTION_GROUP, QueueId(0)).unwrap_or(0);
        let checkpoint = Checkpoint::load(memory).ok().flatten().unwrap_or_default();
        Self { progress: (stored(HALF_TOPIC), stored(OP_TOPIC)), checkpoint }
    }

    /// Checks L6: a checkpoint never names a time later than the newest durable record. A write of the checkpoint that
    /// stopped inside a field leaves a mixture of two times there; after a crash, broker and txstore take the least.
    fn checkpoint_is_not_ahead(&self, found: &Found) -> Held {
        let Checkpoint { physic_ms, logics_ms, index_ms, .. } = self.checkpoint;
        let later = [physic_ms, logics_ms, index_ms].into_iter().filter(|said| *said > found.newest_ms).count();
        hold(later <= 1, "L6", || {
            format!("the checkpoint says {:?}, the newest record is of {}", self.checkpoint, found.newest_ms)
        })
    }
}

/// Returns every file with its bytes.
pub fn files(memory: &Memory, dir: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in memory.list(dir).unwrap().unwrap_or_default() {
        let path = if dir.is_empty() { entry.name } else { format!("{dir}/{}", entry.name) };
        if entry.is_dir {
            all.extend(files(memory, &path));
        } else {
            let mut bytes = vec![0; entry.len as usize];
            memory.open(&path, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
            all.push((path, bytes));
        }
    }
    all
}

/// Returns the files that a clean close promises to have made durable.
fn handed_over(memory: &Memory) -> Vec<(String, Vec<u8>)> {
    let mut all = files(memory, "");
    // Backups of the small files and temporary files that a crash left are not promised, nor that statistics of removed
    // log files are gone: a reader believes none whose log file differs.
    let is_promised = |path: &str| {
        !path.contains(".tmp")
            && !path.starts_with("config/")
            && !path.starts_with("txstore/statistics/")
            && path != "lock"
    };
    all.retain(|(path, _)| is_promised(path));
    all
}

/// Checks L6, L8: a cleanly closed store opens unchanged, and rebuilds the same derived files from its log alone.
pub fn check_closed(machine: &Machine) -> Held {
    let closed = machine.memory.crash(0, CrashKeep::PageCache);
    let durable = machine.memory.lose_power(|_| 0);
    let (left, kept) = (handed_over(&closed), handed_over(&durable));
    hold(left == kept, "L2", || {
        let only = |some: &[(String, Vec<u8>)], others: &[(String, Vec<u8>)]| -> Vec<String> {
            some.iter().filter(|file| !others.contains(file)).map(|(path, _)| path.clone()).collect()
        };
        format!("a clean close left {:?}, of which are durable {:?}", only(&left, &kept), only(&kept, &left))
    })?;
    // Only a queue's file says that a broker deleted its topic and created it again.
    if !machine.history.begun.is_empty() {
        return Ok(());
    }
    // An opening takes back what was handed over, at the end of the log.
    let end = machine.reader_of(&closed)?.stat().unwrap().max_physical_offset;
    let closed = if machine.is_handed_over { opened_again(machine, &closed)? } else { closed };
    let rebuilt = machine.memory.crash(0, CrashKeep::PageCache);
    for path in ["consumequeue", "index"] {
        rebuilt.remove_dir(path).unwrap();
    }
    for path in ["txstore/snapshot", "checkpoint"] {
        rebuilt.unlink(path).unwrap();
    }
    let options = StoreOptions { ..machine.options.clone() };
    match Store::open_with(Arc::new(rebuilt.clone()), Arc::clone(&machine.clock) as _, options) {
        Ok(store) => {
            let (waiting, found) = (machine.history.timed_waiting(), store.timed_messages().unwrap());
            hold(found == waiting, "D3", || format!("{waiting} messages wait for their time, the log says {found}"))?;
            store.close().map_err(|error| crate::history::Violation { promise: "L6", what: error.to_string() })?;
        }
        Err(error) => return broken("L6", format!("without what is derived: {error:?}")),
    }
    if begins_later(&closed) || !machine.history.deleted.is_empty() {
        return same_queues(machine, end, &rebuilt, &closed);
    }
    let jumped = machine.history.jumped;
    let (theirs, ours) = (queue_files(&rebuilt, jumped), queue_files(&closed, jumped));
    let differs =
        || theirs.iter().zip(&ours).find(|(one, other)| one != other).map(|(one, other)| format!("{one:?} {other:?}"));
    hold(theirs == ours, "L6", || format!("built again, the queues differ: {:?}", differs()))
}

/// Returns the files of a closed store after it was opened and closed once more.
fn opened_again(machine: &Machine, closed: &Memory) -> Held<Memory> {
    let memory = closed.crash(0, CrashKeep::PageCache);
    let options = machine.options.clone();
    Store::open_with(Arc::new(memory.clone()), Arc::clone(&machine.clock) as _, options)
        .and_then(|store| store.close())
        .or_else(|error| refused(&error))?;
    Ok(memory)
}

/// Returns the queue files. If the wall clock `jumped`, without the times at which delayed messages are due: built again,
/// an entry has the store time, which is later if the clock was ahead before.
fn queue_files(memory: &Memory, jumped: bool) -> Vec<(String, Vec<u8>)> {
    let mut all = files(memory, "consumequeue");
    for (_, bytes) in all.iter_mut().filter(|(path, _)| jumped && path.contains(SCHEDULE_TOPIC)) {
        bytes.chunks_mut(20).for_each(|entry| entry.iter_mut().skip(12).for_each(|byte| *byte = 0));
    }
    all
}

/// Returns whether the front of the log was removed.
fn begins_later(memory: &Memory) -> bool {
    let names = memory.list("commitlog").unwrap().unwrap_or_default();
    let first = names.iter().find(|file| file.len > 1).and_then(|file| file.name.parse::<u64>().ok());
    first.is_some_and(|first| first > 0)
}

/// Checks L6, if the log's front was removed: a rebuilt queue has padding instead of the removed entries; all others
/// are equal. A queue of which the log had no record below `end`, where the opening appends, begins at 0 again.
fn same_queues(machine: &Machine, end: u64, rebuilt: &Memory, closed: &Memory) -> Held {
    let (theirs, mut ours) = (entries(machine, rebuilt)?, entries(machine, closed)?);
    for (first, _) in ours.values_mut().filter(|(_, offsets)| offsets.first().is_some_and(|offset| *offset >= end)) {
        *first = 0;
    }
    hold(theirs == ours, "L6", || format!("built again, the queues are {theirs:?}, not {ours:?}"))
}

/// Returns each queue that has messages: its name, its first queue offset, and its messages' physical offsets.
fn entries(machine: &Machine, memory: &Memory) -> Held<BTreeMap<String, (u64, Vec<u64>)>> {
    let store = machine.reader_of(memory)?;
    let mut found = BTreeMap::new();
    for (topic, queue_id, first, end) in store.queues().unwrap() {
        let (records, _) = store.read(&topic, queue_id, QueueOffset(first), usize::MAX, None).unwrap();
        if first < end {
            let offsets = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
            found.insert(format!("{topic}/{queue_id}"), (first, offsets));
        }
    }
    Ok(found)
}

/// Checks L7: a flipped byte below the durable end is damage, reported with its offset; nothing is cut.
pub fn check_damage(machine: &Machine, offsets: &[(u64, usize)], which: usize) -> Held {
    let Some((at, size)) = (!offsets.is_empty()).then(|| offsets[which % offsets.len()]) else { return Ok(()) };
    let damaged = machine.memory.crash(0, CrashKeep::PageCache);
    damaged.unlink("txstore/snapshot").unwrap();
    let file_size = machine.options.commit_log_file_size.unwrap();
    let (file, byte) = (at - at % file_size, at % file_size + (which % size) as u64);
    let path = format!("commitlog/{file:020}");
    let file = damaged.open(&path, OpenMode::Write).unwrap();
    let mut flipped = [0];
    file.read_at(&mut flipped, byte).unwrap();
    flipped[0] ^= 1 << (which % 8);
    file.write_at(&flipped, byte).unwrap();
    let logs = files(&damaged, "commitlog");
    let opened = Store::open_with(Arc::new(damaged.clone()), Arc::clone(&machine.clock) as _, machine.options.clone());
    let named = matches!(&opened, Err(Error::StoreCorrupt { offset, file, .. })
        if *offset == at % file_size && file.ends_with(&path));
    hold(named, "L7", || format!("byte {byte} of {path} flipped in the record at {at}: {:?}", opened.as_ref().err()))?;
    let left: Vec<_> = files(&damaged, "commitlog").into_iter().filter(|(path, _)| !path.contains('!')).collect();
    let before: Vec<_> = logs.into_iter().filter(|(path, _)| !path.contains('!')).collect();
    hold(left == before, "L7", || "an opening that was refused changed the log".into())
}

/// Checks L7: a durable record of a broker that became zeros, or other bytes, is damage, and nothing is cut. The
/// checkpoint tells which records were durable.
pub fn check_hole(machine: &Machine, left: &Left, which: usize, is_zero: bool) -> Held {
    let Some(hole) = left.durable_record(which) else { return Ok(()) };
    let damaged = left.memory.crash(0, CrashKeep::PageCache);
    let file_size = machine.options.commit_log_file_size.unwrap();
    let (file, position) = (hole.at - hole.at % file_size, hole.at % file_size);
    let path = format!("commitlog/{file:020}");
    let byte = if is_zero { 0 } else { 0xEE };
    damaged.open(&path, OpenMode::Write).unwrap().write_at(&vec![byte; hole.size as usize], position).unwrap();
    let read = |memory: &Memory| files(memory, "commitlog").into_iter().find(|(name, _)| *name == path);
    let before = read(&damaged);
    let opened = Store::open_with(Arc::new(damaged.clone()), Arc::clone(&machine.clock) as _, machine.options.clone());
    let named = matches!(&opened, Err(Error::StoreCorrupt { offset, file, .. })
        if *offset == position && file.ends_with(&path));
    hold(named, "L7", || {
        format!("a broker's record at {} became {byte:#x}: {:?}, {:?}", hole.at, opened.as_ref().err(), left.story)
    })?;
    hold(read(&damaged) == before, "L7", || "an opening that was refused changed the log".into())
}

/// Returns the physical offsets and sizes of all records, for `check_damage`.
pub fn offsets(store: &Store) -> Held<Vec<(u64, usize)>> {
    let log = crate::promises::read_log(store)?;
    Ok(log.iter().map(|record| (record.view().unwrap().physical_offset.0, record.bytes().len())).collect())
}
