//! Reads and writes properties: the ordered name/value text inside a record.
//!
//! In:     `name \x01 value \x02` repeated; the last \x02 may be missing.
//! Out:    values by name, pairs in order.
//! Always: reads as leniently as RocketMQ does. Entries without a name or a value are ignored; of equal names the last
//!         counts.
//! Not here: what a property means.

use std::ops::Range;

use super::layout::{NAME_END, VALUE_END};

/// The application's keys, separated by spaces.
pub const KEYS: &str = "KEYS";
/// The tag.
pub const TAGS: &str = "TAGS";
/// Whether the producer waits for the store.
pub const WAIT: &str = "WAIT";
/// The delay level.
pub const DELAY: &str = "DELAY";
/// The topic that a retried message came from.
pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
/// The consumer group that a message of its retry topic belongs to.
pub const ORIGIN_GROUP: &str = "ORIGIN_GROUP";
/// The topic that a half or delayed message is for.
pub const REAL_TOPIC: &str = "REAL_TOPIC";
/// The queue that a half or delayed message is for.
pub const REAL_QUEUE_ID: &str = "REAL_QID";
/// `true` on a transaction's messages.
pub const TRANSACTION_PREPARED: &str = "TRAN_MSG";
/// The producer group that can be asked in a check.
pub const PRODUCER_GROUP: &str = "PGROUP";
/// The lowest offset of the queue, added on the way to a consumer.
pub const MIN_OFFSET: &str = "MIN_OFFSET";
/// The highest offset of the queue, added on the way to a consumer.
pub const MAX_OFFSET: &str = "MAX_OFFSET";
/// The id of the message that a retry copies.
pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
/// How often a retried message was consumed.
pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
/// How often a message may be retried.
pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
/// When its consumption began.
pub const CONSUME_START_TIME: &str = "CONSUME_START_TIME";
/// The broker's region.
pub const MSG_REGION: &str = "MSG_REGION";
/// Whether the message is traced.
pub const TRACE_ON: &str = "TRACE_ON";
/// The producer's cluster.
pub const CLUSTER: &str = "CLUSTER";
/// The unique id.
pub const UNIQUE_KEY: &str = "UNIQ_KEY";
/// More of the unique id, for a batch.
pub const EXTEND_UNIQUE_INFO: &str = "EXTEND_UNIQ_INFO";
/// Seconds before a half message is checked.
pub const CHECK_IMMUNITY_TIME: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
/// In a half message that a broker put back within its immunity time: the first copy's queue offset.
pub const TRANSACTION_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
/// The transaction's id.
pub const TRANSACTION_ID: &str = "__transactionId__";
/// How often a broker checked a half message.
pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
/// The instance id of the producer.
pub const INSTANCE_ID: &str = "INSTANCE_ID";
/// Names a request, for its reply.
pub const CORRELATION_ID: &str = "CORRELATION_ID";
/// The client that waits for a reply.
pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
/// How long a request waits for its reply.
pub const TTL: &str = "TTL";
/// What kind of message it is.
pub const MESSAGE_TYPE: &str = "MSG_TYPE";
/// How many messages an inner batch holds.
pub const INNER_NUM: &str = "INNER_NUM";
/// The first queue offset of an inner batch.
pub const INNER_BASE: &str = "INNER_BASE";
/// The queues that a message is in besides its own.
pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
/// The key that orders messages within a topic.
pub const SHARDING_KEY: &str = "__SHARDINGKEY";
/// Delay in seconds.
pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
/// Delay in milliseconds.
pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
/// When a timer message is delivered.
pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
/// When a timer message is due, as the broker keeps it.
pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
/// When a broker took a timer message out of its timer.
pub const TIMER_DEQUEUE_MS: &str = "TIMER_DEQUEUE_MS";
/// In the record that recalls a timer message: the topic and the unique id of that message.
pub const TIMER_RECALLED: &str = "TIMER_DEL_UNIQKEY";
/// The producer's address, as the producer states it.
pub const BORN_HOST: &str = "__BORNHOST";
/// When a message was made, as the producer states it.
pub const BORN_TIMESTAMP: &str = "BORN_TIMESTAMP";
/// The topic that a dead letter came from.
pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
/// The id of the message that a dead letter copies.
pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
/// The whole-record CRC. It is hidden from users.
pub const CRC32: &str = "__CRC32#";
/// Ties the half messages of one transaction together (`transaction/set.rs`): three numbers, separated by commas.
pub const TRANSACTION_SET: &str = "TXSTORE_SET";
/// When the message of a half message is delivered (`record/timer.rs`): RocketMQ's timer properties would delay the half
/// message itself where a broker puts it back.
pub const TRANSACTION_TIMER: &str = "TXSTORE_DELIVER_MS";
/// When a message is due that was handed over to a broker's timer, in milliseconds since the epoch. `TIMER_OUT_MS` is
/// rounded there.
pub const HANDED_OVER: &str = "TXSTORE_HANDED_OVER_MS";
/// The separator between two of the `KEYS`.
pub const KEY_SEPARATOR: char = ' ';

