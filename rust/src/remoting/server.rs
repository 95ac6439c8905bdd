//! Server: listens, and serves whoever comes.
//!
//! In: an open store, addresses. Out: answers; requests for Python in `policy`. Always: few threads whatever comes; the
//! data path (send, end, pull) never waits for Python but for a topic or a producer that is new. Not here: decisions.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::access::{self, Denied, Need, Place};
use super::accounts::Accounts;
use super::arrivals::Arrivals;
use super::budget::{Account, Budget, WAITING_COST};
use super::codes::{Handler, RequestCode, request as codes, response};
use super::command::Command;
use super::connection::Connection;
use super::counters::Counters;
use super::deadlines::TimeLimits;
use super::durable::Durable;
use super::event::{Answer, Event, Response};
use super::fields::Refusal;
use super::outbox::Outbox;
use super::policy::Policy;
use super::stream::Stream;
use super::tables::{Tables, TopicEntry};
use super::tls::{Begun, Tls, TlsOptions};
use super::{end, offset, pull, send};
use crate::error::{Error, Result};
use crate::half::HalfFacts;
use crate::names;
use crate::store::{Store, Unacknowledged};
use crate::sync::unmodelled::{Mutex, RwLock};
use crate::units::{PhysicalOffset, QueueOffset};

/// After an `accept` that failed, mostly since no file handles are left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How often the connections' threads show that they come to their turns.
const BEAT: Duration = Duration::from_millis(500);

/// Bytes of the body of a request that is no message: a heartbeat with a thousand groups has less.
const CONTROL_BODY_MAX: usize = 1 << 20;
/// Bytes of what a client answers an operator's question; longer answers are dropped.
const ANSWER_BODY_MAX: usize = 4 << 20;

/// Questions that one client may leave without an answer; more are not asked.
const ASKED_MAX: usize = 1_000;

/// Where and how a server listens.
pub struct ServerOptions {
    /// Addresses of TCP; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// A socket's file.
    pub unix: Option<PathBuf>,
    /// Threads for connections.
    pub io_threads: usize,
    /// Connections that may be open; what comes then is closed at once.
    pub connections_max: u32,
    /// Bytes that all clients together may hold: buffers, answers that wait to be read, requests that wait.
    pub memory_max: usize,
    /// How long clients may take; then their connections are closed.
    pub limits: TimeLimits,
    /// The address that offset ids of messages name: the store's.
    pub host: SocketAddr,
    /// TLS for what comes by TCP; none: all is plain.
    pub tls: Option<TlsOptions>,
    /// Who may ask for what; none: everybody for everything.
    pub accounts: Option<Arc<Accounts>>,
}

/// What a topic is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Send,
    Read,
}

/// One client's connection, as requests see it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) born_host: SocketAddr,
    pub(super) outbox: Outbox,
    pub(super) account: Arc<Account>,
    /// Numbers among the living producers, by producer group and by the account that sent for it.
    producers: Mutex<HashMap<(String, Option<String>), u32>>,
    /// Whether Python has heard of it, and so must hear of its end.
    known: AtomicBool,
    /// Whether a request of its was denied: one is told, the others are counted.
    denied: AtomicBool,
    /// What it was asked and has not answered, by `opaque`.
    asked: Mutex<HashSet<i32>>,
    /// Updates of offsets that wait for Python.
    updates_waiting: AtomicUsize,
}

impl Session {
    /// Whether an update of an offset waits for Python. What the engine noted now would be replaced by what is older.
    pub(super) fn has_updates_waiting(&self) -> bool {
        self.updates_waiting.load(Relaxed) > 0
    }
}

/// Counts an update of an offset as long as it waits, also where its connection ends first.
struct UpdateWaiting<'a>(&'a AtomicUsize);

impl<'a> UpdateWaiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Relaxed);
        Self(waiting)
    }
}

