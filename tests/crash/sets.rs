//! Simulates transactions of several messages: each of their half messages is a half of the history.
//!
//! In:     a machine and its store; half messages of the log.
//! Out:    the history continues, or the promise that an answer broke.
//! Always: which half messages belong together is read from their property (docs/internals/format.md), without the
//!         engine's code. Only the last one represents the transaction, as the one that is checked and that ends it.
//! Not here: crashes in each of their calls (several.rs).

use std::collections::BTreeMap;

use txstore::base::clock::Clock as _;
use txstore::base::error::Outcome;
use txstore::base::names::HALF_TOPIC;
use txstore::base::units::{QueueId, QueueOffset};
use txstore::record::RecordView;
use txstore::record::message::Parts;
use txstore::store::{NewMessage, Sent, Store, Unacknowledged, Wait};
use txstore::transaction::HalfCopy;

use crate::history::{GROUPS, Half, Held, TOPICS, broken, hold};
use crate::machine::{Machine, TIMEOUT_MS};
use crate::rule::Transaction;
use crate::timed::{Time, envelope};

const SET: &str = "TXSTORE_SET";

/// What a half message is in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The half queue offset of the first half message.
    pub first: u64,
    /// The number of half messages before this one.
    pub position: u64,
    pub count: u64,
}

impl Part {
    /// Returns what the half message is in its set; `None` if it is in none.
    pub fn of(view: &RecordView<'_>) -> Option<Self> {
        let numbers = view.properties.get_str(SET)?.split(',').map(|number| number.parse().ok());
        // A torn record without a CRC may have any number.
        let [first, position, count] = numbers.collect::<Option<Vec<u64>>>()?[..] else { return None };
        let is_there = first.checked_add(position) == Some(view.queue_offset.0) && position < count;
        (view.topic == HALF_TOPIC && is_there).then_some(Self { first, position, count })
    }

    pub const fn is_last(&self) -> bool {
        self.position + 1 == self.count
    }
}

/// Returns whether a half represents its transaction.
pub fn leads(half: &Half) -> bool {
    half.part.is_none_or(|part| part.is_last())
}

/// The sets of a log, by the half queue offset of their first half message.
#[derive(Debug, Default)]
pub struct Sets {
    by_first: BTreeMap<u64, Vec<(Part, Option<Outcome>)>>,
}

impl Sets {
    pub fn of(rule: &[Transaction], log: &[RecordView<'_>]) -> Self {
        let mut sets = Self::default();
        for one in rule {
            if let Some(part) = Part::of(&log[one.halves[0]]) {
                sets.by_first.entry(part.first).or_default().push((part, one.outcome));
            }
        }
        sets
    }

    /// Returns whether a crash cut the set of this half message while it was written.
    pub fn is_cut(&self, half: &RecordView<'_>) -> bool {
        Part::of(half).is_some_and(|part| !self.by_first[&part.first].iter().any(|(part, _)| part.is_last()))
    }

    /// Returns whether a crash cut the end of this half message's set. Only a reader without a writer sees it.
    pub fn has_cut_end(&self, half: &RecordView<'_>) -> bool {
        let Some(set) = Part::of(half).map(|part| &self.by_first[&part.first]) else { return false };
        let ended = set.iter().filter(|(_, outcome)| outcome.is_some()).count();
        (1..set.len()).contains(&ended)
    }

    /// Returns whether a half message represents its transaction.
    pub fn leads(half: &RecordView<'_>) -> bool {
        Part::of(half).is_none_or(|part| part.is_last())
    }

    /// Checks T2: all messages of a transaction have one outcome. One that a crash cut is rolled back by a writer, which
    /// also ends the rest of one whose end was cut. A reader without a writer may see a part.
    pub fn end_together(&self, is_read_only: bool) -> Held {
        for set in self.by_first.values() {
            let outcomes: Vec<_> = set.iter().filter_map(|(_, outcome)| *outcome).collect();
            let is_whole = set.iter().any(|(part, _)| part.is_last());
            let is_one = outcomes.iter().all(|outcome| *outcome == outcomes[0]);
            let is_all = outcomes.len() == set.len() || (is_whole && outcomes.is_empty());
            let is_rolled_back = is_whole || outcomes.first().is_none_or(|outcome| *outcome == Outcome::RolledBack);
            let fits = is_one && is_rolled_back && (is_all || is_read_only);
            hold(fits, "T2", || format!("apart from others: {set:?}"))?;
        }
        Ok(())
    }
}

impl Machine {
    /// Stores the half messages of a transaction of several messages.
    pub fn prepare_set(
        &mut self,
        store: &Store,
        which: usize,
        messages: usize,
        size: usize,
        owner: u32,
        time: Option<Time>,
    ) -> Held {
        let group = GROUPS[which % 2];
        let begun = self.history.halves.len();
        let mut queues = Vec::new();
        for index in 0..messages {
            let bits = which / 2 + which % 3 * index;
            queues.push(QueueId((bits / 2 % 2) as i32));
            let body = self.history.body('h', size);
            self.history.halves.push(Half {
                id: None,
                group: group.to_owned(),
                topic: TOPICS[bits % 2].to_owned(),
                body,
                copies: Vec::new(),
                end: 0,
                asked: Vec::new(),
                reported: None,
                running: owner != 0 && index == 0,
                checks: 0,
                checks_most: 0,
                checks_kept: 0,
                immunity_ms: None,
                stored_ms: self.clock.monotonic_ms(),
                due_ms: 0,
                foreign: false,
                part: None,
                // Others of the same transaction have none.
                time: time.filter(|_| index % 2 == which % 2),
            });
        }
        let halves = &self.history.halves[begun..];
        let of = |half: &Half| envelope(&Parts { topic: &half.topic, keys: "h", ..Parts::default() }, half.time);
        let envelopes: Vec<_> = halves.iter().map(of).collect();
        let new: Vec<_> = (halves.iter().zip(&envelopes).zip(queues))
            .map(|((half, envelope), queue_id)| NewMessage { envelope, body: &half.body, queue_id })
            .collect();
        let sent = store.prepare_many(&new, group, owner, Wait::Yes).and_then(Unacknowledged::acknowledged);
        let halves = halves.to_vec();
        self.history.sets.insert(halves[0].body.clone(), halves);
        let Some(sent) = self.note(sent)? else { return Ok(()) };
        let (end, now_ms) = (Self::log_end(store), self.clock.monotonic_ms());
        let first = sent.iter().map(|sent| sent.queue_offset.0).min().unwrap();
        for (half, sent) in self.history.halves[begun..].iter_mut().zip(&sent) {
            let Sent { queue_offset, physical_offset, unique_id, .. } = sent;
            half.id = Some(unique_id.to_string());
            half.copies.push(HalfCopy { queue_offset: queue_offset.0, physical_offset: physical_offset.0 });
            half.end = end;
            half.due_ms = now_ms + TIMEOUT_MS;
            half.part =
                (messages > 1).then_some(Part { first, position: queue_offset.0 - first, count: messages as u64 });
        }
        hold(leads(&self.history.halves[begun]), "T12", || {
            format!("not the first message's half is the last: {sent:?}")
        })?;
        self.half_is_acknowledged(end);
        Ok(())
    }