/// The names that an application may not set: those that RocketMQ 5.4.0 reserves.
pub const RESERVED: &[&str] = &[
    TRACE_ON,
    MSG_REGION,
    KEYS,
    TAGS,
    WAIT,
    DELAY,
    RETRY_TOPIC,
    ORIGIN_GROUP,
    REAL_TOPIC,
    REAL_QUEUE_ID,
    TRANSACTION_PREPARED,
    PRODUCER_GROUP,
    MIN_OFFSET,
    MAX_OFFSET,
    "BUYER_ID",
    ORIGIN_MESSAGE_ID,
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    RECONSUME_TIME,
    UNIQUE_KEY,
    MAX_RECONSUME_TIMES,
    CONSUME_START_TIME,
    "POP_CK",
    "POP_CK_OFFSET",
    "1ST_POP_TIME",
    TRANSACTION_PREPARED_QUEUE_OFFSET,
    "DUP_INFO",
    EXTEND_UNIQUE_INFO,
    INSTANCE_ID,
    CORRELATION_ID,
    REPLY_TO_CLIENT,
    TTL,
    "ARRIVE_TIME",
    "PUSH_REPLY_TIME",
    CLUSTER,
    MESSAGE_TYPE,
    "INNER_MULTI_QUEUE_OFFSET",
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    "TIMER_ENQUEUE_MS",
    TIMER_DEQUEUE_MS,
    "TIMER_ROLL_TIMES",
    TIMER_OUT_MS,
    TIMER_RECALLED,
    "TIMER_DELAY_LEVEL",
    BORN_HOST,
    BORN_TIMESTAMP,
    DLQ_ORIGIN_TOPIC,
    DLQ_ORIGIN_MESSAGE_ID,
    CRC32,
    "_SYS_MSG_PRIORITY_",
];

/// Returns whether an application may not set this name.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// A record's properties as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a>(pub &'a [u8]);

impl<'a> Properties<'a> {
    /// Returns the value of this name. Of equal names the last counts.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.0.get(self.range_of(name)?)
    }

    /// Returns the range of this name's value in the text. Of equal names the last counts.
    pub fn range_of(&self, name: &str) -> Option<Range<usize>> {
        // The search runs from the end, so that the first match is the value that was set last.
        let mut rest = self.0;
        loop {
            let (before, entry) = split_last_entry(rest);
            match value_of(entry, name.as_bytes()) {
                // An entry ends with its value.
                Some(value) => return Some(rest.len() - value.len()..rest.len()),
                None => rest = before?,
            }
        }
    }

    /// Returns the value of this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&'a str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns the `get_str` value for each of these names, in one walk.
    pub fn get_all<const N: usize>(&self, names: [&str; N]) -> [Option<&'a str>; N] {
        let mut values = [None; N];
        let mut rest = Some(self.0);
        while let Some(text) = rest {
            let (before, entry) = split_last_entry(text);
            for (name, value) in names.iter().zip(&mut values).filter(|(_, value)| value.is_none()) {
                *value = value_of(entry, name.as_bytes());
            }
            rest = before;
        }
        values.map(|value| value.and_then(|value| std::str::from_utf8(value).ok()))
    }

    /// Returns names and values in stored order, without the CRC, which belongs to the record and not to the message.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut rest = Some(self.0);
        let entries = std::iter::from_fn(move || {
            let (entry, after) = split_first_entry(rest?);
            rest = after;
            Some(entry)
        });
        entries.filter_map(name_and_value).filter(|(name, _)| *name != CRC32.as_bytes())
    }
}

