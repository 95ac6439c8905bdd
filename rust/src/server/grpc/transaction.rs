//! Ends transactions for gRPC clients, and writes the checks that their streams carry.
//!
//! In:     `EndTransaction`; half messages to ask about.
//! Out:    outcomes, also of a transaction that ended before; `RecoverOrphanedTransactionCommand`.
//! Always: the transaction id contains the half message's offsets, so an end is possible at any time, also after a
//!         restart. Group (the topic) and message id must match the half message, so a forged end changes nothing.
//! Not here: when and whom to ask (Python), the rules of ends (`server/end`, the store).

use super::call::Call;
use super::message;
use super::status::{self, Refused, ok};
use super::wire::{
    Command, EndTransactionRequest, EndTransactionResponse, RecoverOrphanedTransactionCommand, TelemetryCommand,
    resolution, transaction_source,
};
use crate::base::error::{Error, Result as EngineResult};
use crate::server::counters::Counters;
use crate::server::{copy_log, end};
use crate::store::{Decider, End, EndKind, StoredRecord};
use crate::transaction::{HalfCopy, HalfFacts};

/// The digits of each of the two offsets in a transaction id.
const DIGITS: usize = 16;

/// Returns the transaction id of a half message: its queue offset and its physical offset.
pub(super) fn id_of(half: HalfCopy) -> String {
    format!("{:016x}{:016x}", half.queue_offset, half.physical_offset)
}

/// Returns the half message that a transaction id names.
pub(super) fn parse_id(id: &str) -> Option<HalfCopy> {
    let (queue_offset, physical_offset) = id.split_at_checked(DIGITS).filter(|_| id.len() == 2 * DIGITS)?;
    let number = |digits: &str| {
        let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| are_digits)
    };
    Some(HalfCopy { queue_offset: number(queue_offset)?, physical_offset: number(physical_offset)? })
}

pub(super) async fn end(call: Call, request: EndTransactionRequest) -> Result<EndTransactionResponse, Refused> {
    let service = call.service();
    let invalid = |what: &str| Refused::new(status::INVALID_TRANSACTION_ID, what);
    if request.message_id.trim().is_empty() {
        return Err(Refused::new(status::ILLEGAL_MESSAGE_ID, "the message id is empty"));
    }
    let half = parse_id(&request.transaction_id).ok_or_else(|| {
        invalid("the transaction id is not one of this server: expected the id that the answer to the send has")
    })?;
    let group = request.topic.as_ref().map_or("", |topic| topic.name.as_str());
    let from_check = request.source == transaction_source::SERVER_CHECK;
    if from_check {
        Counters::count(&service.counters.ends_from_check);
    }
    let kind = match request.resolution {
        resolution::COMMIT => EndKind::Commit,
        resolution::ROLLBACK => EndKind::RollBack,
        _ => {
            Counters::count(&service.counters.ends_unknown);
            if from_check {
                service.store.check_unknown(half, Some(group)).map_err(refused)?;
            }
            return Ok(EndTransactionResponse { status: Some(ok()) });
        }
    };
    service.check_writable()?;
    let end = End {
        half,
        kind,
        transaction_id: Some(request.message_id),
        group: Some(group.to_owned()),
        decider: if from_check { Decider::Check } else { Decider::Producer },
    };
    service.copies.admit()?;
    end::write(service, end).await.map_err(refused)?;
    copy_log::wait_for_copies(service).await?;
    Ok(EndTransactionResponse { status: Some(ok()) })
}

/// Returns why an end is refused. All that says that the client's transaction is not there, or ended differently, has one
/// code.
fn refused(error: Error) -> Refused {
    match error {
        Error::AlreadyEnded { .. } | Error::LateEnd { .. } | Error::WrongGroup { .. } => {
            Refused::new(status::INVALID_TRANSACTION_ID, error.to_string())
        }
        other => other.into(),
    }
}

/// Returns the command that asks a producer about a transaction.
pub(super) fn check(half: &StoredRecord) -> EngineResult<TelemetryCommand> {
    let view = half.view()?;
    let facts = HalfFacts::of(&view);
    let copy = HalfCopy { queue_offset: view.queue_offset.0, physical_offset: view.physical_offset.0 };
    let asked = RecoverOrphanedTransactionCommand {
        message: Some(message::outgoing(&view, facts.real_topic, facts.real_queue_id)),
        transaction_id: id_of(copy),
    };
    Ok(TelemetryCommand { status: Some(ok()), command: Some(Command::RecoverOrphanedTransaction(asked)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_half_message_and_nothing_else_is_an_id() {
        let half = HalfCopy { queue_offset: 7, physical_offset: u64::MAX };
        assert_eq!(id_of(half), "0000000000000007ffffffffffffffff");
        assert_eq!(parse_id(&id_of(half)), Some(half));
        for id in [
            "",
            "7",
            "+000000000000007ffffffffffffffff",
            "0000000000000007fffffffffffffffff",
            "é000000000000007fffffffffffffff",
        ] {
            assert_eq!(parse_id(id), None, "{id:?}");
        }
    }
}
