//! What a scan of the log knows about queues besides their entries.

use hashbrown::{HashMap, HashSet};

use crate::index::consume_queue::Slot;

/// How many bytes of queue entries recovery keeps in memory before it compares them with the files.
pub(super) const BUFFERED_MAX: usize = 8 << 20;

/// What a scan knows about queues.
#[derive(Debug)]
pub(super) struct QueueFacts {
    pub(super) last: Option<Slot>,
    /// When this many bytes are buffered, they are compared with the files again.
    pub(super) settle_from: usize,
    /// Queues that a broker began again, and the physical offset. Earlier records of these queues were deleted.
    pub(super) begun_at: HashMap<Slot, u64>,
    /// Queues that had no entry in a file when their first record was read, in a log that a broker wrote.
    pub(super) fileless: HashSet<Slot>,
}

impl QueueFacts {
    pub(super) fn new() -> Self {
        Self { last: None, settle_from: BUFFERED_MAX, begun_at: HashMap::new(), fileless: HashSet::new() }
    }
}