impl Drop for UpdateWaiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What all connections share.
#[derive(Debug)]
pub struct Service {
    pub(super) store: Arc<Store>,
    pub(super) host: SocketAddr,
    /// What Python has told of topics and groups.
    pub tables: Tables,
    /// What Python is asked.
    pub policy: Policy,
    /// What has happened so far.
    pub counters: Counters,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) durable: Durable,
    /// Whose turn it is where a client leaves the queue to the server.
    pub(super) turn: AtomicU32,
    tls: RwLock<Option<Arc<Tls>>>,
    accounts: RwLock<Option<Arc<Accounts>>>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    next_session: AtomicU64,
    connections_max: u32,
    pub(super) limits: TimeLimits,
    budget: Arc<Budget>,
}

/// A server that listens until it is stopped.
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    addresses: Vec<SocketAddr>,
    stopping: watch::Sender<bool>,
    runtime: Mutex<Option<Runtime>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Service {
    /// The answer to a request; `None` where none is wanted.
    pub(super) async fn handle(&self, session: &Session, request: Command) -> Option<Command> {
        if request.is_response() {
            self.answered(session, request);
            return None;
        }
        let one_way = request.is_one_way();
        let blank = request.response(response::SUCCESS, None);
        // Before anything is read of it, the signature included: only messages are long.
        if !is_message(request.code) && request.body.len() > CONTROL_BODY_MAX {
            let remark = format!("a request {} has {CONTROL_BODY_MAX} bytes at most", request.code);
            Counters::count(&self.counters.requests_refused);
            let refused = Refusal::new(response::INVALID_PARAMETER, remark).response(&blank);
            return (!one_way).then_some(refused);
        }
        let done = match self.admit(session, &request) {
            Ok(()) => self.obey(session, request).await,
            Err(refusal) => Err(refusal),
        };
        if done.is_err() {
            Counters::count(&self.counters.requests_refused);
        }
        let answer = done.unwrap_or_else(|refusal| refusal.response(&blank));
        (!one_way).then_some(answer)
    }

    async fn obey(&self, session: &Session, request: Command) -> Result<Command, Refusal> {
        let row = RequestCode::of(request.code);
        match row.map_or(Handler::Refused, |row| row.handler) {
            Handler::Send => send::send(self, session, &request).await,
            Handler::Pull => pull::pull(self, session, &request).await,
            Handler::End => end::end(self, &request).await,
            Handler::Offset => self.update_offset(session, request).await,
            Handler::Python => self.decide(session, request).await,
            Handler::Client | Handler::Refused => {
                let name = row.map_or("no request of RocketMQ 5.4", |row| row.name);
                let remark = format!("request code {} ({name}) is not served", request.code);
                Err(Refusal::new(response::REQUEST_CODE_NOT_SUPPORTED, remark))
            }
        }
    }

    /// Notes how far a group has come; Python does where it must decide, or has earlier updates of the connection.
    async fn update_offset(&self, session: &Session, request: Command) -> Result<Command, Refusal> {
        if !session.has_updates_waiting() && offset::is_plain(self, &request) {
            return offset::update(self, &request);
        }
        let _waiting = UpdateWaiting::new(&session.updates_waiting);
        // Also one that wants no answer is asked for, so that it is known when it is done.
        self.answer_of_python(session, request).await
    }

    /// Whether its account may have a request done; always where there are no accounts.
    fn admit(&self, session: &Session, request: &Command) -> Result<(), Refusal> {
        let Some(accounts) = self.accounts.read().clone() else { return Ok(()) };
        let Err(denied) = access::admit(&accounts, request, |place| self.topic_at(place)) else { return Ok(()) };
        let (counter, remark) = match denied {
            Denied::NotSigned => {
                let remark = "the request is not signed by an account that is known here";
                (&self.counters.requests_not_signed, remark.to_owned())
            }
            Denied::NotAllowed(why) => (&self.counters.requests_not_allowed, why),
        };
        Counters::count(counter);
        if !session.denied.swap(true, Relaxed) {
            self.note(session, Event::RequestDenied { code: request.code, reason: remark.clone() });
        }
        Err(Refusal::new(response::NO_PERMISSION, remark))
    }

    /// Whether an account may send to a topic now; always where there are no accounts.
    pub fn may_send(&self, account: Option<&str>, topic: &str) -> bool {
        let accounts = self.accounts.read().clone();
        accounts.is_none_or(|accounts| accounts.may(account, &Need::Send(topic.into())))
    }

    /// The topic of what stands at a place, a half message's real one.
    fn topic_at(&self, place: Place) -> Option<String> {
        match place {
            Place::Record(offset) => {
                let record = self.store.read_at(PhysicalOffset(offset)).ok()?;
                Some(record.view().ok()?.topic.to_owned())
            }
            Place::Half(offset) => {
                let half = self.store.half(QueueOffset(offset)).ok()?;
                Some(HalfFacts::of(&half.view().ok()?).real_topic.to_owned())
            }
        }
    }

    /// Has Python answer, at some time where the client wants no answer.
    async fn decide(&self, session: &Session, request: Command) -> Result<Command, Refusal> {
        if !request.is_one_way() {
            return self.answer_of_python(session, request).await;
        }
        let blank = request.response(response::SUCCESS, None);
        session.known.store(true, Relaxed);
        let charge = session.account.charge(request.memory() + WAITING_COST);
        self.policy.tell(session.id, &session.address, Event::Request(request), Some(charge))?;
        Ok(blank)
    }

    /// Waits for Python's answer.
    async fn answer_of_python(&self, session: &Session, request: Command) -> Result<Command, Refusal> {
        let blank = request.response(response::SUCCESS, None);
        session.known.store(true, Relaxed);
        Ok(match self.policy.ask(session.id, &session.address, Event::Request(request)).await? {
            Answer::Response(Response { code, remark, ext_fields, body }) => {
                Command { code, remark, ext_fields, body, ..blank }
            }
            Answer::Producer(_) => blank,
        })
    }

    /// A topic's queues; one that is not known yet is asked for, and made where Python finds that right.
    pub(super) async fn topic(&self, session: &Session, name: &str, wanted: Use) -> Result<TopicEntry, Refusal> {
        if let Some(entry) = self.tables.topic(name) {
            return Ok(entry);
        }
        if names::is_system_topic(name) {
            let remark = format!("topic {name} is the system's: clients neither send to it nor read it");
            return Err(Refusal::new(response::NO_PERMISSION, remark));
        }
        names::validate_topic(name).map_err(|error| Refusal::of(&error))?;
        let asked = Event::UnknownTopic { name: name.to_owned(), create: wanted == Use::Send };
        succeeded(self.policy.ask(session.id, &session.address, asked).await?)?;
        // Many may have waited for the same topic: what nobody will read is not looked for.
        if !session.outbox.is_open() {
            return Err(Refusal::new(response::SYSTEM_BUSY, "the client does not read its answers"));
        }
        let missing = || Refusal::new(response::TOPIC_NOT_EXIST, format!("there is no topic {name}"));
        self.tables.topic(name).ok_or_else(missing)
    }

    /// A producer group's number on this connection; the first half message of a group makes it a producer of it.
    pub(super) async fn producer(&self, session: &Session, group: &str, account: Option<&str>) -> Result<u32, Refusal> {
        let key = (group.to_owned(), account.map(str::to_owned));
        if let Some(number) = session.producers.lock().get(&key) {
            return Ok(*number);
        }
        names::validate_group(group).map_err(|error| Refusal::of(&error))?;
        let asked = Event::NewProducer { group: group.to_owned(), account: account.map(str::to_owned) };
        session.known.store(true, Relaxed);
        let number = succeeded(self.policy.ask(session.id, &session.address, asked).await?)?;
        session.producers.lock().insert(key, number);
        Ok(number)
    }

    /// Has Python told again of a producer group that it has forgotten, with the group's next half message.
    pub fn forget_producer(&self, connection: u64, group: &str) {
        if let Some(session) = self.sessions.lock().get(&connection).cloned() {
            session.producers.lock().retain(|(of, _), _| of != group);
        }
    }

    /// Waits until a write may be acknowledged, without a thread of its own; returns what was written.
    pub(super) async fn acknowledged<T>(&self, written: Unacknowledged<'_, T>) -> Result<T, Refusal> {
        let (value, durable_first) = written.into_parts();
        if let Some(end) = durable_first {
            self.durable.sync(end).await.map_err(|error| Refusal::of(&error))?;
        }
        Ok(value)
    }

    /// Secures new connections by this certificate, and lets these accounts ask, those that are connected among them.
    /// After an error all is as it was; what is not given stays.
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

    /// Bytes that clients hold.
    pub fn memory_held(&self) -> usize {
        self.budget.held()
    }

    /// Sends a command to a client; false where its connection is gone or does not take it.
    pub fn send(&self, connection: u64, command: &Command) -> bool {
        let session = self.sessions.lock().get(&connection).cloned();
        session.is_some_and(|session| session.outbox.put(command))
    }

    /// As `send`, and Python is told of the answer, which names the command by its `opaque`.
    pub fn ask(&self, connection: u64, command: &Command) -> bool {
        let Some(session) = self.sessions.lock().get(&connection).cloned() else { return false };
        let mut asked = session.asked.lock();
        asked.len() < ASKED_MAX && session.outbox.put(command) && asked.insert(command.opaque)
    }

    /// Hands a client's answer to Python; one to what it was not asked is nobody's.
    fn answered(&self, session: &Session, answer: Command) {
        if session.asked.lock().remove(&answer.opaque) && answer.body.len() <= ANSWER_BODY_MAX {
            let charge = session.account.charge(answer.memory() + WAITING_COST);
            // Where the line is full it is as if the client had not answered.
            let _ = self.policy.tell(session.id, &session.address, Event::ClientAnswer(answer), Some(charge));
        }
    }

    /// Ends a connection.
    pub fn close_connection(&self, connection: u64) {
        if let Some(session) = self.sessions.lock().get(&connection) {
            session.outbox.close();
        }
    }

    fn join(&self, stream: &Stream) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        if u32::try_from(sessions.len()).is_ok_and(|open| open >= self.connections_max) {
            Counters::count(&self.counters.connections_refused);
            return None;
        }
        Counters::count(&self.counters.connections_accepted);
        self.counters.connections.fetch_add(1, Relaxed);
        let id = self.next_session.fetch_add(1, Relaxed) + 1;
        let peer = stream.peer();
        let account = Account::new(&self.budget);
        let session = Arc::new(Session {
            id,
            address: peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string()),
            born_host: peer.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)),
            outbox: Outbox::new(Arc::clone(&account)),
            account,
            producers: Mutex::default(),
            known: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            asked: Mutex::default(),
            updates_waiting: AtomicUsize::new(0),
        });
        sessions.insert(id, Arc::clone(&session));
        Some(session)
    }

    pub(super) fn leave(&self, session: &Session) {
        if self.sessions.lock().remove(&session.id).is_some() {
            self.counters.connections.fetch_sub(1, Relaxed);
            if session.known.load(Relaxed) {
                // Refused only where the server has stopped.
                let _ = self.policy.tell(session.id, &session.address, Event::ConnectionClosed, None);
            }
        }
    }

    /// Has Python log why a connection is ended: a frame that was none, a handshake that failed.
    pub(super) fn refused(&self, session: &Session, why: String) {
        self.note(session, Event::ConnectionRefused { reason: why });
    }

    fn note(&self, session: &Session, event: Event) {
        self.policy.note(session.id, &session.address, event);
    }
}

