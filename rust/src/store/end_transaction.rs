//! Takes requests to end transactions, and gathers them into groups.
//!
//! In:     ends, from many threads.
//! Out:    outcomes.
//! Always: the table decides under the put lock. Ends that wait together become one write and one sync. No outcome is
//!         reported before the sync that its purpose requires.
//! Not here: what an end decides (`decide_end`), writing the decisions (`write_ends`).

use std::sync::Arc;

use super::batch::{Purpose, Unacknowledged, Wait};
use super::{Shared, Store};
use crate::base::error::{Error, Outcome, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::sync::Mutex;
use crate::base::sync::rank::{BRIEF, TURN};
use crate::base::units::{PhysicalOffset, QueueOffset};
use crate::transaction::HalfCopy;

/// How to end a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// The message becomes visible.
    Commit,
    /// The message is never delivered.
    RollBack,
    /// The message is not delivered. A copy goes to `TRANS_CHECK_MAX_TIME_TOPIC`, from which it can be resumed.
    Discard,
}

impl EndKind {
    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::Commit => Outcome::Committed,
            Self::RollBack => Outcome::RolledBack,
            Self::Discard => Outcome::Discarded,
        }
    }
}

/// A request to end a transaction.
#[derive(Clone, Debug)]
pub struct End {
    /// Any copy of the half message.
    pub half: HalfCopy,
    /// How to end the transaction.
    pub kind: EndKind,
    /// The transaction id to compare, if given.
    pub transaction_id: Option<String>,
    /// The producer group to compare, if given.
    pub group: Option<String>,
    /// The source of the decision.
    pub decider: Decider,
}

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The producer that sent it.
    Producer,
    /// A check that was answered, or that no producer answers any more.
    Check,
    /// An operator.
    Operator,
}

impl End {
    const fn purpose(&self) -> Purpose {
        match (self.kind, self.decider) {
            (EndKind::Discard, _) => Purpose::Discard,
            (_, Decider::Operator) => Purpose::EndByHand,
            (_, Decider::Producer | Decider::Check) => Purpose::End,
        }
    }
}

/// The result of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The outcome of the transaction.
    pub outcome: Outcome,
    /// The transaction had the same outcome before. Nothing was written.
    pub already: bool,
    /// The offsets of the final or discarded message, if this end wrote one.
    pub offsets: Option<(PhysicalOffset, QueueOffset)>,
}

/// Ends that wait to be written as one group.
#[derive(Debug, Default)]
pub(super) struct EndQueue {
    pub(super) waiting: Mutex<Vec<Arc<Ticket>>, BRIEF>,
    pub(super) turn: Mutex<(), TURN>,
}

/// An end of a group, and its result once the group is written.
#[derive(Debug)]
pub(super) struct Ticket {
    end: End,
    result: Mutex<Option<Result<Ended>>, BRIEF>,
}

impl Ticket {
    fn new(end: End) -> Arc<Self> {
        Arc::new(Self { end, result: Mutex::ranked(None) })
    }
}

impl Store {
    /// Ends a transaction. The end is acknowledged when this returns.
    pub fn end_transaction(&self, end: &End, wait: Wait) -> Result<Ended> {
        self.shared.check_appends("ending a transaction")?;
        match wait {
            Wait::Yes => self.shared.end_in_group(end.clone()),
            Wait::No => self.shared.end_at_once(end),
        }
    }

    /// Ends a transaction without waiting for the sync that its outcome may need. The outcome counts when it is
    /// acknowledged, also if it is the error `AlreadyEnded`.
    pub fn end_unacknowledged(&self, end: &End, wait: Wait) -> Result<Unacknowledged<'_, Result<Ended>>> {
        self.shared.check_appends("ending a transaction")?;
        self.shared.end_alone(end, wait)
    }

    /// Returns whether an end is acknowledged only after a sync.
    pub fn is_end_synced(&self, end: &End) -> bool {
        self.shared.is_synced(end.purpose())
    }

    /// Ends transactions as one group, with one write and one sync, as threads that wait together do.
    pub fn end_together(&self, ends: Vec<End>) -> Vec<Result<Ended>> {
        if let Err(error) = self.shared.check_appends("ending a transaction") {
            return ends.iter().map(|_| Err(error.repeat())).collect();
        }
        let purpose = self.shared.purpose_of(ends.iter());
        let turn = self.shared.ends.turn.lock();
        let results = self.shared.end_all(ends);
        drop(turn);
        results.into_iter().map(|result| self.shared.confirm(purpose, result)).collect()
    }
}

