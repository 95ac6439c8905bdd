//! Runs short scripts with a crash at every call, and each write torn at many bytes.
//!
//! In:     scripts of at most eight steps.
//! Out:    for each crash, every image that a power loss may leave (if they are few, else a random choice), and that of
//!         the killed process. Each is recovered and checked, and some recoveries crash in each of their calls.
//! Always: a write is torn at each byte of its first and last ten and around each sector's edge, and at every 96th
//!         between them (in the deep form at every byte): between two such bytes nothing of a record's frame changes.
//!
//! `TXSTORE_POINTS=every` takes every byte and more images; `TXSTORE_SCRIPT` names one script.

use std::io::Write as _;

use txstore::base::options::FlushDiskType;
use txstore::base::options::StoreOptions;
use txstore::storage::memory::{CrashKeep, FaultKind, Memory};
use txstore::store::Decider;
use txstore::store::EndKind::{self, Commit, Discard, RollBack};

use crate::campaign::Progress;
use crate::crash::{Origin, check_closed};
use crate::history::Held;
use crate::machine::{Machine, TIMEOUT_MS};
use crate::simulation::FLUSHES;
use crate::step::Step;

/// The number of images of six sectors that were each written or not.
const IMAGES_ALL: usize = 64;

fn send(messages: usize, size: usize) -> Step {
    Step::Send { topic: 0, queue: 0, messages, size }
}

fn half(size: usize) -> Step {
    Step::Prepare { topic: 0, queue: 0, size, owner: 0, named: true, immunity: false, time: None }
}

/// Returns a half whose message is delivered this long after its commit.
fn half_in(ms: i64) -> Step {
    let time = Some((ms, true));
    Step::Prepare { topic: 0, queue: 0, size: 60, owner: 0, named: true, immunity: false, time }
}

fn end(which: usize, kind: EndKind) -> Step {
    // `which` is divided by seven for the copy, and taken modulo the number of halves.
    Step::End { which, kind, decider: Decider::Producer }
}

fn end_by_hand(which: usize, kind: EndKind) -> Step {
    Step::End { which, kind, decider: Decider::Operator }
}

fn acknowledge(messages: usize) -> Step {
    Step::Consume { topic: 0, queue: 0, group: 0, messages, acknowledge: true }
}

fn check() -> Step {
    Step::Check { producers: true, limit: 100, answer: Some(Commit) }
}

fn scripts() -> Vec<(&'static str, Vec<Step>)> {
    let together = || Step::Together { ends: vec![(0, Commit), (1, RollBack), (2, Discard)] };
    let resend = || Step::Resend { which: 0, queue: 1 };
    let resume = || Step::Resume { which: 0 };
    let (open, close) = (|| Step::Open, || Step::Close);
    vec![
        ("first_opening", vec![open(), close()]),
        ("send", vec![open(), send(1, 100), send(3, 200), close()]),
        ("roll", vec![open(), send(1, 2_500), send(1, 900), half(700), send(2, 900), close()]),
        ("batch_over_the_edge", vec![open(), send(2, 1_500), send(4, 900), close()]),
        ("commit", vec![open(), half(100), end(0, Commit), end(0, Commit), close()]),
        ("by_hand", vec![open(), half(100), half(90), end_by_hand(0, Commit), end_by_hand(1, RollBack), send(1, 50)]),
        ("roll_back", vec![open(), half(100), end(0, RollBack), end(0, Commit), close()]),
        ("discard", vec![open(), half(100), end(0, Discard), close()]),
        ("resume", vec![open(), half(100), end(0, Discard), resume(), end(1, Commit), close()]),
        ("resent_half", vec![open(), half(100), resend(), end(0, Commit), resend(), end(1, RollBack)]),
        ("group", vec![open(), half(300), half(300), half(300), together(), close()]),
        ("group_over_the_edge", vec![open(), half(900), half(900), half(900), together(), close()]),
        ("snapshot", vec![open(), half(100), Step::Snapshot, end(0, Commit), half(50), Step::Snapshot, send(1, 50)]),
        (
            "progress",
            vec![
                open(),
                half(100),
                half(100),
                end(0, RollBack),
                Step::WriteOffsets,
                end(1, Commit),
                Step::WriteOffsets,
            ],
        ),
        ("flush", vec![open(), send(2, 200), Step::Flush, half(200), Step::FlushRound, end(0, Commit)]),
        ("consumer", vec![open(), send(3, 60), acknowledge(2), Step::WriteOffsets, acknowledge(1), Step::WriteOffsets]),
        ("check", vec![open(), half(100), Step::Pass { ms: TIMEOUT_MS }, check(), Step::Answer, check(), close()]),
        (
            "delay",
            vec![
                open(),
                Step::SendDelayed { topic: 0, queue: 0, level: 1, messages: 2 },
                send(1, 60),
                Step::Retry { which: 0, level: 2 },
                Step::Pass { ms: 1_000 },
                Step::Deliver { most: 1 },
                Step::Snapshot,
                Step::Deliver { most: 9 },
            ],
        ),
        (
            "timed",
            vec![
                open(),
                Step::SendTimed { topic: 0, queue: 0, times: vec![(1_000, false), (900, true)] },
                half_in(1_000),
                end(0, Commit),
                Step::Recall { which: 0 },
                Step::Pass { ms: 1_000 },
                Step::Deliver { most: 1 },
                Step::Deliver { most: 9 },
            ],
        ),
        (
            "hand_over",
            vec![
                open(),
                Step::SendTimed { topic: 0, queue: 0, times: vec![(1_200, false), (900, true)] },
                half_in(1_000),
                end(0, Commit),
                Step::HandOver,
                // This takes them back before.
                Step::HandOver,
                close(),
            ],
        ),
        (
            "database",
            vec![
                open(),
                Step::BeginRow { topic: 0, queue: 0, size: 60, time: None },
                Step::BeginRow { topic: 0, queue: 1, size: 60, time: None },
                Step::EndRow { which: 0, commits: true, dies: true },
                Step::EndRow { which: 0, commits: false, dies: true },
                Step::Pass { ms: TIMEOUT_MS },
                check(),
                Step::Answer,
            ],
        ),
        ("second_opening", vec![open(), half(100), send(1, 90), close(), open(), end(0, Commit), close()]),
    ]
}

