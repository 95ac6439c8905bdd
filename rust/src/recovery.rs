//! Recovery: from the files of a store to its state, after any end.
//!
//! In: the opened log, what is known about it (snapshot, settings, published and checkpointed ends). Out: the log's
//! true end, the queues, the index, the table of transactions, and what is to be healed. Always: repeatable from the
//! start; what a snapshot covers is not read again; below the durable end a bad record is damage, behind it a torn
//! tail.
//! Not here: locks, and writing the missing ops, which the store does with its ordinary append.

mod queues;

use std::sync::Arc;

use hashbrown::HashMap;

use crate::commit_log::{Appended, CommitLog, EndsToCome, Scanner, Tail, verified_ahead};
use crate::consume_queue::{ConsumeQueue, Entry, QueueFiles, Slot};
use crate::delay::{DelayProgress, is_delivery_of};
use crate::dispatch::{DispatchRequest, Dispatcher};
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::half::HALF_QUEUE;
use crate::half::replay::{Keep, Replay};
use crate::half::table::{Pending, Table};
use crate::index::IndexFiles;
use crate::log_view::{self, KnownEnd, LogFiles};
use crate::mutant::{Mutant, mutated};
use crate::names::{HALF_TOPIC, SCHEDULE_TOPIC};
use crate::record::{RecordView, TransactionType};
use crate::settings::Settings;
use crate::snapshot::{Anchor, Snapshot};
use crate::units::{PhysicalOffset, QueueId, TimestampMs, to_u64};
use queues::QueueFacts;
pub use queues::{cut_begun_again, cut_queues};

/// Bytes of the log that are read before a second thread is worth its start.
const ALONE_BYTES: u64 = 16 << 20;

/// Bytes that are written again in one call.
const REWRITTEN_AT_ONCE: u64 = 1 << 20;

/// What is known before the log is read.
#[derive(Debug)]
pub struct Known {
    /// Nothing may be written.
    pub read_only: bool,
    /// The last writer closed the store.
    pub clean: bool,
    /// What is known of the log's end.
    pub(crate) end: KnownEnd,
    /// Where to stop: what a live writer has published, or `u64::MAX`.
    pub limit: u64,
    /// A writer's next records will be read with the same replay.
    pub followed: bool,
    /// The stored progress of the half queue.
    pub half_progress: u64,
    /// The stored progress of the delayed messages.
    pub delays: DelayProgress,
}

impl Known {
    /// Whether records can follow those that are read: a writer lives, or published an end that was not reached.
    pub(crate) fn may_grow(&self) -> bool {
        self.followed || self.limit < u64::MAX
    }
}

/// The state after recovery.
#[derive(Debug)]
pub struct Recovered {
    /// Queues and waiting index entries.
    pub dispatcher: Dispatcher,
    /// Transactions; times are store timestamps until `Table::start`.
    pub table: Table,
    /// How far the delayed messages are delivered.
    pub delays: DelayProgress,
    /// Goes on where the log goes on, for a reader that follows it.
    pub replay: Replay,
    /// Queues that a broker deleted and began again, and where in the log.
    pub begun_again: HashMap<Slot, u64>,
    /// Decided halves that no op names.
    pub unnamed: Vec<u64>,
    /// One past the last record.
    pub end: u64,
    /// The last record.
    pub anchor: Option<Anchor>,
    /// The newest store timestamp.
    pub newest: TimestampMs,
    /// Where reading began.
    pub scanned_from: u64,
    /// Bytes of a torn tail.
    pub torn_bytes: u64,
    /// A broker left bytes after the end of the log or of a queue.
    pub stale: bool,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// Warnings that are kept: the first ones tell what is wrong.
const WARNINGS_MAX: usize = 1_000;

impl Recovered {
    /// Pending halves whose file a broker has removed cannot be committed any more: it took them for finished.
    fn forget_gone(&mut self, first: u64) {
        let gone = |entry: &Pending| entry.newest.physical_offset < first;
        let keys: Vec<_> = self.table.iter().filter(|(_, entry)| gone(entry)).map(|(key, _)| key).collect();
        for key in keys {
            let entry = self.table.get(key).map(|entry| entry.newest);
            self.table.decide(key, Outcome::FinishedUnknown);
            self.warn(format!("a pending half message was removed with its log file: {entry:?}"));
        }
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning);
        }
    }

    /// What the ends of all that pends may take of the log.
    pub fn ends_to_come(&self) -> EndsToCome {
        let sizes = self.table.sizes();
        EndsToCome { bytes: sizes.bytes(), count: sizes.count(), largest: sizes.largest() }
    }

    /// Notes the record that was appended last, for the next snapshot.
    pub fn note_last(&mut self, last: Appended) {
        self.anchor = Some(Anchor { physical_offset: last.physical_offset.0, size: last.size, crc: 0 });
        self.newest = last.store_timestamp;
    }

    /// A log without records that begins at `first`.
    fn nothing(first: u64, half_progress: u64) -> Self {
        Self {
            dispatcher: Dispatcher::default(),
            table: Table::new(0),
            delays: DelayProgress::new(),
            replay: Replay::new(Keep::Open, first, half_progress),
            begun_again: HashMap::new(),
            unnamed: Vec::new(),
            end: first,
            anchor: None,
            newest: TimestampMs(0),
            scanned_from: first,
            torn_bytes: 0,
            stale: false,
            warnings: Vec::new(),
        }
    }
}

