//! One queue as a group consumes it: what is in flight, what is acknowledged, what must be delivered again.
//!
//! In:     messages that were read, acknowledgements, changes of invisible times, and the time.
//! Out:    messages to hand out, with the number of their lease; the lowest unacknowledged queue offset.
//! Always: no I/O and no clock. A message is handed out only while no lease of it is in force. Only the newest lease
//!         can acknowledge. Nothing at or above `committed` counts as done after a crash. Deliveries of an earlier run
//!         count, if `resume` names them.
//! Not here: reading, storing offsets, copies in the retry topic and among the dead letters (`reader`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The maximum number of messages of a queue that are in flight, or acknowledged above the lowest unacknowledged one.
/// The latter are delivered again after a crash.
pub const OUTSTANDING_MAX: usize = 10_000;

/// How many of the newest messages that were delivered in an earlier run come alone, at most.
const ALONE_MAX: u64 = 128;

/// How long a message that must move to another topic stays invisible, if its move neither ends nor fails, in
/// milliseconds.
const MOVE_MS: i64 = 60_000;

/// How a queue is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing of the queue is handed out while one of its messages is in flight.
    Fifo,
    /// Messages are handed out independently. After this number of deliveries from the queue, a message moves to the
    /// group's retry topic, where a crash does not forget its attempts.
    Any {
        /// The number of deliveries.
        deliveries_max: u32,
    },
}

/// Who has a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The client. 0: none.
    pub client: u64,
    /// The connection of the answer, if the message is invisible for as long as the client lives. Otherwise 0.
    pub connection: u64,
}

/// For whom messages are taken, and how long they stay invisible.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The time, in milliseconds.
    pub now_ms: i64,
    /// When the messages are visible again unless they are acknowledged.
    pub visible_at_ms: i64,
    /// Who gets them.
    pub holder: Holder,
    /// How often a message is delivered before it is a dead letter.
    pub attempts_max: u32,
    /// Identifies the client's attempt to receive. A repeated attempt at a FIFO queue gets the same messages again.
    pub attempt_id: Option<Arc<str>>,
}

impl Terms {
    /// A message that moves to another topic belongs to no client, and is not visible before its move has ended.
    fn visible_at_ms(&self, fate: Fate) -> i64 {
        if fate == Fate::Deliver { self.visible_at_ms } else { self.now_ms + MOVE_MS }
    }

    fn holder(&self, fate: Fate) -> Holder {
        if fate == Fate::Deliver { self.holder } else { Holder::default() }
    }
}

/// What to do with a message that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Hand it out.
    Deliver,
    /// Append a copy to the retry topic, then acknowledge it.
    Retry,
    /// Append a copy to the dead letters, then acknowledge it.
    Bury,
}

/// A message that was taken. Until its lease ends, nobody else gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The message's queue offset.
    pub queue_offset: u64,
    /// The number of its lease.
    pub number: u64,
    /// `Deliver`: the number of this delivery, from 1. Otherwise: how often it was delivered.
    pub attempt: u32,
    /// What to do with it.
    pub fate: Fate,
}

/// A new message of the queue, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its queue offset.
    pub queue_offset: u64,
    /// How often it was delivered before, as its record states.
    pub delivered: u32,
}

/// The lease is unknown, has expired, or is not the newest of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

#[derive(Debug)]
struct Lease {
    number: u64,
    visible_at_ms: i64,
    /// How often the message was delivered, including deliveries of earlier copies.
    attempt: u32,
    /// How often it was delivered from this queue.
    deliveries: u32,
    holder: Holder,
    /// The client's attempt to receive that took it. `None` once the client has shown that it got the answer.
    attempt_id: Option<Arc<str>>,
}

