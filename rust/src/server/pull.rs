//! Answers pull requests, at once or when messages arrive.
//!
//! In:     requests that pull.
//! Out:    complete records, one after another, and the next offset.
//! Always: nothing after the visible end is sent. A held pull blocks no thread. System topics are refused.
//! Not here: which member of a group reads which queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::counters::Counters;
use super::fields::{Refusal, number, number_or, text};
use super::offset;
use super::service::{Service, Use};
use super::session::Session;
use super::tables::{Subscription, TopicEntry};
use crate::base::error::Error;
use crate::base::names;
use crate::base::units::{QueueId, QueueOffset};
use crate::filter::{ReadBudget, Selector};
use crate::remoting::codes::response;
use crate::remoting::command::Command;
use crate::store::StoredRecord;

const COMMIT_OFFSET: i32 = 1;
const SUSPEND: i32 = 1 << 1;
const WITH_SUBSCRIPTION: i32 = 1 << 2;
/// The maximum number of messages in one answer.
const MESSAGES_MAX: usize = 1_024;
/// The maximum number of bytes in one answer, not counting its first message.
const BYTES_MAX: usize = 1 << 20;
/// The maximum time to hold a pull, in milliseconds, whatever the request asks for.
const HELD_MS_MAX: u64 = 60_000;

struct Pull<'a> {
    group: &'a str,
    topic: &'a str,
    queue_id: QueueId,
    queue_offset: i64,
    messages: usize,
    bytes: usize,
    held_ms: u64,
}

impl<'a> Pull<'a> {
    fn of(request: &'a Command) -> Result<Self, Refusal> {
        let sys_flag: i32 = number_or(request, "sysFlag", 0)?;
        let held_ms: u64 = number_or(request, "suspendTimeoutMillis", 0)?;
        let messages: usize = number(request, "maxMsgNums")?;
        let bytes: usize = number_or(request, "maxMsgBytes", BYTES_MAX)?;
        Ok(Self {
            group: text(request, "consumerGroup")?,
            topic: text(request, "topic")?,
            queue_id: QueueId(number(request, "queueId")?),
            queue_offset: number(request, "queueOffset")?,
            messages: messages.clamp(1, MESSAGES_MAX),
            bytes: bytes.clamp(1, BYTES_MAX),
            held_ms: if sys_flag & SUSPEND == 0 { 0 } else { held_ms.min(HELD_MS_MAX) },
        })
    }
}

pub(super) async fn pull(service: &Service, session: &Session, request: &Command) -> Result<Command, Refusal> {
    let pull = Pull::of(request)?;
    names::validate_group(pull.group)?;
    let entry = service.topic(session, pull.topic, Use::Read).await?;
    if !(0..entry.read_queues).contains(&pull.queue_id.0) {
        let remark = format!("queue {} of {} is not there to read", pull.queue_id, pull.topic);
        return Err(Refusal::new(response::INVALID_PARAMETER, remark));
    }
    if service.grpc_members(pull.group) > 0 {
        let what = "a group has one kind of consumers at a time\nhint: stop them first";
        let remark = format!("group {} has consumers of the gRPC protocol: {what}", pull.group);
        return Err(Refusal::new(response::NO_PERMISSION, remark));
    }
    let wanted = subscription(service, request, &pull)?;
    acknowledge(service, session, request, &pull)?;
    read_or_hold(service, request, &pull, &entry, &wanted).await
}

/// Returns the subscription from the request, or from the group's heartbeats.
fn subscription(service: &Service, request: &Command, pull: &Pull<'_>) -> Result<Arc<Subscription>, Refusal> {
    let sys_flag: i32 = number_or(request, "sysFlag", 0)?;
    if sys_flag & WITH_SUBSCRIPTION != 0 {
        let kind = request.ext_fields.get("expressionType").filter(|kind| !kind.is_empty()).unwrap_or("TAG");
        let selector = selector(kind, request.ext_fields.get("subscription").unwrap_or("*"))
            .map_err(|error| Refusal::new(response::SUBSCRIPTION_PARSE_FAILED, error.to_string()))?;
        return Ok(Arc::new(Subscription { selector, version: 0 }));
    }
    let missing = || {
        let remark = format!("group {} has not said by heartbeat what it wants of {}", pull.group, pull.topic);
        Refusal::new(response::SUBSCRIPTION_NOT_EXIST, remark)
    };
    let found = service.tables.subscription(pull.group, pull.topic).ok_or_else(missing)?;
    if found.version < number_or(request, "subVersion", 0_i64)? {
        let remark = format!("what group {} wants of {} is newer than its last heartbeat", pull.group, pull.topic);
        return Err(Refusal::new(response::SUBSCRIPTION_NOT_LATEST, remark));
    }
    Ok(found)
}

/// Returns the selector of an expression. `None`: all messages.
fn selector(kind: &str, expression: &str) -> Result<Option<Selector>, Error> {
    match kind {
        "TAG" => Ok(Selector::of_tag_expression(expression)),
        "SQL92" => Selector::sql(expression).map(Some),
        _ => Err(Error::InvalidOption {
            option: "expressionType".to_owned(),
            what: format!("{kind:?} is not known\nhint: TAG and SQL92 are"),
        }),
    }
}

/// Stores the group's offset that a push consumer sends with its pulls.
fn acknowledge(service: &Service, session: &Session, request: &Command, pull: &Pull<'_>) -> Result<(), Refusal> {
    let sys_flag: i32 = number_or(request, "sysFlag", 0)?;
    let Ok(acknowledged) = u64::try_from(number_or(request, "commitOffset", -1_i64)?) else { return Ok(()) };
    // While an older offset waits for Python, none is stored here. The client repeats it with its next pull.
    if sys_flag & COMMIT_OFFSET == 0 || sys_flag & SUSPEND == 0 || session.has_updates_waiting() {
        return Ok(());
    }
    offset::update_with_pull(service, pull.topic, pull.group, pull.queue_id, acknowledged);
    Ok(())
}

