//! Applies each record of the log to the derived state, in one pass.
//!
//! In:     records in log order, from a snapshot's position or the log's beginning.
//! Out:    the derived state, and what is wrong with the log or its end.
//! Always: the meaning of a bad record is decided at the end, where the known durable end tells a torn tail from
//!         damage.

use super::queue_facts::QueueFacts;
use super::{Derived, Known, RecoveryReport};
use crate::base::error::{Error, Outcome, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::SCHEDULE_TOPIC;
use crate::base::units::{PhysicalOffset, TimestampMs, to_u64};
use crate::index::consume_queue::{ConsumeQueue, Entry, QueueFiles};
use crate::index::delay::is_delivery_of;
use crate::index::dispatch::DispatchRequest;
use crate::index::key_index::IndexFiles;
use crate::index::timed::{self, Event};
use crate::log::commit_log::{self, CommitLog, Tail};
use crate::record::{RecordView, TransactionType};
use crate::recovery::log_view::{self, LogFiles};
use crate::recovery::snapshot::{Anchor, Snapshot};
use crate::storage::settings::Settings;
use crate::transaction::pending::Pending;

/// Whether the record at physical offset 0 is a delayed message. Ordinary records also name that offset.
#[derive(Clone, Copy)]
enum AtZero {
    NotAsked,
    Delayed,
    Other,
}

/// One pass of recovery over the log.
pub(super) struct Run<'a> {
    pub(super) log: &'a CommitLog,
    pub(super) queue_files: &'a QueueFiles,
    pub(super) index: Option<&'a mut IndexFiles>,
    /// Records up to this physical offset are in the index files. `None`: none are.
    index_covered: Option<PhysicalOffset>,
    pub(super) known: &'a Known,
    pub(super) settings: &'a Settings,
    /// Only txstore wrote the log.
    pub(super) all_ours: bool,
    at_zero: AtZero,
    /// Whether entries in memory are compared with the files. A replica's background thread writes them instead.
    pub(super) settles: bool,
    pub(super) queues: QueueFacts,
    pub(super) derived: &'a mut Derived,
    pub(super) report: &'a mut RecoveryReport,
}

impl<'a> Run<'a> {
    /// Returns a run that applies records to `derived`.
    pub(super) fn new(
        log: &'a CommitLog,
        queue_files: &'a QueueFiles,
        settings: &'a Settings,
        known: &'a Known,
        derived: &'a mut Derived,
        report: &'a mut RecoveryReport,
    ) -> Self {
        Self {
            log,
            queue_files,
            index: None,
            index_covered: None,
            known,
            settings,
            all_ours: settings.is_all_ours(log.segments.first(), u64::MAX),
            at_zero: AtZero::NotAsked,
            settles: true,
            queues: QueueFacts::new(),
            derived,
            report,
        }
    }

    /// Begins at the snapshot's end, or at the log's beginning if there is no snapshot.
    pub(super) fn begin(&mut self, index: Option<&'a mut IndexFiles>, snapshot: Option<Snapshot>) -> Result<()> {
        self.index = index;
        if let Some(index) = self.index.as_deref_mut() {
            if !self.known.clean && !self.known.read_only {
                index.roll_back(snapshot.as_ref().and_then(|snapshot| snapshot.index.as_ref()))?;
            }
            if !self.known.clean && self.known.read_only {
                index.distrust_after(snapshot.as_ref().and_then(|snapshot| snapshot.index.as_ref()));
            }
            // After a crash, a reader must not repair the index files, so it keeps its own entries.
            self.index_covered = if self.known.clean || !self.known.read_only { index.end() } else { None };
        }
        self.derived.delays.clone_from(&self.known.delays);
        self.report.scanned_from = self.derived.end;
        if let Some(snapshot) = snapshot {
            self.report.scanned_from = snapshot.position;
            self.begin_at(snapshot);
            self.forget_removed();
        }
        Ok(())
    }

    fn begin_at(&mut self, snapshot: Snapshot) {
        let derived = &mut *self.derived;
        for queue in snapshot.queues {
            derived.dispatcher.queues.insert(ConsumeQueue::new(queue.topic, queue.queue_id, queue.first, queue.next));
        }
        derived.table = snapshot.table;
        derived.end = snapshot.position;
        derived.anchor = snapshot.anchor;
        derived.newest = TimestampMs(snapshot.newest_store_ms);
        derived.timed = snapshot.timed;
    }

