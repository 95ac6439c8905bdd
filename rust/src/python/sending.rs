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
use crate::store::{NewMessage, Sent};

/// Checks a queue id.
pub(super) fn queue(queue_id: i64) -> Result<QueueId, Error> {
    i32::try_from(queue_id).ok().filter(|id| *id >= 0).map(QueueId).ok_or_else(|| Error::InvalidName {
        what: format!("queue {queue_id} does not exist: queues are numbered from 0 to 2147483647"),
    })
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
    let new = messages.iter().zip(queue_ids).map(|(message, queue_id)| {
        let message = message.get();
        let queue_id = queue(queue_id)?;
        Ok(NewMessage { envelope: &message.envelope, body: message.body_bytes(py), queue_id })
    });
    new.collect()
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
