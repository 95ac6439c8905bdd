//! Simulates delayed messages and retries, and checks when they are delivered.
//!
//! In:     a machine and its store; the records of a log.
//! Out:    the history continues, or the promise that is broken.
//! Always: a message is due by the rule in docs/operate/failures.md ("The clock jumps"), computed here from the
//!         simulation's own clocks: by the monotonic clock while the store is open. One that an opening finds is due by
//!         the wall clock of that moment, but never later than its level. Each level keeps its order.

use std::collections::BTreeMap;

use txstore::base::clock::Clock;
use txstore::base::names::SCHEDULE_TOPIC;
use txstore::base::units::{PhysicalOffset, QueueId};
use txstore::record::message::{Envelope, Parts};
use txstore::record::properties::{DELAY, REAL_QUEUE_ID, REAL_TOPIC};
use txstore::record::{RecordView, TransactionType};
use txstore::store::{Copy, NewMessage, Store, Unacknowledged, Wait};

use crate::history::{Held, History, TOPICS, broken, hold, number_of};
use crate::machine::Machine;
use crate::promises::{Expected, Found};
use crate::waits::is_delivery;

/// The topic of a group's retries.
pub const RETRIES: &str = "%RETRY%shipping";
/// The delay levels that clients use.
pub const LEVELS: [u8; 6] = [1, 2, 3, 4, 5, 18];
/// The longest delay.
pub const LONGEST_MS: i64 = 7_200_000;

/// Returns the delay of a level as docs/publish/consumers.md lists it.
fn level_ms(level: u8) -> i64 {
    match level {
        1 => 1_000,
        2 => 5_000,
        3 => 10_000,
        4 => 30_000,
        5 => 60_000,
        _ => LONGEST_MS,
    }
}

/// A delayed message or a retry that a client sent.
#[derive(Clone, Debug)]
pub struct Delayed {
    pub topic: String,
    pub queue: i32,
    pub level: u8,
    pub body: Vec<u8>,
    /// Where it waits; `None`: no client got an answer.
    pub physical_offset: Option<u64>,
    /// The log's end when a client got the answer.
    pub end: u64,
    /// The wall clock when it was sent.
    wall_ms: i64,
    /// Its store time, which is later if the wall clock was ahead before.
    stored_ms: i64,
    /// The earliest and the latest time at which it is due, on the monotonic clock.
    due_ms: (i64, i64),
    /// Where it was delivered, and the log's end then.
    pub delivered: Option<(u64, u64)>,
    /// A call failed that may have delivered it.
    pub is_doubtful: bool,
}

impl Delayed {
    fn is_waiting(&self) -> bool {
        self.physical_offset.is_some() && self.delivered.is_none()
    }

    fn waits_certainly(&self) -> bool {
        self.is_waiting() && !self.is_doubtful
    }

    /// Notes that an opening found it.
    fn seen(&mut self, clock: &dyn Clock) {
        let (wall_ms, now_ms, level_ms) = (clock.wall().0, clock.monotonic_ms(), level_ms(self.level));
        let due = |sent_ms: i64| now_ms + (sent_ms + level_ms - wall_ms).clamp(0, level_ms);
        // Recovery knows only the store time of a message whose queue entry is lost.
        self.due_ms = (due(self.wall_ms), due(self.wall_ms.max(self.stored_ms)));
    }
}

/// A delayed message as found in the log.
#[derive(Clone, Debug)]
pub struct FoundDelayed {
    known: usize,
    physical_offset: u64,
    stored_ms: i64,
    delivered: Option<u64>,
}

/// Returns whether a record waits for its time, or is a retry or a delayed message that was delivered.
pub fn concerns(view: &RecordView<'_>) -> bool {
    view.topic == SCHEDULE_TOPIC || view.topic == RETRIES || matches!(number_of(view.body), Some(('d', _)))
}

impl History {
    /// Returns the lowest physical offset of a message that waits for its time.
    pub fn lowest_delayed(&self) -> u64 {
        let waiting = self.delayed.iter().filter(|one| one.waits_certainly());
        waiting.filter_map(|one| one.physical_offset).min().unwrap_or(u64::MAX)
    }

