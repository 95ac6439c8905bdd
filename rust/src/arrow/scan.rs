//! Streams a range of the log as record batches.
//!
//! In:     a log, options.
//! Out:    batches, in the log's order.
//! Always: memory is bounded by a window, a batch and one record. Rows that were read while the writer changed more
//!         than the end are read again.
//! Not here: how far the log may be read.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};

use super::Log;
use super::batch::{Batch, Row};
use super::folded::Folded;
use super::options::{BadRecords, ScanOptions, TopicMemory, invalid};
use super::schema::View;
use super::statistics;
use crate::base::error::{Error, Result};
use crate::base::names::{HALF_TOPIC, OP_TOPIC};
use crate::log::commit_log::{Step, UNWRITTEN, too_old};
use crate::record::compression::{BODY_MAX, decompress};
use crate::record::layout::{HEAD_MAX, SYS_COMPRESSED};
use crate::record::{DecodeError, RecordView};
use crate::recovery::log_view::{LOOKS_MAX, Pace, Skips, StatisticsFiles, Tail, Tally, Window};
use crate::storage::ahead::ask_for;
use crate::transaction::op::parse_op_body;

use crate::base::sync::unmodelled::Mutex;
use crate::base::units::to_usize;

/// After this many bytes a batch is returned even without rows, so that a waiting caller regains control.
const SILENT_BYTES_MAX: u64 = 1 << 30;
/// Shown as -1: a final or discarded copy names its half message by physical offset alone.
const NO_HALF: u64 = u64::MAX;
/// Rows that go into their columns together: few enough that the bytes they borrow are still in the cache.
const CHUNK_ROWS: usize = 32;
/// If bodies are skipped, the head of the record this many records ahead is prefetched ...
const HEADS_AHEAD: usize = 8;
/// ... with this many last bytes of the record before it: its topic and properties, or what fits two cache lines.
const TAIL_BYTES: usize = 128;

/// Counters shared by the streams of one scan.
#[derive(Debug, Default)]
pub struct Counts {
    /// Damaged ranges that were skipped.
    pub bad_records: AtomicU64,
    /// Bytes of the log that were skipped with them.
    pub bad_bytes: AtomicU64,
    /// Bytes that retention had removed.
    pub lost_bytes: AtomicU64,
    /// The error of the last stream that failed.
    pub(crate) failure: Mutex<Option<Error>>,
}

/// A stream of batches.
#[derive(Debug)]
pub struct Scan {
    log: Log,
    options: Arc<ScanOptions>,
    counts: Arc<Counts>,
    /// The offset of the next record to read.
    at: u64,
    /// The store time of the record before it, if that was read.
    last_ms: Option<i64>,
    /// No record at or after this offset is shown; `u64::MAX`: the scan ends where nothing is written.
    end: u64,
    /// What the queues show not to be wanted.
    skips: Option<Skips>,
    /// The next range that is skipped.
    skip: Range<u64>,
    batch: Batch,
    batch_bytes: usize,
    topics: TopicMemory,
    takes_body: bool,
    window: Option<Window>,
    pace: Pace,
    /// In the view of transactions: the fold, once it has begun.
    folded: Option<Folded>,
    /// In the view of statistics: the rows that are left, once they are counted.
    tallies: Option<Vec<Tally>>,
    is_done: bool,
}

/// Why reading of a window stopped.
enum Left {
    /// Its records are read.
    Read,
    /// The batch is full.
    Full,
    /// The last record begins before this window ends and continues after it.
    Needs(u64),
    /// The scan is over.
    Over,
}

impl Scan {
    /// Opens a stream over the store in a directory.
    pub fn open(path: &Path, options: Arc<ScanOptions>, counts: Arc<Counts>) -> Result<Self> {
        Self::over(Log::open(path)?, options, counts)
    }

