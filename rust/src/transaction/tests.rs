//! Tests of half messages: the rule of docs/internals/transactions.md record by record, and the table against a naive
//! model.

mod ages;
mod convert;
mod counts;
mod decided;
mod frozen;
mod maps;
mod model;
mod replay;
mod row;
mod sets;

use std::collections::BTreeMap;

use super::convert::{HalfNames, half_properties};
use super::op::{OP_PROPERTIES, REMOVE_TAG, fill_op_body, parse_op_body};
use super::op_progress::OpProgress;
use super::outcome::{DecidedHalves, Evidence, Op};
use super::table::{NewHalf, Table};
use super::*;
use crate::base::error::Outcome;
use crate::base::options::PUT_BACK_ROOM;
use crate::record::Host;
use crate::record::layout::{CRC_PROPERTY_LEN, PROPERTIES_MAX};
use crate::record::message::{Envelope, Parts};
use crate::record::properties::{self, REAL_TOPIC, TAGS, TRANSACTION_CHECK_TIMES, WAIT};

const COMMITTED: Option<Outcome> = Some(Outcome::Committed);

#[test]
fn t2_the_outcome_is_decided_by_one_record() {
    let of = |final_message, discarded, op| Evidence { final_message, discarded, op }.outcome();
    assert_eq!(of(false, false, Op::None), None);
    assert_eq!(of(false, false, Op::RollsBack), Some(Outcome::RolledBack));
    assert_eq!(of(false, false, Op::AfterLoss), Some(Outcome::FinishedUnknown));
    for op in [Op::None, Op::RollsBack, Op::AfterLoss] {
        assert_eq!(of(false, true, op), Some(Outcome::Discarded));
        assert_eq!(of(true, false, op), Some(Outcome::Committed));
        assert_eq!(of(true, true, op), Some(Outcome::Committed));
    }
}

#[test]
fn decided_halves_keep_two_bits_each() {
    let all = [Outcome::Committed, Outcome::RolledBack, Outcome::Discarded, Outcome::FinishedUnknown];
    let mut decided = DecidedHalves::from(0);
    for number in (0..1_000).rev() {
        decided.set(number, all[usize::try_from(number * 7 % 4).unwrap()]);
    }
    for number in 0..1_000 {
        assert_eq!(decided.get(number), Some(all[usize::try_from(number * 7 % 4).unwrap()]), "{number}");
    }
    assert_eq!(decided.get(1_000), None);
    assert_eq!(decided.bytes(), 250);
}

#[test]
fn op_bodies_name_every_offset_and_stay_within_their_size() {
    let offsets: Vec<u64> = (0..500).map(|n| n * n * n).collect();
    for size in [32, 33, 100, 4_096] {
        let (mut rest, mut read, mut body) = (&*offsets, Vec::new(), String::new());
        while !rest.is_empty() {
            let count = fill_op_body(rest, size, &mut body);
            assert!(body.len() <= size && count > 0);
            read.extend(parse_op_body(body.as_bytes()));
            rest = &rest[count..];
            let more = rest.first().map_or(usize::MAX, |next| body.len() + format!("{next},").len());
            assert!(more > size, "one more would have had room");
        }
        assert_eq!(read, offsets);
    }
    assert_eq!(fill_op_body(&[], 100, &mut "left".to_owned()), 0);
    assert_eq!(fill_op_body(&[12_345, 6], 3, &mut String::new()), 1, "one offset, however long it is");
    assert_eq!(parse_op_body(b"4,x,, 5 ,-1,6").collect::<Vec<_>>(), [4, 5, 6]);
}

#[test]
fn an_op_message_has_a_brokers_properties() {
    let mut text = Vec::new();
    properties::push(&mut text, WAIT, "true");
    properties::push(&mut text, TAGS, REMOVE_TAG);
    assert_eq!(OP_PROPERTIES, text);
}

