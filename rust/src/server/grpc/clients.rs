//! The gRPC clients by id.
//!
//! In:     requests with a client id; the settings and the stream of a client.
//! Out:    a session for each client, whose number Python knows it by; checks down the client's stream.
//! Always: a client id belongs to the account that used it, so that no account gets what is meant for another's client.
//!         A client is gone after its own notice, after `SILENT_MS` without a request, or when its stream has ended and
//!         nothing came from it in the `RETURNS_MS` after that.
//! Not here: what a heartbeat tells Python (`heartbeat`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::{mpsc, watch};

use super::call::Call;
use super::status::{self, Refused};
use super::transaction;
use super::wire::{Settings, TelemetryCommand};
use crate::base::clock::{Clock, SystemClock};
use crate::base::error::Result;
use crate::base::sync::unmodelled::Mutex;
use crate::remoting::command::language_name;
use crate::server::budget::Charge;
use crate::server::service::Service;
use crate::server::session::{GrpcClient, SendCheck, Session};
use crate::store::StoredRecord;

/// The time without a request after which a client is gone.
const SILENT_MS: i64 = 120_000;
/// The time that a client has to come back after its stream has ended.
const RETURNS_MS: i64 = 10_000;
/// How often clients that are gone are removed.
const EXPIRES: Duration = Duration::from_secs(1);
/// The most commands that wait for a client's stream. Further ones are not sent.
const COMMANDS_MAX: usize = 16;
/// The bytes of a client without its topics, and of a topic without its name.
const CLIENT_COST: usize = 2 << 10;
const TOPIC_COST: usize = 64;
/// The most topics of one producer.
pub(super) const TOPICS_MAX: usize = 1_000;

type Key = (String, Option<String>);

/// The known clients.
#[derive(Debug)]
pub(super) struct Clients {
    service: Arc<Service>,
    known: Mutex<HashMap<Key, Arc<Client>>>,
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) account: Option<String>,
    pub(super) session: Arc<Session>,
    language: u8,
    heard_ms: AtomicI64,
    streams: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How long the client waits for an answer, in milliseconds, if its settings say so.
    request_timeout_ms: Option<i64>,
    /// The topics for whose transactions it may be asked.
    topics: BTreeSet<String>,
    /// When Python last heard of it.
    told_ms: Option<i64>,
    stream: Option<Commands>,
    stream_ended_ms: Option<i64>,
    charge: Charge,
}

/// Where commands to a client go.
#[derive(Clone, Debug)]
struct Commands {
    number: u64,
    sender: mpsc::Sender<Outgoing>,
    /// Dropped with the stream's turn.
    _current: Arc<watch::Sender<()>>,
}

/// A command on its way to a client, with its memory.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) command: TelemetryCommand,
    _charge: Charge,
}

/// The server's end of a client's stream.
#[derive(Debug)]
pub(super) struct Stream {
    client: Arc<Client>,
    number: u64,
    /// Closed when a newer stream replaces this one, or when the client leaves.
    current: watch::Receiver<()>,
}

impl Clients {
    pub(super) fn new(service: Arc<Service>) -> Self {
        Self { service, known: Mutex::default() }
    }

    /// Returns the client that sends a request. Its first request makes it known.
    pub(super) fn find_or_join(&self, call: &Call) -> std::result::Result<Arc<Client>, Refused> {
        let key = (call.client_id.clone(), call.account.clone());
        let mut known = self.known.lock();
        if let Some(client) = known.get(&key) {
            client.heard_ms.store(SystemClock.monotonic_ms(), Relaxed);
            return Ok(Arc::clone(client));
        }
        let session = self.service.join_client(&call.session).ok_or_else(|| {
            Refused::new(status::TOO_MANY_REQUESTS, "too many clients are connected (connections_max)")
        })?;
        let client = Client::new(&key, session, call.language);
        let sender: Arc<dyn SendCheck> = client.clone();
        client.session.checked_by(&sender);
        known.insert(key, Arc::clone(&client));
        Ok(client)
    }

    /// Removes a client, if it is known.
    pub(super) fn end(&self, id: &str, account: Option<&str>) {
        let client = self.known.lock().remove(&(id.to_owned(), account.map(str::to_owned)));
        if let Some(client) = client {
            client.leave(&self.service);
        }
    }

    /// Removes the clients that are gone, again and again. Never returns.
    pub(super) async fn expire_again_and_again(&self) {
        loop {
            tokio::time::sleep(EXPIRES).await;
            let now_ms = SystemClock.monotonic_ms();
            let gone: Vec<_> = self.known.lock().extract_if(|_, client| client.is_gone(now_ms)).collect();
            for (_, client) in gone {
                client.leave(&self.service);
            }
            self.service.pop.forget_idle(&self.service.store);
            // After a failure it is tried again, and the older files are kept.
            let _ = self.service.pop.replace_deliveries(&self.service.store);
        }
    }
}

