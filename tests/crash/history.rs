//! Records everything that was tried on a store, and every answer that a client got.
//!
//! In:     what steps did.
//! Out:    what must be found after a crash, and what may be.
//! Always: knows nothing of files. Its facts about a transaction are the engine's answers, never the engine's state.

use std::collections::BTreeMap;

use txstore::base::error::Outcome;
use txstore::store::EndKind;
use txstore::transaction::HalfCopy;

use crate::delays::Delayed;
use crate::sets::Part;
use crate::timed::{Time, Timed};
use crate::watched::Shown;

/// A broken promise: its name and what was seen.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: &'static str,
    pub what: String,
}

pub type Held<T = ()> = std::result::Result<T, Violation>;

pub fn broken<T>(promise: &'static str, what: impl Into<String>) -> Held<T> {
    Err(Violation { promise, what: what.into() })
}

/// Returns a violation with what was seen, unless the promise holds.
pub fn hold(holds: bool, promise: &'static str, what: impl FnOnce() -> String) -> Held {
    if holds { Ok(()) } else { broken(promise, what()) }
}

pub const TOPICS: [&str; 2] = ["orders", "payments"];
pub const GROUPS: [&str; 2] = ["services", "workers"];
pub const READERS: [&str; 2] = ["shipping", "billing"];

/// A message that was sent.
#[derive(Clone, Debug)]
pub struct Message {
    pub topic: String,
    pub queue: i32,
    pub body: Vec<u8>,
    /// Its physical offset; `None`: no client got an answer.
    pub physical_offset: Option<u64>,
    /// The log's end when a client got the answer.
    pub end: u64,
}

/// A transaction that a client began, or that was found.
#[derive(Clone, Debug)]
pub struct Half {
    pub id: Option<String>,
    pub group: String,
    pub topic: String,
    pub body: Vec<u8>,
    /// Its copies; empty: no client got an answer.
    pub copies: Vec<HalfCopy>,
    pub end: u64,
    /// The ends that were tried, and the physical offset in each.
    pub asked: Vec<(EndKind, u64)>,
    /// The outcome that was reported to a client, and the log's end then.
    pub reported: Option<(Outcome, u64)>,
    pub running: bool,
    pub checks: u16,
    /// The most checks that it ever had. Recovery may refuse a snapshot next to a broker's queue files, repair these, and
    /// accept the snapshot the next time.
    pub checks_most: u16,
    /// Checks that a clean close has stored.
    pub checks_kept: u16,
    pub immunity_ms: Option<i64>,
    /// Time of storing, on the monotonic clock.
    pub stored_ms: i64,
    pub due_ms: i64,
    /// A broker stored it, or it is a torn record that survived a crash.
    pub foreign: bool,
    /// What it is in a transaction of several messages.
    pub part: Option<Part>,
    /// When its message is to be delivered; `None`: with the commit.
    pub time: Option<Time>,
}

/// A group's offset of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acknowledged {
    pub last: u64,
    /// The file held at least this offset.
    pub written: u64,
}

/// Topic, queue, group.
pub type Reader = (usize, i32, usize);

#[derive(Clone, Debug, Default)]
pub struct History {
    /// By number, with which the body begins.
    pub messages: BTreeMap<u64, Message>,
    pub halves: Vec<Half>,
    /// The halves of transactions of several messages, in their order, by the body of the first. Retention may remove
    /// a half before the discarded copy that a resume stores again.
    pub sets: BTreeMap<Vec<u8>, Vec<Half>>,
    /// Delayed messages and retries, in the order in which they were sent.
    pub delayed: Vec<Delayed>,
    /// Messages that wait for a time of their own, or have waited.
    pub timed: Vec<Timed>,
    /// Timed messages were handed over to a broker, or a client tried to.
    pub hands_over: bool,
    /// Halves that were checked, and whose answer is outstanding.
    pub answers: Vec<(HalfCopy, EndKind)>,
    pub offsets: BTreeMap<Reader, Acknowledged>,
    /// The records that a consumer or a reader in another process has seen.
    pub shown: Vec<Shown>,
    /// At least this part of the log survives a power loss.
    pub durable_end: u64,
    /// The highest offset up to which a removal was tried: the log begins at or before it.
    pub minimum_tried: u64,
    /// Topic and queue: all messages below this offset were removed, so its numbers are never assigned again.
    pub gone_below: BTreeMap<(String, i32), u64>,
    /// Topic and queue: messages below the first offset are deleted; no deletion tried to reach past the second.
    pub deleted: BTreeMap<(String, i32), (u64, u64)>,
    /// Topic and queue: a broker deleted the messages at lower physical offsets with their topic, and created it again.
    pub begun: BTreeMap<(String, i32), u64>,
    /// The wall clock was set, so ages are unknown after a crash.
    pub jumped: bool,
    /// The last number of a body.
    pub count: u64,
}

impl History {
    /// Returns a unique body that holds bytes of every kind.
    pub fn body(&mut self, kind: char, size: usize) -> Vec<u8> {
        self.count += 1;
        let mut body = format!("{kind}{}:", self.count).into_bytes();
        for at in body.len()..size {
            body.push((self.count as usize * 31 + at * 7) as u8);
        }
        body
    }

    /// Forgets what was below `minimum`, which is removed for good. Returns the halves that have no copy left.
    pub fn forget_below(&mut self, minimum: u64) -> Vec<Half> {
        self.messages
            .retain(|_, message| message.physical_offset.is_none_or(|physical_offset| physical_offset >= minimum));
        self.delayed.retain(|one| one.physical_offset.is_none_or(|at| at >= minimum));
        self.timed.retain(|one| one.may_be_moved || one.physical_offset.is_none_or(|at| at >= minimum));
        self.shown.retain(|shown| shown.physical_offset >= minimum);
        self.answers.retain(|(copy, _)| copy.physical_offset >= minimum);
        let (gone, left) = std::mem::take(&mut self.halves).into_iter().partition(|half: &Half| {
            let mut copies = half.copies.iter();
            !half.copies.is_empty() && copies.all(|copy| copy.physical_offset < minimum)
        });
        self.halves = left;
        for half in &mut self.halves {
            half.copies.retain(|copy| copy.physical_offset >= minimum);
        }
        gone
    }

    /// Returns the half with this copy.
    pub fn half_at(&self, copy: HalfCopy) -> Option<usize> {
        self.halves.iter().position(|half| half.copies.contains(&copy))
    }
}

/// Returns the number of a body, if it is one of ours: `m17:…` of a message, `h17:…` of a half.
pub fn number_of(body: &[u8]) -> Option<(char, u64)> {
    let end = body.iter().take(22).position(|byte| *byte == b':')?;
    let (kind, digits) = std::str::from_utf8(&body[..end]).ok()?.split_at_checked(1)?;
    Some((kind.chars().next()?, digits.parse().ok()?))
}

pub const fn outcome_of(kind: EndKind) -> Outcome {
    match kind {
        EndKind::Commit => Outcome::Committed,
        EndKind::RollBack => Outcome::RolledBack,
        EndKind::Discard => Outcome::Discarded,
    }
}
