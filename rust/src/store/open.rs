//! Opens a directory as a store, after a clean close, a crash or a power loss.
//!
//! In:     a directory, options.
//! Out:    the state that the store's threads share.
//! Always: the phases of `open_as` run in their order. If one crashes, the next opening repeats all of them. A
//!         directory that is not a store, or a store that txstore cannot continue, is refused before anything changes.
//!
//! | module      | phase                                                                  |
//! |-------------|------------------------------------------------------------------------|
//! | `claim`     | takes the locks and sets the marks of a writer                         |
//! | `rejoin`    | refuses a writer whose store another node writes; ends a rejoin's cut  |
//! | `stored`    | loads the small files, and finds the end that the log is known to have |
//! | `files`     | opens log, queues and index, and recovers what is derived from the log |
//! | `leftovers` | removes what a crash left after the end, and begins a range of our own |
//! | `reader`    | what a reader does instead of the last phase                           |

mod claim;
mod files;
mod leftovers;
mod reader;
mod rejoin;
mod stored;

use std::sync::Arc;

use self::claim::Claim;
use self::files::Files;
use self::stored::{Marks, Stored};
use super::configuration::{Configuration, verify_by};
use super::deliver_delayed::Delivering;
use super::end_transaction::EndQueue;
use super::expire::LogAges;
use super::layout_check::{Geometry, geometry, refuse};
use super::lifecycle::Lifecycle;
use super::maintenance::Maintenance;
use super::readers::Readers;
use super::snapshot::SnapshotState;
use super::{Inner, Shared};
use crate::base::clock::Clock;
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::names::HALF_TOPIC;
use crate::base::options::StoreOptions;
use crate::base::sync::Mutex;
use crate::base::units::{PhysicalOffset, TimestampMs, to_u64};
use crate::index::delay::Moment;
use crate::log::commit_log::{Appender, CommitLog, Urgency};
use crate::log::flush::GroupCommit;
use crate::record::message_id::UniqueIds;
use crate::recovery::log_view::{look, no_store};
use crate::recovery::{Derived, Recovered};
use crate::storage::settings::Settings;
use crate::storage::{Opener, Storage};
use crate::transaction::replay::Unfinished;

/// What opening a store found and did.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// The last writer closed the store cleanly.
    pub clean: bool,
    /// The physical offset at which reading the log began.
    pub scanned_from: u64,
    /// Bytes of the log that were read.
    pub scanned_bytes: u64,
    /// Bytes of a torn tail that were cut (that would be cut, if read-only).
    pub truncated_bytes: u64,
    /// Decided halves whose missing op was added (would be added, if read-only).
    pub healed_ops: u64,
    /// The duration of the opening.
    pub milliseconds: u64,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

impl OpenReport {
    fn new(is_clean: bool, recovered: &Recovered, warnings: Vec<String>) -> Self {
        let Recovered { derived, report } = recovered;
        Self {
            clean: is_clean,
            scanned_from: report.scanned_from,
            scanned_bytes: derived.end - report.scanned_from,
            truncated_bytes: report.torn_bytes,
            healed_ops: to_u64(report.unfinished.unnamed.len()),
            milliseconds: 0,
            warnings,
        }
    }
}

/// The arguments of an opening: storage, clock and options.
struct Opening {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    options: StoreOptions,
    opener: Opener,
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
    let opening = Opening { storage, clock, options, opener };
    if opening.options.read_only { reader::open(&opening) } else { open_writer(&opening) }
}

fn open_writer(opening: &Opening) -> Result<Shared> {
    let storage = opening.storage.as_ref();
    let mut settings = Settings::load(storage)?;
    let geometry = geometry(storage, &opening.options, settings.as_ref())?;
    let mut claim = Claim::take(storage, opening.opener)?;
    rejoin::admit(opening, &geometry, &mut settings, &mut claim)
        .and_then(|()| open_as(opening, &geometry, settings, Some(&mut claim)))
        .inspect_err(|_| claim.withdraw(storage))
}

/// Opens the store as a writer, which has a claim, or as a reader.
fn open_as(
    opening: &Opening,
    geometry: &Geometry,
    settings: Option<Settings>,
    mut claim: Option<&mut Claim>,
) -> Result<Shared> {
    let began_ms = opening.clock.monotonic_ms();
    let marks = Marks::read(opening, claim.as_deref())?;
    let mut stored = Stored::load(opening, settings)?;
    let known = stored.known(opening, &marks)?;
    let mut files = Files::open(opening, geometry, &marks, &mut stored)?;
    let mut recovered = files.recover(&stored.settings, stored.snapshot.take(), &known)?;
    stored.reconcile(&recovered);
    match claim.as_deref_mut() {
        Some(claim) => {
            claim.has_changes = true;
            leftovers::remove(opening, &marks, &stored.settings, &files, &mut recovered, &known)?;
            // A replica's settings are its source's, so they say which ranges that store wrote.
            if !opening.options.is_replica() {
                stored.begin_range(opening, geometry, &files.log, &recovered.derived)?;
            }
        }
        None => reader::keep_what_is_shown(&marks, &stored.settings, &files.log, &known, recovered.derived.end)?,
    }
    let report = OpenReport::new(marks.is_clean, &recovered, std::mem::take(&mut stored.warnings));
    let unfinished = recovered.report.unfinished;
    let mut shared = assemble(opening, marks, stored, files, recovered.derived, claim, report);
    if !opening.options.read_only {
        shared.begin_writing(&unfinished)?;
    }
    shared.report.milliseconds = u64::try_from(opening.clock.monotonic_ms() - began_ms).unwrap_or(0);
    Ok(shared)
}

