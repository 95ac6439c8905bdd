//! Serves RocketMQ clients in any language.
//!
//! In:     commands of the remoting protocol, RPCs of the gRPC protocol.
//! Out:    messages stored and delivered, answers, requests for Python.
//! Always: sending, ending and pulling never wait for Python.
//! Not here: bytes of the protocol (`remoting`). Groups, topics and checks (Python decides these).

pub mod access;
pub mod accounts;
mod arrivals;
mod batch;
pub mod budget;
pub mod check_request;
mod connection;
pub mod copies;
mod copy_log;
pub mod counters;
pub mod deadlines;
mod durable;
mod end;
pub mod event;
mod fields;
mod grpc;
#[cfg(feature = "testing")]
pub use grpc::probe as grpc_probe;
mod ha;
pub mod listener;
#[cfg_attr(not(all(target_os = "linux", not(txstore_without_disk))), path = "local/elsewhere.rs")]
pub mod local;
pub mod network;
mod offset;
pub mod options;
mod outbox;
pub mod policy;
pub mod pop;
mod pull;
mod recall;
mod router;
mod send;
pub mod service;
mod session;
mod stream;
pub mod tables;
pub mod tls;
pub mod traffic;
