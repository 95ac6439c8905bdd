//! Follow: a reader goes after a writer in another process.
//!
//! In: the end that the writer publishes, or the log as it grows. Out: queues and transactions as new as that. Always:
//! takes no lock of the store and writes nothing; a record that is not whole yet is not there yet.

use std::sync::Arc;

use super::open::clamp_offsets;
use super::{Inner, Shared};
use crate::delay::DelayProgress;
use crate::error::Result;
use crate::index::IndexFiles;
use crate::log_view::{KnownEnd, LOCK, PUBLISHER_BYTE, WRITER_BYTE};
use crate::offsets::ConsumerOffsets;
use crate::recovery::{Known, recover};
use crate::snapshot::Snapshot;

/// Index entries that a reader keeps before it looks whether the writer's files have them.
const READER_INDEX_MAX: usize = 1 << 20;

/// Readers follow a writer in another process.
impl Shared {
    /// Reads what a writer has appended since; nothing in a writer.
    pub(super) fn refresh(&self) -> Result<()> {
        self.check_open()?;
        if !self.options.read_only {
            return Ok(());
        }
        let published = self.published.as_ref().map(|published| published.appended().0);
        let newer = published.is_some_and(|appended| appended > self.log.appended());
        let minimum = self.published.as_ref().map_or(0, |published| published.minimum().0);
        let gone = minimum > self.log.segments.first();
        let live = self.storage.is_locked(LOCK, PUBLISHER_BYTE)?;
        // Where a broker writes, what was published last says nothing: then the log itself is asked.
        let foreign_writer = !live && self.storage.is_locked(LOCK, WRITER_BYTE)?;
        if !newer && !gone && !foreign_writer {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        if gone && self.log.segments.all().last().is_none_or(|last| last.end() < minimum) {
            // Files went that this reader has not read: what it knows is worth nothing.
            return self.begin_anew(&mut inner, !foreign_writer);
        }
        self.log.segments.extend()?;
        let limit = published.filter(|_| !foreign_writer).unwrap_or(u64::MAX);
        let known = beside_a_writer(limit, inner.stored_half_progress);
        let settings = self.settings.lock().clone();
        let before = self.log.appended();
        let followed = crate::recovery::follow(&self.log, &self.queue_files, &settings, &mut inner.state, &known);
        let end = inner.state.end.max(before);
        self.log.set_appended(end);
        self.log.set_durable(end);
        self.prune_index(&mut inner)?;
        if gone && followed.is_ok() {
            self.let_go_of_the_front(&mut inner, minimum)?;
        }
        followed
    }

    /// Reads the store as an opening does.
    fn begin_anew(&self, inner: &mut Inner, is_published: bool) -> Result<()> {
        self.log.segments.begin_anew()?;
        let end = self.log.segments.all().last().map_or(0, |last| last.end());
        let published = self.published.as_ref().filter(|_| is_published);
        let limit = published.map_or(end, |published| published.appended().0.min(end));
        let known = beside_a_writer(limit, inner.stored_half_progress);
        let mut files = self.index_files.lock();
        *files = IndexFiles::open(Arc::clone(&self.storage), files.geometry(), false)?;
        let settings = self.settings.lock().clone();
        let snapshot = Snapshot::load(self.storage.as_ref())?;
        self.log.set_appended(limit);
        let recovered = recover(&self.log, &self.queue_files, Some(&mut files), &settings, snapshot, &known)?;
        self.log.set_appended(recovered.end);
        self.log.set_durable(recovered.end);
        *inner = super::open::inner(recovered, None, known.half_progress, self.clock.as_ref(), &self.options);
        Ok(())
    }

    /// Reads what groups have acknowledged since, as far as the writer has written it; nothing in a writer.
    pub(super) fn refresh_offsets(&self) -> Result<()> {
        if !self.options.read_only {
            return self.check_open();
        }
        // In front of the queues' ends, so that no offset is above them that was right when it was written.
        let (mut offsets, damaged) = ConsumerOffsets::load(self.storage.as_ref())?;
        self.refresh()?;
        if !damaged.is_empty() {
            return Ok(()); // What was read before stays.
        }
        clamp_offsets(&mut offsets, &self.inner.lock().state.dispatcher.queues, &mut Vec::new());
        *self.offsets.lock() = offsets;
        Ok(())
    }

    /// Lets go of index entries that the writer has put into files.
    fn prune_index(&self, inner: &mut Inner) -> Result<()> {
        let dispatched = self.published.as_ref().map_or(0, |published| published.dispatched().0);
        if inner.state.dispatcher.index.len() > READER_INDEX_MAX {
            let mut files = self.index_files.lock();
            *files = IndexFiles::open(Arc::clone(&self.storage), files.geometry(), false)?;
            inner.state.dispatcher.index.retain(|entry| entry.physical_offset.0 >= dispatched);
        }
        Ok(())
    }
}

/// What a reader knows that goes on beside a writer: how far it may read.
fn beside_a_writer(limit: u64, half_progress: u64) -> Known {
    Known {
        read_only: true,
        clean: false,
        end: KnownEnd { is_in_use: true, ..KnownEnd::default() },
        limit,
        live: true,
        half_progress,
        delays: DelayProgress::new(),
    }
}
