//! Folded: the view of transactions, one row for each, from all its records.
//!
//! In: the whole log. Out: rows. Always: by the one rule that recovery uses (docs/transactions.md), also where a broker
//! put halves back or committed twice. Memory: every transaction of the log, some hundred bytes each. Not here: the
//! rule.

use std::vec::IntoIter;

use super::batch::Batch;
use super::cells::Cells;
use super::log::Log;
use super::options::ScanOptions;
use super::scan::Counts;
use super::schema::Column;
use crate::error::{Outcome, Result};
use crate::half::replay::{Keep, Replay};
use crate::half::table::Table;
use crate::store::{HalfRecord, TransactionRow, rows};

/// Transactions that wait to become batches.
#[derive(Debug)]
pub(super) struct Folded {
    rows: IntoIter<TransactionRow>,
}

impl Folded {
    /// Reads the log.
    pub(super) fn of(log: &Log, _options: &ScanOptions, _counts: &Counts) -> Result<Self> {
        let mut table = Table::new(0);
        let mut replay = Replay::new(Keep::All, log.first(), log.half_progress()?);
        log.each(|view| replay.apply(&mut table, view))?;
        let mut near = None;
        let rows = rows(&table, &replay, |place| log.read(place, &mut near, HalfRecord::of))?;
        Ok(Self { rows: rows.into_iter() })
    }

    /// Appends the next rows.
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
        Cells::Longs(runs, numbers) => {
            for row in rows {
                let places: Vec<u64> = match column {
                    Column::HalfQueueOffsets => row.halves.iter().map(|half| half.queue_offset).collect(),
                    Column::HalfPhysicalOffsets => row.halves.iter().map(|half| half.physical_offset).collect(),
                    Column::FinalPhysicalOffsets => row.finals.clone(),
                    Column::DiscardedPhysicalOffsets => row.discards.clone(),
                    _ => row.ops.clone(),
                };
                for place in places {
                    numbers.push(place.cast_signed());
                }
                runs.end_at(numbers.len());
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
