//! Shared by the benches: the limits themselves, stores in temporary folders, and ratios of alternating measurements.
//!
//! In:     sizes and counts.
//! Out:    durations, and a line for each ratio.
//! Always: a limit writes as many bytes, in pieces of the same size, to the same file system, as the measured code.
//! Not here: what is compared.
#![allow(dead_code)] // Each bench is a crate of its own and uses only a part.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]
#![allow(unreachable_pub, clippy::as_conversions, clippy::needless_pass_by_value)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkGroup, Criterion, SamplingMode};
use txstore::base::options::{FlushDiskType, StoreOptions};
use txstore::record::message::{Envelope, Parts};
use txstore::store::Store;

/// Size of a file in bytes, as of a commit log file.
const FILE_BYTES: u64 = 1 << 30;
/// Size of one write of zeros in bytes, as in the store.
const ZEROS_BYTES: usize = 1 << 20;

/// The pages of a file that a limit writes to.
#[derive(Clone, Copy, Debug)]
pub enum Pages {
    /// Reserved with fallocate and never written before, so each write creates its own.
    Fresh,
    /// As fresh ones, but zeros are written ahead of the writer, so many bytes in one call, as a store does.
    Zeros(u64),
    /// Written before, and in the page cache: what a store would have if it used its old files again.
    Recycled,
}

/// Writes pieces of one size to fresh pages. Returns the time of the writes alone.
///
/// `sync_every`: the interval at which another thread makes the data durable, as a store's own thread does.
pub fn write_fresh(directory: &Path, writes: u64, size: usize, sync_every: Option<Duration>) -> Duration {
    write_to(Pages::Fresh, directory, writes, size, sync_every)
}

/// Writes pieces of one size to pages of a kind, as `write_fresh` does.
pub fn write_to(pages: Pages, directory: &Path, writes: u64, size: usize, sync_every: Option<Duration>) -> Duration {
    let record = bytes(size);
    let per_file = FILE_BYTES / size as u64;
    let files: Vec<File> = (0..writes.div_ceil(per_file))
        .map(|number| {
            let file = create(&directory.join(format!("limit-{number}")));
            let flags = rustix::fs::FallocateFlags::empty();
            let length = FILE_BYTES.min(writes * size as u64);
            rustix::fs::fallocate(&file, flags, 0, length).unwrap();
            if matches!(pages, Pages::Recycled) {
                write_zeros(&file, 0, length, &vec![0; 64 << 10]);
                file.sync_data().unwrap();
            }
            file
        })
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(pause) = sync_every {
            let (files, done) = (&files, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(pause);
                    for file in files {
                        file.sync_data().unwrap();
                    }
                }
            });
        }
        let zeros = if let Pages::Zeros(block) = pages { vec![0; usize::try_from(block).unwrap()] } else { Vec::new() };
        let start = Instant::now();
        let mut zeros_end = 0;
        for number in 0..writes {
            let (file, at) = (&files[usize::try_from(number / per_file).unwrap()], number % per_file * size as u64);
            if let Pages::Zeros(block) = pages {
                let end = at + size as u64;
                if at == 0 || zeros_end < end {
                    let from = if at == 0 { 0 } else { zeros_end };
                    zeros_end = (end / block + 1) * block;
                    write_zeros(file, from, zeros_end, &zeros);
                }
            }
            file.write_all_at(&record, at).unwrap();
        }
        let taken = start.elapsed();
        done.store(true, Ordering::Relaxed);
        taken
    })
}

fn write_zeros(file: &File, from: u64, to: u64, zeros: &[u8]) {
    for at in (from..to).step_by(zeros.len()) {
        let length = zeros.len().min(usize::try_from(to - at).unwrap());
        file.write_all_at(&zeros[..length], at).unwrap();
    }
}

/// Writes pieces of one size, each made durable, to a file that already holds zeros. Returns the time of each.
pub fn write_durably(directory: &Path, writes: u64, size: usize) -> Vec<Duration> {
    let record = bytes(size);
    let file = create(&directory.join("limit-durable"));
    let total = writes * size as u64;
    write_zeros(&file, 0, total, &vec![0; ZEROS_BYTES]);
    file.sync_all().unwrap();
    (0..writes)
        .map(|number| {
            let start = Instant::now();
            file.write_all_at(&record, number * size as u64).unwrap();
            file.sync_data().unwrap();
            start.elapsed()
        })
        .collect()
}

