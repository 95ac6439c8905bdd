//! Takes the acknowledgements of consumers, and changes when their messages are visible again.
//!
//! In:     `AckMessage`, `ChangeInvisibleDuration`, `ForwardMessageToDeadLetterQueue`.
//! Out:    their results.
//! Always: a receipt handle that is unknown, or no longer in force, is refused with its own code: push consumers repeat
//!         a request after any other.
//! Not here: what is in flight (`pop`).

use std::sync::Arc;

use super::call::Call;
use super::status::{self, Refused, common, ok};
use super::wire::{
    AckMessageRequest, AckMessageResponse, AckMessageResultEntry, ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse, ForwardMessageToDeadLetterQueueRequest, ForwardMessageToDeadLetterQueueResponse,
};
use super::{consumers, moves};
use crate::base::clock::{Clock, SystemClock};
use crate::server::pop::handle::Lease;
use crate::server::pop::queue::Stale;
use crate::server::pop::reader::Reader;
use crate::server::pop::source::Source;

/// The longest invisible duration, in milliseconds: twelve hours.
const INVISIBLE_MAX_MS: i64 = 12 * 3_600_000;

/// A message in flight.
struct Leased {
    reader: Arc<Reader>,
    source: Arc<Source>,
    lease: Lease,
}

impl Leased {
    /// Finds the message of a receipt handle.
    fn of(call: &Call, (group, topic): (&str, &str), handle: &str) -> Result<Self, Refused> {
        let pop = &call.service().pop;
        let lease = pop.handles.read(group, topic, handle).ok_or(Stale)?;
        let reader = pop.known(group, topic).ok_or(Stale)?;
        let source = reader.source(lease).ok_or(Stale)?;
        Ok(Self { reader, source, lease })
    }

    const fn at(&self) -> (u64, u64) {
        (self.lease.queue_offset, self.lease.number)
    }

    fn acknowledge(&self, call: &Call) -> Result<(), Refused> {
        let now_ms = SystemClock.monotonic_ms();
        if self.source.acknowledge(&call.service().store, self.at(), now_ms)?? {
            self.reader.changed.notify_one();
        }
        Ok(())
    }
}

impl From<Stale> for Refused {
    fn from(_: Stale) -> Self {
        let what = "the receipt handle is unknown or no longer in force: the message comes again, or was acknowledged";
        Self::new(status::INVALID_RECEIPT_HANDLE, what)
    }
}

#[allow(clippy::unused_async)] // The router awaits every handler.
pub(super) async fn acknowledge(call: Call, request: AckMessageRequest) -> Result<AckMessageResponse, Refused> {
    call.service().check_writable()?;
    call.client()?;
    let named = consumers::names(request.group.as_ref(), request.topic.as_ref())?;
    let mut entries = Vec::with_capacity(request.entries.len());
    for entry in request.entries {
        let done = Leased::of(&call, named, &entry.receipt_handle).and_then(|leased| leased.acknowledge(&call));
        entries.push(AckMessageResultEntry {
            message_id: entry.message_id,
            receipt_handle: entry.receipt_handle,
            status: Some(done.map_or_else(Refused::status, |()| ok())),
        });
    }
    let status = common(entries.iter().filter_map(|entry| entry.status.as_ref()));
    Ok(AckMessageResponse { status: Some(status), entries })
}

/// Sets when a message is visible again. A refusal repeats the handle, which some clients store before they look at the
/// status.
#[allow(clippy::unused_async)] // The router awaits every handler.
pub(super) async fn change_invisible_duration(
    call: Call,
    request: ChangeInvisibleDurationRequest,
) -> Result<ChangeInvisibleDurationResponse, Refused> {
    let (status, receipt_handle) = match change(&call, &request) {
        Ok(handle) => (ok(), handle),
        Err(refused) => (refused.status(), request.receipt_handle),
    };
    Ok(ChangeInvisibleDurationResponse { status: Some(status), receipt_handle })
}

fn change(call: &Call, request: &ChangeInvisibleDurationRequest) -> Result<String, Refused> {
    let service = call.service();
    service.check_writable()?;
    call.client()?;
    let named = consumers::names(request.group.as_ref(), request.topic.as_ref())?;
    let invisible_ms = request.invisible_duration.map_or(0, |time| time.as_millis());
    if !(0..=INVISIBLE_MAX_MS).contains(&invisible_ms) {
        let what = format!("the invisible duration must be 0 to 12 h, got {invisible_ms} ms");
        return Err(Refused::new(status::ILLEGAL_INVISIBLE_TIME, what));
    }
    let leased = Leased::of(call, named, &request.receipt_handle)?;
    let now_ms = SystemClock.monotonic_ms();
    let number = leased.source.change_visible(&service.store, leased.at(), now_ms, now_ms + invisible_ms)??;
    // One that waits for messages now waits until then.
    leased.reader.changed.notify_one();
    Ok(service.pop.handles.write(named.0, named.1, Lease { number, ..leased.lease }))
}

/// Moves a message to the dead letters at its client's request.
pub(super) async fn forward(
    call: Call,
    request: ForwardMessageToDeadLetterQueueRequest,
) -> Result<ForwardMessageToDeadLetterQueueResponse, Refused> {
    let service = call.service();
    service.check_writable()?;
    call.client()?;
    let named = consumers::names(request.group.as_ref(), request.topic.as_ref())?;
    let leased = Leased::of(&call, named, &request.receipt_handle)?;
    let message = leased.source.take_away(&service.store, leased.at(), SystemClock.monotonic_ms())??;
    moves::move_all(&call, &leased.reader, vec![(Arc::clone(&leased.source), message)]).await?;
    leased.reader.changed.notify_one();
    Ok(ForwardMessageToDeadLetterQueueResponse { status: Some(ok()) })
}
