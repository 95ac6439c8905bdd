//! Ends transactions. Only this module appends a final message and its op message.
//!
//! In:     ends, from many threads.
//! Out:    outcomes.
//! Always: the table decides under the put lock. In the log, all decisions of a group come before its op message. Ends
//!         that wait together become one write and one sync. A repeated end succeeds and writes nothing. Any other
//!         end of an ended transaction is an exact error and writes nothing.

use std::sync::Arc;

use super::batch::{Batch, IndexKeys, Placed, Purpose, Wait};
use super::{Inner, Shared, Store};
use crate::error::{Error, Outcome, Result};
use crate::half::convert::{discard_draft, final_draft};
use crate::half::counts::TopicNumber;
use crate::half::op::{OP_PROPERTIES, REMOVE_TAG, fill_op_body};
use crate::half::table::Key;
use crate::half::{HALF_QUEUE, HalfCopy, HalfFacts};
use crate::java;
use crate::mutant::{Mutant, mutated};
use crate::names::OP_TOPIC;
use crate::record::Draft;
use crate::record::decode::{Scanned, Verify, decode};
use crate::sync::Mutex;
use crate::sync::rank::{BRIEF, TURN};
use crate::units::{PhysicalOffset, QueueId, QueueOffset, to_usize};

/// How to end a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// The message becomes visible.
    Commit,
    /// The message is never delivered.
    RollBack,
    /// The message is not delivered. A copy goes to `TRANS_CHECK_MAX_TIME_TOPIC`, from which it can be resumed.
    Discard,
}

impl EndKind {
    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::Commit => Outcome::Committed,
            Self::RollBack => Outcome::RolledBack,
            Self::Discard => Outcome::Discarded,
        }
    }
}

/// A request to end a transaction.
#[derive(Clone, Debug)]
pub struct End {
    /// Any copy of the half message.
    pub half: HalfCopy,
    /// How to end the transaction.
    pub kind: EndKind,
    /// The transaction id to compare, if given.
    pub transaction_id: Option<String>,
    /// The producer group to compare, if given.
    pub group: Option<String>,
    /// The source of the decision.
    pub decider: Decider,
}

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// The producer that sent it.
    Producer,
    /// A check that was answered, or that no producer answers any more.
    Check,
    /// An operator.
    Operator,
}

impl End {
    const fn purpose(&self) -> Purpose {
        match (self.kind, self.decider) {
            (EndKind::Discard, _) => Purpose::Discard,
            (_, Decider::Operator) => Purpose::EndByHand,
            (_, Decider::Producer | Decider::Check) => Purpose::End,
        }
    }
}

/// The result of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The outcome of the transaction.
    pub outcome: Outcome,
    /// The transaction had the same outcome before. Nothing was written.
    pub already: bool,
    /// The offsets of the final or discarded message, if this end wrote one.
    pub place: Option<(PhysicalOffset, QueueOffset)>,
}

/// Ends that wait to be written as one group.
#[derive(Debug, Default)]
pub(super) struct EndQueue {
    pub(super) waiting: Mutex<Vec<Arc<Ticket>>, BRIEF>,
    pub(super) turn: Mutex<(), TURN>,
}

#[derive(Debug)]
pub(super) struct Ticket {
    end: End,
    result: Mutex<Option<Result<Ended>>, BRIEF>,
}

/// The decisions of a group of ends. The memory is reused.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) decisions: Vec<Decision>,
    /// The op messages: the queue offset of each, and the highest half queue offset that it names.
    pub(super) ops: Vec<(u64, u64)>,
    /// The half queue offsets that the op messages name.
    named: Vec<u64>,
    op_body: String,
    /// The result of an end that is a group by itself.
    results: Vec<Result<Ended>>,
}

impl Group {
    fn clear(&mut self) {
        self.decisions.clear();
        self.ops.clear();
        self.named.clear();
    }
}

/// The decision of a group about one transaction.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) key: Key,
    pub(super) outcome: Outcome,
    pub(super) topic: TopicNumber,
}

impl Store {
    /// Ends a transaction. The end is acknowledged when this returns.
    pub fn end_transaction(&self, end: &End, wait: Wait) -> Result<Ended> {
        self.shared.check_writable("ending a transaction")?;
        match wait {
            Wait::Yes => self.shared.end_in_group(end.clone()),
            Wait::No => self.shared.end_at_once(end),
        }
    }

