//! RocketMQ's transactional message as an embedded engine.
//!
//! A producer stores a *half message* that no consumer sees, runs its local transaction, then commits or rolls back.
//! The files are byte for byte those of a RocketMQ store. One process writes a store, many read it.
//!
//! The engine is not a broker. It starts no check by itself, and knows consumer groups only by their offsets. The
//! embedding program does the rest, for example the Python package `txstore`. Only the module `remoting` opens sockets.
//!
//! ```no_run
//! use txstore::half::HalfCopy;
//! use txstore::message::{Envelope, Parts};
//! use txstore::options::StoreOptions;
//! use txstore::store::{End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
//! use txstore::units::{QueueId, QueueOffset};
//!
//! let store = Store::open("orders.store".as_ref(), StoreOptions::default())?;
//! let envelope = Envelope::new(&Parts { topic: "orders", tags: Some("paid"), ..Parts::default() })?;
//! let message = NewMessage { envelope: &envelope, body: b"17", queue_id: QueueId(0) };
//! let half = NewHalfMessage { message, group: "order-service", unique_id: None, owner: 0 };
//! let half = store.prepare(&half, Wait::Yes)?.acknowledged()?;
//! // Run the local transaction here. Then:
//! let commit = End {
//!     half: HalfCopy { queue_offset: half.queue_offset.0, physical_offset: half.physical_offset.0 },
//!     kind: EndKind::Commit,
//!     transaction_id: None,
//!     group: Some("order-service".into()),
//!     decider: txstore::store::Decider::Producer,
//! };
//! store.end_transaction(&commit, Wait::Yes)?;
//! let (messages, _next) = store.read("orders", QueueId(0), QueueOffset(0), 32, None)?;
//! assert_eq!(messages[0].view()?.body, b"17");
//! store.close()?;
//! # Ok::<(), txstore::error::Error>(())
//! ```

#[cfg(feature = "arrow")]
pub mod arrow;
pub mod checkpoint;
pub mod clock;
pub mod commit_log;
pub mod config_file;
pub mod consume_queue;
pub mod delay;
pub mod dispatch;
pub mod error;
pub mod flush;
pub mod half;
pub mod index;
pub mod java;
pub mod log_view;
pub mod message;
mod mutant;
pub mod names;
pub mod offsets;
pub mod options;
pub mod panics;
pub mod published;
pub mod record;
pub mod recovery;
pub mod remoting;
pub mod repair;
pub mod retention;
pub mod segment;
pub mod settings;
pub mod snapshot;
pub mod storage;
pub mod store;
mod sync;
pub mod units;

#[cfg(feature = "python")]
mod python;