    /// Ends pending transactions whose half message a broker has removed. The broker considered them finished, and they
    /// can no longer be committed.
    fn forget_removed(&mut self) {
        let first = self.log.segments.first();
        let table = &mut self.derived.table;
        let is_removed = |entry: &Pending| entry.newest.physical_offset < first;
        let keys: Vec<_> = table.iter().filter(|(_, entry)| is_removed(entry)).map(|(key, _)| key).collect();
        for key in keys {
            let entry = table.get(key).map(|entry| entry.newest);
            table.decide(key, Outcome::FinishedUnknown);
            self.report.warn(format!("a pending half message was removed with its log file: {entry:?}"));
        }
        let gone = self.derived.timed.remove_below(first);
        if gone > 0 {
            self.report.warn(format!("{gone} timed messages were removed with their log files before their time"));
        }
    }

    /// Applies one record.
    pub(super) fn record(&mut self, view: &RecordView<'_>, bytes: &[u8]) -> Result<()> {
        let request = DispatchRequest::of(view);
        if request.has_entry() {
            self.enqueue(view, &request)?;
        }
        if self.index_covered.is_none_or(|covered| view.physical_offset > covered) {
            self.derived.dispatcher.index(&request);
        }
        self.derived.replay.apply(&mut self.derived.table, view);
        self.note_delivery(view);
        self.note_timed(view);
        self.derived.newest = self.derived.newest.max(view.store_timestamp);
        self.derived.end = view.physical_offset.0 + u64::from(view.size);
        self.derived.anchor = Some(Anchor {
            physical_offset: view.physical_offset.0,
            size: view.size,
            // Only the last record's CRC is needed. `finish` computes it.
            crc: 0,
        });
        debug_assert_eq!(to_u64(bytes.len()), u64::from(view.size));
        self.settle_if_much()
    }

    /// Notes which delayed message a delivered message came from. It is not delivered again, whatever the file says.
    fn note_delivery(&mut self, view: &RecordView<'_>) {
        let delayed_at = view.prepared_transaction_offset;
        let is_other = view.transaction_type() != TransactionType::None || delayed_at >= view.physical_offset;
        let is_other = is_other || mutated(Mutant::DeliveryForgotten);
        // A reader delivers nothing.
        let is_reader = self.known.read_only && self.known.followed;
        if is_other || is_reader || (delayed_at.0 == 0 && !self.delayed_at_zero()) {
            return;
        }
        // Records before this one were already read. A missing or bad record is not a pending delayed message.
        let found = self.log.read(delayed_at, view.physical_offset.0, |delayed, _| {
            is_delivery_of(view, delayed, SCHEDULE_TOPIC).then_some((delayed.queue_id, delayed.queue_offset.0 + 1))
        });
        if let Ok(Some((queue_id, next))) = found {
            let progress = self.derived.delays.entry(queue_id).or_default();
            *progress = next.max(*progress);
        }
    }

    /// Notes that a message waits for its time, or no longer does.
    fn note_timed(&mut self, view: &RecordView<'_>) {
        let Event { ends, waits } = timed::event(view, !self.derived.timed.is_empty());
        if let Some(message) = ends.filter(|message| self.derived.timed.contains(*message))
            && !mutated(Mutant::TimedForgotten)
        {
            let waiting = PhysicalOffset(message.physical_offset);
            let is_end = self.log.read(waiting, view.physical_offset.0, |waiting, _| timed::ends(view, waiting));
            if is_end.unwrap_or(false) {
                self.derived.timed.remove(message);
            }
        }
        if let Some(message) = waits {
            self.derived.timed.insert(message);
        }
    }

    fn delayed_at_zero(&mut self) -> bool {
        if matches!(self.at_zero, AtZero::NotAsked) {
            let delayed = self.log.read(PhysicalOffset(0), u64::MAX, |first, _| first.topic == SCHEDULE_TOPIC);
            self.at_zero = if delayed.unwrap_or(false) { AtZero::Delayed } else { AtZero::Other };
        }
        matches!(self.at_zero, AtZero::Delayed)
    }