    /// Returns the halves that end with this one.
    pub fn parts(&self, at: usize) -> Vec<usize> {
        let halves = &self.history.halves;
        let Some(part) = halves[at].part else { return vec![at] };
        (0..halves.len()).filter(|other| halves[*other].part.is_some_and(|other| other.first == part.first)).collect()
    }

    /// Notes that the halves of a discarded transaction were stored again; without an answer if `last` is `None`.
    /// `stored` is their number. If retention has removed a message, the one that represents the transaction is alone.
    pub fn resumed(&mut self, store: &Store, at: usize, last: Option<HalfCopy>, stored: u64) -> Held {
        let (end, now_ms) = (Self::log_end(store), self.clock.monotonic_ms());
        let resumed = self.history.halves[at].clone();
        let set = resumed.part.and_then(|_| self.history.sets.get(&resumed.body).cloned()).unwrap_or_default();
        let is_alone = set.is_empty() || (last.is_some() && stored == 1);
        let fits = match (last, is_alone) {
            (None, _) => true,
            (_, true) => stored == 1 && (set.is_empty() || store.stat().unwrap().min_physical_offset > 0),
            (_, false) => stored == set.len() as u64,
        };
        hold(fits, "T12", || format!("{stored} half messages of {} were resumed: {resumed:?}", set.len()))?;
        let count = set.len() as u64;
        for (index, before) in (0..).zip(if is_alone { vec![resumed] } else { set }) {
            let part = last.filter(|_| !is_alone).map(|last| {
                let position = if index == 0 { count - 1 } else { index - 1 };
                Part { first: last.queue_offset + 1 - count, position, count }
            });
            let (copy, id) = match part {
                Some(part) => half_at(store, part.first + part.position, &before).map(|(copy, id)| (Some(copy), id))?,
                None => (last, before.id.clone()),
            };
            self.history.halves.push(Half {
                id,
                copies: copy.into_iter().collect(),
                end: if copy.is_some() { end } else { 0 },
                asked: Vec::new(),
                reported: None,
                running: false,
                checks: 0,
                checks_most: 0,
                checks_kept: 0,
                stored_ms: now_ms,
                due_ms: now_ms + before.immunity_ms.unwrap_or(TIMEOUT_MS),
                part,
                ..before
            });
        }
        if last.is_some() {
            self.is_durable(end);
        }
        Ok(())
    }
}

/// Returns the half message at a half queue offset, and its id. Checks T3: it is the one that was stored before.
fn half_at(store: &Store, queue_offset: u64, before: &Half) -> Held<(HalfCopy, Option<String>)> {
    let records = store.read(HALF_TOPIC, QueueId(0), QueueOffset(queue_offset), 1, None);
    let view = records.as_ref().ok().and_then(|(records, _)| records.first()?.view().ok());
    let found = view.filter(|view| view.body == before.body && view.queue_offset.0 == queue_offset);
    let Some(view) = found else { return broken("T3", format!("resumed was {before:?}, stored {view:?}")) };
    Ok((HalfCopy { queue_offset, physical_offset: view.physical_offset.0 }, view.unique_id().map(str::to_owned)))
}

/// Returns the number of half messages.
pub fn half_queue_end(store: &Store) -> u64 {
    store.queue_range(HALF_TOPIC, QueueId(0)).map_or(0, |(_, end)| end)
}