    /// Returns whether an end is acknowledged only after a sync.
    pub fn is_end_synced(&self, end: &End) -> bool {
        self.shared.is_synced(end.purpose())
    }

    /// Ends transactions as one group, with one write and one sync, as threads that wait together do.
    pub fn end_together(&self, ends: Vec<End>) -> Vec<Result<Ended>> {
        if let Err(error) = self.shared.check_writable("ending a transaction") {
            return ends.iter().map(|_| Err(error.repeat())).collect();
        }
        let purpose = self.shared.purpose_of(ends.iter());
        let turn = self.shared.ends.turn.lock();
        let results = self.shared.end_all(ends);
        drop(turn);
        results.into_iter().map(|result| self.shared.confirm(purpose, result)).collect()
    }
}

impl Shared {
    /// Waits for the turn. The thread that has the turn writes all waiting ends. The next group gathers during the
    /// sync.
    fn end_in_group(&self, end: End) -> Result<Ended> {
        let purpose = end.purpose();
        let result = self.take_turn(end);
        self.confirm(purpose, result)
    }

    fn take_turn(&self, end: End) -> Result<Ended> {
        let ticket = Arc::new(Ticket { end, result: Mutex::ranked(None) });
        self.ends.waiting.lock().push(Arc::clone(&ticket));
        let turn = self.ends.turn.lock();
        let done = ticket.result.lock().take();
        if let Some(result) = done {
            drop(turn);
            return self.look_for_gone(&ticket.end, result);
        }
        let group = std::mem::take(&mut *self.ends.waiting.lock());
        self.end_group(&group);
        drop(turn);
        let result = ticket.result.lock().take();
        self.look_for_gone(&ticket.end, result.unwrap_or(Err(Error::StoreClosed)))
    }

    /// Ends a transaction if nothing has to be waited for.
    fn end_at_once(&self, end: &End) -> Result<Ended> {
        if self.is_synced(end.purpose()) {
            return Err(Error::WouldWait);
        }
        let Some(_turn) = self.ends.turn.try_lock() else { return Err(Error::WouldWait) };
        let Some(mut inner) = self.inner.try_lock() else { return Err(Error::WouldWait) };
        let mut results = std::mem::take(&mut inner.group.results);
        results.clear();
        self.write_group(&mut inner, &[end], &mut results, Wait::No)?;
        if let Some(Err(Error::TransactionNotFound { .. })) = results.first() {
            // The caller that may wait repeats the search in the files, and counts a failure then.
            inner.counts.not_found -= 1;
            return Err(Error::WouldWait);
        }
        let result = results.pop().unwrap_or(Err(Error::StoreClosed));
        inner.group.results = results;
        self.unacknowledged(inner, Purpose::End, ()).acknowledged()?;
        result
    }

    fn end_group(&self, group: &[Arc<Ticket>]) {
        let mut results = Vec::with_capacity(group.len());
        let mut inner = self.inner.lock();
        let ends: Vec<&End> = group.iter().map(|ticket| &ticket.end).collect();
        let written = self.write_group(&mut inner, &ends, &mut results, Wait::Yes);
        let written = written.and_then(|()| self.unacknowledged(inner, Purpose::End, ()).acknowledged());
        let failed = written.err().filter(|_| !mutated(Mutant::FailedGroupAcknowledged));
        for (ticket, result) in group.iter().zip(results) {
            // The outcome that an end reports may depend on a decision of this group, or on an earlier one whose sync
            // failed. After a failed sync nothing of it is acknowledged.
            let tells = matches!(result, Ok(_) | Err(Error::AlreadyEnded { .. }));
            let result = match &failed {
                Some(error) if tells => Err(error.repeat()),
                _ => result,
            };
            *ticket.result.lock() = Some(result);
        }
    }

    /// Waits for the sync of a decision that no check would repeat, if the group itself needs no sync. The turn is over
    /// by now, so no other end waits for the disk.
    fn confirm(&self, purpose: Purpose, result: Result<Ended>) -> Result<Ended> {
        // An outcome that existed before may not be durable either.
        let tells = matches!(result, Ok(_) | Err(Error::AlreadyEnded { .. }));
        if tells && self.is_synced(purpose) && !self.is_synced(Purpose::End) {
            self.wait_durable(self.log.appended())?;
        }
        result
    }

