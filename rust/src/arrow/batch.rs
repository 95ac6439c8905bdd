//! Batch: records, column by column, until they are a record batch.
//!
//! In: decoded records, a few at a time, while they are in the cache. Out: record batches of one schema. Always: only
//! what the chosen columns need is looked at. Not here: which records, and where they stand.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Schema};

use super::cells::Cells;
use super::options::transaction_type;
use super::schema::{Column, schema};
use crate::record::message_id::write_offset_message_id;
use crate::record::properties::{
    KEYS, PRODUCER_GROUP, REAL_QUEUE_ID, REAL_TOPIC, TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_ID,
    TRANSACTION_PREPARED, UNIQUE_KEY,
};
use crate::record::{Properties, RecordView, TransactionType};
use crate::units::TimestampMs;

/// A row that is to be.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) view: RecordView<'a>,
    pub(super) facts: Facts<'a>,
    /// The body as the application sent it; nothing where it is not asked for.
    pub(super) body: Cow<'a, [u8]>,
    /// In the view of ops: the half that is named.
    pub(super) half_queue_offset: u64,
}

/// The properties that columns ask for, found in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    unique_id: Option<&'a [u8]>,
    transaction_id: Option<&'a [u8]>,
    prepared: bool,
    keys: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
    group: Option<&'a [u8]>,
    real_topic: Option<&'a [u8]>,
    real_queue_id: Option<&'a [u8]>,
    check_times: Option<&'a [u8]>,
}

impl<'a> Facts<'a> {
    #[inline]
    pub(super) fn of(properties: Properties<'a>) -> Self {
        let mut facts = Self::default();
        for (name, value) in properties.iter() {
            // Names tell by their length first; the last of equal ones counts.
            let fact = match std::str::from_utf8(name) {
                Ok(UNIQUE_KEY) => &mut facts.unique_id,
                Ok(TRANSACTION_ID) => &mut facts.transaction_id,
                Ok(KEYS) => &mut facts.keys,
                Ok(TAGS) => &mut facts.tags,
                Ok(PRODUCER_GROUP) => &mut facts.group,
                Ok(REAL_TOPIC) => &mut facts.real_topic,
                Ok(REAL_QUEUE_ID) => &mut facts.real_queue_id,
                Ok(TRANSACTION_CHECK_TIMES) => &mut facts.check_times,
                Ok(TRANSACTION_PREPARED) => {
                    facts.prepared = value == b"true";
                    continue;
                }
                _ => continue,
            };
            *fact = Some(value);
        }
        facts
    }
}

/// Whether a column takes something from `Facts`.
pub(super) const fn takes_facts(column: Column) -> bool {
    matches!(
        column,
        Column::MessageId
            | Column::TransactionId
            | Column::Keys
            | Column::Tags
            | Column::ProducerGroup
            | Column::RealTopic
            | Column::RealQueueId
            | Column::CheckTimes
    )
}

/// The columns of a batch, as far as they are filled.
#[derive(Debug)]
pub(super) struct Batch {
    schema: Arc<Schema>,
    columns: Vec<(Column, Cells)>,
    rows: usize,
}

impl Batch {
    pub(super) fn new(columns: &[Column]) -> Self {
        let cells = |column: &Column| {
            let is_host = matches!(column, Column::BornHost | Column::StoreHost);
            (*column, Cells::of(&column.field(), is_host))
        };
        Self { schema: schema(columns), columns: columns.iter().map(cells).collect(), rows: 0 }
    }

    pub(super) fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema)
    }

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// Forgets what was appended.
    pub(super) fn clear(&mut self) {
        self.rows = 0;
        for (_, cells) in &mut self.columns {
            *cells = cells.like();
        }
    }

    /// Appends rows.
    pub(super) fn append(&mut self, rows: &[Row<'_>]) {
        for (column, cells) in &mut self.columns {
            append(*column, cells, rows);
        }
        self.rows += rows.len();
    }

    /// Appends rows of another kind, which `append` knows.
    pub(super) fn append_by(&mut self, rows: usize, mut append: impl FnMut(Column, &mut Cells)) {
        for (column, cells) in &mut self.columns {
            append(*column, cells);
        }
        self.rows += rows;
    }

    /// The batch; the next one begins.
    pub(super) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let finish = |(_, cells): &mut (Column, Cells)| {
            let next = cells.like();
            std::mem::replace(cells, next).finish()
        };
        let arrays = self.columns.iter_mut().map(finish).collect::<Result<Vec<_>, _>>();
        self.rows = 0;
        RecordBatch::try_new(self.schema(), arrays?)
    }
}

