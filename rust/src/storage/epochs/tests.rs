//! Epochs read back unchanged, are accepted once, and tell how far two logs are the same.

use super::*;
use crate::storage::OpenMode;
use crate::storage::memory::Memory;

fn epoch(number: u64, start: u64) -> Epoch {
    Epoch { number, start, last: None, is_partial: false, instead_of: None }
}

fn of(list: &[(u64, u64)]) -> Epochs {
    Epochs { list: list.iter().map(|(number, start)| epoch(*number, *start)).collect(), ..Epochs::default() }
}

fn full() -> Epochs {
    let last = Some(RecordMark { physical_offset: 400, size: 100, crc: 0xFFFF_FFFF });
    let second = Epoch { last, is_partial: true, instead_of: Some("10.0.0.1:10911".into()), ..epoch(2, 500) };
    Epochs {
        list: vec![epoch(1, 0), second],
        accepted: 3,
        is_replica: true,
        source: Some("10.0.0.2:10911".into()),
        nodes: [("one".to_owned(), String::new()), ("two".to_owned(), "host:1".to_owned())].into(),
        required: 2,
        acknowledged: u64::MAX,
        cut: Some(Cut { end: 300, kept: "txstore/diverged-1".into() }),
    }
}

#[test]
fn it_comes_back_as_it_was() {
    let memory = Memory::new();
    assert_eq!(Epochs::load(&memory).unwrap(), None);
    for epochs in [Epochs::default(), full()] {
        epochs.store(&memory).unwrap();
        assert_eq!(Epochs::load(&memory).unwrap(), Some(epochs));
    }
}

#[test]
fn each_flipped_digit_is_damage() {
    let text = full().to_text();
    for at in text.match_indices(|letter: char| letter.is_ascii_digit()).map(|(at, _)| at) {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 1;
        assert_eq!(Epochs::parse(&bytes), None, "at {at}");
    }
    let memory = Memory::new();
    memory.create_dir(DIRECTORY).unwrap();
    memory.open(PATH, OpenMode::Create).unwrap().write_at(b"{}", 0).unwrap();
    assert!(matches!(Epochs::load(&memory), Err(Error::StoreCorrupt { .. })));
}

#[test]
fn two_logs_are_the_same_up_to_the_end_of_the_last_common_epoch() {
    for (own, end, other, other_end, common) in [
        // Never promoted: the shorter one is a prefix of the other.
        (&[(1, 0)][..], 700, &[(1, 0)][..], 900, 700),
        (&[(1, 0)], 900, &[(1, 0)], 700, 700),
        // The other one was promoted at 500.
        (&[(1, 0)], 700, &[(1, 0), (2, 500)], 900, 500),
        (&[(1, 0)], 400, &[(1, 0), (2, 500)], 900, 400),
        // Both were promoted.
        (&[(1, 0), (2, 500)], 700, &[(1, 0), (3, 400)], 900, 400),
        (&[(1, 0), (2, 500)], 700, &[(1, 0), (2, 500), (3, 600)], 900, 600),
        (&[(1, 0), (2, 500), (3, 600)], 700, &[(1, 0), (2, 500)], 900, 600),
        // The epoch is known, and the log does not reach it yet.
        (&[(1, 0), (2, 500)], 300, &[(1, 0), (2, 500)], 900, 300),
        // The same number, begun twice.
        (&[(1, 0), (2, 500)], 700, &[(1, 0), (2, 600)], 900, 500),
        // An empty log was promoted.
        (&[(1, 0)], 700, &[(2, 0)], 900, 0),
    ] {
        assert_eq!(of(own).common_end(end, &of(other), other_end), common, "{own:?} {other:?}");
        assert_eq!(of(other).common_end(other_end, &of(own), end), common, "{other:?} {own:?}");
    }
}

#[test]
fn an_epoch_is_accepted_once() {
    let mut epochs = Epochs::default();
    assert!(!epochs.accept(1, Some("two")), "its own");
    assert!(epochs.may_write());
    assert!(epochs.accept(3, Some("two")));
    assert!(epochs.is_fenced() && !epochs.may_write());
    assert!(epochs.accept(3, Some("two")), "the same again");
    assert!(!epochs.accept(3, Some("three")), "the same of another node");
    assert!(!epochs.accept(2, Some("two")), "a lower one");
    epochs.is_replica = true;
    assert!(!epochs.is_fenced() && !epochs.may_write());
    epochs.begin(epoch(3, 0));
    assert!(epochs.may_write());
    assert_eq!(epochs.list, [epoch(3, 0)]);
}
