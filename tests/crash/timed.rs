//! Simulates messages that are delivered at a given time, and checks that each is delivered once and never early.
//!
//! In:     a machine and its store.
//! Out:    the history continues, or the promise that is broken.
//! Always: a message is due by the wall clock alone (docs/operate/failures.md), as the simulation's own clock shows it.
//! Not here: what the log says after a crash (waits.rs).

use txstore::base::clock::Clock as _;
use txstore::base::error::Error;
use txstore::base::units::{PhysicalOffset, QueueId};
use txstore::record::RecordView;
use txstore::record::message::{Envelope, Parts};
use txstore::record::properties;
use txstore::record::timer::Timer;
use txstore::store::{NewMessage, Recall, Store, StoredRecord, Unacknowledged, Wait};

use crate::history::{Half, Held, History, Message, TOPICS, broken, hold};
use crate::machine::{Machine, forged_envelope};
use crate::promises::Found;
use crate::waits::{AFTER, AT, OF_HALF, REAL_QUEUE, REAL_TOPIC, WAITING, WHEEL, due_ms, is_committed};

/// By how much a message's time differs from that of its sending, in milliseconds: some passed, some soon.
pub const AHEAD_MS: [i64; 9] = [-5_000, 0, 1, 3, 300, 500, 900, 1_200, 7_000];
/// The same for those that are far.
pub const FAR_AHEAD_MS: [i64; 3] = [40_000, 3_600_000, 200_000_000];

/// When a message is to be delivered, as a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// At this time of the wall clock.
    At(i64),
    /// This many milliseconds after it is sent, or its transaction committed.
    After(i64),
}

impl Time {
    /// Returns the time of a half message; `None` if its message is delivered with the commit.
    pub fn of_half(view: &RecordView<'_>) -> Option<Self> {
        let text = view.properties.get_str(OF_HALF)?;
        match text.strip_prefix('+') {
            Some(ms) => ms.parse().ok().map(Self::After),
            None => text.parse().ok().map(Self::At),
        }
    }

    /// Returns when a message is due whose wait would begin at `wall_ms`; `None`: at once.
    fn due_ms(self, wall_ms: i64) -> Option<i64> {
        let due_ms = match self {
            Self::At(ms) => ms,
            Self::After(ms) => wall_ms + ms,
        };
        Some(due_ms).filter(|due_ms| *due_ms > wall_ms)
    }

    /// Returns whether a message with this time is refused, as `timer_max_delay_sec` says: three days.
    pub const fn is_too_far(self, wall_ms: i64) -> bool {
        matches!(self, Self::At(ms) if ms > wall_ms + 259_200_000)
    }

    /// Returns the property by which a remote client says it.
    pub fn property(self) -> (&'static str, String) {
        match self {
            Self::At(ms) => (AT, ms.to_string()),
            Self::After(ms) => (AFTER, ms.to_string()),
        }
    }
}

/// Returns the envelope of a message with a time.
pub fn envelope(parts: &Parts<'_>, time: Option<Time>) -> Envelope {
    let deliver_ms = time.and_then(|time| if let Time::At(ms) = time { Some(ms) } else { None });
    let mut envelope = Envelope::new(&Parts { deliver_ms, ..parts.clone() }).unwrap();
    if let Some(Time::After(ms)) = time {
        properties::push(&mut envelope.properties, AFTER, &ms.to_string());
        envelope.timer = Some(Timer::After(ms));
    }
    envelope
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Delivered,
    Recalled,
}

/// A message that waits for its time, or has waited: a client sent it, or its transaction was committed.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // They are independent of each other.
pub struct Timed {
    pub topic: String,
    pub queue: i32,
    pub body: Vec<u8>,
    pub due_ms: i64,
    pub id: Option<String>,
    /// Where it waits; `None`: no client got an answer.
    pub physical_offset: Option<u64>,
    /// The log's end when a client got the answer.
    pub end: u64,
    /// A recall was tried, perhaps without an answer.
    pub recall_tried: bool,
    /// A call failed that may have begun or ended its wait.
    pub is_doubtful: bool,
    /// Where it waited before it was moved.
    pub before: Vec<u64>,
    /// It waits in a broker's timer.
    pub is_handed_over: bool,
    /// A hand-over failed that may have moved it.
    pub may_be_moved: bool,
    /// How its wait ended, the physical offset of the record that ended it if it is known, and the log's end then.
    pub ended: Option<(End, Option<u64>, u64)>,
}

