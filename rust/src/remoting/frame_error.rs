//! Errors of frames: why bytes are not a command.
//!
//! In:     what a frame contains.
//! Out:    a text that says what is wrong and what is accepted.

/// The maximum frame length in bytes, without the four bytes of the length itself.
pub const FRAME_MAX: usize = 16_777_216;
/// The maximum header length in bytes. A header is parsed as a whole before its signature is verified, and no client's is
/// longer: the longest field, a message's properties, has at most 32 KiB.
pub const HEADER_MAX: usize = 1 << 20;
/// The number of bytes that contain the header's type and length.
pub(super) const MARK_LEN: usize = 4;

/// Why bytes are not a command, or why a command cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The stated length is above the limit.
    #[error("the frame states {total} bytes, at most {FRAME_MAX} are allowed")]
    TooLarge {
        /// The stated length.
        total: usize,
    },
    /// The stated length is below the size of the header's mark.
    #[error("the frame states {total} bytes, the mark of its header alone takes {MARK_LEN}")]
    TooSmall {
        /// The stated length.
        total: usize,
    },
    /// The header is longer than the frame.
    #[error("the header states {header} bytes, the frame has {room}")]
    HeaderTooLong {
        /// The stated header length.
        header: usize,
        /// The space in the frame.
        room: usize,
    },
    /// The stated header length is above the limit.
    #[error("the header states {header} bytes, at most {HEADER_MAX} are allowed")]
    HeaderTooLarge {
        /// The stated header length.
        header: usize,
    },
    /// The header's encoding is unknown.
    #[error("serialize type {found}; known are 0 (JSON) and 1 (binary)")]
    SerializeType {
        /// The value found.
        found: u8,
    },
    /// A JSON header is not JSON.
    #[error("the header is not valid JSON: {what}")]
    Json {
        /// The parser's message.
        what: String,
    },
    /// A field of the header is invalid.
    #[error("the header's {field} {what}")]
    Field {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}
