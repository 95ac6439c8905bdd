//! Simulates everything except producers: rounds of checks, retention, consumers, readers in other processes.
//!
//! In:     a machine and its store.
//! Out:    its history continues, or the promise that an answer broke.
//! Always: `decide` is modelled as docs/internals/transactions.md describes it: wait, check, or discard after a number
//!         of checks.

use txstore::base::clock::Clock;
use txstore::base::error::Error;
use txstore::base::units::{PhysicalOffset, QueueId, QueueOffset};
use txstore::store::retention::LogFile;
use txstore::store::{Decider, End, EndKind, Store, Wait};
use txstore::transaction::HalfCopy;
use txstore::transaction::scan::Waiting;

use crate::ages::Ages;
use crate::database::has_row;
use crate::history::{Acknowledged, Half, Held, History, READERS, TOPICS, Violation, hold, outcome_of};
use crate::machine::{Machine, TIMEOUT_MS};
use crate::sets::leads;
use crate::watched::{Shown, all_shown, crc};

/// Checks before the modelled `decide` discards a transaction.
const CHECKS_MAX: u16 = 3;
pub const INTERVAL_MS: i64 = 30_000;

impl Machine {
    /// Runs a round of `decide`: wait, check or discard. T11, T13, T14.
    pub fn check_round(&mut self, store: &Store, producers: bool, limit: usize, answer: Option<EndKind>) -> Held {
        let (calls, end) = (self.memory.calls(), Self::log_end(store));
        let now_ms = self.clock.monotonic_ms();
        let Some(due) = self.note(store.halves_due(limit))? else { return Ok(()) };
        self.all_due_are_handed_out(&due, limit, now_ms)?;
        let mut discards = Vec::new();
        for facts in &due {
            let Some(at) = self.history.half_at(facts.newest) else { continue };
            self.facts_are_true(at, facts, now_ms)?;
            let half = &mut self.history.halves[at];
            let left_ms = facts.immunity_ms.unwrap_or(TIMEOUT_MS) - facts.age_ms;
            let (in_ms, asked) = if facts.running {
                (100, false)
            } else if left_ms > 0 {
                (left_ms, false)
            } else if facts.checks >= CHECKS_MAX && !has_row(half) {
                discards.push(at);
                (INTERVAL_MS, false)
            } else {
                (INTERVAL_MS, producers)
            };
            let is_pending = store.look_again(facts.newest.queue_offset, in_ms, asked);
            hold(matches!(is_pending, Ok(true)), "T11", || format!("{facts:?} was handed out, then {is_pending:?}"))?;
            half.due_ms = now_ms + in_ms;
            half.checks += u16::from(asked);
            let answer = if has_row(half) { self.database.answer(half) } else { answer };
            if let Some(kind) = answer.filter(|_| asked) {
                self.history.answers.push((facts.newest, kind));
            }
        }
        let wrote = self.memory.calls() != calls || Self::log_end(store) != end;
        hold(!wrote, "T14", || format!("a round of {} checks wrote", due.len()))?;
        discards.into_iter().try_for_each(|at| self.discard(store, at))
    }

    fn discard(&mut self, store: &Store, at: usize) -> Held {
        self.end_half(store, at, &End { decider: Decider::Check, ..self.end_of(at, 0, EndKind::Discard) })
    }

    /// Checks T11: every due half is returned, and no other.
    fn all_due_are_handed_out(&self, due: &[Waiting], limit: usize, now_ms: i64) -> Held {
        if self.is_faulty() {
            return Ok(());
        }
        let is_due =
            |half: &&Half| half.reported.is_none() && !half.copies.is_empty() && half.due_ms <= now_ms && leads(half);
        let expected = self.history.halves.iter().filter(is_due).count().min(limit);
        hold(due.len() == expected, "T11", || format!("{expected} are due, {} were handed out: {due:?}", due.len()))?;
        for facts in due {
            let known = self.history.half_at(facts.newest).map(|at| &self.history.halves[at]);
            hold(known.as_ref().is_some_and(is_due), "T11", || format!("{facts:?} is not due: {known:?}"))?;
        }
        Ok(())
    }

    /// Checks T11: only checks that were sent count. T13: ages use the monotonic clock.
    fn facts_are_true(&self, at: usize, facts: &Waiting, now_ms: i64) -> Held {
        let half = &self.history.halves[at];
        let counted = (facts.checks, facts.running) == (half.checks, half.running);
        hold(counted, "T11", || format!("{facts:?} of {half:?}"))?;
        let age_ms = now_ms - half.stored_ms;
        hold(facts.stored_age_ms == age_ms, "T13", || format!("{facts:?} is {age_ms} ms old"))
    }

