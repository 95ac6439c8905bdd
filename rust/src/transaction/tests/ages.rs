//! The ages, checks and answers that the table keeps of one transaction: they decide when it is checked or discarded.

use super::*;
use crate::transaction::pending::Pending;
use crate::transaction::scan::Waiting;
use crate::transaction::table::Key;

/// A half message that was stored at 1,000 ms by the producer `owner`.
fn stored(number: u64, owner: u32) -> NewHalf<'static> {
    NewHalf {
        copy: HalfCopy { queue_offset: number, physical_offset: number * 100 },
        identity: Some(Identity(number + 10)),
        group: "services",
        size: 10,
        stored_ms: 1_000,
        immunity_ms: None,
        checks: 0,
        owner,
        sent: true,
    }
}

fn facts(table: &Table, key: Key, now_ms: i64) -> Waiting {
    Waiting::of(table, table.get(key).unwrap(), now_ms)
}

#[test]
fn an_age_counts_from_the_end_of_the_local_transaction() {
    for (ended_ms, age_ms) in [(1_000, 9_000), (4_000, 6_000), (900, 9_000)] {
        let mut table = Table::new(0);
        let key = table.insert(&stored(0, 7));
        assert_eq!((facts(&table, key, 10_000).running, facts(&table, key, 10_000).age_ms), (true, 9_000));
        table.local_ended(key, ended_ms);
        let ended = facts(&table, key, 10_000);
        assert_eq!((ended.running, ended.age_ms, ended.stored_age_ms), (false, age_ms, 9_000), "{ended_ms}");
        // It ends once: a second report does not make it younger, and so delay its check.
        table.local_ended(key, 9_000);
        assert_eq!(facts(&table, key, 10_000), ended);
    }
    let mut table = Table::new(0);
    let elsewhere = table.insert(&stored(0, 0));
    table.local_ended(elsewhere, 9_000);
    assert_eq!(facts(&table, elsewhere, 10_000).age_ms, 9_000, "it never ran in this process");
}

#[test]
fn t11_a_check_counts_and_waits_for_its_answer() {
    let mut table = Table::new(0);
    let key = table.insert(&stored(0, 0));
    let before = facts(&table, key, 10_000);
    assert_eq!((before.checks, before.last_check_age_ms, before.answered), (0, None, true));
    assert!(table.checked(key, 3_000), "no check was open before the first");
    let first = facts(&table, key, 10_000);
    assert_eq!((first.checks, first.last_check_age_ms, first.answered), (1, Some(7_000), false));
    assert!(!table.checked(key, 4_000), "the first check was not answered");
    table.answered(key);
    let second = facts(&table, key, 10_000);
    assert_eq!((second.checks, second.last_check_age_ms, second.answered), (2, Some(6_000), true));
    assert!(table.checked(key, 5_000));
    // The clock's value at the check may be that of the half, or before it after a restart.
    for asked_ms in [1_000, 900] {
        table.checked(key, asked_ms);
        assert_eq!(facts(&table, key, 10_000).last_check_age_ms, Some(9_000), "{asked_ms}");
    }
    // An age beyond the range of its field is the largest one, and not "never checked".
    for age_ms in [u32::MAX - 1, u32::MAX].map(i64::from).into_iter().chain([i64::from(u32::MAX) + 1]) {
        table.checked(key, 1_000 + age_ms);
        let known = table.get(key).and_then(Pending::last_check_ms);
        assert_eq!(known, Some(1_000 + i64::from(u32::MAX - 1)), "{age_ms}");
    }
    table.remove(key);
    assert!(table.checked(key, 6_000), "a transaction that ended waits for no answer");
}

#[test]
fn a_transaction_keeps_the_largest_count_of_checks_of_its_copies() {
    for (half, copy) in [(0, 3), (3, 0)] {
        let mut table = Table::new(0);
        let key = table.insert(&NewHalf { checks: half, ..stored(0, 0) });
        table.join(key, &NewHalf { checks: copy, ..stored(1, 0) });
        assert_eq!(facts(&table, key, 0).checks, 3);
    }
}

#[test]
fn a_transaction_that_is_not_pending_is_not_remembered_as_ended() {
    let mut table = Table::new(0);
    let key = table.insert(&stored(0, 0));
    table.remove(key);
    table.end(key, Outcome::Committed, 2_000);
    for identity in [0, 1, 10] {
        assert_eq!(table.recent.outcome(Identity(identity), 2_000), None);
    }
    assert_eq!(table.outcome(0), None);
}

#[test]
fn a_later_beginning_of_the_half_queue_applies_until_the_first_half() {
    let mut table = Table::new(5);
    table.begin_at(9);
    assert_eq!((table.lowest(), table.half_progress(20)), (9, 20));
    let mut table = Table::new(5);
    table.begin_at(9);
    table.insert(&stored(9, 0));
    table.begin_at(30);
    assert_eq!((table.lowest(), table.half_progress(20)), (9, 9));
}

/// A client that says that its local transaction still runs is asked first.
#[test]
fn the_owner_that_is_asked_first_can_become_known_later() {
    let mut table = Table::new(0);
    let key = table.insert(&stored(0, 0));
    table.set_owner(key, 9);
    assert_eq!(facts(&table, key, 2_000).owner, 9);
}
