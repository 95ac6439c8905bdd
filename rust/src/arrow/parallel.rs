//! Reads a range of the log with several threads.
//!
//! In:     a store's directory, options.
//! Out:    the batches of a scan, in the log's order.
//! Always: each thread reads one piece of the log after the other. At most `PIECES_AHEAD` pieces for each thread are in
//!         memory as batches. Dropping the stream stops the threads.
//! Not here: records (`scan`).

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};

use super::options::invalid;
use super::schema::schema;
use super::{Counts, Log, Scan, ScanOptions};
use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::{Condvar, Mutex};

/// How many pieces a thread may be ahead of the reader.
const PIECES_AHEAD: usize = 2;

type Batch = std::result::Result<RecordBatch, ArrowError>;

/// How a scan is shared among threads.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    /// How many read.
    pub count: usize,
    /// How much of the log a thread reads at a time.
    pub piece_bytes: u64,
}

impl Threads {
    /// A piece is so large that threads seldom wait for each other, and has only a few batches.
    pub const PIECE_BYTES: u64 = 32 << 20;
    const COUNT_MAX: usize = 256;

    /// Checks the numbers.
    pub fn check(self) -> Result<Self> {
        let Self { count, piece_bytes } = self;
        if !(1..=Self::COUNT_MAX).contains(&count) {
            return Err(invalid("threads", format!("must be between 1 and {}, got {count}", Self::COUNT_MAX)));
        }
        if piece_bytes == 0 {
            return Err(invalid("piece_bytes", "must be 1 or more, got 0".into()));
        }
        Ok(self)
    }
}

/// A stream of batches that several threads read.
#[derive(Debug)]
pub struct ParallelScan {
    shared: Arc<Shared>,
    schema: Arc<Schema>,
    /// The piece that is read out.
    current: Option<Receiver<Batch>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// A piece was begun or read out, or a thread has ended.
    changed: Condvar,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct State {
    /// What no thread has begun.
    rest: Range<u64>,
    /// Pieces that were begun and are not read out, in the log's order.
    pieces: VecDeque<Receiver<Batch>>,
    pieces_max: usize,
    piece_bytes: u64,
    running: usize,
    is_stopped: bool,
}

impl ParallelScan {
    /// Opens a stream over the store in a directory.
    pub fn open(path: &Path, options: &ScanOptions, counts: &Arc<Counts>, threads: Threads) -> Result<Self> {
        options.check()?;
        let Threads { count, piece_bytes } = threads.check()?;
        let rest = Scan::whole_range(&mut Log::open(path)?, options, counts)?;
        // Pieces are cut between records, and the times' range is found already.
        let options = Arc::new(ScanOptions { is_cut: true, start: None, end: None, ..options.clone() });
        let mut stream = Self {
            schema: schema(&options.columns),
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    rest,
                    pieces: VecDeque::new(),
                    pieces_max: count * PIECES_AHEAD,
                    piece_bytes,
                    running: 0,
                    is_stopped: false,
                }),
                changed: Condvar::default(),
                counts: Arc::clone(counts),
            }),
            current: None,
            threads: Vec::new(),
        };
        for _ in 0..count {
            let scan = Scan::open(path, Arc::clone(&options), Arc::clone(counts))?;
            let shared = Arc::clone(&stream.shared);
            stream.shared.state.lock().running += 1;
            let thread = std::thread::Builder::new().name("txstore-scan".into());
            let thread = thread.spawn(move || Reader { scan, shared }.run()).map_err(|source| {
                stream.shared.state.lock().running -= 1;
                Error::from_io("start a thread for", path, source)
            })?;
            stream.threads.push(thread);
        }
        Ok(stream)
    }
}

impl Iterator for ParallelScan {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        loop {
            if let Some(batch) = self.current.as_ref().and_then(|piece| piece.recv().ok()) {
                return Some(batch);
            }
            let mut state = self.shared.state.lock();
            self.current = loop {
                match state.pieces.pop_front() {
                    None if state.running > 0 => state = self.shared.changed.wait(state),
                    piece => break piece,
                }
            };
            drop(state);
            self.shared.changed.notify_all();
            self.current.as_ref()?;
        }
    }
}

impl RecordBatchReader for ParallelScan {
    fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema)
    }
}

impl Drop for ParallelScan {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_stopped = true;
        state.pieces.clear();
        drop(state);
        self.current = None;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

/// What one thread does.
struct Reader {
    scan: Scan,
    shared: Arc<Shared>,
}

impl Reader {
    fn run(mut self) {
        while let Some((piece, batches)) = self.begin() {
            if let Err(error) = piece.and_then(|piece| self.scan.restart(piece)) {
                let text = error.to_string().replace('\0', "\\0");
                *self.shared.counts.failure.lock() = Some(error);
                let _ = batches.send(Err(ArrowError::ExternalError(text.into())));
                return;
            }
            for batch in &mut self.scan {
                let is_last = batch.is_err();
                // Nobody reads further after an error, or once the stream is dropped.
                if batches.send(batch).is_err() || is_last {
                    return;
                }
            }
        }
    }

    /// Takes the next piece; `None` if there is none, or the stream was dropped.
    fn begin(&self) -> Option<(Result<Range<u64>>, Sender<Batch>)> {
        let mut state = self.shared.state.lock();
        while state.pieces.len() >= state.pieces_max && !state.is_stopped {
            state = self.shared.changed.wait(state);
        }
        if state.is_stopped || state.rest.is_empty() {
            return None;
        }
        let (start, end) = (state.rest.start, state.rest.end);
        let limit = start.saturating_add(state.piece_bytes);
        // Under the lock, because the next piece begins where this one ends.
        let cut = if limit < end { self.scan.log().boundary(limit, end) } else { Ok(end) };
        state.rest = *cut.as_ref().unwrap_or(&end)..end;
        let (sender, receiver) = channel();
        state.pieces.push_back(receiver);
        drop(state);
        self.shared.changed.notify_all();
        Some((cut.map(|cut| start..cut), sender))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.state.lock().running -= 1;
        self.shared.changed.notify_all();
    }
}
