//! The table as a snapshot sees it: frozen at one moment, without copies of unchanged parts, and after a spike.

use std::sync::Arc;

use proptest::prelude::*;

use super::model::{Model, apply, half, step};
use super::*;
use crate::transaction::pending::Pending;
use crate::transaction::slab::Slab;
use crate::transaction::table::Frozen;

fn facts(frozen: &Frozen) -> (Vec<String>, DecidedHalves, OpProgress, u64) {
    let mut all: Vec<_> = frozen.iter().map(|entry| format!("{entry:?}")).collect();
    all.sort();
    (all, frozen.decided.clone(), frozen.ops.clone(), frozen.lowest())
}

proptest! {
    #[test]
    fn what_is_frozen_does_not_change(
        before in proptest::collection::vec(step(), 1..80),
        after in proptest::collection::vec(step(), 1..80),
    ) {
        let (mut table, mut model) = (Table::new(0), Model::default());
        for step in &before {
            apply(&mut table, &mut model, step);
        }
        let frozen = table.freeze();
        let then = facts(&frozen);
        prop_assert_eq!(then.0.len(), usize::try_from(table.len()).unwrap());
        for step in &after {
            apply(&mut table, &mut model, step);
        }
        prop_assert_eq!(facts(&frozen), then);
    }
}

/// A change during a snapshot copies only its own block.
#[test]
fn a_change_copies_one_block() {
    let mut table = Table::new(0);
    let keys: Vec<_> = (0..10_000).map(|number| table.insert(&half(number, number + 1))).collect();
    let entry: Pending = table.get(keys[0]).unwrap().clone();
    let mut slab = Slab::default();
    let keys: Vec<_> = (0..10_000).map(|_| slab.insert(entry.clone())).collect();
    let frozen = slab.share();
    assert!(frozen.len() > 10);
    slab.get_mut(keys[5_000]).unwrap().checks = 1;
    slab.get_mut(keys[5_001]).unwrap().checks = 1;
    let live = slab.share();
    assert_eq!(frozen.iter().zip(&live).filter(|(one, other)| !Arc::ptr_eq(one, other)).count(), 1);
    assert!(frozen.iter().flat_map(|block| block.entries()).all(|entry| entry.checks == 0));
}

/// After a spike the table has memory only for what is left, even if that is scattered.
#[test]
fn a_spike_gives_its_memory_back() {
    let mut table = Table::new(0);
    for number in 0..200_000 {
        let key = table.insert(&half(number, number + 1));
        table.set_due(key, 0);
    }
    let most = table.memory();
    for number in (0..200_000).filter(|number| number % 50_000 != 7) {
        let key = table.find(number).unwrap();
        table.decide(key, Outcome::Committed);
    }
    assert_eq!(table.len(), 4);
    assert!(most > 16 << 20, "{most}");
    assert!(table.memory() < 1 << 20, "{} bytes for four transactions", table.memory());
    let left: Vec<_> = table.after(Some(7)).map(|key| table.get(key).unwrap().newest.queue_offset).collect();
    assert_eq!(left, [50_007, 100_007, 150_007]);
}

/// Mostly few transactions are pending, and each one begins in an empty block: filling a whole block for it took a
/// quarter of the time of a transaction.
#[test]
fn one_transaction_takes_memory_for_few() {
    let mut table = Table::new(0);
    let key = table.insert(&half(0, 1));
    let entry = table.get(key).unwrap().clone();
    let mut slab = Slab::default();
    let key = slab.insert(entry.clone());
    assert!(slab.memory() < 4096, "{} bytes for one transaction", slab.memory());
    assert!(slab.remove(key).is_some());
    assert!(slab.memory() < 512, "{} bytes for none", slab.memory());
    // Entries that are free again are used before others.
    let three = [0; 3].map(|_| slab.insert(entry.clone()));
    slab.remove(three[1]);
    assert_eq!(slab.insert(entry), three[1]);
}

/// Only a store with several half queues, which is only read, has two transactions at one queue offset. None is lost.
#[test]
fn of_two_transactions_at_one_offset_none_is_lost() {
    let mut table = Table::new(0);
    let first = table.insert(&half(3, 1));
    let second = table.insert(&half(3, 2));
    assert_eq!(table.iter().count(), 2);
    assert_eq!(table.find(3), Some(first));
    table.remove(first);
    assert_eq!(table.find(3), Some(second));
    table.remove(second);
    assert_eq!(table.find(3), None);
    assert!(table.is_empty());
    let keys = [1, 2, 3].map(|identity| table.insert(&half(3, identity)));
    table.remove(keys[1]);
    table.remove(keys[0]);
    assert_eq!(table.find(3), Some(keys[2]));
    table.remove(keys[2]);
    assert_eq!(table.find(3), None);
}
