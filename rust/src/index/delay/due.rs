//! Computes when a delayed message is due, on the monotonic clock.
//!
//! In:     the wall-clock time in its queue entry, and both clocks when this process first saw that entry.
//! Out:    in how many milliseconds it is due.
//! Always: a jump of the wall clock after that moment changes nothing, and from that moment no message waits longer
//!         than its level.

use std::collections::BTreeMap;

use super::level_of;
use crate::base::units::{QueueId, TimestampMs};

/// Differences between the clocks that are closer than this are treated as equal, because a clock is slewed, and a
/// thread may be interrupted between two readings.
const SAME_MS: i64 = 10;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The wall clock.
    pub wall: TimestampMs,
    /// The monotonic clock.
    pub monotonic_ms: i64,
}

impl Moment {
    const fn difference_ms(self) -> i64 {
        self.wall.0.saturating_sub(self.monotonic_ms)
    }
}

/// When entries were first seen, by queues of the schedule topic.
#[derive(Debug)]
pub struct DueTimes {
    /// When the store was opened. Entries in its files were first seen then.
    opened: Moment,
    /// Entries that this process appended: the first queue offset of each run with the same clock difference.
    appended: BTreeMap<QueueId, Vec<(u64, Moment)>>,
}

impl DueTimes {
    /// Returns due times for a store that is opened now.
    pub const fn new(opened: Moment) -> Self {
        Self { opened, appended: BTreeMap::new() }
    }

    /// Notes that this process appends an entry.
    pub fn appended(&mut self, queue_id: QueueId, queue_offset: u64, now: Moment) {
        let moments = self.appended.entry(queue_id).or_default();
        let is_known =
            moments.last().is_some_and(|(_, last)| (last.difference_ms() - now.difference_ms()).abs() < SAME_MS);
        if !is_known {
            moments.push((queue_offset, now));
        }
    }

    /// Returns in how many milliseconds an entry with the wall-clock time `entry_ms` is due. 0 means now.
    pub fn in_ms(&self, queue_id: QueueId, queue_offset: u64, entry_ms: i64, monotonic_ms: i64) -> i64 {
        let appended = self.appended.get(&queue_id).and_then(|moments| {
            let (_, moment) = moments.iter().rev().find(|(from, _)| *from <= queue_offset)?;
            Some(entry_ms.saturating_sub(moment.difference_ms()))
        });
        let due_ms = appended.unwrap_or_else(|| {
            let waits_ms = entry_ms.saturating_sub(self.opened.wall.0);
            let most_ms = level_of(queue_id).unwrap_or(i64::MAX);
            self.opened.monotonic_ms.saturating_add(waits_ms.min(most_ms))
        });
        due_ms.saturating_sub(monotonic_ms).max(0)
    }

    /// Forgets entries that were delivered.
    pub fn forget_below(&mut self, queue_id: QueueId, queue_offset: u64) {
        if let Some(moments) = self.appended.get_mut(&queue_id) {
            let needed = moments.iter().rposition(|(from, _)| *from <= queue_offset).unwrap_or(0);
            moments.drain(..needed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::delay::level_ms;

    const QUEUE: QueueId = QueueId(0);
    const LEVEL_MS: i64 = 1_000;
    const WALL: i64 = 1_700_000_000_000;

    fn at(wall_ms: i64, monotonic_ms: i64) -> Moment {
        Moment { wall: TimestampMs(wall_ms), monotonic_ms }
    }

    #[test]
    fn what_an_opening_found_waits_for_its_time_and_never_longer_than_its_level() {
        let times = DueTimes::new(at(WALL, 500));
        assert_eq!(level_ms(1), LEVEL_MS);
        for (entry_ms, in_ms) in [(400, 400), (-400, 0), (1_000, 1_000), (1_001, LEVEL_MS), (i64::MAX - WALL, LEVEL_MS)]
        {
            assert_eq!(times.in_ms(QUEUE, 7, WALL + entry_ms, 500), in_ms);
            assert_eq!(times.in_ms(QUEUE, 7, WALL + entry_ms, 600), (in_ms - 100).max(0));
        }
        let of_a_broker = QueueId(40);
        assert_eq!(
            times.in_ms(of_a_broker, 7, WALL + 999_999_999, 500),
            999_999_999,
            "a level that only a broker knows"
        );
    }

    #[test]
    fn what_was_appended_waits_by_the_clocks_of_then() {
        let mut times = DueTimes::new(at(WALL, 0));
        for (queue_offset, wall_ms) in [(3, WALL), (4, WALL + 5), (5, WALL + 3_600_000), (6, WALL - 3_600_000)] {
            times.appended(QUEUE, queue_offset, at(wall_ms, 100));
            assert_eq!(times.in_ms(QUEUE, queue_offset, wall_ms + LEVEL_MS, 100) / SAME_MS, LEVEL_MS / SAME_MS);
        }
        assert_eq!(times.appended[&QUEUE].len(), 3, "five milliseconds are no jump");
        times.forget_below(QUEUE, 5);
        assert_eq!(times.appended[&QUEUE].len(), 2);
        assert_eq!(times.in_ms(QUEUE, 5, WALL + 3_600_000 + LEVEL_MS, 600), LEVEL_MS - 500);
        assert_eq!(times.in_ms(QUEUE, 6, WALL - 3_600_000 + LEVEL_MS, 600), LEVEL_MS - 500);
    }
}
