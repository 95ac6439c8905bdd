//! Compares an end with the transaction that it names.
//!
//! In:     an end, while the caller holds the put lock.
//! Out:    the pending transaction that it ends, or the result of an end that ends nothing.
//! Always: writes nothing. A repeated end succeeds. Any other end of an ended transaction is an exact error.

use super::{Decider, End, EndKind, Ended, Inner, Shared};
use crate::base::error::{Error, Outcome, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::transaction::HalfFacts;
use crate::transaction::table::Key;

impl Shared {
    /// Finds the pending transaction that an end names, and compares offsets and producer group. Returns also whether it
    /// has several messages.
    pub(super) fn pending(inner: &Inner, end: &End) -> Result<Option<(Key, bool)>> {
        let Some(key) = inner.derived.table.find(end.half.queue_offset) else { return Ok(None) };
        let Some(entry) = inner.derived.table.get(key) else { return Ok(None) };
        if !entry.copies().any(|(copy, _)| copy == end.half) {
            return Err(not_found(end, "no copy of a half message is there"));
        }
        check_group(end, inner.derived.table.group(entry))?;
        Ok(Some((key, entry.is_set())))
    }

    /// Handles an end of a transaction that is not pending. The same outcome is a success, any other is an error.
    pub(super) fn compare_with_decided(&self, inner: &Inner, end: &End) -> Result<Ended> {
        let queue = inner.half_queue()?;
        let wanted = end.half.queue_offset;
        if wanted >= queue.next() {
            return Err(not_found(end, "the half queue does not reach that far"));
        }
        let entry = self.entry_at(queue, wanted)?;
        let Some(entry) = entry.filter(|entry| entry.physical_offset.0 >= self.log.segments.first()) else {
            return Err(not_found(end, "its half message is gone, and nothing is known of it"));
        };
        if entry.physical_offset.0 != end.half.physical_offset {
            return Err(not_found(end, "no half message is there"));
        }
        self.log.read(entry.physical_offset, self.log.appended(), |view, _| {
            let facts = HalfFacts::of(view);
            check_group(end, facts.group)?;
            check_id(end, facts.unique_id)
        })??;
        let found = inner.derived.table.outcome(wanted).ok_or_else(|| not_found(end, "nothing is known of it"))?;
        already(end, found)
    }

    /// Refuses an end by a producer or an operator that comes after the immunity time of its message.
    pub(super) fn check_late(&self, inner: &Inner, key: Key, end: &End) -> Result<()> {
        // A discard does not come from a producer.
        let may_be_late = end.decider != Decider::Check && end.kind != EndKind::Discard;
        let entry = inner.derived.table.get(key).filter(|_| self.options.reject_late_end && may_be_late);
        // As in RocketMQ, only a message with its own immunity time can be late. After that time a check decides.
        match entry.and_then(|entry| Some((entry.stored_ms, entry.immunity_ms()?))) {
            Some((stored_ms, immunity_ms)) if self.clock.monotonic_ms() - stored_ms > immunity_ms => {
                Err(Error::LateEnd { transaction: name(end), immunity_ms })
            }
            _ => Ok(()),
        }
    }
}

/// Refuses an end by another producer group.
pub(super) fn check_group(end: &End, expected: &str) -> Result<()> {
    match end.group.as_deref().filter(|given| *given != expected) {
        Some(given) => {
            Err(Error::WrongGroup { transaction: name(end), expected: expected.to_owned(), given: given.to_owned() })
        }
        None => Ok(()),
    }
}

/// Refuses an end with another transaction id.
pub(super) fn check_id(end: &End, found: Option<&str>) -> Result<()> {
    match end.transaction_id.as_deref().filter(|id| found != Some(id)) {
        // The error does not show the right id: a caller must know the id to end the transaction.
        Some(id) => Err(not_found(end, &format!("its id is not {id:?}"))),
        None => Ok(()),
    }
}

/// Returns the result of an end of a transaction that has an outcome.
pub(super) fn already(end: &End, found: Outcome) -> Result<Ended> {
    let wanted = end.kind.outcome();
    if !mutated(Mutant::AnyEndAgrees) {
        found.allow_again(wanted, || name(end))?;
    }
    Ok(Ended { outcome: wanted, already: true, offsets: None })
}

/// Returns the error of an end that names no transaction.
pub(super) fn not_found(end: &End, why: &str) -> Error {
    Error::TransactionNotFound { what: format!("transaction {} is not there: {why}", name(end)) }
}

/// Returns how errors name the transaction of an end.
pub(super) fn name(end: &End) -> String {
    end.transaction_id.clone().unwrap_or_else(|| {
        format!("(half queue offset {}, physical offset {})", end.half.queue_offset, end.half.physical_offset)
    })
}