    /// Removes whole files from the front. A pending half keeps its file (T10), and so does a message that a group has
    /// not read (D1).
    pub fn expire(&mut self, store: &Store, files: usize, keep_unread: bool) -> Held {
        let Some(facts) = self.note(store.log_files(files))? else { return Ok(()) };
        self.ages_are_right(&facts)?;
        let Some(last) = facts.last() else { return Ok(()) };
        self.remove(store, last.end, keep_unread, &facts)
    }

    /// Removes what is older than `reserved_ms`, as python/txstore/broker/retention.py does.
    pub fn retain(&mut self, store: &Store, reserved_ms: i64) -> Held {
        let Some(facts) = self.note(store.log_files(16))? else { return Ok(()) };
        self.ages_are_right(&facts)?;
        let old = facts.iter().take_while(|file| file.age_ms > reserved_ms && !file.is_held && !file.is_unread);
        let Some(end) = old.last().map(|last| last.end) else { return Ok(()) };
        self.remove(store, end, true, &facts)
    }

    fn remove(&mut self, store: &Store, below: u64, keep_unread: bool, facts: &[LogFile]) -> Held {
        let (log_end, held) = (Self::log_end(store), self.lowest_held());
        let unread = if keep_unread { self.lowest_unread(store) } else { u64::MAX };
        self.history.minimum_tried = self.history.minimum_tried.max(below);
        let removed = store.remove_log_files(PhysicalOffset(below), keep_unread);
        let minimum = store.stat().unwrap().min_physical_offset;
        hold(minimum <= held, "T10", || format!("{held} is pending, the log begins at {minimum}: {facts:?}"))?;
        hold(minimum <= unread, "D1", || format!("{unread} is unread, the log begins at {minimum}: {facts:?}"))?;
        let Some(removed) = self.note(removed)? else { return Ok(()) };
        self.expired += removed.log_files as u64;
        if removed.log_files > 0 {
            // What was derived from the removed files is durable: final messages, and delayed messages' deliveries.
            self.is_durable(log_end);
        }
        self.note_first_offsets(store);
        let gone = self.history.forget_below(minimum);
        self.database.forget_below(minimum, &gone);
        gone.iter()
            .filter(|half| !half.foreign && leads(half))
            .take(3)
            .try_for_each(|half| self.ends_of_gone(store, half))
    }

    /// Notes where queues begin after retention has removed messages.
    pub fn note_first_offsets(&mut self, store: &Store) {
        for (topic, queue_id, first, _) in store.queues().unwrap() {
            self.history.gone_below.insert((topic, queue_id.0), first);
        }
    }

    /// Sends until the disk is full. Checks P2: every pending transaction can end then, and sends return with the space.
    pub fn fill_disk(&mut self, store: &Store, kind: EndKind) -> Held {
        self.memory.leave_space(0);
        let ended = self.end_all_on_a_full_disk(store, kind);
        self.memory.leave_space(u64::MAX);
        self.fills_disk = false;
        ended?;
        self.send(store, 0, 0, 1, 90)
    }

    fn end_all_on_a_full_disk(&mut self, store: &Store, kind: EndKind) -> Held {
        self.fills_disk = true;
        loop {
            self.send(store, 0, 0, 1, 90)?;
            if self.history.messages.values().next_back().is_none_or(|sent| sent.physical_offset.is_none()) {
                break;
            }
        }
        self.fills_disk = false;
        let is_pending = |half: &Half| {
            half.reported.is_none() && !half.copies.is_empty() && !half.foreign && !has_row(half) && leads(half)
        };
        let pending: Vec<usize> =
            (0..self.history.halves.len()).filter(|at| is_pending(&self.history.halves[*at])).collect();
        pending.into_iter().try_for_each(|at| self.end_half(store, at, &self.end_of(at, 0, kind)))
    }

