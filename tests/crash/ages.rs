//! Checks the ages of log files, which decide what retention removes.
//!
//! In:     the simulation's own clocks, store times, modification times.
//! Out:    the promise that is broken.
//! Always: follows docs/operate/retention.md: without jumps, a file's age is the time since the next record was stored,
//!         or since the file was last written, whichever is shorter. While the store is open, no jump makes a file
//!         older than the longer one. But a clock that was before the newest record at the opening may be set right.

use std::collections::BTreeMap;

use txstore::base::clock::Clock;
use txstore::base::options::StoreOptions;
use txstore::storage::Storage;
use txstore::storage::memory::Memory;
use txstore::store::retention::LogFile;
use txstore::store::{Store, StoredRecord};

use crate::history::{Held, hold};
use crate::machine::Machine;

/// The ages of full files, by their first offsets.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    full: BTreeMap<u64, Age>,
}

/// The age of a file at some moment.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_field_names)] // Units are last.
struct Age {
    /// Its age, if no clock ever jumped.
    exact_ms: i64,
    /// Its greatest age by any clock.
    most_ms: i64,
    /// The moment on the monotonic clock.
    at_ms: i64,
}

impl Ages {
    /// Returns the ages that an opening found.
    pub fn opened(memory: &Memory, log: &[StoredRecord], options: &StoreOptions, clock: &dyn Clock) -> Self {
        let file_size = options.commit_log_file_size.unwrap();
        let (wall_ms, now_ms) = (clock.wall().0, clock.monotonic_ms());
        let mut full = BTreeMap::new();
        let records: Vec<(u64, i64)> = (log.iter().map(|record| record.view().unwrap()))
            .map(|view| (view.physical_offset.0 / file_size * file_size, view.store_timestamp.0))
            .collect();
        for ((file, _), (next, stored_ms)) in records.iter().zip(&records[1.min(records.len())..]) {
            if file == next {
                continue;
            }
            let modified = memory.modified(&format!("commitlog/{file:020}")).ok().flatten();
            let times: Vec<i64> = [Some(*stored_ms), modified.map(|time| time.0)].into_iter().flatten().collect();
            let newest_ms = records.last().map_or(wall_ms, |(_, newest_ms)| wall_ms.max(*newest_ms));
            let exact_ms = times.iter().map(|ms| wall_ms - ms).min().unwrap_or(0);
            let most_ms = times.iter().map(|ms| newest_ms - ms).max().unwrap_or(0).max(0);
            full.insert(*file, Age { exact_ms, most_ms, at_ms: now_ms });
        }
        Self { full }
    }

    /// Notes the files that became full.
    pub fn note_full(&mut self, store: &Store, options: &StoreOptions, now_ms: i64) {
        let file_size = options.commit_log_file_size.unwrap();
        let Some(stat) = (!store.is_closed()).then(|| store.stat().unwrap()) else { return };
        // The log ends in the file with the last record, or at its end.
        let last = stat.max_physical_offset.saturating_sub(1) / file_size * file_size;
        let mut file = stat.min_physical_offset;
        while file < last {
            self.full.entry(file).or_insert(Age { exact_ms: 0, most_ms: 0, at_ms: now_ms });
            file += file_size;
        }
        self.full.retain(|file, _| (stat.min_physical_offset..last).contains(file));
    }
}

impl Machine {
    /// Checks T13: no file is older than at the opening, or when it became full, and by the monotonic clock since then.
    pub fn ages_are_right(&self, files: &[LogFile]) -> Held {
        let now_ms = self.clock.monotonic_ms();
        for file in files {
            // No file is younger than one after it.
            let greatest = |age_ms: fn(&Age) -> i64| {
                let after = self.ages.full.range(file.first..).map(|(_, age)| age_ms(age) + now_ms - age.at_ms);
                after.max()
            };
            let Some((exact_ms, most_ms)) = greatest(|age| age.exact_ms).zip(greatest(|age| age.most_ms)) else {
                continue;
            };
            // A removal that failed may have removed the file, and with it its modification time.
            let is_exact = !self.history.jumped && !self.is_faulty();
            let fits = if is_exact { file.age_ms == exact_ms } else { (0..=most_ms).contains(&file.age_ms) };
            hold(fits, "T13", || format!("{file:?} is {exact_ms} ms old, {most_ms} at most: {:?}", self.ages))?;
        }
        Ok(())
    }
}