/// Reads the log and rebuilds all that is derived from it.
pub fn recover(
    log: &CommitLog,
    queue_files: &QueueFiles,
    index: Option<&mut IndexFiles>,
    settings: &Settings,
    snapshot: Option<Snapshot>,
    known: &Known,
) -> Result<Recovered> {
    let mut snapshot = snapshot.filter(|snapshot| fits(log, snapshot));
    if let Some(found) = &mut snapshot {
        begin_with_the_log(log, queue_files, found)?;
        for queue in &mut found.queues {
            queue.first = settings.deleted_below(&queue.topic, queue.queue_id).min(queue.next).max(queue.first);
        }
    }
    if let Some(found) = &snapshot
        && !(queues_are_there(log, queue_files, found)?
            && index.as_deref().is_none_or(|index| index.has(found.index.as_ref())))
    {
        // What is derived was removed: it is built again from the whole log.
        snapshot = None;
    }
    let mut run = Run::begin(log, queue_files, index, settings, snapshot, known)?;
    let from = run.out.end;
    // Where only txstore wrote, nothing that is decided comes back; a broker may put back anything.
    let keep = if run.all_ours { Keep::Open } else { Keep::Identities };
    run.out.replay = Replay::new(keep, log.segments.first(), known.half_progress);
    let queues = &run.out.dispatcher.queues;
    run.out.replay.begin_at(queues.find(HALF_TOPIC, HALF_QUEUE).map_or(0, |slot| queues.next(slot)));
    let scan = verified_ahead(
        log,
        from.saturating_add(ALONE_BYTES),
        known.limit,
        |offset| settings.verify(offset),
        |verify| {
            Scanner::new(log, PhysicalOffset(from), known.limit)
                .run(verify, |view, bytes| run.record(view, bytes).map(|()| true))
        },
    )?;
    run.out.end = scan.end.max(from);
    run.judge_tail(&scan.tail)?;
    let mut recovered = run.finish()?;
    recovered.begin_deleted(settings);
    Ok(recovered)
}

/// Goes on reading after `recovered`, for a reader that follows a writer. What it met at the end is for the caller to
/// judge, who knows how far there must be records.
pub fn follow(
    log: &CommitLog,
    queue_files: &QueueFiles,
    settings: &Settings,
    recovered: &mut Recovered,
    known: &Known,
) -> Result<Tail> {
    let from = PhysicalOffset(recovered.end);
    let out = std::mem::replace(recovered, Recovered::nothing(from.0, known.half_progress));
    let mut run = Run {
        log,
        queue_files,
        index: None,
        index_covered: None,
        known,
        settings,
        all_ours: settings.is_all_ours(log.segments.first(), u64::MAX),
        at_zero: AtZero::Other,
        queues: QueueFacts::new(),
        out,
    };
    let scan = Scanner::new(log, from, known.limit)
        .run(|offset| settings.verify(offset), |view, bytes| run.record(view, bytes).map(|()| true));
    let settled = run.settle();
    // Also after an error: what was applied is not applied again.
    *recovered = run.out;
    let scan = scan?;
    recovered.end = recovered.end.max(scan.end);
    settled.map(|()| scan.tail)
}

