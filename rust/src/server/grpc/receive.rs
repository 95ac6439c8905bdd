//! Hands out messages to consumers, and takes their acknowledgements.
//!
//! In:     the RPCs of consumers.
//! Out:    `NOT_IMPLEMENTED` for now.

use tokio_stream::wrappers::ReceiverStream;

use super::call::Call;
use super::status::{self, Refused};
use super::wire::{
    AckMessageRequest, AckMessageResponse, ChangeInvisibleDurationRequest, ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest, ForwardMessageToDeadLetterQueueResponse, QueryAssignmentRequest,
    QueryAssignmentResponse, ReceiveMessageRequest, ReceiveMessageResponse, Received,
};

/// The frames of the answer to a receive.
pub(super) type Frames = ReceiverStream<Result<ReceiveMessageResponse, tonic::Status>>;

pub(super) async fn assignment(_: Call, _: QueryAssignmentRequest) -> Result<QueryAssignmentResponse, Refused> {
    Err(not_yet())
}

/// Returns the frames of the answer: a status, the messages, last the time of delivery.
#[allow(clippy::unused_async)] // The router awaits every handler.
pub(super) async fn receive(_: Call, _: ReceiveMessageRequest) -> Result<Frames, Refused> {
    Err(not_yet())
}

pub(super) async fn acknowledge(_: Call, _: AckMessageRequest) -> Result<AckMessageResponse, Refused> {
    Err(not_yet())
}

pub(super) async fn change_invisible_duration(
    _: Call,
    _: ChangeInvisibleDurationRequest,
) -> Result<ChangeInvisibleDurationResponse, Refused> {
    Err(not_yet())
}

pub(super) async fn forward(
    _: Call,
    _: ForwardMessageToDeadLetterQueueRequest,
) -> Result<ForwardMessageToDeadLetterQueueResponse, Refused> {
    Err(not_yet())
}

/// Returns the one frame of a receive that is refused.
pub(super) fn refusal(refused: Refused) -> Frames {
    let (sender, frames) = tokio::sync::mpsc::channel(1);
    // The channel has room for the one frame.
    let _ = sender.try_send(Ok(ReceiveMessageResponse { content: Some(Received::Status(refused.status())) }));
    ReceiverStream::new(frames)
}

fn not_yet() -> Refused {
    Refused::new(status::NOT_IMPLEMENTED, "consumers are not served yet")
}
