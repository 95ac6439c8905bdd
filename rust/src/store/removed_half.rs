//! Answers the end of a transaction whose half message retention has removed.
//!
//! In:     an end whose half message was not found.
//! Out:    the outcome, if a final message or a discarded copy proves it.
//! Always: files are read without the put lock, and their number is limited, because anybody may send such an end.

use std::sync::Arc;

use super::decide_end::{already, check_group};
use super::{End, Ended, Inner, Shared};
use crate::base::error::{Error, Outcome, Result};
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC};
use crate::record::TransactionType;
use crate::transaction::HalfFacts;

/// The maximum number of index slots that one end may read: one for each topic in each file.
const SLOTS_MAX: usize = 1 << 16;

impl Shared {
    /// Returns the outcome that a removed half's transaction left in the log, or the original error.
    pub(super) fn look_for_gone(&self, end: &End, result: Result<Ended>) -> Result<Ended> {
        if !matches!(result, Err(Error::TransactionNotFound { .. })) {
            return result;
        }
        let inner = self.inner.lock();
        if !self.is_gone(&inner, end)? {
            return result;
        }
        let known = inner.derived.table.outcome(end.half.queue_offset);
        let queues = inner.derived.dispatcher.queues.iter();
        let topics: Vec<_> = queues.map(|(_, queue)| Arc::clone(&queue.topic)).collect();
        drop(inner);
        let found = self.outcome_left(end, topics).map(|left| left.or(known));
        let again = match found {
            Ok(None) => return result,
            Ok(Some(found)) => already(end, found),
            Err(error) => Err(error),
        };
        let mut inner = self.inner.lock();
        // The failed end was counted as not found.
        inner.counts.not_found -= 1;
        inner.count_ends(&[end], std::slice::from_ref(&again));
        again
    }

    fn is_gone(&self, inner: &Inner, end: &End) -> Result<bool> {
        let queue = inner.half_queue()?;
        let wanted = end.half.queue_offset;
        if wanted >= queue.next() || inner.derived.table.find(wanted).is_some() {
            return Ok(false);
        }
        Ok(self.entry_at(queue, wanted)?.is_none_or(|entry| entry.physical_offset.0 < self.log.segments.first()))
    }

    /// Returns the outcome from a final message or a discarded copy. Both contain the half's physical offset.
    fn outcome_left(&self, end: &End, mut topics: Vec<Arc<str>>) -> Result<Option<Outcome>> {
        let Some(id) = end.transaction_id.as_deref() else { return Ok(None) };
        topics.retain(|topic| ![HALF_TOPIC, OP_TOPIC].contains(&&**topic));
        // Searches the topic of discarded copies first.
        topics.sort_by(|one, other| (&**one != DISCARD_TOPIC, one).cmp(&(&**other != DISCARD_TOPIC, other)));
        topics.dedup();
        let files = self.index_files.lock().len().max(1);
        for topic in topics.iter().take(SLOTS_MAX / files) {
            for physical_offset in self.candidates(topic, id)? {
                let found = self.log.read(physical_offset, self.log.appended(), |view, _| {
                    let parked = view.topic == DISCARD_TOPIC;
                    let named = view.prepared_transaction_offset.0;
                    // A broker's discarded copy contains no physical offset.
                    let names_it = named == end.half.physical_offset || (parked && named == 0);
                    let ends = parked || view.transaction_type() == TransactionType::Commit;
                    if view.topic != &**topic || view.unique_id() != Some(id) || !names_it || !ends {
                        return Ok(None);
                    }
                    check_group(end, HalfFacts::of(view).group)?;
                    Ok(Some(if parked { Outcome::Discarded } else { Outcome::Committed }))
                });
                match found {
                    Ok(Ok(None)) | Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => {}
                    Ok(found) => return found,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }
}
