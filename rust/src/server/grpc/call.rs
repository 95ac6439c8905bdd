//! Who sends a request, and by when the client wants the answer.
//!
//! In:     a request's headers, its connection.
//! Out:    a `Call`: all that a handler needs besides the request itself.
//! Always: the signature is verified in constant time.
//! Not here: what the account may do (`access`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::metadata::MetadataMap;

use super::Messaging;
use super::clients::Client;
use super::link::{Held, Link};
use super::status::{self, Refused};
use crate::server::access::Denied;
use crate::server::fields::Refusal;
use crate::server::service::{Service, Use};
use crate::server::session::Session;
use crate::server::tables::TopicEntry;

/// The numbers of the names by which Node's client calls itself.
pub(super) const LANGUAGE_HTTP: u8 = 8;
pub(super) const LANGUAGE_NODE: u8 = 13;
/// The longest client id, in bytes.
const CLIENT_ID_MAX: usize = 1_024;

/// One request's sender.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) messaging: Arc<Messaging>,
    /// The connection's session. The client's own one is in `client`.
    pub(super) session: Arc<Session>,
    pub(super) client_id: String,
    /// The account that signed the request. `None`: the server has no accounts.
    pub(super) account: Option<String>,
    /// The client's language, as RocketMQ's remoting protocol numbers it.
    pub(super) language: u8,
    /// The time for which the client waits for the answer, from the request's arrival.
    pub(super) timeout: Option<Duration>,
    /// Becomes true when the server stops.
    pub(super) stopping: watch::Receiver<bool>,
    /// The memory of the request, which counts until the last clone is dropped.
    pub(super) held: Arc<Held>,
}

impl Call {
    /// Reads the headers. Refuses a request without client id, or without a valid signature if there are accounts.
    pub(super) fn of(
        messaging: &Arc<Messaging>,
        link: &Link,
        rpc: &'static str,
        headers: &MetadataMap,
        (held, stopping): (Arc<Held>, watch::Receiver<bool>),
    ) -> Result<Self, Refused> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let service = &messaging.service;
        let signed = service.sign_in(text("authorization"), text("x-mq-date-time"));
        let account = signed.map_err(|denied| denied_as(denied, service, &link.session, rpc))?;
        let client_id = text("x-mq-client-id");
        if client_id.is_empty() {
            return Err(Refused::new(status::CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing"));
        }
        if client_id.len() > CLIENT_ID_MAX {
            let what = format!("x-mq-client-id has {} bytes, at most {CLIENT_ID_MAX} are allowed", client_id.len());
            return Err(Refused::new(status::BAD_REQUEST, what));
        }
        Ok(Self {
            messaging: Arc::clone(messaging),
            session: Arc::clone(&link.session),
            client_id: client_id.to_owned(),
            account,
            language: language(text("x-mq-language")),
            timeout: timeout(text("grpc-timeout")),
            stopping,
            held,
        })
    }

    pub(super) fn service(&self) -> &Service {
        &self.messaging.service
    }

    /// Returns the client, which becomes known by its first request.
    pub(super) fn client(&self) -> Result<Arc<Client>, Refused> {
        self.messaging.clients.find_or_join(self)
    }

    /// Returns a topic's queues, as `Service::topic`. A topic that does not exist is refused with `TOPIC_NOT_FOUND`, also
    /// if clients may not create it.
    pub(super) async fn topic(&self, name: &str, wanted: Use) -> Result<TopicEntry, Refused> {
        let service = self.service();
        let found = service.topic(&self.session, name, Use::Read).await.map_err(Refused::from);
        match found {
            Err(refused) if refused.code == status::TOPIC_NOT_FOUND && wanted == Use::Send => {
                let created = service.topic(&self.session, name, wanted).await.map_err(Refused::from);
                created.map_err(|refused| match refused.code {
                    status::BAD_REQUEST => Refused::new(status::TOPIC_NOT_FOUND, refused.message),
                    _ => refused,
                })
            }
            // The name itself.
            Err(refused) if matches!(refused.code, status::BAD_REQUEST | status::FORBIDDEN) => {
                Err(Refused::new(status::ILLEGAL_TOPIC, refused.message))
            }
            other => other,
        }
    }
}

/// Counts and logs a denied request, and returns the refusal.
pub(super) fn denied_as(denied: Denied, service: &Service, session: &Session, rpc: &str) -> Refused {
    let code = match denied {
        Denied::NotSigned => status::UNAUTHORIZED,
        Denied::NotAllowed(_) => status::FORBIDDEN,
    };
    let Refusal { remark, .. } = service.deny(session, rpc, denied);
    Refused::new(code, remark)
}

/// Returns the number of a language that a client names.
fn language(name: &str) -> u8 {
    match name {
        "JAVA" => 0,
        "CPP" => 1,
        "DOTNET" | "DOT_NET" => 2,
        "PYTHON" => 3,
        "HTTP" => LANGUAGE_HTTP,
        "GO" | "GOLANG" => 9,
        "PHP" => 10,
        "RUST" => 12,
        "NODE_JS" | "NODEJS" => LANGUAGE_NODE,
        _ => crate::remoting::command::LANGUAGE_OTHER,
    }
}

/// Parses gRPC's timeout: up to eight digits, and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_number_and_a_unit() {
        for (text, wanted) in [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("30S", Some(30_000)),
            ("00000250m", Some(250)),
            ("3000u", Some(3)),
            ("99999999n", Some(99)),
            ("", None),
            ("S", None),
            ("1", None),
            ("-1S", None),
            ("123456789S", None),
            ("1x", None),
            ("1\u{e9}", None),
        ] {
            assert_eq!(timeout(text).map(|time| time.as_millis()), wanted, "{text:?}");
        }
    }
}
