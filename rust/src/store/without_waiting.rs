//! Offers calls that never wait, for callers that hold another lock, such as Python's interpreter lock.
//!
//! In:     the same calls as the store's.
//! Out:    the same results, or `Error::WouldWait` if the call would have to wait for a lock or probably for the disk.
//!         Then nothing has changed, and the caller uses the store's call of the same name.
//! Always: locks are tried, never waited for. Calls that write take an argument that says whether they may wait.

use super::{Store, StoredRecord, Wait};
use crate::base::error::{Error, Result};
use crate::base::units::{QueueId, QueueOffset};
use crate::filter::{ReadBudget, Selector};

/// The calls of a store that never wait.
#[derive(Clone, Copy, Debug)]
pub struct Now<'s>(&'s Store);

impl Store {
    /// Returns the calls that never wait.
    pub const fn now(&self) -> Now<'_> {
        Now(self)
    }
}

impl Now<'_> {
    /// Reads messages of a queue that were stored recently. Would wait if a selector finds none among the next ones.
    pub fn read(
        self,
        topic: &str,
        queue_id: QueueId,
        queue_offset: QueueOffset,
        max_messages: usize,
        selector: Option<&Selector>,
    ) -> Result<(Vec<StoredRecord>, QueueOffset)> {
        self.check_writer()?;
        let mut budget = ReadBudget::without_waiting(selector);
        let read = self.0.read_in((topic, queue_id), queue_offset, max_messages, selector, &mut budget, Wait::No);
        // The call that may wait gets the same error with more detail.
        let (found, next) = read.map_err(|_| Error::WouldWait)?;
        if found.is_empty() && budget.entries() == 0 {
            return Err(Error::WouldWait);
        }
        Ok((found, next))
    }

    /// Returns the first queue offset, and the queue offset after the last visible entry.
    pub fn queue_range(self, topic: &str, queue_id: QueueId) -> Result<(u64, u64)> {
        self.check_writer()?;
        let shared = &self.0.shared;
        shared.check_open()?;
        shared.range_in(&*shared.inner.try_lock().ok_or(Error::WouldWait)?, topic, queue_id)
    }

    /// Returns the queue offset up to which a group has acknowledged a queue, if it has.
    pub fn consumer_offset(self, topic: &str, group: &str, queue_id: QueueId) -> Result<Option<u64>> {
        self.check_writer()?;
        self.0.shared.check_open()?;
        Ok(self.0.shared.configuration.offsets.try_lock().ok_or(Error::WouldWait)?.get(topic, group, queue_id))
    }

    /// Sets the queue offset up to which a group has acknowledged a queue, in memory.
    pub fn set_consumer_offset(self, topic: &str, group: &str, queue_id: QueueId, queue_offset: u64) -> Result<()> {
        let shared = &self.0.shared;
        shared.check_writable("acknowledging")?;
        let inner = shared.inner.try_lock().ok_or(Error::WouldWait)?;
        let mut offsets = shared.configuration.offsets.try_lock().ok_or(Error::WouldWait)?;
        super::configuration::check_acknowledged(&inner, topic, queue_id, queue_offset)?;
        offsets.set(topic, group, queue_id, queue_offset);
        Ok(())
    }

    /// Makes a transaction due again in `in_ms`. See `Store::look_again`.
    pub fn look_again(self, half_queue_offset: u64, in_ms: i64, asked: bool) -> Result<bool> {
        let shared = &self.0.shared;
        shared.check_open()?;
        let mut inner = shared.inner.try_lock().ok_or(Error::WouldWait)?;
        shared.look_again_in(&mut inner, half_queue_offset, in_ms, asked)
    }

    /// Notes that a half's local transaction has ended. See `Store::local_transaction_ended`.
    pub fn local_transaction_ended(self, half_queue_offset: u64) -> Result<()> {
        let shared = &self.0.shared;
        shared.check_open()?;
        let mut inner = shared.inner.try_lock().ok_or(Error::WouldWait)?;
        shared.local_transaction_ended_in(&mut inner, half_queue_offset);
        Ok(())
    }

    /// Fails with `WouldWait` in a reader, because it must first read what its writer has appended.
    fn check_writer(self) -> Result<()> {
        if self.0.is_read_only() { Err(Error::WouldWait) } else { Ok(()) }
    }
}
