//! Holds the ends of transactions that a replica may have let escape to another broker.
//!
//! In:     which transactions are in doubt: all, or some by their half queue offsets.
//! Out:    the answer "not now" for an end of such a transaction by its producer or by a check.
//! Always: in memory only, because each node asks again after it was opened. An operator may end any transaction.
//! Not here: which transactions have escaped (Python asks the replica).

use std::collections::BTreeSet;

use super::decide_end::name;
use super::{Decider, End, Inner, Store};
use crate::base::error::{Error, Result};
use crate::transaction::table::Key;

/// The transactions whose ends are held.
#[derive(Debug, Default)]
pub(super) struct HeldEnds {
    all: bool,
    half_queue_offsets: BTreeSet<u64>,
}

impl Store {
    /// Holds the ends of all transactions, or of those at these half queue offsets, until the next call.
    pub fn hold_ends(&self, all: bool, half_queue_offsets: BTreeSet<u64>) -> Result<()> {
        self.shared.check_open()?;
        self.shared.inner.lock().held_ends = HeldEnds { all, half_queue_offsets };
        Ok(())
    }

    /// Returns whether the ends of a transaction are held; `None`: those of all.
    pub fn holds_end(&self, half_queue_offset: Option<u64>) -> bool {
        let inner = self.shared.inner.lock();
        let held = &inner.held_ends;
        held.all || half_queue_offset.is_some_and(|offset| held.half_queue_offsets.contains(&offset))
    }
}

/// Refuses an end of a pending transaction that is held.
pub(super) fn check_held(inner: &Inner, key: Key, end: &End) -> Result<()> {
    let held = &inner.held_ends;
    if end.decider == Decider::Operator || (!held.all && held.half_queue_offsets.is_empty()) {
        return Ok(());
    }
    let is_named = || {
        let entry = inner.derived.table.get(key);
        entry.is_some_and(|entry| entry.copies().any(|(copy, _)| held.half_queue_offsets.contains(&copy.queue_offset)))
    };
    if held.all || is_named() {
        return Err(Error::EndHeld { transaction: name(end) });
    }
    Ok(())
}
