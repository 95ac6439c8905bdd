//! A replica of a broker takes over the progress that the broker's log does not tell.

use super::replicas::{copy_all, replica_of};
use super::*;

const LEVEL_ONE: QueueId = QueueId(0);

/// A source with three pending halves and two delayed messages of the first level.
fn source() -> (Bench, Store) {
    let bench = Bench::sync();
    let store = bench.open();
    for number in 0..3_u8 {
        prepare(&store, &[number]);
    }
    let envelope = Envelope::new(&Parts { topic: "orders", delay_level: 1, ..Parts::default() }).unwrap();
    for _ in 0..2 {
        let message = NewMessage { envelope: &envelope, body: b"later", queue_id: QUEUE };
        drop(store.append(&[message], Wait::Yes).unwrap().acknowledged().unwrap());
    }
    (bench, store)
}

#[test]
fn halves_and_delayed_messages_that_the_broker_has_passed_are_finished_here_too() {
    let (bench, source) = source();
    let replica = replica_of(&bench);
    let store = replica.open();
    copy_all(&source, &store);
    assert_eq!(pending(&store), [0, 1, 2]);
    store.adopt_progress(2, &[(LEVEL_ONE, 1)]).unwrap();
    // It does not fall back.
    store.adopt_progress(1, &[(LEVEL_ONE, 0)]).unwrap();
    store.write_offsets().unwrap();
    store.adopt_progress(0, &[]).unwrap();
    store.close().unwrap();
    let promoted = replica.with(|options| options.role = Role::Alone);
    let store = promoted.open();
    assert_eq!(pending(&store), [2]);
    promoted.clock.advance(1_000);
    store.deliver_delayed(100).unwrap();
    assert_eq!(bodies(&store, "orders", 0), [b"later"]);
}

#[test]
fn a_progress_after_the_end_of_its_queue_passes_nothing_that_comes_later() {
    let (bench, source) = source();
    let replica = replica_of(&bench);
    let store = replica.open();
    copy_all(&source, &store);
    store.adopt_progress(99, &[(LEVEL_ONE, 99)]).unwrap();
    prepare(&source, b"new");
    copy_all(&source, &store);
    store.close().unwrap();
    let store = replica.with(|options| options.role = Role::Alone).open();
    assert_eq!(pending(&store), [3]);
}

#[test]
fn only_a_replica_takes_a_progress_over() {
    let (_, source) = source();
    assert!(source.adopt_progress(1, &[]).is_err());
    assert_eq!(pending(&source), [0, 1, 2]);
}
