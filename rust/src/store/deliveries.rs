//! Notes how often messages were delivered to groups that acknowledge them one by one.
//!
//! In:     what a group's queue hands out.
//! Out:    the counts again after the end of the process.
//! Always: a failure never keeps a message from being delivered. It is only counted from 1 again after a crash.
//! Not here: when a message was delivered too often (`server::pop`).

use super::Store;
use crate::base::error::Result;
use crate::index::deliveries::{Consumed, Counts, Deliveries};

impl Store {
    /// Takes what earlier runs noted of a queue: how often its messages were delivered. The second call has nothing.
    pub fn earlier_deliveries(&self, queue: &Consumed) -> Result<Counts> {
        self.with_deliveries(|deliveries| Ok(deliveries.take(queue)))
    }

    /// Notes how often messages of a queue were delivered, in the page cache. `all`: no other message of the queue
    /// counts any more.
    pub fn note_deliveries(&self, queue: &Consumed, all: bool, counts: &[(u64, u32)]) -> Result<()> {
        self.with_deliveries(|deliveries| deliveries.note(self.shared.storage.as_ref(), queue, all, counts))
    }

    /// Begins to replace the files of deliveries if they are out of date. Returns whether it did: then the caller notes
    /// all counts of all queues that were read since the opening, and calls `end_deliveries`.
    pub fn replace_deliveries(&self) -> Result<bool> {
        self.with_deliveries(|deliveries| deliveries.replace(self.shared.storage.as_ref()))
    }

    /// Removes the files that were replaced.
    pub fn end_deliveries(&self) -> Result<()> {
        self.with_deliveries(|deliveries| deliveries.end(self.shared.storage.as_ref()))
    }

    fn with_deliveries<T>(&self, call: impl FnOnce(&mut Deliveries) -> Result<T>) -> Result<T> {
        self.shared.check_writable("noting deliveries")?;
        let mut deliveries = self.shared.deliveries.lock();
        if let Some(deliveries) = deliveries.as_mut() {
            return call(deliveries);
        }
        let offsets = self.shared.configuration.offsets.lock();
        let committed = |queue: &Consumed| offsets.get(&queue.topic, &queue.name, queue.queue_id);
        let loaded = Deliveries::load(self.shared.storage.as_ref(), committed)?;
        drop(offsets);
        call(deliveries.insert(loaded))
    }
}
