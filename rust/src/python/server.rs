//! `RemotingServer`: the server's Python interface. Calls of a few lines into `crate::server`.
//!
//! Always: Python polls for events. The interpreter's lock is released while it waits.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use pyo3::prelude::*;

use super::call::detached;
use super::error::OrRaise;
use super::event::{NewProducer, Question, to_object};
use super::sql::Wanted;
use super::store::Store;
use crate::base::error::Error;
use crate::base::units::QueueOffset;
use crate::remoting::Command;
use crate::remoting::command::FLAG_ONE_WAY;
use crate::server::accounts::{AccountOptions, Accounts, Permission};
use crate::server::copies::CopyRules;
use crate::server::deadlines::TimeLimits;
use crate::server::event::{Answer, Response};
use crate::server::listener::{Server, ServerOptions};
use crate::server::local;
use crate::server::network::Network;
use crate::server::options::{GrpcOptions, HaOptions};
use crate::server::pop::source::Progress;
use crate::server::tables::{GroupEntry, Subscription};
use crate::server::tls::{self, TlsOptions};
use crate::server::traffic::{Kind, SIZE_BOUNDS};
use crate::transaction::HalfFacts;

/// Topic, kind, messages, bytes, messages by size.
type Sent = (String, &'static str, u64, u64, Vec<(Option<u64>, u64)>);

/// The topic to which a group subscribes; topic and queue; messages in flight, to deliver again, acknowledged above.
type InFlight = (String, String, i32, usize, usize, usize);

/// The TLS files, by the names of the Python object's attributes.
#[derive(FromPyObject)]
struct TlsFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authority: Option<Vec<u8>>,
    required: bool,
    handshake_seconds: f64,
}

impl TryFrom<TlsFiles> for TlsOptions {
    type Error = Error;

    fn try_from(files: TlsFiles) -> Result<Self, Error> {
        let TlsFiles { certificate, key, client_authority, required, handshake_seconds } = files;
        let handshake = time("tls_handshake_timeout", handshake_seconds)?;
        Ok(Self { certificate, key, client_authority, required, handshake })
    }
}

/// Returns the time that an option states in seconds.
fn time(option: &str, seconds: f64) -> Result<Duration, Error> {
    let what = || format!("expected a finite number of seconds, 0 or more, got {seconds}");
    Duration::try_from_secs_f64(seconds).map_err(|_| Error::InvalidOption { option: option.to_owned(), what: what() })
}

/// An account, by the names of the Python object's attributes. Permissions are bits.
#[derive(FromPyObject)]
struct AccountFacts {
    access_key: String,
    secret_key: String,
    admin: bool,
    default_topic: u8,
    default_group: u8,
    topics: HashMap<String, u8>,
    groups: HashMap<String, u8>,
}

impl From<AccountFacts> for AccountOptions {
    fn from(facts: AccountFacts) -> Self {
        let AccountFacts { access_key, secret_key, admin, default_topic, default_group, topics, groups } = facts;
        let table = |of: HashMap<String, u8>| of.into_iter().map(|(name, bits)| (name, Permission::from_bits(bits)));
        Self {
            access_key,
            secret_key,
            admin,
            default_topic: Permission::from_bits(default_topic),
            default_group: Permission::from_bits(default_group),
            topics: table(topics).collect(),
            groups: table(groups).collect(),
        }
    }
}

/// The server's certificate and key, and the accounts.
#[derive(FromPyObject)]
struct Secrets {
    tls: Option<TlsFiles>,
    accounts: Option<Vec<AccountFacts>>,
}

impl Secrets {
    fn split(self) -> Result<(Option<TlsOptions>, Option<Accounts>), Error> {
        let accounts = self.accounts.map(|all| Accounts::new(all.into_iter().map(AccountOptions::from)));
        Ok((self.tls.map(TlsOptions::try_from).transpose()?, accounts))
    }
}

/// The limits for clients, by the names of the Python object's attributes. Times are in seconds.
#[derive(FromPyObject)]
struct Limits {
    connections_max: u32,
    memory_max: usize,
    idle_timeout: f64,
    first_frame_timeout: f64,
    frame_timeout: f64,
    unread_timeout: f64,
}

impl Limits {
    fn times(&self) -> Result<TimeLimits, Error> {
        Ok(TimeLimits {
            idle: time("idle_timeout", self.idle_timeout)?,
            first_frame: time("first_frame_timeout", self.first_frame_timeout)?,
            frame: time("frame_timeout", self.frame_timeout)?,
            unread: time("unread_timeout", self.unread_timeout)?,
        })
    }
}