/// Appends a property. If the text before it lacks its last separator, adds it first.
pub fn push(out: &mut Vec<u8>, name: &str, value: &str) {
    push_bytes(out, name.as_bytes(), value.as_bytes());
}

/// Appends all properties except the named ones and the record CRC, in their order.
pub fn copy_without(properties: Properties<'_>, names: &[&str], out: &mut Vec<u8>) {
    let text = properties.0;
    // Adjacent properties that stay are copied together.
    let (mut run, mut at, mut rest) = (0, 0, Some(text));
    while let Some(tail) = rest {
        let (entry, after) = split_first_entry(tail);
        let end = after.map_or(text.len(), |after| text.len() - after.len());
        let stays = name_and_value(entry).is_some_and(|(name, _)| {
            name != CRC32.as_bytes() && !names.iter().any(|dropped| dropped.as_bytes() == name)
        });
        if !stays {
            push_run(out, text.get(run..at).unwrap_or_default());
            run = end;
        }
        (at, rest) = (end, after);
    }
    push_run(out, text.get(run..).unwrap_or_default());
}

/// Adds the separator if the text before lacks it.
fn separate(out: &mut Vec<u8>) {
    if out.last().is_some_and(|last| *last != VALUE_END) {
        out.push(VALUE_END);
    }
}

/// Appends properties unchanged, between separators.
fn push_run(out: &mut Vec<u8>, run: &[u8]) {
    if run.is_empty() {
        return;
    }
    separate(out);
    out.extend_from_slice(run);
    separate(out);
}

fn push_bytes(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    separate(out);
    out.reserve(name.len() + value.len() + 2);
    out.extend_from_slice(name);
    out.push(NAME_END);
    out.extend_from_slice(value);
    out.push(VALUE_END);
}

fn name_and_value(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = position::<NAME_END>(entry)?;
    let (name, rest) = entry.split_at_checked(end)?;
    let value = rest.strip_prefix(&[NAME_END])?;
    (!name.is_empty() && !value.is_empty()).then_some((name, value))
}

fn value_of<'a>(entry: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = entry.strip_prefix(name)?.strip_prefix(&[NAME_END])?;
    let is_value = !value.is_empty() && !name.is_empty() && !name.contains(&NAME_END);
    is_value.then_some(value)
}

/// Splits off the last entry. Returns it and the text before its separator; `None` if there is no text before.
fn split_last_entry(text: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut head = text;
    while let Some((before, word)) = head.split_last_chunk::<8>() {
        // The last byte of the text is the lowest byte of the word.
        if let Some(distance) = first_in_word::<VALUE_END>(u64::from_be_bytes(*word)) {
            return split_around(text, before.len() + 7 - distance);
        }
        head = before;
    }
    match head.iter().rposition(|byte| *byte == VALUE_END) {
        Some(at) => split_around(text, at),
        None => (None, text),
    }
}

fn split_around(text: &[u8], at: usize) -> (Option<&[u8]>, &[u8]) {
    (text.get(..at), text.get(at + 1..).unwrap_or_default())
}

/// Splits off the first entry. Returns it and the text after its separator; `None` if there is no text after.
fn split_first_entry(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match position::<VALUE_END>(text) {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    }
}

/// Returns the position of the first such byte.
fn position<const BYTE: u8>(text: &[u8]) -> Option<usize> {
    let (mut tail, mut at) = (text, 0);
    while let Some((word, after)) = tail.split_first_chunk::<8>() {
        if let Some(distance) = first_in_word::<BYTE>(u64::from_le_bytes(*word)) {
            return Some(at + distance);
        }
        tail = after;
        at += 8;
    }
    tail.iter().position(|byte| *byte == BYTE).map(|distance| at + distance)
}

/// Returns the distance in bytes from the word's lowest byte to the first such byte. Compares eight bytes in one step.
fn first_in_word<const BYTE: u8>(word: u64) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // A byte of `zeros` is 0 where the word has `BYTE`. Subtraction borrows only above the first such byte, so the
    // lowest mark is always correct.
    let zeros = word ^ (ONES * u64::from(BYTE));
    let marks = zeros.wrapping_sub(ONES) & !zeros & (ONES << 7);
    if marks == 0 { None } else { usize::try_from(marks.trailing_zeros() / 8).ok() }
}

#[cfg(test)]
mod tests;
