//! Store: one directory, open; the façade over log, queues, index and the table of transactions.
//!
//! In: messages, ends, questions. Out: places, outcomes, messages. Always: one process writes; one lock orders all
//! appends and ends; readers see only what is below the visible end. Not here: when to check, who is asked (Python).

mod append;
mod batch;
mod configuration;
mod copy;
mod delete;
mod deliver;
mod end_transaction;
mod expire;
mod figures;
mod follow;
mod gone;
mod half_floor;
mod history;
mod inspect;
#[cfg(txstore_mutants)]
mod mutants;
mod now;
mod open;
mod read;
mod room;
mod sight;
mod snapshot;
mod survey;
#[cfg(test)]
mod tests;
mod upkeep;
mod waiting;

pub use append::{NewHalfMessage, NewMessage, Sent};
pub use batch::{Unacknowledged, Wait};
pub use copy::Copy;
pub use deliver::Delivered;
pub use end_transaction::{Decider, End, EndKind, Ended};
pub use expire::Expired;
pub use figures::PendingRow;
pub use history::TransactionRow;
#[cfg(feature = "arrow")]
pub(crate) use history::{HalfRecord, rows};
pub use now::Now;
pub use open::OpenReport;
pub use read::{StoreStat, StoredRecord};

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crate::clock::{Clock, SystemClock};
use crate::commit_log::{Appender, CommitLog};
use crate::consume_queue::QueueFiles;
use crate::delay::{DelayOffsets, DueTimes, Moment};
use crate::error::{Error, Result};
use crate::flush::GroupCommit;
use crate::half::counts::Counts;
use crate::index::IndexFiles;
pub use crate::log_view::GUARD;
use crate::offsets::ConsumerOffsets;
use crate::options::{FlushDiskType, StoreOptions};
use crate::published::Published;
use crate::record::message_id::UniqueIds;
use crate::recovery::Derived;
use crate::settings::Settings;
use crate::storage::disk::{Disk, close_in_child};
use crate::storage::{Lock, Storage};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, fence};
use crate::units::{PhysicalOffset, TimestampMs};

/// How often this process was forked, as far as it was told (see `note_fork`).
static FORKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Tells the engine that this process is a forked child: handles that its parent opened refuse to work in it, and it
/// closes its copies of the locks that its parent holds.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    close_in_child();
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

/// What the store's threads share.
#[derive(Debug)]
struct Shared {
    options: StoreOptions,
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    log: Arc<CommitLog>,
    queue_files: QueueFiles,
    index_files: Mutex<IndexFiles>,
    inner: Mutex<Inner>,
    ends: end_transaction::EndQueue,
    commit: GroupCommit,
    offsets: Mutex<ConsumerOffsets>,
    delay_offsets: Mutex<DelayOffsets>,
    /// One at a time delivers what was delayed.
    delivering: Mutex<()>,
    settings: Mutex<Settings>,
    /// Topics of what pends, by half queue offset: kept from one look to the next.
    pending_topics: Mutex<figures::PendingTopics>,
    /// A writer's from the start; a reader's as soon as a writer has made it.
    published: OnceLock<Published>,
    ids: UniqueIds,
    report: OpenReport,
    /// One at a time writes what is derived.
    upkeep: Mutex<()>,
    /// The background thread was woken for what is buffered.
    upkeep_asked: AtomicBool,
    /// So much is buffered that the next sender writes it.
    overfull: AtomicBool,
    half_topic_hash: std::sync::OnceLock<i32>,
    /// The background thread sleeps here.
    wake: Wake,
    /// Readers that wait for messages sleep here.
    arrival: Wake,
    arrival_waiters: AtomicUsize,
    snapshot_position: AtomicU64,
    /// The state that the snapshot file holds; `None`: not known.
    stored_snapshot: Mutex<Option<snapshot::StateMark>>,
    /// A queue's file was found damaged: the next opening is to build all queues again.
    queues_damaged: AtomicBool,
    closed: AtomicBool,
    poisoned: AtomicBool,
    forks: u64,
    process: u32,
    /// The wall clock, no earlier than the newest record, and the monotonic one when the store was opened.
    opened_at: (TimestampMs, i64),
    /// When this process first saw that a file of the log was full, by its first byte: the monotonic clock.
    seen_full: Mutex<std::collections::BTreeMap<u64, i64>>,
    locks: Mutex<Vec<Box<dyn Lock>>>,
}

/// What the put lock guards.
#[derive(Debug)]
struct Inner {
    /// `None` in a reader.
    appender: Option<Appender>,
    /// Everything derived from the log.
    derived: Derived,
    /// Changes of what a snapshot holds that no record of the log tells: counts of checks, queues' beginnings.
    unlogged_changes: u64,
    /// Reused for properties.
    scratch: Vec<u8>,
    /// Reused for a half's record.
    record: Vec<u8>,
    /// Reused for what a batch adds to queues and index.
    staged: batch::Staged,
    /// Reused for a group of ends.
    group: end_transaction::Group,
    counts: Counts,
    /// When this process first saw the entries of delayed messages.
    due_times: DueTimes,
    /// The store as a reader found it last.
    seen: Option<sight::Sight>,
}

