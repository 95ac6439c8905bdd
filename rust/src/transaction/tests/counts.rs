//! The counts of ends and checks.

use super::*;
use crate::base::error::Error;
use crate::transaction::counts::{Counts, LATENCY_BOUNDS_MS};

#[test]
fn each_kind_of_end_and_check_has_its_own_count() {
    let mut counts = Counts::default();
    let topic = counts.topic("orders");
    let ended = [Outcome::Committed, Outcome::RolledBack, Outcome::Discarded, Outcome::FinishedUnknown];
    for (times, outcome) in (1..).zip(ended) {
        for _ in 0..times {
            counts.ended(topic, outcome, 0);
            counts.check_ended(outcome);
        }
    }
    let transaction = || String::from("t");
    let refused = [
        Error::AlreadyEnded { transaction: transaction(), outcome: Outcome::Committed },
        Error::LateEnd { transaction: transaction(), immunity_ms: 1 },
        Error::WrongGroup { transaction: transaction(), expected: String::new(), given: String::new() },
        Error::TransactionNotFound { what: String::new() },
        Error::StoreClosed,
    ];
    for (times, error) in (1..).zip(&refused) {
        (0..times).for_each(|_| counts.refused(error));
    }
    counts.repeated = 6;
    (counts.checks_sent, counts.checks_unknown, counts.checks_unanswered) = (7, 8, 9);
    let expected = [
        ("ends_committed", 1),
        ("ends_rolled_back", 2 + 4),
        ("ends_discarded", 3),
        ("ends_repeated", 6),
        ("ends_contrary", 1),
        ("ends_late", 2),
        ("ends_wrong_group", 3),
        ("ends_not_found", 4),
        ("ends_failed", 5),
        ("checks_sent", 7),
        ("checks_committed", 1),
        ("checks_rolled_back", 2),
        ("checks_unknown", 8),
        ("checks_unanswered", 9),
    ];
    assert_eq!(counts.all(), expected);
}

#[test]
fn a_commit_is_counted_in_the_bucket_of_its_age() {
    let mut counts = Counts::default();
    let topic = counts.topic("orders");
    let ages: Vec<i64> = LATENCY_BOUNDS_MS.iter().flat_map(|bound| [*bound, bound + 1]).chain([-1]).collect();
    for age in ages {
        counts.ended(topic, Outcome::Committed, age);
    }
    let (_, ends) = &counts.topics()[0];
    assert_eq!(ends.latency, [2, 2, 2, 2, 2, 2, 1]);
    assert_eq!(ends.latency_ms, 2 * LATENCY_BOUNDS_MS.iter().sum::<i64>().cast_unsigned() + 6);
}
