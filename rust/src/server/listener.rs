//! Listens and serves connections.
//!
//! In:     an open store, addresses.
//! Out:    answers to clients, requests for Python in `policy`.
//! Always: the number of threads is small and fixed. The data path (send, end, pull) waits for Python only if a topic
//!         or a producer is new.
//! Not here: decisions.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::connection::Connection;
use super::counters::Counters;
use super::grpc::{self, Messaging};
use super::ha;
use super::local::{self, UnixListener};
use super::network::Network;
pub use super::options::ServerOptions;
use super::service::Service;
use super::session::Session;
use super::stream::Stream;
use super::tls::{Begun, Protocol};
use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::Mutex;
use crate::store::Store;

/// The pause after a failed `accept`, usually because there are too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How often the connections' threads show that they are responsive.
const BEAT: Duration = Duration::from_millis(500);

/// A server. It listens until it is stopped.
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    addresses: Vec<SocketAddr>,
    grpc_address: Option<SocketAddr>,
    ha_address: Option<SocketAddr>,
    stopping: watch::Sender<bool>,
    runtime: Mutex<Option<Runtime>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    process: u32,
}

impl Server {
    /// Starts to listen. Fails with the system's error and the address.
    pub fn start(store: Arc<Store>, options: &ServerOptions) -> Result<Self> {
        let service = Service::new(store, options)?;
        let threads = options.io_threads.max(1);
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name("txstore-io").enable_all().build();
        let runtime = runtime.map_err(|error| Error::from_io("start the threads of", "the server", error))?;
        let (stopping, stopped) = watch::channel(false);
        let (listeners, addresses) = bind_all(options, &runtime)?;
        for listener in listeners {
            runtime.spawn(accept(Arc::clone(&service), listener, stopped.clone()));
        }
        let grpc_address = match &options.grpc {
            None => None,
            Some(grpc) => {
                let messaging = Messaging::new(Arc::clone(&service), grpc);
                let (listener, address) = bind_tcp(grpc.listen, &runtime)?;
                let listener = Listener::Grpc(listener, Arc::clone(&messaging));
                runtime.spawn(accept(Arc::clone(&service), listener, stopped.clone()));
                runtime.spawn(async move { messaging.expire().await });
                Some(address)
            }
        };
        let ha_address = match &options.ha {
            None => None,
            Some(ha) => {
                let (listener, address) = bind_tcp(ha.listen, &runtime)?;
                let listener = Listener::Ha(listener, ha.allow.clone());
                runtime.spawn(accept(Arc::clone(&service), listener, stopped.clone()));
                Some(address)
            }
        };
        runtime.spawn(beat(Arc::clone(&service), stopped));
        let dropping = Arc::clone(&service);
        runtime.spawn(async move { dropping.drop_largest().await });
        let (runtime, process) = (Mutex::new(Some(runtime)), std::process::id());
        let threads = Mutex::default();
        let server = Self { service, addresses, grpc_address, ha_address, stopping, runtime, threads, process };
        server.spawn("txstore-arrivals", |service| Arc::clone(&service.arrivals).run(&service.store))?;
        server.spawn("txstore-durable", |service| service.durable.run(&service.store))?;
        server.spawn("txstore-copies", |service| service.copies.run(&service.store))?;
        Ok(server)
    }

    /// Returns the state that all connections share.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Returns the TCP addresses on which the server listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the address of the gRPC protocol, if it is served.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc_address
    }

    /// Returns the address at which slaves of RocketMQ copy the log, if it is served.
    pub fn ha_address(&self) -> Option<SocketAddr> {
        self.ha_address
    }

    /// Stops accepting connections and requests. Requests in flight and held pulls are still answered.
    pub fn stop_listening(&self) {
        self.stopping.send_replace(true);
        self.service.arrivals.stop();
        self.service.copies.stop();
    }

    /// Ends all remaining work at once. Idempotent.
    pub fn stop(&self) {
        if self.process != std::process::id() {
            // The threads are the parent's. Waiting for them would never end.
            std::mem::forget(self.runtime.lock().take());
            std::mem::forget(std::mem::take(&mut *self.threads.lock()));
            return;
        }
        self.stop_listening();
        self.service.policy.close();
        self.service.durable.stop();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A panic in the thread has already poisoned the store.
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
    Grpc(TcpListener, Arc<Messaging>),
    /// The port for slaves of RocketMQ, and the networks from which they may connect.
    Ha(TcpListener, Vec<Network>),
    Unix(UnixListener),
    /// The store's own socket. Its clients could write the files themselves, so they need no account.
    Local(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) | Self::Grpc(listener, _) | Self::Ha(listener, _) => {
                listener.accept().await.map(|(stream, _)| Stream::Tcp(stream))
            }
            Self::Unix(listener) | Self::Local(listener) => {
                listener.accept().await.map(|(stream, _)| Stream::Unix(stream))
            }
        }
    }
}