/// Snapshots contain identities: however long the names are, the hash is that of all of them concatenated.
#[test]
fn an_identity_is_the_hash_of_its_names_in_a_row() {
    for length in [0, 1, 100, 240, 241, 242, 243, 300, 5_000] {
        let id = "i".repeat(length);
        let row = format!("g\0{id}\0topic\0").into_bytes();
        let expected = xxh3_64(&[row.as_slice(), &7_u32.to_be_bytes()].concat());
        assert_eq!(Identity::new("g", &id, "topic", 7), Identity(expected), "{length}");
    }
}

#[test]
fn a_half_leaves_room_for_what_a_broker_adds() {
    let value = "v".repeat(32_000);
    for extra in 0..2_000 {
        let more = "m".repeat(extra + 1);
        let parts = Parts { topic: "orders", properties: &[("a", &value), ("b", &more)], ..Parts::default() };
        let Ok(envelope) = Envelope::new(&parts) else { continue };
        let mut text = Vec::new();
        let fits = half_properties(&envelope, QueueId(0), &HalfNames::alone("id", "group"), &mut text).is_ok();
        assert_eq!(fits, text.len() + PUT_BACK_ROOM + CRC_PROPERTY_LEN <= PROPERTIES_MAX);
    }
}

#[test]
fn t9_the_op_progress_passes_only_ops_that_name_nothing_above() {
    let mut ops = OpProgress::default();
    let mut named = BTreeMap::new();
    for op in 0..1_000_u64 {
        let highest = op * 3 % 700;
        ops.note(op, highest);
        named.insert(op, highest);
    }
    let mut before = 0;
    for progress in [0, 1, 50, 300, 699, 700, 701] {
        let passed = ops.pass(progress);
        assert!(named.range(..passed).all(|(_, highest)| *highest < progress), "{progress}");
        assert!(passed >= before);
        before = passed;
    }
    assert_eq!(before, 1_000, "all are done");
}

/// After one transaction that stays pending, the memory for op progress is bounded, and the result stays safe.
#[test]
fn t9_the_op_progress_has_bounded_memory() {
    let mut ops = OpProgress::default();
    for op in 0..3_000_000_u64 {
        ops.note(op, op + 1);
    }
    let (end, runs) = ops.parts();
    let runs: Vec<_> = runs.collect();
    assert!(end == 3_000_000 && runs.len() <= 1 << 14, "{} runs", runs.len());
    let mut again = OpProgress::from_parts(end, runs);
    let mut before = 0;
    for progress in [0, 1, 1_000_000, 2_999_999, 3_000_001] {
        let passed = ops.pass(progress);
        assert!(passed == 0 || passed < progress, "op {passed} names a half at or above {progress}");
        assert!(passed >= before);
        assert_eq!(again.pass(progress), passed);
        before = passed;
    }
    assert_eq!(before, 3_000_000);
}

/// A run of ops is passed as a whole, so a longer one would let the op progress stay too low.
#[test]
fn the_op_progress_stays_low_by_one_run_at_most() {
    let mut ops = OpProgress::default();
    for op in 0..640 {
        ops.note(op, op);
    }
    for progress in [63, 64, 65, 127, 128, 639] {
        assert_eq!(ops.pass(progress), progress / 64 * 64);
    }
    assert_eq!(ops.pass(640), 640);
}