    /// Returns the strictest purpose of a group: one that requires a sync, if there is any.
    fn purpose_of<'e>(&self, ends: impl Iterator<Item = &'e End>) -> Purpose {
        let mut purposes = ends.map(End::purpose);
        purposes.find(|purpose| self.is_synced(*purpose)).unwrap_or(Purpose::End)
    }

    /// Ends these transactions as one group, without others that wait.
    pub(super) fn end_all(&self, ends: Vec<End>) -> Vec<Result<Ended>> {
        let ticket = |end| Arc::new(Ticket { end, result: Mutex::ranked(None) });
        let group: Vec<_> = ends.into_iter().map(ticket).collect();
        self.end_group(&group);
        let result = |ticket: &Arc<Ticket>| ticket.result.lock().take().unwrap_or(Err(Error::StoreClosed));
        group.iter().map(|ticket| self.look_for_gone(&ticket.end, result(ticket))).collect()
    }

    /// Decides all ends, then writes the decisions: first final and discarded messages, then op messages.
    pub(super) fn write_group(
        &self,
        inner: &mut Inner,
        ends: &[&End],
        results: &mut Vec<Result<Ended>>,
        wait: Wait,
    ) -> Result<()> {
        let mut group = std::mem::take(&mut inner.group);
        group.clear();
        let written = self.decide_and_write(inner, ends, results, wait, &mut group);
        inner.group = group;
        written
    }

    fn decide_and_write(
        &self,
        inner: &mut Inner,
        ends: &[&End],
        results: &mut Vec<Result<Ended>>,
        wait: Wait,
        group: &mut Group,
    ) -> Result<()> {
        let mut batch = Batch::begin(self, inner, self.purpose_of(ends.iter().copied()))?;
        #[cfg(txstore_mutants)]
        let early = self.push_ops_early(&mut batch, ends)?;
        for end in ends {
            results.push(self.decide_end(&mut batch, end, group));
        }
        if group.decisions.is_empty() {
            batch.inner.count_ends(ends, results);
            return Ok(());
        }
        #[cfg(txstore_mutants)]
        let is_late = early.is_none();
        #[cfg(not(txstore_mutants))]
        let is_late = true;
        if is_late {
            self.push_ops(&mut batch, group)?;
        }
        #[cfg(txstore_mutants)]
        if let Some(early) = early {
            group.ops = early;
        }
        batch.write(wait)?;
        let inner = &mut *batch.inner;
        inner.count_ends(ends, results);
        let now_ms = self.clock.monotonic_ms();
        for decision in &group.decisions {
            inner.count_decision(decision, now_ms);
            if !mutated(Mutant::EndWithoutState) {
                inner.derived.table.end(decision.key, decision.outcome, now_ms);
            }
        }
        inner.note_ops(&group.ops);
        Ok(())
    }

    /// Decides one end. Adds the record that decides a pending transaction to the batch.
    fn decide_end(&self, batch: &mut Batch<'_>, end: &End, group: &mut Group) -> Result<Ended> {
        let outcome = end.kind.outcome();
        let Some(key) = Self::pending(batch.inner, end)? else {
            return self.compare_with_decided(batch.inner, end);
        };
        if let Some(earlier) = group.decisions.iter().find(|decision| decision.key == key) {
            return already(end, outcome, earlier.outcome);
        }
        self.check_late(batch.inner, key, end)?;
        let bytes = self.copy_record(batch.inner, PhysicalOffset(end.half.physical_offset))?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let pushed = self.push_decision(batch, end, &bytes, &mut text);
        (batch.inner.record, batch.inner.scratch) = (bytes, text);
        let (placed, topic) = pushed?;
        group.decisions.push(Decision { key, outcome, topic });
        let place = placed.map(|placed| (placed.physical_offset, placed.queue_offset));
        Ok(Ended { outcome, already: false, place })
    }

    /// Copies the record at a physical offset into a reused buffer. It is usually still in memory.
    fn copy_record(&self, inner: &mut Inner, place: PhysicalOffset) -> Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut inner.record);
        bytes.clear();
        // The table contains offsets of records, and bytes that were kept since they were written need no CRC check.
        let recent = inner.appender.as_ref().and_then(|appender| appender.recent(place)).and_then(|recent| {
            let size = u32::from_be_bytes(*recent.first_chunk()?);
            recent.get(..to_usize(size.into()))
        });
        match recent {
            Some(recent) => bytes.extend_from_slice(recent),
            None => self.log.read(place, self.log.appended(), |_, stored| bytes.extend_from_slice(stored))?,
        }
        Ok(bytes)
    }

    /// Adds the deciding record to the batch and returns the topic's number. A rollback has only its op message.
    fn push_decision(
        &self,
        batch: &mut Batch<'_>,
        end: &End,
        half: &[u8],
        text: &mut Vec<u8>,
    ) -> Result<(Option<Placed>, TopicNumber)> {
        let Ok(Scanned::Record(view)) = decode(half, PhysicalOffset(end.half.physical_offset), Verify::NOTHING) else {
            return Err(not_found(end, "no record stands there"));
        };
        let facts = HalfFacts::of(&view);
        check_id(end, facts.unique_id)?;
        let topic = batch.inner.counts.topic(facts.real_topic);
        let draft = match end.kind {
            EndKind::RollBack => return Ok((None, topic)),
            EndKind::Commit => final_draft(&view, &facts, self.options.store_host, text),
            EndKind::Discard => discard_draft(&view, self.options.store_host, text),
        };
        check_real(&draft)?;
        let topic_hash = java::topic_hash(draft.topic);
        let keys = IndexKeys { topic_hash, unique_id: facts.unique_id, keys: facts.keys };
        let placed = batch.push(&draft, java::tags_code(facts.tags), Some(&keys))?;
        Ok((Some(placed), topic))
    }

    /// Finds the pending transaction that an end names, and compares offsets and producer group.
    pub(super) fn pending(inner: &Inner, end: &End) -> Result<Option<Key>> {
        let Some(key) = inner.derived.table.find(end.half.queue_offset) else { return Ok(None) };
        let Some(entry) = inner.derived.table.get(key) else { return Ok(None) };
        if !entry.copies().any(|(copy, _)| copy == end.half) {
            return Err(not_found(end, "no copy of a half message stands there"));
        }
        check_group(end, inner.derived.table.group(entry))?;
        Ok(Some(key))
    }

    /// Handles an end of a transaction that is not pending. The same outcome is a success, any other is an error.
    fn compare_with_decided(&self, inner: &Inner, end: &End) -> Result<Ended> {
        let queue = inner.half_queue()?;
        let wanted = end.half.queue_offset;
        if wanted >= queue.next() {
            return Err(not_found(end, "the half queue does not reach that far"));
        }
        let entry = self.entry_at(queue, wanted)?;
        let Some(entry) = entry.filter(|entry| entry.physical_offset.0 >= self.log.segments.first()) else {
            return Err(not_found(end, "its half message is gone, and nothing is known of it"));
        };
        if entry.physical_offset.0 != end.half.physical_offset {
            return Err(not_found(end, "no half message stands there"));
        }
        self.log.read(entry.physical_offset, self.log.appended(), |view, _| {
            let facts = HalfFacts::of(view);
            check_group(end, facts.group)?;
            check_id(end, facts.unique_id)
        })??;
        let found = inner.derived.table.outcome(wanted).ok_or_else(|| not_found(end, "nothing is known of it"))?;
        already(end, end.kind.outcome(), found)
    }

    fn check_late(&self, inner: &Inner, key: Key, end: &End) -> Result<()> {
        let Some(entry) =
            inner.derived.table.get(key).filter(|_| self.options.reject_late_end && end.decider != Decider::Check)
        else {
            return Ok(());
        };
        // As in RocketMQ, only a message with its own immunity time can be late. After that time a check decides. A
        // discard does not come from a producer.
        let Some(immunity_ms) = entry.immunity_ms().filter(|_| end.kind != EndKind::Discard) else { return Ok(()) };
        if self.clock.monotonic_ms() - entry.stored_ms > immunity_ms {
            return Err(Error::LateEnd { transaction: name(end), immunity_ms });
        }
        Ok(())
    }

    /// Adds op messages that name every copy of the decided transactions, from the stored progress on.
    pub(super) fn push_ops(&self, batch: &mut Batch<'_>, group: &mut Group) -> Result<()> {
        let progress = batch.inner.derived.stored_half_progress;
        let Group { decisions, named, .. } = group;
        for entry in decisions.iter().filter_map(|decision| batch.inner.derived.table.get(decision.key)) {
            named.extend(entry.copies().map(|(copy, _)| copy.queue_offset).filter(|offset| *offset >= progress));
        }
        named.sort_unstable();
        self.push_op_messages(batch, group)
    }

    fn push_op_messages(&self, batch: &mut Batch<'_>, group: &mut Group) -> Result<()> {
        let Group { ops, named, op_body, .. } = group;
        let mut rest = named.as_slice();
        loop {
            let (inside, after) = rest.split_at(fill_op_body(rest, self.options.op_message_size_max, op_body));
            // The offsets are sorted.
            let Some(highest) = inside.last().copied() else { return Ok(()) };
            rest = after;
            let draft = Draft {
                topic: OP_TOPIC,
                queue_id: HALF_QUEUE,
                flag: 0,
                sys_flag: 0,
                born_timestamp: batch.store_timestamp(),
                born_host: self.options.store_host,
                store_host: self.options.store_host,
                reconsume_times: 0,
                prepared_transaction_offset: PhysicalOffset(0),
                body: op_body.as_bytes(),
                body_crc: None,
                properties: OP_PROPERTIES,
            };
            let placed = batch.push_to(batch.inner.derived.op_slot, &draft, java::tags_code(Some(REMOVE_TAG)), None)?;
            ops.push((placed.queue_offset.0, highest));
        }
    }

    /// Writes the op messages that a crash or a broker omitted for decided halves (T8).
    pub(super) fn heal(&self, inner: &mut Inner, unnamed: &[u64]) -> Result<()> {
        if unnamed.is_empty() || mutated(Mutant::NoHeal) {
            return Ok(());
        }
        let mut batch = Batch::begin(self, inner, Purpose::End)?;
        let mut group = Group { named: unnamed.to_vec(), ..Group::default() };
        self.push_op_messages(&mut batch, &mut group)?;
        batch.write(Wait::Yes)?;
        batch.inner.note_ops(&group.ops);
        Ok(())
    }
}