fn assemble(
    opening: &Opening,
    marks: Marks,
    stored: Stored,
    files: Files,
    derived: Derived,
    claim: Option<&mut Claim>,
    report: OpenReport,
) -> Shared {
    let Opening { storage, clock, options, opener } = opening;
    let epochs = stored.epochs;
    let accepted = epochs.accepted;
    let Files { log, queues, index } = files;
    verify_by(&log, &stored.settings);
    let wall = clock.wall().max(derived.newest);
    let ages = LogAges::new(Moment { wall, monotonic_ms: clock.monotonic_ms() });
    let appender = appender(opening, &log, &stored.settings, derived.newest);
    let mut inner = Inner::new(derived, appender, clock.as_ref(), options);
    inner.seen = marks.sight;
    Shared {
        options: options.clone(),
        storage: Arc::clone(storage),
        clock: Arc::clone(clock),
        ids: unique_ids(*opener, clock.as_ref(), options),
        half_topic_hash: java::topic_hash(HALF_TOPIC),
        log,
        queue_files: queues,
        index_files: Mutex::ranked(index),
        inner: Mutex::ranked(inner),
        ends: EndQueue::default(),
        commit: GroupCommit::default(),
        configuration: Configuration::new(stored.offsets, stored.delay_offsets, stored.settings, epochs),
        readers: Readers::new(marks.published, if options.holds_back() { marks.shown } else { u64::MAX }),
        maintenance: Maintenance::default(),
        snapshots: SnapshotState::new(report.scanned_from),
        delivering: Mutex::ranked(Delivering::default()),
        appending_once: Mutex::ranked(false),
        pending_topics: Mutex::default(),
        deliveries: Mutex::default(),
        #[cfg(feature = "arrow")]
        statistics: Mutex::default(),
        ages,
        lifecycle: Lifecycle::new(*opener, claim.map(Claim::take_locks).unwrap_or_default(), accepted),
        report,
    }
}

/// Returns a writer's appender. A reader and a replica have none.
fn appender(opening: &Opening, log: &Arc<CommitLog>, settings: &Settings, newest: TimestampMs) -> Option<Appender> {
    let is_synced = opening.options.shows_only_durable();
    let appends = !opening.options.read_only && !opening.options.is_replica();
    appends.then(|| Appender::new(Arc::clone(log), settings.append_prop_crc, is_synced, newest))
}

impl Shared {
    /// Ends a writer's opening: adds missing final messages and ops, syncs, admits readers and writes the progress.
    fn begin_writing(&self, unfinished: &Unfinished) -> Result<()> {
        let mut inner = self.inner.lock();
        self.take_reserve(&mut inner)?;
        self.heal(&mut inner, unfinished)?;
        drop(inner);
        let end = self.log.appended();
        self.wait_durable(end)?;
        if let Some(published) = self.readers.page() {
            published.set_appended(PhysicalOffset(self.visible_end()));
            published.set_durable(PhysicalOffset(end));
            published.set_minimum(PhysicalOffset(self.log.segments.first()));
            published.set_dispatched(PhysicalOffset(self.report.scanned_from));
            published.set_sync_failed(false);
            if !self.report.clean {
                // Without this sync, a power loss could restore the mark of a failed sync and hide messages
                // acknowledged from now on.
                published.sync()?;
            }
            published.end_change();
        }
        if !self.options.is_replica() {
            self.take_back_timed()?;
        }
        // After the page of readers: they take transactions below the progress as ended, so the page must show the ends.
        // Needed even if the snapshot reaches the end, because a crash may have come between the two writes. Only
        // changes are written.
        self.write_progress()
    }

    /// Reserves the space to end all pending transactions before the disk is full. If it is full already, sends report
    /// it.
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

fn unique_ids(opener: Opener, clock: &dyn Clock, options: &StoreOptions) -> UniqueIds {
    // RocketMQ's clients use the hash of a class loader here. It distinguishes two openings in one process.
    let mixed = (clock.wall().0.cast_unsigned() ^ (opener.opens << 48)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    UniqueIds::new(options.store_host.ip(), opener.process, u32::try_from(mixed >> 32).unwrap_or(0))
}
