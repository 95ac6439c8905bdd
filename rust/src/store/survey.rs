//! Survey: what a directory holds, before anything in it is touched.
//!
//! In: a directory, options, remembered settings. Out: whether it is a store, and its files' sizes. Always: reads only;
//! what is no store, or a kind of store that we cannot continue, is refused by name. Not here: locks, recovery.

use crate::commit_log;
use crate::consume_queue::{self, ENTRY_SIZE};
use crate::error::{Error, Result};
use crate::index::{IndexGeometry, find_geometry, verify_geometry};
use crate::names::HALF_TOPIC;
use crate::options::{COMMIT_LOG_FILE_SIZE, CONSUME_QUEUE_FILE_SIZE, StoreOptions};
use crate::segment::SegmentQueue;
use crate::settings::Settings;
use crate::storage::Storage;
use crate::units::to_u64;

use super::open::ABORT;

/// Sizes of the files.
pub(super) struct Geometry {
    pub(super) commit_log: u64,
    pub(super) consume_queue: u64,
    pub(super) index: IndexGeometry,
}

/// Whether a directory is a store; one with other things in it is refused.
pub(crate) fn look(storage: &dyn Storage) -> Result<bool> {
    let entries = storage.list("")?.unwrap_or_default();
    if entries.iter().any(|entry| entry.is_dir && entry.name == commit_log::DIRECTORY) {
        return Ok(true);
    }
    if let Some(dledger) = entries.iter().find(|entry| entry.is_dir && entry.name.starts_with("dledger-")) {
        return Err(foreign(
            storage,
            &dledger.name,
            "a DLedger store keeps its log elsewhere; only ordinary stores are read",
        ));
    }
    // What an opening that crashed at its very beginning leaves behind.
    let ours = ["lock", ABORT, "txstore", "config", "checkpoint", "index", consume_queue::DIRECTORY];
    match entries.iter().find(|entry| !ours.contains(&entry.name.as_str())) {
        Some(other) => Err(foreign(
            storage,
            "",
            &format!(
                "it is no store: it holds {:?} and no commitlog\nhint: name a store, or for a new one an empty or a new directory",
                other.name
            ),
        )),
        None => Ok(false),
    }
}

/// Kinds of stores that we cannot continue (docs/format.md).
pub(super) fn refuse(storage: &dyn Storage) -> Result<()> {
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
    for topic in ["RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"] {
        let directory = format!("{}/{topic}", consume_queue::DIRECTORY);
        if storage.list(&directory)?.is_some_and(|queues| !queues.is_empty()) {
            let what = "messages that RocketMQ keeps outside of the log may hang on it; it is not continued\n\
                        hint: it can be read; the queue stays until the log drops its records, also when all is delivered";
            return Err(foreign(storage, &directory, what));
        }
    }
    Ok(())
}

/// The files' sizes: the store's own, else what is asked for, else RocketMQ's.
pub(super) fn geometry(storage: &dyn Storage, options: &StoreOptions, settings: Option<&Settings>) -> Result<Geometry> {
    let own = log_file_size(storage, settings)?;
    let commit_log = agree("mapped_file_size_commit_log", own, options.commit_log_file_size, COMMIT_LOG_FILE_SIZE)?;
    let own = consume_queue_file_size(storage, settings)?;
    let consume_queue =
        agree("mapped_file_size_consume_queue", own, options.consume_queue_file_size, CONSUME_QUEUE_FILE_SIZE)?;
    Ok(Geometry { commit_log, consume_queue, index: index_geometry(storage, options, settings)? })
}

/// Until we close it nobody else writes the store: then no file's length is believed against what is remembered.
fn ours(settings: Option<&Settings>) -> Option<&Settings> {
    settings.filter(|settings| settings.ranges.last().is_some_and(|range| range.end.is_none()))
}

/// Bytes of a commit log file, if the store has one or remembers it.
pub(crate) fn log_file_size(storage: &dyn Storage, settings: Option<&Settings>) -> Result<Option<u64>> {
    let lengths = file_lengths(storage, commit_log::DIRECTORY)?;
    let found = own_size(&lengths, settings.and_then(|settings| settings.commit_log_file_size));
    Ok(ours(settings).and_then(|settings| settings.commit_log_file_size).or(found))
}

/// Bytes of a consume queue file, if the store has one or remembers it.
pub(crate) fn consume_queue_file_size(storage: &dyn Storage, settings: Option<&Settings>) -> Result<Option<u64>> {
    let found = queue_file_size(storage, settings.and_then(|settings| settings.consume_queue_file_size))?;
    Ok(ours(settings).and_then(|settings| settings.consume_queue_file_size).or(found))
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
    Ok(IndexGeometry { slots: narrow(slots), entries: narrow(entries) })
}

/// The store's own size rules; asking for another is an error, not a wish.
fn agree(option: &str, own: Option<u64>, asked: Option<u64>, default: u64) -> Result<u64> {
    match (own, asked) {
        (Some(own), Some(asked)) if own != asked => Err(Error::InvalidOption {
            option: option.to_owned(),
            what: format!("{asked} was asked for, the store has {own}\nhint: leave it out to open the store as it is"),
        }),
        (Some(size), _) | (None, Some(size)) => Ok(size),
        (None, None) => Ok(default),
    }
}

/// The lengths of a row's files, without those that a crash left empty.
fn file_lengths(storage: &dyn Storage, directory: &str) -> Result<Vec<u64>> {
    let files = SegmentQueue::files(storage, directory)?;
    Ok(files.into_iter().map(|(_, file)| file.len).filter(|length| *length > 0).collect())
}

/// The size of a row's files: what is remembered, if a file has it or none is there; else the first one's. A single
/// file whose length did not reach the disk does not tell the store's size.
fn own_size(lengths: &[u64], remembered: Option<u64>) -> Option<u64> {
    let fits = |size: &u64| lengths.is_empty() || lengths.contains(size);
    remembered.filter(fits).or_else(|| lengths.first().copied())
}

fn queue_file_size(storage: &dyn Storage, remembered: Option<u64>) -> Result<Option<u64>> {
    let mut first = None;
    for topic in storage.list(consume_queue::DIRECTORY)?.unwrap_or_default() {
        let directory = format!("{}/{}", consume_queue::DIRECTORY, topic.name);
        for queue in storage.list(&directory).ok().flatten().unwrap_or_default() {
            let mut lengths = file_lengths(storage, &format!("{directory}/{}", queue.name))?;
            // A file of half entries is a damaged one: it tells no size.
            lengths.retain(|length| length.is_multiple_of(to_u64(ENTRY_SIZE)));
            let size = own_size(&lengths, remembered).filter(|_| !lengths.is_empty());
            if size.is_some() && (remembered.is_none() || size == remembered) {
                return Ok(size);
            }
            first = first.or(size);
        }
    }
    Ok(first.or(remembered))
}

/// A reader's error about a directory without a commit log.
pub(crate) fn no_store(storage: &dyn Storage) -> Error {
    foreign(storage, "", "it holds no store: there is no commitlog in it")
}

pub(super) fn foreign(storage: &dyn Storage, path: &str, what: &str) -> Error {
    Error::ForeignStore { path: storage.root().join(path), what: what.to_owned() }
}
