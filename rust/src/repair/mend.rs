//! Mend: a damaged store made fit to be opened.
//!
//! In:     a store that nobody has open, what an examination found, where copies go.
//! Out:    what was done. Always, in this order, so that a crash at any place leaves a store that can be examined and
//!         mended again: copies of all that may change; the log's damaged places; and only when the whole log can be
//!         read the marks of a writer, then what is derived goes.
//! Not here: opening it, which builds what went from the log.

use std::sync::Arc;

use super::examine::CONFIG_FILES;
use super::filler::fill;
use super::{Damage, DamageKind, Examination};
use crate::commit_log;
use crate::config_file::{self, replace_file};
use crate::consume_queue;
use crate::error::{Error, Result};
use crate::index::find_geometry;
use crate::log_view::{GUARD, LOCK, PUBLISHER_BYTE, WRITER_BYTE, consume_queue_file_size};
use crate::published::Published;
use crate::segment::{SegmentQueue, make_file};
use crate::settings::{self, Settings};
use crate::storage::{OpenMode, Storage};
use crate::units::{QueueId, to_usize};

/// Bytes that are copied in one call.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// What a store has beside its log that an opening changes or that goes.
const BESIDE: [&str; 6] = ["consumequeue", "index", "config", settings::DIRECTORY, "checkpoint", "abort"];
/// Where copies go by themselves.
const COPIES: &str = "repair-";

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mended {
    /// Files of which a copy was made, by their path in the store.
    pub copied: Vec<String>,
    /// Ranges of the log that were filled.
    pub filled: Vec<(u64, u64)>,
    /// Ranges of the log that were set to zeros: its end.
    pub cleared: Vec<(u64, u64)>,
    /// Files of the log that were made anew.
    pub made: Vec<String>,
    /// What was removed to be built again.
    pub removed: Vec<String>,
}

/// Mends; `copies_below` is the directory in `copies` that the copies go to.
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
    for damage in &found.damages {
        mender.log(damage, &settings)?;
    }
    mender.cut_tail()?;
    mender.mark()?;
    settings.store(storage.as_ref())?;
    mender.remove_derived()?;
    Ok(mender.out)
}

struct Mender<'a> {
    storage: &'a dyn Storage,
    copies: &'a dyn Storage,
    copies_below: &'a str,
    found: &'a Examination,
    out: Mended,
}

impl Mender<'_> {
    /// Of the log only what is damaged, and the last file, to which an opening may add.
    fn copy_all(&mut self) -> Result<()> {
        let files = SegmentQueue::files(self.storage, commit_log::DIRECTORY)?;
        let last = files.last().map(|(base, _)| *base);
        for (base, file) in files.iter().filter(|(_, file)| !file.is_dir) {
            if Some(*base) == last || !self.found.whole.contains(base) {
                self.copy(&format!("{}/{}", commit_log::DIRECTORY, file.name))?;
            }
        }
        for name in BESIDE.into_iter().chain([GUARD]) {
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

    /// A whole copy or none: it gets its name when it is durable.
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
            // What was never written stays so: index files are mostly holes.
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

    /// Returns what is remembered of the store, with the sizes of files that go.
    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::load(self.storage)?.unwrap_or_default();
        settings.commit_log_file_size = Some(self.found.file_size);
        // Nobody wrote what the log has lost at its end; a range that still grows ends with the log anyway.
        settings.ranges.retain(|range| range.start < self.found.end);
        for end in settings.ranges.iter_mut().filter_map(|range| range.end.as_mut()) {
            *end = self.found.end.min(*end);
        }
        if settings.consume_queue_file_size.is_none() {
            settings.consume_queue_file_size = consume_queue_file_size(self.storage, None)?;
        }
        if let (None, Ok(Some(geometry))) = (settings.index_slots, find_geometry(self.storage)) {
            settings.index_slots = Some(geometry.slots);
            settings.index_entries = Some(geometry.entries);
        }
        Ok(settings)
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

    /// What follows the end of the log goes: the checkpoint that tells it from damage goes, too.
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

    /// A file in place of one that is not there. It gets its name when it is whole.
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

    /// From here on, until an opening has built everything again, no broker may have it.
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
                if !self.goes_on(&topic.name, &queue.name) {
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
        // Readers may have it mapped, so it stays the same file, with nothing in it.
        if Published::clear(self.storage)? {
            self.out.removed.push("txstore/published".to_owned());
        }
        for name in CONFIG_FILES {
            for damaged in config_file::load(self.storage, name)?.damaged {
                // It says first which of the two it is.
                if let Some((path, _)) = damaged.split_once(':') {
                    self.remove(path)?;
                }
            }
        }
        Ok(())
    }

    /// Returns a queue of which the log has no record any more: its files alone say where it goes on, and no offset may
    /// be given twice.
    fn goes_on(&self, topic: &str, queue: &str) -> bool {
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

/// Writes a report beside the copies.
pub fn report(copies: &dyn Storage, copies_below: &str, text: &str) -> Result<()> {
    let path = if copies_below.is_empty() { "report.json".to_owned() } else { format!("{copies_below}/report.json") };
    replace_file(copies, &path, text.as_bytes(), false)
}
