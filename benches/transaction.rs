//! Measures half and commit, and half and rollback, against writes of the same bytes to the log.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::disallowed_methods, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use txstore::base::options::FlushDiskType;
use txstore::base::units::QueueId;
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
use txstore::transaction::HalfCopy;

const BODY_BYTES: usize = 1024;

fn transact(store: &Store, count: u64, kind: EndKind) {
    let (envelope, body) = (common::envelope(), common::bytes(BODY_BYTES));
    let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) };
    let half = NewHalfMessage { message, group: "bench", unique_id: None, owner: 0 };
    for _ in 0..count {
        let sent = store.prepare(&half, Wait::Yes).unwrap().acknowledged().unwrap();
        let half = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
        let end = End { half, kind, transaction_id: None, group: Some("bench".to_owned()), decider: Decider::Producer };
        store.end_transaction(&end, Wait::Yes).unwrap();
    }
}

/// Returns the bytes of the log that one transaction takes.
fn log_bytes(kind: EndKind) -> usize {
    let folder = common::scratch();
    let store = common::open(folder.path(), FlushDiskType::Async);
    transact(&store, 1, kind);
    usize::try_from(store.stat().unwrap().max_physical_offset).unwrap()
}

fn timed(flush: FlushDiskType, count: u64, kind: EndKind) -> Duration {
    let folder = common::scratch();
    let store = common::open(folder.path(), flush);
    let start = Instant::now();
    transact(&store, count, kind);
    start.elapsed()
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transaction, 1 KiB");
    group.throughput(Throughput::Elements(1));
    for (name, kind) in [("half and commit", EndKind::Commit), ("half and rollback", EndKind::RollBack)] {
        // A transaction is two writes, so the limit is two writes of half its bytes each.
        let size = log_bytes(kind) / 2;
        let mut limit = |count: u64| common::write_fresh(common::scratch().path(), 2 * count, size, None);
        let mut ours = |count| timed(FlushDiskType::Async, count, kind);
        common::Turns::bench(&mut group, (name, &mut ours), ("two pwrites of the same bytes", &mut limit));
    }
    let size = log_bytes(EndKind::Commit) / 2;
    let mut limit = |count| common::write_durably(common::scratch().path(), 2 * count, size).iter().sum::<Duration>();
    let mut ours = |count| timed(FlushDiskType::Sync, count, EndKind::Commit);
    let name = "half and commit, SYNC_FLUSH";
    common::Turns::bench(&mut group, (name, &mut ours), ("two pwrites and fdatasyncs", &mut limit));
    group.finish();
}

criterion_group! { name = transaction_benches; config = common::criterion(); targets = benches }
criterion_main!(transaction_benches);
