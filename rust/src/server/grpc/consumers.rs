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
use crate::base::names;
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
        let what = format!(
            "group {group} has consumers of the remoting protocol: a group has one kind of consumers at a time\nhint: \
             stop them first; what they acknowledged stays acknowledged"
        );
        return Err(Refused::new(status::FORBIDDEN, what));
    }
    let client = call.client()?;
    let entry = service.group(&client.session, group).await?;
    service.pop.join(group, client.session.id);
    Ok(Member { client, entry })
}
