//! A search by time reads samples. It loses no record, also where a broker's clock stepped back.

use std::sync::Arc;

use crate::base::units::{PhysicalOffset, TimestampMs, to_u64};
use crate::index::consume_queue::Entry;
use crate::record::Draft;
use crate::recovery::log_view::Log;
use crate::storage::memory::Memory;
use crate::storage::{OpenMode, Storage};

const HOST: &str = "127.0.0.1:10911";
const FILE: u64 = 32 << 10;
const FILES: u64 = 4;

/// The store time of each record, and where it begins. Four files of 32 KiB; samples are 1 KiB apart in tests.
struct Times {
    log: Log,
    records: Vec<(u64, i64)>,
    end: u64,
}

/// Returns a log in which the record at an offset is stored `step(offset, …)` ms after the one before.
fn log_of(seed: u64, mut step: impl FnMut(u64, &mut dyn FnMut(u64) -> u64) -> i64) -> Times {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut below = move |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let storage = Arc::new(Memory::new());
    storage.create_dir("commitlog").unwrap();
    storage.create_dir("consumequeue/orders/0").unwrap();
    let (mut at, mut records, mut entries, mut ms) = (0, Vec::new(), Vec::new(), 1_000_000);
    for file in 0..FILES {
        let open = storage.open(&format!("commitlog/{:020}", file * FILE), OpenMode::Create).unwrap();
        open.set_len(FILE).unwrap();
        loop {
            let body = vec![b'x'; usize::try_from(below(120)).unwrap()];
            ms += step(at, &mut below);
            let draft = Draft {
                born_timestamp: TimestampMs(ms),
                born_host: HOST.parse().unwrap(),
                store_host: HOST.parse().unwrap(),
                body: &body,
                ..Draft::plain()
            };
            let bytes = draft.record_at(at, to_u64(records.len()), ms);
            let end = at + to_u64(bytes.len());
            if end + 8 > (file + 1) * FILE {
                let rest = u32::try_from((file + 1) * FILE - at).unwrap();
                open.write_at(&crate::record::encode::blank(rest), at - file * FILE).unwrap();
                at = (file + 1) * FILE;
                break;
            }
            open.write_at(&bytes, at - file * FILE).unwrap();
            let size = u32::try_from(bytes.len()).unwrap();
            entries.extend(Entry { physical_offset: PhysicalOffset(at), size, tags_code: 0 }.to_bytes());
            records.push((at, ms));
            at = end;
        }
    }
    let queue = storage.open("consumequeue/orders/0/00000000000000000000", OpenMode::Create).unwrap();
    queue.set_len(to_u64(entries.len())).unwrap();
    queue.write_at(&entries, 0).unwrap();
    Times { log: Log::open_with(storage).unwrap(), records, end: at }
}

impl Times {
    /// Asserts that no record outside of the range found is in the time range. Returns how many bytes the range has.
    fn check(&self, times: std::ops::Range<i64>, about: &str) -> u64 {
        let found = self.log.time_range(0..self.end, &times).unwrap();
        for (at, ms) in &self.records {
            let is_lost = times.contains(ms) && !found.contains(at);
            assert!(!is_lost, "{about}: the record at {at}, stored at {ms}, is in {times:?} and not in {found:?}");
        }
        let begins =
            |at: u64| at == self.end || at == found.start || self.records.iter().any(|(other, _)| *other == at);
        assert!(begins(found.end), "{about}: no record begins at {}", found.end);
        assert!(self.records.iter().any(|(at, _)| *at == found.start) || found.start == self.end, "{about}: {found:?}");
        found.end.saturating_sub(found.start)
    }
}

#[test]
fn no_record_of_a_time_range_is_lost() {
    for seed in 0..60 {
        let forward = log_of(seed, |_, below| below(20).cast_signed());
        // The clock steps back or forward by up to a minute, at most once in 2 KiB.
        let mut stepped_at = 0;
        let stepping = log_of(seed, |at, below| {
            if at < stepped_at + (2 << 10) || below(40) != 0 {
                return below(20).cast_signed();
            }
            stepped_at = at;
            below(120_000).cast_signed() - 60_000
        });
        for (name, times) in [("forward", &forward), ("stepping", &stepping)] {
            let all = times.records.iter().map(|(_, ms)| *ms);
            let (first, last) = (all.clone().min().unwrap(), all.max().unwrap());
            let span = u64::try_from(last - first).unwrap();
            for part in 0..20 {
                let start = first + (span * part / 20).cast_signed();
                let about = format!("{name}, seed {seed}");
                times.check(start..start + 200, &about);
                times.check(start..i64::MAX, &about);
                times.check(i64::MIN..start, &about);
            }
            times.check(last + 1..i64::MAX, name);
            times.check(i64::MIN..first, name);
        }
    }
}

#[test]
fn a_short_time_is_a_small_part_of_the_log() {
    let times = log_of(7, |_, below| below(20).cast_signed());
    let (_, last) = times.records[times.records.len() - 1];
    let whole = times.check(i64::MIN..i64::MAX, "all");
    assert_eq!(whole, FILE * FILES);
    // 16 samples of 1 KiB are added at each end.
    for times_asked in [last - 200..i64::MAX, i64::MIN..1_000_200] {
        let bytes = times.check(times_asked.clone(), "short");
        assert!(bytes < 24 << 10, "{bytes} bytes for {times_asked:?}");
    }
    let middle = times.records[times.records.len() / 2].1;
    let bytes = times.check(middle..middle + 100, "middle");
    assert!(bytes < 44 << 10, "{bytes} bytes");
}
