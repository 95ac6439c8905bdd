//! A snapshot reads back unchanged, and with any flipped byte it is rejected.

use proptest::prelude::*;

use super::*;
use crate::base::error::Outcome;
use crate::storage::memory::Memory;
use crate::transaction::outcome::Op;

fn half(queue_offset: u64, immunity_ms: Option<i64>, checks: u16) -> NewHalf<'static> {
    NewHalf {
        copy: HalfCopy { queue_offset, physical_offset: queue_offset * 300 + 5 },
        identity: Some(Identity(queue_offset % 5)).filter(|identity| identity.0 != 0),
        group: if queue_offset.is_multiple_of(2) { "even" } else { "odd" },
        size: 300,
        stored_ms: 1_000 + i64::try_from(queue_offset).unwrap(),
        immunity_ms,
        checks,
        owner: 0,
        sent: checks == 0,
    }
}

/// Builds a table from one number for each half message: pending, put back, or an outcome.
fn table(states: &[u8]) -> Table {
    let mut table = Table::new(0);
    for (number, state) in (0..).zip(states) {
        let immunity = (state % 3 == 0).then_some(i64::from(*state) * 10);
        let key = table.insert(&half(number * 2, immunity, u16::from(*state % 7)));
        if state % 4 == 1 {
            table.join(key, &half(number * 2 + 1, None, 2));
        }
        if state % 8 == 3 {
            // The half was resent, and an op names the first copy alone. So it is pending and takes no further copy.
            table.join(key, &half(number * 2 + 1, None, 0));
            table.saw_op(key, number * 2, Op::RollsBack);
        }
        match state % 6 {
            0 => table.decide(key, Outcome::Committed),
            1 => table.decide(key, Outcome::RolledBack),
            2 => table.decide(key, Outcome::Discarded),
            _ => {}
        }
        table.ops.note(number, number * 2);
    }
    table
}

fn snapshot(queues: usize) -> Snapshot {
    let queue = |number: usize| QueueExtent {
        topic: format!("topic-{number}").into(),
        queue_id: QueueId(i32::try_from(number).unwrap()),
        first: 3,
        next: to_u64(number) + 3,
    };
    Snapshot {
        position: 12_345,
        anchor: Some(Anchor { physical_offset: 12_000, size: 345, crc: 7 }),
        newest_store_ms: 99,
        queues: (0..queues).map(queue).collect(),
        index: Some(IndexMark { file: "20260101000000000".into(), count: 9 }),
        table: Table::default(),
        timed: waiting(),
    }
}

fn waiting() -> Waiting {
    let mut waiting = Waiting::default();
    for (due_ms, physical_offset) in [(1_700_000_000_000, 17), (1_700_000_000_000, 4), (1_699_999_000_001, 99)] {
        waiting.insert(Timed { due_ms, physical_offset });
    }
    waiting
}

fn facts(table: &Table) -> Vec<String> {
    let mut all: Vec<_> = table
        .iter()
        .map(|(_, entry)| {
            let copies: Vec<_> = entry.copies().collect();
            let found = copies.iter().all(|(copy, _)| table.find(copy.queue_offset).is_some());
            let named = entry.more().map(|more| &more.named).filter(|named| !named.is_empty());
            format!(
                "{copies:?} {found} {named:?} {} {} {:?} {} {} {}",
                entry.identity,
                entry.stored_ms,
                entry.immunity_ms(),
                entry.size,
                entry.checks,
                table.group(entry)
            )
        })
        .collect();
    all.sort();
    all
}

/// A snapshot of an older release is ignored without an error: the log is read from its beginning.
#[test]
fn a_snapshot_of_another_version_is_not_read() {
    let mut bytes = snapshot(2).encode(&table(&[3, 4]).freeze(), 0);
    bytes[8] = 1;
    assert!(Snapshot::decode(&bytes).is_none());
}

proptest! {
    #[test]
    fn it_comes_back_as_it_was(states in proptest::collection::vec(any::<u8>(), 0..60), queues in 0_usize..5) {
        let (mut live, whole) = (table(&states), snapshot(queues));
        let half_progress = live.half_progress(120);
        // Both clocks agree here, so their times are equal.
        let bytes = whole.encode(&live.freeze(), 0);
        let mut back = Snapshot::decode(&bytes).unwrap();
        prop_assert_eq!((back.position, back.anchor, back.newest_store_ms), (12_345, whole.anchor, 99));
        prop_assert_eq!(&back.queues, &whole.queues);
        prop_assert_eq!(&back.index, &whole.index);
        prop_assert_eq!(facts(&back.table), facts(&live));
        prop_assert_eq!(&back.table.decided, &live.decided);
        prop_assert_eq!(&back.table.ops, &live.ops);
        prop_assert_eq!(back.table.half_progress(120), half_progress);
        prop_assert_eq!(back.table.sizes().bytes(), live.sizes().bytes());
    }

    #[test]
    fn a_snapshot_with_a_flipped_bit_is_not_read(states in proptest::collection::vec(any::<u8>(), 0..30), bit in any::<prop::sample::Index>()) {
        let mut bytes = snapshot(2).encode(&table(&states).freeze(), 0);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Snapshot::decode(&bytes).is_none());
    }

    #[test]
    fn any_bytes_are_none_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Snapshot::decode(&bytes).is_none());
    }
}

#[test]
fn a_snapshot_cut_anywhere_is_not_read() {
    let bytes = snapshot(3).encode(&table(&[3, 4, 5, 9, 1]).freeze(), 0);
    let memory = Memory::new();
    for length in 0..bytes.len() {
        Snapshot::store(&memory, &bytes[..length]).unwrap();
        assert!(Snapshot::load(&memory).unwrap().is_none(), "{length} bytes");
    }
    Snapshot::store(&memory, &bytes).unwrap();
    assert!(Snapshot::load(&memory).unwrap().is_some());
}
