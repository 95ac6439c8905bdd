//! Encodes the body of a request with several messages.
//!
//! In:     the messages' bodies and properties.
//! Out:    bytes, which `server::batch` parses.
//! Not here: which messages are in one request.

use crate::base::error::{Error, Result};

const FIXED: usize = 4 * 4 + 4 + 2;

/// Appends a message.
///
/// ```text
///  bytes   field
///  4       total size, of the whole entry
///  4       magic, 0
///  4       body CRC, 0
///  4       flag
///  4 + n   body
///  2 + n   properties
/// ```
pub fn push_message(bytes: &mut Vec<u8>, flag: i32, body: &[u8], properties: &[u8]) -> Result<()> {
    bytes.extend_from_slice(&length(FIXED + body.len() + properties.len(), i32::try_from)?.to_be_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&flag.to_be_bytes());
    bytes.extend_from_slice(&length(body.len(), i32::try_from)?.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&length(properties.len(), i16::try_from)?.to_be_bytes());
    bytes.extend_from_slice(properties);
    Ok(())
}

fn length<T, E>(len: usize, fit: impl Fn(usize) -> std::result::Result<T, E>) -> Result<T> {
    fit(len).map_err(|_| Error::InvalidMessage { what: format!("{len} bytes are too many for a batch") })
}
