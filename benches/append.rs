//! Measures appends one by one, in batches, from two threads, and durably, each against writes of the same bytes.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::disallowed_methods, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use txstore::base::options::FlushDiskType;
use txstore::base::units::QueueId;
use txstore::store::{NewMessage, Store, Wait};

const BODY_BYTES: usize = 1024;
const BATCH: usize = 100;

/// Appends this many messages.
type Way = fn(&Store, u64);

/// Returns the size of a record of these benches in bytes, from a store that holds one.
fn record_bytes() -> usize {
    let folder = common::scratch();
    let store = common::open(folder.path(), FlushDiskType::Async);
    append(&store, 1);
    usize::try_from(store.stat().unwrap().max_physical_offset).unwrap()
}

fn append(store: &Store, count: u64) {
    let (envelope, body) = (common::envelope(), common::bytes(BODY_BYTES));
    let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) };
    for _ in 0..count {
        store.append(std::slice::from_ref(&message), Wait::Yes).unwrap().acknowledged().unwrap();
    }
}

fn append_batches(store: &Store, count: u64) {
    let (envelope, body) = (common::envelope(), common::bytes(BODY_BYTES));
    let batch = vec![NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) }; BATCH];
    for _ in 0..count.div_ceil(BATCH as u64) {
        store.append(&batch, Wait::Yes).unwrap().acknowledged().unwrap();
    }
}

fn append_from_two(store: &Store, count: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| append(store, count / 2));
        append(store, count - count / 2);
    });
}

/// Returns the time of appends into a new store.
fn timed(flush: FlushDiskType, count: u64, append: Way) -> Duration {
    let folder = common::scratch();
    let store = common::open(folder.path(), flush);
    let start = Instant::now();
    append(&store, count);
    start.elapsed()
}

fn benches(criterion: &mut Criterion) {
    let size = record_bytes();
    let fresh = |count: u64| common::write_fresh(common::scratch().path(), count, size, None);
    let durable = |count: u64| common::write_durably(common::scratch().path(), count, size).iter().sum::<Duration>();
    let mut group = criterion.benchmark_group("append, 1 KiB");
    group.throughput(Throughput::Bytes(size as u64));
    let ways: [(&'static str, Way); 3] =
        [("one by one", append), ("batches of 100", append_batches), ("two threads", append_from_two)];
    for (name, way) in ways {
        let mut ours = |count| timed(FlushDiskType::Async, count, way);
        common::Turns::bench(&mut group, (name, &mut ours), ("pwrite to fresh pages", &mut { fresh }));
    }
    let mut ours = |count| timed(FlushDiskType::Sync, count, append);
    common::Turns::bench(&mut group, ("SYNC_FLUSH", &mut ours), ("pwrite and fdatasync", &mut { durable }));
    group.finish();
}

criterion_group! { name = append_benches; config = common::criterion(); targets = benches }
criterion_main!(append_benches);
