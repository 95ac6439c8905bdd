//! Guards the calls that never wait: if a lock of the engine is taken, they fail instead of waiting.

use super::*;

fn would_wait<T>(called: &Result<T>) -> bool {
    matches!(called, Err(Error::WouldWait))
}

/// Each call that callers make under their own lock returns at once while another thread holds the put lock. When the
/// lock is free, it returns the same as the call that may wait.
#[test]
fn with_the_put_lock_taken_no_call_waits() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    let half = prepare(&store, b"half");
    send(&store, "t", b"x").unwrap();
    let (envelope, now) = (envelope("t"), store.now());
    let message = NewMessage { envelope: &envelope, body: b"y", queue_id: QUEUE };
    let new_half = NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 };
    let end = end_of(&half, EndKind::Commit);
    let at = half.queue_offset.0;

    let taken = store.shared.inner.lock();
    assert!(would_wait(&store.append_one(&message, Wait::No)));
    assert!(would_wait(&store.prepare(&new_half, Wait::No)));
    assert!(would_wait(&store.end_transaction(&end, Wait::No)));
    assert!(would_wait(&now.read("t", QUEUE, QueueOffset(0), 9, None)));
    assert!(would_wait(&now.queue_range("t", QUEUE)));
    assert!(would_wait(&now.set_consumer_offset("t", GROUP, QUEUE, 1)));
    assert!(would_wait(&now.look_again(at, 10, true)));
    assert!(would_wait(&now.local_transaction_ended(at)));
    drop(taken);
    assert_eq!(store.transaction_counts().unwrap().checks_sent, 0, "what was refused changed something");

    assert_eq!(now.read("t", QUEUE, QueueOffset(0), 9, None).unwrap().0.len(), 1);
    assert_eq!(now.queue_range("t", QUEUE).unwrap(), (0, 1));
    assert!(now.look_again(at, 10, true).unwrap());
    now.local_transaction_ended(at).unwrap();
    let refused = now.set_consumer_offset("t", GROUP, QUEUE, 2);
    assert!(matches!(refused, Err(Error::InvalidOption { .. })), "past the end: {refused:?}");
    now.set_consumer_offset("t", GROUP, QUEUE, 1).unwrap();
    let offsets = store.shared.configuration.offsets.lock();
    assert!(would_wait(&now.set_consumer_offset("t", GROUP, QUEUE, 0)));
    assert!(would_wait(&now.consumer_offset("t", GROUP, QUEUE)));
    drop(offsets);
    assert_eq!(now.consumer_offset("t", GROUP, QUEUE).unwrap(), Some(1));
    store.append_one(&message, Wait::No).unwrap().acknowledged().unwrap();
    store.prepare(&new_half, Wait::No).unwrap().acknowledged().unwrap();
    store.end_transaction(&end, Wait::No).unwrap();
}

/// An old record is probably not in memory, so only the call that may wait for the disk reads it.
#[test]
fn what_is_old_is_not_read_without_waiting() {
    let bench = Bench::new(FlushDiskType::Async).with(|options| options.commit_log_file_size = Some(32 << 20));
    let store = bench.open();
    let body = vec![0; 4 << 20];
    for _ in 0..18 {
        send(&store, "t", &body).unwrap();
    }
    let read = |from: u64| store.now().read("t", QUEUE, QueueOffset(from), 1, None);
    assert!(would_wait(&read(0)));
    assert_eq!(read(17).unwrap().0.len(), 1);
    assert_eq!(store.read("t", QUEUE, QueueOffset(0), 1, None).unwrap().0.len(), 1);
}

/// A reader must first read what its writer has appended, which may take long.
#[test]
fn a_reader_of_another_process_store_always_may_wait() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    send(&store, "t", b"x").unwrap();
    store.close().unwrap();
    let reader = bench.read_only();
    assert!(would_wait(&reader.now().read("t", QUEUE, QueueOffset(0), 9, None)));
    assert!(would_wait(&reader.now().queue_range("t", QUEUE)));
    assert!(would_wait(&reader.now().consumer_offset("t", GROUP, QUEUE)));
}
