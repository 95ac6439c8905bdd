//! Remoting: RocketMQ's own protocol, between a server and clients of any language.
//!
//! In: bytes of a connection. Out: commands, and bytes again. Always: limits are held before memory is asked for, and a
//! malformed frame is an exact error, never a panic. Not here: groups, topics and checks, which Python decides.

pub mod command;
pub mod frame;
mod header_binary;
mod header_json;
#[cfg(test)]
mod tests;

pub use command::{Command, ExtFields, SerializeType};
pub use frame::{FRAME_MAX, FrameError, FrameReader, encode};
