//! Measures opening after a crash and after a clean close, against reading the log once and its CRC.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::disallowed_methods, missing_docs)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group};
use txstore::base::options::FlushDiskType;
use txstore::base::units::QueueId;
use txstore::store::{NewMessage, Wait};

const BODY_BYTES: usize = 1024;
const MESSAGES: u64 = 200_000;
/// Set in the child process that leaves a store as a crash does.
const CHILD: &str = "TXSTORE_BENCH_CRASH";

/// Fills a store in the child process and exits without closing it; no destructor runs.
fn crash(path: &Path) -> ! {
    let store = common::open(path, FlushDiskType::Async);
    let (envelope, body) = (common::envelope(), common::bytes(BODY_BYTES));
    let batch = vec![NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(0) }; 100];
    for _ in 0..MESSAGES / 100 {
        store.append(&batch, Wait::Yes).unwrap().acknowledged().unwrap();
    }
    std::process::exit(0)
}

/// Opens a copy of a crashed store, and returns the time.
fn open_crashed(crashed: &Path, count: u64) -> Duration {
    let mut taken = Duration::ZERO;
    for _ in 0..count {
        let folder = common::scratch();
        let copy = folder.path().join("store");
        let copied = Command::new("cp").args(["-r", "--sparse=always"]).arg(crashed).arg(&copy).status();
        assert!(copied.unwrap().success());
        let start = Instant::now();
        let store = common::open(&copy, FlushDiskType::Async);
        taken += start.elapsed();
        assert!(store.open_report().scanned_bytes > MESSAGES * BODY_BYTES as u64);
    }
    taken
}

/// Reads as many bytes, computes their CRC, and returns the time.
fn scan(crashed: &Path, count: u64) -> Duration {
    let file = std::fs::File::options().read(true).open(crashed.join("commitlog/00000000000000000000")).unwrap();
    let mut block = vec![0; 1 << 20];
    let start = Instant::now();
    for _ in 0..count {
        let mut crc = crc32fast::Hasher::new();
        for number in 0..(MESSAGES * BODY_BYTES as u64) >> 20 {
            file.read_exact_at(&mut block, number << 20).unwrap();
            crc.update(&block);
        }
        std::hint::black_box(crc.finalize());
    }
    start.elapsed()
}

fn open_clean(path: &Path, count: u64) -> Duration {
    let mut taken = Duration::ZERO;
    for _ in 0..count {
        let start = Instant::now();
        let store = common::open(path, FlushDiskType::Async);
        taken += start.elapsed();
        store.close().unwrap();
    }
    taken
}

fn benches(criterion: &mut Criterion) {
    let folder = common::scratch();
    let crashed = folder.path().join("crashed");
    let child = Command::new(std::env::current_exe().unwrap()).env(CHILD, &crashed).status();
    assert!(child.unwrap().success());
    let mut group = criterion.benchmark_group("open, 200,000 messages of 1 KiB");
    group.throughput(Throughput::Bytes(MESSAGES * BODY_BYTES as u64));
    let mut ours = |count| open_crashed(&crashed, count);
    let mut limit = |count| scan(&crashed, count);
    common::Turns::bench(&mut group, ("after a crash", &mut ours), ("pread and CRC", &mut limit));
    let clean = folder.path().join("clean");
    let copied = Command::new("cp").args(["-r", "--sparse=always"]).arg(&crashed).arg(&clean).status();
    assert!(copied.unwrap().success());
    common::open(&clean, FlushDiskType::Async).close().unwrap();
    let mut ours = |count| open_clean(&clean, count);
    common::Turns::bench(&mut group, ("after a clean close", &mut ours), ("pread and CRC", &mut limit));
    group.finish();
}

criterion_group! { name = recovery_benches; config = common::criterion(); targets = benches }

fn main() {
    if let Some(path) = std::env::var_os(CHILD) {
        crash(Path::new(&path));
    }
    recovery_benches();
    Criterion::default().configure_from_args().final_summary();
}
