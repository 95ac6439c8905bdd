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