/// The gRPC protocol's options, by the names of the Python object's attributes.
#[derive(FromPyObject)]
struct GrpcFacts {
    listen: String,
    broker_name: String,
    checks_message_types: bool,
}

impl GrpcFacts {
    fn options(self, address: impl Fn(&String) -> Result<SocketAddr, Error>) -> Result<GrpcOptions, Error> {
        let Self { listen, broker_name, checks_message_types } = self;
        Ok(GrpcOptions { listen: address(&listen)?, broker_name, checks_message_types })
    }
}

/// The port for slaves of RocketMQ, by the names of the Python object's attributes. A network is an address and a prefix.
#[derive(FromPyObject)]
struct HaFacts {
    listen: String,
    allow: Vec<(IpAddr, u8)>,
}

impl HaFacts {
    fn options(self, address: impl Fn(&String) -> Result<SocketAddr, Error>) -> Result<HaOptions, Error> {
        let allow = self.allow.into_iter().map(|(address, prefix)| Network { address, prefix });
        Ok(HaOptions { listen: address(&self.listen)?, allow: allow.collect() })
    }
}

/// Returns the rules: how many copies, how many seconds a client waits for them, and whether they must be synced.
fn copy_rules((required, timeout, durable): (usize, f64, bool)) -> Result<CopyRules, Error> {
    Ok(CopyRules { required, timeout: time("replica_timeout", timeout)?, durable })
}

/// A listening Unix socket of a store, for which a server is started when a client connects.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct LocalListener(local::LocalListener);

#[pymethods]
impl LocalListener {
    #[staticmethod]
    fn bind(py: Python<'_>, address: &str) -> PyResult<Self> {
        local::LocalListener::bind(address).map(Self).or_raise(py)
    }

    fn wait(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || self.0.wait())
    }

    fn wake(&self) {
        self.0.wake();
    }

    #[getter]
    fn descriptors(&self) -> [i32; 2] {
        self.0.descriptors()
    }
}

/// A server. It listens until it is stopped.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct RemotingServer {
    server: Server,
    opaque: AtomicI32,
}

