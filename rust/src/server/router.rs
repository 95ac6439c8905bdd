//! Routes each request to the part of the server that answers it.
//!
//! In:     a client's request.
//! Out:    its answer, if the client wants one.
//! Always: the table of codes names the handler. A request that the account may not send is refused first.

use super::counters::Counters;
use super::fields::{Refusal, is_true};
use super::service::Service;
use super::session::{Session, UpdateWaiting};
use super::{copy_log, end, offset, pull, recall, send};
use crate::remoting::codes::{Handler, RequestCode, request as codes, response};
use crate::remoting::command::Command;

/// The maximum body size of a request that is not a message, in bytes. A heartbeat with a thousand groups is smaller.
const CONTROL_BODY_MAX: usize = 1 << 20;

/// The calls of operators that append to the log: `server/administration.py` makes them.
const APPENDING_CALLS: [&str; 4] = ["discard", "end_transaction", "resend", "resume"];

/// Handles a request. Returns the answer, or `None` if the client wants none.
pub(super) async fn handle(service: &Service, session: &Session, request: Command) -> Option<Command> {
    if request.is_response() {
        service.answered(session, request);
        return None;
    }
    let one_way = request.is_one_way();
    let blank = request.response(response::SUCCESS, None);
    let done = match check_length(&request).and_then(|()| service.admit(session, &request)) {
        Ok(()) => obey(service, session, request).await,
        Err(refusal) => Err(refusal),
    };
    if done.is_err() {
        Counters::count(&service.counters.requests_refused);
    }
    let answer = done.unwrap_or_else(|refusal| refusal.response(&blank));
    (!one_way).then_some(answer)
}

/// Refuses a long request that does not carry messages. Runs before any part of the request is used, also before its signature is checked.
fn check_length(request: &Command) -> Result<(), Refusal> {
    if is_message(request.code) || request.body.len() <= CONTROL_BODY_MAX {
        return Ok(());
    }
    let remark = format!("a request {} has {CONTROL_BODY_MAX} bytes at most", request.code);
    Err(Refusal::new(response::INVALID_PARAMETER, remark))
}

async fn obey(service: &Service, session: &Session, request: Command) -> Result<Command, Refusal> {
    let row = RequestCode::of(request.code);
    if request.code == codes::END_TRANSACTION && is_true(&request, "fromTransactionCheck") && service.takes_answers() {
        return service.decide(session, request).await;
    }
    if row.is_some_and(|row| row.handler.writes()) {
        service.check_writable()?;
    }
    match row.map_or(Handler::Refused, |row| row.handler) {
        Handler::Send => copied(service, send::send(service, session, &request)).await,
        Handler::Pull => pull::pull(service, session, &request).await,
        Handler::End => copied(service, end::end(service, session, &request)).await,
        Handler::Recall => copied(service, recall::recall(service, &request)).await,
        Handler::CopyLog => copy_log::copy(service, &request).await,
        Handler::Offset => update_offset(service, session, request).await,
        Handler::Python if appends(&request) => copied(service, service.decide(session, request)).await,
        Handler::Python => service.decide(session, request).await,
        Handler::Client | Handler::Refused => {
            let name = row.map_or("no request of RocketMQ 5.4", |row| row.name);
            let remark = format!("request code {} ({name}) is not served", request.code);
            Err(Refusal::new(response::REQUEST_CODE_NOT_SUPPORTED, remark))
        }
    }
}

/// Waits until what a request wrote has the copies that it needs. An answer that says how a transaction has ended waits,
/// too: the end that decided it may be new.
async fn copied(
    service: &Service,
    written: impl Future<Output = Result<Command, Refusal>>,
) -> Result<Command, Refusal> {
    service.copies.admit()?;
    let done = written.await;
    if done.as_ref().is_err_and(|refusal| refusal.code != response::TRANSACTION_FAILED) {
        return done;
    }
    match (copy_log::wait_for_copies(service).await, done) {
        (Ok(()), done) => done,
        // Its fields tell where it is stored.
        (Err(Refusal { code, remark, .. }), Ok(answer)) => Ok(Command { code, remark: Some(remark), ..answer }),
        (Err(refusal), Err(_)) => Err(refusal),
    }
}

/// Returns whether a request that Python answers appends to the log what the client is then told.
fn appends(request: &Command) -> bool {
    match request.code {
        codes::CONSUMER_SEND_MSG_BACK | codes::RESUME_CHECK_HALF_MESSAGE => true,
        codes::TXSTORE_ADMIN => request.ext_fields.get("call").is_some_and(|call| APPENDING_CALLS.contains(&call)),
        _ => false,
    }
}

/// Stores a group's offset. Python does it if it must decide, or if it has earlier updates of the connection.
async fn update_offset(service: &Service, session: &Session, request: Command) -> Result<Command, Refusal> {
    if !session.has_updates_waiting() && offset::is_plain(service, &request) {
        return offset::update(service, &request);
    }
    let _waiting = UpdateWaiting::new(&session.updates_waiting);
    // An update without an answer is awaited, too, so that its end is known.
    service.answer_of_python(session, request).await
}

const fn is_message(code: i32) -> bool {
    matches!(code, codes::SEND_MESSAGE | codes::SEND_MESSAGE_V2 | codes::SEND_BATCH_MESSAGE | codes::TXSTORE_PREPARE)
}
