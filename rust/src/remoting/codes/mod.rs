//! The codes of RocketMQ's remoting protocol: numbers, names, handlers, permissions.
//!
//! In:  a number, or an error of the engine.
//! Out: a row of the table, or the response code that tells a client what to do about the error.

pub mod request;
pub mod response;

use crate::base::error::{Error, ErrorKind};

pub use request::{AccessRule, Handler, RequestCode};

/// Returns the response code that tells a client how to react to an error.
pub fn of_error(error: &Error) -> i32 {
    match error {
        Error::InvalidMessage { .. } | Error::InvalidName { .. } => response::MESSAGE_ILLEGAL,
        Error::LateEnd { .. } => response::ILLEGAL_OPERATION,
        Error::AlreadyEnded { .. } => response::TRANSACTION_FAILED,
        Error::TooManyPending { .. } => response::FLOW_CONTROL,
        Error::Replica { .. } | Error::Fenced { .. } => response::SERVICE_NOT_AVAILABLE,
        Error::OffsetTooOld { .. } => response::PULL_OFFSET_MOVED,
        other => match other.kind() {
            ErrorKind::Invalid => response::INVALID_PARAMETER,
            ErrorKind::NotFound => response::QUERY_NOT_FOUND,
            ErrorKind::Unavailable | ErrorKind::Poisoned | ErrorKind::Closed => response::SERVICE_NOT_AVAILABLE,
            ErrorKind::IllegalState | ErrorKind::Corrupted | ErrorKind::System => response::SYSTEM_ERROR,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_and_each_name_is_listed_once_in_order() {
        assert!(request::ALL.is_sorted_by(|one, next| one.number < next.number));
        assert!(response::ALL.is_sorted_by(|one, next| one.0 < next.0));
        let names: std::collections::HashSet<_> = request::ALL.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), request::ALL.len());
    }

    #[test]
    fn a_number_finds_its_row() {
        for row in request::ALL {
            assert_eq!(RequestCode::of(row.number), Some(row));
        }
        assert_eq!(RequestCode::of(-1), None);
        assert_eq!(RequestCode::of(16), None);
    }

    #[test]
    fn only_administrators_may_ask_for_what_is_not_served() {
        for row in request::ALL.iter().filter(|row| matches!(row.handler, Handler::Client | Handler::Refused)) {
            assert_eq!(row.access, AccessRule::Admin, "{}", row.name);
        }
    }
}
