//! A million messages with times of their own: each is delivered once and not early, over five kills of the process.
//!
//! In:     `TXSTORE_TIMED=MESSAGES` and `TXSTORE_SPEED`, how much faster than real time the clock runs (20).
//! Out:    for each life its memory; at the end how late the messages were.
//! Always: real files, real processes that are killed, a clock that continues over the kills. The lateness is reported,
//!         not tested, because it depends on the machine.
//!
//! Without `TXSTORE_TIMED` it runs with 2,000 messages, whose times are within a minute, and one kill.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::as_conversions)]
#![allow(clippy::disallowed_methods, missing_docs, unreachable_pub)] // The clock is made of real time here.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use txstore::base::clock::Clock;
use txstore::base::options::StoreOptions;
use txstore::base::units::{QueueId, QueueOffset, TimestampMs};
use txstore::record::message::{Envelope, Parts};
use txstore::storage::disk::Disk;
use txstore::store::{NewMessage, Store, Wait};

const TOPIC: &str = "reminders";
const QUEUES: u64 = 4;
const START_MS: i64 = 1_700_000_000_000;
/// How long the messages wait at least, so that none is due before the first life begins.
const LEAD_MS: i64 = 5_000;
const BATCH: u64 = 500;
/// The environment of a life: the directory, the real time at which the clock was `START_MS`, and its speed.
const LIFE: &str = "TXSTORE_TIMED_LIFE";

/// A clock that runs faster than real time, from a moment that all processes know.
#[derive(Clone, Copy, Debug)]
struct FastClock {
    since_us: u128,
    speed: u32,
}

impl FastClock {
    fn starting_now(speed: u32) -> Self {
        Self { since_us: real_us(), speed }
    }

    fn passed_ms(self) -> i64 {
        let passed_us = real_us().saturating_sub(self.since_us);
        i64::try_from(passed_us * u128::from(self.speed) / 1_000).unwrap()
    }
}

impl Clock for FastClock {
    fn wall(&self) -> TimestampMs {
        TimestampMs(START_MS + self.passed_ms())
    }

    fn monotonic_ms(&self) -> i64 {
        self.passed_ms()
    }
}

/// A clock that does not move, for the sends before the first life.
#[derive(Clone, Copy, Debug)]
struct Stopped;

impl Clock for Stopped {
    fn wall(&self) -> TimestampMs {
        TimestampMs(START_MS)
    }

    fn monotonic_ms(&self) -> i64 {
        0
    }
}

fn real_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn open(directory: &Path, clock: Arc<dyn Clock>, background: bool) -> Store {
    let options = StoreOptions { background, ..StoreOptions::default() };
    Store::open_with(Arc::new(Disk::open(directory).unwrap()), clock, options).unwrap()
}

/// A step of a fixed random sequence.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns the time of each message: a random millisecond of the span.
fn times(messages: u64, span_ms: u64) -> Vec<i64> {
    let mut state = 0x9E37_79B9_7F4A_7C15;
    (0..messages).map(|_| START_MS + LEAD_MS + i64::try_from(random(&mut state) % span_ms).unwrap()).collect()
}

fn send_all(directory: &Path, times: &[i64]) {
    let store = open(directory, Arc::new(Stopped), true);
    let numbered: Vec<(usize, &i64)> = times.iter().enumerate().collect();
    for batch in numbered.chunks(usize::try_from(BATCH).unwrap()) {
        let envelopes: Vec<Envelope> = batch
            .iter()
            .map(|(_, due_ms)| Envelope::new(&Parts { topic: TOPIC, deliver_ms: Some(**due_ms), ..Parts::default() }))
            .map(Result::unwrap)
            .collect();
        let bodies: Vec<String> = batch.iter().map(|(number, _)| number.to_string()).collect();
        let messages: Vec<NewMessage<'_>> = (envelopes.iter().zip(&bodies).zip(batch))
            .map(|((envelope, body), (number, _))| NewMessage {
                envelope,
                body: body.as_bytes(),
                queue_id: QueueId(i32::try_from(number % usize::try_from(QUEUES).unwrap()).unwrap()),
            })
            .collect();
        store.append(&messages, Wait::Yes).unwrap().acknowledged().unwrap();
    }
    assert_eq!(store.timed_messages().unwrap(), u64::try_from(times.len()).unwrap());
    store.close().unwrap();
}

/// Returns the resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A life: opens the store and delivers until nothing waits or it is killed. Does nothing unless a test started it.
#[test]
fn a_life() {
    let Ok(life) = std::env::var(LIFE) else { return };
    let mut words = life.splitn(3, ' ');
    let since_us = words.next().unwrap().parse().unwrap();
    let clock = FastClock { since_us, speed: words.next().unwrap().parse().unwrap() };
    let before = resident_kib();
    let began = Instant::now();
    let store = open(Path::new(words.next().unwrap()), Arc::new(clock), true);
    let (waiting, opened) = (store.timed_messages().unwrap(), began.elapsed().as_millis());
    println!("\nready {} {waiting} {opened} {}", clock.wall().0, resident_kib().saturating_sub(before));
    let mut snapshot = Instant::now();
    while store.timed_messages().unwrap() > 0 {
        let done = store.deliver_delayed(256).unwrap();
        assert!(done.passed_over.is_empty(), "{:?}", done.passed_over);
        let wait_ms = done.next_in_ms.unwrap_or(500).clamp(0, 500);
        std::thread::sleep(Duration::from_micros(u64::try_from(wait_ms * 1_000).unwrap() / u64::from(clock.speed)));
        if snapshot.elapsed() > Duration::from_secs(10) {
            store.snapshot().unwrap();
            snapshot = Instant::now();
        }
    }
    store.close().unwrap();
}