    /// Deletes a topic: its queues are empty and continue at their ends, after an acknowledgement also after any crash.
    pub fn delete(&mut self, store: &Store, topic: &str) -> Held {
        let ends = [0, 1].map(|queue| (queue, store.queue_range(topic, QueueId(queue)).unwrap().1));
        let mark = |history: &mut History, is_sure: bool| {
            for (queue, end) in ends {
                let (sure, tried) = history.deleted.entry((topic.to_owned(), queue)).or_default();
                *tried = end.max(*tried);
                if is_sure {
                    *sure = end.max(*sure);
                    let gone = history.gone_below.entry((topic.to_owned(), queue)).or_default();
                    *gone = end.max(*gone);
                }
            }
        };
        mark(&mut self.history, false);
        let Some(_) = self.note(store.delete_queues(topic))? else { return Ok(()) };
        mark(&mut self.history, true);
        for (queue, end) in ends {
            let range = store.queue_range(topic, QueueId(queue)).unwrap();
            hold(range == (end, end), "L6", || format!("{topic}/{queue} was deleted at {end}, it goes {range:?}"))?;
        }
        Ok(())
    }

    /// Checks T6: an end of a removed half finds its outcome or nothing, never another outcome, and writes nothing.
    fn ends_of_gone(&self, store: &Store, half: &Half) -> Held {
        let Some((reported, _)) = half.reported else { return Ok(()) };
        let end = Self::log_end(store);
        for kind in [EndKind::Commit, EndKind::RollBack, EndKind::Discard] {
            let (copy, transaction_id, group) = (half.copies[0], half.id.clone(), Some(half.group.clone()));
            let ended = store.end_transaction(
                &End { half: copy, kind, transaction_id, group, decider: Decider::Producer },
                Wait::Yes,
            );
            let fits = match &ended {
                Ok(ended) => ended.already && ended.outcome == reported && outcome_of(kind) == reported,
                Err(Error::AlreadyEnded { outcome, .. }) => *outcome == reported && outcome_of(kind) != reported,
                Err(Error::TransactionNotFound { .. }) => true,
                Err(_) => self.is_faulty(),
            };
            hold(fits, "T6", || format!("{kind:?} of {half:?}, which is gone, gave {ended:?}"))?;
        }
        hold(Self::log_end(store) == end, "T6", || "an end of a half that is gone wrote".into())
    }

    /// Returns the lowest physical offset that no removal may pass.
    fn lowest_held(&self) -> u64 {
        self.lowest_pending().min(self.history.lowest_delayed()).min(self.history.lowest_timed())
    }

    /// Returns the lowest physical offset of a half that no client has tried to end.
    fn lowest_pending(&self) -> u64 {
        let pending = self.history.halves.iter().filter(|half| half.reported.is_none() && half.asked.is_empty());
        pending.flat_map(|half| &half.copies).map(|copy| copy.physical_offset).min().unwrap_or(u64::MAX)
    }

    /// Returns the lowest physical offset of a message that a group of its topic has not acknowledged.
    fn lowest_unread(&self, store: &Store) -> u64 {
        let mut lowest = u64::MAX;
        for (topic, _, group) in self.history.offsets.keys() {
            // After a crash, a group whose only offset was never written is unknown.
            let offset = |queue| store.consumer_offset(TOPICS[*topic], READERS[*group], QueueId(queue)).unwrap();
            if offset(0).or(offset(1)).is_none() {
                continue;
            }
            for queue in 0..2 {
                let known = self.history.offsets.get(&(*topic, queue, *group)).copied().unwrap_or_default();
                let first = store.queue_range(TOPICS[*topic], QueueId(queue)).unwrap().0;
                let next = QueueOffset(known.last.max(first));
                if let Ok((records, _)) = store.read(TOPICS[*topic], QueueId(queue), next, 1, None) {
                    let physical_offset = records.first().map(|record| record.view().unwrap().physical_offset.0);
                    lowest = lowest.min(physical_offset.unwrap_or(u64::MAX));
                }
            }
        }
        lowest
    }

    pub fn answer(&mut self, store: &Store) -> Held {
        let Some((copy, kind)) = self.history.answers.pop() else { return Ok(()) };
        let Some(at) = self.history.half_at(copy) else { return Ok(()) };
        let end = End { half: copy, decider: Decider::Check, ..self.end_of(at, 0, kind) };
        if has_row(&self.history.halves[at]) {
            self.end_by_row(store, at, &end)
        } else {
            self.end_half(store, at, &end)
        }
    }

