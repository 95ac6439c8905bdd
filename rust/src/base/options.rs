//! Defines every limit of a store, with RocketMQ's defaults.
//!
//! In:     the caller's options.
//! Out:    `StoreOptions`, checked.
//! Always: a size that is `None` is taken from the store's own files, or is RocketMQ's default for a new store.
//! Not here: policy (check times, retention), which is Python's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};

/// When an append is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushDiskType {
    /// In the page cache: a killed process loses nothing, a power loss the last half second.
    Async,
    /// Durable: nothing acknowledged is lost.
    Sync,
}

impl FlushDiskType {
    /// Returns the type with RocketMQ's name, `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ASYNC_FLUSH" => Some(Self::Async),
            "SYNC_FLUSH" => Some(Self::Sync),
            _ => None,
        }
    }
}

/// RocketMQ's `mappedFileSizeCommitLog`, in bytes.
pub const COMMIT_LOG_FILE_SIZE: u64 = 1 << 30;
/// RocketMQ's `mappedFileSizeConsumeQueue`, in bytes: 300,000 entries.
pub const CONSUME_QUEUE_FILE_SIZE: u64 = 300_000 * 20;
/// RocketMQ's `maxMessageSize`, in bytes.
pub const MAX_MESSAGE_SIZE: u32 = 4 << 20;
/// RocketMQ's `timerMaxDelaySec`: three days.
pub const TIMER_MAX_DELAY_S: i64 = 3 * 86_400;
/// The most that `timer_max_delay_sec` may be: ten years.
pub const TIMER_MAX_DELAY_S_MAX: i64 = 3_650 * 86_400;
/// The smallest commit log file. A smaller file could hold little more than its own blank record.
pub const COMMIT_LOG_FILE_SIZE_MIN: u64 = 4 << 10;
/// The largest file: RocketMQ maps each in one piece, and counts its bytes in a Java int.
pub const FILE_SIZE_MAX: u64 = (1 << 31) - 1;
/// Bytes that a broker may need in a half message's properties to put it back with its counters (format.md,
/// Transactions).
pub const PUT_BACK_ROOM: usize = 148;

/// The part that a store plays among its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing waits for a copy.
    Alone,
    /// Readers see only what `Store::show_up_to` has released: what the required copies have.
    Source,
    /// The same, and the only records that are written are copied from another store's log.
    Replica,
}

/// The options of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Opens without writing and without a lock.
    pub read_only: bool,
    /// The part that the store plays among its copies.
    pub role: Role,
    /// When an append is acknowledged. With `Sync` half messages are durable, too.
    pub flush_disk_type: FlushDiskType,
    /// When a half message is acknowledged.
    pub transaction_flush_disk_type: FlushDiskType,
    /// Size of a commit log file in bytes.
    pub commit_log_file_size: Option<u64>,
    /// Size of a consume queue file in bytes, a multiple of 20.
    pub consume_queue_file_size: Option<u64>,
    /// Slots of an index file.
    pub max_hash_slot_num: Option<u32>,
    /// Entries of an index file.
    pub max_index_num: Option<u32>,
    /// Maximum size of a body in bytes.
    pub max_message_size: u32,
    /// Milliseconds between two background syncs.
    pub flush_interval_ms: u64,
    /// Maximum size of an op message's body in bytes.
    pub op_message_size_max: usize,
    /// Whether records carry a CRC of their own. `None`: on in stores that txstore creates, unchanged in others.
    pub append_prop_crc: Option<bool>,
    /// The age from which an end counts as late, in milliseconds; a message's immunity time replaces it.
    pub transaction_timeout_ms: i64,
    /// Whether a late end that no check asked for is refused, as RocketMQ does.
    pub reject_late_end: bool,
    /// Maximum number of pending transactions.
    pub pending_transactions_max: u64,
    /// How far ahead the time of a message may be, in seconds.
    pub timer_max_delay_s: i64,
    /// Maximum number of messages that wait for their time.
    pub timed_messages_max: u64,
    /// The address that records name as their store host.
    pub store_host: SocketAddr,
    /// Whether a thread flushes in the background; without one, `Store::flush_round` must be called.
    pub background: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            role: Role::Alone,
            flush_disk_type: FlushDiskType::Async,
            transaction_flush_disk_type: FlushDiskType::Sync,
            commit_log_file_size: None,
            consume_queue_file_size: None,
            max_hash_slot_num: None,
            max_index_num: None,
            max_message_size: MAX_MESSAGE_SIZE,
            flush_interval_ms: 500,
            op_message_size_max: 4_096,
            append_prop_crc: None,
            transaction_timeout_ms: 6_000,
            reject_late_end: false,
            pending_transactions_max: 10_000_000,
            timer_max_delay_s: TIMER_MAX_DELAY_S,
            timed_messages_max: 10_000_000,
            store_host: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_911),
            background: true,
        }
    }
}

