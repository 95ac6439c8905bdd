//! Hands out messages to consumers.
//!
//! In:     `ReceiveMessage`, `QueryAssignment`.
//! Out:    messages with receipt handles, from any queue of the topic, whichever the client names.
//! Always: a receive that finds nothing waits until messages arrive or come back. A message that a client does not get,
//!         because its answer breaks off, is visible again at once.
//! Not here: what is in flight (`pop`), acknowledgements (`leases`), dead letters (`moves`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::call::Call;
use super::clients::Client;
use super::consumers::{self, Member};
use super::settings::{POLLING_MS, RECEIVED_MAX};
use super::status::{self, Refused, ok};
use super::wire::{
    Assignment, Broker, FilterExpression, Message as Outgoing, MessageQueue, QueryAssignmentRequest,
    QueryAssignmentResponse, ReceiveMessageRequest, ReceiveMessageResponse, Received, Timestamp, filter_type,
    permission,
};
use super::{message, moves, route};
use crate::base::clock::{Clock, SystemClock};
use crate::filter::Selector;
use crate::server::budget::Charge;
use crate::server::pop::handle::Lease;
use crate::server::pop::queue::{Fate, Holder, Terms};
use crate::server::pop::reader::{Reader, Wish};
use crate::server::pop::source::{Message, Source};
use crate::server::service::{Service, Use};
use crate::server::traffic::TopicTraffic;

/// The frames of the answer to a receive.
pub(super) type Frames = ReceiverStream<Result<ReceiveMessageResponse, tonic::Status>>;

/// The limits of invisible durations, in milliseconds: ten seconds and twelve hours.
const INVISIBLE_MIN_MS: i64 = 10_000;
const INVISIBLE_MAX_MS: i64 = 12 * 3_600_000;
/// How long a message of a push consumer stays invisible while its client lives, in milliseconds: three hours.
const RENEWED_MS: i64 = 3 * 3_600_000;
/// How long before the client's deadline an answer is sent.
const MARGIN: Duration = Duration::from_secs(1);
/// A client's time limit for a request, if its settings have none.
const REQUEST_TIMEOUT_MS: i64 = 3_000;
/// The most frames that wait for HTTP/2.
const FRAMES_AHEAD: usize = 4;
/// The queue that means all queues of a topic.
const ALL_QUEUES: i32 = -1;

/// The longest id of an attempt to receive, in bytes. Clients use 36.
const ATTEMPT_ID_MAX: usize = 256;
/// The most tags of a filter.
const TAGS_MAX: usize = 256;
/// How long a receive continues after its time, if there are messages that it only has to pass or to move.
const WORKS_ON_MS: i64 = 500;

/// What a client wants, checked.
struct Receive {
    client: Arc<Client>,
    topic: String,
    traffic: Arc<TopicTraffic>,
    reader: Arc<Reader>,
    wish: Wish,
    holder: Holder,
    invisible_ms: i64,
    attempts_max: u32,
    attempt_id: Option<Arc<str>>,
    polling: Duration,
}

/// Messages on their way to a client. Those that it does not get are visible again at once.
struct Handed {
    reader: Arc<Reader>,
    messages: VecDeque<(Arc<Source>, Message)>,
    /// Their memory, which the connection holds until HTTP/2 has taken them.
    _charge: Charge,
}

/// Wakes another client that waits for the same messages, because this one no longer watches over them.
struct WakesNext<'a>(&'a Notify);

/// Checks what a receive wants, as `check` does, without a store. For fuzzers.
#[cfg(feature = "testing")]
pub(super) fn probe(request: &ReceiveMessageRequest) -> Result<(), Refused> {
    let resource = request.message_queue.as_ref().and_then(|queue| queue.topic.as_ref());
    consumers::names(request.group.as_ref(), resource)?;
    selector(request.filter_expression.as_ref())?;
    messages_max(request.batch_size)?;
    invisible_ms(request)?;
    attempt_id(request.attempt_id.clone())?;
    let wanted_ms = request.long_polling_timeout.map(|time| time.as_millis());
    let own_limit_ms = request.invisible_duration.map_or(REQUEST_TIMEOUT_MS, |time| time.as_millis());
    polling(wanted_ms, None, own_limit_ms);
    polling(None, Some(MARGIN), own_limit_ms);
    Ok(())
}

