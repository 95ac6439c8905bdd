//! Half messages and op messages: the two records that make a transaction.
//!
//! ```text
//!            prepare                    end: commit
//! (nothing) ─────────► half, pending ─────────────────► final message in the real topic, op
//!                        │  │   ▲
//!                        │  │   │ resume (a new half)
//!        end: roll back  │  └───┴── discard ──────────► copy in TRANS_CHECK_MAX_TIME_TOPIC, op
//!                        ▼
//!                        op alone
//! ```
//! In:     records of the log, calls.
//! Out:    pending transactions, outcomes, and records to write.
//! Always: each transaction has one outcome (docs/internals/transactions.md).
//! Not here: when to check (Python decides this).

pub mod convert;
pub mod counts;
mod identity_map;
mod offset_map;
pub mod op;
pub mod op_progress;
pub mod outcome;
pub mod pending;
pub mod recent;
pub mod replay;
pub mod row;
pub mod scan;
pub mod set;
pub mod sizes;
mod slab;
pub mod table;
#[cfg(test)]
mod tests;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::base::units::QueueId;
use crate::record::RecordView;
use crate::record::properties::{CHECK_IMMUNITY_TIME, PRODUCER_GROUP, Properties, UNIQUE_KEY};
use crate::record::timer::Timer;

/// The id of the half message queue. txstore and RocketMQ use only this one.
pub const HALF_QUEUE: QueueId = QueueId(0);

/// Names shorter than this in total are hashed in one call, because a streaming hasher is larger than they are.
const SHORT_IDENTITY: usize = 256;

/// Identifies the copies of one transaction: a 64-bit hash of producer group, unique id, real topic and body CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(pub u64);

impl Identity {
    /// Computes the identity of the four values.
    pub fn new(group: &str, unique_id: &str, real_topic: &str, body_crc: u32) -> Self {
        // A zero byte after each name. No name contains one, so different lists of names have different bytes.
        let parts = [group.as_bytes(), &[0], unique_id.as_bytes(), &[0], real_topic.as_bytes(), &[0]];
        let (parts, crc) = (parts.into_iter(), body_crc.to_be_bytes());
        let mut short = [0; SHORT_IDENTITY];
        let mut rest = &mut short[..];
        for part in parts.clone().chain([&crc[..]]) {
            let Some((target, after)) = rest.split_at_mut_checked(part.len()) else {
                let mut hasher = Xxh3Default::new();
                parts.chain([&crc[..]]).for_each(|part| hasher.update(part));
                return Self(hasher.digest());
            };
            target.copy_from_slice(part);
            rest = after;
        }
        let unused = rest.len();
        Self(xxh3_64(short.get(..SHORT_IDENTITY - unused).unwrap_or_default()))
    }

    /// Returns the identity from a record's properties, if it has a producer group and a unique id.
    pub fn of(properties: Properties<'_>, real_topic: &str, body_crc: u32) -> Option<Self> {
        let (group, unique_id) = (properties.get_str(PRODUCER_GROUP)?, properties.get_str(UNIQUE_KEY)?);
        Self::of_names(group, unique_id, real_topic, body_crc)
    }

    /// Computes the identity of the four values, unless group or id are empty. Such a half message has no copies.
    pub fn of_names(group: &str, unique_id: &str, real_topic: &str, body_crc: u32) -> Option<Self> {
        let is_known = !group.is_empty() && !unique_id.is_empty();
        is_known.then(|| Self::new(group, unique_id, real_topic, body_crc))
    }
}

/// The position of a copy of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfCopy {
    /// Its offset in the half queue.
    pub queue_offset: u64,
    /// Its offset in the commit log.
    pub physical_offset: u64,
}

