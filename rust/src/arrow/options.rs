//! Defines what a scan shows, and how it is cut into batches.
//!
//! In:     the caller's options.
//! Out:    `ScanOptions`, checked; whether a record is wanted.
//! Always: limits bound memory, whatever the log holds.
//! Not here: what the store contains.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use regex_lite::Regex;

use super::schema::{Column, View};
use crate::base::error::{Error, Result};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, is_system_topic};
use crate::base::units::QueueId;
use crate::record::{RecordView, TransactionType};
use crate::transaction::HALF_QUEUE;

/// Which topics are shown.
#[derive(Clone, Debug)]
pub enum Topics {
    /// Topics of applications.
    Applications,
    /// All topics, including the system's.
    All,
    /// The named topics.
    Named(BTreeSet<String>),
    /// Topics of applications (or all, with `true`) whose whole name matches.
    Matching(Regex, bool),
}

/// What the scan does at an offset that should hold a record and does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecords {
    /// The scan ends with an error that names file and offset.
    Fail,
    /// The scan continues at the next record and counts the damaged ranges.
    Skip,
}

/// Whether the view of transactions has rows for records whose half is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfMissing {
    /// It has a row for each transaction.
    Hidden,
    /// It also has a row for each op, and for the finals and discarded copies of each identity.
    Shown,
}

/// Returns a record's transaction type. A record of the half topic is prepared, whatever its sysflag.
pub(super) fn transaction_type(view: &RecordView<'_>) -> TransactionType {
    if view.topic == HALF_TOPIC { TransactionType::Prepared } else { view.transaction_type() }
}

const TYPES: [TransactionType; 4] =
    [TransactionType::None, TransactionType::Prepared, TransactionType::Commit, TransactionType::Rollback];

/// Returns the name of a transaction type.
pub(super) const fn type_name(kind: TransactionType) -> &'static str {
    match kind {
        TransactionType::None => "none",
        TransactionType::Prepared => "prepared",
        TransactionType::Commit => "commit",
        TransactionType::Rollback => "rollback",
    }
}

/// What a scan shows.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// The view that defines the rows.
    pub view: View,
    /// The columns, in order.
    pub columns: Vec<Column>,
    /// The topics shown in the views of messages and of the commit log.
    pub topics: Topics,
    /// Queue offsets shown, for the queues that have limits. With `only_queues` no other queue is shown.
    pub queues: BTreeMap<String, BTreeMap<i32, Range<i64>>>,
    /// Whether queues without limits are hidden.
    pub only_queues: bool,
    /// Store times that are shown, in milliseconds.
    pub store_ms: Range<i64>,
    /// The transaction types that are shown; `None`: all.
    pub types: Option<Vec<TransactionType>>,
    /// Records that begin at or after this offset are shown; `None`: from the first remaining one.
    pub start: Option<u64>,
    /// Records that begin before this offset are shown; `None`: up to the visible end.
    pub end: Option<u64>,
    /// Start and end are known record boundaries. A record across the end means that they were not.
    pub is_cut: bool,
    /// Maximum number of rows in a batch.
    pub batch_rows: usize,
    /// Maximum total size of a batch's records in bytes, unless a single record is larger.
    pub batch_bytes: usize,
    /// What to do about damage.
    pub bad_records: BadRecords,
    /// Whether it is an error that retention removed the start of the range.
    pub fail_on_data_loss: bool,
    /// Records that the queues show not to be wanted are skipped if they are at least so many bytes of the log.
    pub skip_bytes_min: u64,
    /// In the view of transactions: whether ops, finals and discarded copies whose half is not in the log are rows.
    pub half_missing: HalfMissing,
    /// In the view of statistics: a folder outside of the store that keeps what was counted.
    pub statistics_path: Option<PathBuf>,
}

/// RocketMQ's clients send bodies of at most 4 MiB, so a batch holds a few of them, and fits the cache of most
/// machines.
pub const BATCH_BYTES: usize = 8 << 20;
/// Larger batches are not faster.
pub const BATCH_ROWS: usize = 16_384;
/// Reading on is as fast as skipping less.
const SKIP_BYTES_MIN: u64 = if cfg!(test) { 1 << 8 } else { 1 << 16 };
const BATCH_ROWS_MAX: usize = 1 << 20;
const BATCH_BYTES_MAX: usize = 1 << 30;

