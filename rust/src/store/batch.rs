//! Batch: records that are written together, and what else a write has to do.
//!
//! ```text
//!   begin ──► push, push, … ──► write ──► Unacknowledged ──► acknowledged
//!   put lock  queue offsets     log, then       (lock released)   after a sync,
//!             and bytes         queues, index                     if a rule asks for one
//! ```
//! In:     drafts, while the caller holds the put lock.
//! Out:    where each record is, and what must happen before the write may be acknowledged.
//! Always: all records of a batch are written, or none. Queues and index change only after the log has the records.
//!         The purpose of a write decides which space it may use and which flush rule covers it, here and nowhere else.

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::commit_log::{Appended, Appender, Urgency};
use crate::consume_queue::{Entry, Slot};
use crate::delay::{self, Moment};
use crate::dispatch::index_hashes;
use crate::error::{Error, Result};
use crate::index::IndexEntry;
use crate::mutant::{Mutant, mutated};
use crate::options::{FlushDiskType, StoreOptions};
use crate::record::Draft;
use crate::sync::MutexGuard;
use crate::units::{PhysicalOffset, QueueOffset, TimestampMs};

/// Whether a call may wait: for a lock, for space in the log or for a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It may.
    Yes,
    /// It may not. Where it would have to, it fails with `Error::WouldWait` and nothing has changed.
    No,
}

/// What a batch is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Ordinary messages, and delayed ones whose time has come.
    Message,
    /// A producer's half message.
    Half,
    /// The half message of a transaction that an operator resumes.
    Resume,
    /// Transactions that a producer or a check ends; ops that recovery adds.
    End,
    /// Transactions that an operator ends.
    EndByHand,
    /// Transactions that a policy or an operator gives up.
    Discard,
}

impl Purpose {
    /// Whether such a write is acknowledged only after a sync.
    const fn is_synced(self, options: &StoreOptions) -> bool {
        let all_are = matches!(options.flush_disk_type, FlushDiskType::Sync);
        match self {
            // If lost power takes an end, its half is there and a check decides again.
            Self::Message | Self::End => all_are,
            // The local transaction, which may sync a database, begins when its half is acknowledged.
            Self::Half => all_are || matches!(options.transaction_flush_disk_type, FlushDiskType::Sync),
            // Nobody would decide this again.
            Self::Resume | Self::EndByHand | Self::Discard => true,
        }
    }
}

/// A write that other threads see in the log and that the caller must not report as done yet.
#[derive(Debug)]
#[must_use = "a write counts when it is acknowledged"]
pub struct Unacknowledged<'a, T> {
    shared: &'a Shared,
    value: T,
    /// The log must be durable up to here first.
    durable_first: Option<PhysicalOffset>,
}

impl<T> Unacknowledged<'_, T> {
    /// What was written.
    pub const fn value(&self) -> &T {
        &self.value
    }

    /// Whether the write still waits for a sync.
    pub const fn needs_sync(&self) -> bool {
        self.durable_first.is_some()
    }

    /// What was written, and the end up to which the log must be durable before it may be acknowledged: for a caller
    /// that waits for one sync on behalf of many writes (`Store::wait_durable`).
    pub fn into_parts(self) -> (T, Option<PhysicalOffset>) {
        (self.value, self.durable_first)
    }

    /// Waits until the write may be acknowledged; returns what was written.
    #[inline]
    pub fn acknowledged(self) -> Result<T> {
        if let Some(end) = self.durable_first {
            self.shared.wait_durable(end.0)?;
            self.shared.readers.announce();
        }
        Ok(self.value)
    }
}

impl Store {
    /// Waits until the log is durable up to `end`, for all writes that lie before it.
    pub fn wait_durable(&self, end: PhysicalOffset) -> Result<()> {
        self.shared.wait_durable(end.0)?;
        self.shared.readers.announce();
        Ok(())
    }
}

impl Shared {
    /// Whether writes for this purpose are acknowledged only after a sync.
    pub(super) fn is_synced(&self, purpose: Purpose) -> bool {
        let too_early = mutated(Mutant::AcknowledgeBeforeSync)
            || match purpose {
                Purpose::Half => mutated(Mutant::HalfBeforeSync),
                Purpose::Resume | Purpose::EndByHand | Purpose::Discard => mutated(Mutant::DecisionBeforeSync),
                Purpose::Message | Purpose::End => false,
            };
        purpose.is_synced(&self.options) && !too_early
    }

