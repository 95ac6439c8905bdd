//! Open: a directory becomes a store, after any end.
//!
//! In: a directory, options. Out: what the store's threads share. Always, in this order: lock, guard, epoch odd,
//! recovery, cut, missing ops, progress, epoch even; each step may crash and is repeated from the start
//! (docs/transactions.md). A directory that is no store, or a kind of store that we cannot continue, is refused before
//! anything changes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::configuration::{clamp_offsets, verify_by};
use super::end_transaction::Group;
use super::follow::{LiveWriter, Sight};
use super::survey::{Geometry, geometry, refuse};
use super::{FORKS, Inner, Shared, Wake};
use crate::clock::Clock;
use crate::commit_log::{self, Appender, CommitLog, Urgency};
use crate::config_file::replace_file;
use crate::consume_queue::{QueueFiles, QueueTable};
use crate::delay::{DelayOffsets, DueTimes, Moment};
use crate::error::{Error, Result};
use crate::half::HALF_QUEUE;
use crate::index::IndexFiles;
use crate::log_view::{ABORT, GUARD, KnownEnd, LOCK, PUBLISHER_BYTE, WRITER_BYTE, foreign, is_clean, look, no_store};
use crate::names::{HALF_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP};
use crate::offsets::ConsumerOffsets;
use crate::options::{FlushDiskType, StoreOptions};
use crate::published::Published;
use crate::record::message_id::UniqueIds;
use crate::recovery::{Derived, Known, Recovered, cut_begun_again, cut_log, cut_queues, recover, rewrite_log};
use crate::segment::SegmentQueue;
use crate::settings::{Settings, StoreId};
use crate::snapshot::Snapshot;
use crate::storage::{Lock, OpenMode, Opener, Storage};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex};
use crate::units::{PhysicalOffset, to_usize};

/// What opening found and did.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// The last writer had closed the store.
    pub clean: bool,
    /// Where reading the log began.
    pub scanned_from: u64,
    /// Bytes of the log that were read.
    pub scanned_bytes: u64,
    /// Bytes of a torn tail that were cut (would be, read-only).
    pub truncated_bytes: u64,
    /// Decided halves that got their missing op (would get, read-only).
    pub healed_ops: u64,
    /// How long it took.
    pub milliseconds: u64,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// How often a reader starts again because a writer came or went while it read.
const READER_TRIES_MAX: u32 = 8;

/// The marks of a writer.
struct Claim {
    locks: Vec<Box<dyn Lock>>,
    /// Neither mark was there before.
    clean: bool,
    /// More than derived files may have changed since: from here on only a close makes the store clean.
    changed: bool,
}

pub(super) fn open(storage: Arc<dyn Storage>, clock: Arc<dyn Clock>, options: StoreOptions) -> Result<Shared> {
    let is_store = look(storage.as_ref())?;
    if options.read_only && !is_store {
        return Err(no_store(storage.as_ref()));
    }
    if !options.read_only {
        refuse(storage.as_ref())?;
    }
    let opener = storage.opener();
    if options.read_only {
        return open_reader(storage, clock, options, opener);
    }
    let settings = Settings::load(storage.as_ref())?;
    let geometry = geometry(storage.as_ref(), &options, settings.as_ref())?;
    let mut claim = claim(storage.as_ref(), opener)?;
    let opened = open_with(Arc::clone(&storage), clock, options, opener, &geometry, settings, Some(&mut claim));
    if opened.is_err() && claim.clean && !claim.changed {
        // It was closed well, and nothing but what is derived was touched: it stays so. The locks are still held.
        let _ = storage.unlink(ABORT).and_then(|()| storage.unlink(GUARD));
    }
    opened
}

