//! Repairs a damaged store so that it can be opened.
//!
//! In:     a store that no process has open, the result of an examination, a directory for copies.
//! Out:    what was done.
//! Always: works in this order, so that a crash at any point leaves a store that can be examined and repaired again:
//!         copies of all that may change; the removal of the log files' statistics; the damaged ranges of the log; and
//!         only when the whole log can be read, the marks of a writer, then the removal of derived files.
//! Not here: opening the store, which rebuilds the removed files from the log.

use std::sync::Arc;

use super::examine::CONFIG_FILES;
use super::filler::fill;
use super::{Damage, DamageKind, Examination};
use crate::base::error::{Error, Result};
use crate::base::units::{QueueId, to_usize};
use crate::index::consume_queue;
use crate::index::key_index::find_geometry;
use crate::log::commit_log;
use crate::log::published::Published;
use crate::recovery::log_view::{GUARD, LOCK, PUBLISHER_BYTE, WRITER_BYTE, consume_queue_file_size};
use crate::storage::config_file::{self, replace_file};
use crate::storage::segment::{SegmentQueue, make_file};
use crate::storage::settings::{self, STATISTICS, Settings};
use crate::storage::{OpenMode, Storage};

/// Bytes that are copied in one call.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// Files other than the log that an `open` changes or that are removed.
const OTHER_FILES: [&str; 6] = ["consumequeue", "index", "config", settings::DIRECTORY, "checkpoint", "abort"];
/// Prefix of the default directory for copies.
const COPIES: &str = "repair-";

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Files that were copied, by their path in the store.
    pub copied: Vec<String>,
    /// Ranges of the log that were filled.
    pub filled: Vec<(u64, u64)>,
    /// Ranges of the log that were set to zeros: its end.
    pub cleared: Vec<(u64, u64)>,
    /// Log files that were created again.
    pub made: Vec<String>,
    /// Files that were removed to be rebuilt.
    pub removed: Vec<String>,
}

/// Repairs the store. `copies_below` is the directory in `copies` for the copies.
pub fn mend(
    storage: &Arc<dyn Storage>,
    copies: &dyn Storage,
    copies_below: &str,
    found: &Examination,
) -> Result<Mended> {
    let locked = || Error::StoreLocked { path: storage.root().to_owned(), pid: None, is_gone: false };
    let _writer = storage.lock(LOCK, WRITER_BYTE)?.ok_or_else(locked)?;
    let _publisher = storage.lock(LOCK, PUBLISHER_BYTE)?.ok_or_else(locked)?;
    let mut mender = Mender { storage: storage.as_ref(), copies, copies_below, found, out: Mended::default() };
    mender.copy_all()?;
    let settings = mender.settings()?;
    // They would fit a log file whose last record stays.
    if storage.list(STATISTICS)?.is_some() {
        mender.remove_directory(STATISTICS)?;
    }
    for damage in &found.damages {
        mender.log(damage, &settings)?;
    }
    mender.cut_tail()?;
    mender.mark()?;
    settings.store(storage.as_ref())?;
    mender.remove_derived()?;
    Ok(mender.out)
}

/// Returns the settings of a store without derived files whose log ends at `end`: the same, and the sizes of files that
/// are built again.
pub(crate) fn settings_of_copy(
    storage: &dyn Storage,
    mut settings: Settings,
    file_size: Option<u64>,
    end: u64,
) -> Result<Settings> {
    settings.commit_log_file_size = file_size;
    // No process wrote what the log has lost at its end. An open range ends with the log anyway.
    settings.ranges.retain(|range| range.start < end);
    for range_end in settings.ranges.iter_mut().filter_map(|range| range.end.as_mut()) {
        *range_end = end.min(*range_end);
    }
    if settings.consume_queue_file_size.is_none() {
        settings.consume_queue_file_size = consume_queue_file_size(storage, None)?;
    }
    if let (None, Ok(Some(geometry))) = (settings.index_slots, find_geometry(storage)) {
        settings.index_slots = Some(geometry.slots);
        settings.index_entries = Some(geometry.entries);
    }
    Ok(settings)
}

struct Mender<'a> {
    storage: &'a dyn Storage,
    copies: &'a dyn Storage,
    copies_below: &'a str,
    found: &'a Examination,
    out: Mended,
}

