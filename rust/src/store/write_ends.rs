//! Decides the ends of a group, and writes the decisions. Only this module appends a final message and its op message.
//!
//! In:     the ends of a group, while the caller holds the put lock.
//! Out:    their results; in the log the final and discarded messages, and the op messages.
//! Always: in the log, all decisions of a group come before its op message. If the write fails, nothing is decided.
//! Not here: comparing an end with its transaction (`decide_end`), waiting for a sync.

use super::batch::{Batch, IndexKeys, Placed, Purpose, Wait};
use super::decide_end::{already, check_id, not_found};
use super::held_ends::check_held;
use super::{Decider, End, EndKind, Ended, Inner, Shared};
use crate::base::error::{Error, Outcome, Result};
use crate::base::java;
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{self, OP_TOPIC};
use crate::base::units::{PhysicalOffset, QueueId, to_usize};
use crate::index::timed::Timed;
use crate::record::decode::{Scanned, Verify, decode};
use crate::record::{Draft, RecordView};
use crate::transaction::convert::{discard_draft, final_draft, timed_draft};
use crate::transaction::counts::TopicNumber;
use crate::transaction::op::{OP_PROPERTIES, REMOVE_TAG, fill_op_body};
use crate::transaction::pending::Pending;
use crate::transaction::replay::Unfinished;
use crate::transaction::table::Key;
use crate::transaction::{HALF_QUEUE, HalfCopy, HalfFacts};

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
    pub(super) results: Vec<Result<Ended>>,
    /// The final messages that wait for their time.
    timed: Vec<Timed>,
    /// Why the group must not be written.
    failed: Option<Box<Error>>,
}

impl Group {
    fn clear(&mut self) {
        self.decisions.clear();
        self.ops.clear();
        self.named.clear();
        self.timed.clear();
        self.failed = None;
    }
}

/// The decision of a group about one transaction.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) key: Key,
    pub(super) outcome: Outcome,
    pub(super) topic: TopicNumber,
}

