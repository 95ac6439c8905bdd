//! Builds the view of transactions: one row for each, folded from all its records.
//!
//! In:     the whole log.
//! Out:    rows, each when its transaction has ended; at the end those that are still open.
//! Always: uses the rule that recovery uses (docs/internals/transactions.md), also where a broker put halves back or
//!         committed twice. Memory holds the open transactions, and those that get records after they have ended: a
//!         first pass over the log finds these, and the second pass keeps them until its end. So the rows are those of
//!         a fold that holds every transaction.
//! Not here: the rule.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::Log;
use super::batch::Batch;
use super::cells::Cells;
use super::options::HalfMissing;
use super::schema::Column;
use super::survey::{Late, Survey};
use crate::base::error::{Error, Outcome, Result};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC};
use crate::record::RecordView;
use crate::recovery::log_view::Stop;
use crate::transaction::replay::{Keep, Replay, Unmatched};
use crate::transaction::row::{HalfRecord, HalfRecords, TransactionRow};
use crate::transaction::table::{Key, Table};

/// After this many bytes without enough rows the caller regains control.
const SILENT_BYTES_MAX: u64 = 1 << 30;

/// The transactions of a log, in two passes.
#[derive(Debug)]
pub(super) struct Folded {
    /// The first pass; `None` after it.
    survey: Option<Survey>,
    fold: Fold,
    /// The next record of the current pass.
    at: u64,
    /// Where both passes begin and end.
    range: Range<u64>,
    /// The open transactions that are not shown yet, once the second pass is over.
    rest: Option<VecDeque<Key>>,
}

impl Folded {
    /// Begins with the log's first record.
    pub(super) fn of(log: &mut Log, half_missing: HalfMissing) -> Result<Self> {
        // In this order, so that everything that a broker's progress has passed is before the end.
        let (half_progress, end) = log.steady(|log| Ok((log.half_progress()?, log.visible_end(None)?)))?;
        let replay = Replay::new(Keep::UntilTaken, log.first(), half_progress);
        Ok(Self {
            survey: Some(Survey::default()),
            fold: Fold::new(replay, half_missing),
            at: log.first(),
            range: log.first()..end,
            rest: None,
        })
    }

    /// Appends at most `most` further rows. Returns whether there may be more.
    pub(super) fn append(&mut self, log: &mut Log, batch: &mut Batch, most: usize) -> Result<bool> {
        if self.survey.is_some() {
            self.read(log, most)?;
        }
        if self.survey.is_none() && self.rest.is_none() {
            self.read(log, most)?;
        }
        while self.fold.rows.len() < most {
            let Some(key) = self.rest.as_mut().and_then(VecDeque::pop_front) else { break };
            self.fold.show(key);
        }
        let count = self.fold.rows.len().min(most);
        let rows: Vec<Row> = self.fold.rows.drain(..count).collect();
        batch.append_by(rows.len(), |column, cells| append(column, cells, &rows));
        let is_over = self.fold.rows.is_empty() && self.rest.as_ref().is_some_and(VecDeque::is_empty);
        Ok(!is_over)
    }

    /// Returns the number of transactions in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.survey.as_ref().map_or(0, Survey::held) + self.fold.table.len()
    }

    /// Reads records of the current pass.
    fn read(&mut self, log: &mut Log, most: usize) -> Result<()> {
        let (begin, fold, survey) = (self.at, &mut self.fold, &mut self.survey);
        let walk = log.walk(begin, self.range.end, |view| {
            if view.physical_offset.0 - begin >= SILENT_BYTES_MAX || fold.rows.len() >= most {
                return false;
            }
            match &mut *survey {
                Some(survey) => survey.apply(view),
                None => fold.apply(view),
            }
            true
        })?;
        if !log.is_still()? {
            // The writer opened the store again. What was visible before is in the log as it was, if it is there.
            log.refresh()?;
            if log.visible_end(None)? < self.range.end {
                return Err(Error::StoreClosed);
            }
        }
        self.at = walk.at;
        match walk.stop {
            Stop::Visitor => {}
            Stop::NoRecord(why) => return Err(log.corrupt(walk.at, &why)),
            Stop::Limit => match self.survey.take() {
                Some(survey) => (self.at, self.fold.late) = (self.range.start, survey.finish()),
                None => self.rest = Some(self.fold.finish()),
            },
        }
        Ok(())
    }
}

