//! Simulates random clients on a store that crashes again and again, all decided by one seed.
//!
//! In:     a seed.
//! Out:    a tally, or the promise that was broken, with the steps that led there.
//! Always: the same seed gives the same run, on every machine. The variables in campaign.rs run more and longer
//!         simulations.

use std::fmt::Write as _;

use txstore::base::clock::Clock;
use txstore::base::options::FlushDiskType::{self, Async, Sync};
use txstore::base::options::StoreOptions;
use txstore::storage::memory::{CrashKeep, FaultKind};

use crate::chance::Chance;
use crate::crash::{Origin, check_closed, check_damage, check_hole, offsets};
use crate::history::{Held, Violation};
use crate::machine::{Machine, TIMEOUT_MS};
use crate::step::{Step, jump_ms, step};
use crate::watched::crc;

/// What a run did, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub runs: u64,
    pub crashes: u64,
    pub checks: u64,
    pub records: u64,
    pub ends: u64,
    /// The number of removed log files.
    pub expired: u64,
    /// Delayed messages and retries that were delivered.
    pub delivered: u64,
    /// Messages that were delivered at a time of their own.
    pub timed: u64,
    /// Such messages that were recalled.
    pub recalled: u64,
    /// How often such a message was handed over to a broker.
    pub handed_over: u64,
    /// Such messages that a broker delivered.
    pub by_brokers: u64,
    /// Rows that local transactions committed in the model of a database.
    pub rows: u64,
    /// Transactions with such a row, or without it, that a check ended.
    pub checked: u64,
    /// Jumps of the wall clock.
    pub jumps: u64,
    /// Lives of brokers between ours.
    pub brokers: u64,
    /// Runs that ended early, because a torn record without a CRC of its own survived.
    pub blurred: u64,
    /// A hash of all files at each end of a run. It tells whether two runs were the same.
    pub trace: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.crashes += other.crashes;
        self.checks += other.checks;
        self.records += other.records;
        self.ends += other.ends;
        self.expired += other.expired;
        self.delivered += other.delivered;
        self.timed += other.timed;
        self.recalled += other.recalled;
        self.handed_over += other.handed_over;
        self.by_brokers += other.by_brokers;
        self.rows += other.rows;
        self.checked += other.checked;
        self.jumps += other.jumps;
        self.brokers += other.brokers;
        self.blurred += other.blurred;
        self.trace = self.trace.wrapping_mul(31).wrapping_add(other.trace);
    }
}

/// A run that broke a promise.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
    pub crashes: u64,
    /// The steps that led there.
    pub story: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, violation, crashes, story } = self;
        writeln!(f, "{} is broken: {}", violation.promise, violation.what)?;
        writeln!(f, "seed {seed}, after {crashes} crashes; the last life:\n{story}")?;
        write!(f, "again: TXSTORE_SEED={seed} cargo test --release --features testing --test crash simulation")
    }
}

const LIVES: u64 = 8;
const STEPS: usize = 30;
/// The wall clock stays between 1970 and 2100.
const WALL_MS_MAX: i64 = 4_102_444_800_000;

/// Everything durable; half messages and decisions durable (the default); as little durable as RocketMQ's default.
pub const FLUSHES: [(FlushDiskType, FlushDiskType); 3] = [(Sync, Sync), (Async, Sync), (Async, Async)];

pub fn options(chance: &mut Chance) -> StoreOptions {
    let (flush_disk_type, transaction_flush_disk_type) = chance.pick(&FLUSHES);
    StoreOptions {
        flush_disk_type,
        transaction_flush_disk_type,
        commit_log_file_size: Some(4_096 * (1 + chance.below(2))),
        consume_queue_file_size: Some(20 * (3 + chance.below(8))),
        max_hash_slot_num: Some(4 + chance.below(12) as u32),
        max_index_num: Some(8 + chance.below(40) as u32),
        op_message_size_max: 32 + chance.index(3) * 100,
        append_prop_crc: Some(!chance.one_in(5)),
        transaction_timeout_ms: TIMEOUT_MS,
        background: false,
        ..StoreOptions::default()
    }
}

struct Run {
    chance: Chance,
    machine: Option<Machine>,
    origin: Origin,
    /// Whether brokers write the store between lives.
    has_brokers: bool,
    /// Whether the wall clock jumps.
    has_jumps: bool,
    tally: Tally,
    story: String,
}