/// Whether the log still holds what the snapshot was taken of.
fn fits(log: &CommitLog, snapshot: &Snapshot) -> bool {
    let Some(anchor) = snapshot.anchor else { return log.segments.all().is_empty() && snapshot.position == 0 };
    let record = |segment: &crate::segment::Segment| {
        let end = anchor.physical_offset + u64::from(anchor.size);
        (end <= segment.end())
            .then(|| segment.bytes(anchor.physical_offset..end).ok().map(|bytes| crc32fast::hash(&bytes)))
    };
    let found = log.segments.at(anchor.physical_offset).and_then(|segment| record(&segment).flatten());
    log.segments.first() <= snapshot.position && found == Some(anchor.crc)
}

/// The log's front may have been removed since the snapshot was taken: its queues begin where the log begins.
fn begin_with_the_log(log: &CommitLog, queue_files: &QueueFiles, snapshot: &mut Snapshot) -> Result<()> {
    let minimum = log.segments.first();
    for queue in snapshot.queues.iter_mut().filter(|_| minimum > 0) {
        let known = ConsumeQueue::new(Arc::clone(&queue.topic), queue.queue_id, queue.first, queue.next);
        queue.first = queue_files.first_left(&known, minimum)?;
    }
    Ok(())
}

/// Whether the files hold the queues as a snapshot counts them: the first and last entry, and one of each file.
fn queues_are_there(log: &CommitLog, queue_files: &QueueFiles, snapshot: &Snapshot) -> Result<bool> {
    let per_file = queue_files.entries_per_file();
    for queue in snapshot.queues.iter().filter(|queue| queue.first < queue.next) {
        let mut at = queue.first;
        loop {
            let Some(entry) = Entry::from_bytes(&queue_files.read(&queue.topic, queue.queue_id, at, 1)?) else {
                return Ok(false);
            };
            // A queue that a broker deleted and began again has only newer messages.
            let is_newer = !entry.is_padding() && entry.physical_offset.0 >= snapshot.position;
            if is_newer || !leads_to_its_message(log, &queue.topic, queue.queue_id, at, entry) {
                return Ok(false);
            }
            if at + 1 == queue.next {
                break;
            }
            at = ((at / per_file + 1) * per_file).min(queue.next - 1);
        }
    }
    Ok(true)
}

/// Whether an entry names the record that says so itself; one that stands for nothing, or whose record is gone or damaged,
/// is not the queue's fault.
fn leads_to_its_message(log: &CommitLog, topic: &str, queue_id: QueueId, queue_offset: u64, entry: Entry) -> bool {
    if entry.is_padding() || entry.physical_offset.0 < log.segments.first() {
        return true;
    }
    let is_it = |view: &RecordView<'_>, _: &[u8]| {
        (view.topic, view.queue_id, view.queue_offset.0) == (topic, queue_id, queue_offset) && view.size == entry.size
    };
    match log.read(entry.physical_offset, u64::MAX, is_it) {
        Ok(is_it) => is_it,
        Err(error) => error.kind() == ErrorKind::Corrupted,
    }
}

/// Whether the record at the log's very beginning is a delayed message: plain records name that place, too.
#[derive(Clone, Copy)]
enum AtZero {
    NotAsked,
    Delayed,
    Other,
}

struct Run<'a> {
    log: &'a CommitLog,
    queue_files: &'a QueueFiles,
    index: Option<&'a mut IndexFiles>,
    /// Records up to here are in the index files; `None`: none are.
    index_covered: Option<PhysicalOffset>,
    known: &'a Known,
    settings: &'a Settings,
    /// txstore alone wrote the log.
    all_ours: bool,
    at_zero: AtZero,
    queues: QueueFacts,
    out: Recovered,
}