    pub(super) fn damage(&self, at: u64, what: &str) -> Error {
        match self.log.segments.at(at) {
            Some(segment) => segment.corrupt(at, what),
            None => Error::StoreCorrupt { file: commit_log::DIRECTORY.into(), offset: at, what: what.to_owned() },
        }
    }

    /// Distinguishes the end of the log, after which a writer cuts, from damage, which is an error.
    pub(super) fn check_tail(&mut self, tail: &Tail) -> Result<()> {
        let end = self.derived.end;
        if end >= self.known.limit || mutated(Mutant::CutBelowDurable) {
            return Ok(());
        }
        if mutated(Mutant::ZerosEndTheLog) && !matches!(tail, Tail::Bad(_)) && end >= self.known.end.durable {
            return Ok(());
        }
        let verdict = self.known.end.verdict(&LogFiles::of(&self.log.segments), end, self.last_ms())?;
        let why = match tail {
            Tail::Bad(why) => why.as_str(),
            _ => "zeros, and other bytes after them",
        };
        match verdict.tail {
            log_view::Tail::End | log_view::Tail::NotYet => return Ok(()),
            log_view::Tail::Torn => {
                self.report.warn(format!("a torn record at {end} after the durable end was cut off: {why}"));
            }
            log_view::Tail::Stale => {
                self.report.stale = true;
                self.report.warn(format!("bytes that a broker left after its end at {end} were cut off: {why}"));
            }
            log_view::Tail::Damaged(cause) => {
                return Err(match (self.log.segments.at(end), tail) {
                    (None, _) => self.log.segments.missing(end, verdict.written),
                    (Some(segment), Tail::Bad(why)) => segment.corrupt(end, why.as_str()),
                    (Some(segment), _) => segment.corrupt(end, cause.text()),
                });
            }
        }
        self.report.torn_bytes = verdict.bytes_end - end;
        Ok(())
    }

    /// Returns the store timestamp of the last record.
    fn last_ms(&self) -> Option<i64> {
        let last = PhysicalOffset(self.derived.anchor?.physical_offset);
        self.log.read(last, u64::MAX, |view, _| view.store_timestamp.0).ok()
    }

    /// Completes the state after the last record.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.forget_deleted_queues()?;
        self.settle()?;
        self.add_silent_queues()?;
        self.report.stale |= self.has_stale_entries()?;
        self.clamp_delays();
        // A reader that follows a writer continues the replay, so decided transactions stay until their op is read.
        if !self.known.followed {
            self.report.unfinished = self.derived.replay.finish(&mut self.derived.table);
        }
        if let Some(anchor) = &mut self.derived.anchor {
            anchor.crc =
                self.log.read(PhysicalOffset(anchor.physical_offset), u64::MAX, |_, bytes| crc32fast::hash(bytes))?;
        }
        Ok(())
    }

    /// Returns whether a queue's file has entries after the queue's end. A broker that recovered leaves old entries
    /// there.
    fn has_stale_entries(&self) -> Result<bool> {
        let closed = self.known.end.settings.ranges.last().and_then(|range| range.end);
        if !self.known.clean || self.known.read_only || closed == Some(self.derived.end) {
            return Ok(false);
        }
        for (_, queue) in self.derived.dispatcher.queues.iter() {
            let after = self.queue_files.read(&queue.topic, queue.queue_id, queue.next(), 1)?;
            if Entry::from_bytes(&after).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lowers a progress after its queue's end, which a power loss can leave.
    fn clamp_delays(&mut self) {
        let mut beyond = Vec::new();
        for (queue_id, progress) in &mut self.derived.delays {
            let queues = &self.derived.dispatcher.queues;
            let next = queues.next_of(SCHEDULE_TOPIC, *queue_id);
            if *progress > next {
                beyond.push(format!(
                    "delayed messages of {SCHEDULE_TOPIC}/{queue_id} continue at {next}, not {progress}"
                ));
                *progress = next;
            }
        }
        for warning in beyond {
            self.report.warn(warning);
        }
    }
}
