//! Runs a store in memory, its clock, and clients that work on it step by step.
//!
//! In:     steps.
//! Out:    a history, or the promise that an answer broke.
//! Always: an error that a fault explains ends one step, not the run, as an application would continue. Any other error
//!         is a violation.
//! Not here: what a crash leaves (crash.rs).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use txstore::base::clock::{Clock, ManualClock};
use txstore::base::error::{Error, Outcome, Result};
use txstore::base::options::{FlushDiskType, StoreOptions};
use txstore::base::units::{QueueId, TimestampMs};
use txstore::record::message::{Envelope, Origin, Parts, Topic};
use txstore::record::properties;
use txstore::storage::memory::Memory;
use txstore::store::{Decider, End, EndKind, NewHalfMessage, NewMessage, Store, Unacknowledged, Wait};
use txstore::transaction::HalfCopy;

use crate::ages::Ages;
use crate::database::{Database, has_row};
use crate::history::{GROUPS, Half, Held, History, Message, TOPICS, hold, outcome_of};
use crate::sets::{half_queue_end, leads};
use crate::step::Step;
use crate::timed::{self, Time};
use crate::watched::{Shadow, Watched};

pub const TIMEOUT_MS: i64 = 6_000;
const IMMUNITY_S: i64 = 20;

/// Properties that only the engine sets. A half that kept one of them would be another transaction, or one that was
/// checked before.
const FORGED: [(&str, &str); 13] = [
    ("UNIQ_KEY", "ID-1"),
    ("TRAN_MSG", "true"),
    ("PGROUP", "strangers"),
    ("REAL_TOPIC", "payments"),
    ("REAL_QID", "1"),
    ("__transactionId__", "ID-1"),
    ("TRANSACTION_CHECK_TIMES", "15"),
    ("TRAN_PREPARED_QUEUE_OFFSET", "0"),
    ("TXSTORE_SET", "0,0,2"),
    ("TIMER_OUT_MS", "1"),
    ("TXSTORE_DELIVER_MS", "1"),
    ("TIMER_DEL_UNIQKEY", "orders_ID-1"),
    ("TXSTORE_HANDED_OVER_MS", "1"),
];

