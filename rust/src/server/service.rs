//! What all connections of a server share: the store, and tables of topics, groups, accounts and clients.
//!
//! In:     what a connection needs: a topic, a producer's id, an acknowledgement, an answer from Python.
//! Out:    that, or the reason why the client is refused.
//! Always: Python is asked only about new topics and producers, and about requests that only Python can decide.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::access::{self, Denied, NamedOffset};
use super::accounts::{Accounts, Need};
use super::arrivals::Arrivals;
use super::budget::{Account, Budget, DropAnswers, WAITING_COST};
use super::check_request::check_request;
use super::copies::{Copies, Replica};
use super::counters::Counters;
use super::deadlines::TimeLimits;
use super::durable::Durable;
use super::event::{Answer, Event, Response};
use super::fields::Refusal;
use super::options::ServerOptions;
use super::policy::Policy;
use super::pop::Pop;
use super::pop::source::Progress;
use super::session::{Checker, GrpcClient, NOT_A_SLAVE, Session};
use super::stream::Stream;
use super::tables::{GroupEntry, Tables, TopicEntry};
use super::tls::{Tls, TlsOptions};
use crate::base::clock::{Clock, SystemClock};
use crate::base::error::Result;
use crate::base::names;
use crate::base::sync::unmodelled::{Mutex, RwLock};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset};
use crate::remoting::codes::response;
use crate::remoting::command::Command;
use crate::store::{Store, StoredRecord, Unacknowledged};

/// The maximum body size of a client's answer to an operator's request, in bytes. Longer answers are dropped.
const ANSWER_BODY_MAX: usize = 4 << 20;

/// The maximum number of unanswered requests to one client. Further requests are not sent.
const ASKED_MAX: usize = 1_000;

/// The state that all connections share.
#[derive(Debug)]
pub struct Service {
    pub(super) store: Arc<Store>,
    pub(super) host: SocketAddr,
    /// The topics and groups that Python has announced.
    pub tables: Tables,
    /// The channel to Python.
    pub policy: Policy,
    /// Counters since the start.
    pub counters: Counters,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) durable: Durable,
    pub(super) copies: Copies,
    /// The broker's name in recall handles.
    pub(super) broker_name: String,
    /// What the clients of the gRPC protocol have in flight.
    pub(super) pop: Pop,
    /// The round-robin counter for sends whose client leaves the queue to the server.
    pub(super) turn: AtomicU32,
    /// Python takes the answers to the checks of a replica.
    takes_answers: AtomicBool,
    tls: RwLock<Option<Arc<Tls>>>,
    accounts: RwLock<Option<Arc<Accounts>>>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    next_session: AtomicU64,
    connections_max: u32,
    pub(super) limits: TimeLimits,
    budget: Arc<Budget>,
}

/// The purpose for which a client needs a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Send,
    Read,
}

impl DropAnswers for Service {
    fn drop_answers(&self, connection: u64) {
        if let Some(session) = self.session(connection) {
            session.outbox.abandon();
        }
    }
}

impl Service {
    /// Creates the service. Fails with `InvalidOption` if the certificate or the key cannot be used.
    pub(super) fn new(store: Arc<Store>, options: &ServerOptions) -> Result<Arc<Self>> {
        options.copies.check()?;
        let tls = options.tls.as_ref().map(Tls::new).transpose()?;
        let service = Arc::new(Self {
            store,
            host: options.host,
            tables: Tables::default(),
            policy: Policy::default(),
            counters: Counters::default(),
            arrivals: Arc::default(),
            durable: Durable::default(),
            copies: Copies::new(options.copies),
            broker_name: options.broker_name.clone(),
            pop: Pop::new(options.memory_max)?,
            turn: AtomicU32::new(0),
            takes_answers: AtomicBool::new(false),
            tls: RwLock::new(tls.map(Arc::new)),
            accounts: RwLock::new(options.accounts.clone()),
            sessions: Mutex::default(),
            // Random, so that a number that a client knows from an earlier server names no other client here.
            next_session: AtomicU64::new(RandomState::new().build_hasher().finish() >> 16),
            connections_max: options.connections_max,
            limits: options.limits,
            budget: Budget::new(options.memory_max),
        });
        let dropper: Weak<Self> = Arc::downgrade(&service);
        service.budget.dropped_by(dropper);
        Ok(service)
    }

