//! Makes the N-th storage call fail, or stops the process or the machine there, for every N of a script.

use txstore::base::error::{Error, ErrorKind};
use txstore::base::options::FlushDiskType::{self, Async, Sync};
use txstore::storage::memory::{CrashKeep, FaultKind, Memory};
use txstore::store::Store;

use crate::check::{Survives, check, check_prefix, check_progress_is_exact};
use crate::world::{World, open};

/// Seeds of a power loss at one call.
const SEEDS: u64 = 4;

/// Runs the script with a fault at its N-th call; `None` once the script has fewer calls.
fn run_with_fault(flush: FlushDiskType, call: u64, kind: FaultKind, sticky: bool) -> Option<World> {
    let mut world = World::new(flush);
    world.memory.fail_at(call, kind, sticky);
    world.script();
    (world.memory.calls() >= call).then_some(world)
}

/// Opens without faults and checks everything; then closes and opens once more.
fn reopen_and_check(world: &World, memory: &Memory, survives: Survives, about: &str) {
    let store = open(memory, &world.clock, &world.options).unwrap_or_else(|error| panic!("{about}: {error}"));
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        check_prefix(&world.memory, &store);
        check(&store, &world.known, survives);
        check_progress_is_exact(&store);
    }));
    assert!(looked.is_ok(), "{about}");
    store.close().unwrap_or_else(|error| panic!("{about}: {error}"));
    let store = open(memory, &world.clock, &world.options).unwrap_or_else(|error| panic!("{about}: {error}"));
    assert!(store.open_report().clean, "{about}: a clean close");
    assert_eq!(store.open_report().scanned_bytes, 0, "{about}: a snapshot at the end");
    check(&store, &world.known, survives);
    check_progress_is_exact(&store);
}

/// Returns whether the error of a failing disk names the file, or says that the store stopped.
fn is_exact(error: &Error, kind: FaultKind) -> bool {
    match error.kind() {
        ErrorKind::Unavailable => kind == FaultKind::NoSpace && matches!(error, Error::DiskFull { .. }),
        ErrorKind::System => matches!(error, Error::Io { path, .. } if path.starts_with("/memory")),
        ErrorKind::Poisoned => true,
        _ => false,
    }
}

#[test]
fn p2_no_storage_call_that_fails_panics_or_loses() {
    for flush in [Sync, Async] {
        for kind in [FaultKind::Io, FaultKind::NoSpace, FaultKind::ReadOnly, FaultKind::Tear(100)] {
            for sticky in [false, true] {
                let mut call = 1;
                while let Some(mut world) = run_with_fault(flush, call, kind, sticky) {
                    let about = format!("{flush:?}, call {call}, {kind:?}, sticky {sticky}");
                    for error in &world.errors {
                        assert!(is_exact(error, kind), "{about}: P3: {error:?}");
                    }
                    world.memory.clear_fault();
                    world.close();
                    // A failed sync loses its sectors only in a power loss, because the page cache has them.
                    reopen_and_check(
                        &world,
                        &world.memory.crash(0, CrashKeep::PageCache),
                        Survives::Acknowledged,
                        &about,
                    );
                    call += 1;
                }
                assert!(call > 100, "the script ran through at call {call}");
            }
        }
    }
}

/// A failed sync has lost its sectors: neither a later acknowledgement nor the promise of a clean close may depend on
/// syncing them again, in the same process or in the next one.
#[test]
fn t5_a_failed_sync_is_never_repeated_on_the_same_data() {
    for (flush, sticky) in [(Sync, false), (Sync, true), (Async, false), (Async, true)] {
        let survives = if flush == Sync { Survives::Acknowledged } else { Survives::Flushed };
        let mut call = 1;
        while let Some(mut world) = run_with_fault(flush, call, FaultKind::Io, sticky) {
            world.memory.clear_fault();
            world.close();
            let about = format!("{flush:?}, failure in call {call}, sticky {sticky}, lost power");
            lose_power_and_check(&world, &world.memory, survives, &about);
            // The next `open` must not treat what it finds in the page cache as durable.
            let next = world.memory.crash(0, CrashKeep::PageCache);
            let store = open(&next, &world.clock, &world.options).unwrap_or_else(|error| panic!("{about}: {error}"));
            lose_power_and_check(&world, &next, Survives::Acknowledged, &format!("{about} after an opening"));
            store.close().unwrap_or_else(|error| panic!("{about}: {error}"));
            lose_power_and_check(&world, &next, Survives::Acknowledged, &format!("{about} after a clean close"));
            call += 1;
        }
    }
}

fn lose_power_and_check(world: &World, memory: &Memory, survives: Survives, about: &str) {
    for seed in 0..SEEDS {
        let memory = memory.crash(seed, CrashKeep::PowerLoss);
        reopen_and_check(world, &memory, survives, &format!("{about}, seed {seed}"));
    }
}

/// Every call of the script is in turn the last one before the process is killed, or before the power is lost.
#[test]
fn t5_a_crash_after_each_storage_call_loses_nothing_acknowledged() {
    for flush in [Sync, Async] {
        let mut call = 1;
        while let Some(world) = run_with_fault(flush, call, FaultKind::Stop, true) {
            let about = format!("{flush:?}, crash in call {call}");
            reopen_and_check(&world, &world.memory.crash(0, CrashKeep::PageCache), Survives::Acknowledged, &about);
            let survives = if flush == Sync { Survives::Acknowledged } else { Survives::Flushed };
            for seed in 0..SEEDS {
                let memory = world.memory.crash(seed, CrashKeep::PowerLoss);
                reopen_and_check(&world, &memory, survives, &format!("{about}, lost power, seed {seed}"));
            }
            call += 1;
        }
    }
}

/// Recovery itself crashes at each of its calls, and is repeated from the start.
#[test]
fn l3_a_second_crash_during_recovery_changes_nothing() {
    for flush in [Sync, Async] {
        let mut call = 5;
        while let Some(world) = run_with_fault(flush, call, FaultKind::Stop, true) {
            for (seed, keep) in [(call, CrashKeep::PowerLoss), (0, CrashKeep::PageCache)] {
                let first = world.memory.crash(seed, keep);
                let all = flush == Sync || keep == CrashKeep::PageCache;
                let survives = if all { Survives::Acknowledged } else { Survives::Flushed };
                crash_while_opening(&world, &first, flush, survives, &format!("{flush:?}, call {call}, {keep:?}"));
            }
            call += 7;
        }
    }
}

fn crash_while_opening(world: &World, first: &Memory, flush: FlushDiskType, survives: Survives, about: &str) {
    for second in 1.. {
        let memory = first.crash(0, CrashKeep::PageCache);
        memory.fail_at(second, FaultKind::Stop, true);
        let opened: Result<Store, Error> = open(&memory, &world.clock, &world.options);
        let through = opened.is_ok();
        drop(opened);
        for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
            let again = memory.crash(second, keep);
            let about = format!("{about}, second crash in call {second}, {keep:?}");
            let store = open(&again, &world.clock, &world.options).unwrap_or_else(|error| panic!("{about}: {error}"));
            let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let lost = flush == Async && keep == CrashKeep::PowerLoss;
                check(&store, &world.known, if lost { Survives::Flushed } else { survives });
                check_progress_is_exact(&store);
            }));
            assert!(looked.is_ok(), "{about}");
        }
        if through {
            return;
        }
    }
}
