//! The waiting messages, compared with a plain list; and what a record means for them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::base::units::{TimestampMs, to_u64};

const START: i64 = 1_700_000_000_000;

fn timed(due_ms: i64, physical_offset: u64) -> Timed {
    Timed { due_ms, physical_offset }
}

proptest! {
    #[test]
    fn it_holds_what_a_sorted_set_holds(
        steps in prop::collection::vec((0_u8..4, 0_i64..200, 0_u64..6), 0..200),
        now in 0_i64..200,
    ) {
        let (mut waiting, mut expected) = (Waiting::default(), BTreeSet::new());
        let mut copies = Vec::new();
        for (action, due, physical_offset) in steps {
            let message = timed(due * 1_000 - 50_000, physical_offset);
            match action {
                0 | 1 => assert_eq!(waiting.insert(message), expected.insert(message)),
                2 => assert_eq!(waiting.remove(message), expected.remove(&message)),
                _ => copies.push((waiting.clone(), expected.clone())),
            }
        }
        copies.push((waiting, expected));
        for (waiting, expected) in copies {
            let now = TimestampMs(now * 1_000 - 50_000);
            let is_due = |message: &&Timed| message.due_ms <= now.0;
            prop_assert_eq!(waiting.len(), to_u64(expected.len()));
            prop_assert_eq!(waiting.is_empty(), expected.is_empty());
            prop_assert!(waiting.iter().eq(expected.iter().copied()));
            prop_assert!(waiting.due(now).eq(expected.iter().filter(is_due).copied()));
            let next = expected.iter().find(|message| !is_due(message)).map(|message| message.due_ms);
            prop_assert_eq!(waiting.next_ms(now), next);
            let lowest = expected.iter().map(|message| message.physical_offset).min();
            prop_assert_eq!(waiting.lowest_physical_offset(), lowest);
            prop_assert!(expected.iter().all(|message| waiting.contains(*message)));
            let mut left = waiting.clone();
            let gone = expected.iter().filter(|message| message.physical_offset < 3).count();
            prop_assert_eq!(left.remove_below(3), to_u64(gone));
            prop_assert!(left.iter().all(|message| message.physical_offset >= 3));
        }
    }
}

#[test]
fn messages_of_one_millisecond_are_told_apart_by_their_records() {
    let mut waiting = Waiting::default();
    for (due_ms, physical_offset) in [(START, 9), (START, 4), (START + 1, 1), (START - 1, 2)] {
        assert!(waiting.insert(timed(due_ms, physical_offset)));
        assert!(!waiting.insert(timed(due_ms, physical_offset)), "known already");
    }
    assert!(!waiting.remove(timed(START, 5)));
    assert_eq!(waiting.len(), 4);
}
