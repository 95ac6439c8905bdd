//! What all requests of consumers have in common: a group, a topic, a client that is a member.
//!
//! In:     the names of a request.
//! Out:    the group's settings; the client.
//! Always: the members of a group are of one kind: of this protocol, or of the remoting protocol, whose clients keep
//!         their progress themselves.

use std::sync::Arc;

use super::call::Call;
use super::clients::Client;
use super::status::{self, Refused};
use super::wire::Resource;
use crate::base::clock::{Clock, SystemClock};
use crate::base::names;
use crate::server::pop::GROUPS_MAX;
use crate::server::service::Service;
use crate::server::tables::GroupEntry;

/// A client as a member of a group.
pub(super) struct Member {
    pub(super) client: Arc<Client>,
    pub(super) entry: GroupEntry,
}

/// Returns a group's name. Refuses one that is not accepted, or that is RocketMQ's own.
pub(super) fn group_name(group: Option<&Resource>) -> Result<&str, Refused> {
    let group = group.map_or("", |group| &group.name);
    let illegal = |what| Refused::new(status::ILLEGAL_CONSUMER_GROUP, what);
    names::validate_group(group).map_err(|error| illegal(Refused::from(error).message))?;
    if group.starts_with(names::SYSTEM_GROUP_PREFIX) {
        return Err(illegal(format!("group {group} is the system's: clients cannot be its members")));
    }
    Ok(group)
}

/// Returns the names of a group and a topic. Refuses a group's name that is not accepted.
pub(super) fn names<'a>(
    group: Option<&'a Resource>,
    topic: Option<&'a Resource>,
) -> Result<(&'a str, &'a str), Refused> {
    let group = group_name(group)?;
    let topic = topic.ok_or_else(|| Refused::new(status::ILLEGAL_TOPIC, "the topic is missing"))?;
    Ok((group, &topic.name))
}

/// Makes the client a member of the group, which is created if clients may do so.
pub(super) async fn member(call: &Call, group: &str) -> Result<Member, Refused> {
    let service = call.service();
    if service.tables.has_members(group) {
        return Err(has_others(group));
    }
    let client = call.client()?;
    let entry = service.group(&client.session, group).await?;
    join(service, &client, group)?;
    Ok(Member { client, entry })
}

/// Makes the client a member of an existing group. Refuses a client that is gone, since nothing would end its membership.
pub(super) fn join(service: &Service, client: &Client, group: &str) -> Result<(), Refused> {
    let id = client.session.id;
    if !service.pop.join(group, id) {
        let what = format!("a client is a member of {GROUPS_MAX} groups at most");
        return Err(Refused::new(status::TOO_MANY_REQUESTS, what));
    }
    // Looked at after the client has joined: of two that join at the same time, at least one sees the other.
    if service.tables.has_members(group) {
        service.pop.leave(group, id);
        return Err(has_others(group));
    }
    check_present(service, client)
}

/// Refuses a client that is gone, and ends what it may have begun since.
pub(super) fn check_present(service: &Service, client: &Client) -> Result<(), Refused> {
    if client.session.outbox.is_open() {
        return Ok(());
    }
    service.pop.client_gone(client.session.id, SystemClock.monotonic_ms());
    Err(Refused::new(status::BAD_REQUEST, format!("client {} has left", client.id)))
}

fn has_others(group: &str) -> Refused {
    let what = format!(
        "group {group} has consumers of the remoting protocol: a group has one kind of consumers at a time\nhint: \
         stop them first; what they acknowledged stays acknowledged"
    );
    Refused::new(status::FORBIDDEN, what)
}
