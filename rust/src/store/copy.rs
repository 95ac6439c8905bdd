//! Appends a copy of a record under another topic: for retries, dead letters, and dead letters that are sent again.
//!
//! In:     the record's physical offset, and the changes.
//! Out:    the offsets of the copy.
//! Always: body, keys, tags and the application's properties are kept. A copy does not belong to a transaction, and
//!         only its own delay applies.
//! Not here: which topic, how often, how long (Python decides these).

use super::append::{Sent, check_queue};
use super::batch::{Batch, IndexKeys, Purpose, Unacknowledged, Wait};
use super::{Inner, Shared, Store, StoredRecord};
use crate::base::error::{Error, Result};
use crate::base::java;
use crate::base::names::{self, SCHEDULE_TOPIC};
use crate::base::units::{PhysicalOffset, QueueId};
use crate::index::delay;
use crate::record::layout::SYS_TRANSACTION_MASK;
use crate::record::message::DELAY_LEVEL_MAX;
use crate::record::message_id::MessageId;
use crate::record::properties::{self, DELAY, KEYS, TAGS};
use crate::record::{Draft, RecordView};

/// The changes in a copy.
#[derive(Clone, Debug)]
pub struct Copy<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its queue.
    pub queue_id: QueueId,
    /// The delay level. 0 means no delay. A level above the highest means the highest.
    pub delay_level: u8,
    /// How often the message was consumed.
    pub reconsume_times: i32,
    /// Properties to set. They replace those of the same name. An empty value removes one.
    pub properties: &'a [(String, String)],
}

impl Store {
    /// Appends a copy of the record at a physical offset.
    pub fn append_copy(&self, physical_offset: PhysicalOffset, copy: &Copy<'_>) -> Result<Sent> {
        self.append_copy_unacknowledged(physical_offset, copy)?.acknowledged()
    }

    /// Does the same as `append_copy`, for a caller that waits for the sync itself.
    pub fn append_copy_unacknowledged(
        &self,
        physical_offset: PhysicalOffset,
        copy: &Copy<'_>,
    ) -> Result<Unacknowledged<'_, Sent>> {
        self.shared.check_appends("sending")?;
        names::validate_topic(copy.topic)?;
        check_queue(copy.queue_id)?;
        let source = self.read_at(physical_offset)?;
        if names::is_system_topic(source.view()?.topic) {
            let what = format!("the record at {physical_offset} is a system record and cannot be copied");
            return Err(Error::MessageNotFound { what });
        }
        let mut inner = self.shared.lock_to_send(Wait::Yes)?;
        let sent = self.shared.append_copy_in(&mut inner, &source, copy)?;
        Ok(self.shared.unacknowledged(inner, Purpose::Message, sent))
    }
}

impl Shared {
    fn append_copy_in(&self, inner: &mut Inner, source: &StoredRecord, copy: &Copy<'_>) -> Result<Sent> {
        let source = source.view()?;
        let mut batch = Batch::begin(self, inner, Purpose::Message)?;
        let mut text = std::mem::take(&mut batch.inner.scratch);
        let delay_level = copy.delay_level.min(DELAY_LEVEL_MAX);
        copy_properties(&source, copy, delay_level, &mut text);
        let (topic, queue_id) = match delay_level {
            0 => (copy.topic, copy.queue_id),
            level => (SCHEDULE_TOPIC, delay::queue_of(level)),
        };
        let draft = Draft {
            topic,
            queue_id,
            flag: source.flag,
            sys_flag: source.sys_flag & !SYS_TRANSACTION_MASK,
            born_timestamp: source.born_timestamp,
            born_host: source.born_host.address(),
            store_host: self.options.store_host,
            reconsume_times: copy.reconsume_times,
            prepared_transaction_offset: PhysicalOffset(0),
            body: source.body,
            body_crc: Some(source.body_crc),
            properties: &text,
        };
        let keys = IndexKeys {
            topic_hash: java::topic_hash(topic),
            unique_id: source.unique_id(),
            keys: source.properties.get_str(KEYS),
        };
        let placed = match delay_level {
            0 => batch.push(&draft, java::tags_code(source.properties.get_str(TAGS)), Some(&keys))?,
            level => batch.push_delayed(&draft, level, Some(&keys))?,
        };
        batch.inner.scratch = text;
        batch.write(Wait::Yes)?;
        Ok(Sent::new(MessageId::Text(source.message_id().into()), placed, copy.queue_id))
    }
}

/// Writes the source's properties without its delay, and with the copy's changes.
fn copy_properties(source: &RecordView<'_>, copy: &Copy<'_>, delay_level: u8, text: &mut Vec<u8>) {
    let replaced = copy.properties.iter().map(|(name, _)| name.as_str());
    let dropped: Vec<&str> = delay::WAITING.iter().copied().chain(replaced).collect();
    text.clear();
    properties::copy_without(source.properties, &dropped, text);
    for (name, value) in copy.properties.iter().filter(|(_, value)| !value.is_empty()) {
        properties::push(text, name, value);
    }
    if delay_level > 0 {
        properties::push(text, DELAY, &delay_level.to_string());
        delay::hide(copy.topic, copy.queue_id, text);
    }
}
