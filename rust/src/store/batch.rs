//! Records that are written together, and the other steps of a write.
//!
//! ```text
//!   begin ──► push, push, … ──► write ──► Unacknowledged ──► acknowledged
//!   put lock  queue offsets     log, then       (lock released)   after a sync,
//!             and bytes         queues, index                     if a rule asks for one
//! ```
//! In:     drafts, while the caller holds the put lock.
//! Out:    the offsets of each record, and what must happen before the write may be acknowledged.
//! Always: all records of a batch are written, or none. Queues and index change only after the log has the records.
//!         Only this module decides which space a write may use and which flush rule applies to it, by its purpose.

use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::options::{FlushDiskType, StoreOptions};
use crate::base::sync::MutexGuard;
use crate::base::units::{PhysicalOffset, QueueOffset, TimestampMs};
use crate::index::consume_queue::{Entry, Slot};
use crate::index::delay::{self, Moment};
use crate::index::dispatch::index_hashes;
use crate::index::key_index::IndexEntry;
use crate::log::commit_log::{Appended, Appender, Urgency};
use crate::record::Draft;

/// Whether a call may wait for a lock, for space in the log or for a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The call may wait.
    Yes,
    /// The call may not wait. If it would have to, it fails with `Error::WouldWait` and changes nothing.
    No,
}

/// The purpose of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Ordinary messages, and delayed messages that are due.
    Message,
    /// A producer's half message.
    Half,
    /// The half message of a transaction that an operator resumes.
    Resume,
    /// Transactions that a producer or a check ends, and ops that recovery adds.
    End,
    /// Transactions that an operator ends.
    EndByHand,
    /// Timed messages that are moved to a broker's timer, or back.
    Move,
    /// Transactions that a policy or an operator discards.
    Discard,
}

impl Purpose {
    /// Returns whether a write for this purpose is acknowledged only after a sync.
    const fn is_synced(self, options: &StoreOptions) -> bool {
        let all_are = matches!(options.flush_disk_type, FlushDiskType::Sync);
        match self {
            // If a power loss takes an end, its half message is still there and a check decides again.
            Self::Message | Self::End => all_are,
            // The local transaction, which may sync a database, begins when its half message is acknowledged.
            Self::Half => all_are || matches!(options.transaction_flush_disk_type, FlushDiskType::Sync),
            // If a power loss took such a write, no later check would repeat the decision.
            Self::Resume | Self::EndByHand | Self::Move | Self::Discard => true,
        }
    }
}

/// A write that is visible in the log but may not be reported as done yet.
#[derive(Debug)]
#[must_use = "a write counts when it is acknowledged"]
pub struct Unacknowledged<'a, T> {
    shared: &'a Shared,
    value: T,
    /// The physical offset up to which the log must be durable first.
    durable_first: Option<PhysicalOffset>,
}

impl<'a, T> Unacknowledged<'a, T> {
    /// Returns what was written.
    pub const fn value(&self) -> &T {
        &self.value
    }

    /// Returns the write with its value changed.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Unacknowledged<'a, U> {
        Unacknowledged { shared: self.shared, value: change(self.value), durable_first: self.durable_first }
    }

    /// Returns whether the write still waits for a sync.
    pub const fn needs_sync(&self) -> bool {
        self.durable_first.is_some()
    }

    /// Returns what was written, and the end up to which the log must be durable before the write may be acknowledged.
    /// For a caller that waits for one sync on behalf of many writes (`Store::wait_durable`).
    pub fn into_parts(self) -> (T, Option<PhysicalOffset>) {
        (self.value, self.durable_first)
    }

    /// Waits until the write may be acknowledged, then returns what was written.
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
    /// Returns the physical offset after the last record.
    pub fn appended_end(&self) -> PhysicalOffset {
        PhysicalOffset(self.shared.log.appended())
    }

    /// Returns the physical offset up to which the log is durable.
    pub fn durable_end(&self) -> PhysicalOffset {
        PhysicalOffset(self.shared.log.durable())
    }

    /// Waits until the log is durable up to `end`. This covers all writes before it.
    pub fn wait_durable(&self, end: PhysicalOffset) -> Result<()> {
        self.shared.wait_durable(end.0)?;
        self.shared.readers.announce();
        Ok(())
    }
}

impl Shared {
    /// Returns whether writes for this purpose are acknowledged only after a sync.
    pub(super) fn is_synced(&self, purpose: Purpose) -> bool {
        let too_early = mutated(Mutant::AcknowledgeBeforeSync)
            || match purpose {
                Purpose::Half => mutated(Mutant::HalfBeforeSync),
                Purpose::Resume | Purpose::EndByHand | Purpose::Move | Purpose::Discard => {
                    mutated(Mutant::DecisionBeforeSync)
                }
                Purpose::Message | Purpose::End => false,
            };
        purpose.is_synced(&self.options) && !too_early
    }

    /// Takes the put lock to send messages. If too much is buffered, the sender first does the background thread's
    /// work.
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

    /// Releases the put lock after a write, and wakes readers that may already see it.
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