/// One queue as a group consumes it. See the module.
#[derive(Debug)]
pub struct Queue {
    order: Order,
    /// The lowest unacknowledged queue offset.
    committed: u64,
    /// The queue offset of the next new message.
    next: u64,
    /// By queue offset. A lease that has expired stays until the message is taken again.
    leases: BTreeMap<u64, Lease>,
    /// When each lease expires, and its queue offset.
    visible: BTreeSet<(i64, u64)>,
    /// The queue offsets from `committed` on that were acknowledged.
    acknowledged: BTreeSet<u64>,
    /// The ranges from `committed` on that the filter dropped: first offset, and the offset after the last.
    dropped: BTreeMap<u64, u64>,
    /// How often messages from `next` on were delivered from this queue in earlier runs.
    earlier: BTreeMap<u64, u32>,
    /// The queue offset after the last of these messages.
    earlier_end: u64,
    last_number: u64,
}

impl Queue {
    /// Creates the state of a queue whose messages before `committed` are acknowledged. Leases are numbered after
    /// `last_number`.
    pub const fn new(order: Order, committed: u64, last_number: u64) -> Self {
        Self {
            order,
            committed,
            next: committed,
            leases: BTreeMap::new(),
            visible: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            dropped: BTreeMap::new(),
            earlier: BTreeMap::new(),
            earlier_end: 0,
            last_number,
        }
    }

    /// Continues the counts of an earlier run: how often messages from `next()` on were delivered.
    pub fn resume(&mut self, earlier: BTreeMap<u64, u32>) {
        self.earlier_end = earlier.last_key_value().map_or(0, |(at, _)| at.saturating_add(1));
        self.earlier = earlier;
    }

    /// Returns whether messages at this queue offset may have been delivered in an earlier run.
    pub const fn is_resumed(&self, queue_offset: u64) -> bool {
        queue_offset < self.earlier_end
    }

    /// Returns how often each message was delivered from this queue. Leaves out those that were not.
    pub fn deliveries(&self) -> Vec<(u64, u32)> {
        let leased = self.leases.iter().map(|(at, lease)| (*at, lease.deliveries)).filter(|(_, count)| *count > 0);
        leased.chain(self.earlier.iter().map(|(at, count)| (*at, *count))).collect()
    }

    /// Returns how often a message in flight was delivered from this queue.
    pub fn deliveries_of(&self, queue_offset: u64) -> u32 {
        self.leases.get(&queue_offset).map_or(0, |lease| lease.deliveries)
    }

    /// Returns whether a new message was among the last ones that an earlier run delivered, and is delivered again.
    /// Perhaps it ended that run, so it should be delivered alone.
    pub fn comes_alone(&self, found: Found, attempts_max: u32) -> bool {
        let is_newest = found.queue_offset.saturating_add(ALONE_MAX) >= self.earlier_end;
        self.earlier.get(&found.queue_offset).filter(|_| is_newest).is_some_and(|deliveries| {
            fate(self.order, found.delivered.saturating_add(*deliveries), *deliveries, attempts_max) == Fate::Deliver
        })
    }

    /// Returns the lowest unacknowledged queue offset.
    pub const fn committed(&self) -> u64 {
        self.committed
    }

    /// Returns the queue offset of the next new message.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of the newest lease.
    pub const fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Returns the number of messages that are leased, or wait to be taken again.
    pub fn in_flight(&self) -> usize {
        self.leases.len()
    }

    /// Returns the number of messages that are leased now, and not visible to others.
    pub fn leased(&self, now_ms: i64) -> usize {
        let visible = self.visible.iter().take_while(|(at, _)| *at <= now_ms).count();
        self.leases.len() - visible
    }

    /// Returns the number of messages that are in flight, or acknowledged above the lowest unacknowledged one.
    pub fn outstanding(&self) -> usize {
        self.leases.len() + self.acknowledged.len()
    }

    /// Returns when the next message in flight is visible again, if any is in flight.
    pub fn next_visible_ms(&self) -> Option<i64> {
        match self.order {
            // The whole queue waits for the last one.
            Order::Fifo => self.visible.last().map(|(at, _)| *at),
            Order::Any { .. } => self.visible.first().map(|(at, _)| *at),
        }
    }

