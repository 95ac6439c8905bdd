//! Recalls messages that wait for their time, for clients of both protocols.
//!
//! In:     a topic and a recall handle, which the answer to the send had.
//! Out:    the unique id of the message that is never delivered now.
//! Always: the handle's topic must be the request's, for which the account's permission was checked. The answer is sent
//!         when the recall is durable.
//! Not here: the rules of recalls (the store).

use super::fields::{Refusal, text};
use super::service::Service;
use crate::base::error::Error;
use crate::record::recall_handle::RecallHandle;
use crate::remoting::codes::response;
use crate::remoting::command::Command;
use crate::store::{Recall, Sent};

/// Answers `RECALL_MESSAGE`.
pub(super) async fn recall(service: &Service, request: &Command) -> Result<Command, Refusal> {
    let unique_id = write(service, text(request, "topic")?, text(request, "recallHandle")?).await?;
    let mut answer = request.response(response::SUCCESS, None);
    answer.ext_fields.set("msgId", unique_id);
    Ok(answer)
}

/// Ends the wait of the message that a handle names.
pub(super) async fn write(service: &Service, topic: &str, handle: &str) -> Result<String, Refusal> {
    let illegal = |what: String| Refusal::new(response::ILLEGAL_OPERATION, what);
    let RecallHandle { topic: named, due_ms, unique_id, .. } =
        RecallHandle::decode(handle).map_err(|error| illegal(error.to_string()))?;
    if named != topic {
        return Err(illegal(format!("the recall handle is for topic {named:?}, not {topic:?}")));
    }
    let written = service.store.recall(&Recall { topic, unique_id: &unique_id, due_ms });
    // Its message is delivered, recalled or was never sent.
    let written = written.map_err(|error| match error {
        Error::MessageNotFound { .. } => illegal(error.to_string()),
        other => Refusal::from(other),
    })?;
    service.acknowledged(written).await?;
    Ok(unique_id)
}

/// Returns the handle of a message that waits.
pub(super) fn handle_of(service: &Service, topic: &str, sent: &Sent) -> Option<String> {
    let handle = RecallHandle {
        topic: topic.to_owned(),
        broker_name: service.broker_name.clone(),
        due_ms: sent.due_ms?,
        unique_id: sent.unique_id.to_string(),
    };
    Some(handle.encode())
}