impl Shared {
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
            if let Some(error) = group.failed.take() {
                return Err(*error);
            }
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
        inner.note_timed(&mut group.timed);
        inner.note_ops(&group.ops);
        Ok(())
    }

    /// Decides one end. Adds the record that decides a pending transaction to the batch.
    fn decide_end(&self, batch: &mut Batch<'_>, end: &End, group: &mut Group) -> Result<Ended> {
        let Some((key, is_set)) = Self::pending(batch.inner, end)? else {
            return self.compare_with_decided(batch.inner, end);
        };
        if let Some(earlier) = group.decisions.iter().find(|decision| decision.key == key) {
            return already(end, earlier.outcome);
        }
        check_held(batch.inner, key, end)?;
        self.check_late(batch.inner, key, end)?;
        if is_set {
            return self.decide_set(batch, end, key, group);
        }
        let bytes = self.copy_record(batch.inner, PhysicalOffset(end.half.physical_offset))?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let pushed = half_at(&bytes, end.half, end).and_then(|view| {
            let facts = HalfFacts::of(&view);
            check_id(end, facts.unique_id)?;
            self.push_decision(batch, end.kind, &view, &facts, false, (&mut text, &mut group.timed))
        });
        (batch.inner.record, batch.inner.scratch) = (bytes, text);
        let (placed, topic) = pushed?;
        let outcome = end.kind.outcome();
        group.decisions.push(Decision { key, outcome, topic });
        let offsets = placed.map(|placed| (placed.physical_offset, placed.queue_offset));
        Ok(Ended { outcome, already: false, offsets })
    }

    /// Decides a transaction of several messages: adds a deciding record for each, in the order of the messages.
    fn decide_set(&self, batch: &mut Batch<'_>, end: &End, key: Key, group: &mut Group) -> Result<Ended> {
        let entry = batch.inner.derived.table.get(key);
        let halves: Vec<HalfCopy> = entry.into_iter().flat_map(Pending::to_end).collect();
        // All are read before the first is added, because an end that fails must leave nothing in the batch.
        let read = |half: &HalfCopy| self.copy_record(batch.inner, PhysicalOffset(half.physical_offset));
        let records = halves.iter().map(read).collect::<Result<Vec<_>>>()?;
        let views = halves.iter().zip(&records).map(|(half, bytes)| half_at(bytes, *half, end));
        let views = views.collect::<Result<Vec<_>>>()?;
        for view in halves.iter().zip(&views).filter(|(half, _)| **half == end.half).map(|(_, view)| view) {
            check_id(end, HalfFacts::of(view).unique_id)?;
        }
        let outcome = end.kind.outcome();
        let mut first = None;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        for view in &views {
            let (facts, lists) = (HalfFacts::of(view), (&mut text, &mut group.timed));
            match self.push_decision(batch, end.kind, view, &facts, true, lists) {
                Ok(pushed) => first = first.or(Some(pushed)),
                Err(error) => {
                    // The batch has a part of the set now, so it must not be written.
                    group.failed = Some(Box::new(error.repeat()));
                    return Err(error);
                }
            }
        }
        batch.inner.scratch = text;
        let Some((placed, topic)) = first else { return Err(Error::StoreClosed) };
        group.decisions.push(Decision { key, outcome, topic });
        let offsets = placed.map(|placed| (placed.physical_offset, placed.queue_offset));
        Ok(Ended { outcome, already: false, offsets })
    }

    /// Copies the record at a physical offset into a reused buffer. It is usually still in memory.
    fn copy_record(&self, inner: &mut Inner, physical_offset: PhysicalOffset) -> Result<Vec<u8>> {
        let mut bytes = std::mem::take(&mut inner.record);
        bytes.clear();
        // The table contains physical_offset of records, and bytes that were kept since they were written need no CRC check.
        let recent = inner.appender.as_ref().and_then(|appender| appender.recent(physical_offset)).and_then(|recent| {
            let size = u32::from_be_bytes(*recent.first_chunk()?);
            recent.get(..to_usize(size.into()))
        });
        match recent {
            Some(recent) => bytes.extend_from_slice(recent),
            None => self.log.read(physical_offset, self.log.appended(), |_, stored| bytes.extend_from_slice(stored))?,
        }
        Ok(bytes)
    }

    /// Adds the deciding record to the batch and returns the topic's number. A rollback has only its op message.
    fn push_decision(
        &self,
        batch: &mut Batch<'_>,
        kind: EndKind,
        half: &RecordView<'_>,
        facts: &HalfFacts<'_>,
        is_in_set: bool,
        (text, timed): (&mut Vec<u8>, &mut Vec<Timed>),
    ) -> Result<(Option<Placed>, TopicNumber)> {
        let topic = batch.inner.counts.topic(facts.real_topic);
        // A time that has passed already means at once.
        let due_ms = facts.timer.and_then(|timer| timer.due_after(batch.now()));
        let draft = match kind {
            EndKind::RollBack => return Ok((None, topic)),
            EndKind::Commit => match due_ms {
                Some(due_ms) => timed_draft(half, due_ms, self.options.store_host, text),
                None => final_draft(half, facts, is_in_set, self.options.store_host, text),
            },
            EndKind::Discard => discard_draft(half, self.options.store_host, text),
        };
        check_real(&draft)?;
        let topic_hash = java::topic_hash(draft.topic);
        let keys = IndexKeys { topic_hash, unique_id: facts.unique_id, keys: facts.keys };
        let placed = batch.push(&draft, java::tags_code(facts.tags), Some(&keys))?;
        if let Some(due_ms) = due_ms.filter(|_| kind == EndKind::Commit) {
            timed.push(Timed { due_ms, physical_offset: placed.physical_offset.0 });
        }
        Ok((Some(placed), topic))
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

    /// Writes what a crash or a broker omitted for decided halves: the rest of the final or discarded messages of a set,
    /// then op messages (T8).
    pub(super) fn heal(&self, inner: &mut Inner, unfinished: &Unfinished) -> Result<()> {
        let Unfinished { unnamed, to_end } = unfinished;
        if (unnamed.is_empty() && to_end.is_empty()) || mutated(Mutant::NoHeal) {
            return Ok(());
        }
        let mut batch = Batch::begin(self, inner, Purpose::End)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let mut timed = Vec::new();
        for (half, outcome) in to_end {
            let kind = if *outcome == Outcome::Discarded { EndKind::Discard } else { EndKind::Commit };
            let bytes = self.copy_record(batch.inner, PhysicalOffset(half.physical_offset))?;
            let end = End { half: *half, kind, transaction_id: None, group: None, decider: Decider::Check };
            let view = half_at(&bytes, *half, &end)?;
            self.push_decision(&mut batch, kind, &view, &HalfFacts::of(&view), true, (&mut text, &mut timed))?;
            batch.inner.record = bytes;
        }
        batch.inner.scratch = text;
        let mut group = Group { named: unnamed.clone(), ..Group::default() };
        self.push_op_messages(&mut batch, &mut group)?;
        batch.write(Wait::Yes)?;
        batch.inner.note_timed(&mut timed);
        batch.inner.note_ops(&group.ops);
        Ok(())
    }
}

impl Inner {
    /// Notes final messages that wait for their time.
    fn note_timed(&mut self, timed: &mut Vec<Timed>) {
        for message in timed.drain(..) {
            self.derived.timed.insert(message);
        }
    }

    fn note_ops(&mut self, ops: &[(u64, u64)]) {
        for (queue_offset, highest) in ops {
            self.derived.table.ops.note(*queue_offset, *highest);
        }
    }
}

/// Returns the half message in the bytes of its record.
fn half_at<'a>(bytes: &'a [u8], half: HalfCopy, end: &End) -> Result<RecordView<'a>> {
    match decode(bytes, PhysicalOffset(half.physical_offset), Verify::NOTHING) {
        Ok(Scanned::Record(view)) => Ok(view),
        _ => Err(not_found(end, "no record is there")),
    }
}

/// Checks the real topic. If it is invalid, txstore did not write the half, and no consumer could read the final
/// message.
fn check_real(draft: &Draft<'_>) -> Result<()> {
    if names::valid_path_component(draft.topic) && draft.queue_id >= QueueId(0) {
        return Ok(());
    }
    Err(Error::InvalidName {
        what: format!("the half message names queue {} of topic {:?}, which cannot be", draft.queue_id, draft.topic),
    })
}
