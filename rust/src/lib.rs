//! RocketMQ's transactional message as an embedded engine.
//!
//! A producer stores a *half message* that no consumer sees, runs its local transaction, then commits or rolls back.
//! The files are byte for byte those of a RocketMQ store. One process writes a store, many read it.
//!
//! The engine is not a broker. It starts no check by itself, and knows consumer groups only by their offsets. The
//! embedding program does the rest, for example the Python package `txstore`. Only the module `server` opens sockets.
//!
//! ```no_run
//! use txstore::transaction::HalfCopy;
//! use txstore::record::message::{Envelope, Parts};
//! use txstore::base::options::StoreOptions;
//! use txstore::store::{End, EndKind, NewHalfMessage, NewMessage, Store, Wait};
//! use txstore::base::units::{QueueId, QueueOffset};
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
//! # Ok::<(), txstore::base::error::Error>(())
//! ```

#[cfg(feature = "arrow")]
pub mod arrow;
#[cfg(feature = "arrow")]
pub mod backup;
pub mod base;
pub mod filter;
pub mod index;
pub mod log;
pub mod record;
pub mod recovery;
pub mod remoting;
pub mod repair;
#[cfg(feature = "server")]
pub mod server;
pub mod storage;
pub mod store;
pub mod transaction;

#[cfg(feature = "python")]
mod python;
