//! What finds a message: consume queues, the key index, consumer offsets and deliveries, delayed and timed messages.
//!
//! In:     records of the log, through `dispatch`.
//! Always: queues and the key index are derived from the log and can be rebuilt from it.

pub mod consume_queue;
pub mod delay;
pub mod deliveries;
pub mod dispatch;
pub mod key_index;
pub mod offsets;
pub mod timed;