async fn read_or_hold(
    service: &Service,
    request: &Command,
    pull: &Pull<'_>,
    entry: &TopicEntry,
    wanted: &Subscription,
) -> Result<Command, Refusal> {
    let mut from = match in_range(service, request, pull)? {
        Ok(from) => from,
        Err(moved) => return Ok(moved),
    };
    let began = from;
    let deadline = tokio::time::sleep(Duration::from_millis(pull.held_ms));
    tokio::pin!(deadline);
    loop {
        let mut budget = ReadBudget::of_request(wanted.selector.as_ref());
        let read = service.store.read_within(
            pull.topic,
            pull.queue_id,
            QueueOffset(from),
            pull.messages,
            wanted.selector.as_ref(),
            &mut budget,
        );
        let (records, next) = read.map_err(|error| refusal(error, from))?;
        if !records.is_empty() {
            return found(service, request, pull, entry, &records, next.0);
        }
        let is_first_look = from == began;
        from = next.0;
        if (is_first_look && from > began) || budget.entries() == 0 {
            // The answer is sent at once, so that the client can acknowledge the skipped messages.
            return answer(service, request, pull, response::PULL_RETRY_IMMEDIATELY, from);
        }
        let arrived = service.arrivals.wait(pull.topic, pull.queue_id.0, from);
        // A message that arrives between the read and the registration wakes nothing, so check again.
        let (_, end) = range(service, pull)?;
        if end > from {
            continue;
        }
        if pull.held_ms == 0 || !held(service, arrived, deadline.as_mut()).await {
            let code = if from > began { response::PULL_RETRY_IMMEDIATELY } else { response::PULL_NOT_FOUND };
            return answer(service, request, pull, code, from);
        }
    }
}

/// Refuses a pull whose message at `from` cannot be read. Trying again does not help if it is damaged. Its own code and
/// the next offset allow the client to report and skip it.
fn refusal(error: Error, from: u64) -> Refusal {
    match error {
        Error::StoreCorrupt { .. } => Refusal::new(response::MESSAGE_ILLEGAL, error.to_string())
            .with("nextBeginOffset", from.saturating_add(1).to_string()),
        other => other.into(),
    }
}

/// Waits for messages. Returns whether one arrived before the timeout.
async fn held(
    service: &Service,
    arrived: tokio::sync::oneshot::Receiver<()>,
    deadline: std::pin::Pin<&mut tokio::time::Sleep>,
) -> bool {
    let _held = Held::new(&service.counters);
    tokio::select! {
        woken = arrived => woken.is_ok(),
        () = deadline => false,
    }
}

/// Counts a held pull until dropped, even if its connection ends first.
struct Held<'a>(&'a Counters);

impl<'a> Held<'a> {
    fn new(counters: &'a Counters) -> Self {
        counters.pulls_held.fetch_add(1, Relaxed);
        Self(counters)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.pulls_held.fetch_sub(1, Relaxed);
    }
}

fn range(service: &Service, pull: &Pull<'_>) -> Result<(u64, u64), Refusal> {
    service.store.queue_range(pull.topic, pull.queue_id).map_err(Refusal::from)
}

/// Returns the offset to read from, or the answer that names the queue's valid offset.
fn in_range(service: &Service, request: &Command, pull: &Pull<'_>) -> Result<Result<u64, Command>, Refusal> {
    let (first, end) = range(service, pull)?;
    let from = u64::try_from(pull.queue_offset).ok().filter(|from| (first..=end).contains(from));
    let nearest = if pull.queue_offset < 0 || pull.queue_offset.unsigned_abs() < first { first } else { end };
    match from {
        Some(from) => Ok(Ok(from)),
        None => answer(service, request, pull, response::PULL_OFFSET_MOVED, nearest).map(Err),
    }
}

fn found(
    service: &Service,
    request: &Command,
    pull: &Pull<'_>,
    entry: &TopicEntry,
    records: &[StoredRecord],
    next: u64,
) -> Result<Command, Refusal> {
    let (mut body, mut count, mut next) = (Vec::new(), 0, next);
    for record in records {
        if count > 0 && body.len() + record.bytes().len() > pull.bytes {
            next = record.view()?.queue_offset.0;
            break;
        }
        body.extend_from_slice(record.bytes());
        count += 1;
    }
    let mut response = answer(service, request, pull, response::SUCCESS, next)?;
    service.tables.traffic.read(&entry.traffic, pull.group, count, body.len());
    response.body = body;
    Ok(response)
}

fn answer(service: &Service, request: &Command, pull: &Pull<'_>, code: i32, next: u64) -> Result<Command, Refusal> {
    let (first, end) = range(service, pull)?;
    let mut response = request.response(code, (code != response::SUCCESS).then(|| remark(code).to_owned()));
    let fields = &mut response.ext_fields;
    fields.set("suggestWhichBrokerId", "0");
    fields.set("nextBeginOffset", next.to_string());
    fields.set("minOffset", first.to_string());
    fields.set("maxOffset", end.to_string());
    Ok(response)
}

const fn remark(code: i32) -> &'static str {
    match code {
        response::PULL_OFFSET_MOVED => "the offset is outside the queue",
        response::PULL_RETRY_IMMEDIATELY => "nothing wanted among what was passed over",
        _ => "no message yet",
    }
}
