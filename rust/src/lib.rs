//! RocketMQ's transactional message as an embedded engine.

pub mod checkpoint;
pub mod clock;
pub mod config_file;
pub mod error;
pub mod index;
pub mod offsets;
pub mod published;
pub mod storage;
pub mod units;
