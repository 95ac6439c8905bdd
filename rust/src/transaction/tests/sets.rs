//! Which half messages are one transaction of several messages: what their marks say, and in which order they come.

use super::*;
use crate::transaction::set::{Forming, Part, SetMark};

fn mark(text: &str) -> Option<SetMark> {
    let mut properties = Vec::new();
    properties::push(&mut properties, properties::TRANSACTION_SET, text);
    SetMark::of(Properties(&properties))
}

/// The mark of a half message of a set of four that begins at half queue offset 7.
fn of_four(position: u64) -> SetMark {
    SetMark { first: 7, position, count: 4 }
}

fn copy(queue_offset: u64) -> HalfCopy {
    HalfCopy { queue_offset, physical_offset: queue_offset * 100 }
}

#[test]
fn a_mark_is_read_as_it_was_written_or_not_at_all() {
    for whole in [of_four(0), of_four(3), SetMark { first: 0, position: 1, count: 2 }] {
        assert_eq!(mark(&whole.text()), Some(whole));
    }
    assert_eq!(SetMark::of(Properties(b"")), None);
    for wrong in ["", "7", "7,0", "7,0,0", "7,0,1", "7,4,4", "7,5,4", "7,0,4,", "7,0,4,1", "-7,0,4", "7,x,4", "7,0,x"] {
        assert_eq!(mark(wrong), None, "{wrong}");
    }
}

/// The half message of the first message comes last.
#[test]
fn a_message_has_its_half_message_one_position_before_its_own_and_the_first_has_the_last() {
    for (position, index) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
        assert_eq!(of_four(position).index(), index);
        assert_eq!(of_four(1).with_index(index), of_four(position));
    }
}

#[test]
fn a_half_message_at_another_queue_offset_is_a_copy() {
    for at in 0..20 {
        assert_eq!(of_four(2).is_at(at), at == 9, "{at}");
    }
    assert!(!SetMark { first: u64::MAX, ..of_four(2) }.is_at(1), "there is no such queue offset");
}

#[test]
fn half_messages_form_a_set_only_in_their_order_and_up_to_the_last() {
    let mut forming = Forming::default();
    let mut take = |mark: Option<SetMark>, at: u64| {
        let part = forming.take(mark, copy(at), 10);
        (part, forming.is_incomplete(), forming.first())
    };
    assert_eq!(take(None, 7), (Part::None, false, None));
    assert_eq!(take(Some(of_four(1)), 8), (Part::None, false, None), "it does not begin in the middle");
    assert_eq!(take(Some(of_four(3)), 10), (Part::None, false, None), "nor at its end");
    assert_eq!(take(Some(of_four(0)), 8), (Part::None, false, None), "a copy of its first half message");
    assert_eq!(take(Some(of_four(0)), 7), (Part::Another, true, Some(7)));
    assert_eq!(take(Some(of_four(0)), 7), (Part::None, true, Some(7)), "it begins once");
    assert_eq!(take(Some(of_four(2)), 9), (Part::None, true, Some(7)), "one is missing");
    assert_eq!(take(Some(SetMark { count: 5, ..of_four(1) }), 8), (Part::None, true, Some(7)), "of another set");
    assert_eq!(take(Some(of_four(1)), 8), (Part::Another, true, Some(7)));
    assert_eq!(take(Some(of_four(2)), 9), (Part::Another, true, Some(7)));
    let others = [7, 8, 9].map(|at| (copy(at), 10)).to_vec();
    assert_eq!(take(Some(of_four(3)), 10), (Part::Last(others), false, None));
    assert_eq!(take(Some(of_four(3)), 10), (Part::None, false, None), "it ends once");
}

#[test]
fn a_set_without_its_last_half_message_is_forgotten() {
    let mut forming = Forming::default();
    for position in 0..3 {
        forming.take(Some(of_four(position)), copy(7 + position), 10);
    }
    assert!(forming.continues(Some(of_four(3))) && !forming.continues(Some(of_four(2))) && !forming.continues(None));
    assert_eq!(forming.abandon(), [7, 8, 9]);
    assert!(!forming.is_incomplete() && !forming.continues(Some(of_four(3))) && !forming.continues(None));
    assert_eq!((forming.first(), forming.abandon()), (None, vec![]));
    assert_eq!(forming.take(Some(of_four(0)), copy(7), 10), Part::Another);
}
