//! Builds the view of transactions: one row for each, folded from all its records.
//!
//! In:     the whole log.
//! Out:    rows.
//! Always: uses the rule that recovery uses (docs/transactions.md), also where a broker put halves back or committed
//!         twice. Memory holds every transaction of the log, so their number is limited.
//! Not here: the rule.

use std::vec::IntoIter;

use super::Log;
use super::batch::Batch;
use super::cells::Cells;
use super::options::invalid;
use super::schema::Column;
use crate::base::error::{Outcome, Result};
use crate::base::names::HALF_TOPIC;
use crate::store::{HalfRecord, TransactionRow, rows};
use crate::transaction::replay::{Keep, Replay};
use crate::transaction::table::Table;

/// Maximum number of half messages in the log. Folding takes about 1.4 KiB each, so a task stays well below 512 MiB.
pub(super) const HALVES_MAX: u64 = 200_000;

/// Transactions that are not in a batch yet.
#[derive(Debug)]
pub(super) struct Folded {
    rows: IntoIter<TransactionRow>,
}

impl Folded {
    /// Reads a log of at most `halves_max` half messages.
    pub(super) fn of(log: &Log, halves_max: u64) -> Result<Self> {
        let mut table = Table::new(0);
        let mut replay = Replay::new(Keep::All, log.first(), log.half_progress()?);
        let mut halves = 0;
        log.each(|view| {
            halves += u64::from(view.topic == HALF_TOPIC);
            if halves <= halves_max {
                replay.apply(&mut table, view);
            }
        })?;
        if halves > halves_max {
            let what = format!("the log has {halves} half messages; this view can hold at most {halves_max} in memory");
            let hint = "hint: spark/transaction_report.py reports on a log of any size; or read the view traces";
            return Err(invalid("view", format!("{what}\n{hint}")));
        }
        let mut near = None;
        let rows = rows(&table, &replay, |offset| log.read(offset, &mut near, HalfRecord::of))?;
        Ok(Self { rows: rows.into_iter() })
    }

    /// Appends at most `most` further rows.
    pub(super) fn append(&mut self, batch: &mut Batch, most: usize) {
        let rows: Vec<TransactionRow> = self.rows.by_ref().take(most).collect();
        batch.append_by(rows.len(), |column, cells| append(column, cells, &rows));
    }
}

fn append(column: Column, cells: &mut Cells, rows: &[TransactionRow]) {
    match cells {
        Cells::Text(texts) => {
            for row in rows {
                texts.push_or_null(match column {
                    Column::TransactionId => row.transaction_id.as_deref().map(str::as_bytes),
                    Column::ProducerGroup => row.group.as_deref().map(str::as_bytes),
                    Column::RealTopic => Some(row.topic.as_bytes()).filter(|topic| !topic.is_empty()),
                    _ => Some(state(row).as_bytes()),
                });
            }
        }
        Cells::Int(numbers) => {
            for row in rows {
                let value = if column == Column::CheckTimes { i32::from(row.checks) } else { row.queue_id.0 };
                numbers.push_or_null(Some(value));
            }
        }
        Cells::Time(numbers) => {
            for row in rows {
                let milliseconds = match column {
                    Column::PreparedTimestamp => Some(row.prepared_ms),
                    Column::FirstCheckTimestamp => row.first_check_ms,
                    _ => row.ended_ms,
                };
                numbers.push_or_null(milliseconds.map(|milliseconds| milliseconds.saturating_mul(1_000)));
            }
        }
        Cells::Longs(ends, numbers) => {
            for row in rows {
                let offsets: Vec<u64> = match column {
                    Column::HalfQueueOffsets => row.halves.iter().map(|half| half.queue_offset).collect(),
                    Column::HalfPhysicalOffsets => row.halves.iter().map(|half| half.physical_offset).collect(),
                    Column::FinalPhysicalOffsets => row.finals.clone(),
                    Column::DiscardedPhysicalOffsets => row.discards.clone(),
                    _ => row.ops.clone(),
                };
                for offset in offsets {
                    numbers.push(offset.cast_signed());
                }
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
