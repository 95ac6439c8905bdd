//! RocketMQ's Remoting protocol between a server and clients in any language.
//!
//! In:     bytes of a connection.
//! Out:    commands, and bytes again. In a server: messages stored and delivered.
//! Always: limits are checked before memory is allocated. A malformed frame is an exact error, never a panic. Sending,
//!         ending and pulling never wait for Python.
//! Not here: groups, topics and checks (Python decides these).

pub mod codes;
pub mod command;
pub mod frame;
mod frame_error;
mod header_binary;
mod header_json;
#[cfg(test)]
mod tests;

#[cfg(feature = "server")]
pub mod access;
#[cfg(feature = "server")]
pub mod accounts;
#[cfg(feature = "server")]
mod arrivals;
#[cfg(feature = "server")]
pub mod budget;
#[cfg(feature = "server")]
pub mod check;
#[cfg(feature = "server")]
mod connection;
#[cfg(feature = "server")]
pub mod counters;
#[cfg(feature = "server")]
pub mod deadlines;
#[cfg(feature = "server")]
mod durable;
#[cfg(feature = "server")]
mod end;
#[cfg(feature = "server")]
pub mod event;
#[cfg(feature = "server")]
mod fields;
#[cfg(feature = "server")]
mod offset;
#[cfg(feature = "server")]
pub mod options;
#[cfg(feature = "server")]
mod outbox;
#[cfg(feature = "server")]
pub mod policy;
#[cfg(feature = "server")]
mod pull;
#[cfg(feature = "server")]
mod router;
#[cfg(feature = "server")]
mod send;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod service;
#[cfg(feature = "server")]
mod stream;
#[cfg(feature = "server")]
pub mod tables;
#[cfg(feature = "server")]
pub mod tls;
#[cfg(feature = "server")]
pub mod traffic;

pub use command::{Command, ExtFields, SerializeType};
pub use frame::{FRAME_MAX, FrameError, FrameReader, encode};
