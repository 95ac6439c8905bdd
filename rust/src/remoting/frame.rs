//! Encodes and decodes frames: a command as bytes on a connection.
//!
//! In:     bytes as they arrive, in pieces of any size.
//! Out:    complete commands.
//! Always: a frame's lengths are checked before memory is allocated. At most one frame and one piece are buffered.
//! Not here: the header's bytes.
//!
//! ```text
//!  byte  bytes  field
//!  0     4      total: length of all that follows it
//!  4     1      serialize type: 0 JSON, 1 binary
//!  5     3      n, the header's length
//!  8     n      header
//!  8 + n        body, up to the total
//! ```

use super::command::{Command, SerializeType};
use super::frame_error::MARK_LEN;
pub use super::frame_error::{FRAME_MAX, FrameError, HEADER_MAX};
use super::{header_binary, header_json};

const LENGTH_LEN: usize = 4;
/// A buffer above this size is freed when it is empty, because many connections are idle.
const KEPT_MAX: usize = 64 << 10;

/// Appends a command's frame to `out`. An error does not change `out`.
pub fn encode(command: &Command, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode_head(command, command.body.len(), out)?;
    out.extend_from_slice(&command.body);
    Ok(())
}

/// Appends a command as a frame without its body, which has `body_bytes` bytes and is to follow. The body that the
/// command has itself is ignored. If it does not fit, nothing is appended.
pub fn encode_head(command: &Command, body_bytes: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let begin = out.len();
    let written = write(command, body_bytes, out, begin);
    if written.is_err() {
        out.truncate(begin);
    }
    written
}

fn write(command: &Command, body_bytes: usize, out: &mut Vec<u8>, begin: usize) -> Result<(), FrameError> {
    out.extend_from_slice(&[0; LENGTH_LEN + MARK_LEN]);
    match command.serialize_type {
        SerializeType::Json => header_json::write(command, out),
        SerializeType::Binary => header_binary::write(command, out)?,
    }
    let header = out.len() - begin - LENGTH_LEN - MARK_LEN;
    let total = MARK_LEN + header + body_bytes;
    if header > HEADER_MAX {
        return Err(FrameError::HeaderTooLarge { header });
    }
    if total > FRAME_MAX {
        return Err(FrameError::TooLarge { total });
    }
    let (Ok(total), Ok(header)) = (u32::try_from(total), u32::try_from(header)) else {
        return Err(FrameError::TooLarge { total });
    };
    let mark = u32::from(type_byte(command.serialize_type)) << 24 | header;
    if let Some(target) = out.get_mut(begin..begin + LENGTH_LEN) {
        target.copy_from_slice(&total.to_be_bytes());
    }
    if let Some(target) = out.get_mut(begin + LENGTH_LEN..begin + LENGTH_LEN + MARK_LEN) {
        target.copy_from_slice(&mark.to_be_bytes());
    }
    Ok(())
}

const fn type_byte(serialize_type: SerializeType) -> u8 {
    match serialize_type {
        SerializeType::Json => 0,
        SerializeType::Binary => 1,
    }
}

/// Decodes commands from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    taken: usize,
    failed: Option<FrameError>,
}

impl FrameReader {
    /// Adds bytes that have arrived. Take all complete commands before you add more. Nothing else limits the buffer.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.buffer.drain(..self.taken);
            self.taken = 0;
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns the next complete command, or `None` if more bytes must arrive. After an error, the start of the next
    /// frame is unknown, so the connection is unusable and every call returns the error again.
    pub fn take(&mut self) -> Result<Option<Command>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let arrived = self.buffer.get(self.taken..).unwrap_or_default();
        match split(arrived).and_then(|frame| frame.map(|(frame, len)| Ok((decode(frame)?, len))).transpose()) {
            Ok(Some((command, len))) => {
                self.taken += len;
                self.give_back();
                Ok(Some(command))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                self.failed = Some(error.clone());
                self.buffer = Vec::new();
                self.taken = 0;
                Err(error)
            }
        }
    }

    /// Returns the number of buffered bytes. Not 0 if a connection ends within a frame.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// Returns the memory use in bytes.
    pub fn memory(&self) -> usize {
        self.buffer.capacity()
    }

    fn give_back(&mut self) {
        if self.taken == self.buffer.len() {
            self.taken = 0;
            self.buffer.clear();
            if self.buffer.capacity() > KEPT_MAX {
                self.buffer = Vec::new();
            }
        }
    }
}

/// Returns the first frame without its length, and its total size. Checks the lengths as soon as they have arrived.
fn split(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, FrameError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_LEN>() else { return Ok(None) };
    let total = length_of(*length);
    if total > FRAME_MAX {
        return Err(FrameError::TooLarge { total });
    }
    if total < MARK_LEN {
        return Err(FrameError::TooSmall { total });
    }
    if let Some(mark) = rest.first_chunk::<MARK_LEN>() {
        check_mark(*mark, total - MARK_LEN)?;
    }
    Ok(rest.get(..total).map(|frame| (frame, LENGTH_LEN + total)))
}

fn length_of(bytes: [u8; 4]) -> usize {
    usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX)
}

/// Returns the header's encoding and length.
fn check_mark([found, high, middle, low]: [u8; MARK_LEN], room: usize) -> Result<(SerializeType, usize), FrameError> {
    let header = length_of([0, high, middle, low]);
    if header > room {
        return Err(FrameError::HeaderTooLong { header, room });
    }
    if header > HEADER_MAX {
        return Err(FrameError::HeaderTooLarge { header });
    }
    match found {
        0 => Ok((SerializeType::Json, header)),
        1 => Ok((SerializeType::Binary, header)),
        _ => Err(FrameError::SerializeType { found }),
    }
}

fn decode(frame: &[u8]) -> Result<Command, FrameError> {
    let Some((mark, rest)) = frame.split_first_chunk::<MARK_LEN>() else {
        return Err(FrameError::TooSmall { total: frame.len() });
    };
    let (serialize_type, header) = check_mark(*mark, rest.len())?;
    let Some((header, body)) = rest.split_at_checked(header) else {
        return Err(FrameError::HeaderTooLong { header, room: rest.len() });
    };
    let mut command = match serialize_type {
        SerializeType::Json => header_json::read(header)?,
        SerializeType::Binary => header_binary::read(header)?,
    };
    command.serialize_type = serialize_type;
    command.body = body.to_vec();
    Ok(command)
}
