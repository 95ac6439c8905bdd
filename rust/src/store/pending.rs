//! Pending transactions, for the policy that decides about checks.
//!
//! In:     the table, and notes of the policy: when to look again, and that a check was sent.
//! Out:    facts about pending transactions.
//! Always: writes nothing to disk (T14).

use std::collections::BTreeSet;

use super::{Inner, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, QueueOffset, to_u64};
use crate::transaction::scan::{self, Waiting};
use crate::transaction::set::{SET_MAX, SetMark};
use crate::transaction::{HalfCopy, HalfFacts};

impl Store {
    /// Returns at most `limit` pending transactions that are due, the longest due first.
    pub fn halves_due(&self, limit: usize) -> Result<Vec<Waiting>> {
        self.shared.refresh()?;
        let now_ms = self.shared.clock.monotonic_ms();
        Ok(scan::due(&self.shared.inner.lock().derived.table, now_ms, limit))
    }

    /// Returns at most `limit` pending transactions after a half queue offset (`None`: from the first).
    pub fn halves_waiting(&self, after: Option<u64>, limit: usize) -> Result<Vec<Waiting>> {
        self.shared.refresh()?;
        let now_ms = self.shared.clock.monotonic_ms();
        Ok(scan::waiting_after(&self.shared.inner.lock().derived.table, after, limit, now_ms))
    }

    /// Makes a transaction due again in `in_ms`. `asked` counts a check as sent. Returns whether it is still pending.
    pub fn look_again(&self, half_queue_offset: u64, in_ms: i64, asked: bool) -> Result<bool> {
        self.shared.check_open()?;
        self.shared.look_again_in(&mut self.shared.inner.lock(), half_queue_offset, in_ms, asked)
    }

    /// Makes transactions due again in `in_ms`. Ignores transactions that are no longer pending.
    pub fn look_again_all(&self, half_queue_offsets: impl Iterator<Item = u64>, in_ms: i64) -> Result<()> {
        self.shared.check_open()?;
        let due_ms = self.shared.clock.monotonic_ms().saturating_add(in_ms.max(0));
        let table = &mut self.shared.inner.lock().derived.table;
        for half_queue_offset in half_queue_offsets {
            if let Some(key) = table.find(half_queue_offset) {
                table.set_due(key, due_ms);
            }
        }
        Ok(())
    }

    /// Notes the check answer "unknown". Returns whether the transaction is pending at this position and, if a group is
    /// given, belongs to it. Otherwise notes nothing.
    pub fn check_unknown(&self, half: HalfCopy, group: Option<&str>) -> Result<bool> {
        self.shared.check_open()?;
        let mut inner = self.shared.inner.lock();
        let table = &mut inner.derived.table;
        let Some(key) = table.find(half.queue_offset) else { return Ok(false) };
        let is_it = table.get(key).is_some_and(|entry| {
            entry.has_copy_at(half.physical_offset) && group.is_none_or(|group| group == table.group(entry))
        });
        if is_it {
            table.answered(key);
            inner.counts.checks_unknown += 1;
        }
        Ok(is_it)
    }

    /// Notes which producer sent a half message, after the store was opened again. Returns whether the transaction is
    /// pending at this position and belongs to the group. Otherwise notes nothing.
    pub fn set_owner(&self, half: HalfCopy, group: &str, owner: u32) -> Result<bool> {
        self.shared.check_open()?;
        let mut inner = self.shared.inner.lock();
        let table = &mut inner.derived.table;
        let Some(key) = table.find(half.queue_offset) else { return Ok(false) };
        let is_it =
            table.get(key).is_some_and(|entry| entry.has_copy_at(half.physical_offset) && group == table.group(entry));
        if is_it {
            table.set_owner(key, owner);
        }
        Ok(is_it)
    }

    /// Notes that a half's local transaction ended in this process. The transaction's age counts from now.
    pub fn local_transaction_ended(&self, half_queue_offset: u64) -> Result<()> {
        self.shared.check_open()?;
        self.shared.local_transaction_ended_in(&mut self.shared.inner.lock(), half_queue_offset);
        Ok(())
    }

