//! Scan: what waits, as facts; choosing is Python's.
//!
//! In: the table and the monotonic clock. Out: `Waiting`, one for each pending transaction asked for; what is due, put
//! together by what is alike. Always: ages come from the monotonic clock. Not here: whether to ask, discard or wait.

use std::sync::Arc;

use super::HalfCopy;
use super::table::{Key, Pending, Table};

/// Facts about one pending transaction. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its newest copy.
    pub newest: HalfCopy,
    /// Its producer group.
    pub group: Arc<str>,
    /// The number of the producer that sent it; 0 unknown.
    pub owner: u32,
    /// Whether its local transaction runs here.
    pub running: bool,
    /// Since it was stored, or since its local transaction ended here.
    pub age_ms: i64,
    /// Since it was stored.
    pub stored_age_ms: i64,
    /// How long it is not to be asked about.
    pub immunity_ms: Option<i64>,
    /// Checks that were sent.
    pub checks: u16,
    /// Since the last of them.
    pub last_check_age_ms: Option<i64>,
    /// Whether the last of them was answered; true before the first.
    pub answered: bool,
    /// Until it is handed out; 0 or less: it is due.
    pub look_again_in_ms: i64,
}

impl Waiting {
    /// The facts about `entry` now.
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

/// Transactions that differ in nothing but where they stand and how old they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alike {
    /// Facts about each.
    pub halves: Vec<Waiting>,
    /// The first one's facts, with the least of each age.
    pub youngest: Waiting,
    /// The same, with the most of each age.
    pub oldest: Waiting,
}

impl Alike {
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

/// Puts together what is alike; within each, the order stays.
pub fn alike(mut halves: Vec<Waiting>) -> Vec<Alike> {
    let kind = |half: &Waiting| {
        let checked = half.last_check_age_ms.is_some();
        (half.owner, half.checks, half.running, half.immunity_ms, checked, half.answered)
    };
    let same = |one: &Waiting, other: &Waiting| {
        kind(one) == kind(other) && (Arc::ptr_eq(&one.group, &other.group) || one.group == other.group)
    };
    if halves.first().is_some_and(|first| halves.iter().all(|half| same(first, half))) {
        // Mostly all are alike, and that is told sooner than an order.
        return Alike::of(halves).into_iter().collect();
    }
    halves.sort_by(|one, other| kind(one).cmp(&kind(other)).then_with(|| one.group.cmp(&other.group)));
    let lengths: Vec<usize> = halves.chunk_by(same).map(<[Waiting]>::len).collect();
    let mut halves = halves.into_iter();
    lengths.into_iter().filter_map(|length| Alike::of(halves.by_ref().take(length).collect())).collect()
}

/// What is due, the longest due first.
pub fn due(table: &Table, now_ms: i64, limit: usize) -> Vec<Waiting> {
    facts(table, table.due(now_ms, limit), now_ms)
}

/// The pending transactions after a half queue offset, in the order of the half queue.
pub fn waiting_after(table: &Table, after: Option<u64>, limit: usize, now_ms: i64) -> Vec<Waiting> {
    facts(table, table.after(after).take(limit), now_ms)
}

fn facts(table: &Table, keys: impl IntoIterator<Item = Key>, now_ms: i64) -> Vec<Waiting> {
    keys.into_iter().filter_map(|key| table.get(key)).map(|entry| Waiting::of(table, entry, now_ms)).collect()
}
