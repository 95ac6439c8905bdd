//! Parses the body of a request with several messages.
//!
//! In:     the body of a batch, or of the half messages of one transaction.
//! Out:    its messages. For a half message, also its real topic and queue.
//! Not here: storing them (`send`), the permissions that they need (`access`).

use super::fields::Refusal;
use crate::record::properties::{Properties, REAL_QUEUE_ID, REAL_TOPIC};
use crate::remoting::codes::response;

/// The maximum number of messages in one batch.
const BATCH_MAX: usize = 16_384;

/// One message of a request.
pub(super) struct Part<'a> {
    pub(super) flag: i32,
    pub(super) properties: &'a str,
    pub(super) body: &'a [u8],
}

impl<'a> Part<'a> {
    /// Returns the real topic of a half message, and the queue that its client chose. Below 0: none.
    pub(super) fn real(&self) -> Option<(&'a str, i32)> {
        let properties = Properties(self.properties.as_bytes());
        Some((properties.get_str(REAL_TOPIC)?, properties.get_str(REAL_QUEUE_ID)?.parse().ok()?))
    }
}

/// Parses the messages in a batch's body.
///
/// ```text
///  bytes  field
///  4      size of all
///  4      magic, ignored
///  4      CRC, ignored
///  4      flag
///  4 + n  body
///  2 + n  properties
/// ```
pub(super) fn parts_of(body: &[u8]) -> Result<Vec<Part<'_>>, Refusal> {
    let illegal = || Refusal::new(response::MESSAGE_ILLEGAL, "the batch's body is cut off, or no batch");
    let (mut rest, mut parts) = (body, Vec::new());
    while !rest.is_empty() {
        if parts.len() >= BATCH_MAX {
            let remark = format!("a batch holds {BATCH_MAX} messages at most");
            return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
        }
        let (part, after) = part_of(rest).ok_or_else(illegal)?;
        parts.push(part);
        rest = after;
    }
    if parts.is_empty() {
        return Err(illegal());
    }
    Ok(parts)
}

fn part_of(bytes: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let (size, _) = bytes.split_first_chunk::<4>()?;
    let (message, after) = bytes.split_at_checked(usize::try_from(i32::from_be_bytes(*size)).ok()?)?;
    let (flag, rest) = message.get(12..)?.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (body, rest) = rest.split_at_checked(usize::try_from(i32::from_be_bytes(*length)).ok()?)?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let properties = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    let properties = std::str::from_utf8(properties).ok()?;
    Some((Part { flag: i32::from_be_bytes(*flag), properties, body }, after))
}