impl<'a> Run<'a> {
    fn begin(
        log: &'a CommitLog,
        queue_files: &'a QueueFiles,
        mut index: Option<&'a mut IndexFiles>,
        settings: &'a Settings,
        snapshot: Option<Snapshot>,
        known: &'a Known,
    ) -> Result<Self> {
        let first = log.segments.first();
        let mut index_covered = None;
        if let Some(index) = index.as_deref_mut() {
            if !known.clean && !known.read_only {
                index.roll_back(snapshot.as_ref().and_then(|snapshot| snapshot.index.as_ref()))?;
            }
            // A crash leaves a reader with index files that it may not mend: it keeps entries of its own.
            index_covered = if known.clean || !known.read_only { index.end() } else { None };
        }
        let mut out = Recovered::nothing(first, known.half_progress);
        if let Some(snapshot) = snapshot {
            for queue in snapshot.queues {
                out.dispatcher.queues.insert(ConsumeQueue::new(queue.topic, queue.queue_id, queue.first, queue.next));
            }
            out.table = snapshot.table;
            out.end = snapshot.position;
            out.anchor = snapshot.anchor;
            out.newest = TimestampMs(snapshot.newest_store_ms);
            out.scanned_from = snapshot.position;
            out.forget_gone(first);
        }
        out.delays.clone_from(&known.delays);
        Ok(Self {
            log,
            queue_files,
            index,
            index_covered,
            known,
            settings,
            all_ours: settings.is_all_ours(first, u64::MAX),
            at_zero: AtZero::NotAsked,
            queues: QueueFacts::new(),
            out,
        })
    }

    fn record(&mut self, view: &RecordView<'_>, bytes: &[u8]) -> Result<()> {
        let request = DispatchRequest::of(view);
        if request.has_entry() {
            self.enqueue(view, &request)?;
        }
        if self.index_covered.is_none_or(|covered| view.physical_offset > covered) {
            self.out.dispatcher.index(&request);
        }
        self.out.replay.apply(&mut self.out.table, view);
        self.note_delivery(view);
        self.out.newest = self.out.newest.max(view.store_timestamp);
        self.out.end = view.physical_offset.0 + u64::from(view.size);
        self.out.anchor = Some(Anchor {
            physical_offset: view.physical_offset.0,
            size: view.size,
            // Only the last one's is needed; `finish` computes it.
            crc: 0,
        });
        debug_assert_eq!(to_u64(bytes.len()), u64::from(view.size));
        self.settle_if_much()
    }

    /// A delivered message says which delayed one it was: that one is not delivered again, whatever the file says.
    fn note_delivery(&mut self, view: &RecordView<'_>) {
        let place = view.prepared_transaction_offset;
        let is_late = view.transaction_type() != TransactionType::None || place >= view.physical_offset;
        if is_late || self.known.may_grow() || (place.0 == 0 && !self.delayed_at_zero()) {
            return;
        }
        // Records in front of this one were read before; what is gone or bad is no delayed message that still waits.
        let found = self.log.read(place, view.physical_offset.0, |waiting, _| {
            is_delivery_of(view, waiting).then_some((waiting.queue_id, waiting.queue_offset.0 + 1))
        });
        if let Ok(Some((queue_id, next))) = found {
            let progress = self.out.delays.entry(queue_id).or_default();
            *progress = next.max(*progress);
        }
    }

    fn delayed_at_zero(&mut self) -> bool {
        if matches!(self.at_zero, AtZero::NotAsked) {
            let delayed = self.log.read(PhysicalOffset(0), u64::MAX, |first, _| first.topic == SCHEDULE_TOPIC);
            self.at_zero = if delayed.unwrap_or(false) { AtZero::Delayed } else { AtZero::Other };
        }
        matches!(self.at_zero, AtZero::Delayed)
    }

    fn damage(&self, at: u64, what: &str) -> Error {
        match self.log.segments.at(at) {
            Some(segment) => segment.corrupt(at, what),
            None => {
                Error::StoreCorrupt { file: crate::commit_log::DIRECTORY.into(), offset: at, what: what.to_owned() }
            }
        }
    }

