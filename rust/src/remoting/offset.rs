//! Offset: how far a group says that it has come.
//!
//! In:     `UPDATE_CONSUMER_OFFSET`, and the offsets in pulls.
//! Out:    the store's table of offsets.
//! Always: of both ways of one connection the later request counts: both end here, in the order of arrival, and a pull's
//!         offset is not noted while an update waits for Python. Only groups with members and queues that are there have
//!         offsets. Retry topics and groups without members are Python's.

use super::codes::response;
use super::command::Command;
use super::fields::{Refusal, number, text};
use super::service::Service;
use crate::names::RETRY_PREFIX;
use crate::units::QueueId;

/// Whether an update needs nothing that only Python knows.
pub(super) fn is_plain(service: &Service, request: &Command) -> bool {
    let field = |name| request.ext_fields.get(name).unwrap_or_default();
    let topic = field("topic");
    !topic.starts_with(RETRY_PREFIX)
        && service.tables.has_members(field("consumerGroup"))
        && service.tables.topic(topic).is_some()
}

/// Notes how far a group has come. Only for what `is_plain`.
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

/// Notes how far a group has come, as its pull says. What cannot be noted does not keep the group from reading.
pub(super) fn update_with_pull(service: &Service, topic: &str, group: &str, queue_id: QueueId, queue_offset: u64) {
    if service.tables.has_members(group) {
        // Its next request of its own is told why: an offset outside its queue, or a store that takes nothing more.
        let _ = service.store.set_consumer_offset(topic, group, queue_id, queue_offset);
    }
}