impl ScanOptions {
    /// Returns the options that show all columns and rows of a view.
    pub fn of(view: View) -> Self {
        Self {
            view,
            columns: view.columns(),
            topics: if view == View::Messages { Topics::Applications } else { Topics::All },
            queues: BTreeMap::new(),
            only_queues: false,
            store_ms: i64::MIN..i64::MAX,
            types: None,
            start: None,
            end: None,
            is_cut: false,
            batch_rows: BATCH_ROWS,
            batch_bytes: BATCH_BYTES,
            bad_records: BadRecords::Fail,
            fail_on_data_loss: true,
            skip_bytes_min: SKIP_BYTES_MIN,
            half_missing: HalfMissing::Hidden,
            statistics_path: None,
        }
    }

    /// Checks every range.
    pub fn check(&self) -> Result<()> {
        let within = |option: &str, value: usize, max: usize, unit: &str| {
            let what = || format!("must be between 1 and {max} {unit}, got {value}");
            if (1..=max).contains(&value) { Ok(()) } else { Err(invalid(option, what())) }
        };
        within("batch_rows", self.batch_rows, BATCH_ROWS_MAX, "rows")?;
        within("batch_bytes", self.batch_bytes, BATCH_BYTES_MAX, "bytes")?;
        if !matches!(self.view, View::Messages | View::CommitLog) && !matches!(self.topics, Topics::All) {
            return Err(invalid("topics", "this view has no topics to select".into()));
        }
        if matches!(self.view, View::Transactions | View::Statistics) {
            self.check_whole()?;
        }
        if self.view != View::Statistics && self.statistics_path.is_some() {
            let what = format!("only the view statistics has a use for it, not the view {}", self.view.name());
            return Err(invalid("statistics_path", what));
        }
        match (self.start, self.end) {
            (Some(start), Some(end)) if start > end => {
                Err(invalid("end_physical_offset", format!("the range ends at {end}, before its start {start}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the whole log is read. A transaction's outcome needs every record, so nothing can be left out, and
    /// statistics are rows of few bytes.
    fn check_whole(&self) -> Result<()> {
        let left_out = [
            ("transaction_types", self.types.is_some()),
            ("queues", self.only_queues || !self.queues.is_empty()),
            ("start_time or end_time", self.is_timed()),
            ("start_physical_offset or end_physical_offset", !self.is_cut && (self.start, self.end) != (None, None)),
            ("bad_records=\"skip\"", self.bad_records == BadRecords::Skip),
        ];
        let Some((option, _)) = left_out.iter().find(|(_, given)| *given) else { return Ok(()) };
        let what = format!("the view {} is computed from the whole log and cannot be restricted", self.view.name());
        let other = if self.view == View::Transactions { "traces" } else { "commitlog" };
        let hint = format!("hint: filter its rows, or read the view {other}, which accepts the option");
        Err(invalid(option, format!("{what}\n{hint}")))
    }

    /// Returns whether records are chosen by time.
    pub(super) fn is_timed(&self) -> bool {
        self.store_ms != (i64::MIN..i64::MAX)
    }

    /// Returns whether the queues can tell which records are wanted.
    pub(super) fn is_by_queue(&self) -> bool {
        let is_by_topic = match self.view {
            View::Messages | View::CommitLog => matches!(self.topics, Topics::Named(_) | Topics::Matching(..)),
            View::Halves | View::Ops => true,
            View::Traces | View::Transactions | View::Statistics => return false,
        };
        is_by_topic || self.only_queues || !self.queues.is_empty()
    }

    /// Returns the queue offsets of the messages of a queue that may be wanted.
    pub(super) fn wanted_of(&self, topic: &str, queue_id: QueueId, topics: &mut TopicMemory) -> Range<u64> {
        let is_shown = match self.view {
            View::Messages | View::CommitLog => topics.wants(&self.topics, topic),
            View::Halves => topic == HALF_TOPIC,
            View::Ops => topic == OP_TOPIC,
            View::Traces | View::Transactions | View::Statistics => true,
        };
        match self.queues.get(topic).and_then(|queues| queues.get(&queue_id.0)) {
            _ if !is_shown => 0..0,
            Some(offsets) => offsets.start.max(0).cast_unsigned()..offsets.end.max(0).cast_unsigned(),
            None if self.only_queues => 0..0,
            None => 0..u64::MAX,
        }
    }

    /// Returns whether bodies are shown, so that their CRCs are checked.
    pub(super) fn takes_body(&self) -> bool {
        self.columns.contains(&Column::Body)
    }

    /// Returns whether a record belongs to the view and matches the options.
    #[inline]
    pub(super) fn wants(&self, view: &RecordView<'_>, topics: &mut TopicMemory) -> bool {
        let in_view = match self.view {
            View::Messages => view.transaction_type().is_queued() && topics.wants(&self.topics, view.topic),
            View::CommitLog => topics.wants(&self.topics, view.topic),
            View::Halves => view.topic == HALF_TOPIC && view.transaction_type().is_queued(),
            View::Ops => view.topic == OP_TOPIC && view.transaction_type().is_queued(),
            View::Traces => {
                let is_half = view.topic == HALF_TOPIC && view.queue_id == HALF_QUEUE;
                let is_end = view.transaction_type() == TransactionType::Commit && view.topic != HALF_TOPIC;
                (is_half || is_end || [OP_TOPIC, DISCARD_TOPIC].contains(&view.topic))
                    && view.transaction_type().is_queued()
            }
            View::Transactions | View::Statistics => false,
        };
        in_view
            && self.store_ms.contains(&view.store_timestamp.0)
            && self.types.as_ref().is_none_or(|types| types.contains(&transaction_type(view)))
            && ((self.queues.is_empty() && !self.only_queues) || self.wants_queue(view))
    }

    fn wants_queue(&self, view: &RecordView<'_>) -> bool {
        match self.queues.get(view.topic).and_then(|queues| queues.get(&view.queue_id.0)) {
            Some(offsets) => offsets.contains(&view.queue_offset.0.cast_signed()),
            None => !self.only_queues,
        }
    }
}

/// The last topic and its result, because records of one topic often follow each other.
#[derive(Debug, Default)]
pub(super) struct TopicMemory {
    topic: String,
    wanted: Option<bool>,
}

impl TopicMemory {
    #[inline]
    fn wants(&mut self, topics: &Topics, topic: &str) -> bool {
        match self.wanted {
            Some(wanted) if self.topic == topic => wanted,
            _ => self.decide(topics, topic),
        }
    }

    fn decide(&mut self, topics: &Topics, topic: &str) -> bool {
        let wanted = match topics {
            Topics::Applications => !is_system_topic(topic),
            Topics::All => true,
            Topics::Named(names) => names.contains(topic),
            Topics::Matching(pattern, system) => pattern.is_match(topic) && (*system || !is_system_topic(topic)),
        };
        self.topic.clear();
        self.topic.push_str(topic);
        self.wanted = Some(wanted);
        wanted
    }
}

/// Returns the transaction types with those names.
pub fn types_named(names: &[String]) -> Result<Vec<TransactionType>> {
    let named = |name: &String| {
        let found = TYPES.into_iter().find(|kind| type_name(*kind) == name);
        let hint = "\nhint: they are none, prepared, commit and rollback";
        found.ok_or_else(|| invalid("transaction_types", format!("there is no transaction type {name:?}{hint}")))
    };
    names.iter().map(named).collect()
}

/// Returns the topics whose whole name matches a regular expression.
pub fn topics_matching(pattern: &str, system: bool) -> Result<Topics> {
    let compiled = Regex::new(&format!("^(?:{pattern})$"));
    let compiled = compiled.map_err(|why| {
        invalid(
            "topic_pattern",
            format!("{pattern:?} is not a valid regular expression: {why}\nhint: for example orders.*"),
        )
    })?;
    Ok(Topics::Matching(compiled, system))
}

pub(super) fn invalid(option: &str, what: String) -> Error {
    Error::InvalidOption { option: option.to_owned(), what }
}