    /// Refuses to write to the store of a replica, or of a source that was replaced. Says which node takes messages.
    pub(super) fn check_writable(&self) -> Result<(), Refusal> {
        if !self.store.is_replica() {
            return Ok(());
        }
        let epochs = self.store.epochs();
        let source = epochs.source.as_deref().map(|source| format!(": {source} takes them")).unwrap_or_default();
        let remark = if epochs.is_fenced() {
            let by = epochs.accepted;
            format!(
                "this node was replaced as the source in epoch {by}, and takes no messages, ends and offsets{source}"
            )
        } else {
            format!("this is a replica: it takes no messages, ends and offsets while it is not promoted{source}")
        };
        Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, remark))
    }

    /// Lets Python take the answers to checks while the store is a replica's, which ends no transaction itself.
    pub fn take_answers(&self, taken: bool) {
        self.takes_answers.store(taken, Relaxed);
    }

    /// Returns whether Python takes the answers to checks.
    pub(super) fn takes_answers(&self) -> bool {
        self.takes_answers.load(Relaxed) && self.store.is_replica() && !self.store.is_fenced()
    }

    /// Returns one of a number of queues, by turns. `queues` must be above 0.
    pub(super) fn next_turn(&self, queues: i32) -> i32 {
        i32::try_from(self.turn.fetch_add(1, Relaxed) % queues.unsigned_abs().max(1)).unwrap_or(0)
    }

    /// Checks whether the session's account may send a request. Always passes without accounts.
    pub(super) fn admit(&self, session: &Session, request: &Command) -> Result<(), Refusal> {
        if session.is_trusted {
            return Ok(());
        }
        let Some(accounts) = self.accounts.read().clone() else { return Ok(()) };
        let admitted = access::admit(&accounts, request, |named| self.topics_at(named));
        admitted.map_err(|denied| self.deny(session, &request.code.to_string(), denied))
    }

    /// Returns the account that signed a gRPC request. `None`: the server has no accounts.
    pub(super) fn sign_in(&self, authorization: &str, date: &str) -> Result<Option<String>, Denied> {
        let Some(accounts) = self.accounts.read().clone() else { return Ok(None) };
        let account = accounts.signer_of_date(authorization, date).ok_or(Denied::NotSigned)?;
        Ok(Some(account.access_key().to_owned()))
    }

    /// Checks whether an account has all these permissions. Always passes without accounts.
    pub(super) fn check_needs(&self, account: Option<&str>, needs: &[Need<'_>]) -> Result<(), Denied> {
        let Some(accounts) = self.accounts.read().clone() else { return Ok(()) };
        match needs.iter().find(|need| !accounts.may(account, need)) {
            None => Ok(()),
            Some(need) => Err(Denied::NotAllowed(format!("account {} may not {need}", account.unwrap_or_default()))),
        }
    }

    /// Counts a denied request, and logs the first of a connection. `request`: its code, or the name of the RPC.
    pub(super) fn deny(&self, session: &Session, request: &str, denied: Denied) -> Refusal {
        let (counter, remark) = match denied {
            Denied::NotSigned => {
                let remark = "the request is not signed by an account that is known here";
                (&self.counters.requests_not_signed, remark.to_owned())
            }
            Denied::NotAllowed(why) => (&self.counters.requests_not_allowed, why),
        };
        Counters::count(counter);
        if !session.denied.swap(true, Relaxed) {
            self.note(session, Event::RequestDenied { request: request.to_owned(), reason: remark.clone() });
        }
        Refusal::new(response::NO_PERMISSION, remark)
    }

    /// Returns whether an account may currently send to a topic. Always true without accounts.
    pub fn may_send(&self, account: Option<&str>, topic: &str) -> bool {
        let accounts = self.accounts.read().clone();
        accounts.is_none_or(|accounts| accounts.may(account, &Need::Send(topic.into())))
    }

    /// Returns whether an account may currently read a topic. Always true without accounts, and without an account:
    /// then the request came over a connection that needs none.
    pub fn may_read(&self, account: Option<&str>, topic: &str) -> bool {
        let accounts = self.accounts.read().clone();
        account.is_none() || accounts.is_none_or(|accounts| accounts.may(account, &access::read(topic)))
    }

    /// Returns the topic of the record that a request names. For a half message, the real topics of its transaction.
    pub(super) fn topics_at(&self, named: NamedOffset) -> Vec<String> {
        match named {
            NamedOffset::Record(offset) => {
                let topic = |record: StoredRecord| Some(record.view().ok()?.topic.to_owned());
                self.store.read_at(PhysicalOffset(offset)).ok().and_then(topic).into_iter().collect()
            }
            NamedOffset::Half(offset) => {
                self.store.real_topics(QueueOffset(offset)).unwrap_or_default().into_iter().collect()
            }
        }
    }

    /// Lets Python answer a request. Does not wait if the client wants no answer.
    pub(super) async fn decide(&self, session: &Session, request: Command) -> Result<Command, Refusal> {
        if !request.is_one_way() {
            return self.answer_of_python(session, request).await;
        }
        let blank = request.response(response::SUCCESS, None);
        session.known.store(true, Relaxed);
        let charge = session.account.charge(request.memory() + WAITING_COST);
        self.policy.tell(session.id, &session.address, Event::Request(request), Some(charge))?;
        Ok(blank)
    }

    /// Lets Python answer a request and waits for the answer.
    pub(super) async fn answer_of_python(&self, session: &Session, request: Command) -> Result<Command, Refusal> {
        let blank = request.response(response::SUCCESS, None);
        session.known.store(true, Relaxed);
        // The connection counts the request, too, but only until it ends.
        let charge = session.account.charge(request.memory() + WAITING_COST);
        let asked = self.policy.ask(session.id, &session.address, Event::Request(request), Some(charge));
        Ok(match asked.await? {
            Answer::Response(Response { code, remark, ext_fields, body }) => {
                Command { code, remark, ext_fields, body, ..blank }
            }
            Answer::Producer(_) => blank,
        })
    }

    /// Returns a topic's queues. Asks Python about an unknown topic, and Python may create it.
    pub(super) async fn topic(&self, session: &Session, name: &str, wanted: Use) -> Result<TopicEntry, Refusal> {
        if let Some(entry) = self.tables.topic(name) {
            return Ok(entry);
        }
        if names::is_system_topic(name) {
            let remark = format!("topic {name} is the system's: clients neither send to it nor read it");
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        names::validate_topic(name)?;
        let asked = Event::UnknownTopic { name: name.to_owned(), create: wanted == Use::Send };
        succeeded(self.policy.ask(session.id, &session.address, asked, None).await?)?;
        // Many may have waited for the same topic. Skip the lookup if the client no longer reads.
        if !session.outbox.is_open() {
            return Err(Refusal::new(response::SYSTEM_BUSY, "the client does not read its answers"));
        }
        let missing = || Refusal::new(response::TOPIC_NOT_EXIST, format!("there is no topic {name}"));
        self.tables.topic(name).ok_or_else(missing)
    }

    /// Returns a consumer group's settings. Asks Python about an unknown group, and Python may create it.
    pub(super) async fn group(&self, session: &Session, name: &str) -> Result<GroupEntry, Refusal> {
        if let Some(entry) = self.tables.group(name) {
            return Ok(entry);
        }
        names::validate_group(name)?;
        let asked = Event::UnknownGroup { name: name.to_owned() };
        succeeded(self.policy.ask(session.id, &session.address, asked, None).await?)?;
        let missing = || Refusal::new(response::SUBSCRIPTION_GROUP_NOT_EXIST, format!("there is no group {name}"));
        self.tables.group(name).ok_or_else(missing)
    }

    /// Asks Python whether a slave may copy the log from the end of its own on.
    pub(super) async fn admit_slave(&self, session: &Session, end: PhysicalOffset) -> Result<(), Refusal> {
        session.known.store(true, Relaxed);
        let asked = Event::SlaveConnected { physical_offset: end.0 };
        succeeded(self.policy.ask(session.id, &session.address, asked, None).await?)?;
        Ok(())
    }

    /// Returns a topic of a group's own, and asks Python to create it if it is unknown.
    pub(super) async fn own_topic(&self, name: &str) -> Result<(), Refusal> {
        if self.tables.topic(name).is_none() {
            let asked = Event::UnknownTopic { name: name.to_owned(), create: true };
            succeeded(self.policy.ask(0, "the server", asked, None).await?)?;
        }
        Ok(())
    }

    /// Returns a producer group's id on this connection. The group's first half message registers it as a producer.
    pub(super) async fn producer(&self, session: &Session, group: &str, account: Option<&str>) -> Result<u32, Refusal> {
        let key = (group.to_owned(), account.map(str::to_owned));
        if let Some(number) = session.producers.lock().get(&key) {
            return Ok(*number);
        }
        names::validate_group(group)?;
        let asked = Event::NewProducer { group: group.to_owned(), account: account.map(str::to_owned) };
        session.known.store(true, Relaxed);
        let number = succeeded(self.policy.ask(session.id, &session.address, asked, None).await?)?;
        session.producers.lock().insert(key, number);
        Ok(number)
    }

    /// Forgets a producer group of a connection. Its next half message registers it with Python again.
    pub fn forget_producer(&self, connection: u64, group: &str) {
        if let Some(session) = self.session(connection) {
            session.producers.lock().retain(|(of, _), _| of != group);
        }
    }

    /// Waits until a write may be acknowledged, without blocking a thread. Returns what was written.
    pub(super) async fn acknowledged<T>(&self, written: Unacknowledged<'_, T>) -> Result<T, Refusal> {
        let (value, durable_first) = written.into_parts();
        if let Some(end) = durable_first {
            self.durable.sync(end).await?;
        }
        Ok(value)
    }

    /// Uses this certificate for new connections, and these accounts for all connections, existing ones included.
    /// `None` keeps the current value. An error changes nothing.
    pub fn set_secrets(&self, tls: Option<&TlsOptions>, accounts: Option<Accounts>) -> Result<()> {
        if let Some(options) = tls {
            let tls = Arc::new(Tls::new(options)?);
            *self.tls.write() = Some(tls);
        }
        if let Some(accounts) = accounts {
            *self.accounts.write() = Some(Arc::new(accounts));
        }
        Ok(())
    }

    /// Returns the TLS setup of new connections. `None` means without TLS.
    pub(super) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.read().clone()
    }

    /// Returns the number of bytes that clients hold.
    pub fn memory_held(&self) -> usize {
        self.budget.held()
    }

    /// Returns the bytes of memory that the process has taken since the server started, without those that clients hold.
    pub fn memory_uncounted(&self) -> usize {
        self.budget.uncounted()
    }

    /// Returns an open connection.
    pub(super) fn session(&self, connection: u64) -> Option<Arc<Session>> {
        self.sessions.lock().get(&connection).cloned()
    }

    /// Sends a command to a client. Returns false if its connection has gone or does not accept it.
    pub fn send(&self, connection: u64, command: &Command) -> bool {
        self.session(connection).is_some_and(|session| session.outbox.put(command))
    }

    /// Sends a command to a client and reports its answer, with the same `opaque`, to Python. Returns as `send` does.
    pub fn ask(&self, connection: u64, command: &Command) -> bool {
        let Some(session) = self.session(connection) else { return false };
        let mut asked = session.asked.lock();
        asked.len() < ASKED_MAX && session.outbox.put(command) && asked.insert(command.opaque)
    }

    /// Returns whether a check would reach a client now.
    pub fn accepts_checks(&self, connection: u64) -> bool {
        self.session(connection).is_some_and(|session| match session.checker() {
            Checker::Outbox => true,
            Checker::Grpc(client) => client.is_listening(),
            Checker::Gone => false,
        })
    }

    /// Sends the check of a half message's transaction to a client. Returns false if it cannot be sent. `opaque`
    /// identifies the request of the remoting protocol.
    pub fn send_check(&self, connection: u64, half: &StoredRecord, broker_name: &str, opaque: i32) -> Result<bool> {
        let Some(session) = self.session(connection) else { return Ok(false) };
        match session.checker() {
            Checker::Gone => Ok(false),
            Checker::Grpc(client) => client.send_check(half),
            Checker::Outbox => {
                let mut command = check_request(half, broker_name)?;
                command.opaque = opaque;
                Ok(session.outbox.put(&command))
            }
        }
    }

    /// Reports a client's answer to Python. Ignores an answer to a request that was not sent.
    pub(super) fn answered(&self, session: &Session, answer: Command) {
        if session.asked.lock().remove(&answer.opaque) && answer.body.len() <= ANSWER_BODY_MAX {
            let charge = session.account.charge(answer.memory() + WAITING_COST);
            // If the queue to Python is full, this has the same effect as if the client had not answered.
            let _ = self.policy.tell(session.id, &session.address, Event::ClientAnswer(answer), Some(charge));
        }
    }

    /// Returns whether memory of closed connections must be freed before anything more is read.
    pub(super) fn is_memory_full(&self) -> bool {
        self.budget.is_full()
    }

    /// Drops the requests, in the queue to Python, of connections that were closed because they held most memory. Never
    /// returns.
    pub(super) async fn drop_largest(&self) {
        loop {
            for connection in self.budget.chosen().await {
                Counters::count(&self.counters.connections_over_budget);
                self.policy.forget(connection);
            }
        }
    }

    /// Returns the replicas that copy the log.
    pub fn replicas(&self) -> Vec<Replica> {
        self.copies.replicas(&self.store)
    }

    /// Returns the connections over which slaves of RocketMQ copy the log, with the end that each reported last.
    pub fn slaves(&self) -> Vec<(u64, PhysicalOffset)> {
        let reported = |session: &Session| session.reported.load(Relaxed);
        let sessions = self.sessions.lock();
        let rows = sessions.values().map(|session| (session.id, PhysicalOffset(reported(session))));
        rows.filter(|(_, end)| end.0 != NOT_A_SLAVE).collect()
    }

    /// Closes a connection.
    pub fn close_connection(&self, connection: u64) {
        if let Some(session) = self.sessions.lock().get(&connection) {
            session.outbox.close();
        }
    }

    pub(super) fn join(&self, stream: &Stream, is_trusted: bool) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        let open = self.counters.connections.load(Relaxed);
        if open >= self.connections_max.into() {
            Counters::count(&self.counters.connections_refused);
            return None;
        }
        Counters::count(&self.counters.connections_accepted);
        self.counters.connections.fetch_add(1, Relaxed);
        let id = self.next_session.fetch_add(1, Relaxed) + 1;
        let session = Arc::new(Session::new(id, stream.peer(), Account::new(&self.budget, id), is_trusted));
        sessions.insert(id, Arc::clone(&session));
        Some(session)
    }

    /// Creates the session of a gRPC client that uses a connection. Returns `None` if there are too many clients.
    pub(super) fn join_client(&self, connection: &Session) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        if self.counters.grpc_clients.load(Relaxed) >= self.connections_max.into() {
            return None;
        }
        self.counters.grpc_clients.fetch_add(1, Relaxed);
        let id = self.next_session.fetch_add(1, Relaxed) + 1;
        let session = Arc::new(Session::new(id, Some(connection.born_host), Account::new(&self.budget, id), false));
        sessions.insert(id, Arc::clone(&session));
        Some(session)
    }

    /// Removes a gRPC client.
    pub(super) fn leave_client(&self, session: &Session) {
        self.remove(session, &self.counters.grpc_clients);
    }

    /// Removes a connection.
    pub(super) fn leave(&self, session: &Session) {
        self.remove(session, &self.counters.connections);
    }

    fn remove(&self, session: &Session, gauge: &AtomicI64) {
        if self.sessions.lock().remove(&session.id).is_some() {
            gauge.fetch_sub(1, Relaxed);
            if session.known.load(Relaxed) {
                // This fails only if the server has stopped.
                let _ = self.policy.tell(session.id, &session.address, Event::ConnectionClosed, None);
            }
        }
    }

    /// Lets Python log why a connection is closed: a malformed frame or a failed TLS handshake.
    pub(super) fn refused(&self, session: &Session, why: String) {
        self.note(session, Event::ConnectionRefused { reason: why });
    }

    /// Returns the number of a group's members that are clients of the gRPC protocol.
    pub fn grpc_members(&self, group: &str) -> usize {
        self.pop.members(group)
    }

    /// Returns the number of members of all groups that are clients of the gRPC protocol.
    pub fn grpc_members_in_all(&self) -> usize {
        self.pop.members_in_all()
    }

    /// Returns a group's members that are clients of the gRPC protocol.
    pub fn grpc_clients_of(&self, group: &str) -> Vec<GrpcClient> {
        let sessions = self.pop.members_of(group).into_iter().filter_map(|id| self.session(id));
        let facts = |session: Arc<Session>| match session.checker() {
            Checker::Grpc(client) => Some(client.facts()),
            Checker::Outbox | Checker::Gone => None,
        };
        sessions.filter_map(facts).collect()
    }

    /// Returns the groups with members of the gRPC protocol that read a topic.
    pub fn grpc_readers(&self, topic: &str) -> Vec<String> {
        self.pop.groups_of(topic)
    }

    /// Returns how far the consumers of the gRPC protocol are in each queue of a group: the topic to which they
    /// subscribe, and the progress. Empty: the group has none, and had none that left something in flight.
    pub fn grpc_progress(&self, group: &str) -> Result<Vec<(String, Progress)>> {
        let now_ms = SystemClock.monotonic_ms();
        let mut found = Vec::new();
        for reader in self.pop.of_group(group) {
            let of_topic = reader.progress(&self.store, now_ms)?;
            found.extend(of_topic.into_iter().map(|progress| (reader.topic.clone(), progress)));
        }
        Ok(found)
    }

    /// Lets Python log that a group skips a damaged message.
    pub(super) fn skipped(&self, group: &str, topic: &str, queue_id: QueueId, queue_offset: u64, reason: String) {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        let event = Event::MessageSkipped { group, topic, queue_id: queue_id.0, queue_offset, reason };
        self.policy.note(0, "the server", event);
    }

    fn note(&self, session: &Session, event: Event) {
        self.policy.note(session.id, &session.address, event);
    }
}

/// Returns the producer's id in the answer (0 if missing), or the reason of the refusal.
fn succeeded(answer: Answer) -> Result<u32, Refusal> {
    match answer {
        Answer::Producer(number) => Ok(number),
        Answer::Response(response) if response.is_success() => Ok(0),
        Answer::Response(Response { code, remark, .. }) => Err(Refusal::new(code, remark.unwrap_or_default())),
    }
}
