//! The timer that a RocketMQ 5 broker keeps next to the log, in which messages wait for their time.
//!
//! In:     the files that a broker leaves: where it reads on in the queue of its timer, and up to which time it has
//!         delivered.
//! Out:    whether messages still wait there; where the next broker begins to read.
//! Always: reads, except for `reset`.
//! Not here: moving messages there and back (`hand_over`).
//!
//! | bytes | field of `config/timercheck`, big-endian                |
//! |-------|---------------------------------------------------------|
//! | 0     | everything due before is delivered, ms; 0: no broker ran |
//! | 8     | how far `timerlog` is on disk                           |
//! | 16    | the next entry of the queue to read                     |
//! | 24    | the same of the master                                  |
//! | 32    | version of the data: 3 × 8                              |
//! | 56    | zeros                                                   |
//! | 4,080 | txstore's own, which a broker leaves: `txstore` and a 0 |
//! | 4,088 | the entry at which the broker began to read             |

use crate::base::error::Result;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::WHEEL_TOPIC;
use crate::base::units::{PhysicalOffset, to_u64, to_usize};
use crate::index::consume_queue::{self, ENTRY_SIZE, Entry};
use crate::index::timed;
use crate::log::commit_log;
use crate::record::RecordView;
use crate::record::decode::{Scanned, Verify, decode};
use crate::record::properties::TIMER_OUT_MS;
use crate::recovery::log_view::{ABORT, GUARD, foreign, log_file_size};
use crate::storage::config_file::replace_file;
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::Settings;
use crate::storage::{OpenMode, Storage};

const CHECKPOINT: &str = "config/timercheck";
const CHECKPOINT_BYTES: usize = 4_096;
const READ_MS_AT: u64 = 0;
const NEXT_ENTRY_AT: [u64; 2] = [16, 24];
const MARK_AT: u64 = 4_080;
const MARK: [u8; 8] = *b"txstore\0";
const FIRST_ENTRY_AT: u64 = 4_088;

/// The beginning of the names of the files that hold its slots.
const WHEEL: &str = "timerwheel";
const TIMER_LOG: &str = "timerlog";

/// How far a broker's timer was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BrokerTimer {
    /// It has delivered everything that was due before, in milliseconds since the epoch. 0: no broker has run since
    /// `reset`.
    pub(super) read_ms: i64,
    /// The next entry of its queue that it reads.
    pub(super) next_entry: u64,
    /// The entry at which it began to read, after `reset`. Those before are not its own.
    pub(super) first_entry: u64,
}

impl BrokerTimer {
    /// Returns whether the file exists. It does not in a copy of a broker's log, and where nothing waited yet.
    pub(super) fn is_known(storage: &dyn Storage) -> Result<bool> {
        Ok(storage.len(CHECKPOINT)?.is_some_and(|length| length >= to_u64(CHECKPOINT_BYTES)))
    }

    /// Reads the file; the state of a timer that never ran if there is none.
    pub(super) fn load(storage: &dyn Storage) -> Result<Self> {
        if !Self::is_known(storage)? {
            return Ok(Self::default());
        }
        let file = storage.open(CHECKPOINT, OpenMode::Read)?;
        let field = |at| {
            let mut bytes = [0; 8];
            file.read_at(&mut bytes, at).map(|()| bytes)
        };
        let number = |at| field(at).map(|bytes| u64::try_from(i64::from_be_bytes(bytes)).unwrap_or(0));
        let [own, masters] = NEXT_ENTRY_AT;
        let is_marked = field(MARK_AT)? == MARK;
        Ok(Self {
            read_ms: i64::from_be_bytes(field(READ_MS_AT)?),
            next_entry: number(own)?.min(number(masters)?),
            first_entry: if is_marked { number(FIRST_ENTRY_AT)? } else { 0 },
        })
    }

    /// Lets the next broker begin with an empty timer, and read its queue from `next_entry` on. The file that says so is
    /// written when the timer's other files are certainly gone. Until then, the next opening repeats all of this.
    pub(super) fn reset(storage: &dyn Storage, next_entry: u64) -> Result<()> {
        let mut bytes = [0; CHECKPOINT_BYTES];
        let entry = if mutated(Mutant::TimerReadsAll) { 0 } else { next_entry }.to_be_bytes();
        let [own, masters] = NEXT_ENTRY_AT;
        for (at, value) in [(own, entry), (masters, entry), (MARK_AT, MARK), (FIRST_ENTRY_AT, entry)] {
            if let Some(field) = bytes.get_mut(to_usize(at)..).and_then(|rest| rest.first_chunk_mut::<8>()) {
                *field = value;
            }
        }
        if mutated(Mutant::TimerEmptyTooEarly) {
            replace_file(storage, CHECKPOINT, &bytes, false)?;
        }
        if let Some(files) = storage.list(TIMER_LOG)? {
            for file in files {
                storage.unlink(&format!("{TIMER_LOG}/{}", file.name))?;
            }
            if !mutated(Mutant::TimerEmptyTooEarly) {
                storage.sync_dir(TIMER_LOG)?;
            }
        }
        for file in wheel_files(storage)? {
            storage.unlink(&file)?;
        }
        storage.sync_dir("")?;
        replace_file(storage, CHECKPOINT, &bytes, false)
    }
}