impl Inner {
    fn note_ops(&mut self, ops: &[(u64, u64)]) {
        for (queue_offset, highest) in ops {
            self.derived.table.ops.note(*queue_offset, *highest);
        }
    }
}

/// Checks the real topic. If it is invalid, txstore did not write the half, and no consumer could read the final
/// message.
fn check_real(draft: &Draft<'_>) -> Result<()> {
    if crate::names::valid_path_component(draft.topic) && draft.queue_id >= QueueId(0) {
        return Ok(());
    }
    Err(Error::InvalidName {
        what: format!("the half message names queue {} of topic {:?}, which cannot be", draft.queue_id, draft.topic),
    })
}

pub(super) fn check_group(end: &End, expected: &str) -> Result<()> {
    match end.group.as_deref().filter(|given| *given != expected) {
        Some(given) => {
            Err(Error::WrongGroup { transaction: name(end), expected: expected.to_owned(), given: given.to_owned() })
        }
        None => Ok(()),
    }
}

fn check_id(end: &End, found: Option<&str>) -> Result<()> {
    match end.transaction_id.as_deref().filter(|id| found != Some(id)) {
        // The error does not show the right id: a caller must know the id to end the transaction.
        Some(id) => Err(not_found(end, &format!("its id is not {id:?}"))),
        None => Ok(()),
    }
}

pub(super) fn already(end: &End, wanted: Outcome, found: Outcome) -> Result<Ended> {
    if wanted == found || mutated(Mutant::AnyEndAgrees) {
        return Ok(Ended { outcome: wanted, already: true, place: None });
    }
    Err(Error::AlreadyEnded { transaction: name(end), outcome: found })
}

fn not_found(end: &End, why: &str) -> Error {
    Error::TransactionNotFound { what: format!("transaction {} is not there: {why}", name(end)) }
}

fn name(end: &End) -> String {
    end.transaction_id.clone().unwrap_or_else(|| {
        format!("(half queue offset {}, physical offset {})", end.half.queue_offset, end.half.physical_offset)
    })
}
