//! Access: what an account needs so that a request of its is done.
//!
//! In: a request, accounts. Out: it may go on, or why not. Always: what is not listed here is for administrators; a body
//! that cannot be read is, too; where a request names a place of the log, the topic of what stands there counts, not the
//! one that it names. Not here: what an account may do (`accounts`).

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use super::accounts::Accounts;
use super::codes::request as codes;
use super::command::Command;
use crate::names::{DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic};

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// To send to a topic.
    Send(Cow<'a, str>),
    /// To read a topic.
    Read(Cow<'a, str>),
    /// One of both.
    SendOrRead(Cow<'a, str>),
    /// To consume in a group.
    Group(Cow<'a, str>),
    /// To administer the server.
    Admin,
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(topic) => write!(out, "send to topic {topic}"),
            Self::Read(topic) => write!(out, "read topic {topic}"),
            Self::SendOrRead(topic) => write!(out, "send to or read topic {topic}"),
            Self::Group(group) => write!(out, "consume in group {group}"),
            Self::Admin => write!(out, "administer the server"),
        }
    }
}

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Nobody who is known has signed it.
    NotSigned,
    /// Whoever signed it may not do that, for this reason.
    NotAllowed(String),
}

/// A place of the log that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A record's offset in the log.
    Record(u64),
    /// A half message's offset in the half queue.
    Half(u64),
}

/// Whether a request is signed by somebody who may have it done. `topic_of`: the (real) topic of what stands at a place.
pub fn admit(
    accounts: &Accounts,
    request: &Command,
    topic_of: impl Fn(Place) -> Option<String>,
) -> std::result::Result<(), Denied> {
    let account = accounts.signer(request).ok_or(Denied::NotSigned)?;
    match needs(request, topic_of).iter().find(|need| !account.may(need)) {
        None => Ok(()),
        Some(need) => Err(Denied::NotAllowed(format!("account {} may not {need}", account.access_key()))),
    }
}

fn needs(request: &Command, topic_of: impl Fn(Place) -> Option<String>) -> Vec<Need<'_>> {
    let field = |name: &str| request.ext_fields.get(name).unwrap_or_default();
    let at = |name: &str, place: fn(u64) -> Place, need: fn(String) -> Need<'static>| match field(name).parse() {
        // Where nothing stands, the request fails by itself.
        Ok(offset) => topic_of(place(offset)).map(need).into_iter().collect(),
        Err(_) => vec![Need::Admin],
    };
    match request.code {
        codes::SEND_MESSAGE => vec![send(field("topic"))],
        codes::SEND_MESSAGE_V2 | codes::SEND_BATCH_MESSAGE => vec![send(field("b"))],
        codes::PULL_MESSAGE
        | codes::LITE_PULL_MESSAGE
        | codes::QUERY_CONSUMER_OFFSET
        | codes::UPDATE_CONSUMER_OFFSET => vec![read(field("topic")), group(field("consumerGroup"))],
        codes::QUERY_MESSAGE => vec![read(field("topic"))],
        codes::SEARCH_OFFSET_BY_TIMESTAMP
        | codes::GET_MAX_OFFSET
        | codes::GET_MIN_OFFSET
        | codes::GET_EARLIEST_MSG_STORETIME => vec![send_or_read(field("topic"))],
        codes::VIEW_MESSAGE_BY_ID => at("offset", Place::Record, |topic| read(&topic).owned()),
        codes::CONSUMER_SEND_MSG_BACK => {
            let mut needs: Vec<Need<'_>> = at("offset", Place::Record, |topic| read(&topic).owned());
            needs.push(group(field("group")));
            needs
        }
        codes::END_TRANSACTION => at("tranStateTableOffset", Place::Half, |topic| send(&topic).owned()),
        codes::HEART_BEAT => of_body(request, heartbeat),
        codes::UNREGISTER_CLIENT => {
            let name = field("consumerGroup");
            if name.is_empty() { Vec::new() } else { vec![group(name)] }
        }
        codes::GET_CONSUMER_LIST_BY_GROUP => vec![group(field("consumerGroup"))],
        codes::LOCK_BATCH_MQ | codes::UNLOCK_BATCH_MQ => of_body(request, locks),
        // Whoever has an account may ask where things are.
        codes::CHECK_CLIENT_CONFIG
        | codes::GET_KV_CONFIG
        | codes::GET_ROUTEINFO_BY_TOPIC
        | codes::GET_BROKER_CLUSTER_INFO => Vec::new(),
        _ => vec![Need::Admin],
    }
}

impl Need<'_> {
    fn owned(self) -> Need<'static> {
        match self {
            Self::Send(name) => Need::Send(name.into_owned().into()),
            Self::Read(name) => Need::Read(name.into_owned().into()),
            Self::SendOrRead(name) => Need::SendOrRead(name.into_owned().into()),
            Self::Group(name) => Need::Group(name.into_owned().into()),
            Self::Admin => Need::Admin,
        }
    }
}

/// A group's own topics belong to whoever consumes in the group.
fn own_group(topic: &str) -> Option<Need<'_>> {
    topic.strip_prefix(RETRY_PREFIX).or_else(|| topic.strip_prefix(DEAD_LETTER_PREFIX)).map(group)
}

fn send(topic: &str) -> Need<'_> {
    own_group(topic).unwrap_or_else(|| Need::Send(topic.into()))
}

fn read(topic: &str) -> Need<'_> {
    if is_system_topic(topic) {
        return Need::Admin;
    }
    own_group(topic).unwrap_or_else(|| Need::Read(topic.into()))
}

fn send_or_read(topic: &str) -> Need<'_> {
    own_group(topic).unwrap_or_else(|| Need::SendOrRead(topic.into()))
}

/// A group keeps some of its progress under names of its own: the group's, `%`, and more.
fn group(name: &str) -> Need<'_> {
    match name.split_once('%') {
        Some((group, _)) if !group.is_empty() => Need::Group(group.into()),
        _ => Need::Group(name.into()),
    }
}

/// What the body says; of what it should not be, nobody but an administrator is believed.
fn of_body(request: &Command, needs: fn(&Value) -> Option<Vec<Need<'static>>>) -> Vec<Need<'static>> {
    let body = serde_json::from_slice::<Value>(&request.body).ok();
    body.as_ref().and_then(needs).unwrap_or_else(|| vec![Need::Admin])
}

fn heartbeat(said: &Value) -> Option<Vec<Need<'static>>> {
    let mut needs = Vec::new();
    for consumer in list(said, "consumerDataSet")? {
        needs.push(group(consumer.get("groupName")?.as_str()?).owned());
        for subscription in list(consumer, "subscriptionDataSet")? {
            needs.push(read(subscription.get("topic")?.as_str()?).owned());
        }
    }
    Some(needs)
}

fn locks(said: &Value) -> Option<Vec<Need<'static>>> {
    let mut needs = vec![group(said.get("consumerGroup")?.as_str()?).owned()];
    for queue in list(said, "mqSet")? {
        needs.push(read(queue.get("topic")?.as_str()?).owned());
    }
    Some(needs)
}

/// A list of the object's; nothing at all is an empty one.
fn list<'a>(object: &'a Value, name: &str) -> Option<&'a [Value]> {
    match object.as_object()?.get(name) {
        None | Some(Value::Null) => Some(&[]),
        Some(value) => value.as_array().map(Vec::as_slice),
    }
}
