//! RocketMQ's transactional message as an embedded engine.

pub mod clock;
pub mod error;
pub mod storage;
pub mod units;