/// Copies pieces of one size to fresh pages of memory without a file. Returns the time of the copies alone.
pub fn copy_fresh(copies: u64, size: usize) -> Duration {
    let record = bytes(size);
    let per_block = FILE_BYTES / size as u64;
    let mut taken = Duration::ZERO;
    for first in (0..copies).step_by(usize::try_from(per_block).unwrap()) {
        let here = per_block.min(copies - first);
        // The system provides as much new memory, and gets it back at the end of the round.
        let mut block = Vec::with_capacity(usize::try_from(here).unwrap() * size);
        let start = Instant::now();
        for _ in 0..here {
            block.extend_from_slice(&record);
        }
        taken += start.elapsed();
        std::hint::black_box(&block);
    }
    taken
}

/// Reads pieces of one size from a file in the page cache, in order. Returns the time.
pub fn read_warm(directory: &Path, reads: u64, size: usize) -> Duration {
    write_fresh(directory, reads, size, None);
    let file = File::options().read(true).open(directory.join("limit-0")).unwrap();
    let mut record = vec![0; size];
    let per_file = FILE_BYTES / size as u64;
    let start = Instant::now();
    for number in 0..reads {
        file.read_exact_at(&mut record, number % per_file.min(reads) * size as u64).unwrap();
        std::hint::black_box(&record);
    }
    start.elapsed()
}

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

/// Returns bytes that no file system can compress.
pub fn bytes(size: usize) -> Vec<u8> {
    let mut state = 1_u32;
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .collect()
}

/// Creates a folder that is removed when its value is dropped.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("txstore-bench-").tempdir().unwrap()
}

/// Opens a store in a folder. Half messages are synced only if everything is.
pub fn open(directory: &Path, flush_disk_type: FlushDiskType) -> Store {
    let options = StoreOptions {
        flush_disk_type,
        transaction_flush_disk_type: flush_disk_type,
        transaction_timeout_ms: 0,
        ..StoreOptions::default()
    };
    Store::open(directory, options).unwrap()
}

/// Returns the envelope of all messages of the benches.
pub fn envelope() -> Envelope {
    Envelope::new(&Parts { topic: "bench", ..Parts::default() }).unwrap()
}

/// Configures Criterion for runs that each create their own store: few samples, each a few times.
pub fn criterion() -> Criterion {
    let seconds = |number| Duration::from_secs(number);
    let criterion = Criterion::default().warm_up_time(seconds(1)).measurement_time(seconds(3)).sample_size(10);
    criterion.configure_from_args()
}

/// The results of alternating measurements: the times of txstore and of the comparison, for the same number of items.
#[derive(Debug)]
pub struct Turns {
    ours: &'static str,
    other: &'static str,
    ratios: Vec<f64>,
}

impl Turns {
    /// Runs a bench whose every sample measures txstore, then the comparison. Prints the median ratio of their speeds.
    ///
    /// Criterion's own results are those of txstore. Both functions receive the number of items and return the time
    /// they took.
    pub fn bench(
        group: &mut BenchmarkGroup<'_, criterion::measurement::WallTime>,
        ours: (&'static str, &mut dyn FnMut(u64) -> Duration),
        other: (&'static str, &mut dyn FnMut(u64) -> Duration),
    ) {
        let mut turns = Self { ours: ours.0, other: other.0, ratios: Vec::new() };
        group.sampling_mode(SamplingMode::Flat);
        group.bench_function(ours.0, |bencher| {
            bencher.iter_custom(|count| {
                let ours = ours.1(count);
                let other = other.1(count);
                // The time of a few items is mostly startup cost.
                if other > Duration::from_millis(2) {
                    turns.ratios.push(other.as_secs_f64() / ours.as_secs_f64());
                }
                ours
            });
        });
        turns.print();
    }

    fn print(mut self) {
        self.ratios.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (self.ratios.first(), self.ratios.last()) else { return };
        let median = self.ratios[self.ratios.len() / 2];
        println!("ratio: {} = {median:.2} ({least:.2} to {most:.2}) x {}\n", self.ours, self.other);
    }
}