/// Runs one simulation.
pub fn simulate(seed: u64) -> Result<Tally, Box<Failure>> {
    let mut chance = Chance::new(seed);
    let machine = Machine::new(options(&mut chance));
    let mut run = Run {
        chance,
        machine: Some(machine),
        origin: Origin::default(),
        has_brokers: false,
        has_jumps: false,
        tally: Tally { runs: 1, ..Tally::default() },
        story: String::new(),
    };
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.all()));
    let violation = match held {
        Ok(Ok(())) => return Ok(run.tally),
        Ok(Err(violation)) => violation,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Violation { promise: "P2", what: format!("a panic: {}", text.unwrap_or_default()) }
        }
    };
    // The old store must not write while it is dropped, and a panic may have left its locks held.
    std::mem::forget(run.machine.take());
    Err(Box::new(Failure { seed, violation, crashes: run.tally.crashes, story: run.story }))
}

impl Run {
    fn machine(&mut self) -> &mut Machine {
        self.machine.as_mut().unwrap()
    }

    fn tell(&mut self, what: std::fmt::Arguments<'_>) {
        let _ = self.story.write_fmt(format_args!("  {what}\n"));
    }

    fn all(&mut self) -> Held {
        if self.chance.one_in(4) {
            self.begin_with_a_brokers_store()?;
        }
        self.has_brokers = self.chance.one_in(3);
        self.has_jumps = !self.chance.one_in(3);
        self.machine().peeks = self.chance.one_in(8);
        // A broker ends each message of a transaction of several by itself.
        self.machine().has_sets = !self.has_brokers;
        for life in 0..LIVES {
            self.life(life)?;
            if self.tally.blurred > 0 {
                break;
            }
            let is_broker_next = self.has_brokers && self.chance.one_in(3);
            if !is_broker_next || !self.hand_over()? {
                self.crash()?;
            }
            if self.tally.blurred > 0 {
                break;
            }
        }
        self.end()
    }

    /// Begins with a broker's store, which is opened and checked before any step.
    fn begin_with_a_brokers_store(&mut self) -> Held {
        let machine = self.machine.as_mut().unwrap();
        let file_size = machine.options.commit_log_file_size.unwrap();
        let count = &mut machine.history.count;
        let (origin, shadow) = crate::broker::store(&machine.memory, &mut self.chance, file_size, count);
        *machine.storage.shadow.lock().unwrap() = shadow;
        self.origin = origin;
        let found = machine.recover(0, origin, true)?;
        self.tally.checks += found.checks;
        Ok(())
    }

    /// Takes steps until a crash or a fault occurs within a step or between two.
    fn life(&mut self, life: u64) -> Held {
        let moment = self.machine().memory.calls() + 1 + self.chance.below(160);
        let (kind, sticky) = match self.chance.below(10) {
            0..=4 => (Some(FaultKind::Stop), true),
            5..=6 => (Some(FaultKind::StopInside(self.chance.index(1_200))), true),
            7 => {
                let kinds =
                    [FaultKind::Io, FaultKind::NoSpace, FaultKind::ReadOnly, FaultKind::Tear(self.chance.index(600))];
                (Some(self.chance.pick(&kinds)), self.chance.one_in(3))
            }
            _ => (None, false),
        };
        let StoreOptions { flush_disk_type: flush, transaction_flush_disk_type: of_halves, append_prop_crc, .. } =
            &self.machine().options;
        let options = format!("{flush:?} (halves {of_halves:?}), CRC {append_prop_crc:?}");
        self.story.clear();
        self.tell(format_args!("life {life} of {options}: {kind:?} in call {moment}, sticky {sticky}"));
        let machine = self.machine();
        if let Some(kind) = kind {
            machine.memory.fail_at(moment, kind, sticky);
            machine.fault = Some(moment);
        }
        machine.take(&Step::Open)?;
        for _ in 0..STEPS {
            let mut next = step(&mut self.chance);
            if let Step::Jump { ms } = &mut next {
                *ms = self.possible_jump(*ms);
            }
            self.tell(format_args!("{next:?}"));
            self.machine().take(&next)?;
            if matches!(next, Step::Close) {
                self.reopen()?;
            }
            if self.tally.blurred > 0 {
                return Ok(());
            }
            let machine = self.machine();
            let stops = matches!(kind, Some(FaultKind::Stop | FaultKind::StopInside(_)));
            if stops && machine.memory.calls() >= moment {
                break;
            }
        }
        Ok(())
    }