const fn is_message(code: i32) -> bool {
    matches!(code, codes::SEND_MESSAGE | codes::SEND_MESSAGE_V2 | codes::SEND_BATCH_MESSAGE)
}

/// The number of a producer, 0 where the answer names none; or why the client is refused.
fn succeeded(answer: Answer) -> Result<u32, Refusal> {
    match answer {
        Answer::Producer(number) => Ok(number),
        Answer::Response(response) if response.is_success() => Ok(0),
        Answer::Response(Response { code, remark, .. }) => Err(Refusal::new(code, remark.unwrap_or_default())),
    }
}

impl Server {
    /// Listens. Raises the system's error, with the address, where it cannot.
    pub fn start(store: Arc<Store>, options: &ServerOptions) -> Result<Self> {
        let tls = options.tls.as_ref().map(Tls::new).transpose()?;
        let service = Arc::new(Service {
            store,
            host: options.host,
            tables: Tables::default(),
            policy: Policy::default(),
            counters: Counters::default(),
            arrivals: Arc::default(),
            durable: Durable::default(),
            turn: AtomicU32::new(0),
            tls: RwLock::new(tls.map(Arc::new)),
            accounts: RwLock::new(options.accounts.clone()),
            sessions: Mutex::default(),
            next_session: AtomicU64::new(0),
            connections_max: options.connections_max,
            limits: options.limits,
            budget: Budget::new(options.memory_max),
        });
        let threads = options.io_threads.max(1);
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name("txstore-io").enable_all().build();
        let runtime = runtime.map_err(|error| Error::from_io("start the threads of", "the server", error))?;
        let (stopping, stopped) = watch::channel(false);
        let (listeners, addresses) = bind_all(options, &runtime)?;
        for listener in listeners {
            runtime.spawn(accept(Arc::clone(&service), listener, stopped.clone()));
        }
        runtime.spawn(beat(Arc::clone(&service), stopped));
        let server =
            Self { service, addresses, stopping, runtime: Mutex::new(Some(runtime)), threads: Mutex::default() };
        server.spawn("txstore-arrivals", |service| Arc::clone(&service.arrivals).run(&service.store))?;
        server.spawn("txstore-durable", |service| service.durable.run(&service.store))?;
        Ok(server)
    }

