//! RocketMQ's Remoting protocol: frames, commands and codes, and bodies with several messages.
//!
//! In:     bytes of a connection.
//! Out:    commands, and bytes again.
//! Always: limits are checked before memory is allocated. A malformed frame is an exact error, never a panic.
//! Not here: what a server does with a command (`server`), connections of clients (Python).

pub mod batch;
pub mod codes;
pub mod command;
pub mod frame;
mod frame_error;
mod header_binary;
mod header_json;
#[cfg(feature = "arrow")]
pub mod rows;
#[cfg(test)]
mod tests;

pub use command::{Command, ExtFields, SerializeType};
pub use frame::{FRAME_MAX, FrameError, FrameReader, encode, encode_head};
