//! Runs one client's connection as one task: reads commands, writes answers.
//!
//! In:     a socket.
//! Out:    nothing. The task ends when the client disconnects, sends a malformed frame, or does not read.
//! Always: requests that need no waiting are answered in order. Others become small tasks, up to a limit.
//! Not here: the contents of the answers.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::budget::{Charge, WAITING_COST};
use super::counters::Counters;
use super::deadlines::{Deadlines, Missed};
use super::outbox::OUT_PAUSE;
use super::router;
use super::service::Service;
use super::session::Session;
use super::stream::Stream;
use crate::remoting::codes::response;
use crate::remoting::command::Command;
use crate::remoting::frame::FrameReader;

/// The maximum number of waiting requests of one connection.
const IN_FLIGHT_MAX: usize = 2_048;
const READ_BYTES: usize = 64 << 10;
/// The maximum number of successive reads before other connections get their turn.
const READS_MAX: usize = 16;
/// The maximum number of successive commands before other connections get their turn.
const COMMANDS_MAX: usize = 64;
/// How long nothing is read while the memory of closed connections is being freed.
const FULL_PAUSE: Duration = Duration::from_millis(1);

type Handling = Pin<Box<dyn Future<Output = Option<Command>> + Send>>;

thread_local! {
    /// One buffer for each I/O thread, so that an idle connection needs none.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

pub(super) struct Connection {
    service: Arc<Service>,
    session: Arc<Session>,
    stream: Stream,
    reader: FrameReader,
    tasks: JoinSet<()>,
    deadlines: Deadlines,
    /// The memory that `reader` holds.
    buffer: Charge,
}

/// Why a connection ends.
enum End {
    /// The client has disconnected, or the server stops.
    Quiet,
    /// The client violated the protocol or a limit.
    Dropped,
}

/// What a socket still had after it was read.
enum Left {
    Nothing,
    Perhaps,
    /// The client has disconnected.
    Closed,
}

impl Connection {
    pub(super) fn new(service: Arc<Service>, session: Arc<Session>, stream: Stream) -> Self {
        stream.set_no_delay();
        let (reader, tasks, deadlines) = (FrameReader::default(), JoinSet::new(), Deadlines::new(service.limits));
        let buffer = session.account.charge(0);
        Self { service, session, stream, reader, tasks, deadlines, buffer }
    }

    pub(super) async fn run(mut self, stopping: watch::Receiver<bool>) {
        if matches!(self.serve(stopping).await, End::Dropped) {
            Counters::count(&self.service.counters.connections_dropped);
        }
        self.stream.close();
        self.session.outbox.close();
        self.service.leave(&self.session);
    }

    async fn serve(&mut self, mut stopping: watch::Receiver<bool>) -> End {
        let session = Arc::clone(&self.session);
        loop {
            let Ok((left, took_some)) = session.outbox.write_to(&mut self.stream) else { return End::Dropped };
            self.deadlines.written(took_some, left > 0);
            let stops = *stopping.borrow();
            if stops {
                self.deadlines.stopping();
            }
            // Commands that were left in the buffer while the client did not read.
            match self.take_whole() {
                Ok(0) => {}
                Ok(_) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Err(end) => return end,
            }
            if session.outbox.is_closed() || (stops && left == 0 && self.tasks.is_empty()) {
                return End::Quiet;
            }
            if self.reader.buffered() > 0 && self.service.is_memory_full() {
                tokio::time::sleep(FULL_PAUSE).await;
                continue;
            }
            let interest = match left {
                0 => Interest::READABLE,
                1..=OUT_PAUSE if !stops => Interest::READABLE | Interest::WRITABLE,
                _ => Interest::WRITABLE,
            };
            tokio::select! {
                ready = self.stream.ready(interest), if !stops || left > 0 => match ready {
                    Ok(ready) if ready.is_readable() && self.service.is_memory_full() => {
                        tokio::time::sleep(FULL_PAUSE).await;
                    }
                    Ok(ready) if ready.is_readable() && !stops => match self.read() {
                        // Waiting for readiness gives no turn to others, and a socket that is never empty would keep its
                        // thread. One that was empty waits below; a turn would only wake another thread for nothing.
                        Ok(Left::Nothing) => tokio::task::consume_budget().await,
                        Ok(Left::Perhaps) => tokio::task::yield_now().await,
                        Ok(Left::Closed) => return End::Quiet,
                        Err(end) => return end,
                    },
                    Ok(_) => {}
                    Err(_) => return End::Quiet,
                },
                () = session.outbox.changed.notified() => {}
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
                _ = stopping.changed(), if !stops => {}
                () = tokio::time::sleep(self.deadlines.next()) => {
                    match self.deadlines.missed() {
                        None => {}
                        Some(Missed::Silent) => return End::Quiet,
                        Some(Missed::Frame | Missed::Unread) => return End::Dropped,
                    }
                }
            }
        }
    }

    /// Reads what has arrived.
    fn read(&mut self) -> Result<Left, End> {
        let mut taken = 0;
        BUFFER.with_borrow_mut(|buffer| {
            for _ in 0..READS_MAX {
                match self.stream.try_read(buffer) {
                    Ok(0) => return Ok(Left::Closed),
                    Ok(length) => {
                        self.deadlines.heard();
                        self.reader.feed(buffer.get(..length).unwrap_or_default());
                        taken += self.take_whole()?;
                        self.buffer.set(self.reader.memory());
                        if self.session.account.is_too_much() {
                            return Err(End::Dropped);
                        }
                        if taken >= COMMANDS_MAX || self.session.outbox.is_full() {
                            return Ok(Left::Perhaps);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Left::Nothing),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // With TLS: bytes that do not come from the holder of the key.
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(self.malformed(&error)),
                    Err(_) => return Ok(Left::Closed),
                }
            }
            Ok(Left::Perhaps)
        })
    }

    /// Handles the complete commands that have arrived, while the client reads, while there is memory, and until others
    /// get their turn. Returns the number of commands.
    fn take_whole(&mut self) -> Result<usize, End> {
        let mut taken = 0;
        while taken < COMMANDS_MAX && self.has_room() {
            match self.reader.take() {
                Ok(Some(command)) => self.dispatch(command),
                Ok(None) => break,
                Err(error) => return Err(self.malformed(&error)),
            }
            taken += 1;
        }
        // If the client must read first, or others get their turn, the rest of the frame may already be in the buffer.
        let is_client_awaited = taken < COMMANDS_MAX && self.has_room();
        self.deadlines.frames(taken, is_client_awaited && self.reader.buffered() > 0);
        Ok(taken)
    }

    /// Returns whether another answer may wait for the client, and whether there is memory for it.
    fn has_room(&self) -> bool {
        !self.session.outbox.is_full() && !self.service.is_memory_full()
    }

    fn malformed(&self, error: &dyn std::fmt::Display) -> End {
        Counters::count(&self.service.counters.frames_malformed);
        self.service.refused(&self.session, error.to_string());
        End::Dropped
    }

    fn dispatch(&mut self, command: Command) {
        Counters::count(&self.service.counters.commands_in);
        if self.tasks.len() >= IN_FLIGHT_MAX {
            let remark = format!("{IN_FLIGHT_MAX} requests of this connection wait already");
            let busy = command.response(response::SYSTEM_BUSY, Some(remark));
            Counters::count(&self.service.counters.requests_refused);
            if !command.is_one_way() {
                self.session.outbox.put(&busy);
            }
            return;
        }
        let (service, session) = (Arc::clone(&self.service), Arc::clone(&self.session));
        let bytes = command.memory() + WAITING_COST;
        let mut handling: Handling = Box::pin(async move { router::handle(&service, &session, command).await });
        // Most requests need no waiting. They are answered here, in order, without their own task.
        match handling.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => {
                if let Some(answer) = answer {
                    self.session.outbox.put(&answer);
                }
            }
            Poll::Pending => {
                let session = Arc::clone(&self.session);
                let charge = session.account.charge(bytes);
                self.tasks.spawn(async move {
                    let _charge = charge;
                    if let Some(answer) = handling.await {
                        session.outbox.put(&answer);
                    }
                });
            }
        }
    }
}
