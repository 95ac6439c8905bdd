//! Routes each RPC to its handler.
//!
//! In:     HTTP requests.
//! Out:    HTTP answers.
//! Always: one row for each RPC, with what an account needs for it. An account that lacks it gets no answer but the
//!         refusal. Errors of the application are statuses in the answer; gRPC's own codes only say that the RPC does not
//!         exist or that its bytes are not a request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};

use super::call::{Call, denied_as};
use super::codec::Codec;
use super::link::{Held, Inbound, Link, Outbound};
use super::status::{self, Refused};
use super::wire::{self, Answer};
use super::{Messaging, access, heartbeat, leases, recall, receive, route, send, telemetry, transaction, unserved};
use crate::server::accounts::Need;
use crate::server::counters::Counters;
use crate::server::service::Service;

/// The path of all RPCs, up to their names.
const PREFIX: &str = "/apache.rocketmq.v2.MessagingService/";
/// The longest request that carries messages, in bytes: as long as the longest frame of the remoting protocol.
const MESSAGES_MAX: usize = 16 << 20;
/// The longest other request, in bytes.
const CONTROL_MAX: usize = 1 << 20;

/// What a request of type `Q` needs.
type Needs<Q> = for<'a> fn(&Service, &'a Q) -> Vec<Need<'a>>;

/// One RPC on its way to its handler.
pub(super) struct Rpc {
    pub(super) messaging: Arc<Messaging>,
    pub(super) link: Arc<Link>,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) name: &'static str,
    held: Arc<Held>,
}

/// Answers one HTTP request.
pub(super) async fn answer(
    messaging: Arc<Messaging>,
    link: Arc<Link>,
    stopping: watch::Receiver<bool>,
    request: Request<Incoming>,
) -> Response<Outbound> {
    Counters::count(&messaging.service.counters.commands_in);
    let path = request.uri().path().strip_prefix(PREFIX).unwrap_or_default().to_owned();
    let request = request.map(|body| Inbound::new(body, Arc::clone(&link), path == "Telemetry"));
    let outbound = Arc::clone(&link);
    let held = request.body().held();
    let rpc = |name| Rpc { messaging, link, stopping, name, held };
    let answer = match path.as_str() {
        "QueryRoute" => unary(rpc("QueryRoute"), access::nothing, route::query, request).await,
        "Heartbeat" => unary(rpc("Heartbeat"), access::heartbeat, heartbeat::heartbeat, request).await,
        "SendMessage" => unary(rpc("SendMessage"), access::sending, send::send, request).await,
        "EndTransaction" => unary(rpc("EndTransaction"), access::ending, transaction::end, request).await,
        "Telemetry" => stream(rpc("Telemetry"), request).await,
        "NotifyClientTermination" => {
            unary(rpc("NotifyClientTermination"), access::nothing, heartbeat::terminate, request).await
        }
        "QueryAssignment" => unary(rpc("QueryAssignment"), access::assigning, receive::assignment, request).await,
        "ReceiveMessage" => receiving(rpc("ReceiveMessage"), request).await,
        "AckMessage" => unary(rpc("AckMessage"), access::acknowledging, leases::acknowledge, request).await,
        "ChangeInvisibleDuration" => {
            unary(rpc("ChangeInvisibleDuration"), access::changing, leases::change_invisible_duration, request).await
        }
        "ForwardMessageToDeadLetterQueue" => {
            unary(rpc("ForwardMessageToDeadLetterQueue"), access::forwarding, leases::forward, request).await
        }
        // Each answer, also the one frame of a stream, begins with its status at the same tag.
        "RecallMessage" => unary(rpc("RecallMessage"), access::recalling, recall::recall, request).await,
        "SyncLiteSubscription" | "PullMessage" | "UpdateOffset" | "GetOffset" | "QueryOffset" => {
            unary(rpc("(unserved)"), access::nothing, unserved::unserved, request).await
        }
        _ => tonic::Status::unimplemented(format!("{} is not an RPC of this server", request.uri().path())).into_http(),
    };
    answer.map(|body| Outbound::new(body, outbound))
}

/// Returns the caller, if its account may send the request. Otherwise, why it may not.
fn admit<Q>(rpc: &Rpc, headers: &MetadataMap, needs: Needs<Q>, request: &Q) -> Result<Call, Refused> {
    let (held, stopping) = (Arc::clone(&rpc.held), rpc.stopping.clone());
    let call = Call::of(&rpc.messaging, &rpc.link, rpc.name, headers, (held, stopping))?;
    let service = call.service();
    let allowed = service.check_needs(call.account.as_deref(), &needs(service, request));
    allowed.map_err(|denied| denied_as(denied, service, &call.session, rpc.name))?;
    Ok(call)
}

