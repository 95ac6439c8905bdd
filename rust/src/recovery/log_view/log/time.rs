//! Finds the part of the log that can hold records of a time range.
//!
//! In:     a range of the log, a range of store times.
//! Out:    a smaller range, between records, outside of which no record is in the time range.
//! Always: reads a few KiB of each `STEP` bytes. A clock that steps back loses nothing, unless it ran ahead only while
//!         less than `STEP` bytes were written, or these took much longer than those around them: between two samples
//!         time may pass as it does between `AROUND` samples on both sides together.
//! Not here: which records of that range are in the time range.

use std::ops::Range;

use super::Log;
use super::boundary::{SAMPLE, Sample};
use crate::base::error::Result;

/// Bytes of the log between two samples.
const STEP: u64 = if cfg!(test) { 1 << 10 } else { 1 << 20 };
/// The maximum number of samples. They are further apart in a log of more than 64 GiB.
const SAMPLES_MAX: u64 = 1 << 16;
/// How many samples on each side tell how much time may pass between two samples.
const AROUND: usize = 8;

impl Log {
    /// Returns the part of a range between two records that can hold records of the time range. Its ends are between
    /// records, too.
    pub fn time_range(&self, range: Range<u64>, store_ms: &Range<i64>) -> Result<Range<u64>> {
        if *store_ms == (i64::MIN..i64::MAX) || range.is_empty() {
            return Ok(range);
        }
        let samples = self.samples(&range)?;
        let reaches = |at: &usize| {
            let latest = latest(&samples, *at);
            latest.is_none_or(|latest| latest >= store_ms.start)
        };
        let begin = (0..samples.len()).find(reaches).filter(|first| *first > 0).and_then(|first| samples.get(first));
        let begin = begin.map_or(range.start, |sample| sample.physical_offset);
        let is_early = |at: &usize| earliest(&samples, *at).is_some_and(|earliest| earliest < store_ms.end);
        let after = (0..samples.len()).rfind(is_early).map_or(0, |last| last + 1);
        let end = samples.get(after).map_or(range.end, |sample| sample.physical_offset);
        Ok(begin..end.max(begin))
    }

    /// Returns samples of a range at even distances, where each file begins, and the last record. Where no record was
    /// found there is none; its records belong to the sample before.
    fn samples(&self, range: &Range<u64>) -> Result<Vec<Sample>> {
        let Some(queues) = self.queue_files()? else { return Ok(Vec::new()) };
        let step = STEP.max((range.end - range.start) / SAMPLES_MAX);
        let (mut samples, mut at) = (Vec::new(), range.start);
        while let Some(file) = self.files.file_of(at).filter(|_| at < range.end) {
            for bytes in [SAMPLE / 4, SAMPLE] {
                if let Some(sample) = self.sample(at..range.end, &queues, bytes, &mut |_| true)? {
                    samples.push(sample);
                    break;
                }
            }
            at = at.saturating_add(step).min(file.end);
        }
        let last = self.last_before(range.end)?;
        samples.extend(
            last.filter(|last| samples.last().is_some_and(|other| other.physical_offset < last.physical_offset)),
        );
        Ok(samples)
    }
}

/// Returns the latest time that a record between a sample and the next one may have; `None`: any.
fn latest(samples: &[Sample], at: usize) -> Option<i64> {
    let (sample, next) = (samples.get(at)?, samples.get(at + 1)?);
    Some(sample.store_ms.max(next.store_ms).saturating_add(passes(samples, at)))
}

/// Returns the earliest time that a record between a sample and the next one, or the end, may have.
fn earliest(samples: &[Sample], at: usize) -> Option<i64> {
    let sample = samples.get(at)?;
    let next = samples.get(at + 1).map_or(sample.store_ms, |next| next.store_ms);
    Some(sample.store_ms.min(next).saturating_sub(passes(samples, at)))
}

/// Returns how much time may pass between a sample and the next one, in milliseconds.
fn passes(samples: &[Sample], at: usize) -> i64 {
    let around = samples.get(at.saturating_sub(AROUND)..samples.len().min(at + AROUND + 1)).unwrap_or_default();
    let steps = around.array_windows().map(|[one, next]| next.store_ms.saturating_sub(one.store_ms).max(0));
    steps.fold(0, i64::saturating_add)
}