/// The second pass: makes the rows.
#[derive(Debug)]
struct Fold {
    table: Table,
    replay: Replay,
    late: Late,
    halves: HashMap<Key, HalfRecords>,
    missing: Option<Missing>,
    rows: VecDeque<Row>,
}

impl Fold {
    fn new(replay: Replay, half_missing: HalfMissing) -> Self {
        Self {
            table: Table::new(0),
            replay,
            late: Late::default(),
            halves: HashMap::new(),
            missing: (half_missing == HalfMissing::Shown).then(Missing::default),
            rows: VecDeque::new(),
        }
    }

    fn apply(&mut self, view: &RecordView<'_>) {
        self.replay.apply(&mut self.table, view);
        if view.topic == HALF_TOPIC {
            self.note_half(view);
        }
        while let Some(what) = self.replay.next_unmatched() {
            if let Some(missing) = &mut self.missing {
                missing.note(what, view);
            }
        }
        while let Some(key) = self.replay.next_ended() {
            if self.table.get(key).is_some_and(|entry| !self.late.names(entry)) {
                self.show(key);
            }
        }
    }

    /// Notes what the row takes from a half, unless the half was ignored.
    fn note_half(&mut self, view: &RecordView<'_>) {
        let queue_offset = view.queue_offset.0;
        let Some(key) = self.table.find(queue_offset) else { return };
        if !self.table.get(key).is_some_and(|entry| entry.has_copy_at(view.physical_offset.0)) {
            return;
        }
        if let Some(missing) = &mut self.missing {
            missing.ops.remove(&queue_offset);
        }
        let record = HalfRecord::of(view);
        match self.halves.entry(key) {
            Entry::Occupied(mut halves) => halves.get_mut().add(&record),
            Entry::Vacant(none) => {
                none.insert(HalfRecords::begin(record));
            }
        }
    }

    /// Takes a transaction and makes its row.
    fn show(&mut self, key: Key) {
        let is_passed = self.replay.is_below_progress(&self.table, key);
        let (entry, halves) = (self.replay.take(&mut self.table, key), self.halves.remove(&key));
        if let (Some(entry), Some(halves)) = (entry, halves) {
            self.rows.push_back(Row::Transaction(TransactionRow::of(halves, entry, is_passed)));
        }
    }

    /// Ends the pass: returns the transactions that are still in the table, in the order of their first halves.
    fn finish(&mut self) -> VecDeque<Key> {
        let missing = self.missing.take().unwrap_or_default();
        self.rows.extend(missing.ends.into_values().chain(missing.ops.into_values()).map(Row::HalfMissing));
        let mut open: Vec<(u64, Key)> =
            self.table.iter().map(|(key, entry)| (entry.first_queue_offset(), key)).collect();
        open.sort_unstable();
        open.into_iter().map(|(_, key)| key).collect()
    }
}

/// Records whose half is not in the log.
#[derive(Debug, Default)]
struct Missing {
    /// Finals and discarded copies, by identity, or by the half's physical offset if they have none.
    ends: BTreeMap<(Option<u64>, u64), Orphan>,
    /// Ops, by the half queue offset that they name.
    ops: BTreeMap<u64, Orphan>,
}

impl Missing {
    fn note(&mut self, what: Unmatched, view: &RecordView<'_>) {
        let at = view.physical_offset.0;
        let orphan = match what {
            Unmatched::Op(half_queue_offset) => {
                let orphan = self.ops.entry(half_queue_offset).or_default();
                orphan.half_queue_offset = Some(half_queue_offset);
                if orphan.ops.last() != Some(&at) {
                    orphan.ops.push(at);
                }
                orphan
            }
            Unmatched::End(identity, half) => {
                let key = identity.map_or((None, half), |identity| (Some(identity.0), 0));
                let orphan = self.ends.entry(key).or_default();
                let is_final = view.topic != DISCARD_TOPIC;
                if is_final { &mut orphan.finals } else { &mut orphan.discards }.push(at);
                orphan
            }
        };
        orphan.ended_ms.get_or_insert(view.store_timestamp.0);
    }
}