impl Mender<'_> {
    /// Copies the files. Of the log it copies only damaged files and the last one, which an `open` may extend.
    fn copy_all(&mut self) -> Result<()> {
        let files = SegmentQueue::files(self.storage, commit_log::DIRECTORY)?;
        let last = files.last().map(|(base, _)| *base);
        for (base, file) in files.iter().filter(|(_, file)| !file.is_dir) {
            if Some(*base) == last || !self.found.whole.contains(base) {
                self.copy(&format!("{}/{}", commit_log::DIRECTORY, file.name))?;
            }
        }
        for name in OTHER_FILES.into_iter().chain([GUARD]) {
            self.copy_tree(name)?;
        }
        Ok(())
    }

    fn copy_tree(&mut self, path: &str) -> Result<()> {
        if path.starts_with(&format!("{}/{COPIES}", settings::DIRECTORY)) {
            return Ok(());
        }
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let name = path.rsplit('/').next().unwrap_or(path);
        let entries = self.storage.list(above)?.unwrap_or_default();
        match entries.into_iter().find(|entry| entry.name == name) {
            Some(entry) if entry.is_dir => {
                for below in self.storage.list(path)?.unwrap_or_default() {
                    self.copy_tree(&format!("{path}/{}", below.name))?;
                }
                Ok(())
            }
            Some(_) => self.copy(path),
            None => Ok(()),
        }
    }

    /// Copies a file as a whole or not at all: the copy gets its name when it is durable.
    fn copy(&mut self, path: &str) -> Result<()> {
        let to = if self.copies_below.is_empty() { path.to_owned() } else { format!("{}/{path}", self.copies_below) };
        let directory = to.rsplit_once('/').map_or("", |(above, _)| above);
        self.copies.create_dir(directory)?;
        let (from, part) = (self.storage.open(path, OpenMode::Read)?, format!("{to}.part"));
        let file = self.copies.open(&part, OpenMode::Create)?;
        let length = from.len()?;
        file.set_len(0)?;
        file.set_len(length)?;
        let mut at = 0;
        while at < length {
            let mut bytes = vec![0; to_usize(COPIED_AT_ONCE.min(length - at))];
            from.read_at(&mut bytes, at)?;
            // Holes stay holes, because most of an index file is a hole.
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_at(&bytes, at)?;
            }
            at += COPIED_AT_ONCE;
        }
        file.sync()?;
        self.copies.rename(&part, &to)?;
        self.copies.sync_dir(directory)?;
        self.out.copied.push(path.to_owned());
        Ok(())
    }

    /// Returns the store's settings, including the sizes of files that will be removed.
    fn settings(&self) -> Result<Settings> {
        let settings = Settings::load(self.storage)?.unwrap_or_default();
        settings_of_copy(self.storage, settings, Some(self.found.file_size), self.found.end)
    }

    fn log(&mut self, damage: &Damage, settings: &Settings) -> Result<()> {
        let size = self.found.file_size;
        match damage.kind {
            DamageKind::Front | DamageKind::End => Ok(()),
            DamageKind::Length => {
                let file = self.storage.open(&damage.file, OpenMode::Write)?;
                file.set_len(size)?;
                file.sync()
            }
            DamageKind::Missing => {
                (damage.from..damage.to).step_by(to_usize(size)).try_for_each(|base| self.make(base, damage, settings))
            }
            DamageKind::Bad => {
                let base = damage.from - damage.from % size;
                let bytes = fill(damage.from, damage.to, base, size, damage.stored, settings.verify(damage.from))?;
                let file = self.storage.open(&damage.file, OpenMode::Write)?;
                file.write_at(&bytes, damage.from - base)?;
                file.sync()?;
                self.out.filled.push((damage.from, damage.to));
                Ok(())
            }
            DamageKind::Tail => {
                let file = self.storage.open(&damage.file, OpenMode::Write)?;
                file.punch(damage.from % size..size)?;
                file.sync()?;
                self.out.cleared.push((damage.from, damage.to));
                Ok(())
            }
        }
    }

    /// Clears what follows the end of the log. The checkpoint that would call it damage is removed, too.
    fn cut_tail(&mut self) -> Result<()> {
        let ends = |damage: &&Damage| matches!(damage.kind, DamageKind::Tail | DamageKind::End);
        let damaged = self.found.damages.iter().find(ends).map(|damage| (damage.from, damage.from));
        let torn = self.found.torn.filter(|_| !self.found.damages.is_empty());
        let Some((from, to)) = torn.or(damaged) else { return Ok(()) };
        let size = self.found.file_size;
        for (base, file) in SegmentQueue::files(self.storage, commit_log::DIRECTORY)?.iter().rev() {
            let path = format!("{}/{}", commit_log::DIRECTORY, file.name);
            if *base > from {
                self.remove(&path)?;
            } else if from < base + size {
                let file = self.storage.open(&path, OpenMode::Write)?;
                file.punch(from - base..size)?;
                file.sync()?;
            }
        }
        self.out.cleared.extend(torn.map(|_| (from, to)));
        Ok(())
    }

    /// Creates a missing file. It gets its name when it is complete.
    fn make(&mut self, base: u64, damage: &Damage, settings: &Settings) -> Result<()> {
        let size = self.found.file_size;
        let path = format!("{}/{base:020}", commit_log::DIRECTORY);
        let part = format!("{}/new-{base:020}", settings::DIRECTORY);
        let bytes = fill(base, base + size, base, size, damage.stored, settings.verify(base))?;
        let file = make_file(self.storage, settings::DIRECTORY, &part, size)?;
        file.write_at(&bytes, 0)?;
        file.sync()?;
        self.storage.rename(&part, &path)?;
        self.storage.sync_dir(commit_log::DIRECTORY)?;
        self.out.filled.push((base, base + size));
        self.out.made.push(path);
        Ok(())
    }

    /// Marks the store so that no broker opens it until txstore has rebuilt everything.
    fn mark(&self) -> Result<()> {
        let guard = self.storage.open(GUARD, OpenMode::Create)?;
        guard.write_at(b"!", 0)?;
        guard.sync()?;
        self.storage.sync_dir(commit_log::DIRECTORY)
    }

    fn remove_derived(&mut self) -> Result<()> {
        for topic in self.storage.list(consume_queue::DIRECTORY)?.unwrap_or_default() {
            for queue in self.storage.list(&format!("{}/{}", consume_queue::DIRECTORY, topic.name))?.unwrap_or_default()
            {
                if !self.continues(&topic.name, &queue.name) {
                    self.remove_directory(&format!("{}/{}/{}", consume_queue::DIRECTORY, topic.name, queue.name))?;
                }
            }
        }
        if self.storage.list("index")?.is_some() {
            self.remove_directory("index")?;
        }
        for path in ["txstore/snapshot", "checkpoint"] {
            self.remove(path)?;
        }
        // Readers may have the page mapped, so the file stays and is emptied.
        if Published::clear(self.storage)? {
            self.out.removed.push("txstore/published".to_owned());
        }
        for name in CONFIG_FILES {
            for damaged in config_file::load(self.storage, name)?.damaged {
                // The text begins with the path of the damaged file: the file or its `.bak`.
                if let Some((path, _)) = damaged.split_once(':') {
                    self.remove(path)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether a queue must be kept: the log has no record of it, so only its files tell its next queue offset,
    /// and no offset may be assigned twice.
    fn continues(&self, topic: &str, queue: &str) -> bool {
        let path = format!("{}/{topic}/{queue}/", consume_queue::DIRECTORY);
        let damaged = self.found.derived.iter().any(|(file, _)| file.starts_with(&path));
        let in_log = |queue_id| self.found.queued.get(topic).is_some_and(|queues| queues.contains(&QueueId(queue_id)));
        !damaged && queue.parse().is_ok_and(|queue_id| !in_log(queue_id))
    }

    fn remove_directory(&mut self, path: &str) -> Result<()> {
        self.storage.remove_dir(path)?;
        self.storage.sync_dir(path.rsplit_once('/').map_or("", |(above, _)| above))?;
        self.out.removed.push(path.to_owned());
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        if self.storage.len(path)?.is_none() {
            return Ok(());
        }
        self.storage.unlink(path)?;
        self.storage.sync_dir(path.rsplit_once('/').map_or("", |(above, _)| above))?;
        self.out.removed.push(path.to_owned());
        Ok(())
    }
}

/// Writes a report next to the copies.
pub fn report(copies: &dyn Storage, copies_below: &str, text: &str) -> Result<()> {
    let path = if copies_below.is_empty() { "report.json".to_owned() } else { format!("{copies_below}/report.json") };
    replace_file(copies, &path, text.as_bytes(), false)
}