    /// What all connections share.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Where it listens by TCP.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Takes no connection and no request any more; what is in hand is still answered, and held pulls are.
    pub fn stop_listening(&self) {
        self.stopping.send_replace(true);
        self.service.arrivals.stop();
    }

    /// Ends at once what has not ended yet. Again: nothing.
    pub fn stop(&self) {
        self.stop_listening();
        self.service.policy.close();
        self.service.durable.stop();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A panic there has poisoned the store already.
            let _ = thread.join();
        }
    }

    fn spawn(&self, name: &str, work: impl FnOnce(&Service) + Send + 'static) -> Result<()> {
        let service = Arc::clone(&self.service);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&service));
        let thread = spawned.map_err(|error| Error::from_io("start a thread of", "the server", error))?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

fn bind_all(options: &ServerOptions, runtime: &Runtime) -> Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let _inside = runtime.enter();
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for wanted in &options.listen {
        let failed = |error| Error::from_io("listen at", wanted.to_string(), error);
        let listener = std::net::TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        addresses.push(listener.local_addr().map_err(failed)?);
        listeners.push(Listener::Tcp(listener));
    }
    if let Some(path) = &options.unix {
        listeners.push(Listener::Unix(bind_unix(path)?));
    }
    Ok((listeners, addresses))
}

