//! Copy: a record of the log, appended once more under another topic: retries, dead letters, dead letters sent again.
//!
//! In: where the record stands, and what is to be different. Out: where the copy went. Always: body, keys, tags and the
//! application's properties stay; a copy is no transaction's record and waits for nothing but its own delay. Not here:
//! which topic, how often, how long (Python).

use super::append::{Sent, check_queue};
use super::{Inner, PoisonOnPanic, Shared, Store, StoredRecord};
use crate::commit_log::Urgency;
use crate::delay;
use crate::dispatch::DispatchRequest;
use crate::error::{Error, Result};
use crate::java;
use crate::names::{self, SCHEDULE_TOPIC};
use crate::record::layout::SYS_TRANSACTION_MASK;
use crate::record::message_id::MessageId;
use crate::record::properties::{self, DELAY, KEYS, TAGS};
use crate::record::{Draft, RecordView, TransactionType};
use crate::units::{PhysicalOffset, QueueId, QueueOffset};

/// What is different in a copy.
#[derive(Clone, Debug)]
pub struct Copy<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its queue.
    pub queue_id: QueueId,
    /// 0, or how long it waits; a level above the highest is the highest.
    pub delay_level: u8,
    /// How often it was consumed.
    pub reconsume_times: i32,
    /// Properties that it gets, in place of those of the same name; an empty value takes one away.
    pub properties: &'a [(String, String)],
}

impl Store {
    /// Appends a copy of the record at a place.
    pub fn append_copy(&self, physical_offset: PhysicalOffset, copy: &Copy<'_>) -> Result<Sent> {
        self.shared.check_writable("sending")?;
        names::validate_topic(copy.topic)?;
        check_queue(copy.queue_id)?;
        let source = self.read_at(physical_offset)?;
        self.shared.relieve()?;
        let mut inner = self.shared.inner.lock();
        let sent = self.shared.append_copy_in(&mut inner, &source, copy)?;
        let end = self.shared.log.appended();
        drop(inner);
        self.acknowledge(end)?;
        Ok(sent)
    }
}

impl Shared {
    fn append_copy_in(&self, inner: &mut Inner, source: &StoredRecord, copy: &Copy<'_>) -> Result<Sent> {
        let _guard = PoisonOnPanic(self);
        let source = source.view()?;
        let Inner { appender, state, scratch, .. } = inner;
        let appender = appender.as_mut().ok_or(Error::ReadOnly { what: "sending" })?;
        appender.begin(self.clock.wall());
        copy_properties(&source, copy, scratch);
        let level = copy.delay_level.min(crate::message::DELAY_LEVEL_MAX);
        let (topic, queue_id) =
            if level == 0 { (copy.topic, copy.queue_id) } else { (SCHEDULE_TOPIC, delay::queue_of(level)) };
        let slot = state.dispatcher.queues.find_or_insert(topic, queue_id);
        let queue_offset = QueueOffset(state.dispatcher.queues.next(slot));
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
            properties: scratch,
        };
        let appended = appender.push(&draft, queue_offset)?;
        self.write(appender, Urgency::Send { pending_bytes: state.table.pending_bytes() }, true)?;
        let request = DispatchRequest {
            physical_offset: appended.physical_offset,
            size: appended.size,
            store_timestamp: appended.store_timestamp,
            tags_code: if level == 0 {
                java::tags_code(source.properties.get_str(TAGS))
            } else {
                appended.store_timestamp.0.saturating_add(delay::level_ms(level.into()))
            },
            topic_hash: java::topic_hash(topic),
            transaction_type: TransactionType::None,
            unique_id: source.unique_id(),
            keys: source.properties.get_str(KEYS),
        };
        state.dispatcher.enqueue(slot, &request);
        state.dispatcher.index(&request);
        state.note_last(appended);
        self.ask_for_upkeep(state.dispatcher.queues.buffered(), state.dispatcher.index.len());
        Ok(Sent {
            unique_id: MessageId::Text(source.message_id().into()),
            physical_offset: appended.physical_offset,
            queue_offset,
            queue_id: copy.queue_id,
            size: appended.size,
        })
    }
}

/// The source's properties, less what made it wait, with what the copy changes.
fn copy_properties(source: &RecordView<'_>, copy: &Copy<'_>, text: &mut Vec<u8>) {
    let replaced = copy.properties.iter().map(|(name, _)| name.as_str());
    let dropped: Vec<&str> = delay::WAITING.iter().copied().chain(replaced).collect();
    text.clear();
    properties::copy_without(source.properties, &dropped, text);
    for (name, value) in copy.properties.iter().filter(|(_, value)| !value.is_empty()) {
        properties::push(text, name, value);
    }
    if copy.delay_level > 0 {
        properties::push(text, DELAY, &copy.delay_level.min(crate::message::DELAY_LEVEL_MAX).to_string());
        delay::hide(copy.topic, copy.queue_id, text);
    }
}
