//! Serves one slave of RocketMQ, which copies the log over the HA protocol of RocketMQ's brokers.
//!
//! In:     the slave's reports: where its log ends, 8 bytes each.
//! Out:    pieces of the log, each after a header of 12 bytes: where it begins, and its length. Length 0: a heartbeat.
//! Always: nothing is sent before Python has compared the slave's log with this one. Then every byte from its end on, in
//!         order, up to the visible end. A slave that reports more than was sent is not served.
//! Not here: which slaves may copy the log (`server/slaves.py`), where a piece ends (`store/copy_visible`).
//!
//! The protocol has no handshake, names, TLS or accounts. A slave takes each piece whose beginning is its own end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::counters::Counters;
use super::event::Event;
use super::fields::Refusal;
use super::service::Service;
use super::session::Session;
use crate::base::clock::{Clock, SystemClock};
use crate::base::units::{PhysicalOffset, to_u64};
use crate::remoting::codes::response;

/// The most bytes of the log in one piece. A slave has room for 4 MiB.
const PIECE_MAX: usize = 256 << 10;
/// How long nothing is sent before a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long a slave may be silent. It reports each 5 s.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// The pause before Python is asked again about a slave that it does not know yet.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a slave may stay unknown, in milliseconds. It registers each 30 s.
const UNKNOWN_MAX_MS: i64 = 45_000;
/// How long an unknown slave gets nothing before a heartbeat, in milliseconds.
const HEARTBEAT_MS: i64 = 5_000;

/// Why a connection ends.
enum End {
    /// The slave has disconnected, is silent, or was refused by Python, which says why in the log.
    Quiet,
    /// The slave cannot be served, for this reason.
    Refused(String),
}

/// Serves a connection until it ends or the server stops.
pub(super) async fn serve(
    service: &Service,
    session: &Session,
    stream: TcpStream,
    mut stopping: watch::Receiver<bool>,
) {
    // If the socket refuses the option, it is only slower.
    let _ = stream.set_nodelay(true);
    let _charge = session.account.charge(PIECE_MAX);
    let end = tokio::select! {
        end = follow(service, session, stream) => end,
        () = closed(session) => End::Quiet,
        _ = stopping.changed() => End::Quiet,
    };
    if let End::Refused(reason) = end {
        Counters::count(&service.counters.connections_dropped);
        service.refused(session, reason);
    }
}

/// Lets Python log a client that may not connect from its address.
pub(super) fn note_stranger(service: &Service, peer: SocketAddr) {
    let reason = format!(
        "{} is not among the networks from which slaves may copy the log\nhint: --ha-allow {0}, if it is one",
        peer.ip().to_canonical()
    );
    service.policy.note(0, &peer.to_string(), Event::ConnectionRefused { reason });
}

/// Waits until the server wants the connection to end.
async fn closed(session: &Session) {
    while !session.outbox.is_closed() {
        session.outbox.changed.notified().await;
    }
}

async fn follow(service: &Service, session: &Session, stream: TcpStream) -> End {
    let (reader, mut writer) = stream.into_split();
    let mut reports = Reports { reader, bytes: [0; 8], filled: 0 };
    let end = match reports.next().await {
        Ok(end) => end,
        Err(end) => return end,
    };
    let sent = AtomicU64::new(end.0);
    let admitted = tokio::select! {
        admitted = admit(service, session, &mut writer, end) => admitted,
        end = reports.watch(&sent, session) => Err(end),
    };
    if let Err(end) = admitted {
        return end;
    }
    session.reported.store(end.0, Ordering::Relaxed);
    if end.0 == 0 {
        // A master of RocketMQ would send only its last file.
        sent.store(service.store.first_physical_offset().0, Ordering::Release);
    }
    tokio::select! {
        end = reports.watch(&sent, session) => end,
        end = send(service, &mut writer, &sent) => end,
    }
}