    /// Replaces the delayed messages by those that were found.
    pub fn adopt_delayed(&mut self, found: &Found, clock: &dyn Clock) {
        let adopted = found.delayed.iter().map(|one| {
            let mut delayed = self.delayed[one.known].clone();
            (delayed.physical_offset, delayed.end) = (Some(one.physical_offset), found.end);
            delayed.stored_ms = one.stored_ms;
            delayed.delivered = one.delivered.map(|physical_offset| (physical_offset, found.end));
            delayed.is_doubtful = false;
            delayed
        });
        self.delayed = adopted.collect();
        self.see_delayed(clock);
    }

    /// Notes that an opening found all delayed messages.
    pub fn see_delayed(&mut self, clock: &dyn Clock) {
        self.delayed.iter_mut().for_each(|one| one.seen(clock));
    }
}

impl Machine {
    fn delayed(&self, topic: &str, queue: i32, level: u8, body: Vec<u8>) -> Delayed {
        let due_ms = self.clock.monotonic_ms() + level_ms(level);
        Delayed {
            topic: topic.to_owned(),
            queue,
            level,
            body,
            physical_offset: None,
            end: 0,
            wall_ms: self.clock.wall().0,
            stored_ms: 0,
            due_ms: (due_ms, due_ms),
            delivered: None,
            is_doubtful: false,
        }
    }

    /// Notes that the last delayed messages were acknowledged.
    fn are_delayed(&mut self, store: &Store, offsets: &[PhysicalOffset]) -> Held {
        let (end, first) = (Self::log_end(store), self.history.delayed.len() - offsets.len());
        for (delayed, physical_offset) in self.history.delayed[first..].iter_mut().zip(offsets) {
            (delayed.physical_offset, delayed.end) = (Some(physical_offset.0), end);
            let read = store.read_at(*physical_offset);
            let Ok(read) = read else { return broken("D1", format!("{delayed:?} was acknowledged: {read:?}")) };
            delayed.stored_ms = read.view().unwrap().store_timestamp.0;
        }
        Ok(())
    }

    /// Sends delayed messages as one batch.
    pub fn send_delayed(&mut self, store: &Store, target: (usize, i32), level: u8, messages: usize) -> Held {
        let (topic, queue) = (TOPICS[target.0], target.1);
        let parts = Parts { topic, keys: "k1", tags: Some("t"), delay_level: level.into(), ..Parts::default() };
        let envelope = Envelope::new(&parts).unwrap();
        let first = self.history.delayed.len();
        for _ in 0..messages {
            let body = self.history.body('d', 30);
            let delayed = self.delayed(topic, queue, level, body);
            self.history.delayed.push(delayed);
        }
        let batch: Vec<_> = (self.history.delayed[first..].iter())
            .map(|delayed| NewMessage { envelope: &envelope, body: &delayed.body, queue_id: QueueId(queue) })
            .collect();
        let sent = store.append(&batch, Wait::Yes).and_then(Unacknowledged::acknowledged);
        drop(batch);
        let Some(sent) = self.note(sent)? else { return Ok(()) };
        let offsets: Vec<_> = sent.iter().map(|sent| sent.physical_offset).collect();
        self.are_delayed(store, &offsets)
    }

    /// A consumer wants a message again, after a delay.
    pub fn retry(&mut self, store: &Store, which: usize, level: u8) -> Held {
        let sources: Vec<(u64, Vec<u8>)> = (self.history.messages.values())
            .filter_map(|message| Some((message.physical_offset?, message.body.clone())))
            .chain(self.history.delayed.iter().filter_map(|one| Some((one.delivered?.0, one.body.clone()))))
            .chain(self.history.timed.iter().filter_map(|one| Some((one.delivered()?, one.body.clone()))))
            .filter(|(_, body)| !matches!(number_of(body), Some(('h', _))))
            .collect();
        if sources.is_empty() {
            return Ok(());
        }
        let (physical_offset, body) = sources[which % sources.len()].clone();
        let delayed = self.delayed(RETRIES, 0, level, body);
        self.history.delayed.push(delayed);
        let copy =
            Copy { topic: RETRIES, queue_id: QueueId(0), delay_level: level, reconsume_times: 1, properties: &[] };
        let sent = store.append_copy(PhysicalOffset(physical_offset), &copy);
        let Some(sent) = self.note(sent)? else { return Ok(()) };
        self.are_delayed(store, &[sent.physical_offset])
    }