/// `flush_disk_type` and `transaction_flush_disk_type`.
type Flush = (FlushDiskType, FlushDiskType);

fn options((flush_disk_type, transaction_flush_disk_type): Flush) -> StoreOptions {
    StoreOptions {
        flush_disk_type,
        transaction_flush_disk_type,
        commit_log_file_size: Some(4 << 10),
        consume_queue_file_size: Some(20 * 4),
        max_hash_slot_num: Some(4),
        max_index_num: Some(8),
        append_prop_crc: Some(true),
        transaction_timeout_ms: TIMEOUT_MS,
        background: false,
        ..StoreOptions::default()
    }
}

/// How thorough a run is.
#[derive(Clone, Copy)]
struct Depth {
    /// Bytes between two offsets at which a write is torn.
    stride: usize,
    /// Images of a power loss if there are too many to check all.
    images: usize,
    /// The maximum number of images of which all are checked.
    images_all: usize,
    /// At every `again`-th crash the recovery also crashes in each of its calls.
    again: u64,
}

#[derive(Default)]
struct Count {
    points: u64,
    images: u64,
    checks: u64,
}

struct Point<'s> {
    steps: &'s [Step],
    flush: Flush,
    call: u64,
    /// Bytes of a write that take effect; `None`: the call has no effect.
    torn: Option<usize>,
}

impl Point<'_> {
    /// Runs the script up to the crash.
    fn reach(&self) -> Held<Machine> {
        let mut machine = Machine::new(options(self.flush));
        let kind = self.torn.map_or(FaultKind::Stop, FaultKind::StopInside);
        machine.memory.fail_at(self.call, kind, true);
        machine.fault = Some(self.call);
        for step in self.steps {
            machine.take(step)?;
            if machine.memory.calls() >= self.call {
                break;
            }
        }
        Ok(machine)
    }

    fn crash_to(&self, keep: CrashKeep, memory: Memory) -> Held<(Machine, u64)> {
        let machine = self.reach()?;
        let must_end = machine.must_end(keep);
        Ok((machine.crashed(memory), must_end))
    }

    /// Recovers an image, checks it, closes it, and opens the result.
    fn look(&self, keep: CrashKeep, memory: Memory, count: &mut Count) -> Held {
        let (mut machine, must_end) = self.crash_to(keep, memory)?;
        let found = machine.recover(must_end, Origin::default(), count.images.is_multiple_of(8))?;
        count.images += 1;
        count.checks += found.checks;
        if count.images.is_multiple_of(16) {
            machine.take(&Step::Close)?;
            check_closed(&machine)?;
        }
        machine.memory.fail_at(machine.memory.calls() + 1, FaultKind::Stop, true);
        Ok(())
    }

    /// Crashes the recovery in each of its calls.
    fn crash_again(&self, keep: CrashKeep, memory: &Memory, count: &mut Count) -> Held {
        for call in 1.. {
            let (mut machine, must_end) = self.crash_to(keep, memory.crash(0, CrashKeep::PageCache))?;
            machine.memory.fail_at(call, FaultKind::Stop, true);
            machine.fault = Some(call);
            let through = machine.try_open().is_ok();
            let second = if call % 2 == 0 { CrashKeep::PowerLoss } else { CrashKeep::PageCache };
            let must_end = must_end.min(machine.must_end(second));
            let image = machine.memory.crash(call, second);
            let mut machine = machine.crashed(image);
            let found = machine.recover(must_end, Origin::default(), false)?;
            count.images += 1;
            count.checks += found.checks;
            machine.memory.fail_at(machine.memory.calls() + 1, FaultKind::Stop, true);
            if through {
                return Ok(());
            }
        }
        Ok(())
    }

    fn try_all(&self, depth: Depth, count: &mut Count) -> Held {
        let machine = self.reach()?;
        let memory = machine.memory.clone();
        count.points += 1;
        self.look(CrashKeep::PageCache, memory.crash(0, CrashKeep::PageCache), count)?;
        for image in images(&memory, depth, count.points) {
            self.look(CrashKeep::PowerLoss, image, count)?;
        }
        if count.points.is_multiple_of(depth.again) {
            let keep =
                if count.points.is_multiple_of(2 * depth.again) { CrashKeep::PowerLoss } else { CrashKeep::PageCache };
            self.crash_again(keep, &memory.crash(count.points, keep), count)?;
        }
        drop(machine);
        Ok(())
    }
}

