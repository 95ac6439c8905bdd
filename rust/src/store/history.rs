//! Reads transactions from the log, one or all.
//!
//! In:     an id, or the whole log.
//! Out:    rows, built with the rule that recovery uses.
//! Always: also correct for stores that a broker used, with halves that it put back and with double commits.
//! Not here: checks of txstore, which leave no trace in the log.

use std::collections::BTreeSet;

use super::append::Sent;
use super::batch::Purpose;
use super::{Inner, Shared, Store};
use crate::base::error::{Error, Outcome, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TIMED_TOPIC};
use crate::base::units::{PhysicalOffset, QueueOffset};
use crate::log::commit_log::Scanner;
use crate::record::RecordView;
use crate::transaction::HalfFacts;
use crate::transaction::pending::Pending;
use crate::transaction::replay::{Keep, Replay};
use crate::transaction::row::{HalfRecord, HalfRecords, TransactionRow};
use crate::transaction::table::{Key, Table};

/// The maximum number of records to read for one id.
const RECORDS_MAX: usize = 4_096;
/// The maximum number of op messages to search for one that names a half.
const OPS_MAX: usize = 1 << 16;

/// The discarded copy of a transaction, and the end of the half queue before the search for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    physical_offset: PhysicalOffset,
    half_queue_end: u64,
}

impl Store {
    /// Returns all transactions of the log, in the order of their first halves. Reads the whole log.
    pub fn transactions(&self) -> Result<Vec<TransactionRow>> {
        self.shared.refresh()?;
        let shared = &self.shared;
        let mut table = Table::new(0);
        let mut replay = shared.replay_all();
        let settings = shared.configuration.settings.lock().clone();
        let from = PhysicalOffset(shared.log.segments.first());
        let end = shared.visible_end();
        let scan = Scanner::new(&shared.log, from, end).run(
            |offset| settings.verify(offset),
            |view, _| {
                replay.apply(&mut table, view);
                Ok(true)
            },
        )?;
        if let Some(why) = scan.damage_before(end) {
            return Err(shared.log.segment(PhysicalOffset(scan.end))?.corrupt(scan.end, why));
        }
        shared.rows(&table, &replay)
    }

