//! Stores the consumer offsets that clients report.
//!
//! In:     `UPDATE_CONSUMER_OFFSET`, and the offsets in pulls.
//! Out:    the store's table of offsets.
//! Always: on one connection the later request wins: both kinds are handled here in the order of arrival, and a pull's
//!         offset is ignored while an update waits for Python. Only groups with members, and existing queues, have
//!         offsets. Python handles retry topics, groups without members, and offsets that a client reports again.

use super::fields::{Refusal, number, text};
use super::service::Service;
use crate::base::names::RETRY_PREFIX;
use crate::base::units::QueueId;
use crate::remoting::codes::response;
use crate::remoting::command::Command;

/// Returns whether an update can be handled without Python.
pub(super) fn is_plain(service: &Service, request: &Command) -> bool {
    let field = |name| request.ext_fields.get(name).unwrap_or_default();
    let topic = field("topic");
    !topic.starts_with(RETRY_PREFIX)
        && field("increaseOnly").is_empty()
        && service.tables.has_members(field("consumerGroup"))
        && service.tables.topic(topic).is_some()
}

/// Stores a group's offset. Requires `is_plain`.
pub(super) fn update(service: &Service, request: &Command) -> Result<Command, Refusal> {
    let (topic, group) = (text(request, "topic")?, text(request, "consumerGroup")?);
    let queue_id = QueueId(number(request, "queueId")?);
    let queue_offset = number(request, "commitOffset")?;
    let queues = service.tables.topic(topic).map_or(0, |entry| entry.read_queues);
    if !(0..queues).contains(&queue_id.0) {
        let remark = format!("topic {topic} has no queue {queue_id} to read");
        return Err(Refusal::new(response::INVALID_PARAMETER, remark));
    }
    service.store.set_consumer_offset(topic, group, queue_id, queue_offset)?;
    Ok(request.response(response::SUCCESS, None))
}

/// Stores the group's offset in a pull. A failure does not keep the group from reading.
pub(super) fn update_with_pull(service: &Service, topic: &str, group: &str, queue_id: QueueId, queue_offset: u64) {
    if service.tables.has_members(group) {
        // The group's next update gets the error: an offset outside its queue, or a store that cannot write.
        let _ = service.store.set_consumer_offset(topic, group, queue_id, queue_offset);
    }
}
