//! Outcomes of many halves, in several blocks, are what they were after retention has removed the first ones and a
//! snapshot has stored the rest.

use super::*;

const HALVES: u64 = 200_000;
/// Retention removes outcomes four at a time, up to this half and in the middle of a block.
const FIRST_LEFT: u64 = 70_000;

fn outcome(queue_offset: u64) -> Outcome {
    match queue_offset % 7 {
        0 | 3 => Outcome::Committed,
        1 => Outcome::Discarded,
        2 => Outcome::FinishedUnknown,
        _ => Outcome::RolledBack,
    }
}

#[test]
fn outcomes_in_several_blocks_outlive_retention_and_a_snapshot() {
    let mut decided = DecidedHalves::from(0);
    (0..HALVES).for_each(|number| decided.set(number, outcome(number)));
    // Four outcomes take a byte.
    let memory = usize::try_from(HALVES / 4).unwrap();
    assert!((memory..2 * memory).contains(&decided.memory()), "{} bytes", decided.memory());
    decided.forget_below(FIRST_LEFT + 3);
    assert!((decided.bytes()..memory).contains(&decided.memory()), "{} bytes", decided.memory());
    let (base, count, pieces) = decided.parts();
    let bits = pieces.flatten().copied().collect::<Vec<_>>();
    assert_eq!((base, count, bits.len()), (FIRST_LEFT, HALVES - FIRST_LEFT, decided.bytes()));
    let restored = DecidedHalves::from_parts(base, count, &bits);
    for halves in [&decided, &restored] {
        assert_eq!(halves.count(), HALVES - FIRST_LEFT);
        assert_eq!(halves.get(FIRST_LEFT - 1), None, "forgotten");
        for number in FIRST_LEFT..HALVES {
            assert_eq!(halves.get(number), Some(outcome(number)), "{number}");
        }
        assert_eq!(halves.get(HALVES), None, "after the last");
    }
}

const ALL: [Outcome; 4] = [Outcome::Committed, Outcome::RolledBack, Outcome::Discarded, Outcome::FinishedUnknown];

/// A broker may commit or discard what was rolled back.
#[test]
fn a_later_outcome_replaces_the_earlier_one_and_leaves_its_neighbours() {
    for at in 0..4 {
        for (before, after) in ALL.into_iter().flat_map(|before| ALL.map(|after| (before, after))) {
            let mut decided = DecidedHalves::from(0);
            (0..4).for_each(|number| decided.set(number, before));
            decided.set(at, after);
            for number in 0..4 {
                let expected = if number == at { after } else { before };
                assert_eq!(decided.get(number), Some(expected), "{before:?}, then {after:?} at {at}");
            }
        }
    }
}

/// Tests of snapshots compare them.
#[test]
fn outcomes_are_equal_only_if_they_begin_alike_and_each_is_equal() {
    let of = |base, outcomes: &[Outcome]| {
        let mut decided = DecidedHalves::from(base);
        (base..).zip(outcomes).for_each(|(number, outcome)| decided.set(number, *outcome));
        decided
    };
    let one = of(0, &[Outcome::Committed]);
    assert_eq!(one, of(0, &[Outcome::Committed]));
    let others = [of(0, &[Outcome::RolledBack]), of(1, &[Outcome::Committed]), of(0, &[Outcome::Committed; 2])];
    for other in others {
        assert_ne!(one, other);
    }
}
