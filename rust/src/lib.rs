//! txstore: RocketMQ's transactional message as an embedded engine.

pub mod error;
pub mod java;
pub mod names;
pub mod record;
pub mod units;
