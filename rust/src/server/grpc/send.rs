//! Stores the messages and half messages that gRPC clients send.
//!
//! In:     `SendMessage`.
//! Out:    an entry for each message.
//! Always: the server chooses the queue, by turns or by the message group. The producer group of a half message is its
//!         topic. The answer is sent when the store may acknowledge.
//! Not here: the limits of a message (`message`), which topics may exist.

use std::net::SocketAddr;

use bytes::Bytes;

use super::call::Call;
use super::message;
use super::status::{self, Refused, common, ok};
use super::transaction;
use super::wire::{
    Message, SendMessageRequest, SendMessageResponse, SendResultEntry, SystemProperties, Timestamp, message_type,
};
use crate::base::clock::{Clock, SystemClock};
use crate::base::java;
use crate::base::units::{QueueId, TimestampMs};
use crate::record::message::{Envelope, Origin, Parts, Topic};
use crate::record::properties::{self, CHECK_IMMUNITY_TIME, KEY_SEPARATOR};
use crate::server::service::Use;
use crate::server::tables::TopicEntry;
use crate::server::traffic::Kind;
use crate::server::{copy_log, recall};
use crate::store::{NewHalfMessage, NewMessage, Sent, Wait};
use crate::transaction::HalfCopy;

/// The most seconds before a half message is checked.
const IMMUNITY_MAX_S: i64 = 3_600;

pub(super) async fn send(call: Call, request: SendMessageRequest) -> Result<SendMessageResponse, Refused> {
    let service = call.service();
    let mut topics = request.messages.iter().map(|message| message.topic.as_ref().map_or("", |topic| &topic.name));
    let Some(topic) = topics.next() else {
        return Err(Refused::new(status::BAD_REQUEST, "the request has no message"));
    };
    if let Some(other) = topics.find(|other| *other != topic) {
        let what = format!("messages of one request go to one topic, got {topic:?} and {other:?}");
        return Err(Refused::new(status::MESSAGE_CORRUPTED, what));
    }
    service.check_writable()?;
    service.copies.admit()?;
    let entry = call.topic(topic, Use::Send).await?;
    let mut entries = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        entries.push(store(&call, &entry, message).await.unwrap_or_else(|refused| SendResultEntry {
            status: Some(refused.status()),
            ..SendResultEntry::default()
        }));
    }
    if let Err(refusal) = copy_log::wait_for_copies(service).await {
        // They are stored, so the entries keep their ids.
        let late = Refused::from(refusal).status();
        entries
            .iter_mut()
            .filter_map(|entry| entry.status.as_mut())
            .filter(|one| one.code == status::OK)
            .for_each(|one| one.clone_from(&late));
    }
    let status = common(entries.iter().filter_map(|entry| entry.status.as_ref()));
    Ok(SendMessageResponse { status: Some(status), entries })
}

/// Stores one message.
async fn store(call: &Call, entry: &TopicEntry, message: &Message) -> Result<SendResultEntry, Refused> {
    let system = message.system_properties.clone().unwrap_or_default();
    let body_max = usize::try_from(call.service().store.max_message_size()).unwrap_or(usize::MAX);
    message::check(message, &system, body_max)?;
    let (body, sys_flag) = message::stored_body(&message.body, system.body_encoding, body_max)?;
    let kind = check_type(call, entry, &system)?;
    check_time(&system, SystemClock.wall(), call.service().store.timer_max_delay_s())?;
    let born_host = call.session.born_host;
    let envelope = envelope(&entry.topic, message, &system, sys_flag, born_host)?;
    let queue_id = queue(call, entry, &system)?;
    let sent = if kind == Kind::Transaction {
        store_half(call, &envelope, &body, queue_id).await?
    } else {
        let message = NewMessage { envelope: &envelope, body: &body, queue_id };
        let written = call.service().store.append_one(&message, Wait::Yes)?;
        call.service().acknowledged(written).await?
    };
    // A half message that was stored before was counted before.
    if sent.size > 0 {
        entry.traffic.sent(kind, sent.size.into());
    }
    Ok(result(call, entry.name(), system.message_id, kind, &sent))
}

fn result(call: &Call, topic: &str, message_id: String, kind: Kind, sent: &Sent) -> SendResultEntry {
    let half = HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 };
    SendResultEntry {
        status: Some(ok()),
        message_id,
        transaction_id: if kind == Kind::Transaction { transaction::id_of(half) } else { String::new() },
        offset: i64::try_from(sent.queue_offset.0).unwrap_or(i64::MAX),
        recall_handle: recall::handle_of(call.service(), topic, sent).unwrap_or_default(),
    }
}

/// Stores a half message, or finds the one that it repeats.
async fn store_half(call: &Call, envelope: &Envelope, body: &Bytes, queue_id: QueueId) -> Result<Sent, Refused> {
    let (service, client) = (call.service(), call.client()?);
    let group = &*envelope.topic;
    let owner = service.producer(&client.session, group, call.account.as_deref()).await?;
    client.publishes_to(group);
    let message = NewMessage { envelope, body, queue_id };
    let half = NewHalfMessage { message, group, unique_id: envelope.unique_id(), owner };
    let written = service.store.prepare(&half, Wait::Yes)?;
    // The server does not see the end of the local transaction, so the age counts from now.
    service.store.local_transaction_ended(written.value().queue_offset.0)?;
    Ok(service.acknowledged(written).await?)
}