/// Returns the envelope of a message with properties like the engine's own, as a remote client may send it. In this
/// process it is refused. `own`: its other properties.
pub fn forged_envelope(topic: &str, own: &[(&str, &str)]) -> Held<Envelope> {
    let mut text = Vec::new();
    properties::push(&mut text, "KEYS", "h");
    for (name, value) in FORGED {
        let parts = Parts { topic, properties: &[(name, value)], ..Parts::default() };
        hold(Envelope::new(&parts).is_err(), "T11", || format!("a client may set {name}"))?;
        // The unique id is the client's own. A message that was delivered at its time has no other.
        if name != "UNIQ_KEY" && name != "TIMER_OUT_MS" {
            properties::push(&mut text, name, value);
        }
    }
    for (name, value) in own {
        properties::push(&mut text, name, value);
    }
    let born_host = "127.0.0.1:40000".parse().unwrap();
    let origin = Origin { unique_id: None, sys_flag: 0, born_timestamp: TimestampMs(1), born_host, reconsume_times: 0 };
    Ok(Envelope::received(Topic::new(topic).unwrap(), std::str::from_utf8(&text).unwrap(), 0, origin).unwrap())
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // They are independent of each other.
pub struct Machine {
    pub memory: Memory,
    pub storage: Arc<Watched>,
    pub clock: Arc<ManualClock>,
    pub options: StoreOptions,
    pub history: History,
    pub store: Option<Store>,
    /// The number of the call from which on faults explain errors.
    pub fault: Option<u64>,
    /// Whether readers look at the store while the log is synced.
    pub peeks: bool,
    /// Whether producers send several messages in one transaction.
    pub has_sets: bool,
    /// Whether a full disk explains errors.
    pub fills_disk: bool,
    pub ends: u64,
    /// The number of removed log files.
    pub expired: u64,
    /// The number of delayed messages that were delivered.
    pub delivered: u64,
    /// The number of timed messages that were delivered.
    pub delivered_timed: u64,
    /// The number of timed messages that were recalled.
    pub recalled: u64,
    /// Whether the timed messages were handed over since the last opening, so that the store delivers none.
    pub is_handed_over: bool,
    /// The number of timed messages that were handed over.
    pub handed_over: u64,
    /// The number of those that a broker delivered.
    pub delivered_by_brokers: u64,
    /// Jumps of the wall clock.
    pub jumps: u64,
    pub database: Database,
    pub ages: Ages,
}

impl Machine {
    pub fn new(options: StoreOptions) -> Self {
        let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
        Self::over(Memory::new(), Shadow::default(), clock, options, History::default())
    }

    /// Creates clients with a history over existing files.
    pub fn over(
        memory: Memory,
        shadow: Shadow,
        clock: Arc<ManualClock>,
        options: StoreOptions,
        history: History,
    ) -> Self {
        let memory = memory.with_clock(Arc::clone(&clock) as _);
        let storage = Arc::new(Watched::new(memory.clone(), shadow, Arc::clone(&clock), &options));
        Self {
            memory,
            storage,
            clock,
            options,
            history,
            store: None,
            fault: None,
            peeks: false,
            has_sets: false,
            fills_disk: false,
            ends: 0,
            expired: 0,
            delivered: 0,
            delivered_timed: 0,
            recalled: 0,
            is_handed_over: false,
            handed_over: 0,
            delivered_by_brokers: 0,
            jumps: 0,
            database: Database::default(),
            ages: Ages::default(),
        }
    }

    pub fn try_open(&self) -> Result<Store> {
        self.storage.peeks.store(false, Ordering::Relaxed);
        let opened =
            Store::open_with(Arc::clone(&self.storage) as _, Arc::clone(&self.clock) as _, self.options.clone());
        self.storage.peeks.store(self.peeks, Ordering::Relaxed);
        opened
    }

    pub fn open_reader(&self) -> Result<Store> {
        let options = StoreOptions { read_only: true, ..self.options.clone() };
        Store::open_with(Arc::new(self.memory.clone()), Arc::clone(&self.clock) as _, options)
    }

    /// Returns whether a fault may explain what is seen from now on.
    pub fn is_faulty(&self) -> bool {
        self.fault.is_some_and(|fault| self.memory.calls() >= fault)
    }

    fn failed<T>(&self, error: &Error) -> Held<Option<T>> {
        let is_full = self.fills_disk && matches!(error, Error::DiskFull { .. });
        hold(is_full || self.is_faulty(), "P3", || format!("an error that nothing explains: {error:?}"))?;
        Ok(None)
    }

    pub fn note<T>(&self, result: Result<T>) -> Held<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => self.failed(&error),
        }
    }

    pub fn log_end(store: &Store) -> u64 {
        store.stat().unwrap().max_physical_offset
    }

    /// Takes a step, then notes what readers were shown in the meantime.
    pub fn take(&mut self, step: &Step) -> Held {
        let taken = match step {
            Step::Open => self.open(),
            Step::Pass { ms } => {
                self.clock.advance(*ms);
                Ok(())
            }
            Step::Jump { ms } => {
                self.clock.jump_wall(*ms);
                self.history.jumped |= *ms != 0;
                self.jumps += u64::from(*ms != 0);
                Ok(())
            }
            _ => match self.store.take() {
                Some(store) => {
                    self.clock.advance(1);
                    let taken = self.work(&store, step);
                    self.ages.note_full(&store, &self.options, self.clock.monotonic_ms());
                    if !store.is_closed() {
                        self.store = Some(store);
                    }
                    taken
                }
                None => Ok(()),
            },
        };
        self.history.shown.append(&mut self.storage.shown.lock().unwrap());
        taken
    }

    fn work(&mut self, store: &Store, step: &Step) -> Held {
        match step {
            Step::Send { topic, queue, messages, size } => self.send(store, *topic, *queue, *messages, *size),
            Step::Prepare { topic, queue, size, owner, named, immunity, time } => {
                let (id, time) = (named.then_some("ID-"), time.map(|(ms, is_span)| self.time(ms, is_span)));
                self.prepare(store, (*topic, *queue), *size, *owner, id, (*immunity, time))
            }
            Step::PrepareSet { .. } if !self.has_sets => Ok(()),
            Step::PrepareSet { which, messages, size, owner, time } => {
                let time = time.map(|(ms, is_span)| self.time(ms, is_span));
                self.prepare_set(store, *which, *messages, *size, *owner, time)
            }
            Step::Resend { which, queue } => self.resend(store, *which, *queue),
            Step::BorrowId { which } => self.borrow_id(store, *which),
            Step::End { which, kind, decider } => self.end(store, *which, *kind, *decider),
            Step::WrongEnd { which } => self.wrong_end(store, *which),
            Step::Together { ends } => self.together(store, ends),
            Step::LocalEnds { which } => self.local_ends(store, *which),
            Step::Resume { which } => self.resume(store, *which),
            Step::Check { producers, limit, answer } => self.check_round(store, *producers, *limit, *answer),
            Step::Answer => self.answer(store),
            Step::Consume { topic, queue, group, messages, acknowledge } => {
                self.consume(store, (*topic, *queue, *group), *messages, *acknowledge)
            }
            Step::Look => self.look(store),
            Step::Flush => self.synced(store, Store::flush).map(|_| ()),
            Step::FlushRound => self.synced(store, Store::flush_round).map(|_| ()),
            Step::Snapshot => self.synced(store, Store::snapshot).map(|_| ()),
            Step::WriteOffsets => {
                if self.synced(store, Store::write_offsets)? {
                    self.offsets_are_written();
                }
                Ok(())
            }
            Step::Expire { files, keep_unread } => self.expire(store, *files, *keep_unread),
            Step::FillDisk { kind } => self.fill_disk(store, *kind),
            Step::Retain { reserved_ms } => self.retain(store, *reserved_ms),
            Step::SendDelayed { topic, queue, level, messages } => {
                self.send_delayed(store, (*topic, *queue), *level, *messages)
            }
            Step::Retry { which, level } => self.retry(store, *which, *level),
            Step::Deliver { most } => self.deliver(store, *most),
            Step::SendTimed { topic, queue, times } => self.send_timed(store, (*topic, *queue), times),
            Step::Recall { which } => self.recall(store, *which),
            Step::HandOver => self.hand_over(store),
            Step::BeginRow { topic, queue, size, time } => {
                let time = time.map(|(ms, is_span)| self.time(ms, is_span));
                self.begin_row(store, (*topic, *queue), *size, time)
            }
            Step::EndRow { which, commits, dies } => self.end_row(store, *which, *commits, *dies),
            Step::Delete { topic } => self.delete(store, TOPICS[*topic]),
            Step::Close => self.close(store),
            Step::Open | Step::Pass { .. } | Step::Jump { .. } => Ok(()),
        }
    }

    fn open(&mut self) -> Held {
        if self.store.is_none() {
            let opened = self.try_open();
            self.store = self.note(opened)?;
            self.is_handed_over = false;
        }
        Ok(())
    }

    /// Calls `call`, which makes the log durable.
    fn synced(&mut self, store: &Store, call: impl Fn(&Store) -> Result<()>) -> Held<bool> {
        let end = Self::log_end(store);
        let done = self.note(call(store))?.is_some();
        if done {
            self.history.durable_end = self.history.durable_end.max(end);
        }
        Ok(done)
    }

    /// Notes L2: the acknowledged half survives a power loss, if the options promise it.
    pub fn half_is_acknowledged(&mut self, end: u64) {
        if self.options.transaction_flush_disk_type == FlushDiskType::Sync {
            self.is_durable(end);
        }
    }

    /// Notes that a power loss leaves at least this part of the log.
    pub fn is_durable(&mut self, end: u64) {
        self.history.durable_end = self.history.durable_end.max(end);
    }

    fn offsets_are_written(&mut self) {
        self.history.offsets.values_mut().for_each(|offset| offset.written = offset.last);
    }

    fn close(&mut self, store: &Store) -> Held {
        let end = Self::log_end(store);
        let poisoned = self.is_faulty();
        if self.note(store.close())?.is_some() && !poisoned {
            self.history.durable_end = end;
            self.offsets_are_written();
            self.history.halves.iter_mut().for_each(|half| half.checks_kept = half.checks);
        }
        Ok(())
    }

    pub fn send(&mut self, store: &Store, topic: usize, queue: i32, messages: usize, size: usize) -> Held {
        let name = TOPICS[topic];
        let parts = Parts { topic: name, keys: "k1 k2", tags: Some("t"), ..Parts::default() };
        let envelope = Envelope::new(&parts).unwrap();
        let first = self.history.count + 1;
        for _ in 0..messages {
            let body = self.history.body('m', size);
            let message = Message { topic: name.to_owned(), queue, body, physical_offset: None, end: 0 };
            self.history.messages.insert(self.history.count, message);
        }
        let batch: Vec<_> = (self.history.messages.range(first..))
            .map(|(_, message)| NewMessage { envelope: &envelope, body: &message.body, queue_id: QueueId(queue) })
            .collect();
        let sent = store.append(&batch, Wait::Yes).and_then(Unacknowledged::acknowledged);
        drop(batch);
        let Some(sent) = self.note(sent)? else { return Ok(()) };
        let end = Self::log_end(store);
        for (number, sent) in (first..).zip(&sent) {
            let message = self.history.messages.get_mut(&number).unwrap();
            (message.physical_offset, message.end) = (Some(sent.physical_offset.0), end);
            let read = store.read_at(sent.physical_offset);
            hold(read.is_ok(), "D1", || format!("message {number} was acknowledged and is not visible: {read:?}"))?;
        }
        Ok(())
    }

    /// Stores a half message. `id`: how its unique id begins; `None`: the engine generates one.
    pub fn prepare(
        &mut self,
        store: &Store,
        (topic, queue): (usize, i32),
        size: usize,
        owner: u32,
        id: Option<&str>,
        (immunity, time): (bool, Option<Time>),
    ) -> Held {
        let body = self.history.body('h', size);
        let id = id.map(|id| format!("{id}{}", self.history.count));
        let group = GROUPS[self.history.count as usize % 2];
        let seconds = IMMUNITY_S.to_string();
        let half = Half {
            id: id.clone(),
            group: group.to_owned(),
            topic: TOPICS[topic].to_owned(),
            body: body.clone(),
            copies: Vec::new(),
            end: 0,
            asked: Vec::new(),
            reported: None,
            running: owner != 0,
            checks: 0,
            checks_most: 0,
            checks_kept: 0,
            immunity_ms: immunity.then_some(IMMUNITY_S * 1_000),
            stored_ms: self.clock.monotonic_ms(),
            due_ms: 0,
            foreign: false,
            part: None,
            time,
        };
        let mut envelope = if self.history.count.is_multiple_of(3) {
            let own = time.map(Time::property);
            let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, &**value)).collect();
            forged_envelope(TOPICS[topic], &own)?
        } else {
            timed::envelope(&Parts { topic: TOPICS[topic], keys: "h", ..Parts::default() }, time)
        };
        if immunity {
            let name = txstore::record::properties::CHECK_IMMUNITY_TIME;
            txstore::record::properties::push(&mut envelope.properties, name, &seconds);
        }
        let message = NewMessage { envelope: &envelope, body: &body, queue_id: QueueId(queue) };
        let sent = store
            .prepare(&NewHalfMessage { message, group, unique_id: id.as_deref(), owner }, Wait::Yes)
            .and_then(Unacknowledged::acknowledged);
        self.history.halves.push(half);
        let Some(sent) = self.note(sent)? else { return Ok(()) };
        let copy = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
        let (end, now_ms) = (Self::log_end(store), self.clock.monotonic_ms());
        let half = self.history.halves.last_mut().unwrap();
        half.id = Some(sent.unique_id.to_string());
        half.copies.push(copy);
        half.end = end;
        half.due_ms = now_ms + half.immunity_ms.unwrap_or(TIMEOUT_MS);
        self.half_is_acknowledged(end);
        Ok(())
    }

    /// Resends a half. T12: it is the pending one and writes nothing. After its end it is refused for some minutes,
    /// then it begins a new transaction.
    fn resend(&mut self, store: &Store, which: usize, queue: i32) -> Held {
        let Some(at) = self.pick(which, |half| half.id.is_some() && !half.foreign && half.part.is_none()) else {
            return Ok(());
        };
        let before = self.history.halves[at].clone();
        // The resent message must be equal: what a broker stored has a tag (broker.rs).
        let tags = before.id.as_deref().filter(|id| id.starts_with("BROKER-")).map(|_| "t");
        let parts = Parts { topic: &before.topic, keys: "h", tags, ..Parts::default() };
        let mut envelope = timed::envelope(&parts, before.time);
        if let Some(immunity_ms) = before.immunity_ms {
            let (name, seconds) = (txstore::record::properties::CHECK_IMMUNITY_TIME, immunity_ms / 1_000);
            txstore::record::properties::push(&mut envelope.properties, name, &seconds.to_string());
        }
        let message = NewMessage { envelope: &envelope, body: &before.body, queue_id: QueueId(queue) };
        let half = NewHalfMessage { message, group: &before.group, unique_id: before.id.as_deref(), owner: 0 };
        let (end, faulty) = (Self::log_end(store), self.is_faulty());
        let sent = store.prepare(&half, Wait::Yes).and_then(Unacknowledged::acknowledged);
        // The wall clock may have been set back since.
        if before.time.is_some_and(|time| time.is_too_far(self.clock.wall().0)) {
            let is_refused = matches!(sent, Err(Error::InvalidMessage { .. })) || faulty;
            let sent = sent.map(|_| ());
            hold(is_refused && Self::log_end(store) == end, "D3", || {
                format!("it is too far ahead: {before:?}, {sent:?}")
            })?;
            return Ok(());
        }
        let mut again = Half {
            copies: Vec::new(),
            asked: Vec::new(),
            reported: None,
            running: false,
            checks: 0,
            checks_most: 0,
            checks_kept: 0,
            stored_ms: self.clock.monotonic_ms(),
            due_ms: self.clock.monotonic_ms() + before.immunity_ms.unwrap_or(TIMEOUT_MS),
            ..before.clone()
        };
        let pending = self.pending_like(&before);
        if let Err(txstore::base::error::Error::AlreadyEnded { outcome, .. }) = &sent {
            // It ended in the last minutes. If it was reported to no client, some client must have tried an end.
            let may_have_ended = |half: usize| faulty || !self.history.halves[half].asked.is_empty();
            return hold(pending.is_none_or(may_have_ended), "T12", || {
                format!("a resend of a pending half was refused as {outcome}")
            });
        }
        let Some(sent) = self.note(sent)? else {
            if pending.is_none() {
                self.history.halves.push(again);
            }
            return Ok(());
        };
        let copy = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
        let is_new = Self::log_end(store) > end;
        let known = self.history.half_at(copy).map(|at| self.history.halves[at].end);
        self.half_is_acknowledged(known.unwrap_or_else(|| Self::log_end(store)));
        if let Some(pending) = pending.filter(|_| !faulty) {
            let newest = *self.history.halves[pending].copies.last().unwrap();
            return hold(!is_new && copy == newest, "T12", || {
                format!("{newest:?} is pending, its resend went to {copy:?} (written: {is_new})")
            });
        }
        if is_new {
            again.copies = vec![copy];
            again.end = Self::log_end(store);
            self.history.halves.push(again);
        } else {
            hold(known.is_some(), "T12", || format!("a resend found {copy:?}, which nobody knows"))?;
        }
        Ok(())
    }

    /// Prepares another message under the id of a pending half. T12: it is refused and writes nothing: if it joined the
    /// pending one, a commit would send only the first message.
    fn borrow_id(&mut self, store: &Store, which: usize) -> Held {
        let is_pending =
            |half: &Half| half.reported.is_none() && half.asked.is_empty() && !half.foreign && half.part.is_none();
        let Some(at) = self.pick(which, |half| half.id.is_some() && is_pending(half)) else { return Ok(()) };
        let half = &self.history.halves[at];
        if self.is_faulty() || self.pending_like(half) != Some(at) {
            return Ok(());
        }
        let parts = Parts { topic: &half.topic, keys: "h", tags: Some("another"), ..Parts::default() };
        let envelope = Envelope::new(&parts).unwrap();
        let message = NewMessage { envelope: &envelope, body: &half.body, queue_id: QueueId(0) };
        let end = Self::log_end(store);
        let sent = store.prepare(
            &NewHalfMessage { message, group: &half.group, unique_id: half.id.as_deref(), owner: 0 },
            Wait::Yes,
        );
        let is_refused = matches!(sent, Err(Error::InvalidMessage { .. }));
        let sent = sent.map(|_| ());
        hold(is_refused || self.is_faulty(), "T12", || format!("another message joined {half:?}: {sent:?}"))?;
        hold(Self::log_end(store) == end || self.is_faulty(), "T12", || format!("a refused half was written: {half:?}"))
    }

    /// Returns the pending transaction with the same id, group, topic and body.
    fn pending_like(&self, like: &Half) -> Option<usize> {
        let same = |half: &Half| {
            (&half.id, &half.group, &half.topic, &half.body) == (&like.id, &like.group, &like.topic, &like.body)
        };
        let newest = self.history.halves.iter().rposition(|half| same(half) && !half.copies.is_empty())?;
        (self.history.halves[newest].reported.is_none()).then_some(newest)
    }

    /// Picks a half that exists. Only its local transaction and its checks end a half with a row.
    fn pick(&self, which: usize, wanted: impl Fn(&Half) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.history.halves.len())
            .filter(|at| {
                let half = &self.history.halves[*at];
                // Retention may have removed the record that tells how a broker ended a half.
                let may_be_picked = !(half.foreign && half.reported.is_some() && self.history.minimum_tried > 0);
                !half.copies.is_empty() && may_be_picked && !has_row(half) && leads(half) && wanted(half)
            })
            .collect();
        (!found.is_empty()).then(|| found[which % found.len()])
    }

    pub fn end_of(&self, at: usize, which: usize, kind: EndKind) -> End {
        let half = &self.history.halves[at];
        let copy = half.copies[which % half.copies.len()];
        let group = Some(half.group.clone()).filter(|group| !group.is_empty());
        End { half: copy, kind, transaction_id: half.id.clone(), group, decider: Decider::Producer }
    }

    fn end(&mut self, store: &Store, which: usize, kind: EndKind, decider: Decider) -> Held {
        let Some(at) = self.pick(which, |_| true) else { return Ok(()) };
        self.end_half(store, at, &End { decider, ..self.end_of(at, which / 7, kind) })
    }

    pub fn end_half(&mut self, store: &Store, at: usize, end: &End) -> Held {
        let (before, faulty) = (Self::log_end(store), self.is_faulty());
        let ended = store.end_transaction(end, Wait::Yes);
        self.check_end(at, end, &ended, (before, Self::log_end(store)), faulty)?;
        self.finals_wait(store, before)
    }

    /// Checks T2, T6: an end decides a pending half. The same end again succeeds, any other fails; both write nothing.
    pub fn check_end(
        &mut self,
        at: usize,
        end: &End,
        ended: &Result<txstore::store::Ended>,
        (before, after): (u64, u64),
        faulty: bool,
    ) -> Held {
        let (kind, physical_offset) = (end.kind, end.half.physical_offset);
        let half = &self.history.halves[at];
        // An earlier end, which failed, may have taken effect.
        let tried = |outcome: Outcome| half.asked.iter().any(|(kind, _)| outcome_of(*kind) == outcome);
        let wanted = outcome_of(kind);
        let reported = half.reported.map(|(outcome, _)| outcome);
        let outcome = match ended {
            Ok(ended) => {
                let fits = ended.outcome == wanted
                    && match reported {
                        Some(reported) => ended.already && reported == wanted,
                        None => !ended.already || (tried(wanted) && faulty),
                    };
                hold(fits, "T6", || format!("{kind:?} of {half:?} gave {ended:?}"))?;
                hold(!ended.already || before == after, "T6", || format!("{kind:?} again wrote: {half:?}"))?;
                hold(ended.already || after > before || faulty, "T2", || format!("{kind:?} wrote nothing: {half:?}"))?;
                Some(ended.outcome)
            }
            Err(Error::AlreadyEnded { outcome, .. }) => {
                let fits = reported.map_or_else(|| tried(*outcome) && faulty, |reported| reported == *outcome)
                    && *outcome != wanted;
                hold(fits, "T6", || format!("{kind:?} of {half:?} found {outcome}"))?;
                hold(before == after, "T6", || format!("{kind:?} was refused and wrote: {half:?}"))?;
                Some(*outcome)
            }
            Err(error) => {
                let foreign =
                    half.foreign && matches!(error, Error::InvalidName { .. } | Error::TransactionNotFound { .. });
                if !foreign {
                    self.failed::<()>(error)?;
                }
                None
            }
        };
        if outcome.is_some() && (kind == EndKind::Discard || end.decider == Decider::Operator) {
            self.is_durable(after);
        }
        for part in self.parts(at) {
            let half = &mut self.history.halves[part];
            half.asked.push((kind, if part == at { physical_offset } else { half.copies[0].physical_offset }));
            if let Some(outcome) = outcome.filter(|_| half.reported.is_none()) {
                half.reported = Some((outcome, after));
                self.ends += u64::from(part == at);
            }
        }
        Ok(())
    }

    /// Sends a wrong end. T6: an end of something that is not a half, or of another group's half, is an exact error and
    /// writes nothing.
    fn wrong_end(&mut self, store: &Store, which: usize) -> Held {
        let Some(at) = self.pick(which, |half| !half.foreign) else { return Ok(()) };
        let before = Self::log_end(store);
        let right = self.end_of(at, 0, EndKind::Commit);
        let HalfCopy { queue_offset, physical_offset } = right.half;
        let wrong = [
            End { group: Some("strangers".into()), ..right.clone() },
            End { half: HalfCopy { queue_offset, physical_offset: physical_offset + 1 }, ..right.clone() },
            End { half: HalfCopy { queue_offset: queue_offset + 1_000, physical_offset }, ..right.clone() },
            End { transaction_id: Some("nobody's".into()), ..right },
        ];
        for end in wrong {
            let what = format!("{end:?}");
            let ended = store.end_transaction(&end, Wait::Yes);
            let refused = matches!(ended, Err(Error::WrongGroup { .. } | Error::TransactionNotFound { .. }));
            hold(refused || self.is_faulty(), "T6", || format!("{what} gave {ended:?}"))?;
        }
        hold(Self::log_end(store) == before, "T6", || "a refused end wrote".into())
    }

    fn together(&mut self, store: &Store, ends: &[(usize, EndKind)]) -> Held {
        let mut chosen: Vec<(usize, EndKind)> = Vec::new();
        for (which, kind) in ends {
            let fresh = |half: &Half| half.reported.is_none();
            if let Some(at) = self.pick(*which, fresh).filter(|at| chosen.iter().all(|(other, _)| other != at)) {
                chosen.push((at, *kind));
            }
        }
        let faulty = self.is_faulty();
        let before = Self::log_end(store);
        let ends: Vec<End> = chosen.iter().map(|(at, kind)| self.end_of(*at, 0, *kind)).collect();
        let results = store.end_together(ends.clone());
        let after = Self::log_end(store);
        for (((at, _), end), ended) in chosen.into_iter().zip(&ends).zip(results) {
            self.check_end(at, end, &ended, (before, after), faulty)?;
        }
        self.finals_wait(store, before)
    }

    fn local_ends(&mut self, store: &Store, which: usize) -> Held {
        let Some(at) = self.pick(which, |half| half.running && half.reported.is_none()) else { return Ok(()) };
        self.local_ended(store, at)
    }

    pub fn local_ended(&mut self, store: &Store, at: usize) -> Held {
        let newest = *self.history.halves[at].copies.last().unwrap();
        self.note(store.local_transaction_ended(newest.queue_offset))?;
        let now_ms = self.clock.monotonic_ms();
        let half = &mut self.history.halves[at];
        half.running = false;
        half.due_ms = now_ms + half.immunity_ms.unwrap_or(TIMEOUT_MS);
        Ok(())
    }

    fn resume(&mut self, store: &Store, which: usize) -> Held {
        let discarded = |half: &Half| half.reported.is_some_and(|(outcome, _)| outcome == Outcome::Discarded);
        let Some(at) = self.pick(which, |half| half.id.is_some() && discarded(half)) else { return Ok(()) };
        let before = self.history.halves[at].clone();
        let (end, halves, faulty) = (Self::log_end(store), half_queue_end(store), self.is_faulty());
        let sent = store.resume(before.id.as_deref().unwrap());
        let newest = self.history.halves.iter().rposition(|half| half.id == before.id).unwrap();
        let expected = discarded(&self.history.halves[newest]);
        match sent {
            Err(Error::StillPending { .. } | Error::AlreadyEnded { .. }) if !expected || faulty || before.foreign => {
                hold(Self::log_end(store) == end, "T6", || "a refused resume wrote".into())
            }
            Err(error) => {
                if expected {
                    self.resumed(store, at, None, 0)?;
                }
                self.failed::<()>(&error).map(|_| ())
            }
            Ok(sent) => {
                hold(expected || faulty || before.foreign, "T12", || {
                    format!("a resume of {:?}", self.history.halves[newest])
                })?;
                let copy = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
                self.resumed(store, at, Some(copy), half_queue_end(store) - halves)
            }
        }
    }
}