impl Inner {
    /// Begins with what recovery derived; a reader has no appender.
    fn new(mut derived: Derived, appender: Option<Appender>, clock: &dyn Clock, options: &StoreOptions) -> Self {
        let now = Moment { wall: clock.wall(), monotonic_ms: clock.monotonic_ms() };
        derived.start(now, options.transaction_timeout_ms);
        Self {
            appender,
            derived,
            unlogged_changes: 0,
            scratch: Vec::new(),
            record: Vec::new(),
            staged: batch::Staged::default(),
            group: end_transaction::Group::default(),
            counts: Counts::default(),
            due_times: DueTimes::new(now),
            seen: None,
        }
    }
}

/// A count to wait on: a flag would be taken down by one thread before another has seen it.
#[derive(Debug, Default)]
struct Wake {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Wake {
    /// It happens.
    fn set(&self) {
        let mut count = self.count.lock();
        *count = count.wrapping_add(1);
        self.changed.notify_all();
    }

    /// The count, to be taken before looking at what one waits for.
    fn seen(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until the count is not `seen` any more, or the time is over; gives the count.
    fn wait_ms(&self, seen: u64, milliseconds: u64) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            count = self.changed.wait_for(count, std::time::Duration::from_millis(milliseconds));
        }
        *count
    }
}

impl Store {
    /// Opens the store in a directory; a writer makes it if it is missing or empty.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let storage = if options.read_only { Disk::open(path)? } else { Disk::create(path)? };
        Self::open_with(Arc::new(storage), Arc::new(SystemClock), options)
    }

    /// Opens a store on any storage, with any clock.
    pub fn open_with(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, options: StoreOptions) -> Result<Self> {
        options.check()?;
        let shared = Arc::new(open::open(storage, clock, options)?);
        let flusher =
            if shared.options.read_only || !shared.options.background { None } else { Some(upkeep::spawn(&shared)?) };
        let store = Self { shared, flusher: Mutex::new(flusher) };
        store.begin_halves_behind_ops()?;
        Ok(store)
    }

    /// What opening found and did.
    pub fn open_report(&self) -> &OpenReport {
        &self.shared.report
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.shared.storage.root().to_owned()
    }

    /// Whether it was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Writes all that is buffered, hands the store over, lets go of the locks. Again: nothing.
    pub fn close(&self) -> Result<()> {
        if self.shared.is_forked() {
            // The parent's files and locks are none of the child's business.
            self.shared.closed.store(true, Ordering::SeqCst);
            return Ok(());
        }
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.shared.wake.set();
        self.shared.arrival.set();
        if let Some(thread) = self.flusher.lock().take() {
            // A panic there has poisoned the store already.
            let _ = thread.join();
        }
        let result = self.shared.hand_over();
        self.shared.locks.lock().clear();
        result
    }

    /// One round of what the background thread does: write what is derived, sync the log.
    pub fn flush_round(&self) -> Result<()> {
        self.shared.check_open()?;
        self.shared.flush_round()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Nobody is there to tell; a store that was not closed well is recovered at the next opening.
        let _ = self.close();
    }
}

/// A panic under a lock leaves what the lock guards unknown: nothing more is written.
impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.commit.poison("a panic in the engine: this is a bug");
            self.0.poisoned.store(true, Ordering::Release);
        }
    }
}

struct PoisonOnPanic<'a>(&'a Shared);

impl Shared {
    fn is_forked(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Refuses in a forked child and on a closed handle.
    #[inline]
    fn check_open(&self) -> Result<()> {
        if self.is_forked() {
            let here = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
            return Err(Error::StoreForked { owner: self.process, here });
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::StoreClosed);
        }
        Ok(())
    }

    /// Refuses what a reader or a poisoned store cannot do.
    #[inline]
    fn check_writable(&self, what: &'static str) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Err(Error::ReadOnly { what });
        }
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::StorePoisoned { why: self.commit.poisoned().unwrap_or_default() });
        }
        Ok(())
    }

    /// Stops all writing after an error that leaves the files unknown; other errors pass through.
    fn judge(&self, error: Error) -> Error {
        if let Error::StorePoisoned { why } = &error {
            self.commit.poison(why);
            self.poisoned.store(true, Ordering::Release);
            if let Some(published) =
                self.published.get().filter(|_| self.options.flush_disk_type == FlushDiskType::Sync)
            {
                published.set_sync_failed(true);
            }
        }
        error
    }

    /// How far readers may read.
    fn visible_end(&self) -> u64 {
        match self.options.flush_disk_type {
            FlushDiskType::Sync if !self.options.read_only => self.log.durable(),
            _ => self.log.appended(),
        }
    }

    /// Tells readers in other processes how far they may read: the end that is visible here, too.
    fn publish_visible(&self, end: u64) {
        if let Some(published) = self.published.get() {
            published.set_appended(PhysicalOffset(end));
        }
    }

    /// Waits until the log is durable up to `end`.
    fn wait_durable(&self, end: u64) -> Result<()> {
        let publish = |durable: u64| {
            if let Some(published) = self.published.get() {
                published.set_durable(PhysicalOffset(durable));
            }
            if self.options.flush_disk_type == FlushDiskType::Sync {
                self.publish_visible(durable);
            }
        };
        self.commit.wait(&self.log, end, publish).map_err(|error| self.judge(error))
    }

    /// Tells readers that wait, if there are any.
    #[inline]
    fn announce(&self) {
        // Either the waiter sees the new end, or this sees the waiter.
        fence(Ordering::SeqCst);
        if self.arrival_waiters.load(Ordering::SeqCst) > 0 {
            self.arrival.set();
        }
    }
}