impl Client {
    fn new((id, account): &Key, session: Arc<Session>, language: u8) -> Arc<Self> {
        let charge = session.account.charge(CLIENT_COST + id.len());
        let state = State {
            request_timeout_ms: None,
            topics: BTreeSet::new(),
            told_ms: None,
            stream: None,
            stream_ended_ms: None,
            charge,
        };
        Arc::new(Self {
            id: id.clone(),
            account: account.clone(),
            session,
            language,
            heard_ms: AtomicI64::new(SystemClock.monotonic_ms()),
            streams: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    fn leave(&self, service: &Service) {
        self.session.outbox.close();
        // Ends the stream's task.
        self.state.lock().stream = None;
        service.pop.client_gone(self.session.id, SystemClock.monotonic_ms());
        service.leave_client(&self.session);
    }

    fn is_gone(&self, now_ms: i64) -> bool {
        let heard_ms = self.heard_ms.load(Relaxed);
        let left_ms = self.state.lock().stream_ended_ms;
        let is_left = left_ms.is_some_and(|left_ms| heard_ms < left_ms && now_ms - left_ms >= RETURNS_MS);
        is_left || now_ms - heard_ms >= SILENT_MS || !self.session.outbox.is_open()
    }

    /// Notes that the client has sent something.
    pub(super) fn heard(&self) {
        self.heard_ms.store(SystemClock.monotonic_ms(), Relaxed);
    }

    /// Returns how long the client waits for an answer, in milliseconds, if its settings say so.
    pub(super) fn request_timeout_ms(&self) -> Option<i64> {
        self.state.lock().request_timeout_ms
    }

    /// Notes what is needed of the client's settings. `topics`: those to which it publishes.
    pub(super) fn set_settings(&self, said: &Settings, topics: impl IntoIterator<Item = String>) {
        let mut state = self.state.lock();
        state.request_timeout_ms = said.request_timeout.map(|time| time.as_millis());
        let more = TOPICS_MAX.saturating_sub(state.topics.len());
        state.topics.extend(topics.into_iter().take(more));
        let names: usize = state.topics.iter().map(|topic| TOPIC_COST + topic.len()).sum();
        state.charge.set(CLIENT_COST + self.id.len() + names);
    }

    /// Notes a topic for whose transactions the client may be asked.
    pub(super) fn publishes_to(&self, topic: &str) {
        let mut state = self.state.lock();
        if state.topics.len() < TOPICS_MAX && !state.topics.contains(topic) {
            state.topics.insert(topic.to_owned());
            state.told_ms = None;
        }
    }

    /// Returns the topics to tell Python of, or `None` if it has heard of them in the last `every_ms`.
    pub(super) fn topics_to_tell(&self, every_ms: i64) -> Option<Vec<String>> {
        let now_ms = SystemClock.monotonic_ms();
        let mut state = self.state.lock();
        if state.told_ms.is_some_and(|told_ms| now_ms - told_ms < every_ms) {
            return None;
        }
        state.told_ms = Some(now_ms);
        Some(state.topics.iter().cloned().collect())
    }

    /// Begins a stream of commands to the client. An older stream of the client ends.
    pub(super) fn begin_stream(self: &Arc<Self>) -> (Stream, mpsc::Receiver<Outgoing>) {
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        let number = self.streams.fetch_add(1, Relaxed) + 1;
        let (current, is_current) = watch::channel(());
        let mut state = self.state.lock();
        state.stream = Some(Commands { number, sender, _current: Arc::new(current) });
        state.stream_ended_ms = None;
        (Stream { client: Arc::clone(self), number, current: is_current }, receiver)
    }

    /// Sends a command down the client's stream. Returns false if there is no stream, or if too much waits for it.
    fn send(&self, command: TelemetryCommand) -> bool {
        let Some(Commands { sender, .. }) = self.state.lock().stream.clone() else { return false };
        let charge = self.session.account.charge(command.encoded_len());
        !self.session.account.is_too_much() && sender.try_send(Outgoing { command, _charge: charge }).is_ok()
    }
}

impl SendCheck for Client {
    fn facts(&self) -> GrpcClient {
        GrpcClient {
            id: self.id.clone(),
            address: self.session.address.clone(),
            language: language_name(self.language),
            silent_ms: SystemClock.monotonic_ms() - self.heard_ms.load(Relaxed),
        }
    }

    fn is_listening(&self) -> bool {
        self.state.lock().stream.as_ref().is_some_and(|stream| !stream.sender.is_closed())
    }

    fn send_check(&self, half: &StoredRecord) -> Result<bool> {
        Ok(self.is_listening() && self.send(transaction::check(half)?))
    }
}

impl Stream {
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Sends a command down this stream. Returns false if a newer stream has replaced it, or if too much waits for it.
    pub(super) fn send(&self, command: TelemetryCommand) -> bool {
        self.is_current() && self.client.send(command)
    }

    /// Waits until a newer stream replaces this one, or the client leaves.
    pub(super) async fn replaced(&self) {
        let mut current = self.current.clone();
        // Nothing is ever sent, so this ends with the sender.
        let _ = current.changed().await;
    }

    fn is_current(&self) -> bool {
        self.client.state.lock().stream.as_ref().is_some_and(|stream| stream.number == self.number)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.client.state.lock();
        if state.stream.as_ref().is_some_and(|stream| stream.number == self.number) {
            state.stream = None;
            state.stream_ended_ms = Some(SystemClock.monotonic_ms());
        }
    }
}
