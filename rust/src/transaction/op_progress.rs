//! How far the op progress may go, the consumer offset of the op message queue.
//!
//! In:     op messages with the half messages that they name, the half progress.
//! Out:    the op progress.
//! Always: it never decreases, and takes at most 16,384 entries of memory.

use std::collections::BTreeMap;

/// Computes the op progress: it passes only ops that name nothing at or above the half progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpProgress {
    /// The first op queue offset of a run → the highest half queue offset that the run names.
    runs: BTreeMap<u64, u64>,
    end: u64,
}

/// The number of ops that share a new run. Coarser runs give a lower op progress, which is safe.
const OPS_PER_RUN: u64 = 64;
/// The maximum number of runs. After a transaction that stays pending they would grow without limit, so above it all are
/// joined in pairs.
const RUNS_MAX: usize = 1 << 14;

impl OpProgress {
    /// Notes an op message.
    pub fn note(&mut self, op_queue_offset: u64, highest_half: u64) {
        self.end = op_queue_offset.saturating_add(1);
        match self.runs.last_entry() {
            Some(mut run) if op_queue_offset < run.key().saturating_add(OPS_PER_RUN) => {
                let highest = run.get_mut();
                *highest = highest_half.max(*highest);
            }
            _ => {
                self.runs.insert(op_queue_offset, highest_half);
                self.join_runs();
            }
        }
    }

    fn join_runs(&mut self) {
        while self.runs.len() > RUNS_MAX {
            let all: Vec<_> = std::mem::take(&mut self.runs).into_iter().collect();
            let joined = all.chunks(2).filter_map(|pair| {
                let highest = pair.iter().map(|(_, highest)| *highest).max()?;
                pair.first().map(|(first, _)| (*first, highest))
            });
            self.runs = joined.collect();
        }
    }

    /// Returns the op progress for a half progress. It never decreases.
    pub fn pass(&mut self, half_progress: u64) -> u64 {
        while let Some(run) = self.runs.first_entry().filter(|run| *run.get() < half_progress) {
            run.remove();
        }
        self.runs.keys().next().copied().unwrap_or(self.end)
    }

    /// Returns the parts that a snapshot stores.
    pub fn parts(&self) -> (u64, impl Iterator<Item = (u64, u64)> + '_) {
        (self.end, self.runs.iter().map(|(first, highest)| (*first, *highest)))
    }

    /// Restores the op progress from a snapshot.
    pub fn from_parts(end: u64, runs: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut progress = Self { runs: runs.into_iter().collect(), end };
        progress.join_runs();
        progress
    }
}
