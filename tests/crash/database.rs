//! Models the database of an application that loses power together with the log.
//!
//! In:     a machine and its store.
//! Out:    rows, and the promise that is broken.
//! Always: a row is written in a local transaction, after its half message was acknowledged. A commit is durable when
//!         it returns. A crash undoes a local transaction that has not committed, or finds it committed if it crossed
//!         the commit. A check answers by the row alone.

use std::collections::{BTreeMap, BTreeSet};

use txstore::base::error::Outcome;
use txstore::base::options::FlushDiskType;
use txstore::store::{Decider, End, EndKind, Store};

use crate::chance::Chance;
use crate::history::{Half, Held, hold};
use crate::machine::Machine;
use crate::promises::Found;
use crate::timed::Time;

/// The unique ids of halves whose local transaction writes a row begin with this.
pub const IDS: &str = "ROW-";

/// A row with the id of its message's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whether its local transaction has committed.
    pub is_committed: bool,
    /// The physical offset of its half message.
    at: u64,
    /// The log's end when its half message was acknowledged.
    end: u64,
    /// Its message was committed, and retention has removed the half since.
    is_gone: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Database {
    /// By the id of the transaction.
    rows: BTreeMap<String, Row>,
    /// The number of local transactions that committed.
    pub committed: u64,
    /// Transactions that a check ended, as their rows said.
    pub checked: u64,
}

/// Returns whether a half's local transaction writes a row.
pub fn has_row(half: &Half) -> bool {
    half.id.as_deref().is_some_and(|id| id.starts_with(IDS))
}

impl Database {
    fn commit(&mut self, id: &str) {
        if let Some(row) = self.rows.get_mut(id) {
            row.is_committed = true;
            self.committed += 1;
        }
    }

    /// Crashes: a local transaction that has not committed is undone, unless its commit has just reached the disk.
    pub fn crash(&mut self, chance: &mut Chance) {
        let open: Vec<String> = self.open().map(str::to_owned).collect();
        for id in open {
            if chance.one_in(3) {
                self.commit(&id);
            } else {
                self.rows.remove(&id);
            }
        }
    }

    fn open(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().filter(|(_, row)| !row.is_committed).map(|(id, _)| &**id)
    }

    /// Returns what a check answers; `None` while the local transaction runs.
    pub fn answer(&self, half: &Half) -> Option<EndKind> {
        match self.rows.get(half.id.as_deref()?) {
            Some(row) if row.is_committed => Some(EndKind::Commit),
            Some(_) => None,
            None => Some(EndKind::RollBack),
        }
    }

    /// Notes that retention removed halves below `minimum`, whose messages were committed.
    pub fn forget_below(&mut self, minimum: u64, halves: &[Half]) {
        for half in halves {
            let row = half.id.as_ref().and_then(|id| self.rows.get_mut(id)).filter(|row| row.at < minimum);
            let was_committed = half.asked.iter().any(|(kind, _)| *kind == EndKind::Commit);
            if let Some(row) = row.filter(|_| was_committed) {
                row.is_gone = true;
            }
        }
    }

    /// Checks L2, T2: each committed row has its half message, unless the options let a power loss take it. No message
    /// is committed without a row, and none is rolled back with one.
    pub fn agrees(&mut self, found: &Found, must_end: u64, flush: FlushDiskType) -> Held {
        let ids = |wanted: fn(Outcome) -> bool| -> BTreeSet<&str> {
            let ended = found.transactions.iter().filter(|one| one.outcome.is_some_and(wanted));
            ended.filter_map(|one| one.id.as_deref()).filter(|id| id.starts_with(IDS)).collect()
        };
        for id in ids(|outcome| outcome == Outcome::Committed) {
            let row = self.rows.get(id);
            hold(row.is_some_and(|row| row.is_committed), "T2", || format!("{id} is committed, its row is {row:?}"))?;
        }
        for id in ids(|outcome| outcome != Outcome::Committed) {
            let row = self.rows.get(id);
            hold(row.is_none(), "T2", || format!("{id} ended without its message, its row is {row:?}"))?;
        }
        let halves: BTreeSet<&str> = found.transactions.iter().filter_map(|one| one.id.as_deref()).collect();
        let lost: Vec<String> = (self.rows.iter())
            .filter(|(id, row)| row.is_committed && !row.is_gone && !halves.contains(id.as_str()))
            .map(|(id, _)| id.clone())
            .collect();
        for id in lost {
            let row = self.rows.remove(&id);
            let may_be_lost = flush == FlushDiskType::Async && row.is_some_and(|row| row.end > must_end);
            hold(may_be_lost, "L2", || format!("{id} is in the database as {row:?}, its half message is lost"))?;
        }
        Ok(())
    }
}

impl Machine {
    /// Stores a half message, then begins its local transaction, which writes a row.
    pub fn begin_row(&mut self, store: &Store, (topic, queue): (usize, i32), size: usize, time: Option<Time>) -> Held {
        let known = self.history.halves.len();
        self.prepare(store, (topic, queue), size, 1, Some(IDS), (false, time))?;
        let Some(half) = self.history.halves[known..].first().filter(|half| !half.copies.is_empty()) else {
            return Ok(());
        };
        let row = Row { is_committed: false, at: half.copies[0].physical_offset, end: half.end, is_gone: false };
        self.database.rows.insert(half.id.clone().unwrap(), row);
        Ok(())
    }

    /// Ends a local transaction, and its message unless the producer dies in between.
    pub fn end_row(&mut self, store: &Store, which: usize, commits: bool, dies: bool) -> Held {
        let open: Vec<String> = self.database.open().map(str::to_owned).collect();
        if open.is_empty() {
            return Ok(());
        }
        let id = &open[which % open.len()];
        if commits {
            self.database.commit(id);
        } else {
            self.database.rows.remove(id);
        }
        let at = self.history.halves.iter().position(|half| half.id.as_ref() == Some(id));
        let Some(at) = at.filter(|at| self.history.halves[*at].reported.is_none()) else { return Ok(()) };
        if dies {
            return if self.history.halves[at].running { self.local_ended(store, at) } else { Ok(()) };
        }
        let kind = if commits { EndKind::Commit } else { EndKind::RollBack };
        self.end_half(store, at, &self.end_of(at, which, kind))
    }

    /// Waits for checks of all transactions that write a row, which answer by it. Checks T11, T2: each ends as its row
    /// says.
    pub fn end_all_rows(&mut self, store: &Store) -> Held {
        let open: Vec<String> = self.database.open().map(str::to_owned).collect();
        for which in 0..open.len() {
            self.end_row(store, 0, which % 2 == 0, true)?;
        }
        for _ in 0..3 {
            self.clock.advance(crate::rounds::INTERVAL_MS);
            self.check_round(store, true, usize::MAX, None)?;
            while !self.history.answers.is_empty() {
                self.answer(store)?;
            }
        }
        let is_pending = |half: &&Half| has_row(half) && half.reported.is_none();
        let left = self.history.halves.iter().find(is_pending);
        hold(left.is_none(), "T11", || format!("no check has ended {left:?}"))
    }

    /// Ends a half by the answer to a check.
    pub fn end_by_row(&mut self, store: &Store, at: usize, end: &End) -> Held {
        let is_pending = self.history.halves[at].reported.is_none();
        self.end_half(store, at, &End { decider: Decider::Check, ..end.clone() })?;
        self.database.checked += u64::from(is_pending && self.history.halves[at].reported.is_some());
        Ok(())
    }
}
