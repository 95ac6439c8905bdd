//! Keeps clients known while they send heartbeats, and lets them leave.
//!
//! In:     heartbeats, notices of termination.
//! Out:    for Python, a heartbeat of the remoting protocol: to it, the producer groups of a gRPC client are its topics.
//! Always: a client without settings is served, too: after a restart of the server, some send no settings for minutes.

use super::call::Call;
use super::clients::Client;
use super::consumers;
use super::status::{Refused, ok};
use super::wire::{
    HeartbeatRequest, HeartbeatResponse, NotifyClientTerminationRequest, NotifyClientTerminationResponse, client_type,
};
use crate::remoting::codes::request;
use crate::remoting::command::Command;
use crate::server::accounts::ACCESS_KEY;
use crate::server::service::Service;

/// How often Python hears of a client whose topics are the same. Clients send heartbeats every 10 s.
const TOLD_EVERY_MS: i64 = 30_000;

pub(super) async fn heartbeat(call: Call, request: HeartbeatRequest) -> Result<HeartbeatResponse, Refused> {
    let client = call.client()?;
    client.heard();
    if let Some(group) = request.group.as_ref().filter(|_| is_consumer(request.client_type)) {
        stays(call.service(), &client, &group.name);
    }
    tell(call.service(), &client, call.language).await?;
    Ok(HeartbeatResponse { status: Some(ok()) })
}

/// Keeps a consumer a member of its group while it waits for nothing. A group that is not known yet gets its members by
/// their receives, which are also what is refused.
fn stays(service: &Service, client: &Client, group: &str) {
    if service.tables.group(group).is_some() && !service.tables.has_members(group) {
        let _ = consumers::join(service, client, group);
    }
}

const fn is_consumer(kind: i32) -> bool {
    matches!(kind, client_type::PUSH_CONSUMER | client_type::SIMPLE_CONSUMER)
}

#[allow(clippy::unused_async)] // The router awaits every handler.
pub(super) async fn terminate(
    call: Call,
    _: NotifyClientTerminationRequest,
) -> Result<NotifyClientTerminationResponse, Refused> {
    call.messaging.clients.end(&call.client_id, call.account.as_deref());
    Ok(NotifyClientTerminationResponse { status: Some(ok()) })
}

/// Tells Python which producer groups a client has, if it has not heard of them recently.
pub(super) async fn tell(service: &Service, client: &Client, language: u8) -> Result<(), Refused> {
    let Some(topics) = client.topics_to_tell(TOLD_EVERY_MS) else { return Ok(()) };
    if topics.is_empty() {
        return Ok(());
    }
    let groups: Vec<_> = topics.into_iter().map(|topic| serde_json::json!({ "groupName": topic })).collect();
    let said = serde_json::json!({ "clientID": client.id, "producerDataSet": groups, "consumerDataSet": [] });
    let mut command = Command::request(request::HEART_BEAT, 0);
    command.language = language;
    command.body = said.to_string().into_bytes();
    if let Some(account) = &client.account {
        command.ext_fields.set(ACCESS_KEY, account);
    }
    service.answer_of_python(&client.session, command).await?;
    Ok(())
}