impl Timed {
    pub const fn is_waiting(&self) -> bool {
        self.physical_offset.is_some() && self.ended.is_none()
    }

    /// Returns whether it waits at its physical offset, whatever calls that failed have done.
    pub const fn waits_certainly(&self) -> bool {
        self.is_waiting() && !self.recall_tried && !self.is_doubtful && !self.may_be_moved
    }

    /// Returns where it was delivered.
    pub const fn delivered(&self) -> Option<u64> {
        match self.ended {
            Some((End::Delivered, physical_offset, _)) => physical_offset,
            _ => None,
        }
    }
}

impl History {
    /// Returns the lowest physical offset of a message that waits for its time.
    pub fn lowest_timed(&self) -> u64 {
        let waiting = self.timed.iter().filter(|one| one.waits_certainly());
        waiting.filter_map(|one| one.physical_offset).min().unwrap_or(u64::MAX)
    }

    /// Returns how many messages wait.
    pub fn timed_waiting(&self) -> u64 {
        self.timed.iter().filter(|one| one.is_waiting()).count() as u64
    }

    /// Replaces the timed messages by those that were found.
    pub fn adopt_timed(&mut self, found: &Found) {
        let adopted = found.timed.iter().map(|one| {
            let view = found.log[one.record].view().unwrap();
            let real = |name| view.properties.get_str(name).unwrap_or_default();
            Timed {
                topic: real(REAL_TOPIC).to_owned(),
                queue: real(REAL_QUEUE).parse().unwrap(),
                body: view.body.to_vec(),
                due_ms: one.due_ms,
                id: view.unique_id().map(str::to_owned),
                physical_offset: Some(one.physical_offset),
                end: found.end,
                recall_tried: false,
                is_doubtful: false,
                is_handed_over: view.topic == WHEEL,
                before: one.before.clone(),
                may_be_moved: false,
                ended: one.end().map(|(end, physical_offset)| (end, Some(physical_offset), found.end)),
            }
        });
        self.timed = adopted.collect();
    }

    pub fn timed_at(&mut self, physical_offset: u64) -> Option<&mut Timed> {
        self.timed.iter_mut().find(|one| one.physical_offset == Some(physical_offset))
    }
}

impl Machine {
    /// Returns a time that differs from now by `ahead_ms`.
    pub fn time(&self, ahead_ms: i64, is_span: bool) -> Time {
        if is_span && ahead_ms >= 0 { Time::After(ahead_ms) } else { Time::At(self.clock.wall().0 + ahead_ms) }
    }

    /// Sends messages with times as one batch. One whose time has passed is sent like one without.
    pub fn send_timed(&mut self, store: &Store, (topic, queue): (usize, i32), times: &[(i64, bool)]) -> Held {
        let (name, wall_ms) = (TOPICS[topic], self.clock.wall().0);
        let (first, first_timed) = (self.history.count + 1, self.history.timed.len());
        let mut batch = Vec::new();
        for (ahead_ms, is_span) in times {
            let (ahead_ms, time) = (*ahead_ms, self.time(*ahead_ms, *is_span));
            let body = self.history.body(if ahead_ms > 0 { 't' } else { 'm' }, 40);
            if ahead_ms > 0 {
                self.history.timed.push(Timed {
                    topic: name.to_owned(),
                    queue,
                    body: body.clone(),
                    due_ms: wall_ms + ahead_ms,
                    id: None,
                    physical_offset: None,
                    end: 0,
                    recall_tried: false,
                    is_doubtful: false,
                    is_handed_over: false,
                    before: Vec::new(),
                    may_be_moved: false,
                    ended: None,
                });
            } else {
                let message =
                    Message { topic: name.to_owned(), queue, body: body.clone(), physical_offset: None, end: 0 };
                self.history.messages.insert(self.history.count, message);
            }
            let envelope = if self.history.count.is_multiple_of(3) {
                let (timer, value) = time.property();
                forged_envelope(name, &[("TAGS", "t"), (timer, &value)])?
            } else {
                envelope(&Parts { topic: name, keys: "k1", tags: Some("t"), ..Parts::default() }, Some(time))
            };
            batch.push((envelope, body));
        }
        let messages: Vec<_> =
            (batch.iter()).map(|(envelope, body)| NewMessage { envelope, body, queue_id: QueueId(queue) }).collect();
        let sent = store.append(&messages, Wait::Yes).and_then(Unacknowledged::acknowledged);
        let Some(sent) = self.note(sent)? else { return Ok(()) };
        let (end, mut timed) = (Self::log_end(store), self.history.timed[first_timed..].iter_mut());
        for (number, sent) in (first..).zip(&sent) {
            let due_ms = if let Some(message) = self.history.messages.get_mut(&number) {
                (message.physical_offset, message.end) = (Some(sent.physical_offset.0), end);
                None
            } else {
                let one = timed.next().unwrap();
                (one.physical_offset, one.end) = (Some(sent.physical_offset.0), end);
                one.id = Some(sent.unique_id.to_string());
                Some(one.due_ms)
            };
            hold(sent.due_ms == due_ms, "D3", || format!("at {wall_ms} message {number} is due {due_ms:?}: {sent:?}"))?;
            let read = store.read_at(sent.physical_offset);
            hold(read.is_ok(), "D1", || format!("message {number} was acknowledged and is not visible: {read:?}"))?;
        }
        Ok(())
    }