/// Returns the queues from which a member of a group receives. All members get the same.
pub(super) async fn assignment(
    call: Call,
    request: QueryAssignmentRequest,
) -> Result<QueryAssignmentResponse, Refused> {
    let (group, topic) = consumers::names(request.group.as_ref(), request.topic.as_ref())?;
    let Member { entry: group, .. } = consumers::member(&call, group).await?;
    let entry = call.topic(topic, Use::Read).await?;
    if entry.read_queues < 1 {
        return Err(Refused::new(status::FORBIDDEN, format!("the topic {topic} cannot be read")));
    }
    let queues = if group.fifo { 0..entry.read_queues } else { ALL_QUEUES..ALL_QUEUES + 1 };
    let broker = Broker { name: call.messaging.broker_name.clone(), id: 0, endpoints: request.endpoints };
    let queue = |id| MessageQueue {
        topic: request.topic.clone(),
        id,
        permission: permission::READ_WRITE,
        broker: Some(broker.clone()),
        accept_message_types: route::accepted(&entry, call.messaging.checks_message_types),
    };
    let assignments = queues.map(|id| Assignment { message_queue: Some(queue(id)) }).collect();
    Ok(QueryAssignmentResponse { status: Some(ok()), assignments })
}

/// Returns the frames of the answer: a status, the messages, last the time of delivery.
pub(super) async fn receive(call: Call, request: ReceiveMessageRequest) -> Result<Frames, Refused> {
    call.service().check_writable()?;
    let receive = check(&call, request).await?;
    let handed = gather(&call, &receive).await?;
    if handed.messages.is_empty() {
        return Err(Refused::new(status::MESSAGE_NOT_FOUND, "there is no message for the group now"));
    }
    Ok(frames(call, receive, handed))
}

/// Returns the one frame of a receive that is refused.
pub(super) fn refusal(refused: Refused) -> Frames {
    let (sender, frames) = mpsc::channel(1);
    // The channel has room for the one frame.
    let _ = sender.try_send(Ok(frame(Received::Status(refused.status()))));
    ReceiverStream::new(frames)
}

async fn check(call: &Call, request: ReceiveMessageRequest) -> Result<Receive, Refused> {
    let resource = request.message_queue.as_ref().and_then(|queue| queue.topic.as_ref());
    let (group, topic) = consumers::names(request.group.as_ref(), resource)?;
    let selector = selector(request.filter_expression.as_ref())?;
    let messages_max = messages_max(request.batch_size)?;
    let invisible_ms = invisible_ms(&request)?;
    let attempt_id = attempt_id(request.attempt_id)?;
    let member = consumers::member(call, group).await?;
    let entry = call.topic(topic, Use::Read).await?;
    let (service, session) = (call.service(), Arc::clone(&member.client.session));
    let client = session.id;
    let reader = service.pop.reader(group, topic);
    reader.open_queues(&service.store, entry.read_queues)?;
    service.pop.receives(&reader, (client, call.session.id), Some(&session.account));
    consumers::check_present(service, &member.client)?;
    let connection = if request.auto_renew { call.session.id } else { 0 };
    let own_limit_ms = member.client.request_timeout_ms().unwrap_or(REQUEST_TIMEOUT_MS);
    Ok(Receive {
        client: member.client,
        topic: topic.to_owned(),
        traffic: entry.traffic,
        reader,
        wish: Wish { fifo: member.entry.fifo, selector, messages_max },
        holder: Holder { client, connection },
        invisible_ms,
        attempts_max: member.entry.retries_max.saturating_add(1),
        attempt_id,
        polling: polling(request.long_polling_timeout.map(|time| time.as_millis()), call.timeout, own_limit_ms),
    })
}

