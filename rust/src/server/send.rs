//! Stores the messages, batches and half messages that clients send.
//!
//! In:     requests that send.
//! Out:    the offsets of each message.
//! Always: system topics are refused. A batch is stored completely or not at all, and so are the half messages of one
//!         transaction. The answer is sent when the store may acknowledge.
//! Not here: which topics may exist.

use super::accounts::ACCESS_KEY;
use super::batch::{Part, parts_of};
use super::fields::{Refusal, is_true, number, number_or, text};
use super::recall;
use super::service::{Service, Use};
use super::session::Session;
use super::tables::TopicEntry;
use super::traffic::Kind;
use crate::base::error::Error;
use crate::base::names::{DEAD_LETTER_PREFIX, RETRY_PREFIX};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use crate::record::layout::{SYS_PREPARED, SYS_TRANSACTION_MASK};
use crate::record::message::{Envelope, Origin};
use crate::record::message_id::MessageId;
use crate::record::offset_message_id;
use crate::record::properties::{
    PRODUCER_GROUP, Properties, REAL_QUEUE_ID, REAL_TOPIC, SHARDING_KEY, TRANSACTION_ID, TRANSACTION_PREPARED,
    TRANSACTION_SET, TRANSACTION_TIMER, UNIQUE_KEY,
};
use crate::remoting::codes::{request as codes, response};
use crate::remoting::command::Command;
use crate::store::{NewHalfMessage, NewMessage, Once, Sent, Unacknowledged, Wait};
use crate::transaction::set::SET_MAX;

/// The maximum number of retries for a message if neither client nor group sets one.
const RETRIES_MAX: i32 = 16;

/// The fields of a send request, with long or short names.
struct Header<'a> {
    group: &'a str,
    topic: &'a str,
    queue_id: i32,
    sys_flag: i32,
    born_timestamp: i64,
    flag: i32,
    properties: &'a str,
    reconsume_times: i32,
    retries_max: i32,
    batch: bool,
    /// The client sends the message again because it does not know whether it was stored (a field of txstore).
    once: bool,
    /// The answer waits until the message is synced, also with `ASYNC_FLUSH` (a field of txstore).
    durable: bool,
}

impl<'a> Header<'a> {
    fn of(request: &'a Command) -> Result<Self, Refusal> {
        let long = request.code == codes::SEND_MESSAGE;
        let name = |full, short| if long { full } else { short };
        Ok(Self {
            group: text(request, name("producerGroup", "a"))?,
            topic: text(request, name("topic", "b"))?,
            queue_id: number(request, name("queueId", "e"))?,
            sys_flag: number(request, name("sysFlag", "f"))?,
            born_timestamp: number(request, name("bornTimestamp", "g"))?,
            flag: number(request, name("flag", "h"))?,
            properties: request.ext_fields.get(name("properties", "i")).unwrap_or_default(),
            reconsume_times: number_or(request, name("reconsumeTimes", "j"), 0)?,
            retries_max: number_or(request, name("maxReconsumeTimes", "l"), RETRIES_MAX)?,
            batch: is_true(request, name("batch", "m")) || request.code == codes::SEND_BATCH_MESSAGE,
            once: is_true(request, "once"),
            durable: is_true(request, "durable"),
        })
    }

    fn envelope(&self, entry: &TopicEntry, session: &Session, part: &Part<'_>) -> Result<Envelope, Refusal> {
        let origin = Origin {
            unique_id: None,
            sys_flag: self.sys_flag,
            born_timestamp: TimestampMs(self.born_timestamp),
            born_host: session.born_host,
            reconsume_times: self.reconsume_times,
        };
        Envelope::received(entry.topic.clone(), part.properties, part.flag, origin).map_err(Refusal::from)
    }
}