    /// Recalls a message. D3: one that waits is never delivered then. What does not wait is an exact error, and writes
    /// nothing.
    pub fn recall(&mut self, store: &Store, which: usize) -> Held {
        let found: Vec<usize> =
            (0..self.history.timed.len()).filter(|at| self.history.timed[*at].id.is_some()).collect();
        if found.is_empty() {
            return Ok(());
        }
        let (at, faulty, before) = (found[which % found.len()], self.is_faulty(), Self::log_end(store));
        let one = self.history.timed[at].clone();
        let recall = Recall { topic: &one.topic, unique_id: one.id.as_deref().unwrap(), due_ms: one.due_ms };
        for wrong in [Recall { topic: "others", ..recall }, Recall { due_ms: recall.due_ms + 1, ..recall }] {
            let recalled = store.recall(&wrong).map(|_| ());
            let is_refused = matches!(recalled, Err(Error::MessageNotFound { .. }));
            hold(is_refused || faulty, "D3", || format!("{wrong:?} of {one:?} gave {recalled:?}"))?;
        }
        hold(Self::log_end(store) == before, "D3", || format!("a refused recall of {one:?} wrote"))?;
        // A half that was resent long after its end is another transaction with the same names.
        let names = (&one.topic, &one.id, one.due_ms);
        let timed = &self.history.timed;
        let same: Vec<usize> = (0..timed.len())
            .filter(|at| timed[*at].is_waiting() && (&timed[*at].topic, &timed[*at].id, timed[*at].due_ms) == names)
            .collect();
        let tried: Vec<bool> = same.iter().map(|at| timed[*at].recall_tried).collect();
        for at in &same {
            self.history.timed[*at].recall_tried = true;
        }
        match store.recall(&recall).and_then(Unacknowledged::acknowledged) {
            Ok(physical_offset) => {
                let is_it = |at: &&usize| self.history.timed[**at].physical_offset == Some(physical_offset.0);
                let Some(it) = same.iter().find(is_it) else {
                    return broken("D3", format!("{physical_offset:?} was recalled: {one:?}"));
                };
                let end = Self::log_end(store);
                self.history.timed[*it].ended = Some((End::Recalled, None, end));
                self.is_durable(end);
                self.recalled += 1;
                Ok(())
            }
            Err(Error::MessageNotFound { .. }) => {
                for (at, tried) in same.iter().zip(tried) {
                    self.history.timed[*at].recall_tried = tried;
                }
                hold(same.is_empty() || faulty || self.is_handed_over, "D3", || format!("it is not found: {one:?}"))?;
                hold(Self::log_end(store) == before, "D3", || format!("a refused recall of {one:?} wrote"))
            }
            Err(error) => self.note::<()>(Err(error)).map(|_| ()),
        }
    }

