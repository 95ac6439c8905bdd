//! Keeps a read-only store up to date with its writers in other processes.
//!
//! In:     the state of the writer, and the end that it publishes, or the growing log.
//! Out:    queues and transactions up to that end.
//! Always: takes no store lock and writes nothing. An incomplete record at the end is not visible yet.
//!
//! A reader looks at the store repeatedly. Each look takes a `Sight` of the store and does one of three things:
//!
//! | the sight                                              | what the reader does                                   |
//! |--------------------------------------------------------|--------------------------------------------------------|
//! | a writer is opening the store (odd epoch)              | keeps its state, and reads nothing new                 |
//! | the epoch changed, or files of the reader were removed | begins again: opens all files and reads as at opening  |
//! | otherwise                                              | continues from its end up to the limit                 |
//!
//! - Within one epoch the log below the reader's end does not change, except that retention removes whole files from
//!   the start of the log. Across epochs a reader assumes nothing.
//! - A reader opens the next log file only after it has read the previous one completely. Such a file is never removed
//!   at the end of the log, unlike a file that a writer has only reserved.
//! - A look counts only if the sight is the same afterwards. Then a log that ends below the published end is damaged.

use std::sync::Arc;

use super::reader_view::Sight;
use super::{Inner, Shared};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::index::key_index::IndexFiles;
use crate::log::commit_log::Tail;
use crate::log::published::Published;
use crate::recovery::log_view::{KnownEnd, Writer, is_clean};
use crate::recovery::snapshot::Snapshot;
use crate::recovery::{Recovered, follow, recover};

/// The number of index entries that a reader keeps before it checks whether the writer's files contain them.
const READER_INDEX_MAX: usize = 1 << 20;
/// How often a reader repeats a look while writers change the store, before it leaves the rest to its next call.
const LOOKS_MAX: usize = 8;

/// The result of a look.
enum Look {
    Done,
    /// The store changed during the look.
    Again,
}

/// Lets readers follow writers in other processes.
impl Shared {
    fn sight(&self) -> Result<Sight> {
        if self.readers.page().is_none()
            && !mutated(Mutant::PageSoughtOnce)
            && let Some(page) = Published::open(self.storage.as_ref())?
        {
            self.readers.set_page(page);
        }
        Sight::of(self.storage.as_ref(), self.readers.page())
    }