    /// Returns how many new messages may be taken now.
    pub fn room(&self, now_ms: i64) -> usize {
        if self.is_blocked(now_ms) {
            return 0;
        }
        OUTSTANDING_MAX.saturating_sub(self.outstanding())
    }

    /// Returns whether order keeps all messages of the queue from being taken.
    fn is_blocked(&self, now_ms: i64) -> bool {
        self.order == Order::Fifo && self.visible.last().is_some_and(|(at, _)| *at > now_ms)
    }

    /// Returns the message that `take_visible` takes first from a queue without order.
    pub fn first_visible(&self, now_ms: i64) -> Option<u64> {
        self.visible.first().filter(|(at, _)| *at <= now_ms).map(|(_, queue_offset)| *queue_offset)
    }

    /// Takes messages that are visible again: at most `limit`.
    pub fn take_visible(&mut self, terms: &Terms, limit: usize) -> Vec<Taken> {
        if let Order::Any { .. } = self.order {
            return self.take_expired(terms, limit);
        }
        match () {
            () if self.is_repeated(terms) => self.take_repeatedly(terms),
            () if self.is_blocked(terms.now_ms) => Vec::new(),
            () => self.take_in_order(terms, limit),
        }
    }

    fn take_expired(&mut self, terms: &Terms, limit: usize) -> Vec<Taken> {
        let due = self.visible.iter().take_while(|(at, _)| *at <= terms.now_ms).take(limit);
        let offsets: Vec<u64> = due.map(|(_, queue_offset)| *queue_offset).collect();
        offsets.into_iter().filter_map(|queue_offset| self.lease_again(queue_offset, terms)).collect()
    }

    /// Takes the messages that were in flight, in order, up to the first one that must not be handed out.
    fn take_in_order(&mut self, terms: &Terms, limit: usize) -> Vec<Taken> {
        let offsets: Vec<u64> = self.leases.keys().take(limit).copied().collect();
        let mut taken = Vec::new();
        for queue_offset in offsets {
            let dies = self.leases.get(&queue_offset).is_some_and(|lease| lease.attempt >= terms.attempts_max);
            if dies && !taken.is_empty() {
                break;
            }
            taken.extend(self.lease_again(queue_offset, terms));
            if dies {
                break;
            }
        }
        taken
    }

    /// Returns whether the same attempt of a client took all messages in flight: the client has lost the answer.
    fn is_repeated(&self, terms: &Terms) -> bool {
        let same = |lease: &Lease| terms.attempt_id.is_some() && lease.attempt_id == terms.attempt_id;
        !self.leases.is_empty() && self.leases.values().all(same)
    }

    /// Takes all messages in flight again. This counts as the same delivery.
    fn take_repeatedly(&mut self, terms: &Terms) -> Vec<Taken> {
        let mut taken = Vec::new();
        for (queue_offset, lease) in &mut self.leases {
            self.last_number += 1;
            self.visible.remove(&(lease.visible_at_ms, *queue_offset));
            self.visible.insert((terms.visible_at_ms, *queue_offset));
            lease.number = self.last_number;
            lease.visible_at_ms = terms.visible_at_ms;
            lease.holder = terms.holder;
            let (queue_offset, number, attempt) = (*queue_offset, lease.number, lease.attempt);
            taken.push(Taken { queue_offset, number, attempt, fate: Fate::Deliver });
        }
        taken
    }

    fn lease_again(&mut self, queue_offset: u64, terms: &Terms) -> Option<Taken> {
        let lease = self.leases.get_mut(&queue_offset)?;
        let fate = fate(self.order, lease.attempt, lease.deliveries, terms.attempts_max);
        if fate == Fate::Deliver {
            lease.attempt += 1;
            lease.deliveries += 1;
        }
        self.last_number += 1;
        self.visible.remove(&(lease.visible_at_ms, queue_offset));
        lease.number = self.last_number;
        lease.visible_at_ms = terms.visible_at_ms(fate);
        lease.holder = terms.holder(fate);
        lease.attempt_id = terms.attempt_id.clone().filter(|_| fate == Fate::Deliver);
        self.visible.insert((lease.visible_at_ms, queue_offset));
        Some(Taken { queue_offset, number: lease.number, attempt: lease.attempt, fate })
    }