/// Of equal property names the last one counts, also if its value is not UTF-8: both ways to read an identity must
/// agree, or a final message would not find its half after a restart.
#[test]
fn a_half_and_its_final_message_read_the_same_identity() {
    for (first, last) in
        [(&b"UNIQ_KEY\x01id\x02"[..], &b"UNIQ_KEY\x01\xFF\x02"[..]), (b"PGROUP\x01g\x02", b"PGROUP\x01\xFF\x02")]
    {
        let text = [b"UNIQ_KEY\x01a\x02PGROUP\x01b\x02REAL_TOPIC\x01t\x02", first, last].concat();
        let host = Host::from(&[127, 0, 0, 1, 0, 0, 0, 1]);
        let view = RecordView {
            size: 100,
            version: crate::record::Version::V1,
            body_crc: 7,
            queue_id: QueueId(0),
            flag: 0,
            queue_offset: crate::base::units::QueueOffset(0),
            physical_offset: crate::base::units::PhysicalOffset(0),
            sys_flag: 0,
            born_timestamp: crate::base::units::TimestampMs(1),
            born_host: host,
            store_timestamp: crate::base::units::TimestampMs(1),
            store_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: crate::base::units::PhysicalOffset(0),
            body: b"",
            topic: crate::base::names::HALF_TOPIC,
            properties: Properties(&text),
        };
        let facts = HalfFacts::of(&view);
        assert_eq!(facts.identity(), Identity::of(view.properties, facts.real_topic, 7));
    }
}

/// Returns the resident memory of the process in bytes, as an approximation of what it allocates.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}

/// Returns the memory of a million pending transactions: by the table's own count, and by the process's growth.
fn a_million() -> (usize, usize) {
    const MANY: u64 = 1_000_000;
    let before = resident();
    let mut table = Table::new(0);
    for number in 0..MANY {
        let half = NewHalf {
            copy: HalfCopy { queue_offset: number, physical_offset: number * 500 },
            identity: Some(Identity::new("services", &number.to_string(), "orders", 7)),
            group: "services",
            size: 500,
            stored_ms: 0,
            immunity_ms: None,
            checks: 0,
            owner: 0,
            sent: true,
        };
        let key = table.insert(&half);
        table.set_due(key, 6_000);
    }
    assert_eq!(table.len(), MANY);
    (table.memory(), resident().saturating_sub(before))
}

#[test]
fn p2_a_million_pending_transactions_take_less_than_150_mib() {
    // Other tests allocate memory at the same time, so the smallest of several measurements counts.
    let looks: Vec<(usize, usize)> = (0..5).map(|_| a_million()).collect();
    let (told, real) = (looks[0].0, looks.iter().map(|look| look.1).min().unwrap());
    assert!(told < 150 << 20, "the table says {told}");
    assert!(real < 150 << 20, "the process took {real}");
    assert!(told > 80 * 1_000_000, "{told} is less than the entries alone");
}

#[test]
fn ends_of_topics_beyond_the_bound_are_counted_together() {
    let mut counts = super::counts::Counts::default();
    for number in 0..10_003 {
        let topic = counts.topic(&format!("topic-{number}"));
        counts.ended(topic, Outcome::Committed, 61_000);
    }
    assert_eq!(counts.topics().len(), 10_001);
    let (topic, ends) = counts.topics().last().unwrap();
    assert_eq!((&**topic, ends.committed, ends.latency_ms), ("(other)", 3, 183_000));
    assert_eq!(ends.latency, [0, 0, 3, 0, 0, 0, 0]);
}

#[test]
fn the_largest_pending_size_is_never_underrated_and_at_most_doubled() {
    let (mut sizes, mut kept, mut seed) = (sizes::Sizes::default(), Vec::new(), 42_u64);
    for _ in 0..10_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let size = u32::try_from(seed >> 32).unwrap() >> (seed % 29);
        if seed % 5 < 3 || kept.is_empty() {
            sizes.add(size);
            kept.push(size);
        } else {
            let gone = kept.swap_remove(usize::try_from(seed >> 40).unwrap() % kept.len());
            sizes.remove(gone);
        }
        let largest = kept.iter().copied().max().unwrap_or(0);
        assert_eq!(sizes.bytes(), kept.iter().map(|size| u64::from(*size)).sum::<u64>());
        assert_eq!(sizes.count(), crate::base::units::to_u64(kept.len()));
        let bound = sizes.largest();
        assert!(bound >= largest && u64::from(bound) <= 2 * u64::from(largest), "{bound} for {largest}");
    }
}

