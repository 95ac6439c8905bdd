//! Lets the wall clock jump while transactions are pending and are checked, on a real disk.
//!
//! A model counts by the monotonic clock alone: which half is due when, and how often it was checked. The store must
//! agree with it at each step, however the wall clock jumps (T13). `TXSTORE_CLOCK_JUMPS` sets the number of jumps,
//! `TXSTORE_SEED` the seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use txstore::base::clock::{Clock, ManualClock};
use txstore::base::units::{PhysicalOffset, QueueId, TimestampMs};
use txstore::record::message::{Envelope, Parts};
use txstore::storage::disk::Disk;
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Wait};

use crate::world::{GROUP, options};
use txstore::base::options::FlushDiskType;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const NOW: i64 = 1_700_000_000_000;
/// The end of a signed 32-bit count of seconds.
const YEAR_2038: i64 = 2_147_483_648_000;
const TIMEOUT_MS: i64 = 6_000;
const INTERVAL_MS: i64 = 30_000;
const STEPS_A_STORE: u64 = 10;

struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % limit.unsigned_abs()).cast_signed()
    }
}

/// A pending half in the model: when it is due (monotonic), and how often it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Model {
    due_ms: i64,
    checks: u16,
    physical_offset: u64,
}

struct Turned {
    _directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
    store: Store,
    pending: BTreeMap<u64, Model>,
}

impl Turned {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::create(&directory.path().join("store")).unwrap();
        let clock = Arc::new(ManualClock::at(TimestampMs(NOW)));
        let store = Store::open_with(Arc::new(disk), Arc::clone(&clock) as _, options(FlushDiskType::Async)).unwrap();
        Self { _directory: directory, clock, store, pending: BTreeMap::new() }
    }

    fn jump(&self, chance: &mut Chance) -> i64 {
        let wall = self.clock.wall().0;
        let by = [HOUR, -HOUR, DAY, -DAY, YEAR_2038 - wall, -wall, NOW - wall, 40 * DAY, -40 * DAY];
        let by = by[usize::try_from(chance.below(by.len() as i64)).unwrap()];
        self.clock.jump_wall(by);
        by
    }

    fn prepare(&mut self) {
        let envelope = Envelope::new(&Parts { topic: "orders", ..Parts::default() }).unwrap();
        let message = NewMessage { envelope: &envelope, body: b"body", queue_id: QueueId(0) };
        let sent = self
            .store
            .prepare(&NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 }, Wait::Yes)
            .unwrap()
            .acknowledged()
            .unwrap();
        let due_ms = self.clock.monotonic_ms() + TIMEOUT_MS;
        let model = Model { due_ms, checks: 0, physical_offset: sent.physical_offset.0 };
        self.pending.insert(sent.queue_offset.0, model);
    }

    /// Checks all due halves, as a round of checks does, and ends some.
    fn check(&mut self, chance: &mut Chance, about: &str) {
        let now = self.clock.monotonic_ms();
        let due: Vec<u64> = self.store.halves_due(100).unwrap().iter().map(|due| due.newest.queue_offset).collect();
        let mut expected: Vec<(i64, u64)> = self
            .pending
            .iter()
            .filter(|(_, model)| model.due_ms <= now)
            .map(|(queue_offset, model)| (model.due_ms, *queue_offset))
            .collect();
        expected.sort_unstable();
        let mut found = due.clone();
        found.sort_by_key(|queue_offset| (self.pending[queue_offset].due_ms, *queue_offset));
        assert_eq!(found, expected.iter().map(|(_, queue_offset)| *queue_offset).collect::<Vec<_>>(), "{about}: due");
        for queue_offset in due {
            if chance.below(4) == 0 {
                self.end(queue_offset);
                continue;
            }
            assert!(self.store.look_again(queue_offset, INTERVAL_MS, true).unwrap());
            let model = self.pending.get_mut(&queue_offset).unwrap();
            (model.due_ms, model.checks) = (now + INTERVAL_MS, model.checks + 1);
        }
        for waiting in self.store.halves_waiting(None, 100).unwrap() {
            let model = self.pending[&waiting.newest.queue_offset];
            assert_eq!((waiting.look_again_in_ms, waiting.checks), (model.due_ms - now, model.checks), "{about}");
            assert!(waiting.age_ms >= 0 && waiting.age_ms <= now, "{about}: an age of {}", waiting.age_ms);
        }
        let next = self.pending.values().map(|model| model.due_ms - now).min();
        assert_eq!(self.store.next_due_in_ms().unwrap(), next, "{about}: next");
    }

    fn end(&mut self, queue_offset: u64) {
        let physical_offset = self.pending.remove(&queue_offset).unwrap().physical_offset;
        let half = txstore::transaction::HalfCopy { queue_offset, physical_offset };
        let end = End { half, kind: EndKind::Commit, transaction_id: None, group: None, decider: Decider::Check };
        self.store.end_transaction(&end, Wait::Yes).unwrap();
    }

    fn store_time_never_goes_back(&self, about: &str) {
        let (records, _) = self.store.scan(PhysicalOffset(0), 10_000).unwrap();
        let times: Vec<i64> = records.iter().map(|record| record.view().unwrap().store_timestamp.0).collect();
        assert!(times.is_sorted(), "{about}: store time goes back: {times:?}");
    }
}

#[test]
fn t13_checks_come_when_they_should_however_the_wall_clock_jumps() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let jumps = number("TXSTORE_CLOCK_JUMPS").unwrap_or(40);
    let seed = number("TXSTORE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    let mut chance = Chance(seed);
    for case in 0..jumps.div_ceil(STEPS_A_STORE) {
        let mut turned = Turned::new();
        for step in 0..STEPS_A_STORE {
            (0..chance.below(3)).for_each(|_| turned.prepare());
            turned.clock.advance(chance.below(2 * TIMEOUT_MS));
            turned.check(&mut chance, &format!("seed {seed}, case {case}, step {step}, before a jump"));
            let by = turned.jump(&mut chance);
            let about = format!("seed {seed}, case {case}, step {step}, after a jump by {by} ms");
            turned.check(&mut chance, &about);
            turned.store_time_never_goes_back(&about);
        }
        turned.store.close().unwrap();
    }
}