impl StoreOptions {
    /// Returns whether the visible end waits for `Store::show_up_to`.
    pub const fn holds_back(&self) -> bool {
        !matches!(self.role, Role::Alone)
    }

    /// Returns whether the store takes only records that are copied from another store's log.
    pub const fn is_replica(&self) -> bool {
        matches!(self.role, Role::Replica)
    }

    /// Returns whether readers and consumers see only what is durable.
    pub const fn shows_only_durable(&self) -> bool {
        matches!(self.flush_disk_type, FlushDiskType::Sync)
    }

    /// Checks every range. A failure has no side effects.
    pub fn check(&self) -> Result<()> {
        let within = |option: &str, value: Option<u64>, least: u64, most: u64, unit: &str| match value {
            Some(value) if !(least..=most).contains(&value) => {
                Err(invalid(option, format!("must be between {least} and {most} {unit}, got {value}")))
            }
            _ => Ok(()),
        };
        if self.read_only && self.holds_back() {
            return Err(invalid("read_only", "a replica is written: open it with read_only=False".to_owned()));
        }
        let (log, queue) = (self.commit_log_file_size, self.consume_queue_file_size);
        let log_max = FILE_SIZE_MAX + u64::from(mutated(Mutant::LargerThanJavaMaps));
        within("mapped_file_size_commit_log", log, COMMIT_LOG_FILE_SIZE_MIN, log_max, "bytes")?;
        within("mapped_file_size_consume_queue", queue, 20, FILE_SIZE_MAX - FILE_SIZE_MAX % 20, "bytes")?;
        // Whether slots and entries fit into one file together is checked where both are known.
        within("max_hash_slot_num", self.max_hash_slot_num.map(u64::from), 1, FILE_SIZE_MAX / 4, "slots")?;
        within("max_index_num", self.max_index_num.map(u64::from), 2, FILE_SIZE_MAX / 20, "entries")?;
        for (option, value) in [
            ("max_message_size", u64::from(self.max_message_size)),
            ("flush_interval_commit_log", self.flush_interval_ms),
            ("pending_transactions_max", self.pending_transactions_max),
            ("timed_messages_max", self.timed_messages_max),
        ] {
            if value == 0 {
                return Err(invalid(option, "must be at least 1, got 0".to_owned()));
            }
        }
        if !(0..=i64::from(i32::MAX)).contains(&self.transaction_timeout_ms) {
            return Err(invalid(
                "transaction_timeout",
                format!("must be between 0 and {} ms, got {}", i32::MAX, self.transaction_timeout_ms),
            ));
        }
        if !(1..=TIMER_MAX_DELAY_S_MAX).contains(&self.timer_max_delay_s) {
            let what = format!("must be between 1 and {TIMER_MAX_DELAY_S_MAX} s, got {}", self.timer_max_delay_s);
            return Err(invalid("timer_max_delay_sec", what));
        }
        if let Some(size) = queue.filter(|size| size % 20 != 0) {
            let what = format!("must be a multiple of 20 bytes, the size of an entry, got {size}");
            return Err(invalid("mapped_file_size_consume_queue", what));
        }
        // An op message names at least one half: twenty digits and a comma.
        if !(32..=1 << 20).contains(&self.op_message_size_max) {
            return Err(invalid(
                "transaction_op_msg_max_size",
                format!("must be between 32 and 1048576 bytes, got {}", self.op_message_size_max),
            ));
        }
        Ok(())
    }
}

fn invalid(option: &str, what: String) -> Error {
    Error::InvalidOption { option: option.to_owned(), what }
}

#[cfg(test)]
mod tests;
