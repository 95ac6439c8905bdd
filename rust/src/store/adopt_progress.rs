//! Takes over how far a RocketMQ broker is with half messages and delayed messages, which its log does not tell.
//!
//! In:     in a replica of a broker, the progress that the broker has stored.
//! Out:    the same progress here, for the next opening, checks and deliveries.
//! Always: a progress only rises, and is never above the end of its queue.
//! Not here: when it may be taken. What a progress has passed must have its records in this log (Python decides).

use super::Store;
use crate::base::error::{Error, Result};
use crate::base::names::SCHEDULE_TOPIC;
use crate::base::units::QueueId;

impl Store {
    /// Raises the progress of the half queue, and of the queues of delayed messages, to that of the broker that a
    /// replica copies. Fails in a store that is not a replica.
    pub fn adopt_progress(&self, half_progress: u64, delays: &[(QueueId, u64)]) -> Result<()> {
        self.shared.check_writable("adopting a progress")?;
        if !self.shared.options.is_replica() {
            let what = "only a replica takes the progress of another broker".to_owned();
            return Err(Error::InvalidOption { option: "progress".into(), what });
        }
        let mut inner = self.shared.inner.lock();
        let half_end = inner.half_queue_end();
        let derived = &mut inner.derived;
        derived.stored_half_progress = derived.stored_half_progress.max(half_progress.min(half_end));
        for (queue_id, progress) in delays {
            let reached = (*progress).min(derived.dispatcher.queues.next_of(SCHEDULE_TOPIC, *queue_id));
            let own = derived.delays.entry(*queue_id).or_default();
            *own = reached.max(*own);
        }
        Ok(())
    }
}