    /// Takes new messages: those `found` between `next()` and `end`. The others in this range were dropped by the
    /// filter and count as acknowledged. In a FIFO queue, a message that is a dead letter ends the range.
    pub fn take_new(&mut self, terms: &Terms, found: &[Found], end: u64) -> Vec<Taken> {
        let mut taken = Vec::new();
        for one in found {
            let earlier = self.earlier.get(&one.queue_offset).copied().unwrap_or(0);
            let one = Found { delivered: one.delivered.saturating_add(earlier), ..*one };
            let fate = fate(self.order, one.delivered, earlier, terms.attempts_max);
            let ends_here = self.order == Order::Fifo && fate != Fate::Deliver;
            self.pass_to(one.queue_offset);
            if ends_here && !self.leases.is_empty() {
                self.advance();
                return taken;
            }
            taken.push(self.lease_new(one, earlier, fate, terms));
            self.next = one.queue_offset + 1;
            if ends_here {
                self.advance();
                return taken;
            }
        }
        self.pass_to(end);
        self.advance();
        taken
    }

    /// `earlier`: the deliveries from this queue in earlier runs, which `found` includes.
    fn lease_new(&mut self, found: Found, earlier: u32, fate: Fate, terms: &Terms) -> Taken {
        self.last_number += 1;
        let delivery = u32::from(fate == Fate::Deliver);
        let lease = Lease {
            number: self.last_number,
            visible_at_ms: terms.visible_at_ms(fate),
            attempt: found.delivered.saturating_add(delivery),
            deliveries: earlier.saturating_add(delivery),
            holder: terms.holder(fate),
            attempt_id: terms.attempt_id.clone().filter(|_| fate == Fate::Deliver),
        };
        let taken = Taken { queue_offset: found.queue_offset, number: lease.number, attempt: lease.attempt, fate };
        self.visible.insert((lease.visible_at_ms, found.queue_offset));
        self.leases.insert(found.queue_offset, lease);
        taken
    }

    /// Marks everything from `next` up to an offset as dropped by the filter.
    fn pass_to(&mut self, end: u64) {
        if end <= self.next {
            return;
        }
        match self.dropped.last_entry() {
            Some(mut last) if *last.get() == self.next => *last.get_mut() = end,
            _ => drop(self.dropped.insert(self.next, end)),
        }
        self.next = end;
    }

    /// Acknowledges a message. Does nothing if it is acknowledged already.
    pub fn acknowledge(&mut self, queue_offset: u64, number: u64, now_ms: i64) -> Result<(), Stale> {
        if queue_offset < self.committed || self.acknowledged.contains(&queue_offset) {
            return Ok(());
        }
        self.lease_in_force(queue_offset, number, now_ms)?;
        self.finish(queue_offset);
        Ok(())
    }

    /// Acknowledges a message that nobody can read any more.
    pub fn discard(&mut self, taken: Taken) {
        if self.leases.get(&taken.queue_offset).is_some_and(|lease| lease.number == taken.number) {
            self.finish(taken.queue_offset);
        }
    }

    fn finish(&mut self, queue_offset: u64) {
        if let Some(lease) = self.leases.remove(&queue_offset) {
            self.visible.remove(&(lease.visible_at_ms, queue_offset));
            self.acknowledged.insert(queue_offset);
            self.advance();
        }
    }

    /// Sets when a message is visible again, and returns the number of its new lease.
    pub fn change_visible(
        &mut self,
        queue_offset: u64,
        number: u64,
        now_ms: i64,
        visible_at_ms: i64,
    ) -> Result<u64, Stale> {
        self.lease_in_force(queue_offset, number, now_ms)?;
        self.last_number += 1;
        if let Some(lease) = self.leases.get_mut(&queue_offset) {
            lease.number = self.last_number;
            lease.attempt_id = None;
        }
        self.set_visible(queue_offset, visible_at_ms);
        Ok(self.last_number)
    }