    /// Returns the newest transaction with an id.
    pub fn transaction(&self, transaction_id: &str) -> Result<TransactionRow> {
        let shared = &self.shared;
        let (mut halves, mut real_topic) = (Vec::new(), None);
        self.query_each(HALF_TOPIC, transaction_id, |view, _| {
            real_topic.get_or_insert_with(|| HalfFacts::of(view).real_topic.to_owned());
            halves.push((view.physical_offset, view.queue_offset));
            halves.len() < RECORDS_MAX
        })?;
        let Some(real_topic) = real_topic else { return Err(unknown(transaction_id)) };
        // Keeps only the offsets, because the records may be large and many.
        let mut physical_offsets: BTreeSet<PhysicalOffset> =
            halves.iter().map(|(physical_offset, _)| *physical_offset).collect();
        // The final message of a transaction with a time is in the topic in which it waits.
        for topic in [DISCARD_TOPIC, TIMED_TOPIC, &real_topic] {
            let most = physical_offsets.len() + RECORDS_MAX;
            self.query_each(topic, transaction_id, |view, _| {
                physical_offsets.insert(view.physical_offset);
                physical_offsets.len() < most
            })?;
        }
        physical_offsets.extend(self.ops_of(&halves)?);
        let (mut table, mut replay) = (Table::new(0), shared.replay_all());
        for physical_offset in physical_offsets {
            match shared.log.read(physical_offset, shared.visible_end(), |view, _| replay.apply(&mut table, view)) {
                // Retention removed the record after it was found.
                Ok(()) | Err(Error::OffsetTooOld { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let rows = shared.rows(&table, &replay)?;
        let same = |row: &TransactionRow| row.transaction_id.as_deref() == Some(transaction_id);
        rows.into_iter().rfind(same).ok_or_else(|| unknown(transaction_id))
    }

    /// Stores a discarded transaction's half message again, as a new pending transaction.
    pub fn resume(&self, transaction_id: &str) -> Result<Sent> {
        self.shared.check_appends("resuming a transaction")?;
        loop {
            let discarded = self.look_for_discarded(transaction_id)?;
            if let Some(sent) = self.resume_looked_up(transaction_id, discarded)? {
                return Ok(sent);
            }
        }
    }

    /// Finds the discarded copy of a transaction.
    pub(super) fn look_for_discarded(&self, transaction_id: &str) -> Result<Parked> {
        let half_queue_end = self.shared.inner.lock().half_queue_end();
        let row = match self.transaction(transaction_id) {
            Err(Error::TransactionNotFound { .. }) => {
                // Retention has removed its half message, but not its discarded copy.
                let parked = self.query(DISCARD_TOPIC, transaction_id, 1)?;
                let newest = parked.first().ok_or_else(|| unknown(transaction_id))?;
                return Ok(Parked { physical_offset: newest.view()?.physical_offset, half_queue_end });
            }
            row => row?,
        };
        match (row.outcome, row.discards.last()) {
            (Some(Outcome::Discarded), Some(parked)) => {
                Ok(Parked { physical_offset: PhysicalOffset(*parked), half_queue_end })
            }
            (Some(outcome), _) => Err(Error::AlreadyEnded { transaction: transaction_id.to_owned(), outcome }),
            (None, _) => Err(Error::StillPending { transaction: transaction_id.to_owned() }),
        }
    }

    /// Stores the half message of a discarded copy again. Returns `None` if a half message of this id was stored after
    /// the search: another resume may have been faster, and its transaction may even have ended.
    pub(super) fn resume_looked_up(&self, transaction_id: &str, parked: Parked) -> Result<Option<Sent>> {
        let shared = &self.shared;
        let Parked { physical_offset, half_queue_end } = parked;
        let mut inner = shared.inner.lock();
        if !mutated(Mutant::ResumedTwice) && shared.has_half_since(&inner, half_queue_end, transaction_id)? {
            return Ok(None);
        }
        let discarded = shared.read_copy(physical_offset)?;
        let sent = shared.resume_discarded(&mut inner, discarded)?;
        shared.unacknowledged(inner, Purpose::Resume, sent).acknowledged().map(Some)
    }

    /// Returns the op messages after the oldest of `halves` that name one of them.
    fn ops_of(&self, halves: &[(PhysicalOffset, QueueOffset)]) -> Result<Vec<PhysicalOffset>> {
        let mut wanted: Vec<u64> = halves.iter().map(|(_, queue_offset)| queue_offset.0).collect();
        let oldest = halves.iter().map(|(physical_offset, _)| physical_offset.0).min().unwrap_or(u64::MAX);
        let mut found = Vec::new();
        let queue = crate::transaction::HALF_QUEUE;
        let (first, end) = self.queue_range(OP_TOPIC, queue)?;
        let mut at = self.first_op_after(first, end, oldest)?;
        let mut looked = 0;
        while at < end && looked < OPS_MAX && !wanted.is_empty() {
            let (ops, next) = self.read(OP_TOPIC, queue, QueueOffset(at), 256, None)?;
            if ops.is_empty() {
                break;
            }
            looked += ops.len();
            at = next.0;
            for op in ops {
                let view = op.view()?;
                let named: Vec<u64> = crate::transaction::op::parse_op_body(view.body).collect();
                if wanted.iter().any(|half| named.contains(half)) {
                    wanted.retain(|half| !named.contains(half));
                    found.push(view.physical_offset);
                }
            }
        }
        Ok(found)
    }

    /// Returns the queue offset of the first op message after a physical offset.
    fn first_op_after(&self, first: u64, end: u64, physical_offset: u64) -> Result<u64> {
        let (mut low, mut high) = (first, end);
        while low < high {
            let middle = low + (high - low) / 2;
            let (ops, _) = self.read(OP_TOPIC, crate::transaction::HALF_QUEUE, QueueOffset(middle), 1, None)?;
            let is_after = match ops.first() {
                Some(op) => op.view()?.physical_offset.0 > physical_offset,
                None => true,
            };
            if is_after { high = middle } else { low = middle + 1 }
        }
        Ok(low)
    }
}

impl Shared {
    /// Returns whether the half queue has a half message of this id at or after a queue offset.
    fn has_half_since(&self, inner: &Inner, from: u64, transaction_id: &str) -> Result<bool> {
        let queue = inner.half_queue()?;
        for at in from..queue.next() {
            let Some(entry) = self.entry_at(queue, at)? else { continue };
            let same = |view: &RecordView<'_>, _: &[u8]| view.unique_id() == Some(transaction_id);
            if self.log.read(entry.physical_offset, self.log.appended(), same)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn replay_all(&self) -> Replay {
        // Only a broker's progress proves that a half without an op or a final message is finished. If its file is
        // lost, the table has it, except for what a crash cut: a reader's table takes that as rolled back before an op says
        // so.
        let ours = self.configuration.settings.lock().is_all_ours(self.log.segments.first(), self.log.appended());
        let mut inner = self.inner.lock();
        let half_end = inner.half_queue_end();
        let known_end = inner.derived.replay.cut_set_from().unwrap_or(half_end).min(half_end);
        let progress = inner.derived.stored_half_progress.max(inner.derived.table.half_progress(known_end));
        Replay::new(Keep::All, self.log.segments.first(), if ours { 0 } else { progress })
    }

    fn rows(&self, table: &Table, replay: &Replay) -> Result<Vec<TransactionRow>> {
        rows(table, replay, |physical_offset| {
            self.log.read(physical_offset, self.log.appended(), |view, _| HalfRecord::of(view))
        })
    }
}

/// Returns the rows of a replay with `Keep::All`, in the order of their first halves. `read` reads a half's record.
fn rows(
    table: &Table,
    replay: &Replay,
    mut read: impl FnMut(PhysicalOffset) -> Result<HalfRecord>,
) -> Result<Vec<TransactionRow>> {
    let mut entries: Vec<(u64, Key)> = table.iter().map(|(key, entry)| (entry.first_queue_offset(), key)).collect();
    entries.sort_unstable();
    let entry = |(_, key): (u64, Key)| table.get(key).map(|entry| (key, entry));
    let row = |(key, entry): (Key, &Pending)| {
        let mut halves: Option<HalfRecords> = None;
        for (copy, _) in entry.copies() {
            let record = read(PhysicalOffset(copy.physical_offset))?;
            match &mut halves {
                Some(halves) => halves.add(&record),
                None => halves = Some(HalfRecords::begin(record)),
            }
        }
        let is_passed = replay.is_below_progress(table, key);
        Ok(halves.map(|halves| TransactionRow::of(halves, entry.clone(), is_passed)))
    };
    entries.into_iter().filter_map(entry).map(row).filter_map(Result::transpose).collect()
}

fn unknown(transaction_id: &str) -> Error {
    Error::TransactionNotFound {
        what: format!("no transaction {transaction_id:?} is in the store\nhint: `txstore tx list --all` lists all"),
    }
}