/// Waits until Python admits the slave. A slave that Python does not know yet gets heartbeats meanwhile.
async fn admit(
    service: &Service,
    session: &Session,
    writer: &mut OwnedWriteHalf,
    end: PhysicalOffset,
) -> Result<(), End> {
    let began_ms = SystemClock.monotonic_ms();
    let mut told_ms = began_ms;
    loop {
        match service.admit_slave(session, end).await {
            Ok(()) => return Ok(()),
            Err(Refusal { code: response::SYSTEM_BUSY, .. }) if told_ms - began_ms < UNKNOWN_MAX_MS => {}
            Err(Refusal { code: response::SYSTEM_BUSY, remark, .. }) => return Err(End::Refused(remark)),
            Err(_) => return Err(End::Quiet),
        }
        sleep(ASK_AGAIN).await;
        let now_ms = SystemClock.monotonic_ms();
        if now_ms - told_ms >= HEARTBEAT_MS {
            write(writer, end.0, &[]).await?;
            told_ms = now_ms;
        }
    }
}

/// Sends the log from `sent` on, as it grows.
async fn send(service: &Service, writer: &mut OwnedWriteHalf, sent: &AtomicU64) -> End {
    let mut ends = service.copies.follow();
    loop {
        if service.copies.is_stopped() {
            return End::Quiet;
        }
        if service.store.is_replica() {
            return End::Refused("this node is not the source: no slave can copy its log".to_owned());
        }
        ends.mark_unchanged();
        let at = sent.load(Ordering::Acquire);
        let piece = match service.store.copy_visible(PhysicalOffset(at), PIECE_MAX) {
            Ok(piece) => piece,
            Err(error) => return End::Refused(error.to_string()),
        };
        if piece.is_empty() && timeout(HEARTBEAT, ends.changed()).await.is_ok() {
            continue;
        }
        // The slave may report it before the write returns.
        sent.store(at + to_u64(piece.len()), Ordering::Release);
        if let Err(end) = write(writer, at, &piece).await {
            return end;
        }
    }
}

/// Writes one piece of the log after its header.
async fn write(writer: &mut OwnedWriteHalf, at: u64, piece: &[u8]) -> Result<(), End> {
    let mut frame = Vec::with_capacity(12 + piece.len());
    frame.extend(at.to_be_bytes());
    frame.extend(u32::try_from(piece.len()).unwrap_or(0).to_be_bytes());
    frame.extend(piece);
    match timeout(SILENT_MAX, writer.write_all(&frame)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(End::Quiet),
        Err(_) => Err(End::Refused(format!("the slave read nothing for {} s", SILENT_MAX.as_secs()))),
    }
}

/// The reports of a slave.
struct Reports {
    reader: OwnedReadHalf,
    bytes: [u8; 8],
    filled: usize,
}

impl Reports {
    /// Returns the next report. Nothing is lost if its caller stops to wait.
    async fn next(&mut self) -> Result<PhysicalOffset, End> {
        while let Some(free @ [_, ..]) = self.bytes.get_mut(self.filled..) {
            match timeout(SILENT_MAX, self.reader.read(free)).await {
                Ok(Ok(0) | Err(_)) => return Err(End::Quiet),
                Ok(Ok(length)) => self.filled += length,
                Err(_) => return Err(End::Refused(format!("the slave was silent for {} s", SILENT_MAX.as_secs()))),
            }
        }
        self.filled = 0;
        let end = i64::from_be_bytes(self.bytes);
        let refused = || End::Refused(format!("a slave reports where its log ends, at 0 or above, got {end}"));
        u64::try_from(end).map(PhysicalOffset).map_err(|_| refused())
    }

    /// Reads reports until the connection ends, or the slave has more than was sent to it.
    async fn watch(&mut self, sent: &AtomicU64, session: &Session) -> End {
        loop {
            let end = match self.next().await {
                Ok(end) => end.0,
                Err(end) => return end,
            };
            let sent = sent.load(Ordering::Acquire);
            if end > sent {
                return End::Refused(format!("the slave's log ends at {end}, and it was sent the log up to {sent}"));
            }
            session.reported.store(end, Ordering::Relaxed);
        }
    }
}
