//! Returns pending transactions as facts. Python chooses what to do with them.
//!
//! In:     the table and the monotonic clock.
//! Out:    a `Waiting` for each requested pending transaction. Due ones are grouped by equal facts.
//! Always: ages come from the monotonic clock.
//! Not here: whether to check, discard or wait.

use std::sync::Arc;

use super::HalfCopy;
use super::pending::Pending;
use super::table::{Key, Table};

/// The facts about one pending transaction. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its newest copy.
    pub newest: HalfCopy,
    /// Its producer group.
    pub group: Arc<str>,
    /// The id of the producer that sent it. 0: unknown.
    pub owner: u32,
    /// Whether its local transaction runs in this process.
    pub running: bool,
    /// Milliseconds since it was stored, or since its local transaction ended in this process.
    pub age_ms: i64,
    /// Milliseconds since it was stored.
    pub stored_age_ms: i64,
    /// How long no check is sent.
    pub immunity_ms: Option<i64>,
    /// The number of checks that were sent.
    pub checks: u16,
    /// Milliseconds since the last check.
    pub last_check_age_ms: Option<i64>,
    /// Whether the last check was answered. True before the first check.
    pub answered: bool,
    /// Milliseconds until it is due. 0 or less means due now.
    pub look_again_in_ms: i64,
}

impl Waiting {
    /// Returns the current facts about `entry`.
    pub fn of(table: &Table, entry: &Pending, now_ms: i64) -> Self {
        Self {
            newest: entry.newest,
            group: table.shared_group(entry),
            owner: entry.owner,
            running: entry.running,
            age_ms: now_ms - entry.aged_from_ms(),
            stored_age_ms: now_ms - entry.stored_ms,
            immunity_ms: entry.immunity_ms(),
            checks: entry.checks,
            last_check_age_ms: entry.last_check_ms().map(|checked| now_ms - checked),
            answered: entry.is_answered(),
            look_again_in_ms: entry.due_ms - now_ms,
        }
    }
}

/// Transactions that differ only in their positions and ages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueGroup {
    /// The facts about each transaction.
    pub halves: Vec<Waiting>,
    /// The facts of the first one, with the smallest value of each age.
    pub youngest: Waiting,
    /// The facts of the first one, with the largest value of each age.
    pub oldest: Waiting,
}

impl DueGroup {
    fn of(halves: Vec<Waiting>) -> Option<Self> {
        let mut youngest = halves.first()?.clone();
        let mut oldest = youngest.clone();
        for half in &halves {
            youngest.age_ms = youngest.age_ms.min(half.age_ms);
            youngest.stored_age_ms = youngest.stored_age_ms.min(half.stored_age_ms);
            youngest.last_check_age_ms = youngest.last_check_age_ms.min(half.last_check_age_ms);
            oldest.age_ms = oldest.age_ms.max(half.age_ms);
            oldest.stored_age_ms = oldest.stored_age_ms.max(half.stored_age_ms);
            oldest.last_check_age_ms = oldest.last_check_age_ms.max(half.last_check_age_ms);
        }
        Some(Self { halves, youngest, oldest })
    }
}

/// Groups transactions that have the same facts. Keeps the order within each group.
pub fn group_by_facts(mut halves: Vec<Waiting>) -> Vec<DueGroup> {
    let kind = |half: &Waiting| {
        let checked = half.last_check_age_ms.is_some();
        (half.owner, half.checks, half.running, half.immunity_ms, checked, half.answered)
    };
    let same = |one: &Waiting, other: &Waiting| {
        kind(one) == kind(other) && (Arc::ptr_eq(&one.group, &other.group) || one.group == other.group)
    };
    if halves.first().is_some_and(|first| halves.iter().all(|half| same(first, half))) {
        // Usually all have the same facts, and checking that is faster than sorting.
        return DueGroup::of(halves).into_iter().collect();
    }
    halves.sort_by(|one, other| kind(one).cmp(&kind(other)).then_with(|| one.group.cmp(&other.group)));
    let lengths: Vec<usize> = halves.chunk_by(same).map(<[Waiting]>::len).collect();
    let mut halves = halves.into_iter();
    lengths.into_iter().filter_map(|length| DueGroup::of(halves.by_ref().take(length).collect())).collect()
}

/// Returns the due transactions, the longest due first.
pub fn due(table: &Table, now_ms: i64, limit: usize) -> Vec<Waiting> {
    facts(table, table.due(now_ms, limit), now_ms)
}

/// Returns the pending transactions after a half queue offset, in half queue order.
pub fn waiting_after(table: &Table, after: Option<u64>, limit: usize, now_ms: i64) -> Vec<Waiting> {
    facts(table, table.after(after).take(limit), now_ms)
}

fn facts(table: &Table, keys: impl IntoIterator<Item = Key>, now_ms: i64) -> Vec<Waiting> {
    keys.into_iter().filter_map(|key| table.get(key)).map(|entry| Waiting::of(table, entry, now_ms)).collect()
}