/// Returns whether a client may connect at all.
fn may_connect(listener: &Listener, stream: &Stream) -> bool {
    match (listener, stream) {
        (_, Stream::Unix(unix)) => local::may_connect(unix),
        (Listener::Ha(_, allow), _) => stream.peer().is_some_and(|peer| Network::allow(allow, peer.ip())),
        (_, Stream::Tcp(_) | Stream::Tls(_)) => true,
    }
}

fn bind_all(options: &ServerOptions, runtime: &Runtime) -> Result<(Vec<Listener>, Vec<SocketAddr>)> {
    let _inside = runtime.enter();
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for wanted in &options.listen {
        let (listener, address) = bind_tcp(*wanted, runtime)?;
        addresses.push(address);
        listeners.push(Listener::Tcp(listener));
    }
    if let Some(path) = &options.unix {
        listeners.push(Listener::Unix(local::bind(path)?));
    }
    if let Some(socket) = &options.local {
        let failed = |error| Error::from_io("listen at", "the local socket", error);
        let socket = socket.try_clone().map_err(failed)?;
        listeners.push(Listener::Local(UnixListener::from_std(socket).map_err(failed)?));
    }
    Ok((listeners, addresses))
}

fn bind_tcp(wanted: SocketAddr, runtime: &Runtime) -> Result<(TcpListener, SocketAddr)> {
    let _inside = runtime.enter();
    let failed = |error| Error::from_io("listen at", wanted.to_string(), error);
    let listener = std::net::TcpListener::bind(wanted).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

async fn accept(service: Arc<Service>, listener: Listener, mut stopping: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => return,
        };
        match accepted {
            Ok(stream) if !may_connect(&listener, &stream) => {
                Counters::count(&service.counters.connections_refused);
                if let (Listener::Ha(..), Some(peer)) = (&listener, stream.peer()) {
                    ha::note_stranger(&service, peer);
                }
            }
            Ok(stream) => {
                if let Some(session) = service.join(&stream, matches!(listener, Listener::Local(_))) {
                    let (service, stopping) = (Arc::clone(&service), stopping.clone());
                    match &listener {
                        Listener::Grpc(_, messaging) => {
                            tokio::spawn(serve_grpc(service, Arc::clone(messaging), session, stream, stopping))
                        }
                        Listener::Ha(..) => tokio::spawn(serve_ha(service, session, stream, stopping)),
                        _ => tokio::spawn(serve(service, session, stream, stopping)),
                    };
                }
            }
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Shows that the connections' threads are responsive, until the server stops.
async fn beat(service: Arc<Service>, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(BEAT) => Counters::count(&service.counters.io_beats),
            _ = stopping.changed() => return,
        }
    }
}

/// Serves one connection from its first byte on.
async fn serve(service: Arc<Service>, session: Arc<Session>, stream: Stream, stopping: watch::Receiver<bool>) {
    if let Some(stream) = begin(&service, &session, stream, Protocol::Remoting, stopping.clone()).await {
        Connection::new(service, session, stream).run(stopping).await;
    }
}

/// Serves one connection of the gRPC protocol from its first byte on.
async fn serve_grpc(
    service: Arc<Service>,
    messaging: Arc<Messaging>,
    session: Arc<Session>,
    stream: Stream,
    stopping: watch::Receiver<bool>,
) {
    match begin(&service, &session, stream, Protocol::Grpc, stopping.clone()).await {
        Some(Stream::Tcp(tcp)) => {
            // If the socket refuses the option, it is only slower.
            let _ = tcp.set_nodelay(true);
            grpc::serve(messaging, session, tcp, stopping).await;
        }
        Some(Stream::Tls(tls)) => {
            tls.set_no_delay();
            grpc::serve(messaging, session, tls.into_inner(), stopping).await;
        }
        // This protocol has no Unix sockets.
        Some(Stream::Unix(_)) => service.leave(&session),
        None => {}
    }
}

/// Serves one connection of a slave of RocketMQ. Its protocol has no TLS.
async fn serve_ha(service: Arc<Service>, session: Arc<Session>, stream: Stream, stopping: watch::Receiver<bool>) {
    if let Stream::Tcp(tcp) = stream {
        ha::serve(&service, &session, tcp, stopping).await;
    }
    service.leave(&session);
}

/// Does the TLS handshake, if there is one. Returns `None` if the connection has ended.
async fn begin(
    service: &Service,
    session: &Session,
    stream: Stream,
    protocol: Protocol,
    mut stopping: watch::Receiver<bool>,
) -> Option<Stream> {
    let tls = service.tls();
    let begun = match (stream, tls) {
        (Stream::Tcp(tcp), Some(tls)) => tokio::select! {
            begun = tls.begin(tcp, protocol, service.limits.idle) => begun,
            _ = stopping.changed() => Begun::Gone,
        },
        (stream, _) => return Some(stream),
    };
    match begun {
        Begun::Secured(stream) => return Some(Stream::Tls(stream)),
        Begun::Plain(tcp) => return Some(Stream::Tcp(tcp)),
        Begun::Gone => {}
        Begun::Refused(why) => {
            Counters::count(&service.counters.handshakes_failed);
            Counters::count(&service.counters.connections_dropped);
            service.refused(session, why);
        }
    }
    service.leave(session);
    None
}