/// The facts in a half message's record.
#[derive(Clone, Copy, Debug)]
pub struct HalfFacts<'a> {
    /// The producer group that may end the transaction.
    pub group: &'a str,
    /// The unique id, which is also the transaction id.
    pub unique_id: Option<&'a str>,
    /// The CRC of its body.
    pub body_crc: u32,
    /// The real topic.
    pub real_topic: &'a str,
    /// The real queue.
    pub real_queue_id: QueueId,
    /// The number of checks that a broker has sent. 0 in a half message from a producer.
    pub checks: u16,
    /// Whether a producer sent it. A copy that a broker put back is not sent.
    pub sent: bool,
    /// How long no check is sent, in milliseconds.
    pub immunity_ms: Option<i64>,
    /// When to deliver its message, if that is not when the transaction is committed.
    pub timer: Option<Timer>,
    /// Its tag.
    pub tags: Option<&'a str>,
    /// Its keys, separated by spaces.
    pub keys: Option<&'a str>,
}

impl<'a> HalfFacts<'a> {
    /// Reads a record of the half topic.
    pub fn of(view: &RecordView<'a>) -> Self {
        let mut facts = Self {
            group: "",
            unique_id: None,
            body_crc: view.body_crc,
            real_topic: "",
            real_queue_id: QueueId(0),
            checks: 0,
            sent: true,
            immunity_ms: None,
            timer: None,
            tags: None,
            keys: None,
        };
        // One pass over the properties, because every end reads them.
        for (name, value) in view.properties.iter() {
            // As in `Properties::get_str`, the last value counts, and a value that is not UTF-8 counts as missing.
            let text = || std::str::from_utf8(value).ok();
            match name {
                name::GROUP => facts.group = text().unwrap_or_default(),
                name::UNIQUE => facts.unique_id = text(),
                name::TOPIC => facts.real_topic = text().unwrap_or_default(),
                name::QUEUE => facts.real_queue_id = QueueId(number(text())),
                name::CHECKS => facts.checks = number(text()),
                name::IMMUNITY => facts.immunity_ms = text().and_then(parse_immunity_ms),
                name::TIMER => facts.timer = text().and_then(Timer::of_half),
                name::TAGS => facts.tags = text(),
                name::KEYS => facts.keys = text(),
                _ => {}
            }
        }
        facts.sent = facts.checks == 0;
        facts
    }

    /// Returns the identity that it shares with its copies, if it has a producer group and a unique id.
    pub fn identity(&self) -> Option<Identity> {
        Identity::of_names(self.group, self.unique_id?, self.real_topic, self.body_crc)
    }
}

/// The property names as bytes, so that a `match` can compare them.
mod name {
    use crate::record::properties as of;

    pub(super) const GROUP: &[u8] = of::PRODUCER_GROUP.as_bytes();
    pub(super) const UNIQUE: &[u8] = of::UNIQUE_KEY.as_bytes();
    pub(super) const TOPIC: &[u8] = of::REAL_TOPIC.as_bytes();
    pub(super) const QUEUE: &[u8] = of::REAL_QUEUE_ID.as_bytes();
    pub(super) const CHECKS: &[u8] = of::TRANSACTION_CHECK_TIMES.as_bytes();
    pub(super) const IMMUNITY: &[u8] = of::CHECK_IMMUNITY_TIME.as_bytes();
    pub(super) const TIMER: &[u8] = of::TRANSACTION_TIMER.as_bytes();
    pub(super) const TAGS: &[u8] = of::TAGS.as_bytes();
    pub(super) const KEYS: &[u8] = of::KEYS.as_bytes();
}

/// Reads `CHECK_IMMUNITY_TIME_IN_SECONDS` in milliseconds. A negative value means none, as in RocketMQ.
pub fn immunity_ms(properties: Properties<'_>) -> Option<i64> {
    parse_immunity_ms(properties.get_str(CHECK_IMMUNITY_TIME)?)
}

/// Parses a number. Returns 0 if it is missing or invalid.
fn number<N: std::str::FromStr + Default>(value: Option<&str>) -> N {
    value.and_then(|value| value.parse().ok()).unwrap_or_default()
}

fn parse_immunity_ms(seconds: &str) -> Option<i64> {
    let seconds: i64 = seconds.parse().ok()?;
    // Longer times count as 24.8 days, so that a sum of times cannot overflow.
    seconds.checked_mul(1_000).filter(|immunity| *immunity >= 0).map(|ms| ms.min(i64::from(i32::MAX)))
}
