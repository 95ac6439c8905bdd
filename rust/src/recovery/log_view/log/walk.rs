//! Walks the log's records in order, from an offset at which one begins.
//!
//! In:     an offset, a limit, a visitor.
//! Out:    where the walk ended, and why.
//! Always: reads through views of the files. A record that a view cuts off is read again through a larger view.

use super::Log;
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

    pub(super) fn walk_from(
        &self,
        from: u64,
        mut last_ms: Option<i64>,
        limit: u64,
        mut visit: impl FnMut(&RecordView<'_>) -> bool,
    ) -> Result<Walk> {
        let (mut at, mut needed, mut pace) = (from, 0, Pace::default());
        while at < limit {
            let Some(window) = self.window(at, pace.next(at, limit, needed), needed)? else { break };
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
                        if window.range.end < window.file_end.min(limit) =>
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