    /// Reads what writers appended since the last call. Does nothing in a writer.
    pub(super) fn refresh(&self) -> Result<()> {
        self.check_open()?;
        if !self.options.read_only {
            return Ok(());
        }
        for _ in 0..LOOKS_MAX {
            let sight = self.sight()?;
            match self.look(&sight) {
                Ok(Look::Done) => break,
                Err(error) if self.sight()?.is_same(&sight) => return Err(error),
                // A writer that closes removes the files that it has made ahead, so an error has no meaning then.
                Ok(Look::Again) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn look(&self, sight: &Sight) -> Result<Look> {
        if sight.seen.writer == Writer::Opening {
            return Ok(Look::Done);
        }
        let mut inner = self.inner.lock();
        let is_front_gone = sight.minimum > self.log.segments.first();
        let is_all_gone = is_front_gone && self.log.segments.all().last().is_none_or(|last| last.end() < sight.minimum);
        let is_same = |seen: &Sight| seen.seen.epoch == sight.seen.epoch || mutated(Mutant::FilesNeverOpenedAgain);
        let seen = inner.seen.filter(|seen| is_same(seen) && !is_all_gone);
        let Some(seen) = seen else { return self.begin_again(&mut inner, sight) };
        if !seen.is_same(sight) {
            // A range of the log that txstore writes has begun or ended.
            self.reload_settings()?;
            inner.seen = Some(*sight);
        }
        if !is_front_gone && !self.has_more(sight)? {
            return Ok(Look::Done);
        }
        let followed = self.read_on(&mut inner, sight);
        if is_front_gone && followed.is_ok() {
            self.let_go_of_the_front(&mut inner, sight.minimum)?;
        }
        followed
    }

    /// Returns whether there may be a record at the reader's end.
    fn has_more(&self, sight: &Sight) -> Result<bool> {
        let end = self.log.appended();
        if sight.limit < u64::MAX || end < sight.floor {
            return Ok(end < sight.limit);
        }
        match self.log.segments.at(end) {
            Some(segment) => Ok(segment.bytes(end..segment.end().min(end + 8))?.iter().any(|byte| *byte != 0)),
            None => self.log.segments.is_continued(),
        }
    }

    /// Continues reading from the reader's end.
    fn read_on(&self, inner: &mut Inner, sight: &Sight) -> Result<Look> {
        let known = sight.known(KnownEnd::default(), inner.derived.stored_half_progress);
        let settings = self.configuration.settings.lock().clone();
        let before = self.log.appended();
        let (followed, is_cut_off) = loop {
            let followed = follow(&self.log, &self.queue_files, &settings, &mut inner.derived, &known);
            let end = inner.derived.end;
            if followed.is_err() || end >= sight.limit || self.log.segments.at(end).is_some() {
                break (followed, false);
            }
            if !self.log.segments.extend()? {
                break (followed, self.log.segments.is_continued()?);
            }
        };
        let end = inner.derived.end.max(before);
        self.sync_shown(sight, before, end)?;
        self.log.set_appended(end);
        self.log.set_durable(end);
        self.prune_index(inner)?;
        let tail = followed?;
        if is_cut_off {
            // A broker removed the next file. It removes old files even if a reader has not read them.
            return self.begin_again(inner, sight);
        }
        if end < sight.floor && !mutated(Mutant::DamageIsNotYet) {
            return Err(self.damaged(end, &tail));
        }
        Ok(Look::Done)
    }

    /// Reads the store again, as at opening.
    fn begin_again(&self, inner: &mut Inner, sight: &Sight) -> Result<Look> {
        let snapshot = Snapshot::load(self.storage.as_ref())?;
        // Taken after the snapshot was loaded, so that the snapshot does not end above the limit.
        let now = self.sight()?;
        if !now.is_same(sight) {
            return Ok(Look::Again);
        }
        let begun = self.begin_with(inner, snapshot, &now);
        if !self.sight()?.is_same(&now) {
            // The sight changed, so an error has no meaning either.
            return Ok(Look::Again);
        }
        begun?;
        inner.seen = Some(now);
        Ok(Look::Done)
    }

    fn begin_with(&self, inner: &mut Inner, snapshot: Option<Snapshot>, sight: &Sight) -> Result<()> {
        self.reload_settings()?;
        self.queue_files.close_handles();
        self.log.segments.open_again()?;
        let (published, position) = (self.readers.page(), snapshot.as_ref().map_or(0, |snapshot| snapshot.position));
        let is_free = sight.seen.writer == Writer::Nobody;
        let is_clean = is_free && is_clean(self.storage.as_ref())?;
        let settings = self.configuration.settings.lock().clone();
        let mut end = KnownEnd::find(self.storage.as_ref(), Some(&settings), published, position, is_clean, !is_free)?;
        end.durable = end.durable.max(sight.floor);
        let durable = end.durable;
        let known = sight.known(end, inner.derived.stored_half_progress);
        let mut files = self.index_files.lock();
        *files = IndexFiles::open(Arc::clone(&self.storage), files.geometry(), false)?;
        let Recovered { derived, .. } =
            recover(&self.log, &self.queue_files, Some(&mut files), &settings, snapshot, &known)?;
        drop(files);
        self.sync_shown(sight, durable, derived.end)?;
        self.log.set_appended(derived.end);
        self.log.set_durable(derived.end);
        self.log.segments.forget_above(derived.end);
        *inner = Inner::new(derived, None, self.clock.as_ref(), &self.options);
        Ok(())
    }

    /// Syncs what a killed writer may have left unsynced, so that a power loss cannot take back messages already shown.
    fn sync_shown(&self, sight: &Sight, from: u64, end: u64) -> Result<()> {
        let is_ours = || self.configuration.settings.lock().open_range().is_some();
        if sight.seen.writer != Writer::Nobody || end <= from.max(sight.floor) || !is_ours() {
            return Ok(());
        }
        self.log.segments.sync(from.max(sight.floor), end)
    }

    fn damaged(&self, end: u64, tail: &Tail) -> Error {
        let why = match tail {
            Tail::Bad(why) => why.clone(),
            Tail::End | Tail::Stopped => "zeros, where a record was published".to_owned(),
        };
        match self.log.segments.at(end) {
            Some(segment) => segment.corrupt(end, why),
            None => self.log.segments.missing(end, end + self.log.segments.file_size()),
        }
    }

    /// Drops index entries that the writer has written to files.
    fn prune_index(&self, inner: &mut Inner) -> Result<()> {
        let dispatched = self.readers.page().map_or(0, |published| published.dispatched().0);
        if inner.derived.dispatcher.index.len() > READER_INDEX_MAX {
            let mut files = self.index_files.lock();
            *files = IndexFiles::open(Arc::clone(&self.storage), files.geometry(), false)?;
            inner.derived.dispatcher.index.retain(|entry| entry.physical_offset.0 >= dispatched);
        }
        Ok(())
    }
}
