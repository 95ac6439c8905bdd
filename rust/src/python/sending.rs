//! Messages from Python with their queues, for the calls that store several.
//!
//! In:     messages, queue ids.
//! Out:    what the store takes.
//! Not here: storing them (`store`, `loop_store`).

use std::net::SocketAddr;

use pyo3::prelude::*;

use super::error::OrRaise;
use super::message::{Message, SendResult};
use crate::base::error::Error;
use crate::base::units::QueueId;
use crate::store::{NewHalfMessage, NewMessage, Sent};

/// Checks a queue id.
pub(super) fn queue(queue_id: i64) -> Result<QueueId, Error> {
    i32::try_from(queue_id).ok().filter(|id| *id >= 0).map(QueueId).ok_or_else(|| Error::InvalidName {
        what: format!("queue {queue_id} does not exist: queues are numbered from 0 to 2147483647"),
    })
}

/// Returns a message with its queue, as the store takes it.
pub(super) fn new_message<'a>(
    py: Python<'a>,
    message: &'a Bound<'_, Message>,
    queue_id: i64,
) -> Result<NewMessage<'a>, Error> {
    let message = message.get();
    Ok(NewMessage { envelope: &message.envelope, body: message.body_bytes(py), queue_id: queue(queue_id)? })
}

/// Returns a half message, as the store takes it.
pub(super) fn new_half<'a>(
    py: Python<'a>,
    message: &'a Bound<'_, Message>,
    queue_id: i64,
    group: &'a str,
    owner: u32,
) -> Result<NewHalfMessage<'a>, Error> {
    let unique_id = message.get().transaction_id.as_deref();
    Ok(NewHalfMessage { message: new_message(py, message, queue_id)?, group, unique_id, owner })
}

/// Returns messages with their queues, as the store takes them.
pub(super) fn new_messages<'a>(
    py: Python<'a>,
    messages: &'a [Bound<'_, Message>],
    queue_ids: Vec<i64>,
) -> Result<Vec<NewMessage<'a>>, Error> {
    if messages.len() != queue_ids.len() {
        let what = format!("got {} messages but {} queue ids", messages.len(), queue_ids.len());
        return Err(Error::InvalidMessage { what });
    }
    messages.iter().zip(queue_ids).map(|(message, queue_id)| new_message(py, message, queue_id)).collect()
}

/// Returns where the half message of the first of several messages was stored.
pub(super) fn first_half(
    py: Python<'_>,
    sent: Vec<Sent>,
    messages: &[Bound<'_, Message>],
    host: SocketAddr,
) -> PyResult<SendResult> {
    let first = sent.into_iter().next().zip(messages.first());
    let (sent, message) = first.ok_or(Error::StoreClosed).or_raise(py)?;
    Ok(SendResult::new(sent, message.get().topic.clone_ref(py), host, true))
}