    /// Delivers what is due. D3: all that is due and nothing else, in the order of each level and of the times.
    pub fn deliver(&mut self, store: &Store, most: usize) -> Held {
        let (end, faulty, now_ms) = (Self::log_end(store), self.is_faulty(), self.clock.monotonic_ms());
        let delivered = self.note(store.deliver_delayed(most))?;
        let new_end = Self::log_end(store);
        let Some((records, _)) = self.note(store.scan(PhysicalOffset(end), usize::MAX))? else { return Ok(()) };
        let Some(delivered) = delivered else {
            self.may_be_delivered(&records);
            return Ok(());
        };
        hold(delivered.passed_over.is_empty(), "D3", || format!("{:?}", delivered.passed_over))?;
        hold(records.len() == delivered.messages, "D3", || format!("{} new records: {delivered:?}", records.len()))?;
        let views = records.iter().map(|record| record.view().unwrap());
        let (timed, levels): (Vec<_>, Vec<_>) = views.partition(is_delivery);
        let next_timed_ms = self.timed_are_delivered(&timed, most, faulty, new_end)?;
        for view in &levels {
            let named = view.prepared_transaction_offset.0;
            let known = self.history.delayed.iter_mut().find(|one| one.physical_offset == Some(named));
            let Some(known) = known else { return broken("D3", format!("it was not delayed: {view:?}")) };
            let early = known.due_ms.0 - now_ms;
            hold(early <= 0, "D3", || format!("delivered {early} ms early at {now_ms}: {known:?}"))?;
            hold(known.delivered.is_none(), "D3", || format!("delivered twice: {known:?}"))?;
            known.delivered = Some((view.physical_offset.0, new_end));
            self.delivered += 1;
        }
        if faulty {
            return Ok(());
        }
        let heads = self.next_of_each_level()?;
        if levels.len() < most {
            let late = heads.iter().find(|one| one.due_ms.1 <= now_ms);
            hold(late.is_none(), "D3", || format!("it is {now_ms}, and not delivered is {late:?}"))?;
            let next_in_ms = delivered.next_in_ms.unwrap_or(i64::MAX);
            let next =
                |due_ms: fn(&Delayed) -> i64| heads.iter().map(|one| due_ms(one) - now_ms).chain(next_timed_ms).min();
            let earliest = next(|one| one.due_ms.0).unwrap_or(i64::MAX);
            let latest = next(|one| one.due_ms.1).unwrap_or(i64::MAX);
            hold((earliest..=latest).contains(&next_in_ms), "D3", || {
                let timed = format!("the next timed one in {next_timed_ms:?} ms");
                format!("the next is due in {next_in_ms} ms, expected {earliest} to {latest}: {heads:?}, {timed}")
            })?;
        }
        Ok(())
    }

    /// Returns the first message of each level that waits. D3: none after it was delivered.
    fn next_of_each_level(&self) -> Held<Vec<&Delayed>> {
        let mut heads: BTreeMap<u8, &Delayed> = BTreeMap::new();
        let mut all: Vec<&Delayed> = self.history.delayed.iter().filter(|one| one.physical_offset.is_some()).collect();
        all.sort_by_key(|one| one.physical_offset);
        for one in all {
            match heads.get(&one.level) {
                Some(head) if !one.is_waiting() => {
                    return broken("D3", format!("{one:?} was delivered before {head:?}"));
                }
                None if one.is_waiting() => {
                    heads.insert(one.level, one);
                }
                _ => {}
            }
        }
        Ok(heads.into_values().collect())
    }

