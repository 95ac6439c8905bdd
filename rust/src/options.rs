//! Options: every limit of a store, with RocketMQ's defaults.
//!
//! In: what the caller asks for. Out: `StoreOptions`, checked. Always: a size that is `None` is taken from the store's
//! own files, or is RocketMQ's default for a new store. Not here: policy (check times, retention), which is Python's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::{Error, Result};

/// When an append is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushDiskType {
    /// In the page cache: a killed process loses nothing, lost power the last half second.
    Async,
    /// Durable: nothing acknowledged is lost.
    Sync,
}

/// RocketMQ's `mappedFileSizeCommitLog`, in bytes.
pub const COMMIT_LOG_FILE_SIZE: u64 = 1 << 30;
/// RocketMQ's `mappedFileSizeConsumeQueue`, in bytes: 300,000 entries.
pub const CONSUME_QUEUE_FILE_SIZE: u64 = 300_000 * 20;
/// RocketMQ's `maxMessageSize`, in bytes.
pub const MAX_MESSAGE_SIZE: u32 = 4 << 20;
/// The smallest commit log file: below it a file could hold little more than its own blank record.
pub const COMMIT_LOG_FILE_SIZE_MIN: u64 = 4 << 10;
/// Room that a broker may need in a half's properties to put it back with its counters (format.md, Transactions).
pub const PUT_BACK_ROOM: usize = 148;

/// Everything about a store that a caller may choose.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Nothing is written, no lock is taken.
    pub read_only: bool,
    /// When an append is acknowledged.
    pub flush_disk_type: FlushDiskType,
    /// Bytes of a commit log file.
    pub commit_log_file_size: Option<u64>,
    /// Bytes of a consume queue file, a multiple of 20.
    pub consume_queue_file_size: Option<u64>,
    /// Slots of an index file.
    pub max_hash_slot_num: Option<u32>,
    /// Entries of an index file.
    pub max_index_num: Option<u32>,
    /// Bytes of a body at most.
    pub max_message_size: u32,
    /// Milliseconds between two background syncs.
    pub flush_interval_ms: u64,
    /// Bytes of an op message's body at most.
    pub op_message_size_max: usize,
    /// Whether records carry a CRC of their own; `None`: on in stores that are made here, as it was in others.
    pub append_prop_crc: Option<bool>,
    /// The age from which an end counts as late, in milliseconds; a message's immunity time replaces it.
    pub transaction_timeout_ms: i64,
    /// Whether a late end that no check asked for is refused, as RocketMQ does.
    pub reject_late_end: bool,
    /// How many transactions may pend.
    pub pending_transactions_max: u64,
    /// The address that records name as their store host.
    pub store_host: SocketAddr,
    /// Whether a thread flushes in the background; without one, `Store::flush_round` must be called.
    pub background: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            flush_disk_type: FlushDiskType::Async,
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
            store_host: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_911),
            background: true,
        }
    }
}

impl StoreOptions {
    /// Checks every range. Nothing has been touched when this fails.
    pub fn check(&self) -> Result<()> {
        let at_least = |option: &str, value: Option<u64>, minimum: u64, unit: &str| match value {
            Some(value) if value < minimum => {
                Err(invalid(option, format!("{value} is too small; at least {minimum} {unit}")))
            }
            _ => Ok(()),
        };
        at_least("mapped_file_size_commit_log", self.commit_log_file_size, COMMIT_LOG_FILE_SIZE_MIN, "bytes")?;
        at_least("mapped_file_size_consume_queue", self.consume_queue_file_size, 20, "bytes")?;
        at_least("max_hash_slot_num", self.max_hash_slot_num.map(u64::from), 1, "slots")?;
        at_least("max_index_num", self.max_index_num.map(u64::from), 2, "entries")?;
        at_least("max_message_size", Some(u64::from(self.max_message_size)), 1, "byte")?;
        at_least("flush_interval_commit_log", Some(self.flush_interval_ms), 1, "ms")?;
        at_least("pending_transactions_max", Some(self.pending_transactions_max), 1, "transaction")?;
        if !(0..=i64::from(i32::MAX)).contains(&self.transaction_timeout_ms) {
            return Err(invalid(
                "transaction_timeout",
                format!("{} is not within 0 to {} ms", self.transaction_timeout_ms, i32::MAX),
            ));
        }
        if self.commit_log_file_size.is_some_and(|size| size > 1 << 31) {
            return Err(invalid(
                "mapped_file_size_commit_log",
                "a commit log file has at most 2147483648 bytes".into(),
            ));
        }
        if let Some(size) = self.consume_queue_file_size.filter(|size| size % 20 != 0) {
            return Err(invalid(
                "mapped_file_size_consume_queue",
                format!("{size} is no multiple of an entry's 20 bytes"),
            ));
        }
        // An op message names at least one half: twenty digits and a comma.
        if !(32..=1 << 20).contains(&self.op_message_size_max) {
            return Err(invalid(
                "transaction_op_msg_max_size",
                format!("{} is not within 32 to 1048576 bytes", self.op_message_size_max),
            ));
        }
        Ok(())
    }
}

fn invalid(option: &str, what: String) -> Error {
    Error::InvalidOption { option: option.to_owned(), what }
}