    /// Tells the end of the log, after which a writer cuts what is there, from damage, which is an error.
    fn judge_tail(&mut self, tail: &Tail) -> Result<()> {
        let end = self.out.end;
        if end >= self.known.limit || mutated(Mutant::CutBelowDurable) {
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
                self.out.warn(format!("a torn record at {end} after the durable end was cut off: {why}"));
            }
            log_view::Tail::Stale => {
                self.out.stale = true;
                self.out.warn(format!("bytes that a broker left after its end at {end} were cut off: {why}"));
            }
            log_view::Tail::Damaged(cause) => {
                return Err(match (self.log.segments.at(end), tail) {
                    (None, _) => self.log.segments.missing(end, verdict.written),
                    (Some(segment), Tail::Bad(why)) => segment.corrupt(end, why.as_str()),
                    (Some(segment), _) => segment.corrupt(end, cause.text()),
                });
            }
        }
        self.out.torn_bytes = verdict.bytes_end - end;
        Ok(())
    }

    /// The store time of the last record.
    fn last_ms(&self) -> Option<i64> {
        let last = PhysicalOffset(self.out.anchor?.physical_offset);
        self.log.read(last, u64::MAX, |view, _| view.store_timestamp.0).ok()
    }

    fn finish(mut self) -> Result<Recovered> {
        self.forget_deleted_queues();
        self.settle()?;
        self.add_silent_queues()?;
        self.out.stale |= self.has_stale_entries()?;
        self.clamp_delays();
        // A reader that follows a writer goes on with the replay: there, what is decided stays until its op is read.
        if !self.known.followed {
            self.out.unnamed = self.out.replay.finish(&mut self.out.table);
        }
        if let Some(anchor) = &mut self.out.anchor {
            anchor.crc =
                self.log.read(PhysicalOffset(anchor.physical_offset), u64::MAX, |_, bytes| crc32fast::hash(bytes))?;
        }
        Ok(self.out)
    }

    /// Whether a queue's file goes on after the queue: a broker that recovered leaves old entries there.
    fn has_stale_entries(&self) -> Result<bool> {
        let closed = self.known.end.settings.ranges.last().and_then(|range| range.end);
        if !self.known.clean || self.known.read_only || closed == Some(self.out.end) {
            return Ok(false);
        }
        for (_, queue) in self.out.dispatcher.queues.iter() {
            let after = self.queue_files.read(&queue.topic, queue.queue_id, queue.next(), 1)?;
            if Entry::from_bytes(&after).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A progress beyond its queue's end, as lost power can leave it, is brought back.
    fn clamp_delays(&mut self) {
        let mut beyond = Vec::new();
        for (queue_id, progress) in &mut self.out.delays {
            let queues = &self.out.dispatcher.queues;
            let next = queues.find(SCHEDULE_TOPIC, *queue_id).map_or(0, |slot| queues.next(slot));
            if *progress > next {
                beyond.push(format!("delayed messages of {SCHEDULE_TOPIC}/{queue_id} go on at {next}, not {progress}"));
                *progress = next;
            }
        }
        for warning in beyond {
            self.out.warn(warning);
        }
    }
}

/// Writes what stands in a range of the log once more. After a sync that failed the page cache shows bytes that the
/// disk does not have and that no later sync would write; written again, they are durable with the next one.
pub fn rewrite_log(log: &CommitLog, from: u64, end: u64) -> Result<()> {
    for segment in log.segments.all() {
        if segment.end() > from && segment.base() <= end {
            segment.renew_length()?;
        }
        let (mut at, stop) = (from.max(segment.base()), end.min(segment.end()));
        while at < stop && !mutated(Mutant::NoRewrite) {
            let next = stop.min(at + REWRITTEN_AT_ONCE);
            let bytes = segment.bytes(at..next)?.into_owned();
            segment.write(&bytes, at)?;
            at = next;
        }
    }
    Ok(())
}

/// Zeros behind the log's end, to the end of its file, and no file behind that (L3: what was cut never comes back).
pub fn cut_log(log: &CommitLog, end: u64) -> Result<()> {
    if let Some(segment) = log.segments.at(end) {
        if !mutated(Mutant::NoZeroing) {
            segment.punch(end..segment.end())?;
        }
        segment.sync()?;
    }
    log.segments.remove_from(end + 1)
}
