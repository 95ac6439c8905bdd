//! What an account needs for each RPC.
//!
//! In:     requests.
//! Out:    permissions.
//! Always: the same permissions as for the requests of the remoting protocol that do the same.

use super::transaction;
use super::wire;
use crate::server::access::{NamedOffset, group, read, send};
use crate::server::accounts::Need;
use crate::server::service::Service;

/// The RPC needs no more than a signature.
pub(super) fn nothing<'a, Q>(_: &Service, _: &'a Q) -> Vec<Need<'a>> {
    Vec::new()
}

pub(super) fn sending<'a>(_: &Service, request: &'a wire::SendMessageRequest) -> Vec<Need<'a>> {
    request.messages.iter().map(|message| send(name(message.topic.as_ref()))).collect()
}

/// The topics of the half message count, not the topic in the request.
pub(super) fn ending<'a>(service: &Service, request: &'a wire::EndTransactionRequest) -> Vec<Need<'a>> {
    // A transaction that does not exist is refused later.
    let Some(half) = transaction::parse_id(&request.transaction_id) else { return Vec::new() };
    let topics = service.topics_at(NamedOffset::Half(half.queue_offset)).into_iter();
    topics.map(|topic| send(&topic).owned()).collect()
}

pub(super) fn recalling<'a>(_: &Service, request: &'a wire::RecallMessageRequest) -> Vec<Need<'a>> {
    request.topic.iter().map(|topic| send(&topic.name)).collect()
}

pub(super) fn heartbeat<'a>(_: &Service, request: &'a wire::HeartbeatRequest) -> Vec<Need<'a>> {
    request.group.iter().filter(|named| !named.name.is_empty()).map(|named| group(&named.name)).collect()
}

pub(super) fn assigning<'a>(_: &Service, request: &'a wire::QueryAssignmentRequest) -> Vec<Need<'a>> {
    in_group(request.topic.as_ref(), request.group.as_ref())
}

pub(super) fn receiving<'a>(_: &Service, request: &'a wire::ReceiveMessageRequest) -> Vec<Need<'a>> {
    let topic = request.message_queue.as_ref().and_then(|queue| queue.topic.as_ref());
    in_group(topic, request.group.as_ref())
}

pub(super) fn acknowledging<'a>(_: &Service, request: &'a wire::AckMessageRequest) -> Vec<Need<'a>> {
    in_group(request.topic.as_ref(), request.group.as_ref())
}

pub(super) fn changing<'a>(_: &Service, request: &'a wire::ChangeInvisibleDurationRequest) -> Vec<Need<'a>> {
    in_group(request.topic.as_ref(), request.group.as_ref())
}

pub(super) fn forwarding<'a>(_: &Service, request: &'a wire::ForwardMessageToDeadLetterQueueRequest) -> Vec<Need<'a>> {
    in_group(request.topic.as_ref(), request.group.as_ref())
}

fn in_group<'a>(topic: Option<&'a wire::Resource>, group_of: Option<&'a wire::Resource>) -> Vec<Need<'a>> {
    vec![read(name(topic)), group(name(group_of))]
}

fn name(resource: Option<&wire::Resource>) -> &str {
    resource.map_or("", |resource| resource.name.as_str())
}
