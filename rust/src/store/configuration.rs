//! The store's small JSON files: consumer offsets, progress, settings, topics and groups.
//!
//! In:     offsets that groups acknowledge, files of `config/` as a broker writes them.
//! Out:    the same from memory. Files are written after the data that they depend on.
//! Always: an offset is never above the end of its queue. Progress is written after the sync of what it covers (T9).

use super::{Inner, Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::names::{HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TRANSACTION_GROUP};
use crate::base::sync::Mutex;
use crate::base::sync::rank::FILES;
use crate::base::units::QueueId;
use crate::index::consume_queue::QueueTable;
use crate::index::delay::{DelayOffsets, DelayProgress};
use crate::index::offsets::ConsumerOffsets;
use crate::log::commit_log::CommitLog;
use crate::storage::config_file;
use crate::storage::epochs::Epochs;
use crate::storage::settings::{Settings, StoreId};
use crate::transaction::HALF_QUEUE;

/// The contents of the small files, in memory.
#[derive(Debug)]
pub(super) struct Configuration {
    /// The queue offsets that groups have acknowledged.
    pub(super) offsets: Mutex<ConsumerOffsets, FILES>,
    /// How far delayed messages are delivered.
    pub(super) delay_offsets: Mutex<DelayOffsets, FILES>,
    /// The settings that txstore keeps about the store.
    pub(super) settings: Mutex<Settings, FILES>,
    /// Which node may write the log.
    pub(super) epochs: Mutex<Epochs, FILES>,
}

impl Configuration {
    pub(super) fn new(
        offsets: ConsumerOffsets,
        delay_offsets: DelayOffsets,
        settings: Settings,
        epochs: Epochs,
    ) -> Self {
        let (offsets, delay_offsets) = (Mutex::ranked(offsets), Mutex::ranked(delay_offsets));
        let (settings, epochs) = (Mutex::ranked(settings), Mutex::ranked(epochs));
        Self { offsets, delay_offsets, settings, epochs }
    }
}

impl Store {
    /// Returns the store's id; `None` if no txstore version with ids has opened the store for writing.
    pub fn store_id(&self) -> Option<StoreId> {
        self.shared.configuration.settings.lock().id
    }

    /// Returns the most bytes that a body may have.
    pub fn max_message_size(&self) -> u32 {
        self.shared.options.max_message_size
    }

    /// Returns how far ahead the time of a message may be, in seconds.
    pub fn timer_max_delay_s(&self) -> i64 {
        self.shared.options.timer_max_delay_s
    }

    /// Returns the queue offset up to which a group has acknowledged a queue.
    pub fn consumer_offset(&self, topic: &str, group: &str, queue_id: QueueId) -> Result<Option<u64>> {
        self.shared.refresh_offsets()?;
        Ok(self.shared.configuration.offsets.lock().get(topic, group, queue_id))
    }

    /// Sets the queue offset up to which a group has acknowledged a queue, in memory. `write_offsets` writes it to
    /// disk.
    pub fn set_consumer_offset(&self, topic: &str, group: &str, queue_id: QueueId, queue_offset: u64) -> Result<()> {
        self.shared.check_writable("acknowledging")?;
        check_acknowledged(&self.shared.inner.lock(), topic, queue_id, queue_offset)?;
        self.shared.configuration.offsets.lock().set(topic, group, queue_id, queue_offset);
        Ok(())
    }

    /// Returns a group's offset in its retry topic for one of its topics, named GROUP%TOPIC. The first call sets it:
    /// to what the whole group has read there.
    pub fn begin_retry_offset(&self, topic: &str, group: &str, name: &str, queue_id: QueueId) -> Result<u64> {
        self.shared.check_writable("acknowledging")?;
        Ok(self.shared.configuration.offsets.lock().begin_retry(topic, group, name, queue_id))
    }

    /// Sets a group's offset in its retry topic for one of its topics, in memory. The least of these offsets is also
    /// the group's own offset there, which brokers use.
    pub fn set_retry_offset(
        &self,
        topic: &str,
        group: &str,
        name: &str,
        queue_id: QueueId,
        queue_offset: u64,
    ) -> Result<()> {
        self.shared.check_writable("acknowledging")?;
        check_acknowledged(&self.shared.inner.lock(), topic, queue_id, queue_offset)?;
        self.shared.configuration.offsets.lock().set_retry(topic, group, name, queue_id, queue_offset);
        Ok(())
    }

    /// Removes a group's offsets of a topic, in memory. `write_offsets` writes the change to disk.
    pub fn remove_consumer_offsets(&self, topic: &str, group: &str) -> Result<()> {
        self.shared.check_writable("removing offsets")?;
        self.shared.configuration.offsets.lock().remove(topic, group);
        Ok(())
    }

    /// Returns all groups' offsets: topic, group, queue id, queue offset.
    pub fn consumer_offsets(&self) -> Result<Vec<(String, String, QueueId, u64)>> {
        self.shared.refresh_offsets()?;
        Ok(self.shared.configuration.offsets.lock().all())
    }

    /// Writes `consumerOffset.json` with the transactions' progress if an offset changed.
    pub fn write_offsets(&self) -> Result<()> {
        self.shared.check_writable("writing offsets")?;
        self.shared.write_progress()
    }

    /// Reads a file of `config/` that a broker or txstore wrote. Reads the `.bak` instead of a damaged file.
    pub fn config(&self, name: &str) -> Result<Option<serde_json::Value>> {
        self.shared.check_open()?;
        check_config_name(name)?;
        Ok(config_file::load(self.shared.storage.as_ref(), name)?.value)
    }

    /// Replaces a file of `config/`.
    pub fn set_config(&self, name: &str, value: &serde_json::Value) -> Result<()> {
        check_config_name(name)?;
        // Checked again under the lock that a close takes, because nothing may be written after the clean close.
        let _one = self.shared.maintenance.turn.lock();
        self.shared.check_writable("writing a configuration")?;
        config_file::replace(self.shared.storage.as_ref(), name, &config_file::to_text(value))
    }
}

impl Shared {
    /// Writes the progress of transactions and delayed messages, and the consumers' offsets.
    pub(super) fn write_progress(&self) -> Result<()> {
        let _one = self.maintenance.turn.lock();
        self.check_writable("writing offsets")?;
        self.write_progress_alone()
    }

    /// Does the same as `write_progress`, for the holder of the maintenance lock.
    pub(super) fn write_progress_alone(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        let half_end = inner.half_queue_end();
        let mut half_progress = inner.derived.table.half_progress(half_end);
        if self.options.is_replica() {
            // A broker that is copied may have passed halves whose end the log does not tell.
            half_progress = half_progress.max(inner.derived.stored_half_progress);
        }
        let op_progress = inner.derived.table.ops.pass(half_progress);
        let delays = delay_progress(&inner);
        let end = self.log.appended();
        drop(inner);
        if !mutated(Mutant::ProgressFirst) {
            self.wait_durable(end)?;
        }
        self.configuration.delay_offsets.lock().write(self.storage.as_ref(), delays, self.clock.wall())?;
        let mut offsets = self.configuration.offsets.lock();
        // Queues that do not exist yet have no progress.
        for (topic, progress) in [(HALF_TOPIC, half_progress), (OP_TOPIC, op_progress)] {
            if progress > 0 || offsets.get(topic, TRANSACTION_GROUP, HALF_QUEUE).is_some() {
                offsets.set(topic, TRANSACTION_GROUP, HALF_QUEUE, progress);
            }
        }
        if offsets.is_dirty() {
            offsets.write(self.storage.as_ref(), self.clock.wall())?;
        }
        drop(offsets);
        self.inner.lock().derived.stored_half_progress = half_progress;
        Ok(())
    }

    /// Reads the offsets that the writer has written since the last call. Does nothing in a writer.
    pub(super) fn refresh_offsets(&self) -> Result<()> {
        if !self.options.read_only {
            return self.check_open();
        }
        // Read before the queues' ends, so that an offset that was right when it was written is not above them.
        let (mut offsets, damaged) = ConsumerOffsets::load(self.storage.as_ref())?;
        self.refresh()?;
        if !damaged.is_empty() {
            return Ok(()); // The offsets that were read before stay.
        }
        clamp_offsets(&mut offsets, &self.inner.lock().derived.dispatcher.queues, &mut Vec::new());
        *self.configuration.offsets.lock() = offsets;
        Ok(())
    }

    /// Reads the settings again, because they say which ranges of the log txstore wrote.
    pub(super) fn reload_settings(&self) -> Result<()> {
        if let Some(settings) = Settings::load(self.storage.as_ref())? {
            verify_by(&self.log, &settings);
            *self.configuration.settings.lock() = settings;
        }
        Ok(())
    }
}

/// Returns the progress of each level that has a queue: 0 if none of its messages was delivered. An opening without
/// this progress cannot use a snapshot.
pub(super) fn delay_progress(inner: &Inner) -> DelayProgress {
    let mut delays = inner.derived.delays.clone();
    for (_, queue) in inner.derived.dispatcher.queues.iter().filter(|(_, queue)| &*queue.topic == SCHEDULE_TOPIC) {
        delays.entry(queue.queue_id).or_default();
    }
    delays
}

/// Refuses a queue offset after the end of its queue.
pub(super) fn check_acknowledged(inner: &Inner, topic: &str, queue_id: QueueId, queue_offset: u64) -> Result<()> {
    let next = inner.derived.dispatcher.queues.next_of(topic, queue_id);
    if queue_offset <= next {
        return Ok(());
    }
    Err(Error::InvalidOption {
        option: "queue_offset".into(),
        what: format!("{queue_offset} is past the end of {topic}/{queue_id}, which is {next}"),
    })
}

/// Lowers offsets above their queue's end, which a power loss can leave, to that end, with a warning (D2).
pub(super) fn clamp_offsets(offsets: &mut ConsumerOffsets, queues: &QueueTable, warnings: &mut Vec<String>) {
    for (topic, group, queue_id, offset) in offsets.all() {
        let next = queues.next_of(&topic, queue_id);
        if offset > next && !mutated(Mutant::OffsetsNotClamped) {
            warnings.push(format!("the offset of {group} in {topic}/{queue_id} was {offset}, after the end {next}"));
            offsets.set(&topic, &group, queue_id, next);
        }
    }
}

/// Sets how the log verifies records. Records that txstore wrote are also verified by their own CRC.
pub(super) fn verify_by(log: &CommitLog, settings: &Settings) {
    let settings = settings.clone();
    log.set_verify(Box::new(move |offset| settings.verify(offset)));
}

/// Refuses a name that is not a plain file name, and `consumerOffset.json`, which has its own calls.
fn check_config_name(name: &str) -> Result<()> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if !plain || name.starts_with('.') || name.is_empty() || name == "consumerOffset.json" {
        return Err(Error::InvalidName {
            what: format!(
                "{name:?} cannot be read or replaced as a file of config/\nhint: pass the name of a file directly in config/, other than consumerOffset.json"
            ),
        });
    }
    Ok(())
}
