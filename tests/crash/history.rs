//! History: everything that was tried on a store, and everything that a client was told of it.
//!
//! In: what steps did. Out: what must be found after a crash, and what may be. Always: it knows nothing of files; what it
//! says of a transaction is what the engine answered, never what the engine holds.

use std::collections::BTreeMap;

use txstore::error::Outcome;
use txstore::half::HalfCopy;
use txstore::store::EndKind;

use crate::watched::Shown;

/// What is wrong: the promise's name and what was seen.
#[derive(Clone, Debug)]
pub struct Violation {
    pub promise: &'static str,
    pub what: String,
}

pub type Held<T = ()> = std::result::Result<T, Violation>;

pub fn broken<T>(promise: &'static str, what: impl Into<String>) -> Held<T> {
    Err(Violation { promise, what: what.into() })
}

/// Holds a promise, or says what was seen.
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
    /// Where it went; `None`: nobody was told.
    pub place: Option<u64>,
    /// The log's end when that was told.
    pub end: u64,
}

/// A transaction that was begun, or that was found.
#[derive(Clone, Debug)]
pub struct Half {
    pub id: Option<String>,
    pub group: String,
    pub topic: String,
    pub body: Vec<u8>,
    /// Its copies; none: nobody was told.
    pub copies: Vec<HalfCopy>,
    pub end: u64,
    /// How somebody wanted to end it, and the place that was named.
    pub asked: Vec<(EndKind, u64)>,
    /// What somebody was told of its outcome, and the log's end then.
    pub told: Option<(Outcome, u64)>,
    pub running: bool,
    pub checks: u16,
    /// Checks that a clean close has kept.
    pub checks_kept: u16,
    pub immunity_ms: Option<i64>,
    /// On the monotonic clock.
    pub stored_ms: i64,
    pub due_ms: i64,
    /// A broker stored it, or it came through a crash without being whole.
    pub foreign: bool,
}

/// A group's offset of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acknowledged {
    pub last: u64,
    /// The file held at least that.
    pub written: u64,
}

/// Topic, queue, group.
pub type Reader = (usize, i32, usize);

#[derive(Clone, Debug, Default)]
pub struct History {
    /// By number, which the body begins with.
    pub messages: BTreeMap<u64, Message>,
    pub halves: Vec<Half>,
    /// Halves that were asked about, and not answered yet.
    pub answers: Vec<(HalfCopy, EndKind)>,
    pub offsets: BTreeMap<Reader, Acknowledged>,
    /// What a consumer or a reader in another process was shown.
    pub shown: Vec<Shown>,
    /// Lost power leaves at least that of the log.
    pub durable_end: u64,
    /// The log begins nowhere behind it: no removal went further.
    pub minimum_tried: u64,
    /// Topic and queue: below that offset all messages went, so its numbers are never given again.
    pub gone_below: BTreeMap<(String, i32), u64>,
    /// Topic and queue: messages below the first offset are deleted; none from the second on was ever to be.
    pub deleted: BTreeMap<(String, i32), (u64, u64)>,
    /// The wall clock was set: ages over a crash cannot be told.
    pub jumped: bool,
    /// Numbers the bodies.
    pub count: u64,
}

impl History {
    /// A body of its own, which no other message has; it holds bytes of every kind.
    pub fn body(&mut self, kind: char, size: usize) -> Vec<u8> {
        self.count += 1;
        let mut body = format!("{kind}{}:", self.count).into_bytes();
        for at in body.len()..size {
            body.push((self.count as usize * 31 + at * 7) as u8);
        }
        body
    }

    /// What stood below `minimum` is removed for good; the halves of which nothing is left.
    pub fn forget_below(&mut self, minimum: u64) -> Vec<Half> {
        self.messages.retain(|_, message| message.place.is_none_or(|place| place >= minimum));
        self.shown.retain(|shown| shown.place >= minimum);
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

    /// The half with a copy there.
    pub fn half_at(&self, copy: HalfCopy) -> Option<usize> {
        self.halves.iter().position(|half| half.copies.contains(&copy))
    }
}

/// The number of a body, if it is one of ours: `m17:…` of a message, `h17:…` of a half.
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
