//! The extension module `txstore._native`: the Python interface of the engine.
//!
//! In:     calls of a few lines.
//! Out:    small frozen objects.
//! Always: one call per message or batch. The interpreter's lock is released only if a call can wait. No panic reaches
//!         Python. The contract is `_native.pyi`.
//! Not here: mechanism, policy.

// Arguments from Python arrive by value.
#![allow(clippy::needless_pass_by_value)]

mod arrow;
mod backup;
mod call;
mod codes;
mod epochs;
mod error;
#[cfg(feature = "server")]
mod event;
mod frames;
mod loop_store;
#[cfg(feature = "memory")]
mod memory;
mod message;
mod names;
mod open_report;
mod outbox;
mod pulled;
mod remoting;
mod repair;
mod retention;
mod rows;
mod sending;
#[cfg(feature = "server")]
mod server;
mod sql;
mod statistics;
mod store;
mod stored;
mod transaction;
mod values;

use pyo3::prelude::*;

use crate::base::clock::{Clock, SystemClock};
use crate::record::message_id::UniqueIds;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::arrow::{
        RecordName, Scan, log_boundary, log_cut, log_first, log_half_progress, log_last_record, log_queue_ids,
        log_queue_offset_since, log_queue_position, log_queue_range, log_range, log_record, log_store_id,
        log_time_range, log_topics,
    };
    #[pymodule_export]
    use super::backup::{BackupSource, LogFileContent, verify_log_file};
    #[pymodule_export]
    use super::codes::{RequestRule, request_rules};
    #[pymodule_export]
    use super::epochs::{StoreEpochs, begin_replica, begin_replica_of_rocketmq, read_epochs};
    #[cfg(feature = "server")]
    #[pymodule_export]
    use super::event::{
        ClientAnswer, ConnectionClosed, ConnectionRefused, MessageSkipped, NewProducer, RemotingRequest, RequestDenied,
        SlaveConnected, UnknownGroup, UnknownTopic,
    };
    #[pymodule_export]
    use super::frames::{Frame, Frames};
    #[pymodule_export]
    use super::loop_store::LoopStore;
    #[cfg(feature = "memory")]
    #[pymodule_export]
    use super::memory::{HandClock, MemoryStorage};
    #[pymodule_export]
    use super::message::{Message, SendResult};
    #[pymodule_export]
    use super::names::{is_system_topic, validate_group, validate_topic};
    #[pymodule_export]
    use super::open_report::OpenReport;
    #[pymodule_export]
    use super::outbox::OutboxRow;
    #[pymodule_export]
    use super::pulled::PulledRecords;
    #[pymodule_export]
    use super::remoting::{FrameReader, RemotingCommand, batch_body, decode_records, encode_request, properties_text};
    #[pymodule_export]
    use super::repair::{Examiner, mend_store};
    #[pymodule_export]
    use super::retention::{Expired, LogFile};
    #[pymodule_export]
    use super::rows::{SinkBatch, SinkHalves, SinkQueues, SinkRows};
    #[cfg(feature = "server")]
    #[pymodule_export]
    use super::server::{LocalListener, RemotingServer};
    #[pymodule_export]
    use super::sql::Sql;
    #[pymodule_export]
    use super::statistics::StoreStat;
    #[pymodule_export]
    use super::store::{Store, strict_json};
    #[pymodule_export]
    use super::stored::StoredMessage;
    #[pymodule_export]
    use super::transaction::{DueHalves, EndResult, TopicEnds, TransactionRow, WaitingHalf, allow_end_again};
    #[pymodule_export]
    use super::{delay_level_ms, java_hash_code, log_panics_as_json, network_file_system, recall_names, unique_id};

    use pyo3::prelude::*;

    /// Sets the version, the enums and the names, and lets a forked child tell the engine that it was forked.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("__debug_build__", cfg!(debug_assertions))?;
        super::codes::add_enums(module)?;
        super::names::add_constants(module)?;
        module.add("ACKNOWLEDGED", super::stored::ACKNOWLEDGED)?;
        let py = module.py();
        let note = pyo3::types::PyCFunction::new_closure(py, None, None, |_args, _kwargs| crate::store::note_fork())?;
        let options = pyo3::types::PyDict::new(py);
        options.set_item("after_in_child", note)?;
        let os = py.import("os")?;
        if os.hasattr("register_at_fork")? {
            os.call_method("register_at_fork", (), Some(&options))?;
        }
        Ok(())
    }
}

/// Creates a new unique id in the format of RocketMQ's clients.
#[pyfunction]
fn unique_id() -> String {
    unique_ids(1).pop().unwrap_or_default()
}

/// Creates several unique ids.
fn unique_ids(count: usize) -> Vec<String> {
    // A forked child must not continue its parent's ids. The interpreter's lock is held during a fork, so no other
    // thread holds this one then.
    static IDS: crate::base::sync::unmodelled::Mutex<Option<(u32, UniqueIds)>> =
        crate::base::sync::unmodelled::Mutex::new(None);
    let clock = SystemClock;
    let pid = std::process::id();
    let mut known = IDS.lock();
    if known.as_ref().is_none_or(|(process, _)| *process != pid) {
        let mixed = clock.wall().0.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let salt = u32::try_from(mixed >> 32).unwrap_or(0);
        *known = Some((pid, UniqueIds::new(std::net::Ipv4Addr::LOCALHOST.into(), pid, salt)));
    }
    let Some((_, ids)) = known.as_ref() else { return Vec::new() };
    let now = clock.wall();
    (0..count).map(|_| ids.next(now).as_str().to_owned()).collect()
}

/// Returns the kind of network file system that a directory is on.
#[pyfunction]
fn network_file_system(py: Python<'_>, directory: std::path::PathBuf) -> PyResult<Option<&'static str>> {
    call::detached(py, || crate::storage::disk::network_file_system(&directory))
}

/// Logs panics as JSON, from now on and in the whole process.
#[pyfunction]
fn log_panics_as_json() {
    crate::base::panics::log_as_json();
}

/// Returns the topic and the name of the broker in a recall handle.
#[pyfunction]
fn recall_names(py: Python<'_>, handle: &str) -> PyResult<(String, String)> {
    use self::error::OrRaise;
    let handle = crate::record::recall_handle::RecallHandle::decode(handle).or_raise(py)?;
    Ok((handle.topic, handle.broker_name))
}

/// Returns the delay of a delay level in milliseconds.
#[pyfunction]
fn delay_level_ms(level: usize) -> i64 {
    crate::index::delay::level_ms(level)
}

/// Computes Java's `String.hashCode`.
#[pyfunction]
fn java_hash_code(text: &str) -> i32 {
    crate::base::java::hash_code(text)
}