    /// Creates a stream over a log.
    pub fn over(mut log: Log, options: Arc<ScanOptions>, counts: Arc<Counts>) -> Result<Self> {
        options.check()?;
        if let Some(path) = &options.statistics_path {
            StatisticsFiles::check(path, &log)?;
        }
        let ((start, end), skips) = log.steady(|log| {
            let (start, end) = Self::range(log, &options)?;
            Ok(((start, end), log.skips_of(&options, start..end)?))
        })?;
        Self::count_lost(&log, &options, &counts);
        let batch = Batch::new(&options.columns);
        let takes_body = options.takes_body();
        let topics = TopicMemory::default();
        Ok(Self {
            log,
            options,
            counts,
            at: start,
            last_ms: None,
            end,
            skip: Self::first_skip(skips.as_ref()),
            skips,
            batch,
            batch_bytes: 0,
            topics,
            takes_body,
            window: None,
            pace: Pace::default(),
            folded: None,
            tallies: None,
            is_done: false,
        })
    }

    /// Returns the range that options choose, both at record boundaries. Without an end it is the visible end.
    pub(super) fn whole_range(log: &mut Log, options: &ScanOptions, counts: &Counts) -> Result<Range<u64>> {
        let range = log.steady(|log| {
            let (start, end) = Self::range(log, options)?;
            if options.is_cut && end != u64::MAX {
                return Ok(start..end);
            }
            let visible = log.visible_end(None)?;
            Ok(start..if end < visible { log.boundary(end, visible)? } else { visible }.max(start))
        })?;
        Self::count_lost(log, options, counts);
        Ok(range)
    }

    /// Counts what retention has removed of the range that is asked for. Of many ranges, each counts its own loss.
    fn count_lost(log: &Log, options: &ScanOptions, counts: &Counts) {
        let first = log.first();
        let lost = first.min(options.end.unwrap_or(first)).saturating_sub(options.start.unwrap_or(first));
        counts.lost_bytes.fetch_add(lost, Ordering::Relaxed);
    }

    /// Continues with another range, which begins and ends between records.
    pub(super) fn restart(&mut self, range: Range<u64>) -> Result<()> {
        self.batch.clear();
        (self.at, self.end) = (range.start, range.end);
        (self.window, self.last_ms, self.batch_bytes, self.is_done) = (None, None, 0, false);
        self.skips = self.log.skips_of(&self.options, range)?;
        self.skip = Self::first_skip(self.skips.as_ref());
        Ok(())
    }

    pub(super) const fn log(&self) -> &Log {
        &self.log
    }

    /// Returns where the range begins and ends, at record boundaries.
    fn range(log: &Log, options: &ScanOptions) -> Result<(u64, u64)> {
        let first = log.first();
        let asked = options.start.unwrap_or(first);
        if asked < first && options.fail_on_data_loss {
            return Err(too_old(asked, first));
        }
        let start = asked.max(first);
        let end = options.end.unwrap_or_else(|| log.published_end().unwrap_or(u64::MAX));
        if options.is_cut || (start == first && options.end.is_none() && !options.is_timed()) {
            return Ok((start, end.max(start)));
        }
        let visible = log.visible_end(None)?;
        let outside = |option: &str, offset: u64| {
            invalid(
                option,
                format!("{offset} is after the end of the log\nhint: the log contains {first} to {visible}"),
            )
        };
        if start > visible {
            return Err(outside("start_physical_offset", start));
        }
        if let Some(end) = options.end.filter(|end| *end > visible) {
            return Err(outside("end_physical_offset", end));
        }
        let start = log.boundary(start, visible)?;
        let within = log.time_range(start..end.min(visible).max(start), &options.store_ms)?;
        // An end that does not restrict the range stays as it is: the log may have grown since.
        Ok((within.start, if within.end < end.min(visible) { within.end } else { end.max(within.start) }))
    }

