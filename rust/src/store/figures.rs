//! Figures: how transactions ended since the store was opened, and what pends by topic and group.
//!
//! In: the table, and the records of what pends. Out: counts. Always: no record is read under the put lock, and each one
//! once as long as it pends. Not here: totals of the store (`read`), names of metrics (Python).

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::end_transaction::Decision;
use super::{Decider, End, Ended, Inner, Shared, Store};
use crate::error::{Outcome, Result};
use crate::half::counts::Counts;
use crate::half::{HalfCopy, HalfFacts};
use crate::units::{PhysicalOffset, to_usize};

/// Topics by half queue offset.
pub(super) type PendingTopics = HashMap<u64, Arc<str>>;

/// What pends of a topic and a producer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    /// The topic that its messages are meant for.
    pub topic: Arc<str>,
    /// The group that began it.
    pub group: Arc<str>,
    /// How many transactions.
    pub pending: u64,
    /// How long the oldest of them is stored, in milliseconds.
    pub oldest_ms: i64,
}

impl Store {
    /// How transactions ended since the store was opened here.
    pub fn transaction_counts(&self) -> Result<Counts> {
        self.shared.check_open()?;
        Ok(self.shared.inner.lock().counts.clone())
    }

    /// What pends, by topic and producer group. Reads the records of what pends and did not at the last call.
    pub fn pending(&self) -> Result<Vec<PendingRow>> {
        self.shared.refresh()?;
        let now_ms = self.shared.clock.monotonic_ms();
        let mut topics = self.shared.pending_topics.lock();
        // Frozen, so that the put lock is not held while all are looked through.
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
    /// The topic that a half is meant for; `None` where it ended meanwhile, and its record is gone.
    fn topic_of(&self, half: HalfCopy, names: &mut HashSet<Arc<str>>) -> Option<Arc<str>> {
        let place = PhysicalOffset(half.physical_offset);
        let read = self.log.read(place, self.log.appended(), |view, _| {
            let topic = HalfFacts::of(view).real_topic;
            Arc::clone(names.get_or_insert_with(topic, |topic| Arc::from(topic)))
        });
        read.ok()
    }
}

impl Inner {
    /// Counts ends that were judged: those that decided nothing, and those that answered a check.
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

    /// Counts a transaction that ends now, while the table still has it.
    pub(super) fn count_decision(&mut self, decision: &Decision, now_ms: i64) {
        let Some(entry) = self.derived.table.get(decision.key) else { return };
        if decision.outcome == Outcome::Discarded {
            self.counts.checks_unanswered += u64::from(!entry.is_answered());
        }
        self.counts.ended(decision.topic, decision.outcome, now_ms - entry.stored_ms);
    }
}