    /// Takes the put lock for sending; a sender that is too far ahead of the background thread first does its work.
    #[inline]
    pub(super) fn lock_to_send(&self, wait: Wait) -> Result<MutexGuard<'_, Inner>> {
        match wait {
            Wait::Yes => {
                self.relieve()?;
                Ok(self.inner.lock())
            }
            Wait::No => match self.inner.try_lock() {
                Some(inner) if !self.maintenance.is_overfull() => Ok(inner),
                _ => Err(Error::WouldWait),
            },
        }
    }

    /// Releases the put lock after a write, and wakes readers that may see it already.
    #[inline]
    pub(super) fn unacknowledged<T>(
        &self,
        inner: MutexGuard<'_, Inner>,
        purpose: Purpose,
        value: T,
    ) -> Unacknowledged<'_, T> {
        let end = PhysicalOffset(self.log.appended());
        self.unacknowledged_up_to(inner, purpose, end, value)
    }

    /// As `unacknowledged`, of what lies before `end`.
    #[inline]
    pub(super) fn unacknowledged_up_to<T>(
        &self,
        inner: MutexGuard<'_, Inner>,
        purpose: Purpose,
        end: PhysicalOffset,
        value: T,
    ) -> Unacknowledged<'_, T> {
        drop(inner);
        let durable_first = (self.is_synced(purpose) && self.log.durable() < end.0).then_some(end);
        if durable_first.is_none() {
            self.readers.announce();
        }
        Unacknowledged { shared: self, value, durable_first }
    }
}

/// What the index finds a record by.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexKeys<'a> {
    /// The hash of its topic (`java::topic_hash`).
    pub(super) topic_hash: i32,
    /// Its unique id.
    pub(super) unique_id: Option<&'a str>,
    /// Its keys, separated by spaces.
    pub(super) keys: Option<&'a str>,
}

/// Where a record of a batch goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// In the log.
    pub(super) physical_offset: PhysicalOffset,
    /// In its queue.
    pub(super) queue_offset: QueueOffset,
    /// Bytes of its record.
    pub(super) size: u32,
}

/// What the derived state gets once the log has the batch. Its memory is used again by the next batch.
#[derive(Debug, Default)]
pub(super) struct Staged {
    entries: Vec<(Slot, QueueOffset, Entry)>,
    index: Vec<IndexEntry>,
    last: Option<Appended>,
}

/// Records that are written together.
pub(super) struct Batch<'a> {
    shared: &'a Shared,
    /// What the put lock guards.
    pub(super) inner: &'a mut Inner,
    purpose: Purpose,
    now: TimestampMs,
    _guard: PoisonOnPanic<'a>,
}

impl<'a> Batch<'a> {
    /// Begins a batch, forgetting one that was not written.
    #[inline]
    pub(super) fn begin(shared: &'a Shared, inner: &'a mut Inner, purpose: Purpose) -> Result<Self> {
        let guard = PoisonOnPanic(shared);
        let now = shared.clock.wall();
        inner.appender.as_mut().ok_or_else(no_writer)?.begin(now);
        inner.staged.entries.clear();
        inner.staged.index.clear();
        inner.staged.last = None;
        Ok(Self { shared, inner, purpose, now, _guard: guard })
    }

    /// The wall clock at the batch's begin.
    pub(super) const fn now(&self) -> TimestampMs {
        self.now
    }

    /// The store timestamp of the batch's records.
    pub(super) fn store_timestamp(&self) -> TimestampMs {
        self.inner.appender.as_ref().map_or(self.now, Appender::store_timestamp)
    }

    /// Adds a record to the batch, at the end of the queue that its draft names.
    #[inline]
    pub(super) fn push(&mut self, draft: &Draft<'_>, tags_code: i64, keys: Option<&IndexKeys<'_>>) -> Result<Placed> {
        let slot = self.inner.derived.dispatcher.queues.find_or_insert(draft.topic, draft.queue_id);
        self.push_to(slot, draft, tags_code, keys)
    }

