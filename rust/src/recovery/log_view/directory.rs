//! Tells whether a directory is a store, and how large its files are.
//!
//! In:     a directory, remembered settings.
//! Out:    sizes, or an error that says why the directory is not a store.
//! Always: reads only.

use super::writer::ABORT;
use crate::base::error::{Error, Result};
use crate::base::units::to_u64;
use crate::index::consume_queue::{self, ENTRY_SIZE};
use crate::log::commit_log;
use crate::storage::Storage;
use crate::storage::segment::SegmentQueue;
use crate::storage::settings::Settings;

/// Returns whether a directory is a store. A directory with other contents is refused with an error.
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
    // An `open` that crashed at its very beginning leaves these.
    let ours = ["lock", ABORT, "txstore", "config", "checkpoint", "index", consume_queue::DIRECTORY];
    match entries.iter().find(|entry| !ours.contains(&entry.name.as_str())) {
        Some(other) => Err(foreign(
            storage,
            "",
            &format!(
                "it is not a store: it contains {:?} but no commitlog\nhint: use the directory of a store, or for a new store an empty or missing directory",
                other.name
            ),
        )),
        None => Ok(false),
    }
}

/// Returns the settings if txstore has not closed the store. Until then no broker writes the store, so the remembered
/// size counts and file lengths do not.
fn ours(settings: Option<&Settings>) -> Option<&Settings> {
    settings.filter(|settings| settings.open_range().is_some())
}

/// Returns the size of a commit log file in bytes, if the store has one or remembers it.
pub(crate) fn log_file_size(storage: &dyn Storage, settings: Option<&Settings>) -> Result<Option<u64>> {
    let lengths = file_lengths(storage, commit_log::DIRECTORY)?;
    let found = own_size(&lengths, settings.and_then(|settings| settings.commit_log_file_size));
    Ok(ours(settings).and_then(|settings| settings.commit_log_file_size).or(found))
}

/// Returns the size of a consume queue file in bytes, if the store has one or remembers it.
pub(crate) fn consume_queue_file_size(storage: &dyn Storage, settings: Option<&Settings>) -> Result<Option<u64>> {
    let found = queue_file_size(storage, settings.and_then(|settings| settings.consume_queue_file_size))?;
    Ok(ours(settings).and_then(|settings| settings.consume_queue_file_size).or(found))
}

/// Returns the lengths of the files in a segment list, without the empty ones that a crash left.
fn file_lengths(storage: &dyn Storage, directory: &str) -> Result<Vec<u64>> {
    let files = SegmentQueue::files(storage, directory)?;
    Ok(files.into_iter().map(|(_, file)| file.len).filter(|length| *length > 0).collect())
}

/// Returns the file size of a segment list: the remembered size if some file has it or there are no files, else the
/// length of the first file. A single file whose length did not reach the disk does not tell the store's size.
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
            // A file that ends within an entry is damaged, so its length does not tell the size in use.
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

/// Returns a reader's error about a directory without a commit log.
pub(crate) fn no_store(storage: &dyn Storage) -> Error {
    foreign(storage, "", "it is not a store: it contains no commitlog")
}

pub(crate) fn foreign(storage: &dyn Storage, path: &str, what: &str) -> Error {
    Error::ForeignStore { path: storage.root().join(path), what: what.to_owned() }
}