    /// Returns the milliseconds until the first pending transaction is due, or `None` if none is pending.
    pub fn next_due_in_ms(&self) -> Result<Option<i64>> {
        self.shared.check_open()?;
        let due_ms = self.shared.inner.lock().derived.table.next_due_ms();
        Ok(due_ms.map(|due_ms| due_ms - self.shared.clock.monotonic_ms()))
    }

    /// Returns the record of a half message.
    pub fn half(&self, half_queue_offset: QueueOffset) -> Result<super::StoredRecord> {
        self.shared.refresh()?;
        let inner = self.shared.inner.lock();
        let pending = inner.derived.table.find(half_queue_offset.0).and_then(|key| inner.derived.table.get(key));
        let physical_offset = if let Some(entry) = pending {
            let copy = entry.copies().find(|(copy, _)| copy.queue_offset == half_queue_offset.0);
            copy.map(|(copy, _)| copy.physical_offset)
        } else {
            let queue = inner.half_queue()?;
            let is_known = half_queue_offset.0 < queue.next();
            let entry = if is_known { self.shared.entry_at(queue, half_queue_offset.0)? } else { None };
            entry.map(|entry| entry.physical_offset.0)
        };
        drop(inner);
        let physical_offset = physical_offset.ok_or_else(|| Error::MessageNotFound {
            what: format!("no half message is at half queue offset {half_queue_offset}"),
        })?;
        self.read_at(PhysicalOffset(physical_offset))
    }

    /// Returns the real topics of the messages of a half message's transaction. Omits those of other half messages that
    /// cannot be read.
    pub fn real_topics(&self, half_queue_offset: QueueOffset) -> Result<BTreeSet<String>> {
        let half = self.half(half_queue_offset)?;
        let view = half.view()?;
        let mut topics = BTreeSet::from([HalfFacts::of(&view).real_topic.to_owned()]);
        let mark = SetMark::of(view.properties).filter(|mark| mark.is_at(half_queue_offset.0));
        for at in mark.map_or(0..0, |mark| mark.first..mark.first.saturating_add(mark.count.min(to_u64(SET_MAX)))) {
            if let Ok(other) = self.half(QueueOffset(at)) {
                topics.insert(HalfFacts::of(&other.view()?).real_topic.to_owned());
            }
        }
        Ok(topics)
    }
}

impl Shared {
    #[cfg_attr(not(txstore_mutants), allow(clippy::unnecessary_wraps))] // A mutant writes to the log here.
    pub(super) fn look_again_in(
        &self,
        inner: &mut Inner,
        half_queue_offset: u64,
        in_ms: i64,
        asked: bool,
    ) -> Result<bool> {
        let now_ms = self.clock.monotonic_ms();
        let Some(key) = inner.derived.table.find(half_queue_offset) else { return Ok(false) };
        if asked || mutated(Mutant::LookCounts) {
            let answered = inner.derived.table.checked(key, now_ms);
            inner.unlogged_changes += 1;
            inner.counts.checks_sent += 1;
            inner.counts.checks_unanswered += u64::from(!answered);
        }
        #[cfg(txstore_mutants)]
        if asked {
            self.put_back(inner, half_queue_offset)?;
        }
        inner.derived.table.set_due(key, now_ms.saturating_add(in_ms.max(0)));
        Ok(true)
    }

    pub(super) fn local_transaction_ended_in(&self, inner: &mut Inner, half_queue_offset: u64) {
        let now_ms = self.clock.monotonic_ms();
        let Some(key) = inner.derived.table.find(half_queue_offset) else { return };
        inner.derived.table.local_ended(key, now_ms);
        let immunity_ms = inner.derived.table.get(key).and_then(crate::transaction::pending::Pending::immunity_ms);
        let due_ms = now_ms + immunity_ms.unwrap_or(self.options.transaction_timeout_ms);
        inner.derived.table.set_due(key, due_ms);
    }
}