    /// Takes a message from the client that has it, to move it to another topic.
    pub fn take_away(&mut self, queue_offset: u64, number: u64, now_ms: i64) -> Result<Taken, Stale> {
        let number = self.change_visible(queue_offset, number, now_ms, now_ms + MOVE_MS)?;
        let lease = self.leases.get_mut(&queue_offset).ok_or(Stale)?;
        lease.holder = Holder::default();
        Ok(Taken { queue_offset, number, attempt: lease.attempt, fate: Fate::Bury })
    }

    /// Makes messages visible at a time, or when their lease ends if that is earlier. Ignores leases that are not the
    /// newest.
    pub fn release(&mut self, taken: &[Taken], at_ms: i64) {
        for one in taken {
            let lease = self.leases.get(&one.queue_offset);
            if lease.is_some_and(|lease| lease.number == one.number && lease.visible_at_ms > at_ms) {
                self.set_visible(one.queue_offset, at_ms);
            }
        }
    }

    /// Makes all messages of some holders visible at a time, or when their lease ends if that is earlier. Returns
    /// whether they had any.
    pub fn release_all(&mut self, of: impl Fn(Holder) -> bool, at_ms: i64) -> bool {
        let its = |lease: &Lease| of(lease.holder) && lease.visible_at_ms > at_ms;
        let offsets: Vec<u64> =
            self.leases.iter().filter(|(_, lease)| its(lease)).map(|(queue_offset, _)| *queue_offset).collect();
        for queue_offset in &offsets {
            self.set_visible(*queue_offset, at_ms);
        }
        !offsets.is_empty()
    }

    /// Continues at the first queue offset that retention has left, if that is above what is unacknowledged.
    pub fn skip_to(&mut self, first: u64) {
        if first <= self.committed {
            return;
        }
        let kept = self.leases.split_off(&first);
        for (queue_offset, lease) in std::mem::replace(&mut self.leases, kept) {
            self.visible.remove(&(lease.visible_at_ms, queue_offset));
        }
        self.acknowledged = self.acknowledged.split_off(&first);
        if let Some((_, end)) = self.dropped.range(..first).next_back().map(|(start, end)| (*start, *end)) {
            self.dropped = self.dropped.split_off(&first);
            if end > first {
                self.dropped.insert(first, end);
            }
        }
        self.next = self.next.max(first);
        self.committed = first;
        self.advance();
    }

    fn set_visible(&mut self, queue_offset: u64, at_ms: i64) {
        if let Some(lease) = self.leases.get_mut(&queue_offset) {
            self.visible.remove(&(lease.visible_at_ms, queue_offset));
            lease.visible_at_ms = at_ms;
            self.visible.insert((at_ms, queue_offset));
        }
    }

    fn lease_in_force(&self, queue_offset: u64, number: u64, now_ms: i64) -> Result<(), Stale> {
        let lease = self.leases.get(&queue_offset).ok_or(Stale)?;
        if lease.number == number && lease.visible_at_ms > now_ms { Ok(()) } else { Err(Stale) }
    }

    fn advance(&mut self) {
        while self.earlier.first_key_value().is_some_and(|(at, _)| *at < self.next) {
            self.earlier.pop_first();
        }
        loop {
            if self.acknowledged.remove(&self.committed) {
                self.committed += 1;
            } else if let Some(end) = self.dropped.remove(&self.committed) {
                self.committed = end;
            } else {
                return;
            }
        }
    }
}

/// Decides what becomes of a message that was delivered so often, `deliveries` of them from this queue.
fn fate(order: Order, delivered: u32, deliveries: u32, attempts_max: u32) -> Fate {
    match order {
        _ if delivered >= attempts_max => Fate::Bury,
        Order::Any { deliveries_max } if deliveries >= deliveries_max => Fate::Retry,
        _ => Fate::Deliver,
    }
}

#[cfg(test)]
mod tests;