#[pymethods]
impl RemotingServer {
    #[staticmethod]
    #[pyo3(signature = (
        store, *, listen, limits, unix=None, local=None, io_threads=2, broker_name="txstore", secrets=None, copies=None,
        grpc=None, ha=None
    ))]
    #[allow(clippy::too_many_arguments)] // Each is a keyword of the Python call.
    fn start(
        py: Python<'_>,
        store: &Bound<'_, Store>,
        listen: Vec<String>,
        limits: Limits,
        unix: Option<PathBuf>,
        local: Option<&Bound<'_, LocalListener>>,
        io_threads: usize,
        broker_name: &str,
        secrets: Option<Secrets>,
        copies: Option<(usize, f64, bool)>,
        grpc: Option<GrpcFacts>,
        ha: Option<HaFacts>,
    ) -> PyResult<Self> {
        let address = |text: &String| {
            let what = || {
                format!(
                    "{text:?} is not an address\nhint: use HOST:PORT with a numeric host, for example 127.0.0.1:10911"
                )
            };
            text.parse::<SocketAddr>().map_err(|_| Error::InvalidOption { option: "listen".into(), what: what() })
        };
        let listen = listen.iter().map(address).collect::<Result<_, _>>().or_raise(py)?;
        let (tls, accounts) = secrets.map(Secrets::split).transpose().or_raise(py)?.unwrap_or_default();
        let options = ServerOptions {
            listen,
            unix,
            local: local.map(|local| local.get().0.socket()).transpose().or_raise(py)?,
            io_threads,
            connections_max: limits.connections_max,
            memory_max: limits.memory_max,
            limits: limits.times().or_raise(py)?,
            broker_name: broker_name.to_owned(),
            host: store.get().host,
            tls,
            accounts: accounts.map(Arc::new),
            grpc: grpc.map(|grpc| grpc.options(address)).transpose().or_raise(py)?,
            ha: ha.map(|ha| ha.options(address)).transpose().or_raise(py)?,
            copies: copies.map(copy_rules).transpose().or_raise(py)?.unwrap_or_default(),
        };
        let store = Arc::clone(&store.get().store);
        let server = detached(py, || Server::start(store, &options))?;
        Ok(Self { server, opaque: AtomicI32::new(0) })
    }

    #[staticmethod]
    fn check_secrets(py: Python<'_>, secrets: Secrets) -> PyResult<()> {
        let (tls, _) = secrets.split().or_raise(py)?;
        tls.as_ref().map_or(Ok(()), tls::check).or_raise(py)
    }

    fn set_secrets(&self, py: Python<'_>, secrets: Secrets) -> PyResult<()> {
        let (tls, accounts) = secrets.split().or_raise(py)?;
        self.server.service().set_secrets(tls.as_ref(), accounts).or_raise(py)
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.server.addresses().iter().map(ToString::to_string).collect()
    }

    #[getter]
    fn grpc_address(&self) -> Option<String> {
        self.server.grpc_address().map(|address| address.to_string())
    }

    #[getter]
    fn ha_address(&self) -> Option<String> {
        self.server.ha_address().map(|address| address.to_string())
    }

    fn replicas(&self, py: Python<'_>) -> Vec<(String, u64, u64, u64, u64)> {
        let replicas = py.detach(|| self.server.service().replicas());
        replicas.into_iter().map(|one| (one.name, one.copied, one.silent_ms, one.lag_bytes, one.lag_ms)).collect()
    }

    fn slaves(&self, py: Python<'_>) -> Vec<(u64, u64)> {
        py.detach(|| self.server.service().slaves()).into_iter().map(|(connection, end)| (connection, end.0)).collect()
    }

    fn next_event<'py>(&self, py: Python<'py>, timeout_ms: u64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let entry = py.detach(|| self.server.service().policy.next(timeout_ms));
        entry.map(|entry| to_object(py, entry)).transpose()
    }

    #[pyo3(signature = (event, code, remark=None, fields=None, body=None))]
    fn answer(
        &self,
        event: Question<'_>,
        code: i32,
        remark: Option<String>,
        fields: Option<HashMap<String, String>>,
        body: Option<Vec<u8>>,
    ) -> bool {
        let ext_fields = fields.unwrap_or_default().into_iter().collect();
        let response = Response { code, remark, ext_fields, body: body.unwrap_or_default() };
        self.server.service().policy.answer(event.number(), Answer::Response(response))
    }

    fn answer_producer(&self, event: &Bound<'_, NewProducer>, number: u32) -> bool {
        self.server.service().policy.answer(event.get().number(), Answer::Producer(number))
    }

    #[pyo3(signature = (connection, code, fields, body=None))]
    fn send(&self, connection: u64, code: i32, fields: HashMap<String, String>, body: Option<Vec<u8>>) -> bool {
        self.server.service().send(connection, &self.request(code, FLAG_ONE_WAY, fields, body))
    }

    #[pyo3(signature = (connection, code, fields, body=None))]
    fn ask(&self, connection: u64, code: i32, fields: HashMap<String, String>, body: Option<Vec<u8>>) -> Option<i32> {
        let command = self.request(code, 0, fields, body);
        self.server.service().ask(connection, &command).then_some(command.opaque)
    }

    fn send_check(
        &self,
        py: Python<'_>,
        connection: u64,
        account: Option<&str>,
        store: &Bound<'_, Store>,
        half_queue_offset: u64,
        broker_name: &str,
    ) -> PyResult<bool> {
        let store = &store.get().store;
        let half = detached(py, || store.half(QueueOffset(half_queue_offset)))?;
        let topic = HalfFacts::of(&half.view().or_raise(py)?).real_topic.to_owned();
        if !self.server.service().may_send(account, &topic) {
            return Ok(false);
        }
        let opaque = self.next_opaque();
        self.server.service().send_check(connection, &half, broker_name, opaque).or_raise(py)
    }

    fn take_answers(&self, taken: bool) {
        self.server.service().take_answers(taken);
    }

    fn accepts_checks(&self, connection: u64) -> bool {
        self.server.service().accepts_checks(connection)
    }

    fn may_send(&self, account: Option<&str>, topic: &str) -> bool {
        self.server.service().may_send(account, topic)
    }

    fn may_read(&self, account: Option<&str>, topic: &str) -> bool {
        self.server.service().may_read(account, topic)
    }

    fn forget_producer(&self, connection: u64, group: &str) {
        self.server.service().forget_producer(connection, group);
    }

    fn close_connection(&self, connection: u64) {
        self.server.service().close_connection(connection);
    }

    #[pyo3(signature = (topic, read_queues, write_queues, message_type=None))]
    fn set_topic(
        &self,
        py: Python<'_>,
        topic: &str,
        read_queues: i32,
        write_queues: i32,
        message_type: Option<&str>,
    ) -> PyResult<()> {
        let message_type = message_type.and_then(Kind::named);
        self.server.service().tables.set_topic(topic, read_queues, write_queues, message_type).or_raise(py)
    }

    fn forget_topic(&self, topic: &str) {
        self.server.service().tables.forget_topic(topic);
    }

    fn set_group(&self, group: &str, fifo: bool, retries_max: u32) {
        self.server.service().tables.set_group(group, GroupEntry { fifo, retries_max });
    }

    fn grpc_members(&self, group: &str) -> usize {
        self.server.service().grpc_members(group)
    }

    fn grpc_clients_of(&self, group: &str) -> Vec<(String, String, &'static str, i64)> {
        let clients = self.server.service().grpc_clients_of(group).into_iter();
        clients.map(|one| (one.id, one.address, one.language, one.silent_ms)).collect()
    }

    fn grpc_readers(&self, topic: &str) -> Vec<String> {
        self.server.service().grpc_readers(topic)
    }

    fn grpc_progress(&self, py: Python<'_>, group: &str) -> PyResult<Vec<InFlight>> {
        let found = self.server.service().grpc_progress(group).or_raise(py)?;
        let row = |(origin, one): (String, Progress)| {
            (origin, one.topic, one.queue_id.0, one.in_flight, one.to_redeliver, one.acknowledged_above)
        };
        Ok(found.into_iter().map(row).collect())
    }

    fn forget_group(&self, group: &str) {
        self.server.service().tables.forget_group(group);
    }

    fn set_subscriptions(&self, group: &str, wanted: Vec<(String, Option<Wanted>, i64)>) {
        let subscription = |wanted: Option<Wanted>, version| Subscription { selector: wanted.map(Into::into), version };
        let wanted = wanted.into_iter().map(|(topic, wanted, version)| (topic, subscription(wanted, version)));
        self.server.service().tables.set_subscriptions(group, wanted.collect());
    }

    fn set_orderly(&self, group: &str, orderly: bool) {
        self.server.service().tables.set_orderly(group, orderly);
    }

    fn counters(&self) -> HashMap<&'static str, u64> {
        let service = self.server.service();
        let mut counters: HashMap<_, _> = service.counters.all().into_iter().collect();
        counters.extend(["messages_in", "halves_in", "bytes_in", "messages_out", "bytes_out"].map(|name| (name, 0)));
        let traffic = &service.tables.traffic;
        for sent in traffic.all_sent() {
            let name = if sent.kind == Kind::Transaction { "halves_in" } else { "messages_in" };
            *counters.entry(name).or_insert(0) += sent.messages;
            *counters.entry("bytes_in").or_insert(0) += sent.bytes;
        }
        for read in traffic.all_read() {
            *counters.entry("messages_out").or_insert(0) += read.messages;
            *counters.entry("bytes_out").or_insert(0) += read.bytes;
        }
        counters.insert("memory_held", crate::base::units::to_u64(service.memory_held()));
        counters.insert("memory_uncounted", crate::base::units::to_u64(service.memory_uncounted()));
        counters.insert("grpc_consumers", crate::base::units::to_u64(service.grpc_members_in_all()));
        counters.insert("requests_waiting", crate::base::units::to_u64(service.policy.waiting()));
        counters
    }

    fn sent(&self) -> Vec<Sent> {
        let bounds = || SIZE_BOUNDS.into_iter().map(Some).chain([None]);
        let rows = self.server.service().tables.traffic.all_sent().into_iter();
        rows.map(|row| (row.topic, row.kind.name(), row.messages, row.bytes, bounds().zip(row.sizes).collect()))
            .collect()
    }

    fn handed_out(&self) -> Vec<(String, String, u64, u64)> {
        let rows = self.server.service().tables.traffic.all_read().into_iter();
        rows.map(|row| (row.topic, row.group, row.messages, row.bytes)).collect()
    }

    fn stop_listening(&self) {
        self.server.stop_listening();
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.server.stop());
    }
}

impl RemotingServer {
    /// Creates a request of the server.
    fn request(&self, code: i32, flag: i32, fields: HashMap<String, String>, body: Option<Vec<u8>>) -> Command {
        Command {
            flag,
            ext_fields: fields.into_iter().collect(),
            body: body.unwrap_or_default(),
            ..Command::request(code, self.next_opaque())
        }
    }

    fn next_opaque(&self) -> i32 {
        self.opaque.fetch_add(1, Ordering::Relaxed)
    }
}
