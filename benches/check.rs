//! Measures one round of checks over 1,000 pending transactions among 1,000,000, against reading their halves' records
//! once.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::disallowed_methods, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use txstore::base::options::FlushDiskType;
use txstore::base::units::QueueId;
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
use txstore::transaction::HalfCopy;
use txstore::transaction::scan::group_by_facts;

const HALVES: u64 = 1_000_000;
const PENDING: u64 = 1_000;
const BODY_BYTES: usize = 128;

/// Fills a store in which one of a thousand halves is pending.
fn fill(store: &Store) {
    let (envelope, body) = (common::envelope(), common::bytes(BODY_BYTES));
    let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) };
    for number in 0..HALVES {
        let sent = store
            .prepare(&NewHalfMessage { message, group: "bench", unique_id: None, owner: 0 }, Wait::Yes)
            .unwrap()
            .acknowledged()
            .unwrap();
        if number % (HALVES / PENDING) == 0 {
            continue;
        }
        let half = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
        let end = End { half, kind: EndKind::RollBack, transaction_id: None, group: None, decider: Decider::Producer };
        store.end_transaction(&end, Wait::Yes).unwrap();
    }
}

/// Takes the due halves in the batches of a round, and sets when each is due again.
fn round(store: &Store) {
    let mut seen = 0;
    loop {
        let due = store.halves_due(256).unwrap();
        let count = due.len() as u64;
        for group in group_by_facts(due) {
            store.look_again_all(group.halves.iter().map(|half| half.newest.queue_offset), 3_600_000).unwrap();
        }
        seen += count;
        if count < 256 {
            assert_eq!(seen, PENDING);
            return;
        }
    }
}

fn rounds(store: &Store, count: u64) -> Duration {
    let mut taken = Duration::ZERO;
    for _ in 0..count {
        for waiting in store.halves_waiting(None, 2 * usize::try_from(PENDING).unwrap()).unwrap() {
            store.look_again(waiting.newest.queue_offset, -1, false).unwrap();
        }
        let start = Instant::now();
        round(store);
        taken += start.elapsed();
    }
    taken
}

fn benches(criterion: &mut Criterion) {
    let folder = common::scratch();
    let store = common::open(folder.path(), FlushDiskType::Async);
    fill(&store);
    let mut group = criterion.benchmark_group("check");
    group.throughput(Throughput::Elements(PENDING));
    let mut ours = |count| rounds(&store, count);
    let mut limit = |count| common::read_warm(common::scratch().path(), count * PENDING, BODY_BYTES + 300);
    let name = "round of 1,000 pending of 1,000,000";
    common::Turns::bench(&mut group, (name, &mut ours), ("pread of their records", &mut limit));
    group.finish();
}

criterion_group! { name = check_benches; config = common::criterion(); targets = benches }
criterion_main!(check_benches);
