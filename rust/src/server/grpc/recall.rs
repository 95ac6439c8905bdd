//! Recalls timed messages for gRPC clients.
//!
//! In:     `RecallMessage`.
//! Out:    the id of the message that is never delivered now, or `BAD_REQUEST`.
//! Not here: the handle, and the write (`server/recall`).

use super::call::Call;
use super::status::{self, Refused, ok};
use super::wire::{RecallMessageRequest, RecallMessageResponse};
use crate::remoting::codes::response;
use crate::server::fields::Refusal;
use crate::server::service::Use;
use crate::server::{copy_log, recall};

pub(super) async fn recall(call: Call, request: RecallMessageRequest) -> Result<RecallMessageResponse, Refused> {
    let service = call.service();
    let topic = request.topic.as_ref().map_or("", |topic| topic.name.as_str());
    service.check_writable()?;
    service.copies.admit()?;
    let entry = call.topic(topic, Use::Read).await?;
    let message_id = recall::write(service, entry.name(), &request.recall_handle).await.map_err(refused)?;
    copy_log::wait_for_copies(service).await?;
    Ok(RecallMessageResponse { status: Some(ok()), message_id })
}

/// Returns why a recall is refused. A handle that names no waiting message is the client's mistake.
fn refused(refusal: Refusal) -> Refused {
    match refusal.code {
        response::ILLEGAL_OPERATION => Refused::new(status::BAD_REQUEST, refusal.remark),
        _ => refusal.into(),
    }
}
