//! Copies the log to another store, byte for byte, and takes the copy there.
//!
//! In:     in the source: a physical offset. In a replica: bytes of the source's log, and how far they are visible.
//! Out:    in the source: the bytes from there on. In a replica: a log that is a prefix of the source's, with everything
//!         that is derived from it.
//! Always: a replica appends nothing of its own, and shows nothing above the end that was released. A piece may end
//!         within a record; only whole records are taken.
//! Not here: who copies, over what connection, and which copies count.

use super::configuration::verify_by;
use super::{Inner, PoisonOnPanic, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::units::{PhysicalOffset, TimestampMs, to_u64, to_usize};
use crate::log::commit_log::{FILE_TAIL, Step, UNWRITTEN, step, too_old};
use crate::record::decode::DecodeError;
use crate::recovery::log_view::KnownEnd;
use crate::recovery::{Known, apply_copied};
use crate::storage::settings::Settings;

impl Store {
    /// Returns whether the store takes no records of its own: a replica, or a source that was replaced.
    pub fn is_replica(&self) -> bool {
        self.shared.options.is_replica() || self.is_fenced()
    }

    /// Returns the end up to which the log may be copied: with `SYNC_FLUSH` the durable end, so that a copy is never
    /// ahead of a store that lost its power.
    pub fn copyable_end(&self) -> PhysicalOffset {
        PhysicalOffset(self.shared.copyable_end())
    }

    /// Returns at most `bytes_max` bytes of the log from a physical offset on. They end at the end of a file at the
    /// latest, and are empty at the copyable end.
    ///
    /// Fails with `OffsetTooOld` below the log's first byte, and with `MessageNotFound` above the copyable end.
    pub fn copy_log(&self, from: PhysicalOffset, bytes_max: usize) -> Result<Vec<u8>> {
        self.shared.check_open()?;
        let end = self.shared.copyable_end();
        if from.0 == end {
            return Ok(Vec::new());
        }
        let segments = &self.shared.log.segments;
        let segment = match segments.at(from.0) {
            _ if from.0 > end => Err(above_the_end(from, end)),
            Some(segment) => Ok(segment),
            None => Err(too_old(from.0, segments.first())),
        }?;
        let to = end.min(segment.end()).min(from.0.saturating_add(to_u64(bytes_max)));
        segment.bytes(from.0..to).map(std::borrow::Cow::into_owned)
    }

    /// Returns where the last record begins, and its bytes; `None` in an empty log. Two logs that have the same record
    /// there are the same up to it, because a record contains its offset, its time and its id.
    pub fn last_record(&self) -> Result<Option<(PhysicalOffset, Vec<u8>)>> {
        self.shared.check_open()?;
        let anchor = self.shared.inner.lock().derived.anchor;
        let Some(anchor) = anchor else { return Ok(None) };
        let offset = PhysicalOffset(anchor.physical_offset);
        self.shared.log.read(offset, self.shared.log.appended(), |_, bytes| Some((offset, bytes.to_vec())))
    }

    /// Returns when the first record at or above a physical offset was stored; `None` if there is none, or if its offset
    /// is not where a record begins.
    pub fn stored_from(&self, from: PhysicalOffset) -> Option<TimestampMs> {
        let log = &self.shared.log;
        let at = from.0.max(log.segments.first());
        // Where no record fits any more, the next one begins the next file.
        let file_size = log.segments.file_size();
        let next_file = (at / file_size + 1) * file_size;
        let stored = |at| log.read(PhysicalOffset(at), log.appended(), |view, _| view.store_timestamp).ok();
        stored(at).or_else(|| stored(next_file))
    }

    /// Returns the end of what readers see.
    pub fn visible_end(&self) -> PhysicalOffset {
        PhysicalOffset(self.shared.visible_end())
    }

    /// Returns the physical offset of the log's first byte.
    pub fn first_physical_offset(&self) -> PhysicalOffset {
        PhysicalOffset(self.shared.log.segments.first())
    }

    /// Waits until the copyable end is above `physical_offset`, or the time is over. Returns that end.
    pub fn wait_copyable(&self, physical_offset: PhysicalOffset, timeout_ms: u64) -> Result<PhysicalOffset> {
        self.shared.wait_for_end(physical_offset, timeout_ms, Shared::copyable_end)
    }

    /// Shows readers everything below `end` that the log has. The released end never moves back.
    pub fn show_up_to(&self, end: PhysicalOffset) {
        self.shared.readers.release(end.0);
        self.shared.readers.publish_visible(self.shared.own_end());
        self.shared.readers.announce();
    }

    /// Gives a replica the settings of its source, as the text of their file. Returns false, and changes nothing, if the
    /// source has begun to continue another broker's log: then the replica must be opened with them.
    pub fn adopt_settings(&self, text: &str) -> Result<bool> {
        let shared = &self.shared;
        let Some(settings) = Settings::parse(text.as_bytes()) else {
            let what = "the text is damaged, or of another release".to_owned();
            return Err(Error::InvalidOption { option: "settings".into(), what });
        };
        let _one = shared.maintenance.turn.lock();
        shared.check_writable("changing the settings")?;
        let mut inner = shared.inner.lock();
        let before = shared.configuration.settings.lock().clone();
        let first = shared.log.segments.first();
        if before == settings {
            return Ok(true);
        }
        // This store may have ended its range at its own end, as a source that was closed.
        let is_ours = before.is_all_ours(first, shared.log.appended()) || before.is_all_ours(first, u64::MAX);
        if is_ours != settings.is_all_ours(first, u64::MAX) {
            return Ok(false);
        }
        settings.store(shared.storage.as_ref())?;
        verify_by(&shared.log, &settings);
        inner.derived.begin_deleted(&settings);
        inner.unlogged_changes += 1;
        *shared.configuration.settings.lock() = settings;
        Ok(true)
    }

    /// Adds bytes that follow the end of a replica's log in its source. Returns the new end: that of the last whole
    /// record.
    ///
    /// `epoch` is the source's. Fails with `InvalidOption` for another offset than the log's end and for an epoch below
    /// the accepted one, and with `StoreCorrupt` for bytes that are no records. Then nothing has changed.
    pub fn append_copied(&self, offset: PhysicalOffset, bytes: &[u8], epoch: u64) -> Result<PhysicalOffset> {
        let shared = &self.shared;
        shared.check_writable("copying")?;
        shared.relieve()?;
        let _guard = PoisonOnPanic(shared);
        let mut inner = shared.inner.lock();
        shared.check_writable("copying")?;
        let accepted = shared.lifecycle.accepted_epoch();
        if epoch < accepted {
            let what = format!("this node has accepted {accepted}, and copies nothing of epoch {epoch}");
            return Err(Error::InvalidOption { option: "epoch".into(), what });
        }
        let from = shared.log.appended();
        if !shared.options.is_replica() || offset.0 != from {
            let what = format!("a replica's log continues at {from}, not at {offset}");
            return Err(Error::InvalidOption { option: "offset".into(), what });
        }
        let whole = shared.whole_records(from, bytes)?;
        shared.take_copied(&mut inner, from, bytes.get(..to_usize(whole.bytes)).unwrap_or_default(), whole.end)?;
        drop(inner);
        shared.readers.announce();
        Ok(PhysicalOffset(whole.end))
    }
}

/// The whole records at the beginning of copied bytes.
struct Whole {
    /// How many bytes they take.
    bytes: u64,
    /// The physical offset after them. Above their last byte if they end with the blank record of a file.
    end: u64,
}

impl Shared {
    /// Returns how far this store's own log goes, as readers may see it if nothing is held back.
    fn own_end(&self) -> u64 {
        if self.options.shows_only_durable() { self.log.durable() } else { self.log.appended() }
    }

    fn copyable_end(&self) -> u64 {
        // What a replica passes on is what its source has shown.
        if self.options.is_replica() { self.visible_end() } else { self.own_end() }
    }

    /// Returns whether a replica's log may end between the records of one write.
    pub(super) fn is_within_a_write(&self, inner: &Inner) -> bool {
        self.options.is_replica() && inner.derived.replay.is_within_a_write()
    }

    fn whole_records(&self, from: u64, bytes: &[u8]) -> Result<Whole> {
        let file_size = self.log.segments.file_size();
        let file_end = (from / file_size + 1) * file_size;
        if from + to_u64(bytes.len()) > file_end {
            let what = format!("bytes from {from} on go beyond the end of their file at {file_end}");
            return Err(Error::InvalidOption { option: "bytes".into(), what });
        }
        let settings = self.configuration.settings.lock().clone();
        let (mut at, mut rest) = (from, bytes);
        // Fewer bytes are the beginning of a record, or the end of a file in which not even a blank record fits.
        while rest.len() >= to_usize(FILE_TAIL) || (!rest.is_empty() && at + to_u64(rest.len()) == file_end) {
            match step(rest, at, file_end, settings.verify(at)) {
                Step::Record(view) => {
                    at += u64::from(view.size);
                    rest = rest.get(to_usize(view.size.into())..).unwrap_or_default();
                }
                // All that counts of a blank record are its first bytes. The rest of the file stays zeros.
                Step::FileEnd => {
                    let bytes = at - from + FILE_TAIL.min(to_u64(rest.len()));
                    return Ok(Whole { bytes, end: file_end });
                }
                Step::Bad(DecodeError::Truncated { needed }) if at + u64::from(needed) <= file_end => break,
                Step::Bad(why) => return Err(damaged(at, why.to_string())),
                Step::BadBlank(why) => return Err(damaged(at, why)),
                Step::Unwritten => return Err(damaged(at, UNWRITTEN.to_owned())),
            }
        }
        Ok(Whole { bytes: at - from, end: at })
    }

    /// Writes whole records, and applies them to all that is derived.
    fn take_copied(&self, inner: &mut Inner, from: u64, bytes: &[u8], end: u64) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let segment = if let Some(segment) = self.log.segments.at(from) {
            segment
        } else {
            // A file is durable before the next one is begun, as in a writer's own log.
            if let Some(full) = from.checked_sub(1).and_then(|last| self.log.segments.at(last)) {
                self.synced(full.sync())?;
            }
            self.log.segments.at_or_create(from)?
        };
        segment.write(bytes, from)?;
        let settings = self.configuration.settings.lock().clone();
        let before = inner.derived.anchor.map_or_else(|| self.log.segments.first(), |anchor| anchor.physical_offset);
        self.log.set_appended(end);
        let known = Known {
            read_only: false,
            clean: false,
            end: KnownEnd::default(),
            limit: end,
            followed: true,
            half_progress: inner.derived.stored_half_progress,
            delays: inner.derived.delays.clone(),
        };
        // The records were verified before they were written, so an error is one of this machine.
        apply_copied(&self.log, &self.queue_files, &settings, &mut inner.derived, &known)
            .map_err(|error| self.poison_on(Error::StorePoisoned { why: error.to_string() }))?;
        if !self.options.shows_only_durable() {
            self.readers.publish_visible(end);
        }
        let dispatcher = &inner.derived.dispatcher;
        let unsynced_bytes = end.saturating_sub(self.log.durable());
        self.maintenance.ask(dispatcher.queues.buffered(), dispatcher.index.len(), unsynced_bytes);
        let last = inner.derived.anchor.map_or(before, |anchor| anchor.physical_offset);
        self.ages.filled(before, last, self.log.segments.file_size(), self.clock.as_ref());
        Ok(())
    }
}

fn above_the_end(from: PhysicalOffset, end: u64) -> Error {
    Error::MessageNotFound { what: format!("the log ends at {end}, below {from}") }
}

fn damaged(at: u64, what: String) -> Error {
    Error::StoreCorrupt { file: "the copied bytes".into(), offset: at, what }
}
