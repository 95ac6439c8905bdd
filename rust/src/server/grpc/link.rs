//! What one gRPC connection holds and when its client was last active.
//!
//! In:     bytes and bodies as they pass.
//! Out:    the memory charged to the connection; the deadlines that its client missed.
//! Always: a request's bytes count from their arrival until its handler is done, an answer's bytes until HTTP/2 asks for
//!         more. A client that lets answers wait, on its socket or by HTTP/2's flow control, is disconnected in time.
//! Not here: HTTP/2 (`connection`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tonic::Status;

use crate::base::sync::unmodelled::Mutex;
use crate::server::budget::{Charge, WAITING_COST};
use crate::server::counters::Counters;
use crate::server::deadlines::{Deadlines, Missed};
use crate::server::service::Service;
use crate::server::session::Session;

/// The bytes with which every HTTP/2 client begins: the preface, and the header of its settings.
const BEGINNING: usize = 24 + 9;
/// How long nothing is read while the memory of closed connections is being freed.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// One connection, as its socket and its requests see it.
#[derive(Debug)]
pub(super) struct Link {
    service: Arc<Service>,
    pub(super) session: Arc<Session>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    deadlines: Deadlines,
    /// The bytes that arrived, up to `BEGINNING`.
    begun: usize,
    /// Whether bytes wait for the socket.
    socket_waits: bool,
    /// The number of answers of which a part waits for HTTP/2 to accept more.
    answers_waiting: usize,
}

impl Link {
    pub(super) fn new(service: Arc<Service>, session: Arc<Session>) -> Arc<Self> {
        let deadlines = Deadlines::new(service.limits);
        let state = State { deadlines, begun: 0, socket_waits: false, answers_waiting: 0 };
        Arc::new(Self { service, session, state: Mutex::new(state) })
    }

    /// Returns the deadline that has passed, or the time until the next one may pass.
    pub(super) fn missed_or_next(&self) -> Result<Duration, Missed> {
        let limits = self.service.limits;
        let state = self.state.lock();
        match state.deadlines.missed() {
            Some(missed) => Err(missed),
            // A deadline that begins later may be shorter than those that run now.
            None if state.begun < BEGINNING => Ok(state.deadlines.next().min(limits.first_frame)),
            None => Ok(state.deadlines.next().min(limits.unread)),
        }
    }

    /// Gives the client less time to read.
    pub(super) fn stopping(&self) {
        self.state.lock().deadlines.stopping();
    }

    fn heard(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.deadlines.heard();
        if state.begun < BEGINNING {
            state.begun += bytes;
            let is_complete = state.begun >= BEGINNING;
            state.deadlines.frames(is_complete.into(), !is_complete);
        }
    }

    fn socket_written(&self, some: bool, waits: bool) {
        let mut state = self.state.lock();
        state.socket_waits = waits;
        let waits = waits || state.answers_waiting > 0;
        state.deadlines.written(some, waits);
    }

    fn answer_waits(&self) {
        let mut state = self.state.lock();
        state.answers_waiting += 1;
        state.deadlines.written(false, true);
    }

    fn answer_taken(&self) {
        let mut state = self.state.lock();
        state.answers_waiting -= 1;
        let waits = state.socket_waits || state.answers_waiting > 0;
        state.deadlines.written(true, waits);
    }

    /// Ends the connection, because of what its client did.
    fn drop_connection(&self) {
        self.session.outbox.abandon();
    }
}

/// A socket that tells its link what happens.
pub(super) struct Watched<S> {
    socket: S,
    link: Arc<Link>,
}

impl<S> Watched<S> {
    pub(super) const fn new(socket: S, link: Arc<Link>) -> Self {
        Self { socket, link }
    }

    fn wrote(&self, wanted: usize, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(written)) => self.link.socket_written(true, *written < wanted),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.link.socket_written(false, true),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        if read > 0 {
            self.link.heard(read);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(bytes.len(), &written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, parts);
        self.wrote(parts.iter().map(|part| part.len()).sum(), &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The memory of one request, until its handler is done: the charge and its bytes.
#[derive(Debug)]
pub(super) struct Held(Mutex<(Charge, usize)>);

impl Held {
    fn new(session: &Session) -> Arc<Self> {
        Arc::new(Self(Mutex::new((session.account.charge(WAITING_COST), WAITING_COST))))
    }

    pub(super) fn add(&self, bytes: usize) {
        let mut held = self.0.lock();
        held.1 += bytes;
        let total = held.1;
        held.0.set(total);
    }

    /// Forgets the bytes of a message that was handled. For a stream of them.
    pub(super) fn clear(&self) {
        let mut held = self.0.lock();
        held.0.set(WAITING_COST);
        held.1 = WAITING_COST;
    }
}

/// The body of a request.
pub(super) struct Inbound {
    body: Incoming,
    link: Arc<Link>,
    held: Arc<Held>,
    /// The time to send the whole body. `None`: it has not waited yet, or it is a stream.
    deadline: Option<Pin<Box<Sleep>>>,
    is_stream: bool,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Inbound {
    /// `is_stream`: the client sends messages for as long as it lives.
    pub(super) fn new(body: Incoming, link: Arc<Link>, is_stream: bool) -> Self {
        let held = Held::new(&link.session);
        Self { body, link, held, deadline: None, is_stream, pause: None }
    }

    pub(super) fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Waits while the memory of closed connections must be freed first.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.link.service.is_memory_full() {
            let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(FULL_PAUSE)));
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_stream {
            return Poll::Pending;
        }
        let limit = self.link.service.limits.frame;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        self.link.drop_connection();
        Poll::Ready(Some(Err(Status::deadline_exceeded("the request was not complete in time"))))
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        ready!(self.poll_room(cx));
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else { return self.poll_deadline(cx) };
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(|error| Status::from_error(error.into()))?;
        if let Some(data) = frame.data_ref() {
            self.held.add(data.len());
            if self.link.session.account.is_too_much() {
                return Poll::Ready(Some(Err(Status::resource_exhausted("the connection holds too much memory"))));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer.
pub(super) struct Outbound {
    body: tonic::body::Body,
    link: Arc<Link>,
    /// The part that HTTP/2 was given last.
    given: Option<Charge>,
}

impl Outbound {
    pub(super) const fn new(body: tonic::body::Body, link: Arc<Link>) -> Self {
        Self { body, link, given: None }
    }

    fn taken(&mut self) {
        if self.given.take().is_some() {
            self.link.answer_taken();
        }
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        // HTTP/2 asks for more only when it could send what it has.
        self.taken();
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else { return Poll::Ready(None) };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            self.given = Some(self.link.session.account.charge(data.len()));
            self.link.answer_waits();
            if self.link.session.account.is_too_much() {
                Counters::count(&self.link.service.counters.requests_refused);
                return Poll::Ready(Some(Err(Status::resource_exhausted("the connection holds too much memory"))));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.taken();
    }
}
