//! Runs one gRPC connection as one task: HTTP/2 by hyper.
//!
//! In:     a socket, with or without TLS.
//! Out:    nothing. The task ends when the client disconnects, misses a deadline, or holds too much memory.
//! Always: a request is a task of its own, up to a limit of each connection. What HTTP/2 may buffer is small, because it
//!         is not counted.
//! Not here: the requests (`router`).

use std::convert::Infallible;
use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::Messaging;
use super::link::{Link, Watched};
use super::router;
use crate::base::clock::{Clock, SystemClock};
use crate::server::counters::Counters;
use crate::server::deadlines::Missed;
use crate::server::session::Session;

/// The most requests of one connection at the same time. A held receive is one, and several clients of a process may
/// share a connection.
const REQUESTS_MAX: u32 = 1_024;
/// How much of requests may arrive before their handlers take it, in bytes.
const WINDOW: u32 = 512 << 10;
/// How much of each answer may wait for the socket.
const UNSENT_MAX: usize = 64 << 10;
const HEADERS_MAX: u32 = 16 << 10;

/// Why a connection ends.
enum End {
    /// The client has disconnected, or the server stops.
    Quiet,
    /// The client violated the protocol or a limit.
    Dropped,
}

/// Serves a connection until it ends.
pub(in crate::server) async fn serve<S>(
    messaging: Arc<Messaging>,
    session: Arc<Session>,
    socket: S,
    stopping: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = Arc::clone(&messaging.service);
    if matches!(run(messaging, &session, socket, stopping).await, End::Dropped) {
        Counters::count(&service.counters.connections_dropped);
    }
    session.outbox.close();
    service.pop.connection_lost(session.id, SystemClock.monotonic_ms());
    service.leave(&session);
}

async fn run<S>(
    messaging: Arc<Messaging>,
    session: &Arc<Session>,
    socket: S,
    mut stopping: watch::Receiver<bool>,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = Arc::clone(&messaging.service);
    let link = Link::new(Arc::clone(&service), Arc::clone(session));
    let socket = TokioIo::new(Watched::new(socket, Arc::clone(&link)));
    let (answering, stops_streams) = (Arc::clone(&link), stopping.clone());
    let requests = service_fn(move |request| {
        let (messaging, link, stopping) = (Arc::clone(&messaging), Arc::clone(&answering), stops_streams.clone());
        async move { Ok::<_, Infallible>(router::answer(messaging, link, stopping, request).await) }
    });
    let mut connection = pin!(http2_of().serve_connection(socket, requests));
    let mut stops = false;
    loop {
        if *stopping.borrow() && !stops {
            stops = true;
            link.stopping();
            connection.as_mut().graceful_shutdown();
        }
        if !session.outbox.is_open() {
            return if session.outbox.is_closed() { End::Quiet } else { End::Dropped };
        }
        let wait = match link.missed_or_next() {
            Ok(wait) => wait,
            Err(Missed::Silent) => return End::Quiet,
            Err(Missed::Frame | Missed::Unread) => return End::Dropped,
        };
        tokio::select! {
            done = connection.as_mut() => return match done {
                Err(error) if is_malformed(&error) => {
                    Counters::count(&service.counters.frames_malformed);
                    service.refused(session, error.to_string());
                    End::Dropped
                }
                Ok(()) | Err(_) => End::Quiet,
            },
            () = session.outbox.changed.notified() => {}
            _ = stopping.changed(), if !stops => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn http2_of() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(REQUESTS_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(UNSENT_MAX)
        .max_header_list_size(HEADERS_MAX);
    builder
}

/// Returns whether the client violated HTTP/2, and did not merely disconnect.
fn is_malformed(error: &hyper::Error) -> bool {
    let http2 = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    http2.is_some_and(|error| !error.is_io() && !error.is_remote())
}