impl Shared {
    /// Waits for the turn. The thread that has the turn writes all waiting ends. The next group gathers during the
    /// sync.
    fn end_in_group(&self, end: End) -> Result<Ended> {
        let purpose = end.purpose();
        let result = self.take_turn(end);
        self.confirm(purpose, result)
    }

    fn take_turn(&self, end: End) -> Result<Ended> {
        let ticket = Ticket::new(end);
        self.ends.waiting.lock().push(Arc::clone(&ticket));
        let turn = self.ends.turn.lock();
        let done = ticket.result.lock().take();
        if let Some(result) = done {
            drop(turn);
            return self.look_for_gone(&ticket.end, result);
        }
        let group = std::mem::take(&mut *self.ends.waiting.lock());
        self.end_group(&group);
        drop(turn);
        let result = ticket.result.lock().take();
        self.look_for_gone(&ticket.end, result.unwrap_or(Err(Error::StoreClosed)))
    }

    /// Ends a transaction if nothing has to be waited for.
    fn end_at_once(&self, end: &End) -> Result<Ended> {
        if self.is_synced(end.purpose()) {
            return Err(Error::WouldWait);
        }
        let Some(_turn) = self.ends.turn.try_lock() else { return Err(Error::WouldWait) };
        self.end_alone(end, Wait::No)?.acknowledged()?
    }

    /// Writes an end as a group by itself.
    fn end_alone(&self, end: &End, wait: Wait) -> Result<Unacknowledged<'_, Result<Ended>>> {
        let mut inner = match wait {
            Wait::Yes => self.inner.lock(),
            Wait::No => self.inner.try_lock().ok_or(Error::WouldWait)?,
        };
        let mut results = std::mem::take(&mut inner.group.results);
        results.clear();
        self.write_group(&mut inner, &[end], &mut results, wait)?;
        let mut result = results.pop().unwrap_or(Err(Error::StoreClosed));
        inner.group.results = results;
        if let Err(Error::TransactionNotFound { .. }) = result {
            // A search in the files may find it, for which only some callers may wait.
            if wait == Wait::No {
                inner.counts.not_found -= 1;
                return Err(Error::WouldWait);
            }
            drop(inner);
            result = self.look_for_gone(end, result);
            inner = self.inner.lock();
        }
        Ok(self.unacknowledged(inner, end.purpose(), result))
    }

    fn end_group(&self, group: &[Arc<Ticket>]) {
        let mut results = Vec::with_capacity(group.len());
        let mut inner = self.inner.lock();
        let ends: Vec<&End> = group.iter().map(|ticket| &ticket.end).collect();
        let written = self.write_group(&mut inner, &ends, &mut results, Wait::Yes);
        let written = written.and_then(|()| self.unacknowledged(inner, Purpose::End, ()).acknowledged());
        let failed = written.err().filter(|_| !mutated(Mutant::FailedGroupAcknowledged));
        for (ticket, result) in group.iter().zip(results) {
            // The outcome that an end reports may depend on a decision of this group, or on an earlier one whose sync
            // failed. After a failed sync nothing of it is acknowledged.
            let result = match &failed {
                Some(error) if tells_outcome(&result) => Err(error.repeat()),
                _ => result,
            };
            *ticket.result.lock() = Some(result);
        }
    }

    /// Waits for the sync of a decision that no check would repeat, if the group itself needs no sync. The turn is over
    /// by now, so no other end waits for the disk.
    fn confirm(&self, purpose: Purpose, result: Result<Ended>) -> Result<Ended> {
        // An outcome that existed before may not be durable either.
        if tells_outcome(&result) && self.is_synced(purpose) && !self.is_synced(Purpose::End) {
            self.wait_durable(self.log.appended())?;
        }
        result
    }

    /// Returns the strictest purpose of a group: one that requires a sync, if there is any.
    pub(super) fn purpose_of<'e>(&self, ends: impl Iterator<Item = &'e End>) -> Purpose {
        let mut purposes = ends.map(End::purpose);
        purposes.find(|purpose| self.is_synced(*purpose)).unwrap_or(Purpose::End)
    }

    /// Ends these transactions as one group, without others that wait.
    pub(super) fn end_all(&self, ends: Vec<End>) -> Vec<Result<Ended>> {
        let group: Vec<_> = ends.into_iter().map(Ticket::new).collect();
        self.end_group(&group);
        let result = |ticket: &Arc<Ticket>| ticket.result.lock().take().unwrap_or(Err(Error::StoreClosed));
        group.iter().map(|ticket| self.look_for_gone(&ticket.end, result(ticket))).collect()
    }
}

/// Returns whether a result reports an outcome.
const fn tells_outcome(result: &Result<Ended>) -> bool {
    matches!(result, Ok(_) | Err(Error::AlreadyEnded { .. }))
}
