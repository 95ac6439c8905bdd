//! Commits and rolls back transactions for clients.
//!
//! In:     `END_TRANSACTION`, mostly one-way.
//! Out:    outcomes, also of a transaction that already ended differently.
//!         A client that reconnects says which of its local transactions still run (`running`, a field of txstore), so
//!         that their checks come to it first.
//! Always: offsets and group must match the half message, so a forged end changes nothing. A repeated end succeeds.
//!         Only the engine's rules decide.
//! Not here: checks.

use super::accounts::ACCESS_KEY;
use super::counters::Counters;
use super::fields::{Refusal, is_true, number, text};
use super::service::Service;
use super::session::Session;
use crate::base::error::{Error, Result as EngineResult};
use crate::remoting::codes::response;
use crate::remoting::command::Command;
use crate::store::{Decider, End, EndKind, Ended, Wait};
use crate::transaction::HalfCopy;

const UNKNOWN: i32 = 0;
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;

pub(super) async fn end(service: &Service, session: &Session, request: &Command) -> Result<Command, Refusal> {
    let counters = &service.counters;
    let from_check = is_true(request, "fromTransactionCheck");
    if from_check {
        Counters::count(&counters.ends_from_check);
    }
    let half = HalfCopy {
        queue_offset: number(request, "tranStateTableOffset")?,
        physical_offset: number(request, "commitLogOffset")?,
    };
    let kind = match number(request, "commitOrRollback")? {
        COMMIT => EndKind::Commit,
        ROLLBACK => EndKind::RollBack,
        UNKNOWN => {
            Counters::count(&counters.ends_unknown);
            if from_check {
                let group = request.ext_fields.get("producerGroup");
                service.store.check_unknown(half, group)?;
            } else if is_true(request, "running") {
                let group = text(request, "producerGroup")?;
                let owner = service.producer(session, group, request.ext_fields.get(ACCESS_KEY)).await?;
                service.store.set_owner(half, group, owner)?;
            }
            return Ok(request.response(response::SUCCESS, None));
        }
        other => {
            let remark = format!("commitOrRollback {other} is neither 8 (commit), 12 (roll back) nor 0 (unknown)");
            return Err(Refusal::new(response::INVALID_PARAMETER, remark));
        }
    };
    let end = End {
        half,
        kind,
        transaction_id: request.ext_fields.get("transactionId").filter(|id| !id.is_empty()).map(str::to_owned),
        group: Some(text(request, "producerGroup")?.to_owned()),
        decider: if from_check { Decider::Check } else { Decider::Producer },
    };
    match write(service, end).await {
        Ok(ended) => {
            let mut answer = request.response(response::SUCCESS, None);
            answer.ext_fields.set("outcome", ended.outcome.name());
            answer.ext_fields.set("already", ended.already.to_string());
            Ok(answer)
        }
        // A client whose end comes too late gets the transaction's outcome.
        Err(error) => {
            let ended = if let Error::AlreadyEnded { outcome, .. } = &error { Some(outcome.name()) } else { None };
            let refusal = Refusal::from(error);
            Err(match ended {
                Some(outcome) => refusal.with("outcome", outcome),
                None => refusal,
            })
        }
    }
}

pub(super) async fn write(service: &Service, end: End) -> EngineResult<Ended> {
    if service.store.is_end_synced(&end) {
        service.durable.end(end).await
    } else {
        service.store.end_transaction(&end, Wait::Yes)
    }
}