/// Returns what a power loss may leave: all images if they are few, else some of them.
fn images(memory: &Memory, depth: Depth, seed: u64) -> Vec<Memory> {
    let mut bounds = Vec::new();
    let first = memory.lose_power(|most| {
        bounds.push(most);
        0
    });
    let ways = bounds.iter().try_fold(1_usize, |ways, most| ways.checked_mul(most + 1)).unwrap_or(usize::MAX);
    if ways > depth.images_all {
        return (0..depth.images).map(|at| memory.crash(seed * 1_000 + at as u64, CrashKeep::PowerLoss)).collect();
    }
    let mut all = vec![first];
    for number in 1..ways {
        let mut rest = number;
        all.push(memory.lose_power(|most| {
            let choice = rest % (most + 1);
            rest /= most + 1;
            choice
        }));
    }
    all
}

/// Returns the bytes at which a write of this size is torn.
fn tears(bytes: usize, stride: usize) -> Vec<usize> {
    let near_edge = |at: usize| at < 10 || bytes - at < 10 || at % 512 < 2 || at % 512 > 510;
    (0..=bytes).filter(|at| at % stride == 0 || near_edge(*at)).collect()
}

/// Returns the size of each call's write; 0 if it does not write.
fn calls_of(steps: &[Step], flush: Flush) -> Held<Vec<usize>> {
    let mut machine = Machine::new(options(flush));
    machine.memory.note_writes();
    for step in steps {
        machine.take(step)?;
    }
    machine.memory.fail_at(machine.memory.calls() + 1, FaultKind::Stop, true);
    Ok(machine.memory.noted_writes())
}

fn try_script(name: &str, steps: &[Step], flush: Flush, depth: Depth, count: &mut Count) {
    let fail = |point: &str, images: u64, violation: &crate::history::Violation| -> ! {
        panic!(
            "\n{} is broken: {}\nscript {name}, {flush:?}, {point}, after {} crashes\nagain: TXSTORE_SCRIPT={name} cargo test --release --features testing --test crash exhaustive",
            violation.promise, violation.what, images
        )
    };
    let calls = calls_of(steps, flush).unwrap_or_else(|violation| fail("without a crash", 0, &violation));
    for (call, bytes) in (1..).zip(calls) {
        let torn = tears(bytes, depth.stride).into_iter().filter(|_| bytes > 0).map(Some);
        for torn in torn.chain([None]) {
            let point = Point { steps, flush, call, torn };
            if let Err(violation) = point.try_all(depth, count) {
                fail(&format!("call {call}, torn {torn:?}"), count.images, &violation);
            }
        }
    }
}

#[test]
fn exhaustive_scripts_keep_every_promise_at_every_point() {
    let deep = std::env::var("TXSTORE_POINTS").is_ok();
    let only = std::env::var("TXSTORE_SCRIPT").ok();
    let depth = if deep {
        Depth { stride: 1, images: 4, images_all: IMAGES_ALL, again: 50 }
    } else {
        Depth { stride: 96, images: 1, images_all: 2, again: 200 }
    };
    let (progress, mut count) = (Progress::new(deep), Count::default());
    for flush in FLUSHES {
        for (name, steps) in scripts().iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
            try_script(name, steps, flush, depth, &mut count);
            progress.tell(|| format!("{flush:?} {name}: {} points, {} images", count.points, count.images));
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "exhaustive: {} points, {} images recovered, {} promises looked at, 0 violations, {:.0} s",
        count.points,
        count.images,
        count.checks,
        progress.seconds(),
    );
}
