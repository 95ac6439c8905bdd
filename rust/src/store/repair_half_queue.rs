//! Repairs a half queue that ends before an offset that an op message names, because half messages were lost.
//!
//! In:     an open store whose log was repaired.
//! Out:    a half queue that continues after every named offset. Otherwise the next half message would get an offset
//!         whose op is already in the log, and a broker would consider it finished.
//! Always: runs only if an op names such an offset, and before the first send.

use super::append::{NewHalfMessage, NewMessage};
use super::batch::Wait;
use super::{Decider, End, EndKind, Store};
use crate::base::error::Result;
use crate::base::names::REPAIR_TOPIC;
use crate::base::units::QueueId;
use crate::index::consume_queue::Entry;
use crate::record::message::{Envelope, Parts};
use crate::transaction::HalfCopy;

/// The maximum number of skipped offsets. No store writes an op that names an offset further after the end.
const LOST_MAX: u64 = 1 << 20;

impl Store {
    /// Uses the last named offset for a transaction that is rolled back at once.
    pub(super) fn repair_half_queue(&self) -> Result<()> {
        let mut inner = self.shared.inner.lock();
        let (next, floor) = (inner.half_queue_end(), inner.derived.replay.named_end());
        if self.shared.options.read_only || self.shared.options.is_replica() || next >= floor || floor - next > LOST_MAX
        {
            return Ok(());
        }
        let slot = inner.derived.half_slot;
        for _ in next + 1..floor {
            inner.derived.dispatcher.queues.push(slot, Entry::PADDING);
        }
        drop(inner);
        let envelope = Envelope::new(&Parts { topic: REPAIR_TOPIC, ..Parts::default() })?;
        let message = NewMessage { envelope: &envelope, body: b"repair", queue_id: QueueId(0) };
        let half = self
            .prepare(&NewHalfMessage { message, group: REPAIR_TOPIC, unique_id: None, owner: 0 }, Wait::Yes)?
            .acknowledged()?;
        let half = HalfCopy { queue_offset: half.queue_offset.0, physical_offset: half.physical_offset.0 };
        let (kind, group) = (EndKind::RollBack, Some(REPAIR_TOPIC.into()));
        self.end_transaction(&End { half, kind, transaction_id: None, group, decider: Decider::Producer }, Wait::Yes)?;
        Ok(())
    }
}
