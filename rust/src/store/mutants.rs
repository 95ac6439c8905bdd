//! Mutants that need more than a line: wrong variants of the store, which the tests must detect.
//!
//! In:     the store, built with `--cfg txstore_mutants`.
//! Out:    the behaviour that base/mutant.rs names.
//! Always: not part of any other build.

use super::batch::{Batch, Purpose, Wait};
use super::write_ends::{Decision, Group};
use super::{End, Inner, Shared};
use crate::base::error::{Outcome, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::PhysicalOffset;
use crate::record::properties::TAGS;
use crate::transaction::convert::resume_draft;

impl Shared {
    /// Implements the mutant `AppendOnCheck`: appends an unchanged copy of the half to the half queue.
    pub(super) fn put_back(&self, inner: &mut Inner, half_queue_offset: u64) -> Result<()> {
        if !mutated(Mutant::AppendOnCheck) {
            return Ok(());
        }
        let found = inner.derived.table.find(half_queue_offset).and_then(|key| inner.derived.table.get(key));
        let Some(physical_offset) = found.map(|entry| PhysicalOffset(entry.newest.physical_offset)) else {
            return Ok(());
        };
        self.log.read(physical_offset, self.log.appended(), |view, _| {
            let mut batch = Batch::begin(self, inner, Purpose::End)?;
            let mut text = Vec::new();
            let draft = resume_draft(view, None, self.options.store_host, &mut text);
            let tags_code = java::tags_code(view.properties.get_str(TAGS));
            batch.push_to(batch.inner.derived.half_slot, &draft, tags_code, None)?;
            batch.write(Wait::Yes)
        })?
    }

    /// Implements the mutant `OpFirst`: names the halves before the records that decide them.
    pub(super) fn push_ops_early(&self, batch: &mut Batch<'_>, group: &[&End]) -> Result<Option<Vec<(u64, u64)>>> {
        if !mutated(Mutant::OpFirst) {
            return Ok(None);
        }
        let key = |end: &&End| Self::pending(batch.inner, end).ok().flatten().map(|(key, _)| key);
        let keys: Vec<_> = group.iter().filter_map(key).collect();
        let topic = batch.inner.counts.topic("");
        let decide = |key| Decision { key, outcome: Outcome::RolledBack, topic };
        let mut early = Group::default();
        early.decisions.extend(keys.into_iter().map(decide));
        self.push_ops(batch, &mut early)?;
        Ok(Some(early.ops))
    }
}