    /// Returns the next batch; `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        match self.options.view {
            View::Transactions => return self.next_folded(),
            View::Statistics => return self.next_statistics(),
            _ => {}
        }
        let begin = self.at;
        for _ in 0..LOOKS_MAX {
            let read = self.read();
            if self.log.is_still()? {
                return read.and_then(|()| self.hand_out(begin));
            }
            // The writer reopened the store in the meantime, so bytes past the end that it found then are not valid.
            self.batch.clear();
            (self.at, self.window, self.is_done, self.batch_bytes) = (begin, None, false, 0);
            self.last_ms = None;
            self.log.refresh()?;
            self.skips = self.log.skips_of(&self.options, begin..self.end)?;
            self.skip = Self::first_skip(self.skips.as_ref());
        }
        Err(Error::StoreClosed)
    }

    fn next_folded(&mut self) -> Result<Option<RecordBatch>> {
        if self.is_done {
            return Ok(None);
        }
        let folded = match &mut self.folded {
            Some(folded) => folded,
            None => self.folded.insert(Folded::of(&mut self.log, self.options.half_missing)?),
        };
        self.is_done = !folded.append(&mut self.log, &mut self.batch, self.options.batch_rows)?;
        if self.is_done && self.batch.rows() == 0 { Ok(None) } else { self.finish(0) }
    }

    fn next_statistics(&mut self) -> Result<Option<RecordBatch>> {
        let mut rows = match self.tallies.take() {
            Some(rows) => rows,
            None => self.tally()?,
        };
        let rest = rows.split_off(rows.len().min(self.options.batch_rows));
        statistics::append(&mut self.batch, &rows);
        self.tallies = Some(rest);
        if rows.is_empty() { Ok(None) } else { self.finish(0) }
    }

    fn tally(&mut self) -> Result<Vec<Tally>> {
        let path = self.options.statistics_path.as_deref();
        let (folder, found) = self.log.steady(|log| {
            let folder = path.map(|path| StatisticsFiles::at(path, log)).transpose()?;
            let found = log.tally(folder.as_ref())?;
            Ok((folder, found))
        })?;
        if let Some(folder) = folder {
            folder.remove_below(self.log.first())?;
        }
        Ok(found)
    }

    fn hand_out(&mut self, begin: u64) -> Result<Option<RecordBatch>> {
        self.batch_bytes = 0;
        if self.batch.rows() == 0 && (self.is_done || self.at == begin) {
            return Ok(None);
        }
        self.finish(begin)
    }

    fn finish(&mut self, begin: u64) -> Result<Option<RecordBatch>> {
        self.batch.finish().map(Some).map_err(|why| self.log.corrupt(begin, &why.to_string()))
    }

    /// Reads records until the batch is full or the range is over.
    fn read(&mut self) -> Result<()> {
        let (begin, mut needed) = (self.at, 0);
        while !self.is_done && self.at - begin < SILENT_BYTES_MAX {
            if self.at >= self.skip.start {
                self.skip_ahead();
                continue;
            }
            let Some(window) = self.take_window(needed)? else {
                self.is_done = true;
                return self.check_written();
            };
            needed = 0;
            let left = self.read_window(&window)?;
            self.window = Some(window);
            match left {
                Left::Read => {}
                Left::Needs(bytes) => {
                    needed = bytes;
                    self.window = None;
                }
                Left::Full => return Ok(()),
                Left::Over => self.is_done = true,
            }
        }
        Ok(())
    }

    /// Returns the first value of `skip`: the scan asks for the real one at once, if anything can be skipped.
    const fn first_skip(skips: Option<&Skips>) -> Range<u64> {
        if skips.is_some() { 0..0 } else { u64::MAX..u64::MAX }
    }

    /// Skips what need not be read, if it begins here, and finds the next such range.
    fn skip_ahead(&mut self) {
        if self.at == self.skip.start && self.skip.end > self.at {
            (self.at, self.last_ms) = (self.skip.end, None);
        }
        self.skip = self.skips.as_mut().map_or(u64::MAX..u64::MAX, |skips| skips.next(self.at));
    }

    /// Returns the window that holds the next record; `None` at the end of the range.
    fn take_window(&mut self, needed: u64) -> Result<Option<Window>> {
        if let Some(window) = self.window.take().filter(|window| window.range.contains(&self.at)) {
            return Ok(Some(window));
        }
        if self.at >= self.end {
            return Ok(None);
        }
        match self.map(needed) {
            Err(Error::OffsetTooOld { minimum, .. }) if !self.options.fail_on_data_loss => {
                self.log.refresh()?;
                let next = self.log.first().max(minimum).min(self.end);
                self.counts.lost_bytes.fetch_add(next.saturating_sub(self.at), Ordering::Relaxed);
                self.at = next;
                if self.at >= self.end { Ok(None) } else { self.map(0) }
            }
            other => other,
        }
    }

    fn map(&mut self, needed: u64) -> Result<Option<Window>> {
        let reads = self.skip.start.max(self.at.saturating_add(needed));
        let until = if self.at < self.skip.start { reads.min(self.reach()) } else { self.reach() };
        let limit = self.pace.next(self.at, until, needed);
        let found = self.log.window(self.at, limit, needed)?;
        if found.is_some() || self.end == u64::MAX {
            return Ok(found);
        }
        // The writer may have continued in another file since.
        self.log.refresh()?;
        if self.at < self.log.first() {
            return Err(too_old(self.at, self.log.first()));
        }
        self.log.window(self.at, limit, needed)
    }

    /// Decodes the window's records into rows of the batch.
    fn read_window(&mut self, window: &Window) -> Result<Left> {
        let bytes = window.from(self.at);
        let mut rest: &[u8] = &bytes;
        let mut rows = Vec::with_capacity(CHUNK_ROWS);
        loop {
            let left = self.read_chunk(window, &mut rest, &mut rows)?;
            self.batch.append(&rows);
            rows.clear();
            if let Some(left) = left {
                return Ok(left);
            }
        }
    }

    /// Decodes the next records into rows; `None` if there are enough for now.
    fn read_chunk<'a>(
        &mut self,
        window: &Window,
        rest: &mut &'a [u8],
        rows: &mut Vec<Row<'a>>,
    ) -> Result<Option<Left>> {
        while rows.len() < CHUNK_ROWS {
            if self.at >= self.end {
                self.check_end()?;
                return Ok(Some(Left::Over));
            }
            if rest.is_empty() || self.at >= self.skip.start {
                return Ok(Some(Left::Read));
            }
            match window.step(rest, self.at, self.log.verify(self.at, self.last_ms, self.takes_body)) {
                Step::Record(view) => {
                    let size = to_usize(view.size.into());
                    self.ask_ahead(rest, size);
                    let wanted = self.options.wants(&view, &mut self.topics);
                    if wanted && !self.push(view, rows)? {
                        return Ok(Some(Left::Full));
                    }
                    self.at += u64::from(view.size);
                    self.last_ms = Some(view.store_timestamp.0);
                    *rest = rest.get(size..).unwrap_or_default();
                }
                Step::FileEnd => {
                    self.at = window.file_end;
                    *rest = &[];
                }
                other => return self.meet(other, window).map(Some),
            }
        }
        Ok(None)
    }

    /// Prefetches the parts of later records that will be read, because memory is slow to respond. Often all have one
    /// size.
    #[inline]
    fn ask_ahead(&self, rest: &[u8], size: usize) {
        if self.takes_body {
            ask_for(rest, 2 * size..3 * size);
        } else {
            let next = HEADS_AHEAD * size;
            ask_for(rest, next.saturating_sub(TAIL_BYTES)..next + HEAD_MAX);
        }
    }

    /// Adds a record's rows; `false` if they must go into the next batch.
    #[inline]
    fn push<'a>(&mut self, view: RecordView<'a>, rows: &mut Vec<Row<'a>>) -> Result<bool> {
        let filled = self.batch.rows() + rows.len();
        let Some(body) = self.body(&view)? else { return Ok(true) };
        let bytes = to_usize(view.size.into()).max(body.len());
        if filled >= self.options.batch_rows
            || (filled > 0 && self.batch_bytes.saturating_add(bytes) > self.options.batch_bytes)
        {
            return Ok(false);
        }
        self.batch_bytes = self.batch_bytes.saturating_add(bytes);
        let names_halves = match self.options.view {
            View::Ops => true,
            View::Traces => view.topic == OP_TOPIC,
            _ => false,
        };
        if names_halves {
            let row = |half_queue_offset| Row { view, body: Cow::Borrowed(&[]), half_queue_offset };
            rows.extend(parse_op_body(view.body).map(row));
        } else {
            let half_queue_offset = if view.topic == HALF_TOPIC { view.queue_offset.0 } else { NO_HALF };
            rows.push(Row { view, body, half_queue_offset });
        }
        Ok(true)
    }

    /// Returns the body as the application sent it, if it is selected; `None` if it cannot be decompressed and is
    /// skipped.
    #[inline]
    fn body<'a>(&self, view: &RecordView<'a>) -> Result<Option<Cow<'a, [u8]>>> {
        if !self.takes_body {
            return Ok(Some(Cow::Borrowed(&[])));
        }
        if view.sys_flag & SYS_COMPRESSED == 0 {
            return Ok(Some(Cow::Borrowed(view.body)));
        }
        match decompress(view.sys_flag, view.body, BODY_MAX) {
            Ok(body) => Ok(Some(body)),
            Err(why) => self.bad(view.physical_offset.0, view.size.into(), &why).map(|()| None),
        }
    }

    /// Counts damaged bytes, or fails with an error that names them.
    fn bad(&self, at: u64, bytes: u64, why: &str) -> Result<()> {
        if self.options.bad_records == BadRecords::Fail {
            let hint = "hint: `txstore store check` names all damage; the option bad_records=\"skip\" (Spark: badRecords=skip) reads on after it";
            return Err(self.log.corrupt(at, &format!("{why}\n{hint}")));
        }
        self.counts.bad_records.fetch_add(1, Ordering::Relaxed);
        self.counts.bad_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Handles an offset where no record begins.
    fn meet(&mut self, found: Step<'_>, window: &Window) -> Result<Left> {
        let why = match found {
            Step::Unwritten => UNWRITTEN.to_owned(),
            Step::Bad(DecodeError::Truncated { needed })
                if window.range.end < window.file_end && self.at + u64::from(needed) > window.range.end =>
            {
                let more = self.log.window(self.at, self.reach(), needed.into())?;
                match more {
                    Some(wider) if wider.range.end >= self.at + u64::from(needed) => {
                        return Ok(Left::Needs(needed.into()));
                    }
                    _ => format!("the record has {needed} bytes and extends past the visible end"),
                }
            }
            Step::Bad(why) => why.to_string(),
            Step::BadBlank(why) => why,
            Step::Record(_) | Step::FileEnd => return Ok(Left::Read),
        };
        let next = if let Some(end) = self.known_end() {
            // Records are missing here.
            self.log.resume_before(self.at, end)?
        } else {
            let verdict = self.log.verdict(self.at, self.last_ms)?;
            if !matches!(verdict.tail, Tail::Damaged(_)) {
                return Ok(Left::Over);
            }
            self.log.resume_after(self.at, &verdict)?
        };
        self.bad(self.at, next - self.at, &why)?;
        self.at = next;
        self.window = None;
        Ok(Left::Read)
    }

    /// Returns where the scan ends, if that is known: also if a writer has opened the store since the scan began.
    fn known_end(&self) -> Option<u64> {
        if self.end < u64::MAX { Some(self.end) } else { self.log.published_end() }
    }

    /// Returns how far a record may reach: past the end of a range that was not cut at records, never past the visible
    /// end.
    fn reach(&self) -> u64 {
        if self.options.is_cut { self.end } else { u64::MAX }
    }

    /// Checks that a range with a known end ends exactly there.
    fn check_end(&self) -> Result<()> {
        if self.at > self.end && self.options.is_cut {
            let what = format!("a record reaches across {}, where another should begin", self.end);
            return Err(self.log.corrupt(self.at, &what));
        }
        Ok(())
    }

    /// Checks that the log may end where there is no further file.
    fn check_written(&self) -> Result<()> {
        let written = if let Some(end) = self.known_end() {
            end
        } else {
            let verdict = self.log.verdict(self.at, self.last_ms)?;
            if matches!(verdict.tail, Tail::Damaged(_)) { verdict.written } else { self.at }
        };
        if self.at < written {
            let what = format!("the file that held the records up to {written} is missing");
            return self.bad(self.at, written - self.at, &what);
        }
        self.check_end()
    }

    /// Returns the physical offset that the scan has reached, as far as is known.
    pub fn position(&self) -> u64 {
        self.at
    }
}

impl Iterator for Scan {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        // The caller is C, which a panic must not reach.
        let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.next_batch()));
        let next =
            next.unwrap_or_else(|_| Err(Error::StorePoisoned { why: "a panic in the scan, which is a bug".into() }));
        next.map_err(|error| {
            self.is_done = true;
            self.batch.clear();
            let text = error.to_string().replace('\0', "\\0");
            *self.counts.failure.lock() = Some(error);
            ArrowError::ExternalError(text.into())
        })
        .transpose()
    }
}

impl RecordBatchReader for Scan {
    fn schema(&self) -> Arc<Schema> {
        self.batch.schema()
    }
}
