//! Checks what a directory contains before anything in it is changed.
//!
//! In:     a directory, options, stored settings.
//! Out:    whether it is a store, and the sizes of its files.
//! Always: reads only. A directory that is not a store, or a store that txstore cannot continue, is refused by name.
//! Not here: locks, recovery.

use super::broker_timer;
use crate::base::error::{Error, Result};
use crate::base::names::HALF_TOPIC;
use crate::base::options::{COMMIT_LOG_FILE_SIZE, CONSUME_QUEUE_FILE_SIZE, FILE_SIZE_MAX, StoreOptions};
use crate::index::consume_queue;
use crate::index::key_index::{IndexGeometry, find_geometry, verify_geometry};
use crate::recovery::log_view::{consume_queue_file_size, foreign, log_file_size};
use crate::storage::Storage;
use crate::storage::settings::Settings;

/// The sizes of the store's files.
pub(super) struct Geometry {
    pub(super) commit_log: u64,
    pub(super) consume_queue: u64,
    pub(super) index: IndexGeometry,
}

/// Refuses kinds of stores that txstore cannot continue (docs/internals/format.md).
pub(crate) fn refuse(storage: &dyn Storage) -> Result<()> {
    if storage.len("consumequeue/CURRENT")?.is_some() {
        return Err(foreign(
            storage,
            "consumequeue/CURRENT",
            "the queues are kept in RocksDB; only file queues are continued",
        ));
    }
    for directory in ["batchconsumequeue", "consumequeue_ext"] {
        if storage.list(directory)?.is_some_and(|entries| !entries.is_empty()) {
            return Err(foreign(storage, directory, "queues of this kind are not continued"));
        }
    }
    for queue in storage.list(&format!("{}/{HALF_TOPIC}", consume_queue::DIRECTORY))?.unwrap_or_default() {
        if queue.is_dir && queue.name != "0" {
            return Err(foreign(
                storage,
                &format!("{}/{HALF_TOPIC}/{}", consume_queue::DIRECTORY, queue.name),
                "half messages in more than one queue are not continued",
            ));
        }
    }
    for topic in ["RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"] {
        let directory = format!("{}/{topic}", consume_queue::DIRECTORY);
        if storage.list(&directory)?.is_some_and(|queues| !queues.is_empty()) {
            let what = "messages that RocketMQ keeps outside of the log may hang on it; it is not continued\n\
                        hint: it can be read; the queue stays until the log drops its records, also when all is delivered";
            return Err(foreign(storage, &directory, what));
        }
    }
    broker_timer::refuse_waiting(storage)
}

/// Returns the files' sizes: those of the store, or those in the options, or RocketMQ's defaults.
pub(super) fn geometry(storage: &dyn Storage, options: &StoreOptions, settings: Option<&Settings>) -> Result<Geometry> {
    let own = log_file_size(storage, settings)?;
    let commit_log = agree("mapped_file_size_commit_log", own, options.commit_log_file_size, COMMIT_LOG_FILE_SIZE)?;
    let own = consume_queue_file_size(storage, settings)?;
    let consume_queue =
        agree("mapped_file_size_consume_queue", own, options.consume_queue_file_size, CONSUME_QUEUE_FILE_SIZE)?;
    Ok(Geometry { commit_log, consume_queue, index: index_geometry(storage, options, settings)? })
}

fn index_geometry(storage: &dyn Storage, options: &StoreOptions, settings: Option<&Settings>) -> Result<IndexGeometry> {
    let default = IndexGeometry::default();
    let remembered = settings
        .and_then(|settings| Some(IndexGeometry { slots: settings.index_slots?, entries: settings.index_entries? }));
    let own = match (remembered, options.max_hash_slot_num, options.max_index_num) {
        (Some(remembered), ..) => Some(remembered),
        (None, Some(slots), Some(entries)) => {
            let asked = IndexGeometry { slots, entries };
            verify_geometry(storage, asked)?;
            Some(asked)
        }
        _ => find_geometry(storage)?,
    };
    let (own_slots, own_entries) = (own.map(|own| u64::from(own.slots)), own.map(|own| u64::from(own.entries)));
    let slots = agree("max_hash_slot_num", own_slots, options.max_hash_slot_num.map(u64::from), default.slots.into())?;
    let entries = agree("max_index_num", own_entries, options.max_index_num.map(u64::from), default.entries.into())?;
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let geometry = IndexGeometry { slots: narrow(slots), entries: narrow(entries) };
    if geometry.file_bytes() > FILE_SIZE_MAX {
        let what = format!(
            "an index file of {slots} slots and {entries} entries has {} bytes\nhint: at most {FILE_SIZE_MAX}; a slot has 4 bytes, an entry 20",
            geometry.file_bytes()
        );
        return Err(Error::InvalidOption { option: "max_index_num".to_owned(), what });
    }
    Ok(geometry)
}

/// Returns the store's own size. An option with a different size is an error.
fn agree(option: &str, own: Option<u64>, asked: Option<u64>, default: u64) -> Result<u64> {
    match (own, asked) {
        (Some(own), Some(asked)) if own != asked => Err(Error::InvalidOption {
            option: option.to_owned(),
            what: format!(
                "{asked} was requested, but the store has {own}\nhint: omit the option to open the store as it is"
            ),
        }),
        (Some(size), _) | (None, Some(size)) => Ok(size),
        (None, None) => Ok(default),
    }
}
