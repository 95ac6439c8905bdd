//! The messages of RocketMQ's gRPC protocol (package `apache.rocketmq.v2`), as Rust types.
//!
//! In:     the bytes of a request.
//! Out:    the bytes of an answer.
//! Always: a field's tag and type are RocketMQ's. Enumerations are plain numbers with constants, because a client may
//!         send a number that this version does not know. Unknown fields are skipped.
//! Not here: what a message means.
//! By hand: the definitions. They are few, so a generator and its input would be longer than its output.

mod call;
mod settings;
mod types;

pub(crate) use call::*;
pub(crate) use settings::*;
pub(crate) use types::*;
