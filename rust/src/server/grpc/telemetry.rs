//! Runs a client's telemetry stream: settings in both directions, checks down to producers.
//!
//! In:     the client's commands.
//! Out:    the server's, from `Client`.
//! Always: the answer stream begins at once, before the client has sent anything. A newer stream of the same client
//!         replaces an older one.
//! Not here: which producer is asked (Python).

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream as Items, StreamExt};
use tonic::{Code, Status, Streaming};

use super::call::{Call, LANGUAGE_HTTP, LANGUAGE_NODE};
use super::clients::{Outgoing, Stream};
use super::status::{self, Refused, ok};
use super::wire::{Command, Settings, TelemetryCommand};
use super::{heartbeat, settings};

/// Begins a stream. Returns the server's commands.
pub(super) fn begin(
    call: Call,
    commands: Streaming<TelemetryCommand>,
) -> Result<impl Items<Item = Result<TelemetryCommand, Status>>, Status> {
    let client = call.client().map_err(refusal)?;
    let (stream, outgoing) = client.begin_stream();
    let (refusals, refused) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(why) = run(&call, &stream, commands).await {
            // The client may have gone already.
            let _ = refusals.try_send(Err(refusal(why)));
        }
    });
    let outgoing = ReceiverStream::new(outgoing).map(|Outgoing { command, .. }| Ok(command));
    Ok(outgoing.chain(ReceiverStream::new(refused)))
}

/// Returns the code of gRPC with which a stream is refused or ended.
pub(super) fn refusal(refused: Refused) -> Status {
    let code = match refused.code {
        status::UNAUTHORIZED => Code::Unauthenticated,
        status::FORBIDDEN => Code::PermissionDenied,
        status::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        status::BAD_REQUEST
        | status::CLIENT_ID_REQUIRED
        | status::UNRECOGNIZED_CLIENT_TYPE
        | status::ILLEGAL_CONSUMER_GROUP => Code::InvalidArgument,
        _ => Code::Internal,
    };
    Status::new(code, refused.message)
}

/// Handles the client's commands until it ends the stream, a newer stream replaces this one, or the server stops.
async fn run(call: &Call, stream: &Stream, mut commands: Streaming<TelemetryCommand>) -> Result<(), Refused> {
    let mut stopping = call.stopping.clone();
    loop {
        let command = tokio::select! {
            command = commands.message() => command,
            () = stream.replaced() => return Ok(()),
            _ = stopping.wait_for(|stops| *stops) => return Ok(()),
        };
        // A stream that breaks is one that ends.
        let Ok(Some(TelemetryCommand { command, .. })) = command else { return Ok(()) };
        stream.client().heard();
        if let Some(Command::Settings(said)) = command {
            answer_settings(call, stream, said).await?;
        }
        call.held.clear();
    }
}

async fn answer_settings(call: &Call, stream: &Stream, said: Settings) -> Result<(), Refused> {
    let (service, client) = (call.service(), stream.client());
    let topics = settings::published(&said);
    let mut answer = settings::answer(said.clone(), service.store.max_message_size())?;
    if let Some(group) = settings::group(&said)? {
        settings::set_group(&mut answer, service.group(&client.session, group).await?);
    }
    if matches!(call.language, LANGUAGE_HTTP | LANGUAGE_NODE) {
        settings::set_growing_waits(&mut answer);
    }
    client.set_settings(&said, topics);
    let command = TelemetryCommand { status: Some(ok()), command: Some(Command::Settings(answer)) };
    if !stream.send(command) {
        return Err(Refused::new(status::TOO_MANY_REQUESTS, "too many commands wait for this stream"));
    }
    heartbeat::tell(service, client, call.language).await
}