/// Opens for reading. Whether a writer writes is asked before the log is read, and decides how it is read, so it is
/// asked again afterwards: where a writer came or went meanwhile, reading starts again.
#[allow(clippy::needless_pass_by_value)] // Each try takes a copy of all three.
fn open_reader(
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    options: StoreOptions,
    opener: Opener,
) -> Result<Shared> {
    let sight = || Sight::of(storage.as_ref(), Published::open(storage.as_ref())?.as_ref());
    let mut tries = 0;
    loop {
        let before = sight()?;
        let opened = read_once(Arc::clone(&storage), Arc::clone(&clock), options.clone(), opener);
        tries += 1;
        if tries == READER_TRIES_MAX || sight()?.is_same(&before) {
            return opened;
        }
    }
}

fn read_once(
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    options: StoreOptions,
    opener: Opener,
) -> Result<Shared> {
    let settings = Settings::load(storage.as_ref())?;
    let geometry = geometry(storage.as_ref(), &options, settings.as_ref())?;
    let files = SegmentQueue::files(storage.as_ref(), commit_log::DIRECTORY)?;
    if settings.is_none() && files.is_empty() {
        // A reader that guessed the sizes would see nothing of what comes.
        let what = "its log has no file yet, so how large they will be is not known\nhint: open it again when its writer has begun";
        return Err(foreign(storage.as_ref(), commit_log::DIRECTORY, what));
    }
    open_with(storage, clock, options, opener, &geometry, settings, None)
}

