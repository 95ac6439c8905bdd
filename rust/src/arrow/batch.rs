//! Collects records column by column into a record batch.
//!
//! In:     one decoded record after the other.
//! Out:    record batches of one schema.
//! Always: reads only what the chosen columns need, and walks a record's properties once.
//! Not here: which records are shown.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Schema};

use super::cells::{Cells, Entries};
use super::options::{transaction_type, type_name};
use super::schema::{Column, schema};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, TIMED_TOPIC};
use crate::base::units::TimestampMs;
use crate::record::properties::{
    KEYS, PRODUCER_GROUP, REAL_QUEUE_ID, REAL_TOPIC, TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_ID,
    TRANSACTION_PREPARED, UNIQUE_KEY,
};
use crate::record::{Properties, RecordView, TransactionType};
use crate::transaction::Identity;

/// A row before it is appended.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) view: RecordView<'a>,
    /// The body as the application sent it; empty if it is not selected.
    pub(super) body: Cow<'a, [u8]>,
    /// In the views of ops and traces: the queue offset of the half message that is named.
    pub(super) half_queue_offset: u64,
}

/// The properties that columns need.
#[derive(Clone, Copy, Debug, Default)]
struct Facts<'a> {
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
    /// Notes one property. Of equal names the last counts. Most names differ in length.
    #[inline]
    fn note(&mut self, name: &[u8], value: &'a [u8]) {
        const fn is(name: &[u8], known: &str) -> bool {
            // A loop is cheaper than a memcmp call for so few bytes.
            let known = known.as_bytes();
            let (mut name, mut known) = (name, known);
            while let ([first, name_rest @ ..], [second, known_rest @ ..]) = (name, known) {
                if *first != *second {
                    return false;
                }
                (name, known) = (name_rest, known_rest);
            }
            name.is_empty() && known.is_empty()
        }
        const _: () = assert!(is(b"TAGS", TAGS) && !is(b"TAGS", KEYS));
        let fact = match name.len() {
            4 if is(name, TAGS) => &mut self.tags,
            4 if is(name, KEYS) => &mut self.keys,
            6 if is(name, PRODUCER_GROUP) => &mut self.group,
            8 if is(name, UNIQUE_KEY) => &mut self.unique_id,
            8 if is(name, REAL_QUEUE_ID) => &mut self.real_queue_id,
            8 if is(name, TRANSACTION_PREPARED) => {
                self.prepared = value == b"true";
                return;
            }
            10 if is(name, REAL_TOPIC) => &mut self.real_topic,
            17 if is(name, TRANSACTION_ID) => &mut self.transaction_id,
            23 if is(name, TRANSACTION_CHECK_TIMES) => &mut self.check_times,
            _ => return,
        };
        *fact = Some(value);
    }
}

const _: () = assert!(TAGS.len() == 4 && KEYS.len() == 4 && PRODUCER_GROUP.len() == 6 && UNIQUE_KEY.len() == 8);
const _: () = assert!(REAL_QUEUE_ID.len() == 8 && TRANSACTION_PREPARED.len() == 8 && REAL_TOPIC.len() == 10);
const _: () = assert!(TRANSACTION_ID.len() == 17 && TRANSACTION_CHECK_TIMES.len() == 23);

/// Returns whether a column reads `Facts`.
const fn takes_facts(column: Column) -> bool {
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
            | Column::Identity
    )
}

/// The columns of a batch, as far as they are filled.
#[derive(Debug)]
pub(super) struct Batch {
    schema: Arc<Schema>,
    columns: Vec<(Column, Cells)>,
    /// The cells of the properties column, filled while facts are collected.
    entries: Option<Entries>,
    needs_facts: bool,
    rows: usize,
}

impl Batch {
    pub(super) fn new(columns: &[Column]) -> Self {
        let cells = |column: &Column| (*column, Cells::of(*column));
        Self {
            schema: schema(columns),
            columns: columns.iter().map(cells).collect(),
            entries: columns.contains(&Column::Properties).then(Entries::default),
            needs_facts: columns.iter().any(|column| takes_facts(*column)),
            rows: 0,
        }
    }

