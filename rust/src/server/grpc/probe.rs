//! Reads any bytes as a request, for fuzzers.
//!
//! In:     bytes.
//! Out:    what they say, and what the checks of a request answer.
//! Always: needs no connection and no store.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use prost::Message as _;
use tonic::Code;

use super::status::{self, Refused};
use super::wire::{self, Command, TelemetryCommand};
use super::{consumers, message, receive, send, settings, shape, transaction};
use crate::base::options::TIMER_MAX_DELAY_S;
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

/// Reads bytes as one of the requests. `None`: they are no such request, or have too many parts.
pub fn read(rpc: u8, bytes: &[u8]) -> Option<Probed> {
    match rpc % 9 {
        0 => probed("SendMessage", bytes, sending),
        1 => probed("EndTransaction", bytes, ending),
        2 => probed("Telemetry", bytes, telling),
        3 => probed::<wire::QueryRouteRequest>("QueryRoute", bytes, nothing),
        4 => probed::<wire::HeartbeatRequest>("Heartbeat", bytes, nothing),
        5 => probed("ReceiveMessage", bytes, receiving),
        6 => probed("AckMessage", bytes, acknowledging),
        7 => probed::<wire::ChangeInvisibleDurationRequest>("ChangeInvisibleDuration", bytes, nothing),
        _ => probed::<wire::QueryAssignmentRequest>("QueryAssignment", bytes, nothing),
    }
}

type Stored = Vec<(Vec<u8>, Vec<u8>)>;

fn probed<Q: prost::Message + Default>(
    rpc: &str,
    bytes: &[u8],
    check: fn(&Q) -> Result<Stored, Refused>,
) -> Option<Probed> {
    let bytes = Bytes::copy_from_slice(bytes);
    let parts = shape::parts(shape::of(rpc), &bytes);
    if parts.as_ref().is_err_and(|refused| refused.code() == Code::ResourceExhausted) {
        return None;
    }
    let request = Q::decode(bytes).ok()?;
    let again = request.encode_to_vec();
    let (code, stored) = match parts.map_or_else(|refused| Err(unlike(&refused)), |_| check(&request)) {
        Ok(stored) => (status::OK, stored),
        Err(refused) => (refused.code, Vec::new()),
    };
    Some(Probed { again, code, stored })
}

/// Says that a request can be decoded although its parts cannot be counted.
fn unlike(refused: &tonic::Status) -> Refused {
    Refused::new(status::INTERNAL_SERVER_ERROR, refused.message())
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
        send::check_time(&system, NOW, TIMER_MAX_DELAY_S)?;
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let envelope = send::envelope(&topic, message, &system, sys_flag, host)?;
        if stored.is_empty() {
            let pairs = Properties(&envelope.properties);
            stored = pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        }
    }
    Ok(stored)
}

fn receiving(request: &wire::ReceiveMessageRequest) -> Result<Stored, Refused> {
    receive::probe(request).map(|()| Vec::new())
}

fn acknowledging(request: &wire::AckMessageRequest) -> Result<Stored, Refused> {
    consumers::names(request.group.as_ref(), request.topic.as_ref()).map(|_| Vec::new())
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