    /// As `push`, for a message that waits on a delay level: its queue entry says when it is due.
    pub(super) fn push_delayed(
        &mut self,
        draft: &Draft<'_>,
        delay_level: u8,
        keys: Option<&IndexKeys<'_>>,
    ) -> Result<Placed> {
        let placed = self.push(draft, delay::delivery_ms(delay_level, self.now), keys)?;
        // Both clocks now, not at the begin: only their difference counts. What is noted of a batch that is not written
        // is replaced by what comes to its queue offset.
        let clock = self.shared.clock.as_ref();
        let moment = Moment { wall: clock.wall(), monotonic_ms: clock.monotonic_ms() };
        self.inner.due_times.appended(draft.queue_id, placed.queue_offset.0, moment);
        Ok(placed)
    }

    /// As `push`, where the queue's slot is known.
    #[inline]
    pub(super) fn push_to(
        &mut self,
        slot: Slot,
        draft: &Draft<'_>,
        tags_code: i64,
        keys: Option<&IndexKeys<'_>>,
    ) -> Result<Placed> {
        let Inner { appender, derived, staged, .. } = &mut *self.inner;
        let before =
            staged.entries.iter().rev().find(|(other, ..)| *other == slot && !mutated(Mutant::StaleQueueOffset));
        let queue_offset = before.map_or_else(
            || QueueOffset(derived.dispatcher.queues.next(slot)),
            |(_, queue_offset, _)| queue_offset.plus(1),
        );
        let appended = appender.as_mut().ok_or_else(no_writer)?.push(draft, queue_offset)?;
        let Appended { physical_offset, size, store_timestamp } = appended;
        staged.entries.push((slot, queue_offset, Entry { physical_offset, size, tags_code }));
        if let Some(IndexKeys { topic_hash, unique_id, keys }) = keys {
            index_hashes(*topic_hash, *unique_id, *keys)
                .for_each(|hash| staged.index.push(IndexEntry { hash, physical_offset, store_timestamp }));
        }
        staged.last = Some(appended);
        Ok(Placed { physical_offset, queue_offset, size })
    }

    /// Writes the batch to the log, then adds its records to queues and index. After an error nothing has changed.
    pub(super) fn write(&mut self, wait: Wait) -> Result<()> {
        // Asked again under the put lock: `close` hands the files over, and another process may have them by now.
        self.shared.check_writable("sending")?;
        let Self { shared, inner: Inner { appender, derived, staged, .. }, purpose, .. } = self;
        let (appender, Some(last)) = (appender.as_mut().ok_or_else(no_writer)?, staged.last.take()) else {
            return Ok(());
        };
        let pending = derived.ends_to_come();
        let urgency = match purpose {
            Purpose::End | Purpose::EndByHand | Purpose::Discard => Urgency::End,
            Purpose::Message => Urgency::Send(pending),
            // What this half takes now, its end may need again.
            Purpose::Half | Purpose::Resume => Urgency::Send(pending.with(last.size)),
        };
        if !appender.is_ready(urgency) {
            if wait == Wait::No {
                return Err(Error::WouldWait);
            }
            appender.make_room(urgency).map_err(|error| shared.poison_on(error))?;
        }
        appender.write(shared.is_synced(*purpose)).map_err(|error| shared.poison_on(error))?;
        if shared.options.flush_disk_type == FlushDiskType::Async || mutated(Mutant::VisibleBeforeSync) {
            shared.readers.publish_visible(shared.log.appended());
        }
        let dispatcher = &mut derived.dispatcher;
        for (slot, _, entry) in &staged.entries {
            dispatcher.queues.push(*slot, *entry);
        }
        dispatcher.index.extend_from_slice(&staged.index);
        let unsynced_bytes = shared.log.appended().saturating_sub(shared.log.durable());
        shared.maintenance.ask(dispatcher.queues.buffered(), dispatcher.index.len(), unsynced_bytes);
        derived.note_last(last);
        Ok(())
    }
}

/// Callers have refused a read-only store before, each with its own words.
const fn no_writer() -> Error {
    Error::ReadOnly { what: "writing" }
}