    /// Does the same as `unacknowledged` for everything before `end`.
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

/// The keys under which the index finds a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexKeys<'a> {
    /// The hash of its topic (`java::topic_hash`).
    pub(super) topic_hash: i32,
    /// Its unique id.
    pub(super) unique_id: Option<&'a str>,
    /// Its keys, separated by spaces.
    pub(super) keys: Option<&'a str>,
}

/// The position of a batch's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// The offset in the commit log.
    pub(super) physical_offset: PhysicalOffset,
    /// The offset in the record's queue.
    pub(super) queue_offset: QueueOffset,
    /// The size of the record in bytes.
    pub(super) size: u32,
}

/// What the derived state gets after the log has the batch. The next batch reuses the memory.
#[derive(Debug, Default)]
pub(super) struct Staged {
    entries: Vec<(Slot, QueueOffset, Entry)>,
    index: Vec<IndexEntry>,
    last: Option<Appended>,
}

/// Records that are written together.
pub(super) struct Batch<'a> {
    shared: &'a Shared,
    /// The state that the put lock guards.
    pub(super) inner: &'a mut Inner,
    purpose: Purpose,
    now: TimestampMs,
    _guard: PoisonOnPanic<'a>,
}

impl<'a> Batch<'a> {
    /// Begins a batch. Discards a previous one that was not written.
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

    /// Returns the wall clock time at which the batch began.
    pub(super) const fn now(&self) -> TimestampMs {
        self.now
    }

    /// Returns the store timestamp of the batch's records.
    pub(super) fn store_timestamp(&self) -> TimestampMs {
        self.inner.appender.as_ref().map_or(self.now, Appender::store_timestamp)
    }

    /// Adds a record to the batch, at the end of the queue that its draft names.
    #[inline]
    pub(super) fn push(&mut self, draft: &Draft<'_>, tags_code: i64, keys: Option<&IndexKeys<'_>>) -> Result<Placed> {
        let slot = self.inner.derived.dispatcher.queues.find_or_insert(draft.topic, draft.queue_id);
        self.push_to(slot, draft, tags_code, keys)
    }

    /// Adds a delayed message. Its queue entry contains the time at which it is due.
    pub(super) fn push_delayed(
        &mut self,
        draft: &Draft<'_>,
        delay_level: u8,
        keys: Option<&IndexKeys<'_>>,
    ) -> Result<Placed> {
        let placed = self.push(draft, delay::delivery_ms(delay_level, self.now), keys)?;
        // Both clocks are read now because only their difference counts. If the batch is not written, the next message
        // at this queue offset replaces the note.
        let clock = self.shared.clock.as_ref();
        let moment = Moment { wall: clock.wall(), monotonic_ms: clock.monotonic_ms() };
        self.inner.due_times.appended(draft.queue_id, placed.queue_offset.0, moment);
        Ok(placed)
    }

    /// Adds a record to a queue whose slot is known.
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

    /// Writes the batch to the log, then adds its records to queues and index. An error changes nothing.
    pub(super) fn write(&mut self, wait: Wait) -> Result<()> {
        // Check again under the put lock: after `close`, another process may own the files, and after a promotion,
        // another node has the log.
        self.shared.check_writable("sending")?;
        self.shared.check_not_fenced("sending")?;
        let Self { shared, inner: Inner { appender, derived, staged, .. }, purpose, .. } = self;
        let (appender, Some(last)) = (appender.as_mut().ok_or_else(no_writer)?, staged.last.take()) else {
            return Ok(());
        };
        let pending = derived.ends_to_come();
        let urgency = match purpose {
            Purpose::End | Purpose::EndByHand | Purpose::Discard => Urgency::End,
            // They may be large, and the space for ends is kept.
            Purpose::Message | Purpose::Move => Urgency::Send(pending),
            // The end of these half messages may need the same space again.
            Purpose::Half | Purpose::Resume => {
                Urgency::Send(staged.entries.iter().fold(pending, |pending, (.., entry)| pending.with(entry.size)))
            }
        };
        if !appender.is_ready(urgency) {
            if wait == Wait::No {
                return Err(Error::WouldWait);
            }
            appender.make_room(urgency).map_err(|error| shared.poison_on(error))?;
        }
        appender.write(shared.is_synced(*purpose)).map_err(|error| shared.poison_on(error))?;
        if !shared.options.shows_only_durable() || mutated(Mutant::VisibleBeforeSync) {
            shared.readers.publish_visible(shared.log.appended());
        }
        let dispatcher = &mut derived.dispatcher;
        for (slot, _, entry) in &staged.entries {
            dispatcher.queues.push(*slot, *entry);
        }
        dispatcher.index.extend_from_slice(&staged.index);
        let unsynced_bytes = shared.log.appended().saturating_sub(shared.log.durable());
        shared.maintenance.ask(dispatcher.queues.buffered(), dispatcher.index.len(), unsynced_bytes);
        let before = derived.anchor.map_or_else(|| shared.log.segments.first(), |anchor| anchor.physical_offset);
        let file_size = shared.log.segments.file_size();
        shared.ages.filled(before, last.physical_offset.0, file_size, shared.clock.as_ref());
        derived.note_last(last);
        Ok(())
    }
}

/// Returns the error for a write without a writer. Callers refuse a read-only store earlier, with their own messages.
const fn no_writer() -> Error {
    Error::ReadOnly { what: "writing" }
}
