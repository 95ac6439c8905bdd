//! Half queue offsets without a half message: a repair's filler, a broker's gap, offsets that are skipped because an op
//! names them. Their transactions are unknown, so no end of them may succeed.

use super::foreign::{broker, half, properties};
use super::*;
use crate::base::error::Outcome;
use crate::repair::{Examiner, mend};
use crate::storage::Storage;

const KINDS: [EndKind; 3] = [EndKind::Commit, EndKind::RollBack, EndKind::Discard];

/// Checks that every end of a half is an exact error and writes nothing.
fn assert_no_end(store: &Store, half: HalfCopy, about: &str) {
    for kind in KINDS {
        for group in [None, Some(GROUP.to_owned())] {
            let before = appended(store);
            let end = End { half, kind, transaction_id: None, group, decider: Decider::Producer };
            match store.end_transaction(&end, Wait::Yes) {
                Err(
                    Error::AlreadyEnded { outcome: Outcome::FinishedUnknown, .. } | Error::TransactionNotFound { .. },
                ) => {}
                other => panic!("{about}: {kind:?} of {half:?} is answered {other:?}"),
            }
            assert_eq!(appended(store), before, "{about}");
        }
    }
}

/// Checks the same after a snapshot, a kill and a close.
fn assert_no_end_ever(bench: &Bench, halves: &[HalfCopy], about: &str) {
    let assert_none = |store: &Store, when: &str| {
        for half in halves {
            assert_no_end(store, *half, &format!("{about}, {when}"));
        }
    };
    let store = bench.open();
    assert_none(&store, "opened");
    store.snapshot().unwrap();
    let killed = bench.killed().open();
    assert_none(&killed, "after a snapshot and a kill");
    drop(killed);
    store.close().unwrap();
    let store = bench.open();
    assert_none(&store, "after a close");
    prepare(&store, b"and continues");
    assert_none(&store, "with a newer half");
    store.close().unwrap();
}

/// Damages the records of these halves, and lets a repair replace them with fillers.
fn lose(bench: &Bench, halves: &[&Sent]) {
    for half in halves {
        bench.write("commitlog/00000000000000000000", half.physical_offset.0 + 30, &[0xFF; 8]);
    }
    assert!(bench.try_open().is_err());
    let storage: Arc<dyn Storage> = Arc::new(bench.memory.clone());
    let found = Examiner::begin(Arc::clone(&storage)).unwrap().finish().unwrap();
    assert!(!mend(&storage, &Memory::new(), "", &found).unwrap().filled.is_empty());
}

#[test]
fn t3_a_half_that_a_repair_replaced_is_not_answered_as_committed() {
    for lost in 1_u8..16 {
        let bench = Bench::sync();
        let store = bench.open();
        let halves: Vec<_> = (0..5_u8).map(|n| prepare(&store, &[n; 100])).collect();
        end(&store, &halves[0], EndKind::RollBack).unwrap();
        end(&store, &halves[4], EndKind::Commit).unwrap();
        store.flush().unwrap();
        let bench = bench.killed();
        let gone: Vec<&Sent> = (0..4).filter(|n| lost >> n & 1 == 1).map(|n| &halves[n]).collect();
        lose(&bench, &gone);
        let copies: Vec<HalfCopy> = gone.iter().map(|half| copy_of(half)).collect();
        assert_no_end_ever(&bench, &copies, &format!("lost {lost:04b}"));
        let store = bench.open();
        assert!(end(&store, &halves[4], EndKind::Commit).unwrap().already);
        for n in (1..4).filter(|n| lost >> n & 1 == 0) {
            assert!(
                !end(&store, &halves[n], EndKind::Commit).unwrap().already,
                "the others are pending, lost {lost:04b}"
            );
        }
    }
}

/// Returns a store that lost all half messages but the first. The op of the last one is left, so the next opening skips
/// the offsets up to it.
fn skipped() -> (Bench, Vec<Sent>) {
    let bench = Bench::sync();
    let store = bench.open();
    let halves: Vec<_> = (0..4_u8).map(|n| prepare(&store, &[n; 100])).collect();
    end(&store, &halves[3], EndKind::RollBack).unwrap();
    store.flush().unwrap();
    let bench = bench.killed();
    lose(&bench, &halves[1..].iter().collect::<Vec<_>>());
    (bench, halves)
}

/// A rolled-back transaction leaves only its op. Its queue offset and those before it are skipped.
#[test]
fn t3_offsets_that_are_passed_over_because_an_op_names_them_are_not_answered_as_committed() {
    let (bench, halves) = skipped();
    let copies: Vec<HalfCopy> = halves[1..].iter().map(copy_of).collect();
    assert_no_end_ever(&bench, &copies, "passed over");
}

/// An offset that was skipped has no half message, so no other record is returned for it.
#[test]
fn an_offset_that_was_skipped_leads_to_no_record() {
    let (bench, halves) = skipped();
    let store = bench.open();
    for half in &halves[1..3] {
        let found = store.half(half.queue_offset);
        assert!(matches!(found, Err(Error::MessageNotFound { .. })), "{:?}", found.unwrap().view());
    }
}

#[test]
fn t3_offsets_that_a_broker_left_out_are_not_answered_as_committed() {
    for first in [0, 2] {
        let (one, two, three) = (properties("one"), properties("two"), properties("three"));
        let bench = broker(&[(half(&one), first), (half(&two), first + 3), (half(&three), first + 4)]);
        let copy = |queue_offset| HalfCopy { queue_offset, physical_offset: 77 };
        // Decided halves around the gap are stored as bits, and so is the gap.
        let store = bench.open();
        let last = store.halves_waiting(None, usize::MAX).unwrap().last().unwrap().newest;
        let rolled_back =
            End { half: last, kind: EndKind::RollBack, transaction_id: None, group: None, decider: Decider::Producer };
        store.end_transaction(&rolled_back, Wait::Yes).unwrap();
        store.close().unwrap();
        let missing: Vec<HalfCopy> = (0..first).chain([first + 1, first + 2]).map(copy).collect();
        assert_no_end_ever(&bench, &missing, &format!("the first half is {first}"));
    }
}