fn attempt_id(said: Option<String>) -> Result<Option<Arc<str>>, Refused> {
    let Some(id) = said.filter(|id| !id.is_empty()) else { return Ok(None) };
    if id.len() > ATTEMPT_ID_MAX {
        let what = format!("the attempt id has {} bytes, at most {ATTEMPT_ID_MAX} are allowed", id.len());
        return Err(Refused::new(status::BAD_REQUEST, what));
    }
    Ok(Some(Arc::from(id)))
}

fn messages_max(batch_size: i32) -> Result<usize, Refused> {
    match usize::try_from(batch_size.min(RECEIVED_MAX)) {
        Ok(messages_max @ 1..) => Ok(messages_max),
        _ => Err(Refused::new(status::BAD_REQUEST, format!("the batch size must be 1 or more, got {batch_size}"))),
    }
}

/// Returns the selector of a filter. `None` means all messages.
fn selector(filter: Option<&FilterExpression>) -> Result<Option<Selector>, Refused> {
    let Some(FilterExpression { r#type, expression }) = filter else { return Ok(None) };
    let illegal = |what: String| Refused::new(status::ILLEGAL_FILTER_EXPRESSION, what);
    if *r#type == filter_type::SQL {
        return Selector::sql(expression).map(Some).map_err(|error| illegal(error.to_string()));
    }
    if !matches!(*r#type, filter_type::UNSPECIFIED | filter_type::TAG) {
        return Err(illegal(format!("filter type {type} is not known\nhint: TAG (1) and SQL (2) are")));
    }
    let expression = expression.trim();
    let is_all = expression.is_empty() || expression.split("||").any(|tag| tag.trim() == "*");
    match Selector::of_tag_expression(expression) {
        None if !is_all => Err(illegal(format!("the filter {expression:?} has no tag\nhint: a || b, or *"))),
        Some(_) if expression.split("||").count() > TAGS_MAX => {
            Err(illegal(format!("the filter has more than {TAGS_MAX} tags")))
        }
        selector => Ok(selector),
    }
}

fn invisible_ms(request: &ReceiveMessageRequest) -> Result<i64, Refused> {
    if request.auto_renew {
        return Ok(RENEWED_MS);
    }
    let wanted_ms = request.invisible_duration.map_or(0, |time| time.as_millis());
    if (INVISIBLE_MIN_MS..=INVISIBLE_MAX_MS).contains(&wanted_ms) {
        return Ok(wanted_ms);
    }
    let what = format!("the invisible duration must be 10 s to 12 h, got {wanted_ms} ms");
    Err(Refused::new(status::ILLEGAL_INVISIBLE_TIME, what))
}

/// Returns how long a receive waits for messages: as long as it says, or, as Go's client means it, up to its deadline
/// less half of the client's own time limit. Always ends before the deadline.
fn polling(wanted_ms: Option<i64>, deadline: Option<Duration>, own_limit_ms: i64) -> Duration {
    let millis = |count: i64| Duration::from_millis(u64::try_from(count).unwrap_or(0));
    let most = Duration::from_millis(POLLING_MS.into());
    let from_deadline = deadline.map(|deadline| deadline.saturating_sub(millis(own_limit_ms / 2)));
    let wanted = wanted_ms.map(millis).or(from_deadline).unwrap_or(most).min(most);
    deadline.map_or(wanted, |deadline| wanted.min(deadline.saturating_sub(MARGIN)))
}

/// Takes messages. Waits for some if there are none.
async fn gather(call: &Call, receive: &Receive) -> Result<Handed, Refused> {
    let (service, reader) = (call.service(), &receive.reader);
    let _next = WakesNext(&reader.changed);
    let polling_ms = i64::try_from(receive.polling.as_millis()).unwrap_or(0);
    let until_ms = SystemClock.monotonic_ms().saturating_add(polling_ms);
    let mut stopping = call.stopping.clone();
    loop {
        let (handed, has_moved) = take(call, receive).await?;
        if !handed.messages.is_empty() || *stopping.borrow() {
            return Ok(handed);
        }
        watch(service, reader);
        let now_ms = SystemClock.monotonic_ms();
        // A message that arrives between the look and the registration wakes nobody, so look again.
        if now_ms < until_ms.saturating_add(WORKS_ON_MS) && (has_moved || reader.has_new(&service.store, now_ms)?) {
            tokio::task::yield_now().await;
            continue;
        }
        if now_ms >= until_ms {
            return Ok(handed);
        }
        let wakes_ms = reader.next_visible_ms().map_or(until_ms, |at| at.min(until_ms));
        let wait_ms = u64::try_from(wakes_ms - now_ms).unwrap_or(0).max(1);
        tokio::select! {
            () = reader.changed.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
            _ = stopping.wait_for(|stops| *stops) => {}
        }
        // Either may have been deleted meanwhile, and created again with other queues.
        let entry = call.topic(&receive.topic, Use::Read).await?;
        service.group(&receive.client.session, &reader.group).await?;
        reader.open_queues(&service.store, entry.read_queues)?;
    }
}

/// Lets new messages of any queue wake the clients that wait.
fn watch(service: &Service, reader: &Reader) {
    for source in reader.sources() {
        if let Some(queue_offset) = source.to_watch() {
            service.arrivals.watch(&source.queue.topic, source.queue.queue_id.0, queue_offset, &reader.changed);
        }
    }
}

/// Takes what there is. Messages that were delivered too often move on. Returns whether some did.
async fn take(call: &Call, receive: &Receive) -> Result<(Handed, bool), Refused> {
    let (service, now_ms) = (call.service(), SystemClock.monotonic_ms());
    let terms = Terms {
        now_ms,
        visible_at_ms: now_ms.saturating_add(receive.invisible_ms),
        holder: receive.holder,
        attempts_max: receive.attempts_max,
        attempt_id: receive.attempt_id.clone(),
    };
    let reader = &receive.reader;
    let gathered = reader.take(&service.store, &receive.wish, &terms)?;
    for (source, queue_offset, reason) in gathered.skipped {
        service.skipped(&reader.group, &source.queue.topic, source.queue.queue_id, queue_offset, reason);
    }
    let bytes = gathered.messages.iter().map(|(_, message)| message.record.bytes().len()).sum();
    let (delivered, moving): (Vec<_>, Vec<_>) =
        gathered.messages.into_iter().partition(|(_, message)| message.taken.fate == Fate::Deliver);
    let charge = call.session.account.charge(bytes);
    let handed = Handed { reader: Arc::clone(reader), messages: delivered.into(), _charge: charge };
    let has_moved = !moving.is_empty();
    if has_moved {
        moves::move_all(call, reader, moving).await?;
    }
    // A client or a connection that ended before this look gets nothing. The end of one that ends after it finds what
    // was taken here, and makes it visible.
    consumers::check_present(service, &receive.client)?;
    if !call.session.outbox.is_open() || call.session.account.is_too_much() {
        return Err(Refused::new(status::TOO_MANY_REQUESTS, "the connection ends, or holds too much memory"));
    }
    Ok((handed, has_moved))
}

/// Sends messages as frames, as fast as the client reads them.
fn frames(call: Call, receive: Receive, mut handed: Handed) -> Frames {
    let (sender, frames) = mpsc::channel(FRAMES_AHEAD);
    tokio::spawn(async move {
        if sender.send(Ok(frame(Received::Status(ok())))).await.is_err() {
            return;
        }
        while let Some((source, message)) = handed.messages.front() {
            let sent = match outgoing(&call, &receive, source, message) {
                Ok(message) => sender.send(Ok(frame(Received::Message(message)))).await.is_ok(),
                Err(refused) => {
                    let _ = sender.send(Err(tonic::Status::internal(refused.message))).await;
                    false
                }
            };
            if !sent {
                return;
            }
            let bytes = message.record.bytes().len();
            call.service().tables.traffic.read(&receive.traffic, &receive.reader.group, 1, bytes);
            handed.messages.pop_front();
        }
        let now = Timestamp::from_millis(SystemClock.wall().0);
        // A client that has gone meanwhile may have all messages, so they stay invisible.
        let _ = sender.send(Ok(frame(Received::DeliveryTimestamp(now)))).await;
    });
    ReceiverStream::new(frames)
}

fn frame(content: Received) -> ReceiveMessageResponse {
    ReceiveMessageResponse { content: Some(content) }
}

/// Returns a message as its client gets it.
fn outgoing(call: &Call, receive: &Receive, source: &Source, message: &Message) -> Result<Outgoing, Refused> {
    let view = message.record.view()?;
    let mut outgoing = message::outgoing(&view, &receive.topic, source.queue.queue_id);
    let lease = Lease {
        queue_id: (!source.is_retry()).then_some(source.queue.queue_id),
        queue_offset: message.taken.queue_offset,
        number: message.taken.number,
    };
    if let Some(system) = &mut outgoing.system_properties {
        system.receipt_handle = Some(call.service().pop.handles.write(&receive.reader.group, &receive.topic, lease));
        system.delivery_attempt = i32::try_from(message.taken.attempt).ok();
        let seconds = receive.invisible_ms.div_euclid(1_000);
        system.invisible_duration = Some(super::wire::Duration { seconds, nanos: 0 });
    }
    Ok(outgoing)
}

impl Drop for Handed {
    fn drop(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let now_ms = SystemClock.monotonic_ms();
        for (source, message) in &self.messages {
            source.release(&[message.taken], now_ms);
        }
        self.reader.changed.notify_one();
    }
}

impl Drop for WakesNext<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(r#type: i32, expression: &str) -> Result<Option<Selector>, i32> {
        let filter = FilterExpression { r#type, expression: expression.to_owned() };
        selector(Some(&filter)).map_err(|refused| refused.code)
    }

    #[test]
    fn a_filter_is_a_list_of_tags() {
        let named = |tags: &[&str]| Ok(Some(Selector::tags(tags.iter().map(|tag| (*tag).to_owned()))));
        assert_eq!(selector(None).ok(), Some(None));
        for all in ["", " ", "*", "a || *"] {
            assert_eq!(filtered(filter_type::TAG, all), Ok(None), "{all:?}");
        }
        assert_eq!(filtered(filter_type::TAG, "a || b"), named(&["a", "b"]));
        assert_eq!(filtered(filter_type::UNSPECIFIED, " a"), named(&["a"]));
        assert_eq!(filtered(filter_type::TAG, "||"), Err(status::ILLEGAL_FILTER_EXPRESSION));
        assert_eq!(filtered(filter_type::SQL, "a > 1").ok(), Selector::sql("a > 1").ok().map(Some));
        assert_eq!(filtered(filter_type::SQL, "a > "), Err(status::ILLEGAL_FILTER_EXPRESSION));
        assert_eq!(filtered(3, "a"), Err(status::ILLEGAL_FILTER_EXPRESSION));
    }

    #[test]
    fn a_receive_ends_before_its_deadline() {
        let seconds = Duration::from_secs;
        for (wanted_ms, deadline, expected) in [
            (None, None, 20),
            (Some(5_000), None, 5),
            (Some(60_000), None, 20),
            (Some(0), Some(30), 0),
            (Some(30_000), Some(33), 20),
            (Some(20_000), Some(20), 19),
            (None, Some(40), 20),
            (None, Some(10), 8),
            (None, Some(1), 0),
        ] {
            let wait = polling(wanted_ms, deadline.map(seconds), 4_000);
            assert_eq!(wait, seconds(expected), "{wanted_ms:?} {deadline:?}");
        }
    }

    #[test]
    fn an_invisible_duration_is_ten_seconds_to_twelve_hours() {
        let of = |seconds, auto_renew| {
            let invisible_duration = Some(super::super::wire::Duration { seconds, nanos: 0 });
            let request = ReceiveMessageRequest { invisible_duration, auto_renew, ..Default::default() };
            invisible_ms(&request).map_err(|refused| refused.code)
        };
        assert_eq!(of(10, false), Ok(10_000));
        assert_eq!(of(43_200, false), Ok(43_200_000));
        assert_eq!(of(0, true), Ok(RENEWED_MS));
        for seconds in [-1, 0, 9, 43_201, i64::MAX] {
            assert_eq!(of(seconds, false), Err(status::ILLEGAL_INVISIBLE_TIME), "{seconds}");
        }
    }
}
