//! Tells clients the queues of a topic.
//!
//! In:     a topic, the addresses by which the client came.
//! Out:    its queues, all at these addresses, and the types of messages that the topic accepts.
//! Always: a topic that does not exist is created if clients may create topics, because a producer asks for the route
//!         before it sends.

use super::call::Call;
use super::status::{self, Refused, ok};
use super::wire::{Broker, MessageQueue, QueryRouteRequest, QueryRouteResponse, Resource, message_type, permission};
use crate::server::access::send;
use crate::server::service::Use;
use crate::server::tables::TopicEntry;
use crate::server::traffic::Kind;

/// The types of a topic that declares none.
const ALL_TYPES: [i32; 4] = [message_type::NORMAL, message_type::FIFO, message_type::DELAY, message_type::TRANSACTION];

pub(super) async fn query(call: Call, request: QueryRouteRequest) -> Result<QueryRouteResponse, Refused> {
    let topic = request.topic.ok_or_else(|| Refused::new(status::ILLEGAL_TOPIC, "the topic is missing"))?;
    let may_create = call.service().check_needs(call.account.as_deref(), &[send(&topic.name)]).is_ok();
    let entry = call.topic(&topic.name, if may_create { Use::Send } else { Use::Read }).await?;
    let broker = Broker { name: call.messaging.broker_name.clone(), id: 0, endpoints: request.endpoints };
    let accepted = accepted(&entry, call.messaging.checks_message_types);
    Ok(QueryRouteResponse { status: Some(ok()), message_queues: queues(&topic, &entry, &broker, &accepted) })
}

fn queues(topic: &Resource, entry: &TopicEntry, broker: &Broker, accepted: &[i32]) -> Vec<MessageQueue> {
    let queue = |id| MessageQueue {
        topic: Some(topic.clone()),
        id,
        permission: match (id < entry.read_queues, id < entry.write_queues) {
            (true, true) => permission::READ_WRITE,
            (true, false) => permission::READ,
            _ => permission::WRITE,
        },
        broker: Some(broker.clone()),
        accept_message_types: accepted.to_vec(),
    };
    (0..entry.read_queues.max(entry.write_queues)).map(queue).collect()
}

/// Returns the types of messages that a topic accepts.
pub(super) fn accepted(entry: &TopicEntry, checks_message_types: bool) -> Vec<i32> {
    match entry.message_type {
        Some(only) if checks_message_types => vec![type_of(only)],
        _ => ALL_TYPES.to_vec(),
    }
}

/// Returns the number of a message type.
pub(super) const fn type_of(kind: Kind) -> i32 {
    match kind {
        Kind::Normal => message_type::NORMAL,
        Kind::Fifo => message_type::FIFO,
        Kind::Delay => message_type::DELAY,
        Kind::Transaction => message_type::TRANSACTION,
    }
}
