//! Reads any bytes as a request, for fuzzers.
//!
//! In:     bytes.
//! Out:    what they say, and what the checks of a request answer.
//! Always: needs no connection and no store.

use std::net::{Ipv4Addr, SocketAddr};

use prost::Message as _;

use super::status::{self, Refused};
use super::wire::{self, Command, TelemetryCommand};
use super::{message, send, settings, transaction};
use crate::base::units::TimestampMs;
use crate::record::Properties;
use crate::record::message::Topic;

/// The clock of a probe.
const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
/// The longest body of a probe, in bytes.
pub const BODY_MAX: usize = 1 << 16;

/// What a request says.
#[derive(Debug, PartialEq, Eq)]
pub struct Probed {
    /// The request, written again.
    pub again: Vec<u8>,
    /// The code of the answer's status: 20000 if the checks passed.
    pub code: i32,
    /// The names and values of the first message's properties as they would be stored, if the checks passed.
    pub stored: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads bytes as one of the requests. `None`: they are no such request.
pub fn read(rpc: u8, bytes: &[u8]) -> Option<Probed> {
    Some(match rpc % 7 {
        0 => probed(&wire::SendMessageRequest::decode(bytes).ok()?, sending),
        1 => probed(&wire::EndTransactionRequest::decode(bytes).ok()?, ending),
        2 => probed(&TelemetryCommand::decode(bytes).ok()?, telling),
        3 => probed(&wire::QueryRouteRequest::decode(bytes).ok()?, nothing),
        4 => probed(&wire::HeartbeatRequest::decode(bytes).ok()?, nothing),
        5 => probed(&wire::ReceiveMessageRequest::decode(bytes).ok()?, nothing),
        _ => probed(&wire::AckMessageRequest::decode(bytes).ok()?, nothing),
    })
}

type Stored = Vec<(Vec<u8>, Vec<u8>)>;

fn probed<Q: prost::Message>(request: &Q, check: fn(&Q) -> Result<Stored, Refused>) -> Probed {
    let again = request.encode_to_vec();
    let (code, stored) = match check(request) {
        Ok(stored) => (status::OK, stored),
        Err(refused) => (refused.code, Vec::new()),
    };
    Probed { again, code, stored }
}

#[allow(clippy::unnecessary_wraps)] // One of the checks.
fn nothing<Q>(_: &Q) -> Result<Stored, Refused> {
    Ok(Vec::new())
}

fn sending(request: &wire::SendMessageRequest) -> Result<Stored, Refused> {
    let mut stored = Vec::new();
    for message in &request.messages {
        let system = message.system_properties.clone().unwrap_or_default();
        message::check(message, &system, BODY_MAX)?;
        let (_, sys_flag) = message::stored_body(&message.body, system.body_encoding, BODY_MAX)?;
        let topic = Topic::new(message.topic.as_ref().map_or("", |topic| topic.name.as_str()))?;
        let level = send::delay_level(&system, NOW)?;
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let envelope = send::envelope(&topic, message, &system, (level, sys_flag), host)?;
        if stored.is_empty() {
            let pairs = Properties(&envelope.properties);
            stored = pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        }
    }
    Ok(stored)
}

fn ending(request: &wire::EndTransactionRequest) -> Result<Stored, Refused> {
    match transaction::parse_id(&request.transaction_id) {
        Some(half) if !transaction::id_of(half).eq_ignore_ascii_case(&request.transaction_id) => {
            Err(Refused::new(status::INTERNAL_SERVER_ERROR, "an id that is read and written again is another"))
        }
        Some(_) => Ok(Vec::new()),
        None => Err(Refused::new(status::INVALID_TRANSACTION_ID, "no id")),
    }
}

fn telling(command: &TelemetryCommand) -> Result<Stored, Refused> {
    if let Some(Command::Settings(said)) = &command.command {
        settings::published(said);
        let answer = settings::answer(said.clone(), 4 << 20)?;
        answer.encode_to_vec();
    }
    Ok(Vec::new())
}
