//! Errors of frames: why bytes are no command.
//!
//! In:  what a frame states.
//! Out: a text that says what is wrong, and what is accepted.

/// The longest frame, without the four bytes of its own length.
pub const FRAME_MAX: usize = 16_777_216;
/// The bytes of a frame that tell its header's type and length.
pub(super) const MARK_LEN: usize = 4;

/// Why bytes are no command, or a command has no bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It states more bytes than are allowed.
    #[error("the frame states {total} bytes, at most {FRAME_MAX} are allowed")]
    TooLarge {
        /// What it states.
        total: usize,
    },
    /// It states fewer bytes than its header's mark takes.
    #[error("the frame states {total} bytes, the mark of its header alone takes {MARK_LEN}")]
    TooSmall {
        /// What it states.
        total: usize,
    },
    /// Its header does not fit in it.
    #[error("the header states {header} bytes, the frame has {room}")]
    HeaderTooLong {
        /// What the header states.
        header: usize,
        /// What the frame has.
        room: usize,
    },
    /// The header is written in a way that is not known.
    #[error("serialize type {found}; known are 0 (JSON) and 1 (binary)")]
    SerializeType {
        /// What stands there.
        found: u8,
    },
    /// A JSON header is not JSON.
    #[error("the header is no JSON: {what}")]
    Json {
        /// The parser's words.
        what: String,
    },
    /// A field of the header cannot be.
    #[error("the header's {field} {what}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What is wrong with it.
        what: &'static str,
    },
}
