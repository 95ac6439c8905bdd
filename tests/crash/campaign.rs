//! Runs many simulations on all cores, with a progress display and a summary.
//!
//! `TXSTORE_CRASHES`: the minimum number of crashes; `TXSTORE_SEED`: run this seed alone; `TXSTORE_FROM`: the first
//! seed; `TXSTORE_THREADS`: the number of threads.

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::simulation::{Failure, Tally, simulate};

/// Crashes in the quick form, which runs with every test.
const QUICK_CRASHES: u64 = 5_000;

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.replace('_', "").parse().ok()
}

/// Prints the progress every few seconds in a long run.
pub struct Progress {
    began: Instant,
    last_shown: Mutex<Instant>,
    shown: bool,
}

impl Progress {
    #[allow(clippy::disallowed_methods)] // A campaign's duration affects no result.
    pub fn new(shown: bool) -> Self {
        Self { began: Instant::now(), last_shown: Mutex::new(Instant::now()), shown }
    }

    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    pub fn tell(&self, text: impl FnOnce() -> String) {
        if !self.shown {
            return;
        }
        let mut last_shown = self.last_shown.lock().unwrap();
        if last_shown.elapsed() > Duration::from_secs(5) {
            let since = last_shown.elapsed();
            *last_shown += since;
            let _ = writeln!(std::io::stderr(), "  {:6.0} s  {}", self.seconds(), text());
        }
    }
}

fn threads() -> usize {
    number("TXSTORE_THREADS").map_or(1, |threads| threads as usize)
}

fn run_all(crashes: u64, from: u64, progress: &Progress) -> Result<Tally, Box<Failure>> {
    let (next, stop) = (AtomicU64::new(from), AtomicBool::new(false));
    let (total, failure) = (Mutex::new(Tally::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match simulate(next.fetch_add(1, Ordering::Relaxed)) {
                        Ok(tally) => {
                            let mut total = total.lock().unwrap();
                            total.add(&tally);
                            progress.tell(|| format!("{} of {crashes} crashes, {} runs", total.crashes, total.runs));
                            stop.fetch_or(total.crashes >= crashes, Ordering::Relaxed);
                        }
                        Err(found) => {
                            failure.lock().unwrap().get_or_insert(found);
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    match failure.into_inner().unwrap() {
        Some(failure) => Err(failure),
        None => Ok(total.into_inner().unwrap()),
    }
}

#[test]
fn simulation_keeps_every_promise() {
    if let Some(seed) = number("TXSTORE_SEED") {
        let tally = simulate(seed).unwrap_or_else(|failure| panic!("{failure}"));
        println!("seed {seed}: {tally:?}");
        return;
    }
    let crashes = number("TXSTORE_CRASHES");
    let progress = Progress::new(crashes.is_some());
    let total = run_all(crashes.unwrap_or(QUICK_CRASHES), number("TXSTORE_FROM").unwrap_or(0), &progress);
    let total = total.unwrap_or_else(|failure| panic!("\n{failure}"));
    let _ = writeln!(
        std::io::stderr(),
        "simulation: {} runs, {} crashes, {} records and {} promises looked at, {} ends, {} log files removed, {} lives of brokers, {} blurred, {} jumps of the clock, {} delayed and {} timed messages delivered, {} recalled, {} handed over ({} delivered by brokers), {} database rows ({} transactions ended by a check of them), 0 violations, {:.0} s",
        total.runs,
        total.crashes,
        total.records,
        total.checks,
        total.ends,
        total.expired,
        total.brokers,
        total.blurred,
        total.jumps,
        total.delivered,
        total.timed,
        total.recalled,
        total.handed_over,
        total.by_brokers,
        total.rows,
        total.checked,
        progress.seconds(),
    );
}
