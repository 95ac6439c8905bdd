//! Decides which permissions a request needs, and whether its account has them.
//!
//! In:     a request, accounts.
//! Out:    permission, or the reason of the refusal.
//! Always: the table of codes says what a request needs. Unknown codes and bodies that cannot be parsed need an
//!         administrator. If a request names a record, the topic of that record counts, not the topic in the request.
//! Not here: the permissions of an account (`accounts`).

use std::collections::BTreeSet;

use serde_json::Value;

use super::accounts::{Accounts, Need};
use super::batch::parts_of;
use crate::base::names::{DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic};
use crate::remoting::codes::{AccessRule, RequestCode};
use crate::remoting::command::Command;

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No known account has signed it.
    NotSigned,
    /// The account that signed it may not do this, for this reason.
    NotAllowed(String),
}

/// The offset of a record that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedOffset {
    /// A physical offset in the commit log.
    Record(u64),
    /// A queue offset in the half queue.
    Half(u64),
}

/// Checks that a request is signed by an account that may send it. `topics_of` returns the topic of a record, or the
/// real topics of a half message's transaction.
pub fn admit(
    accounts: &Accounts,
    request: &Command,
    topics_of: impl Fn(NamedOffset) -> Vec<String>,
) -> std::result::Result<(), Denied> {
    let account = accounts.signer(request).ok_or(Denied::NotSigned)?;
    match needs(request, topics_of).iter().find(|need| !account.may(need)) {
        None => Ok(()),
        Some(need) => Err(Denied::NotAllowed(format!("account {} may not {need}", account.access_key()))),
    }
}

fn needs(request: &Command, topics_of: impl Fn(NamedOffset) -> Vec<String>) -> Vec<Need<'_>> {
    let field = |name: &str| request.ext_fields.get(name).unwrap_or_default();
    let at = |name: &str, named: fn(u64) -> NamedOffset, need: fn(String) -> Need<'static>| match field(name).parse() {
        // If there is no record at this offset, the request itself fails.
        Ok(offset) => topics_of(named(offset)).into_iter().map(need).collect(),
        Err(_) => vec![Need::Admin],
    };
    let rule = RequestCode::of(request.code).map_or(AccessRule::Admin, |row| row.access);
    match rule {
        AccessRule::SendTo(topic) => vec![send(field(topic))],
        AccessRule::SendToEach => send_to_each(&request.body).unwrap_or_else(|| vec![Need::Admin]),
        AccessRule::EndHalf => at("tranStateTableOffset", NamedOffset::Half, |topic| send(&topic).owned()),
        AccessRule::Read => vec![read(field("topic"))],
        AccessRule::ReadInGroup => vec![read(field("topic")), group(field("consumerGroup"))],
        AccessRule::SendOrRead => vec![send_or_read(field("topic"))],
        AccessRule::ReadRecord => at("offset", NamedOffset::Record, |topic| read(&topic).owned()),
        AccessRule::HandBack => {
            let mut needs: Vec<Need<'_>> = at("offset", NamedOffset::Record, |topic| read(&topic).owned());
            needs.push(group(field("group")));
            needs
        }
        AccessRule::Heartbeat => of_body(request, heartbeat),
        AccessRule::Leave => {
            let name = field("consumerGroup");
            if name.is_empty() { Vec::new() } else { vec![group(name)] }
        }
        AccessRule::Group => vec![group(field("consumerGroup"))],
        AccessRule::Lock => of_body(request, locks),
        AccessRule::Signature => Vec::new(),
        AccessRule::Admin => vec![Need::Admin],
    }
}

impl Need<'_> {
    pub(super) fn owned(self) -> Need<'static> {
        match self {
            Self::Send(name) => Need::Send(name.into_owned().into()),
            Self::Read(name) => Need::Read(name.into_owned().into()),
            Self::SendOrRead(name) => Need::SendOrRead(name.into_owned().into()),
            Self::Group(name) => Need::Group(name.into_owned().into()),
            Self::Admin => Need::Admin,
        }
    }
}

/// Returns the permission for a group's own topics: to consume in the group.
fn own_group(topic: &str) -> Option<Need<'_>> {
    topic.strip_prefix(RETRY_PREFIX).or_else(|| topic.strip_prefix(DEAD_LETTER_PREFIX)).map(group)
}

/// Returns the permission to send to a topic.
pub(super) fn send(topic: &str) -> Need<'_> {
    own_group(topic).unwrap_or_else(|| Need::Send(topic.into()))
}

/// Returns the permission to read a topic.
pub(super) fn read(topic: &str) -> Need<'_> {
    if is_system_topic(topic) {
        return Need::Admin;
    }
    own_group(topic).unwrap_or_else(|| Need::Read(topic.into()))
}

/// Returns the permissions to send the half messages in a body, or `None` if it is invalid.
fn send_to_each(body: &[u8]) -> Option<Vec<Need<'_>>> {
    let topics: Option<BTreeSet<_>> = parts_of(body).ok()?.iter().map(|part| Some(part.real()?.0)).collect();
    Some(topics?.into_iter().map(send).collect())
}

fn send_or_read(topic: &str) -> Need<'_> {
    own_group(topic).unwrap_or_else(|| Need::SendOrRead(topic.into()))
}

/// Returns the permission for a group. Some progress names are the group's name, `%`, and a suffix.
pub(super) fn group(name: &str) -> Need<'_> {
    match name.split_once('%') {
        Some((group, _)) if !group.is_empty() => Need::Group(group.into()),
        _ => Need::Group(name.into()),
    }
}

/// Returns the permissions that a body needs. If the body is invalid, only an administrator may send the request.
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

/// Returns a list of the object. A missing list is empty.
fn list<'a>(object: &'a Value, name: &str) -> Option<&'a [Value]> {
    match object.as_object()?.get(name) {
        None | Some(Value::Null) => Some(&[]),
        Some(value) => value.as_array().map(Vec::as_slice),
    }
}