    /// Closes the store cleanly and checks the result. A failed close counts as a killed process.
    fn reopen(&mut self) -> Held {
        let thorough = self.chance.one_in(4);
        let machine = self.machine();
        if machine.is_faulty() {
            return self.crash_as(CrashKeep::PageCache);
        }
        if thorough {
            check_closed(machine)?;
        }
        self.time_passes()?;
        let machine = self.machine();
        machine.take(&Step::Open)?;
        let Some(store) = machine.store.take().filter(|_| !machine.is_faulty()) else { return Ok(()) };
        let report = store.open_report();
        crate::history::hold(report.clean && report.scanned_bytes == 0, "L8", || {
            format!("after a clean close the opening found {report:?}")
        })?;
        machine.reopened(&store)?;
        machine.store = Some(store);
        Ok(())
    }

    /// Crashes, crashes again during recovery, and finally recovers.
    fn crash(&mut self) -> Held {
        let keep = if self.chance.one_in(2) { CrashKeep::PowerLoss } else { CrashKeep::PageCache };
        self.crash_as(keep)
    }

    fn crash_as(&mut self, keep: CrashKeep) -> Held {
        let must_end = self.machine().must_end(keep);
        self.crash_once(keep);
        self.recover_after(must_end, None)
    }

    /// Recovers, perhaps after more crashes. `brokers_end`: up to this end a broker has synced its log.
    fn recover_after(&mut self, mut must_end: u64, brokers_end: Option<u64>) -> Held {
        let lost = |machine: &Machine, keep: CrashKeep| match (brokers_end, keep) {
            (Some(end), CrashKeep::PowerLoss) => end,
            _ => machine.must_end(keep),
        };
        let mut is_interrupted = false;
        while self.chance.one_in(2) {
            is_interrupted = true;
            let again = if self.chance.one_in(2) { CrashKeep::PowerLoss } else { CrashKeep::PageCache };
            let moment = 1 + self.chance.below(60);
            let kind =
                if self.chance.one_in(3) { FaultKind::StopInside(self.chance.index(300)) } else { FaultKind::Stop };
            self.tell(format_args!("recovery crashes in call {moment} ({kind:?})"));
            let machine = self.machine();
            machine.memory.fail_at(moment, kind, true);
            machine.fault = Some(moment);
            let opened = machine.try_open();
            if let Err(error) = &opened {
                let explained = machine.is_faulty();
                crate::history::hold(explained, "L8", || format!("what a crash left cannot be opened: {error:?}"))?;
            }
            machine.memory.fail_at(machine.memory.calls() + 1, FaultKind::Stop, true);
            drop(opened);
            must_end = must_end.min(lost(machine, again));
            self.crash_once(again);
        }
        self.time_passes()?;
        let (reads, thorough) = (self.chance.one_in(6), self.chance.one_in(4));
        let origin = self.origin;
        let machine = self.machine();
        // An interrupted opening may leave a published end from before the broker, which a reader takes for the log's.
        let reads = reads && !(is_interrupted && brokers_end.is_some());
        if reads && machine.crc() {
            machine.read_only_opening(must_end, origin)?;
            if self.chance.one_in(2) {
                must_end = must_end.min(lost(self.machine(), CrashKeep::PowerLoss));
                self.crash_once(CrashKeep::PowerLoss);
            }
        }
        let machine = self.machine();
        let found = machine.recover(must_end, origin, thorough)?;
        self.tally.checks += found.checks;
        self.tally.records += found.offsets.len() as u64;
        self.tally.blurred += u64::from(found.is_blurred);
        Ok(())
    }

    /// Closes the store and lets a broker continue it. Returns whether the close succeeded.
    fn hand_over(&mut self) -> Held<bool> {
        let machine = self.machine.as_mut().unwrap();
        if machine.is_faulty() {
            return Ok(false);
        }
        machine.take(&Step::Open)?;
        if let Some(store) = machine.store.take() {
            // A crash may have followed a removal before the history noted it. The broker continues after it.
            machine.note_first_offsets(&store);
            machine.store = Some(store);
        }
        if self.chance.one_in(2) {
            self.tell(format_args!("{:?}", Step::HandOver));
            self.machine().take(&Step::HandOver)?;
        }
        let keep = if self.chance.one_in(2) { CrashKeep::PowerLoss } else { CrashKeep::PageCache };
        let seed = self.chance.number();
        let machine = self.machine.as_mut().unwrap();
        machine.take(&Step::Close)?;
        if machine.is_faulty() || machine.store.is_some() {
            return Ok(false);
        }
        self.time_passes()?;
        let machine = self.machine.as_mut().unwrap();
        let options = &machine.options;
        let sizes = (options.commit_log_file_size.unwrap(), options.consume_queue_file_size.unwrap());
        let (memory, wall) = (machine.memory.crash(seed, keep), machine.clock.wall().0);
        let left = crate::broker_life::live(memory, &mut self.chance, sizes, wall, &mut machine.history);
        let _ = self.story.write_fmt(format_args!("  a broker from {} to {}: {}\n", left.began, left.end, left.story));
        check_hole(machine, &left, self.chance.index(1 << 16), self.chance.one_in(2))?;
        let machine = self.machine.take().unwrap().continued(&left);
        self.machine = Some(machine);
        self.origin.broker_end = left.end;
        self.tally.brokers += 1;
        self.time_passes()?;
        self.recover_after(u64::MAX, Some(left.durable_end))?;
        Ok(true)
    }

