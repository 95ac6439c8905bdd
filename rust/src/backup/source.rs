//! Looks at a store, and writes what a copy needs in addition to the log and `config/`.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::units::to_u64;
use crate::index::consume_queue::{self, ENTRY_SIZE, Entry, QueueExtent, QueueFiles};
use crate::log::commit_log;
use crate::recovery::log_view::{ABORT, GUARD, Log};
use crate::repair::settings_of_copy;
use crate::storage::config_file::replace_file;
use crate::storage::settings::Settings;
use crate::storage::{OpenMode, Storage};
use crate::store::refuse_layout;

/// How often a look is repeated while writers change the store.
const LOOKS_MAX: usize = 8;

/// A store of which a backup is taken. Another process may write it.
#[derive(Debug)]
pub struct Source {
    storage: Arc<dyn Storage>,
    log: Log,
    settings: Option<Settings>,
    end: u64,
}

impl Source {
    /// Opens the store. Fails with `ForeignStore` if txstore could not open a copy of it for writing.
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self> {
        refuse_layout(storage.as_ref())?;
        let log = Log::open_with(Arc::clone(&storage))?;
        Ok(Self { storage, log, settings: None, end: 0 })
    }

    /// Takes the present range of the log and the settings that belong to it. Returns false if writers kept changing
    /// the store in another way than by appending.
    pub fn look(&mut self) -> Result<bool> {
        for _ in 0..LOOKS_MAX {
            self.log.refresh()?;
            let settings = self.log.settings().cloned();
            let end = self.log.visible_end(None);
            if self.is_still()? && Settings::load(self.storage.as_ref())? == settings {
                (self.settings, self.end) = (settings, end?);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the physical offset at which the log began at the last look.
    pub fn first(&self) -> u64 {
        self.log.first()
    }

    /// Returns one past the last visible record at the last look.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Returns the size of a log file in bytes; 0 if there are no files.
    pub fn file_size(&self) -> u64 {
        self.log.file_size()
    }

    /// Returns the store's id, if it has one.
    pub fn store_id(&self) -> Option<String> {
        self.settings.as_ref()?.id.map(|id| id.to_string())
    }

    /// Returns whether the range of the last look is still what the writer shows. A writer that appends or removes old
    /// files does not change it, one that opens the store after a crash may.
    pub fn is_still(&self) -> Result<bool> {
        self.log.is_still()
    }

    /// Makes a directory the beginning of a copy: the settings, and the marks of a store that was not closed, so that
    /// the next opening recovers. No broker opens it before.
    pub fn begin_copy(&self, to: &dyn Storage) -> Result<()> {
        let settings = self.settings.clone().unwrap_or_default();
        let file_size = Some(self.file_size()).filter(|size| *size > 0).or(settings.commit_log_file_size);
        settings_of_copy(self.storage.as_ref(), settings, file_size, self.end)?.store(to)?;
        to.create_dir(commit_log::DIRECTORY)?;
        let guard = to.open(GUARD, OpenMode::Create)?;
        guard.write_at(b"!", 0)?;
        guard.sync()?;
        to.sync_dir(commit_log::DIRECTORY)?;
        replace_file(to, ABORT, b"", false)
    }

    /// Returns the last file of each queue that has had messages and has none in the range. Only these files tell where
    /// such a queue continues.
    pub fn silent_queue_files(&self) -> Result<Vec<String>> {
        let Some(files) = self.log.queue_files()? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for queue in files.list()? {
            if self.is_silent(&files, &queue)? {
                let base = (queue.end * to_u64(ENTRY_SIZE)).saturating_sub(files.file_size());
                let QueueExtent { topic, queue_id, .. } = queue;
                found.push(format!("{}/{topic}/{queue_id}/{base:020}", consume_queue::DIRECTORY));
            }
        }
        Ok(found)
    }

    fn is_silent(&self, files: &QueueFiles, queue: &QueueExtent) -> Result<bool> {
        let entry = |at| Ok(Entry::from_bytes(&files.read(&queue.topic, queue.queue_id, at, 1)?));
        // Finds the first entry that leads into the range or after it.
        let (mut low, mut high) = (queue.first, queue.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match entry(middle)? {
                Some(entry) if entry.is_padding() || entry.physical_offset.0 < self.first() => low = middle + 1,
                _ => high = middle,
            }
        }
        let next = if low < queue.end { entry(low)? } else { None };
        Ok(low > 0 && next.is_none_or(|entry| entry.physical_offset.0 >= self.end))
    }
}