/// An op, or the finals and discarded copies of one identity, without a half.
#[derive(Debug, Default)]
struct Orphan {
    half_queue_offset: Option<u64>,
    finals: Vec<u64>,
    discards: Vec<u64>,
    ops: Vec<u64>,
    ended_ms: Option<i64>,
}

/// A row of the view.
#[derive(Debug)]
enum Row {
    Transaction(TransactionRow),
    HalfMissing(Orphan),
}

impl Row {
    const fn transaction(&self) -> Option<&TransactionRow> {
        match self {
            Self::Transaction(row) => Some(row),
            Self::HalfMissing(_) => None,
        }
    }

    fn text(&self, column: Column) -> Option<&str> {
        let row = self.transaction();
        match column {
            Column::TransactionId => row?.transaction_id.as_deref(),
            Column::ProducerGroup => row?.group.as_deref(),
            Column::RealTopic => Some(row?.topic.as_str()).filter(|topic| !topic.is_empty()),
            _ => Some(row.map_or("half_missing", state)),
        }
    }

    fn milliseconds(&self, column: Column) -> Option<i64> {
        match (self, column) {
            (Self::HalfMissing(orphan), Column::EndedTimestamp) => orphan.ended_ms,
            (Self::HalfMissing(_), _) => None,
            (Self::Transaction(row), Column::PreparedTimestamp) => Some(row.prepared_ms),
            (Self::Transaction(row), Column::FirstCheckTimestamp) => row.first_check_ms,
            (Self::Transaction(row), _) => row.ended_ms,
        }
    }

    /// Appends the offsets of a column.
    fn offsets(&self, column: Column, mut push: impl FnMut(u64)) {
        let (finals, discards, ops) = match self {
            Self::Transaction(row) => (&row.finals, &row.discards, &row.ops),
            Self::HalfMissing(orphan) => (&orphan.finals, &orphan.discards, &orphan.ops),
        };
        match (column, self) {
            (Column::HalfQueueOffsets, Self::Transaction(row)) => {
                row.halves.iter().for_each(|half| push(half.queue_offset));
            }
            (Column::HalfQueueOffsets, Self::HalfMissing(orphan)) => {
                orphan.half_queue_offset.into_iter().for_each(push);
            }
            (Column::HalfPhysicalOffsets, Self::Transaction(row)) => {
                row.halves.iter().for_each(|half| push(half.physical_offset));
            }
            (Column::HalfPhysicalOffsets, Self::HalfMissing(_)) => {}
            (Column::FinalPhysicalOffsets, _) => finals.iter().copied().for_each(push),
            (Column::DiscardedPhysicalOffsets, _) => discards.iter().copied().for_each(push),
            _ => ops.iter().copied().for_each(push),
        }
    }
}

fn append(column: Column, cells: &mut Cells, rows: &[Row]) {
    match cells {
        Cells::Text(texts) => rows.iter().for_each(|row| texts.push_or_null(row.text(column).map(str::as_bytes))),
        Cells::Int(numbers) if column == Column::CheckTimes => {
            let checks = |row: &Row| row.transaction().map_or(0, |row| i32::from(row.checks));
            numbers.extend(rows.iter().map(checks));
        }
        Cells::Int(numbers) => {
            for row in rows {
                numbers.push_or_null(row.transaction().map(|row| row.queue_id.0));
            }
        }
        Cells::Time(numbers) => {
            for row in rows {
                numbers.push_or_null(row.milliseconds(column).map(|ms| ms.saturating_mul(1_000)));
            }
        }
        Cells::Longs(ends, numbers) => {
            for row in rows {
                row.offsets(column, |offset| numbers.push(offset.cast_signed()));
                ends.push(numbers.len());
            }
        }
        _ => {}
    }
}

fn state(row: &TransactionRow) -> &'static str {
    match row.outcome {
        None => "pending",
        Some(Outcome::Committed) => "committed",
        Some(Outcome::RolledBack) => "rolled_back",
        Some(Outcome::Discarded) => "discarded",
        Some(Outcome::FinishedUnknown) => "finished_unknown",
    }
}