fn open_with(
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    options: StoreOptions,
    opener: Opener,
    geometry: &Geometry,
    settings: Option<Settings>,
    mut claim: Option<&mut Claim>,
) -> Result<Shared> {
    let began_ms = clock.monotonic_ms();
    let read_only = options.read_only;
    let published =
        if read_only { Published::open(storage.as_ref())? } else { Some(Published::create(storage.as_ref())?) };
    let sight = if read_only { Some(Sight::of(storage.as_ref(), published.as_ref())?) } else { None };
    let live = sight.is_some_and(|sight| matches!(sight.writer, LiveWriter::Ours | LiveWriter::Opening));
    let foreign_writer = sight.is_some_and(|sight| sight.writer == LiveWriter::Broker);
    let clean = claim.as_ref().map_or_else(|| is_clean(storage.as_ref()), |claim| Ok(claim.clean))?;
    if let Some(published) = published.as_ref().filter(|_| !read_only) {
        published.begin_change()?;
    }
    let (mut offsets, mut warnings) = ConsumerOffsets::load(storage.as_ref())?;
    let (delay_offsets, damaged) = DelayOffsets::load(storage.as_ref())?;
    let delays_lost = delay_offsets.is_none() || !damaged.is_empty();
    let delay_offsets = delay_offsets.unwrap_or_default();
    warnings.extend(damaged);
    let snapshot = Snapshot::load(storage.as_ref())?;
    let snapshot_position = snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
    let snapshot = snapshot.filter(|snapshot| !(delays_lost && has_delayed(snapshot)));
    let is_new = settings.is_none() && SegmentQueue::files(storage.as_ref(), commit_log::DIRECTORY)?.is_empty();
    let mut settings = settings.unwrap_or_else(|| Settings { append_prop_crc: is_new, ..Settings::default() });
    let limit = sight.map_or(u64::MAX, |sight| sight.limit);
    let mut known_end = KnownEnd::find(
        storage.as_ref(),
        Some(&settings),
        published.as_ref(),
        snapshot_position,
        clean && !foreign_writer,
        live || foreign_writer,
    )?;
    known_end.durable = sight.map_or(0, |sight| sight.floor).max(known_end.durable);
    let known = Known {
        read_only,
        clean: clean && !foreign_writer,
        end: known_end,
        limit,
        followed: live || foreign_writer,
        half_progress: offsets.get(HALF_TOPIC, TRANSACTION_GROUP, HALF_QUEUE).unwrap_or(0),
        delays: delay_offsets.progress().clone(),
    };
    let segments = SegmentQueue::open(Arc::clone(&storage), commit_log::DIRECTORY, geometry.commit_log, read_only)?;
    if let Some(warning) = front_is_gone(published.as_ref(), &segments, &settings)? {
        warnings.push(warning);
    }
    let log = Arc::new(CommitLog::new(segments));
    log.set_appended(u64::MAX); // Recovery reads what is there and says where it ends.
    let queue_files = QueueFiles::new(Arc::clone(&storage), geometry.consume_queue, read_only);
    let open_index = if settings.index_slots.is_some() { IndexFiles::open_own } else { IndexFiles::open };
    let mut index = open_index(Arc::clone(&storage), geometry.index, !read_only)?;
    let Recovered { derived, report: found } =
        recover_or_rebuild(&log, &queue_files, &mut index, &settings, snapshot, &known)?;
    let end = derived.end;
    log.set_appended(end);
    log.set_durable(if read_only { end } else { known.end.durable.min(end) });
    warnings.extend(found.warnings);
    let mut report = OpenReport {
        clean,
        scanned_from: found.scanned_from,
        scanned_bytes: end - found.scanned_from,
        truncated_bytes: found.torn_bytes,
        healed_ops: u64::try_from(found.unnamed.len()).unwrap_or(u64::MAX),
        milliseconds: 0,
        warnings,
    };
    clamp_offsets(&mut offsets, &derived.dispatcher.queues, &mut report.warnings);
    settings.deleted.retain(|deleted| !derived.is_begun_again(deleted));
    let sync = options.flush_disk_type == FlushDiskType::Sync;
    if let Some(claim) = claim.as_mut() {
        claim.changed = true;
        log.segments.remove_empty()?;
        if !clean {
            // A process that was killed may have renamed a file there and not synced it; what is believed now must stay.
            if storage.list("config")?.is_some() {
                storage.sync_dir("config")?;
            }
            // Where a broker wrote last nothing was acknowledged by us, and its log may be large.
            if let Some(ours) = settings.ranges.last().filter(|range| range.end.is_none()) {
                rewrite_log(&log, known.end.durable.max(ours.start), end)?;
            }
        }
        if !clean || found.stale {
            cut_log(&log, end)?;
            cut_queues(&queue_files, &derived.dispatcher)?;
            if let Some(published) = &published {
                // That synced the log, too. What the page says of it may be older than what was acknowledged: should a sync
                // fail from here on, readers would be shown no more than that.
                published.set_appended(PhysicalOffset(end));
                published.set_durable(PhysicalOffset(end));
            }
        } else {
            cut_begun_again(&queue_files, &derived)?;
        }
        settings.append_prop_crc = options.append_prop_crc.unwrap_or(settings.append_prop_crc);
        settings.commit_log_file_size = Some(geometry.commit_log);
        settings.consume_queue_file_size = Some(geometry.consume_queue);
        settings.index_slots = Some(geometry.index.slots);
        settings.index_entries = Some(geometry.index.entries);
        // A new store gets its id here, and an older one or a broker's at its first opening for writing.
        settings.id = settings.id.or_else(|| opener.random.map(StoreId::new));
        settings.begin_range(end);
        forget_deleted(&mut settings, &log, &derived.dispatcher.queues);
        settings.store(storage.as_ref())?;
    }
    if read_only && !known.may_grow() && !clean {
        // A killed writer may have left what no sync covered; what is shown must not be taken back by lost power.
        if let Some(ours) = settings.ranges.last().filter(|range| range.end.is_none() && known.end.durable < end) {
            log.segments.sync(known.end.durable.max(ours.start), end)?;
        }
    }
    if read_only {
        log.segments.forget_above(end);
    }
    verify_by(&log, &settings);
    let appender =
        (!read_only).then(|| Appender::new(Arc::clone(&log), settings.append_prop_crc, sync, derived.newest));
    let opened_at = (clock.wall().max(derived.newest), clock.monotonic_ms());
    let shared = Shared {
        inner: Mutex::new(inner(derived, appender, clock.as_ref(), &options)),
        opened_at,
        seen_full: Mutex::default(),
        process: opener.process,
        forks: FORKS.load(Ordering::SeqCst),
        ids: unique_ids(opener, clock.as_ref(), &options),
        index_files: Mutex::new(index),
        offsets: Mutex::new(offsets),
        delay_offsets: Mutex::new(delay_offsets),
        delivering: Mutex::new(()),
        settings: Mutex::new(settings),
        pending_topics: Mutex::default(),
        locks: Mutex::new(claim.map(|claim| std::mem::take(&mut claim.locks)).unwrap_or_default()),
        report: OpenReport::default(),
        ends: super::end_transaction::EndQueue::default(),
        commit: crate::flush::GroupCommit::default(),
        upkeep: Mutex::new(()),
        upkeep_asked: AtomicBool::new(false),
        overfull: AtomicBool::new(false),
        half_topic_hash: std::sync::OnceLock::new(),
        wake: Wake::default(),
        arrival: Wake::default(),
        arrival_waiters: AtomicUsize::new(0),
        snapshot_position: AtomicU64::new(report.scanned_from),
        stored_snapshot: Mutex::new(None),
        queues_damaged: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        poisoned: AtomicBool::new(false),
        options,
        storage,
        clock,
        log,
        queue_files,
        published: published.map(OnceLock::from).unwrap_or_default(),
    };
    shared.inner.lock().seen = sight;
    if !read_only {
        shared.begin_writing(&report, &found.unnamed)?;
    }
    report.milliseconds = u64::try_from(shared.clock.monotonic_ms() - began_ms).unwrap_or(0);
    Ok(Shared { report, ..shared })
}

