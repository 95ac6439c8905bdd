//! The commit log: appending to it, scanning it, making it durable, and publishing its end to other processes.

pub mod commit_log;
pub mod flush;
pub mod published;
