//! Walks the log's records in order, from an offset at which one begins.
//!
//! In:     an offset, a limit, a visitor.
//! Out:    where the walk ended, and why.
//! Always: reads through views of the files. A record that a view cuts off is read again through a larger view.

use std::ops::Range;

use super::Log;
use super::skips::Skips;
use crate::base::error::Result;
use crate::base::units::to_usize;
use crate::log::commit_log::{Step, UNWRITTEN};
use crate::record::RecordView;
use crate::record::decode::DecodeError;
use crate::recovery::log_view::files::Pace;

/// A part of the log, read in order.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Where it ended.
    pub(crate) at: u64,
    /// The store time of the last record that was read.
    pub(crate) last_ms: Option<i64>,
    /// Why it ended.
    pub(crate) stop: Stop,
}

/// Why a walk ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The limit, or no more files.
    Limit,
    /// The visitor had enough. The record that it refused is the next one.
    Visitor,
    /// No record begins there.
    NoRecord(String),
}

impl Log {
    /// Calls `visit` for each record from an offset at which one begins, until `visit` has enough.
    pub(crate) fn walk(&self, from: u64, limit: u64, visit: impl FnMut(&RecordView<'_>) -> bool) -> Result<Walk> {
        self.walk_from(from, None, limit, visit)
    }

    /// Calls `visit` for each record of a range that is not skipped, until `visit` has enough. Returns the offset of the
    /// record that it refused, else where the walk ended. The range begins at a record, and its end is not after the
    /// log's. What cannot be read is left out.
    pub(crate) fn walk_past(
        &self,
        mut skips: Option<Skips>,
        range: Range<u64>,
        mut visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<u64> {
        let mut at = range.start;
        while at < range.end {
            let skip = skips.as_mut().map_or(u64::MAX..u64::MAX, |skips| skips.next(at));
            let until = skip.start.min(range.end);
            let walk = self.walk_within(at, None, until..range.end, &mut visit)?;
            at = match walk.stop {
                Stop::Limit if walk.at == skip.start => skip.end,
                Stop::Limit if walk.at >= until => walk.at,
                // No file holds the rest.
                Stop::Limit | Stop::Visitor => return Ok(walk.at),
                Stop::NoRecord(_) => self.resume_before(walk.at, range.end)?,
            };
        }
        Ok(at)
    }

    pub(super) fn walk_from(
        &self,
        from: u64,
        last_ms: Option<i64>,
        limit: u64,
        visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Walk> {
        self.walk_within(from, last_ms, limit..limit, visit)
    }

    /// Walks up to the first record that begins at or after the first limit. No record reaches across the second one.
    pub(super) fn walk_within(
        &self,
        from: u64,
        mut last_ms: Option<i64>,
        limits: Range<u64>,
        mut visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Walk> {
        let Range { start: limit, end } = limits;
        let (mut at, mut needed, mut pace) = (from, 0, Pace::default());
        while at < limit {
            let until = limit.max(at.saturating_add(needed)).min(end);
            let Some(window) = self.window(at, pace.next(at, until, needed), needed)? else { break };
            let bytes = window.from(at);
            let mut rest: &[u8] = &bytes;
            needed = 0;
            while !rest.is_empty() {
                let why = match window.step(rest, at, self.verify(at, last_ms, false)) {
                    Step::Record(view) => {
                        if !visit(&view) {
                            return Ok(Walk { at, last_ms, stop: Stop::Visitor });
                        }
                        at += u64::from(view.size);
                        last_ms = Some(view.store_timestamp.0);
                        rest = rest.get(to_usize(view.size.into())..).unwrap_or_default();
                        continue;
                    }
                    Step::FileEnd => {
                        at = window.file_end;
                        rest = &[];
                        continue;
                    }
                    Step::Bad(DecodeError::Truncated { needed: more })
                        if window.range.end < window.file_end.min(end) =>
                    {
                        needed = more.into();
                        rest = &[];
                        continue;
                    }
                    Step::Unwritten => UNWRITTEN.to_owned(),
                    Step::Bad(why) => why.to_string(),
                    Step::BadBlank(why) => why,
                };
                return Ok(Walk { at, last_ms, stop: Stop::NoRecord(why) });
            }
        }
        Ok(Walk { at, last_ms, stop: Stop::Limit })
    }
}