    fn crash_once(&mut self, keep: CrashKeep) {
        let seed = self.chance.number();
        self.tell(format_args!("crash: {keep:?}"));
        let machine = self.machine.take().unwrap();
        let memory = machine.memory.crash(seed, keep);
        let boots = keep == CrashKeep::PowerLoss && self.chance.one_in(2);
        let mut machine = if boots { machine.rebooted(memory) } else { machine.crashed(memory) };
        machine.database.crash(&mut self.chance);
        self.machine = Some(machine);
        self.tally.crashes += 1;
    }

    /// Limits a jump to times that a clock can show.
    fn possible_jump(&mut self, ms: i64) -> i64 {
        let wall_ms = self.machine().clock.wall().0;
        if self.has_jumps { (wall_ms + ms).clamp(0, WALL_MS_MAX) - wall_ms } else { 0 }
    }

    /// Lets time pass while no process has the store open. The wall clock may be set meanwhile.
    fn time_passes(&mut self) -> Held {
        let ms = self.chance.pick(&[0, 0, 1_000, 40_000, 90_000_000]);
        self.machine().clock.advance(ms);
        if self.has_jumps && self.chance.one_in(3) {
            let jump_ms = jump_ms(&mut self.chance);
            let ms = self.possible_jump(jump_ms);
            self.machine().take(&Step::Jump { ms })?;
        }
        let (wall_ms, now_ms) = (self.machine().clock.wall().0, self.machine().clock.monotonic_ms());
        self.tell(format_args!("{ms} ms pass; the wall clock says {wall_ms}, the monotonic clock {now_ms}"));
        Ok(())
    }

    /// Closes the store a last time, and damages a copy of it.
    fn end(&mut self) -> Held {
        let which = self.chance.index(1 << 16);
        let blurred = self.tally.blurred > 0;
        let origin = self.origin;
        let machine = self.machine.as_mut().unwrap();
        if !blurred && let Some(store) = machine.store.take() {
            machine.deliver_all(&store)?;
            machine.end_all_rows(&store)?;
            machine.check_now(&store, origin)?;
            let offsets = offsets(&store)?;
            machine.store = Some(store);
            machine.take(&Step::Close)?;
            check_closed(machine)?;
            if machine.crc() && origin.broker_end == 0 {
                check_damage(machine, &offsets, which)?;
            }
        }
        (self.tally.ends, self.tally.expired) = (machine.ends, machine.expired);
        (self.tally.delivered, self.tally.jumps) = (machine.delivered, machine.jumps);
        (self.tally.timed, self.tally.recalled) = (machine.delivered_timed, machine.recalled);
        (self.tally.handed_over, self.tally.by_brokers) = (machine.handed_over, machine.delivered_by_brokers);
        (self.tally.rows, self.tally.checked) = (machine.database.committed, machine.database.checked);
        let all: Vec<u8> = crate::crash::files(&machine.memory, "")
            .into_iter()
            .flat_map(|(path, bytes)| [path.into_bytes(), bytes].concat())
            .collect();
        self.tally.trace = u64::from(crc(&all));
        machine.memory.fail_at(machine.memory.calls() + 1, FaultKind::Stop, true);
        Ok(())
    }
}

#[test]
fn simulation_is_a_function_of_its_seed() {
    for seed in 0..12 {
        let (one, other) =
            (simulate(seed).unwrap_or_else(|f| panic!("{f}")), simulate(seed).unwrap_or_else(|f| panic!("{f}")));
        assert_eq!(one, other, "seed {seed}");
    }
}