    pub(super) fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema)
    }

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// Discards what was appended.
    pub(super) fn clear(&mut self) {
        self.rows = 0;
        self.entries = self.entries.as_ref().map(Entries::like);
        for (_, cells) in &mut self.columns {
            *cells = cells.like();
        }
    }

    /// Appends rows, one column after the other, so that each column's type is matched once for all of them.
    pub(super) fn append(&mut self, rows: &[Row<'_>]) {
        let facts: Vec<Facts<'_>> = rows.iter().map(|row| self.read_properties(row.view.properties)).collect();
        for (column, cells) in &mut self.columns {
            append(*column, cells, rows, &facts);
        }
        self.rows += rows.len();
    }

    /// Walks a record's properties once, for the facts and for the properties column.
    #[inline]
    fn read_properties<'a>(&mut self, properties: Properties<'a>) -> Facts<'a> {
        let mut facts = Facts::default();
        match &mut self.entries {
            Some(entries) => {
                let begin = entries.begin();
                for (name, value) in properties.iter() {
                    facts.note(name, value);
                    entries.push(name, value);
                }
                entries.end(begin, properties);
            }
            None if self.needs_facts => properties.iter().for_each(|(name, value)| facts.note(name, value)),
            None => {}
        }
        facts
    }

    /// Appends rows of another kind, whose values `append` writes.
    pub(super) fn append_by(&mut self, rows: usize, mut append: impl FnMut(Column, &mut Cells)) {
        for (column, cells) in &mut self.columns {
            append(*column, cells);
        }
        self.rows += rows;
    }

    /// Returns the batch and begins the next one.
    pub(super) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let mut arrays = Vec::with_capacity(self.columns.len());
        for (_, cells) in &mut self.columns {
            let next = cells.like();
            let filled = std::mem::replace(cells, next);
            arrays.push(match (filled, &mut self.entries) {
                (Cells::Map, Some(entries)) => {
                    let next = entries.like();
                    std::mem::replace(entries, next).finish()?
                }
                (filled, _) => filled.finish()?,
            });
        }
        self.rows = 0;
        RecordBatch::try_new(self.schema(), arrays)
    }
}

/// Appends one column's values. `facts` has one item per row.
fn append(column: Column, cells: &mut Cells, rows: &[Row<'_>], facts: &[Facts<'_>]) {
    let views = rows.iter().map(|row| &row.view);
    let known = || views.clone().zip(facts);
    match cells {
        Cells::Int(numbers) => match column {
            Column::QueueId => numbers.extend(views.map(|view| view.queue_id.0)),
            Column::Size => numbers.extend(views.map(|view| view.size.cast_signed())),
            Column::Flag => numbers.extend(views.map(|view| view.flag)),
            Column::SysFlag => numbers.extend(views.map(|view| view.sys_flag)),
            Column::ReconsumeTimes => numbers.extend(views.map(|view| view.reconsume_times)),
            Column::CheckTimes => numbers.extend(facts.iter().map(|it| number(it.check_times).unwrap_or_default())),
            _ => known().for_each(|(view, facts)| numbers.push_or_null(real_queue_id(view, facts))),
        },
        Cells::Long(numbers) => match column {
            Column::QueueOffset => numbers.extend(views.map(|view| view.queue_offset.0.cast_signed())),
            Column::PhysicalOffset => numbers.extend(views.map(|view| view.physical_offset.0.cast_signed())),
            Column::HalfQueueOffset => numbers.extend(rows.iter().map(|row| row.half_queue_offset.cast_signed())),
            Column::Identity => known().for_each(|(view, facts)| numbers.push_or_null(identity(view, facts))),
            _ => numbers.extend(views.map(|view| view.prepared_transaction_offset.0.cast_signed())),
        },
        Cells::Time(numbers) if column == Column::BornTimestamp => {
            numbers.extend(views.map(|view| microseconds(view.born_timestamp)));
        }
        Cells::Time(numbers) => numbers.extend(views.map(|view| microseconds(view.store_timestamp))),
        Cells::Host(hosts) if column == Column::BornHost => views.for_each(|view| hosts.push(view.born_host)),
        Cells::Host(hosts) => views.for_each(|view| hosts.push(view.store_host)),
        Cells::MessageIds(ids) => {
            for (view, facts) in known() {
                match facts.unique_id.filter(|_| column == Column::MessageId) {
                    Some(id) => ids.push(id),
                    None => ids.push_offset_id(view.store_host, view.physical_offset),
                }
            }
        }
        Cells::Bytes(bytes) => rows.iter().for_each(|row| bytes.push(&row.body)),
        Cells::Words(ends, words) => {
            for facts in facts {
                let keys = facts.keys.unwrap_or_default().split(|byte| *byte == b' ');
                keys.filter(|key| !key.is_empty()).for_each(|key| words.push(key));
                ends.push(words.len());
            }
        }
        Cells::Repeated(texts) if column == Column::Topic => views.for_each(|view| texts.push(view.topic.as_bytes())),
        Cells::Repeated(texts) => views.for_each(|view| texts.push(type_name(transaction_type(view)).as_bytes())),
        Cells::Text(texts) => match column {
            Column::TransactionId => {
                known().for_each(|(view, facts)| texts.push_or_null(transaction_id(view, facts)));
            }
            Column::Tags => facts.iter().for_each(|facts| texts.push_or_null(facts.tags)),
            Column::RealTopic => {
                for (view, facts) in known() {
                    texts.push_or_null(facts.real_topic.or_else(|| final_topic(view)));
                }
            }
            Column::Trace => views.for_each(|view| texts.push(trace(view).as_bytes())),
            _ => facts.iter().for_each(|facts| texts.push_or_null(facts.group)),
        },
        // The properties are appended with the facts. Lists of numbers occur only in the view of transactions.
        Cells::Map | Cells::Longs(..) => {}
    }
}

