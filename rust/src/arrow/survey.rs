//! Finds the transactions of a log that get records after they have ended: the first pass of a fold.
//!
//! In:     the log's records, in order.
//! Out:    identities, half queue offsets and physical offsets. A transaction with none of them ends with its first op.
//! Always: errs on the side of naming too many. Memory holds the halves that no op has named, and the result.
//! Not here: the outcome rule.

use hashbrown::{HashMap, HashSet};

use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC};
use crate::record::properties::REAL_TOPIC;
use crate::record::{RecordView, TransactionType};
use crate::transaction::op::parse_op_body;
use crate::transaction::pending::Pending;
use crate::transaction::replay::final_topic;
use crate::transaction::{HALF_QUEUE, HalfFacts, Identity};

/// What the log says of transactions after they have ended.
#[derive(Debug, Default)]
pub(super) struct Late {
    identities: HashSet<u64>,
    half_queue_offsets: HashSet<u64>,
    /// Of halves without identity.
    half_physical_offsets: HashSet<u64>,
}

impl Late {
    /// Returns whether a transaction may get further records.
    pub(super) fn names(&self, entry: &Pending) -> bool {
        self.identities.contains(&entry.identity)
            || entry.copies().any(|(copy, _)| {
                self.half_queue_offsets.contains(&copy.queue_offset)
                    || (entry.identity == 0 && self.half_physical_offsets.contains(&copy.physical_offset))
            })
    }

    fn note(&mut self, identity: Option<Identity>, half_physical_offset: u64) {
        match identity {
            Some(identity) => self.identities.insert(identity.0),
            None => self.half_physical_offsets.insert(half_physical_offset),
        };
    }
}

/// The halves that no op has named yet.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// By half queue offset.
    open: HashMap<u64, Half>,
    /// The identities of the open halves, by physical offset.
    physical_offsets: HashMap<u64, Option<Identity>>,
    /// How many open halves an identity has.
    identities: HashMap<u64, u32>,
    /// The half queue offset after the last one. A later record with a lower offset is in no queue.
    half_next: u64,
    late: Late,
}

#[derive(Debug)]
struct Half {
    physical_offset: u64,
    identity: Option<Identity>,
}

impl Survey {
    /// Notes a record.
    pub(super) fn apply(&mut self, view: &RecordView<'_>) {
        match view.topic {
            _ if !view.transaction_type().is_queued() => {}
            HALF_TOPIC => self.half(view),
            OP_TOPIC => parse_op_body(view.body).for_each(|half| self.op(half)),
            DISCARD_TOPIC => {
                let half = view.prepared_transaction_offset.0;
                let real_topic = view.properties.get_str(REAL_TOPIC).unwrap_or_default();
                let identity = Identity::of(view.properties, real_topic, view.body_crc);
                let is_named = self.physical_offsets.get(&half) == Some(&identity);
                // A broker writes 0, and then the copy belongs to the newest transaction of the identity.
                let is_newest = half == 0 && identity.is_some_and(|found| self.identities.contains_key(&found.0));
                if !is_named && !is_newest {
                    self.late.note(identity, half);
                }
            }
            _ if view.transaction_type() == TransactionType::Commit => {
                let half = view.prepared_transaction_offset.0;
                if !self.physical_offsets.contains_key(&half) {
                    self.late.note(Identity::of(view.properties, final_topic(view), view.body_crc), half);
                }
            }
            _ => {}
        }
    }

    fn half(&mut self, view: &RecordView<'_>) {
        let facts = HalfFacts::of(view);
        let (queue_offset, physical_offset) = (view.queue_offset.0, view.physical_offset.0);
        let identity = facts.identity();
        if view.queue_id == HALF_QUEUE {
            if queue_offset < self.half_next {
                return;
            }
            self.half_next = queue_offset.saturating_add(1);
        } else {
            self.late.half_queue_offsets.insert(queue_offset);
            self.late.note(identity, physical_offset);
        }
        if let Some(identity) = identity {
            let halves = self.identities.entry(identity.0).or_default();
            // It may join a transaction, or end its turn as the newest of the identity.
            if *halves > 0 || !facts.sent {
                self.late.identities.insert(identity.0);
            }
            *halves += 1;
        }
        self.physical_offsets.insert(physical_offset, identity);
        self.open.insert(queue_offset, Half { physical_offset, identity });
    }

    fn op(&mut self, queue_offset: u64) {
        let Some(Half { physical_offset, identity }) = self.open.remove(&queue_offset) else {
            self.late.half_queue_offsets.insert(queue_offset);
            return;
        };
        self.physical_offsets.remove(&physical_offset);
        if let Some(identity) = identity
            && let Some(halves) = self.identities.get_mut(&identity.0)
        {
            *halves -= 1;
            if *halves == 0 {
                self.identities.remove(&identity.0);
            }
        }
    }

    /// Ends the pass.
    pub(super) fn finish(self) -> Late {
        self.late
    }

    /// Returns the number of halves in memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        u64::try_from(self.open.len()).unwrap_or(u64::MAX)
    }
}
