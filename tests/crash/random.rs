//! Random: any work, a crash at any moment, again and again on the same store.

use txstore::options::FlushDiskType::{self, Async, Sync};
use txstore::storage::memory::{CrashKeep, FaultKind};
use txstore::store::{EndKind, Store};

use crate::check::{Survives, check, check_prefix, check_progress_is_exact};
use crate::world::{Known, World};

/// A small generator, so that a run is a function of its seed on every machine.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn index(&mut self, limit: u64) -> usize {
        self.below(limit) as usize
    }
}

fn step(world: &mut World, chance: &mut Chance) {
    let size = [1, 30, 200, 700, 2_500][chance.index(5)];
    match chance.below(20) {
        0..=4 => world.send(chance.index(4), chance.index(4) + 1, size.min(800)),
        5..=9 => world.prepare(chance.index(4), size),
        10..=12 => world.end(chance.index(64), EndKind::Commit),
        13..=14 => world.end(chance.index(64), EndKind::RollBack),
        15 => world.end(chance.index(64), EndKind::Discard),
        16 => world.flush(),
        17 => world.call(Store::flush_round),
        18 => world.call(if chance.below(2) == 0 { Store::snapshot } else { Store::write_offsets }),
        _ => {
            world.close();
            world.open();
        }
    }
}

/// What lost power took, nobody was promised.
fn forget_what_is_lost(known: &mut Known, store: &Store) {
    let end = store.open_report().scanned_from + store.open_report().scanned_bytes;
    known.sent.retain(|sent| sent.place.0 < end);
    known.halves.retain(|half| half.copy.physical_offset < end);
    for half in &mut known.halves {
        let row = store.transaction(&half.id).unwrap();
        half.outcome = row.outcome;
    }
}

fn run(seed: u64, flush: FlushDiskType) {
    let mut chance = Chance(seed);
    let mut world = World::new(flush);
    world.open();
    assert!(world.store.is_some());
    for life in 0..4 {
        // A crash falls into the middle of a step: from some call on nothing reaches the disk any more.
        let moment = world.memory.calls() + chance.below(200) + 1;
        world.memory.fail_at(moment, FaultKind::Stop, true);
        for _ in 0..40 {
            step(&mut world, &mut chance);
            if world.memory.calls() >= moment {
                break;
            }
        }
        let power = chance.below(2) == 0;
        let keep = if power { CrashKeep::PowerLoss } else { CrashKeep::PageCache };
        let mut next = world.over(world.memory.crash(chance.below(1 << 20), keep));
        next.open();
        let about = format!("seed {seed}, {flush:?}, life {life}, {keep:?}");
        let Some(store) = next.store.take() else { panic!("{about}: {:?}", next.errors) };
        let survives = if flush == Sync || !power { Survives::Acknowledged } else { Survives::Flushed };
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check_prefix(&world.memory, &store);
            check(&store, &next.known, survives);
            check_progress_is_exact(&store);
        }));
        assert!(looked.is_ok(), "{about}: {:?}", store.open_report());
        forget_what_is_lost(&mut next.known, &store);
        next.known.flushed = (0, 0);
        next.known.flushed_outcomes.clear();
        next.store = Some(store);
        next.flush();
        world.store = None;
        world = next;
    }
}

#[test]
fn l2_t5_sync_loses_nothing_acknowledged_at_any_moment() {
    (0..runs()).for_each(|seed| run(seed, Sync));
}

#[test]
fn l1_async_keeps_a_prefix_at_any_moment() {
    (0..runs()).for_each(|seed| run(seed, Async));
}

/// More with `TXSTORE_RANDOM_RUNS`.
fn runs() -> u64 {
    std::env::var("TXSTORE_RANDOM_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(300)
}
