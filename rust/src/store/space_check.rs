//! Checks whether the store can take messages now.
//!
//! In:     an open store.
//! Out:    nothing, or the error with which a send would fail: a poisoned store, a full disk, too many open files.
//! Always: takes the space that a send would take, so that freed space is noticed without a send.

use super::batch::Wait;
use super::{PoisonOnPanic, Store};
use crate::base::error::{Error, Result};
use crate::log::commit_log::Urgency;

/// At most this part of a log file is taken, so that a check does not begin a file long before a message needs it.
const FILE_PART: u64 = 8;

impl Store {
    /// Checks that a large message could be sent now, and takes space for it. Fails with the error that a send would
    /// get.
    pub fn check_room(&self) -> Result<()> {
        let shared = &self.shared;
        shared.check_appends("sending")?;
        let _guard = PoisonOnPanic(shared);
        let mut inner = shared.lock_to_send(Wait::Yes)?;
        let part = shared.log.segments.file_size() / FILE_PART;
        let size = u64::from(shared.options.max_message_size).min(part);
        let urgency = Urgency::Send(inner.derived.ends_to_come().with(u32::try_from(size).unwrap_or(u32::MAX)));
        let appender = inner.appender.as_mut().ok_or(Error::ReadOnly { what: "sending" })?;
        appender.begin(shared.clock.wall());
        if appender.is_ready(urgency) {
            return Ok(());
        }
        appender.make_room(urgency).map_err(|error| shared.poison_on(error))
    }
}