/// Answers an RPC with one request and one answer.
async fn unary<Q, A, F>(
    rpc: Rpc,
    needs: Needs<Q>,
    handler: fn(Call, Q) -> F,
    request: Request<Inbound>,
) -> Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: Answer,
    F: Future<Output = Result<A, Refused>> + Send + 'static,
{
    let max = if rpc.name == "SendMessage" { MESSAGES_MAX } else { CONTROL_MAX };
    let codec = Codec::<A, Q>::new(rpc.name, &rpc.held);
    let handling = Once::new(move |request: tonic::Request<Q>| async move {
        let (headers, _, request) = request.into_parts();
        Ok(tonic::Response::new(handled(&rpc, &headers, needs, handler, request).await))
    });
    let mut grpc = Grpc::new(codec).max_decoding_message_size(max);
    grpc.unary(handling, request).await
}

async fn handled<Q, A, F>(rpc: &Rpc, headers: &MetadataMap, needs: Needs<Q>, handler: fn(Call, Q) -> F, request: Q) -> A
where
    A: Answer,
    F: Future<Output = Result<A, Refused>>,
{
    let done = match admit(rpc, headers, needs, &request) {
        Ok(call) => handler(call, request).await,
        Err(refused) => Err(refused),
    };
    let answer = done.unwrap_or_else(|refused| A::with(refused.status()));
    if answer.code() != status::OK {
        Counters::count(&rpc.messaging.service.counters.requests_refused);
    }
    answer
}

/// Answers a receive with the frames that its handler sends. A refusal is one frame.
async fn receiving(rpc: Rpc, request: Request<Inbound>) -> Response<Body> {
    let codec = Codec::<wire::ReceiveMessageResponse, wire::ReceiveMessageRequest>::new(rpc.name, &rpc.held);
    let handling = Once::new(move |request: tonic::Request<wire::ReceiveMessageRequest>| async move {
        let (headers, _, request) = request.into_parts();
        let done = match admit(&rpc, &headers, access::receiving, &request) {
            Ok(call) => receive::receive(call, request).await,
            Err(refused) => Err(refused),
        };
        let frames = done.unwrap_or_else(|refused| {
            Counters::count(&rpc.messaging.service.counters.requests_refused);
            receive::refusal(refused)
        });
        Ok(tonic::Response::new(frames))
    });
    let mut grpc = Grpc::new(codec).max_decoding_message_size(CONTROL_MAX);
    grpc.server_streaming(handling, request).await
}

/// Begins a telemetry stream. gRPC's own codes refuse it.
async fn stream(rpc: Rpc, request: Request<Inbound>) -> Response<Body> {
    let codec = Codec::<wire::TelemetryCommand, wire::TelemetryCommand>::new(rpc.name, &rpc.held);
    let handling = Once::new(move |request: tonic::Request<tonic::Streaming<wire::TelemetryCommand>>| async move {
        let (headers, _, commands) = request.into_parts();
        match admit(&rpc, &headers, access::nothing, &()) {
            Ok(call) => telemetry::begin(call, commands).map(tonic::Response::new),
            Err(refused) => {
                Counters::count(&rpc.messaging.service.counters.requests_refused);
                Err(telemetry::refusal(refused))
            }
        }
    });
    let mut grpc = Grpc::new(codec).max_decoding_message_size(CONTROL_MAX);
    grpc.streaming(handling, request).await
}

type Handling<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send>>;

/// A handler in the form in which tonic calls it. tonic calls it once.
struct Once<H>(Option<H>);

impl<H> Once<H> {
    const fn new(handler: H) -> Self {
        Self(Some(handler))
    }

    fn run<Q, T, F>(&mut self, request: tonic::Request<Q>) -> Handling<T>
    where
        H: FnOnce(tonic::Request<Q>) -> F,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send + 'static,
        T: Send + 'static,
    {
        match self.0.take() {
            Some(handler) => Box::pin(handler(request)),
            None => Box::pin(std::future::ready(Err(tonic::Status::internal("the request was handled already")))),
        }
    }
}

impl<H, Q, A, F> UnaryService<Q> for Once<H>
where
    H: FnOnce(tonic::Request<Q>) -> F,
    F: Future<Output = Result<tonic::Response<A>, tonic::Status>> + Send + 'static,
    A: Send + 'static,
{
    type Response = A;
    type Future = Handling<A>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        self.run(request)
    }
}

impl<H, Q, A, S, F> ServerStreamingService<Q> for Once<H>
where
    H: FnOnce(tonic::Request<Q>) -> F,
    F: Future<Output = Result<tonic::Response<S>, tonic::Status>> + Send + 'static,
    S: Stream<Item = Result<A, tonic::Status>> + Send + 'static,
{
    type Response = A;
    type ResponseStream = S;
    type Future = Handling<S>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        self.run(request)
    }
}

impl<H, Q, A, S, F> StreamingService<Q> for Once<H>
where
    H: FnOnce(tonic::Request<tonic::Streaming<Q>>) -> F,
    F: Future<Output = Result<tonic::Response<S>, tonic::Status>> + Send + 'static,
    S: Stream<Item = Result<A, tonic::Status>> + Send + 'static,
{
    type Response = A;
    type ResponseStream = S;
    type Future = Handling<S>;

    fn call(&mut self, request: tonic::Request<tonic::Streaming<Q>>) -> Self::Future {
        self.run(request)
    }
}
