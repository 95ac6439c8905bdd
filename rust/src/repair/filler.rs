//! Builds fillers: records that replace lost ones, so that every reader of the log skips the range.
//!
//! In:     a range of the log.
//! Out:    its bytes.
//! Always: whole records with the transaction bits of a rollback, which neither RocketMQ nor txstore puts in a queue or
//!         an index. A range that reaches its file's end ends with a blank record.

use std::net::{Ipv4Addr, SocketAddr};

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{REPAIR_TOPIC, SHORT_REPAIR_TOPIC};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs, to_u64, to_usize};
use crate::record::decode::{RecordCrc, Verify};
use crate::record::encode::{blank, encode, encoded_size};
use crate::record::layout::{BLANK_MIN, SYS_ROLLBACK};
use crate::record::{Draft, Position, RecordView, TransactionType};

/// The topic of fillers.
pub const TOPIC: &str = REPAIR_TOPIC;
/// The topic of a filler where `TOPIC` does not fit. With it a filler is at most as long as any lost record with the
/// same CRCs could have been.
pub(super) const SHORT_TOPIC: &str = SHORT_REPAIR_TOPIC;
/// Maximum size of one filler in bytes: the usual limit of a message.
const FILLER_MAX: u64 = 1 << 20;

/// Returns the bytes that fill `from..to` of a file that begins at `base` and has `size` bytes.
pub(super) fn fill(from: u64, to: u64, base: u64, size: u64, stored: TimestampMs, verify: Verify) -> Result<Vec<u8>> {
    let with_crc = matches!(verify.record_crc, RecordCrc::Required);
    let mut topic = TOPIC;
    let mut least = least_size(topic, with_crc)?;
    if to < base + size && to - from < least && !mutated(Mutant::NoShortFiller) {
        topic = SHORT_TOPIC;
        least = least_size(topic, with_crc)?;
    }
    let put = |at, size, out: &mut Vec<u8>| put(topic, at, size, least, stored, with_crc, out);
    let mut out = Vec::new();
    let mut at = from;
    if to == base + size {
        // A record shows that the range was repaired. At a file's beginning its store time is also read.
        if to - from >= least + to_u64(BLANK_MIN) {
            at += put(at, least, &mut out)?;
        }
        let left = u32::try_from(to - at).map_err(|_| too_large(from, to))?;
        out.extend_from_slice(&blank(left));
        return Ok(out);
    }
    while at < to {
        let left = to - at;
        if left < least {
            return Err(too_large(from, to));
        }
        let size = if left <= FILLER_MAX { left } else { FILLER_MAX.min(left - least) };
        at += put(at, size, &mut out)?;
    }
    Ok(out)
}

/// Returns whether a record is a filler.
pub fn is_filler(view: &RecordView<'_>) -> bool {
    matches!(view.topic, TOPIC | SHORT_TOPIC) && view.transaction_type() == TransactionType::Rollback
}

/// Returns whether a filler fits into `room` bytes between two records.
pub(super) fn fits(room: u64, verify: Verify) -> bool {
    let with_crc = matches!(verify.record_crc, RecordCrc::Required);
    least_size(SHORT_TOPIC, with_crc).is_ok_and(|least| room >= least)
}

fn least_size(topic: &'static str, with_crc: bool) -> Result<u64> {
    encoded_size(&draft(topic, &[], TimestampMs(0)), with_crc).map(u64::from)
}

fn put(
    topic: &'static str,
    at: u64,
    size: u64,
    least: u64,
    stored: TimestampMs,
    with_crc: bool,
    out: &mut Vec<u8>,
) -> Result<u64> {
    let body = vec![0; to_usize(size - least)];
    let position =
        Position { physical_offset: PhysicalOffset(at), queue_offset: QueueOffset(0), store_timestamp: stored };
    encode(&draft(topic, &body, stored), position, with_crc, out).map(u64::from)
}

fn draft<'a>(topic: &'a str, body: &'a [u8], stored: TimestampMs) -> Draft<'a> {
    let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Draft {
        topic,
        queue_id: QueueId(0),
        flag: 0,
        sys_flag: SYS_ROLLBACK,
        born_timestamp: stored,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: PhysicalOffset(0),
        body,
        body_crc: None,
        properties: b"",
    }
}

fn too_large(from: u64, to: u64) -> Error {
    Error::InvalidOption {
        option: "path".to_owned(),
        what: format!("{} bytes at {from} of the log cannot hold a filler record", to - from),
    }
}