/// Returns the names of the files with the slots of a broker's timer. A broker creates them before it loads the store.
fn wheel_files(storage: &dyn Storage) -> Result<Vec<String>> {
    let files = storage.list("")?.unwrap_or_default().into_iter();
    Ok(files.filter(|file| !file.is_dir && file.name.starts_with(WHEEL)).map(|file| file.name).collect())
}

/// Refuses a store with messages that wait in a broker's timer, which only a broker delivers.
pub(super) fn refuse_waiting(storage: &dyn Storage) -> Result<()> {
    let directory = format!("{}/{WHEEL_TOPIC}", consume_queue::DIRECTORY);
    let queues = storage.list(&directory)?.unwrap_or_default();
    // While txstore has the store open, and after a crash of it, no broker loads the store.
    if queues.is_empty() || storage.len(GUARD)?.is_some() {
        return Ok(());
    }
    let timer = BrokerTimer::load(storage)?;
    let has_run = timer.read_ms != 0;
    let is_known = if has_run { storage.len(ABORT)?.is_none() } else { wheel_files(storage)?.is_empty() };
    if !is_known || queues.iter().any(|queue| queue.name != "0") {
        let what = "messages may wait in the timer of a RocketMQ broker that was not stopped cleanly; it is not continued\n\
                    hint: it can be read; start a broker on it, and stop it when its timer has delivered everything";
        return Err(foreign(storage, &directory, what));
    }
    if !BrokerTimer::is_known(storage)? {
        // A copy of a broker's log: the log tells what waits, and the opening takes it over.
        return Ok(());
    }
    let mut waiting = 0_u64;
    for_each(storage, &directory, |queue_offset, view| {
        let is_read = queue_offset < timer.next_entry;
        let out_ms = || view.properties.get_str(TIMER_OUT_MS).and_then(|text| text.parse::<i64>().ok());
        let waits = if has_run {
            let is_its_own = queue_offset >= timer.first_entry;
            is_its_own && (!is_read || out_ms().is_none_or(|out_ms| out_ms >= timer.read_ms))
        } else {
            !is_read && !timed::is_waiting(view)
        };
        waiting += u64::from(waits);
    })?;
    if waiting == 0 {
        return Ok(());
    }
    let what = format!(
        "{waiting} messages wait in the timer of a RocketMQ broker; it is not continued\n\
         hint: it can be read; let a broker deliver them, then stop it"
    );
    Err(foreign(storage, &directory, &what))
}

/// Calls `each` with every record of the timer's queue that the log still has, and its queue offset.
fn for_each(storage: &dyn Storage, directory: &str, mut each: impl FnMut(u64, &RecordView<'_>)) -> Result<()> {
    let settings = Settings::load(storage)?;
    let Some(file_bytes) = log_file_size(storage, settings.as_ref())? else { return Ok(()) };
    let log: Vec<u64> =
        SegmentQueue::files(storage, commit_log::DIRECTORY)?.into_iter().map(|(base, _)| base).collect();
    let queue = format!("{directory}/0");
    let mut bytes = Vec::new();
    for (base, file) in SegmentQueue::files(storage, &queue)? {
        let mut entries = vec![0; to_usize(file.len)];
        storage.open(&format!("{queue}/{}", file.name), OpenMode::Read)?.read_at(&mut entries, 0)?;
        let first = base / to_u64(ENTRY_SIZE);
        for (queue_offset, entry) in (first..).zip(entries.chunks_exact(ENTRY_SIZE)) {
            let Some(entry) = Entry::from_bytes(entry) else { break };
            let log_file = entry.physical_offset.0 - entry.physical_offset.0 % file_bytes.max(1);
            if entry.is_padding() || !log.contains(&log_file) {
                continue;
            }
            let path = format!("{}/{log_file:020}", commit_log::DIRECTORY);
            bytes.resize(to_usize(entry.size.into()), 0);
            storage.open(&path, OpenMode::Read)?.read_at(&mut bytes, entry.physical_offset.0 - log_file)?;
            if let Ok(Scanned::Record(view)) = decode(&bytes, PhysicalOffset(entry.physical_offset.0), Verify::NOTHING)
            {
                each(queue_offset, &view);
            }
        }
    }
    Ok(())
}