    /// Consumes messages. D1: a consumer gets the next messages in order, without a gap.
    pub fn consume(
        &mut self,
        store: &Store,
        (topic, queue, group): (usize, i32, usize),
        messages: usize,
        acknowledge: bool,
    ) -> Held {
        let (name, reader) = (TOPICS[topic], READERS[group]);
        let known = self.history.offsets.get(&(topic, queue, group)).copied().unwrap_or_default();
        let Some(stored) = self.note(store.consumer_offset(name, reader, QueueId(queue)))? else { return Ok(()) };
        hold(stored.unwrap_or(0) == known.last, "D2", || {
            format!("{reader} was at {known:?} of {name}/{queue}, now {stored:?}")
        })?;
        // Messages that retention removed are skipped.
        let from = known.last.max(store.queue_range(name, QueueId(queue)).unwrap().0);
        let read = store.read(name, QueueId(queue), QueueOffset(from), messages, None);
        let Some((records, next)) = self.note(read)? else { return Ok(()) };
        for (offset, record) in (from..).zip(&records) {
            let view = record.view().unwrap();
            hold(view.queue_offset.0 == offset, "D1", || format!("{offset} of {name}/{queue} is {view:?}"))?;
            self.history.shown.push(Shown { physical_offset: view.physical_offset.0, crc: crc(record.bytes()) });
        }
        hold(next.0 == from + records.len() as u64, "D1", || format!("{name}/{queue}: from {from} to {next}"))?;
        if acknowledge && self.note(store.set_consumer_offset(name, reader, QueueId(queue), next.0))?.is_some() {
            self.history.offsets.insert((topic, queue, group), Acknowledged { last: next.0, ..known });
        }
        let beyond = store.set_consumer_offset(name, reader, QueueId(queue), u64::MAX / 2);
        hold(beyond.is_err(), "D2", || format!("{reader} may acknowledge what {name}/{queue} has not"))
    }

    /// Checks that a reader in another process sees whole records in order, up to the visible end, and its queues say
    /// the same.
    pub fn look(&mut self, store: &Store) -> Held {
        let Some(reader) = self.note(self.open_reader())? else { return Ok(()) };
        let stat = store.stat().unwrap();
        let shown = all_shown(&reader);
        let Some(shown) = self.note(shown)? else { return Ok(()) };
        let visible = stat.visible_physical_offset;
        hold(shown.iter().all(|one| one.physical_offset < visible), "D1", || format!("a reader saw beyond {visible}"))?;
        let all = all_shown(store).map_err(|error| Violation { promise: "D1", what: error.to_string() })?;
        hold(shown == all || self.is_faulty(), "D1", || {
            format!("a reader saw {} records, the writer {}", shown.len(), all.len())
        })?;
        let (theirs, ours) = (reader.queues().unwrap(), store.queues().unwrap());
        hold(theirs == ours || self.is_faulty(), "L6", || {
            format!("a reader's queues {theirs:?}, the writer's {ours:?}")
        })?;
        let offsets = |store: &Store| -> Vec<HalfCopy> {
            store.halves_waiting(None, usize::MAX).unwrap().into_iter().map(|waiting| waiting.newest).collect()
        };
        let (theirs, ours) = (offsets(&reader), offsets(store));
        hold(theirs == ours || self.is_faulty(), "T2", || {
            format!("pending for a reader: {theirs:?}, for the writer: {ours:?}")
        })?;
        let (theirs, ours) = (reader.timed_messages().unwrap(), store.timed_messages().unwrap());
        hold(theirs == ours || self.is_faulty(), "D3", || {
            format!("{theirs} wait for their time for a reader, {ours} for the writer")
        })?;
        self.history.shown.extend(shown);
        Ok(())
    }

    /// Notes that after a clean close no local transaction runs, and everything else is unchanged.
    pub fn reopened(&mut self, store: &Store) -> Held {
        let now_ms = self.clock.monotonic_ms();
        for facts in store.halves_waiting(None, usize::MAX).unwrap() {
            let Some(at) = self.history.half_at(facts.newest) else { continue };
            let half = &mut self.history.halves[at];
            half.running = false;
            half.stored_ms = now_ms - facts.stored_age_ms;
            half.due_ms = now_ms + facts.look_again_in_ms;
        }
        self.history.see_delayed(self.clock.as_ref());
        let (waiting, found) = (self.history.timed_waiting(), store.timed_messages().unwrap());
        hold(found == waiting, "D3", || format!("{waiting} messages waited for their time at the close, now {found}"))?;
        let log = crate::promises::read_log(store)?;
        self.timed_are_moved(&log, Self::log_end(store));
        let left = self.history.timed.iter().find(|one| one.is_waiting() && one.is_handed_over);
        hold(left.is_none(), "D3", || format!("it was not taken back: {left:?}"))?;
        self.a_broker_reads_what_was_handed_over(store)?;
        self.ages = Ages::opened(&self.memory, &log, &self.options, self.clock.as_ref());
        Ok(())
    }
}
