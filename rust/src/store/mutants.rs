//! Mutants that need more than a line: what a wrong variant of the store would do.
//!
//! In: the store, when it was built with `--cfg txstore_mutants`. Out: what mutant.rs names. In no other build.

use super::end_transaction::{Decision, End, Group, Written};
use super::{Inner, Shared};
use crate::commit_log::Urgency;
use crate::dispatch::DispatchRequest;
use crate::error::{Outcome, Result};
use crate::half::convert::resume_draft;
use crate::mutant::{Mutant, mutated};
use crate::units::{PhysicalOffset, QueueOffset};

impl Shared {
    /// What the mutant `AppendOnCheck` does: a copy of the half, as it is, at the end of the half queue.
    pub(super) fn put_back(&self, inner: &mut Inner, half_queue_offset: u64) -> Result<()> {
        if !mutated(Mutant::AppendOnCheck) {
            return Ok(());
        }
        let found = inner.state.table.find(half_queue_offset).and_then(|key| inner.state.table.get(key));
        let Some(place) = found.map(|entry| PhysicalOffset(entry.newest.physical_offset)) else { return Ok(()) };
        self.log.read(place, self.log.appended(), |view, _| {
            let Inner { appender, state, scratch, half_slot, .. } = inner;
            let Some(appender) = appender.as_mut() else { return Ok(()) };
            let draft = resume_draft(view, self.options.store_host, scratch);
            let queue_offset = QueueOffset(state.dispatcher.queues.next(*half_slot));
            appender.begin(self.clock.wall());
            let appended = appender.push(&draft, queue_offset)?;
            self.write(appender, Urgency::End, true)?;
            let request = DispatchRequest {
                physical_offset: appended.physical_offset,
                size: appended.size,
                ..DispatchRequest::of(view)
            };
            state.dispatcher.enqueue(*half_slot, &request);
            Ok(())
        })?
    }

    /// What `OpFirst` does: names the halves in front of what decides them.
    pub(super) fn push_ops_early(&self, inner: &mut Inner, group: &[&End]) -> Result<Option<Vec<(Written, u64)>>> {
        if !mutated(Mutant::OpFirst) {
            return Ok(None);
        }
        let key = |end: &&End| Self::pending(inner, end).ok().flatten();
        let keys: Vec<_> = group.iter().filter_map(key).collect();
        let topic = inner.counts.topic("");
        let decide = |key| Decision { key, outcome: Outcome::RolledBack, record: None, topic };
        let mut early = Group::default();
        early.decisions.extend(keys.into_iter().map(decide));
        self.push_ops(inner, &mut early)?;
        Ok(Some(early.ops))
    }
}