/// Returns the type of a message. Refuses one that its topic does not accept.
fn check_type(call: &Call, entry: &TopicEntry, system: &SystemProperties) -> Result<Kind, Refused> {
    let kind = if system.message_type == message_type::TRANSACTION {
        Kind::Transaction
    } else if system.delivery_timestamp.is_some() {
        Kind::Delay
    } else if system.message_group.is_some() {
        Kind::Fifo
    } else {
        Kind::Normal
    };
    let conflict = |what: &str| Refused::new(status::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, what);
    let declared = entry.message_type.filter(|_| call.messaging.checks_message_types);
    match declared.filter(|declared| *declared != kind) {
        None => Ok(kind),
        Some(declared) => {
            let (topic, wanted, got) = (entry.name(), declared.name(), kind.name());
            Err(conflict(&format!("topic {topic} accepts {wanted} messages, this one is of type {got}")))
        }
    }
}

/// Returns what is stored of a message besides its body, which was checked before.
pub(super) fn envelope(
    topic: &Topic,
    message: &Message,
    system: &SystemProperties,
    sys_flag: i32,
    born_host: SocketAddr,
) -> Result<Envelope, Refused> {
    let properties: Vec<(&str, &str)> = message
        .user_properties
        .iter()
        // RocketMQ treats an empty value as missing.
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let parts = Parts {
        topic: topic.name(),
        tags: system.tag.as_deref(),
        keys: &system.keys.join(KEY_SEPARATOR.encode_utf8(&mut [0; 4])),
        properties: &properties,
        flag: 0,
        delay_level: 0,
        deliver_ms: system.delivery_timestamp.as_ref().map(Timestamp::as_millis),
        message_group: system.message_group.as_deref(),
    };
    let mut envelope = Envelope::of(topic.clone(), &parts)?;
    if let Some(seconds) = immunity_s(system)? {
        properties::push(&mut envelope.properties, CHECK_IMMUNITY_TIME, itoa::Buffer::new().format(seconds));
    }
    let born_ms = system.born_timestamp.as_ref().map_or_else(|| SystemClock.wall().0, Timestamp::as_millis);
    envelope.origin = Some(Origin {
        unique_id: Some(system.message_id.clone()),
        sys_flag,
        born_timestamp: TimestampMs(born_ms),
        born_host,
        reconsume_times: 0,
    });
    Ok(envelope)
}

/// Returns the seconds before a half message is checked, if its client sets them.
fn immunity_s(system: &SystemProperties) -> Result<Option<i64>, Refused> {
    let Some(duration) = system.orphaned_transaction_recovery_duration else { return Ok(None) };
    if system.message_type != message_type::TRANSACTION || duration.seconds == 0 {
        return Ok(None);
    }
    if !(0..=IMMUNITY_MAX_S).contains(&duration.seconds) {
        let what = format!("the recovery duration must be 0 to {IMMUNITY_MAX_S} s, got {}", duration.seconds);
        return Err(Refused::new(status::BAD_REQUEST, what));
    }
    Ok(Some(duration.seconds))
}

/// Refuses a delivery time that is too far ahead. One that has passed means at once.
pub(super) fn check_time(system: &SystemProperties, now: TimestampMs, most_s: i64) -> Result<(), Refused> {
    let Some(wanted) = system.delivery_timestamp else { return Ok(()) };
    let ahead_ms = wanted.as_millis().saturating_sub(now.0);
    if ahead_ms <= most_s.saturating_mul(1_000) {
        return Ok(());
    }
    let what = format!(
        "the delivery time is {} s ahead; timer_max_delay_sec allows {most_s} s\nhint: choose an earlier time",
        ahead_ms / 1_000
    );
    Err(Refused::new(status::ILLEGAL_DELIVERY_TIME, what))
}

/// Returns the queue: the same for all messages of a message group, as all of txstore's producers choose it.
fn queue(call: &Call, entry: &TopicEntry, system: &SystemProperties) -> Result<QueueId, Refused> {
    if entry.write_queues < 1 {
        return Err(Refused::new(status::FORBIDDEN, "the topic cannot be sent to"));
    }
    Ok(QueueId(match &system.message_group {
        Some(group) => java::hash_code(group).rem_euclid(entry.write_queues),
        None => call.service().next_turn(entry.write_queues),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

    #[test]
    fn a_delivery_time_may_be_as_far_ahead_as_the_option_says() {
        let checked = |milliseconds: i64| {
            let wanted = Timestamp::from_millis(NOW.0 + milliseconds);
            let system = SystemProperties { delivery_timestamp: Some(wanted), ..SystemProperties::default() };
            check_time(&system, NOW, 60).map_err(|refused| refused.code)
        };
        for milliseconds in [-1_000_000, 0, 1, 60_000] {
            assert_eq!(checked(milliseconds), Ok(()), "{milliseconds} ms");
        }
        for milliseconds in [60_001, 86_400_000] {
            assert_eq!(checked(milliseconds), Err(status::ILLEGAL_DELIVERY_TIME), "{milliseconds} ms");
        }
        assert_eq!(check_time(&SystemProperties::default(), NOW, 60).ok(), Some(()));
    }

    #[test]
    fn a_recovery_duration_is_an_hour_at_most_and_counts_for_transactions_only() {
        let of = |seconds, message_type| {
            let duration = super::super::wire::Duration { seconds, nanos: 0 };
            let orphaned_transaction_recovery_duration = Some(duration);
            let system =
                SystemProperties { message_type, orphaned_transaction_recovery_duration, ..Default::default() };
            immunity_s(&system).map_err(|refused| refused.code)
        };
        assert_eq!(of(30, message_type::TRANSACTION), Ok(Some(30)));
        assert_eq!(of(0, message_type::TRANSACTION), Ok(None));
        assert_eq!(of(30, message_type::NORMAL), Ok(None));
        for seconds in [-1, 3_601] {
            assert_eq!(of(seconds, message_type::TRANSACTION), Err(status::BAD_REQUEST));
        }
    }
}