#[test]
fn what_ended_is_remembered_for_five_to_ten_minutes() {
    let minute = 60_000;
    for offset in 0..11 {
        let mut recent = recent::RecentlyEnded::default();
        recent.note(9, Outcome::Committed, 0);
        recent.note(1, Outcome::Committed, offset * minute);
        recent.note(0, Outcome::Committed, offset * minute);
        let at = |recent: &mut recent::RecentlyEnded, ms| recent.outcome(Identity(1), offset * minute + ms);
        assert_eq!(at(&mut recent, 0), Some(Outcome::Committed));
        assert_eq!(at(&mut recent, 5 * minute - 1), Some(Outcome::Committed), "{offset}");
        assert_eq!(at(&mut recent, 10 * minute), None, "{offset}");
        assert_eq!(recent.outcome(Identity(0), offset * minute), None, "a half without an identity");
    }
    // After a rollback a producer may try again, also if an earlier transaction of the id ended otherwise.
    let mut recent = recent::RecentlyEnded::default();
    recent.note(1, Outcome::Discarded, 0);
    recent.note(1, Outcome::RolledBack, 1);
    assert_eq!(recent.outcome(Identity(1), 2), None);
    // An end that recovery read on the wall clock keeps its age on the monotonic clock.
    let mut recent = recent::RecentlyEnded::default();
    recent.note(1, Outcome::Discarded, 1_700_000_000_000);
    recent.start(1_700_000_000_000 + 4 * minute, 7);
    assert_eq!(recent.outcome(Identity(1), 8), Some(Outcome::Discarded));
    assert_eq!(recent.outcome(Identity(1), 8 + 6 * minute), None);
    let mut recent = recent::RecentlyEnded::default();
    recent.note(1, Outcome::Discarded, 0);
    recent.start(11 * minute, 7);
    assert_eq!(recent.outcome(Identity(1), 7), None, "it is older than ten minutes");
    // Five minutes are over after the last millisecond of them.
    let mut recent = recent::RecentlyEnded::default();
    recent.note(1, Outcome::Committed, 0);
    assert_eq!(recent.outcome(Identity(1), 5 * minute), COMMITTED);
    assert_eq!(recent.outcome(Identity(1), 10 * minute - 1), COMMITTED);
    assert_eq!(recent.outcome(Identity(1), 10 * minute), None);
}

#[test]
fn of_many_that_end_at_once_the_newest_are_remembered() {
    const MANY: u64 = 1 << 17;
    let mut recent = recent::RecentlyEnded::default();
    for identity in 1..=2 * MANY {
        recent.note(identity, Outcome::Committed, 0);
    }
    assert_eq!([1, MANY, 2 * MANY].map(|identity| recent.outcome(Identity(identity), 0)), [COMMITTED; 3]);
    recent.note(2 * MANY + 1, Outcome::Committed, 0);
    let now = [MANY, MANY + 1, 2 * MANY + 1].map(|identity| recent.outcome(Identity(identity), 0));
    assert_eq!(now, [None, COMMITTED, COMMITTED]);
}

#[test]
fn a_set_is_below_an_offset_if_one_of_its_halves_is() {
    let mut table = Table::new(0);
    let half = |number| NewHalf {
        copy: HalfCopy { queue_offset: number, physical_offset: number * 100 },
        ..model::half(number, number)
    };
    table.insert(&half(1));
    assert!(!table.has_set_below(u64::MAX));
    table.insert_set(&half(4), &[(half(2).copy, 10), (half(3).copy, 10)]);
    assert!(!table.has_set_below(200));
    assert!(table.has_set_below(201));
}

#[test]
fn a_transaction_with_one_half_takes_no_memory_for_others() {
    let mut table = Table::new(0);
    let key = table.restore(&model::half(1, 1), &[], &[], Vec::new());
    assert!(table.get(key).unwrap().more().is_none());
}