fn append(column: Column, cells: &mut Cells, rows: &[Row<'_>]) {
    match cells {
        Cells::Int(numbers) => match column {
            Column::QueueId => numbers.extend(rows.iter().map(|row| row.view.queue_id.0)),
            Column::Size => numbers.extend(rows.iter().map(|row| row.view.size.cast_signed())),
            Column::Flag => numbers.extend(rows.iter().map(|row| row.view.flag)),
            Column::SysFlag => numbers.extend(rows.iter().map(|row| row.view.sys_flag)),
            Column::ReconsumeTimes => numbers.extend(rows.iter().map(|row| row.view.reconsume_times)),
            Column::CheckTimes => {
                numbers.extend(rows.iter().map(|row| number(row.facts.check_times).unwrap_or_default()));
            }
            _ => rows.iter().for_each(|row| numbers.push_or_null(number(row.facts.real_queue_id))),
        },
        Cells::Long(numbers) => match column {
            Column::QueueOffset => numbers.extend(rows.iter().map(|row| row.view.queue_offset.0.cast_signed())),
            Column::PhysicalOffset => numbers.extend(rows.iter().map(|row| row.view.physical_offset.0.cast_signed())),
            Column::HalfQueueOffset => numbers.extend(rows.iter().map(|row| row.half_queue_offset.cast_signed())),
            _ => numbers.extend(rows.iter().map(|row| row.view.prepared_transaction_offset.0.cast_signed())),
        },
        Cells::Time(numbers) => match column {
            Column::BornTimestamp => numbers.extend(rows.iter().map(|row| microseconds(row.view.born_timestamp))),
            _ => numbers.extend(rows.iter().map(|row| microseconds(row.view.store_timestamp))),
        },
        Cells::Host(hosts) => match column {
            Column::BornHost => rows.iter().for_each(|row| hosts.push(row.view.born_host)),
            _ => rows.iter().for_each(|row| hosts.push(row.view.store_host)),
        },
        Cells::Bytes(bytes) => rows.iter().for_each(|row| bytes.push(&row.body)),
        Cells::Map(entries) => rows.iter().for_each(|row| entries.push(row.view.properties)),
        Cells::Words(runs, words) => {
            for row in rows {
                for key in row.facts.keys.unwrap_or_default().split(|byte| *byte == b' ') {
                    if !key.is_empty() {
                        words.push(key);
                    }
                }
                runs.end_at(words.len());
            }
        }
        Cells::Text(texts) => match column {
            Column::Topic => rows.iter().for_each(|row| texts.push(row.view.topic.as_bytes())),
            Column::MessageId => {
                for row in rows {
                    match row.facts.unique_id {
                        Some(id) => texts.push(id),
                        None => push_offset_message_id(texts, row),
                    }
                }
            }
            Column::OffsetMessageId => rows.iter().for_each(|row| push_offset_message_id(texts, row)),
            Column::TransactionId => rows.iter().for_each(|row| texts.push_or_null(transaction_id(row))),
            Column::Tags => rows.iter().for_each(|row| texts.push_or_null(row.facts.tags)),
            Column::TransactionType => rows.iter().for_each(|row| texts.push(type_name(&row.view).as_bytes())),
            Column::RealTopic => rows.iter().for_each(|row| texts.push_or_null(row.facts.real_topic)),
            _ => rows.iter().for_each(|row| texts.push_or_null(row.facts.group)),
        },
        // Only in the view of transactions, which is not made of records.
        Cells::Longs(..) => {}
    }
}

#[inline]
fn push_offset_message_id(texts: &mut super::cells::Texts, row: &Row<'_>) {
    write_offset_message_id(row.view.store_host, row.view.physical_offset, |digits| texts.write(digits));
    texts.end();
}

/// `__transactionId__`, else the unique id of a transaction's record.
fn transaction_id<'a>(row: &Row<'a>) -> Option<&'a [u8]> {
    let Facts { transaction_id, unique_id, prepared, .. } = row.facts;
    let is_transaction = prepared || row.view.transaction_type() != TransactionType::None;
    transaction_id.or_else(|| unique_id.filter(|_| is_transaction))
}

fn type_name(view: &RecordView<'_>) -> &'static str {
    match transaction_type(view) {
        TransactionType::None => "none",
        TransactionType::Prepared => "prepared",
        TransactionType::Commit => "commit",
        TransactionType::Rollback => "rollback",
    }
}

fn number(text: Option<&[u8]>) -> Option<i32> {
    std::str::from_utf8(text?).ok()?.parse().ok()
}

const fn microseconds(time: TimestampMs) -> i64 {
    time.0.saturating_mul(1_000)
}
