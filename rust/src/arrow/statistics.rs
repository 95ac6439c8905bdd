//! Shows the view of statistics: a row for each queue in each file of the log.
//!
//! In:     counts.
//! Out:    rows.
//! Not here: counting.

use super::batch::Batch;
use super::cells::Cells;
use super::schema::Column;
use crate::recovery::log_view::Tally;

/// Appends rows to a batch.
pub(super) fn append(batch: &mut Batch, rows: &[Tally]) {
    batch.append_by(rows.len(), |column, cells| match cells {
        Cells::Repeated(topics) => rows.iter().for_each(|row| topics.push(row.topic.as_bytes())),
        Cells::Int(numbers) => numbers.extend(rows.iter().map(|row| row.queue_id.0)),
        Cells::Long(numbers) => numbers.extend(rows.iter().map(|row| {
            let value = match column {
                Column::File => row.file,
                Column::Messages => row.messages,
                _ => row.bytes,
            };
            value.cast_signed()
        })),
        Cells::Time(numbers) => numbers.extend(rows.iter().map(|row| {
            let stored_ms = if column == Column::FirstStoreTimestamp { row.first_ms } else { row.last_ms };
            stored_ms.saturating_mul(1_000)
        })),
        _ => {}
    });
}