fn bind_unix(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path).map_err(|error| Error::from_io("listen at", path, error))
}

async fn accept(service: Arc<Service>, listener: Listener, mut stopping: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => return,
        };
        match accepted {
            Ok(stream) => {
                if let Some(session) = service.join(&stream) {
                    tokio::spawn(serve(Arc::clone(&service), session, stream, stopping.clone()));
                }
            }
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Shows that the connections' threads come to their turns, until the server stops.
async fn beat(service: Arc<Service>, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(BEAT) => Counters::count(&service.counters.io_beats),
            _ = stopping.changed() => return,
        }
    }
}

/// One connection, from its first byte.
async fn serve(service: Arc<Service>, session: Arc<Session>, stream: Stream, mut stopping: watch::Receiver<bool>) {
    let tls = service.tls.read().clone();
    let begun = match (stream, tls) {
        (Stream::Tcp(tcp), Some(tls)) => tokio::select! {
            begun = tls.begin(tcp, service.limits.idle) => begun,
            _ = stopping.changed() => Begun::Gone,
        },
        (stream, _) => return Connection::new(service, session, stream).run(stopping).await,
    };
    let stream = match begun {
        Begun::Secured(stream) => Stream::Tls(stream),
        Begun::Plain(tcp) => Stream::Tcp(tcp),
        Begun::Gone => return service.leave(&session),
        Begun::Refused(why) => {
            Counters::count(&service.counters.handshakes_failed);
            Counters::count(&service.counters.connections_dropped);
            service.refused(&session, why);
            return service.leave(&session);
        }
    };
    Connection::new(service, session, stream).run(stopping).await;
}