impl Shared {
    /// The last steps of a writer's opening: missing ops, sync, progress, and readers may read.
    fn begin_writing(&self, report: &OpenReport, unnamed: &[u64]) -> Result<()> {
        let mut inner = self.inner.lock();
        self.take_reserve(&mut inner)?;
        self.heal(&mut inner, unnamed)?;
        drop(inner);
        let end = self.log.appended();
        self.wait_durable(end)?;
        // Also where the snapshot reaches the end: a crash may have come between it and the progress. It writes only
        // what has changed.
        self.write_progress()?;
        if let Some(published) = self.published.get() {
            published.set_appended(PhysicalOffset(end));
            published.set_durable(PhysicalOffset(end));
            published.set_minimum(PhysicalOffset(self.log.segments.first()));
            published.set_dispatched(PhysicalOffset(report.scanned_from));
            published.set_sync_failed(false);
            if !report.clean {
                // Else lost power could bring back that a sync failed, and hide what is acknowledged from here on.
                published.sync()?;
            }
            published.end_change();
        }
        Ok(())
    }
}

impl Shared {
    /// Space for ending what pends, before a full disk can refuse it; if it does already, sends will say so.
    fn take_reserve(&self, inner: &mut Inner) -> Result<()> {
        let pending = inner.derived.ends_to_come();
        if let Some(appender) = inner.appender.as_mut().filter(|_| pending.count > 0) {
            appender.begin(self.clock.wall());
            if let Err(error @ Error::StorePoisoned { .. }) = appender.make_room(Urgency::Send(pending)) {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Recovers; index files that a crash damaged are built again from nothing.
fn recover_or_rebuild(
    log: &CommitLog,
    queue_files: &QueueFiles,
    index: &mut IndexFiles,
    settings: &Settings,
    snapshot: Option<Snapshot>,
    known: &Known,
) -> Result<Recovered> {
    let mark = snapshot.as_ref().and_then(|snapshot| snapshot.index.as_ref());
    if !known.clean && !known.read_only && mark.is_some() && index.roll_back(mark).is_err() {
        index.roll_back(None)?;
        return recover(log, queue_files, Some(index), settings, None, known);
    }
    recover(log, queue_files, Some(index), settings, snapshot, known)
}

/// The write path of a store that begins with what recovery derived.
pub(super) fn inner(
    mut derived: Derived,
    appender: Option<Appender>,
    clock: &dyn Clock,
    options: &StoreOptions,
) -> Inner {
    let now = Moment { wall: clock.wall(), monotonic_ms: clock.monotonic_ms() };
    derived.start(now, options.transaction_timeout_ms);
    Inner {
        appender,
        derived,
        unlogged_changes: 0,
        scratch: Vec::new(),
        record: Vec::new(),
        staged: super::batch::Staged::default(),
        group: Group::default(),
        counts: crate::half::counts::Counts::default(),
        due_times: DueTimes::new(now),
        seen: None,
    }
}

/// Queues that were deleted, so long ago that the log has no record of them any more, are as any other. Where lost power
/// took the newest records, a queue goes on in front of where it was deleted: what comes there now is not deleted.
fn forget_deleted(settings: &mut Settings, log: &CommitLog, queues: &QueueTable) {
    let first = log.segments.first();
    settings.deleted.retain_mut(|deleted| {
        let next = queues.find(&deleted.topic, deleted.queue_id).map_or(0, |slot| queues.next(slot));
        deleted.below = deleted.below.min(next);
        deleted.below > 0 && deleted.log_end > first
    });
}

/// Takes the locks and sets the marks of a writer.
fn claim(storage: &dyn Storage, opener: Opener) -> Result<Claim> {
    let held = || {
        let pid = abort_pid(storage);
        let is_gone = pid.is_some_and(|pid| !storage.is_running(pid));
        Error::StoreLocked { path: storage.root().to_owned(), pid, is_gone }
    };
    // Readers take a locked writer's byte alone for a broker, so it is locked last.
    let publisher = storage.lock(LOCK, PUBLISHER_BYTE)?.ok_or_else(held)?;
    let writer = storage.lock(LOCK, WRITER_BYTE)?.ok_or_else(held)?;
    let clean = is_clean(storage)?;
    storage.create_dir(commit_log::DIRECTORY)?;
    let guard = storage.open(GUARD, OpenMode::Create)?;
    guard.write_at(b"!", 0)?;
    guard.sync()?;
    storage.sync_dir(commit_log::DIRECTORY)?;
    replace_file(storage, ABORT, opener.process.to_string().as_bytes(), false)?;
    Ok(Claim { locks: vec![writer, publisher], clean, changed: false })
}

fn abort_pid(storage: &dyn Storage) -> Option<u32> {
    let length = storage.len(ABORT).ok()??.min(16);
    let mut text = vec![0; to_usize(length)];
    storage.open(ABORT, OpenMode::Read).ok()?.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

/// Files that are gone from the log's front, where it began when a writer of ours had it last. While the store was ours
/// nobody may have removed them; else a broker's retention may, so that it is only told.
fn front_is_gone(
    published: Option<&Published>,
    segments: &SegmentQueue,
    settings: &Settings,
) -> Result<Option<String>> {
    let Some(published) = published.filter(|published| published.appended().0 > 0) else { return Ok(None) };
    let (known, first) = (published.minimum().0, segments.first());
    if known >= first {
        return Ok(None);
    }
    if settings.ranges.last().is_some_and(|range| range.end.is_none()) {
        return Err(segments.missing(known, first));
    }
    Ok(Some(format!("the log begins at {first}, and began at {known} before: files were removed from its front")))
}

/// How far a reader may read where no broker writes.
pub(super) fn shown_until(published: &Published, live: bool) -> u64 {
    match (live, published.sync_failed()) {
        (true, _) => published.appended().0,
        (false, true) => published.durable().0,
        (false, false) => u64::MAX,
    }
}

/// Whether there were delayed messages. Without their progress the whole log has to tell which were delivered.
fn has_delayed(snapshot: &Snapshot) -> bool {
    snapshot.queues.iter().any(|queue| &*queue.topic == SCHEDULE_TOPIC && queue.next > 0)
}

fn unique_ids(opener: Opener, clock: &dyn Clock, options: &StoreOptions) -> UniqueIds {
    // RocketMQ's clients put a class loader's hash here; it keeps two opens in one process apart.
    let mixed = (clock.wall().0.cast_unsigned() ^ (opener.opens << 48)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    UniqueIds::new(options.store_host.ip(), opener.process, u32::try_from(mixed >> 32).unwrap_or(0))
}