/// Returns `__transactionId__`, else the unique id of a transaction's record.
fn transaction_id<'a>(view: &RecordView<'_>, facts: &Facts<'a>) -> Option<&'a [u8]> {
    let Facts { transaction_id, unique_id, prepared, .. } = *facts;
    let is_transaction = prepared || view.transaction_type() != TransactionType::None;
    transaction_id.or_else(|| unique_id.filter(|_| is_transaction))
}

/// Returns the role of a record in a transaction.
fn trace(view: &RecordView<'_>) -> &'static str {
    match view.topic {
        HALF_TOPIC => "half",
        OP_TOPIC => "op",
        DISCARD_TOPIC => "discarded",
        _ => "final",
    }
}

/// Returns the identity that all records of a transaction share, as recovery computes it; `None` for an op.
fn identity(view: &RecordView<'_>, facts: &Facts<'_>) -> Option<i64> {
    let (group, unique_id) = (words(facts.group), words(facts.unique_id));
    // One that waits for its time is in another topic, and says for which one it is.
    let is_in_real_topic = is_final(view) && view.topic != TIMED_TOPIC;
    let real_topic = if is_in_real_topic { view.topic } else { words(facts.real_topic) };
    Identity::of_names(group, unique_id, real_topic, view.body_crc).map(|identity| identity.0.cast_signed())
}

/// Returns a property as text; empty if it is missing.
fn words(bytes: Option<&[u8]>) -> &str {
    bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// Returns whether a record is the message of a committed transaction in its real topic.
fn is_final(view: &RecordView<'_>) -> bool {
    trace(view) == "final" && view.transaction_type() == TransactionType::Commit
}

/// Returns the topic of a final message: its own, because RocketMQ 5.4 does not repeat the real topic in a property.
fn final_topic<'a>(view: &RecordView<'a>) -> Option<&'a [u8]> {
    is_final(view).then_some(view.topic.as_bytes())
}

fn real_queue_id(view: &RecordView<'_>, facts: &Facts<'_>) -> Option<i32> {
    number(facts.real_queue_id).or_else(|| is_final(view).then_some(view.queue_id.0))
}

fn number(text: Option<&[u8]>) -> Option<i32> {
    std::str::from_utf8(text?).ok()?.parse().ok()
}

const fn microseconds(time: TimestampMs) -> i64 {
    time.0.saturating_mul(1_000)
}
