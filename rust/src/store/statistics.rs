//! Returns totals of an open store, counts of ended transactions, and pending transactions by topic and group.
//!
//! In:     the table, and the records of pending half messages.
//! Out:    counts.
//! Always: no record is read under the put lock, and each is read only once while its transaction is pending.
//! Not here: names of metrics (Python).

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::write_ends::Decision;
use super::{Decider, End, Ended, Inner, Shared, Store};
use crate::base::error::{Outcome, Result};
use crate::base::units::{PhysicalOffset, to_usize};
use crate::transaction::counts::Counts;
use crate::transaction::{HalfCopy, HalfFacts};

/// Topics by half queue offset.
pub(super) type PendingTopics = HashMap<u64, Arc<str>>;

/// Pending transactions of a topic and a producer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    /// The real topic of its messages.
    pub topic: Arc<str>,
    /// The producer group.
    pub group: Arc<str>,
    /// The number of transactions.
    pub pending: u64,
    /// The age of the oldest one, in milliseconds since it was stored.
    pub oldest_ms: i64,
}

/// Totals of an open store.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // Each is documented in _native.pyi.
pub struct StoreStat {
    pub min_physical_offset: u64,
    pub max_physical_offset: u64,
    pub durable_physical_offset: u64,
    pub visible_physical_offset: u64,
    pub snapshot_physical_offset: u64,
    pub commit_log_file_size: u64,
    pub consume_queue_file_size: u64,
    pub max_hash_slot_num: u32,
    pub max_index_num: u32,
    pub queues: usize,
    pub index_files: usize,
    pub pending_transactions: u64,
    pub pending_table_bytes: usize,
    pub decided_halves: u64,
}

impl Store {
    /// Returns totals of the store.
    pub fn stat(&self) -> Result<StoreStat> {
        let shared = &self.shared;
        let queues = self.queues()?.len();
        let (geometry, index_files) = {
            let files = shared.index_files.lock();
            (files.geometry(), files.len())
        };
        let inner = shared.inner.lock();
        Ok(StoreStat {
            min_physical_offset: shared.log.segments.first(),
            max_physical_offset: shared.log.appended(),
            durable_physical_offset: shared.log.durable(),
            visible_physical_offset: shared.visible_end(),
            snapshot_physical_offset: shared.snapshots.position(),
            commit_log_file_size: shared.log.segments.file_size(),
            consume_queue_file_size: shared.queue_files.file_size(),
            max_hash_slot_num: geometry.slots,
            max_index_num: geometry.entries,
            queues,
            index_files,
            pending_transactions: inner.derived.table.len(),
            pending_table_bytes: inner.derived.table.memory(),
            decided_halves: inner.derived.table.decided.count(),
        })
    }

    /// Returns how transactions ended since this process opened the store.
    pub fn transaction_counts(&self) -> Result<Counts> {
        self.shared.check_open()?;
        Ok(self.shared.inner.lock().counts.clone())
    }

    /// Returns pending transactions by topic and producer group. Reads only the records of transactions that were not
    /// pending at the last call.
    pub fn pending(&self) -> Result<Vec<PendingRow>> {
        self.shared.refresh()?;
        let now_ms = self.shared.clock.monotonic_ms();
        let mut topics = self.shared.pending_topics.lock();
        // A frozen table, so that the put lock is not held during the iteration.
        let frozen = self.shared.inner.lock().derived.table.freeze();
        let pending = frozen.iter().map(|entry| (entry.newest, entry.group_number(), now_ms - entry.stored_ms));
        let (groups, pending) = (frozen.groups().to_vec(), pending.collect::<Vec<_>>());
        drop(frozen);
        let (mut known, mut names) = (PendingTopics::with_capacity(pending.len()), HashSet::new());
        let mut rows: BTreeMap<(Arc<str>, u32), PendingRow> = BTreeMap::new();
        for (half, group, age_ms) in pending {
            let kept = topics.remove(&half.queue_offset);
            let Some(topic) = kept.or_else(|| self.shared.topic_of(half, &mut names)) else { continue };
            known.insert(half.queue_offset, Arc::clone(&topic));
            let row = rows.entry((topic, group)).or_insert_with_key(|(topic, group)| PendingRow {
                topic: Arc::clone(topic),
                group: groups.get(to_usize(u64::from(*group))).map_or_else(|| "".into(), Arc::clone),
                pending: 0,
                oldest_ms: 0,
            });
            row.pending += 1;
            row.oldest_ms = row.oldest_ms.max(age_ms);
        }
        *topics = known;
        Ok(rows.into_values().collect())
    }
}

impl Shared {
    /// Returns a half's real topic, or `None` if it ended in the meantime and its record was removed.
    fn topic_of(&self, half: HalfCopy, names: &mut HashSet<Arc<str>>) -> Option<Arc<str>> {
        let physical_offset = PhysicalOffset(half.physical_offset);
        let read = self.log.read(physical_offset, self.log.appended(), |view, _| {
            let topic = HalfFacts::of(view).real_topic;
            Arc::clone(names.get_or_insert_with(topic, |topic| Arc::from(topic)))
        });
        read.ok()
    }
}

impl Inner {
    /// Counts ends that decided nothing, and ends that answered a check.
    pub(super) fn count_ends(&mut self, group: &[&End], results: &[Result<Ended>]) {
        for (end, result) in group.iter().zip(results) {
            match result {
                Ok(Ended { already: true, .. }) => self.counts.repeated += 1,
                Ok(ended) if end.decider == Decider::Check => self.counts.check_ended(ended.outcome),
                Ok(_) => {}
                Err(error) => self.counts.refused(error),
            }
        }
    }

    /// Counts a transaction that ends now. It must still be in the table.
    pub(super) fn count_decision(&mut self, decision: &Decision, now_ms: i64) {
        let Some(entry) = self.derived.table.get(decision.key) else { return };
        if decision.outcome == Outcome::Discarded {
            self.counts.checks_unanswered += u64::from(!entry.is_answered());
        }
        self.counts.ended(decision.topic, decision.outcome, now_ms - entry.stored_ms);
    }
}