    /// Waits for all delayed messages, and delivers them.
    pub fn deliver_all(&mut self, store: &Store) -> Held {
        self.clock.advance(LONGEST_MS);
        self.wait_for_timed();
        self.deliver(store, usize::MAX)?;
        let left = self.history.delayed.iter().find(|one| one.is_waiting());
        hold(left.is_none(), "D3", || format!("never delivered: {left:?}"))?;
        hold(self.history.timed_waiting() == 0, "D3", || format!("never delivered: {:?}", self.history.timed))
    }
}

/// Checks D3, L2: each delayed message is in the log if it must be, was delivered at most once, as it was sent, in the
/// order of its level.
pub fn look(log: &[RecordView<'_>], expected: &Expected<'_>, minimum: u64, found: &mut Found) -> Held {
    let known = &expected.history.delayed;
    for view in log.iter().filter(|view| concerns(view)) {
        if view.topic == SCHEDULE_TOPIC {
            let one = FoundDelayed {
                known: sent(view, known, &found.delayed)?,
                physical_offset: view.physical_offset.0,
                stored_ms: view.store_timestamp.0,
                delivered: None,
            };
            found.delayed.push(one);
            continue;
        }
        let named = view.prepared_transaction_offset.0;
        if named < minimum {
            continue;
        }
        let waited = found.delayed.iter_mut().find(|one| one.physical_offset == named);
        let Some(waited) = waited else { return broken("D3", format!("it was not delayed: {view:?}")) };
        hold(waited.delivered.is_none(), "D3", || format!("delivered twice: at {:?} and {view:?}", waited.delivered))?;
        waited.delivered = Some(view.physical_offset.0);
        let one = &known[waited.known];
        let hidden = view.properties.iter().any(|(name, _)| [DELAY, REAL_TOPIC].map(str::as_bytes).contains(&name));
        let same = (view.topic, view.queue_id.0, view.body) == (&*one.topic, one.queue, &*one.body)
            && view.transaction_type() == TransactionType::None
            && view.properties.get_str("TAGS") == Some("t");
        hold(same && !hidden, "D3", || format!("{one:?} was delivered as {view:?}"))?;
    }
    let removed = known.iter().find(|one| one.waits_certainly() && one.physical_offset.is_some_and(|at| at < minimum));
    hold(removed.is_none(), "D3", || format!("the log begins at {minimum}, not delivered was {removed:?}"))?;
    for one in known.iter().filter(|one| one.end <= expected.must_end) {
        let Some(physical_offset) = one.physical_offset.filter(|at| *at >= minimum) else { continue };
        let there = found.delayed.iter().find(|found| found.physical_offset == physical_offset);
        let Some(there) = there else { return broken("L2", format!("it is lost: {one:?}")) };
        let delivered = one.delivered.filter(|(_, end)| *end <= expected.must_end).map(|(at, _)| at);
        hold(delivered.is_none_or(|at| there.delivered == Some(at)), "L2", || {
            format!("its delivery is lost: {one:?}, {there:?}")
        })?;
    }
    Ok(())
}

/// Returns the delayed message of the history that a record is.
fn sent(view: &RecordView<'_>, known: &[Delayed], found: &[FoundDelayed]) -> Held<usize> {
    let real = |name| view.properties.get_str(name).unwrap_or_default();
    let is_same = |one: &Delayed| {
        (real(REAL_TOPIC), real(REAL_QUEUE_ID), view.body) == (&*one.topic, &*one.queue.to_string(), &*one.body)
            && real(DELAY) == one.level.to_string()
            && view.queue_id.0 == i32::from(one.level) - 1
    };
    let is_free = |at: usize| found.iter().all(|one| one.known != at);
    let acknowledged = known.iter().position(|one| one.physical_offset == Some(view.physical_offset.0));
    let at = acknowledged.or_else(|| {
        (0..known.len()).find(|at| known[*at].physical_offset.is_none() && is_same(&known[*at]) && is_free(*at))
    });
    match at.filter(|at| is_same(&known[*at])) {
        Some(at) => Ok(at),
        None => broken("L1", format!("nobody sent {view:?}")),
    }
}