    /// Notes the messages that a commit made wait. D3: those are the ones whose time is yet to come.
    pub fn finals_wait(&mut self, store: &Store, before: u64) -> Held {
        if self.history.halves.iter().all(|half| half.time.is_none()) {
            return Ok(());
        }
        let Some((records, _)) = self.note(store.scan(PhysicalOffset(before), usize::MAX))? else { return Ok(()) };
        let (wall_ms, end) = (self.clock.wall().0, Self::log_end(store));
        for view in records.iter().map(|record| record.view().unwrap()).filter(is_committed) {
            let named = view.prepared_transaction_offset.0;
            let is_named = |half: &&Half| half.copies.iter().any(|copy| copy.physical_offset == named);
            let Some(half) = self.history.halves.iter().find(is_named) else { continue };
            let expected = half.time.and_then(|time| time.due_ms(wall_ms));
            let found = due_ms(&view).filter(|_| view.topic == WAITING);
            hold(found == expected, "D3", || format!("committed at {wall_ms}, it is due {expected:?}: {view:?}"))?;
            let Some(due_ms) = expected else { continue };
            self.history.timed.push(Timed {
                topic: half.topic.clone(),
                queue: view.properties.get_str(REAL_QUEUE).unwrap_or_default().parse().unwrap(),
                body: half.body.clone(),
                due_ms,
                id: half.id.clone(),
                physical_offset: Some(view.physical_offset.0),
                end,
                recall_tried: false,
                is_doubtful: half.reported.is_none(),
                is_handed_over: false,
                before: Vec::new(),
                may_be_moved: false,
                ended: None,
            });
        }
        Ok(())
    }

    /// Notes deliveries. D3: all messages that are due, and no other, in the order of their times. Returns in how many
    /// milliseconds the next one is due.
    pub fn timed_are_delivered(
        &mut self,
        deliveries: &[RecordView<'_>],
        most: usize,
        faulty: bool,
        end: u64,
    ) -> Held<Option<i64>> {
        let wall_ms = self.clock.wall().0;
        let is_due = |one: &&Timed| one.is_waiting() && !self.is_handed_over;
        let waiting = self.history.timed.iter().filter(is_due);
        let mut waiting: Vec<(i64, u64)> = waiting.map(|one| (one.due_ms, one.physical_offset.unwrap())).collect();
        waiting.sort_unstable();
        let is_due = waiting.partition_point(|(due_ms, _)| *due_ms <= wall_ms);
        let mut delivered = Vec::new();
        for view in deliveries {
            let named = view.prepared_transaction_offset.0;
            let Some(one) = self.history.timed_at(named) else {
                hold(faulty, "D3", || format!("it did not wait: {view:?}"))?;
                continue;
            };
            let early_ms = one.due_ms - wall_ms;
            hold(early_ms <= 0, "D3", || format!("delivered {early_ms} ms early at {wall_ms}: {one:?}"))?;
            hold(one.ended.is_none(), "D3", || format!("delivered after its wait ended: {one:?}"))?;
            one.ended = Some((End::Delivered, Some(view.physical_offset.0), end));
            delivered.push((one.due_ms, named));
        }
        self.delivered_timed += deliveries.len() as u64;
        if faulty {
            return Ok(None);
        }
        let expected = &waiting[..is_due.min(most)];
        hold(delivered == expected, "D3", || {
            format!("it is {wall_ms}, delivered were {delivered:?}, not {expected:?}")
        })?;
        let next = waiting.get(expected.len()).map(|(due_ms, _)| (*due_ms - wall_ms).max(0));
        Ok(next)
    }

    /// Notes that a call failed after it may have delivered messages.
    pub fn may_be_delivered(&mut self, records: &[StoredRecord]) {
        for view in records.iter().map(|record| record.view().unwrap()) {
            let named = view.prepared_transaction_offset.0;
            self.history.timed_at(named).into_iter().for_each(|one| one.is_doubtful = true);
            let mut delayed = self.history.delayed.iter_mut();
            delayed.find(|one| one.physical_offset == Some(named)).into_iter().for_each(|one| one.is_doubtful = true);
        }
    }

    /// Waits for the last timed message.
    pub fn wait_for_timed(&mut self) {
        let waiting = self.history.timed.iter().filter(|one| one.is_waiting());
        let left_ms = waiting.map(|one| one.due_ms).max().unwrap_or(0) - self.clock.wall().0;
        if left_ms > 0 && self.history.jumped {
            self.clock.jump_wall(left_ms);
        } else {
            self.clock.advance(left_ms.max(0));
        }
    }
}