pub(super) async fn send(service: &Service, session: &Session, request: &Command) -> Result<Command, Refusal> {
    let header = Header::of(request)?;
    if request.code == codes::TXSTORE_PREPARE {
        return send_halves(service, session, request, &header).await;
    }
    if header.batch {
        return send_batch(service, session, request, &header).await;
    }
    let part = Part { flag: header.flag, properties: header.properties, body: &request.body };
    let properties = Properties(header.properties.as_bytes());
    let is_half = says_half(properties) && header.reconsume_times == 0;
    if !is_half && header.sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED {
        // Stored as an ordinary message, it would be visible at once.
        let remark = "sysFlag says that the message is a half message, its property TRAN_MSG does not";
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    if is_half {
        return send_half(service, session, request, &header, &part).await;
    }
    let dead = dead_letter_topic(service, &header);
    let topic = dead.as_deref().unwrap_or(header.topic);
    let entry = service.topic(session, topic, Use::Send).await?;
    let mut envelope = header.envelope(&entry, session, &part)?;
    if dead.is_some() {
        envelope.delay_level = 0;
        envelope.timer = None;
    }
    let queue_id = queue(service, &entry, if dead.is_some() { 0 } else { header.queue_id })?;
    let message = NewMessage { envelope: &envelope, body: part.body, queue_id };
    let sent = if header.once {
        append_once(service, &header, &[message]).await?
    } else {
        let written = service.store.append_one(&message, Wait::Yes)?;
        vec![acknowledged(service, &header, written).await?]
    };
    count(&entry, kind_of(&envelope), &sent);
    let mut answer = stored(service, request, &sent);
    if let Some(handle) = sent.first().and_then(|sent| recall::handle_of(service, topic, sent)) {
        answer.ext_fields.set("recallHandle", handle);
    }
    Ok(answer)
}

/// Stores those of the messages that are not stored yet, and returns the offsets of all.
async fn append_once(
    service: &Service,
    header: &Header<'_>,
    messages: &[NewMessage<'_>],
) -> Result<Vec<Sent>, Refusal> {
    let written = service.store.append_once_for_client(messages)?;
    let done = acknowledged(service, header, written).await?.into_iter().map(|once| match once {
        Once::Appended(sent) | Once::Present(sent) => Ok(sent),
        Once::InDoubt => {
            let remark = "the message may have been stored, and retention has removed it since";
            Err(Refusal::new(response::QUERY_NOT_FOUND, remark))
        }
    });
    done.collect()
}

/// Waits until a write may be acknowledged, and returns what was written.
async fn acknowledged<T>(service: &Service, header: &Header<'_>, written: Unacknowledged<'_, T>) -> Result<T, Refusal> {
    let (value, durable_first) = written.into_parts();
    // A message that was present may have been written by another request that has not synced it.
    let wanted = if header.durable { Some(service.store.appended_end()) } else { durable_first };
    if let Some(end) = wanted {
        service.durable.sync(end).await?;
    }
    Ok(value)
}

/// Returns whether the properties mark a half message. Ignores case, as RocketMQ does.
fn says_half(properties: Properties<'_>) -> bool {
    properties.get_str(TRANSACTION_PREPARED).is_some_and(|said| said.eq_ignore_ascii_case("true"))
}

fn kind_of(envelope: &Envelope) -> Kind {
    match envelope.delay_level {
        0 if envelope.timer.is_some() => Kind::Delay,
        0 if Properties(&envelope.properties).get(SHARDING_KEY).is_some() => Kind::Fifo,
        0 => Kind::Normal,
        _ => Kind::Delay,
    }
}

/// Counts stored messages. Half messages that were already stored were counted before.
fn count(entry: &TopicEntry, kind: Kind, sent: &[Sent]) {
    for one in sent.iter().filter(|one| one.size > 0) {
        entry.traffic.sent(kind, one.size.into());
    }
}

/// Returns the dead-letter topic if the message has reached its group's maximum of retries.
fn dead_letter_topic(service: &Service, header: &Header<'_>) -> Option<String> {
    let group = header.topic.strip_prefix(RETRY_PREFIX)?;
    // Members that lock queues retry by themselves, and send back only messages that they no longer retry.
    let over = header.reconsume_times > header.retries_max || service.tables.is_orderly(group);
    over.then(|| format!("{DEAD_LETTER_PREFIX}{group}"))
}

async fn send_half(
    service: &Service,
    session: &Session,
    request: &Command,
    header: &Header<'_>,
    part: &Part<'_>,
) -> Result<Command, Refusal> {
    let group = Properties(part.properties.as_bytes()).get_str(PRODUCER_GROUP).unwrap_or(header.group);
    // A replica lets the transaction escape here, perhaps not for the first time (a field of txstore), or a slave of
    // RocketMQ does. Neither knows the local transaction: any producer of the group is asked.
    let by_slave = escapes_from_slave(Properties(part.properties.as_bytes()), header.topic)?;
    let is_escaped = by_slave || is_true(request, "escaped");
    let owner = if is_escaped { 0 } else { owner(service, session, request, group).await? };
    let entry = service.topic(session, header.topic, Use::Send).await?;
    let envelope = header.envelope(&entry, session, part)?;
    let message =
        NewMessage { envelope: &envelope, body: part.body, queue_id: queue(service, &entry, header.queue_id)? };
    let half = NewHalfMessage { message, group, unique_id: envelope.unique_id(), owner };
    let written = if is_escaped {
        match service.store.prepare_once(&half, Wait::Yes) {
            // A slave of RocketMQ takes any other code for a failure, and sends it again and again.
            Err(Error::AlreadyEnded { .. }) if by_slave => {
                return ended(service, request, half.unique_id.unwrap_or_default());
            }
            written => written?,
        }
    } else {
        service.store.prepare(&half, Wait::Yes)?
    };
    // The server does not see the end of the local transaction, and the client's end may be lost: the age counts from
    // now.
    let half_queue_offset = written.value().queue_offset.0;
    service.store.local_transaction_ended(half_queue_offset)?;
    let sent = [service.acknowledged(written).await?];
    count(&entry, Kind::Transaction, &sent);
    Ok(stored(service, request, &sent))
}

/// Returns whether a slave of RocketMQ that acts as master lets a half message escape to this broker: it sends what its
/// master has added to it, too. Refuses those that are only a part of a transaction, or have a time: as single half
/// messages they would be something else.
fn escapes_from_slave(properties: Properties<'_>, topic: &str) -> Result<bool, Refusal> {
    let has = |name| properties.get(name).is_some();
    if properties.get_str(REAL_TOPIC) != Some(topic) || !has(TRANSACTION_ID) || !has(UNIQUE_KEY) {
        return Ok(false);
    }
    if has(TRANSACTION_SET) || has(TRANSACTION_TIMER) {
        let remark = "a transaction of several messages, or with a time, cannot escape: it waits for its broker";
        return Err(Refusal::new(response::MESSAGE_ILLEGAL, remark));
    }
    Ok(true)
}

/// Answers where the half message of a transaction that has ended is.
fn ended(service: &Service, request: &Command, transaction: &str) -> Result<Command, Refusal> {
    let row = service.store.transaction(transaction)?;
    let Some(half) = row.halves.first() else {
        return Err(Error::TransactionNotFound { what: transaction.to_owned() }.into());
    };
    let sent = Sent {
        unique_id: MessageId::Text(transaction.into()),
        physical_offset: PhysicalOffset(half.physical_offset),
        queue_offset: QueueOffset(half.queue_offset),
        queue_id: row.queue_id,
        size: 0,
        due_ms: None,
    };
    Ok(stored(service, request, &[sent]))
}

/// Stores the half messages of one transaction, or finds those that a resend repeats. Returns the offsets of the first.
async fn send_halves(
    service: &Service,
    session: &Session,
    request: &Command,
    header: &Header<'_>,
) -> Result<Command, Refusal> {
    let illegal = |what: String| Refusal::new(response::MESSAGE_ILLEGAL, what);
    let parts = parts_of(&request.body)?;
    // Before the first of their topics may be created.
    if parts.len() > SET_MAX {
        return Err(illegal(format!("a transaction has 1 to {SET_MAX} messages, got {}", parts.len())));
    }
    let mut real = Vec::with_capacity(parts.len());
    for (number, part) in (1..).zip(&parts) {
        let is_named = Properties(part.properties.as_bytes()).get(UNIQUE_KEY).is_some();
        let named = part.real().filter(|_| is_named);
        real.push(named.ok_or_else(|| {
            illegal(format!("message {number} of the transaction has no {REAL_TOPIC}, {REAL_QUEUE_ID} or {UNIQUE_KEY}"))
        })?);
    }
    let owner = owner(service, session, request, header.group).await?;
    let mut stored_in = Vec::with_capacity(parts.len());
    for (part, (topic, queue_id)) in parts.iter().zip(real) {
        let entry = service.topic(session, topic, Use::Send).await?;
        let envelope = header.envelope(&entry, session, part)?;
        let queue_id = queue(service, &entry, queue_id)?;
        stored_in.push((entry, envelope, queue_id));
    }
    let messages = stored_in.iter().zip(&parts);
    let messages: Vec<NewMessage<'_>> = messages
        .map(|((_, envelope, queue_id), part)| NewMessage { envelope, body: part.body, queue_id: *queue_id })
        .collect();
    let written = service.store.prepare_many(&messages, header.group, owner, Wait::Yes)?;
    // As for one half message.
    if let Some(first) = written.value().first() {
        service.store.local_transaction_ended(first.queue_offset.0)?;
    }
    let sent = service.acknowledged(written).await?;
    for (one, (entry, ..)) in sent.iter().zip(&stored_in) {
        count(entry, Kind::Transaction, std::slice::from_ref(one));
    }
    Ok(stored(service, request, sent.get(..1).unwrap_or_default()))
}

/// Returns the producer that is asked about the transaction first: that of the sending connection.
///
/// A client with several connections names the one that answers checks (`connection`, a field of txstore). If that one
/// has ended, any producer of the group is asked.
async fn owner(service: &Service, session: &Session, request: &Command, group: &str) -> Result<u32, Refusal> {
    let account = request.ext_fields.get(ACCESS_KEY);
    if request.ext_fields.get("connection").is_none() {
        return service.producer(session, group, account).await;
    }
    match service.session(number(request, "connection")?) {
        Some(answering) => service.producer(&answering, group, account).await,
        None => Ok(0),
    }
}

async fn send_batch(
    service: &Service,
    session: &Session,
    request: &Command,
    header: &Header<'_>,
) -> Result<Command, Refusal> {
    let illegal = |what: &str| Refusal::new(response::MESSAGE_ILLEGAL, what);
    if header.topic.starts_with(RETRY_PREFIX) || header.topic.starts_with(DEAD_LETTER_PREFIX) {
        return Err(illegal("a batch cannot go to a group's own topic"));
    }
    let entry = service.topic(session, header.topic, Use::Send).await?;
    let queue_id = queue(service, &entry, header.queue_id)?;
    let parts = parts_of(&request.body)?;
    let mut envelopes = Vec::with_capacity(parts.len());
    for part in &parts {
        if says_half(Properties(part.properties.as_bytes())) {
            return Err(illegal("a batch cannot hold half messages"));
        }
        let envelope = header.envelope(&entry, session, part)?;
        if envelope.delay_level > 0 || envelope.timer.is_some() {
            return Err(illegal("a batch cannot hold delayed messages"));
        }
        envelopes.push(envelope);
    }
    let bodies = parts.iter().map(|part| part.body);
    let messages: Vec<NewMessage<'_>> =
        envelopes.iter().zip(bodies).map(|(envelope, body)| NewMessage { envelope, body, queue_id }).collect();
    let sent = if header.once {
        append_once(service, header, &messages).await?
    } else {
        let written = service.store.append(&messages, Wait::Yes)?;
        acknowledged(service, header, written).await?
    };
    for (sent, envelope) in sent.iter().zip(&envelopes) {
        count(&entry, kind_of(envelope), std::slice::from_ref(sent));
    }
    Ok(stored(service, request, &sent))
}

/// Returns the queue for a message. Below 0 the client leaves the choice to the server.
fn queue(service: &Service, entry: &TopicEntry, asked: i32) -> Result<QueueId, Refusal> {
    let queues = entry.write_queues;
    if queues < 1 {
        return Err(Refusal::new(response::NO_PERMISSION, "the topic cannot be sent to"));
    }
    if asked >= queues {
        let remark = format!("queue {asked} is not there: the topic has {queues}, numbered from 0");
        return Err(Refusal::new(response::INVALID_PARAMETER, remark));
    }
    Ok(QueueId(if asked < 0 { service.next_turn(queues) } else { asked }))
}

fn stored(service: &Service, request: &Command, sent: &[Sent]) -> Command {
    let mut response = request.response(response::SUCCESS, None);
    let Some(first) = sent.first() else { return response };
    let joined =
        |of: fn(&Service, &Sent) -> String| sent.iter().map(|one| of(service, one)).collect::<Vec<_>>().join(",");
    let fields = &mut response.ext_fields;
    fields.set("msgId", joined(|service, one| offset_message_id(service.host, one.physical_offset)));
    fields.set("queueId", first.queue_id.to_string());
    fields.set("queueOffset", first.queue_offset.to_string());
    fields.set("transactionId", joined(|_, one| one.unique_id.to_string()));
    response
}