struct Life {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Life {
    fn begin(directory: &Path, clock: FastClock) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_life", "--nocapture"])
            .env(LIFE, format!("{} {} {}", clock.since_us, clock.speed, directory.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Waits until it has opened the store. Returns the clock's time then.
    fn ready_ms(&mut self) -> i64 {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the life ended before it was ready");
            if let Some(facts) = line.strip_prefix("ready ") {
                let facts: Vec<i64> = facts.split_whitespace().map(|word| word.parse().unwrap()).collect();
                println!("{} wait; opened in {} ms, which took {} KiB of memory", facts[1], facts[2], facts[3]);
                return facts[0];
            }
        }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn end(mut self) {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {}
        assert!(self.process.wait().unwrap().success());
    }
}

/// Returns for each message when it was delivered. Every one is there once.
fn delivered(directory: &Path, clock: FastClock, times: &[i64]) -> Vec<i64> {
    let store = open(directory, Arc::new(clock), false);
    let mut found = BTreeMap::new();
    for queue_id in 0..QUEUES {
        let mut at = 0;
        loop {
            let queue_id = QueueId(i32::try_from(queue_id).unwrap());
            let (records, next) = store.read(TOPIC, queue_id, QueueOffset(at), 10_000, None).unwrap();
            if records.is_empty() {
                break;
            }
            for record in records {
                let view = record.view().unwrap();
                let number: usize = std::str::from_utf8(view.body).unwrap().parse().unwrap();
                let twice = found.insert(number, view.store_timestamp.0);
                assert!(twice.is_none(), "message {number} was delivered twice");
            }
            at = next.0;
        }
    }
    assert_eq!(found.len(), times.len(), "messages were lost");
    let early: Vec<_> = found.iter().filter(|(number, stored_ms)| **stored_ms < times[**number]).collect();
    assert!(early.is_empty(), "{} messages were early, the first {:?}", early.len(), early[0]);
    found.into_values().collect()
}

#[test]
fn messages_are_delivered_once_and_not_early_over_kills() {
    if std::env::var(LIFE).is_ok() {
        return;
    }
    let long = number("TXSTORE_TIMED");
    let messages = long.unwrap_or(2_000);
    let (span_ms, kills) = if long.is_some() { (3_600_000, 5) } else { (60_000, 1) };
    let speed = u32::try_from(number("TXSTORE_SPEED").unwrap_or(20)).unwrap();
    let times = times(messages, span_ms);
    let directory: PathBuf = std::env::temp_dir().join(format!("txstore-timed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let began = Instant::now();
    send_all(&directory, &times);
    println!("{messages} messages were sent in {} ms", began.elapsed().as_millis());
    let clock = FastClock::starting_now(speed);
    let mut state = 42;
    let mut kill_at: Vec<i64> =
        (0..kills).map(|_| START_MS + LEAD_MS + i64::try_from(random(&mut state) % span_ms).unwrap()).collect();
    kill_at.sort_unstable();
    // From a kill until the next life has opened the store, nothing can be delivered.
    let mut closed = vec![];
    let mut life = Life::begin(&directory, clock);
    closed.push((START_MS, life.ready_ms()));
    for at in kill_at {
        while clock.wall().0 < at {
            std::thread::sleep(Duration::from_millis(1));
        }
        let killed_ms = clock.wall().0;
        life.kill();
        life = Life::begin(&directory, clock);
        closed.push((killed_ms, life.ready_ms()));
    }
    life.end();
    let stored = delivered(&directory, clock, &times);
    std::fs::remove_dir_all(&directory).unwrap();
    let late = |(due_ms, stored_ms): (&i64, &i64)| {
        // A message that was due while no process had the store open is late from the opening on.
        let down = closed.iter().find(|(from, to)| (*from - 1_000..=*to).contains(due_ms));
        stored_ms - due_ms.max(&down.map_or(*due_ms, |(_, to)| *to))
    };
    let mut late: Vec<i64> = times.iter().zip(&stored).map(late).collect();
    late.sort_unstable();
    let share = |part: usize| late[(late.len() * part / 1_000).min(late.len() - 1)];
    println!(
        "late by ms of the clock, which runs {speed} times as fast as real time: median {}, 99 % {}, 99.9 % {}, most {}; \
         {} of {messages} more than a second",
        share(500),
        share(990),
        share(999),
        share(1_000),
        late.iter().filter(|late| **late > 1_000).count(),
    );
}
