//! Reads a request's ext fields as typed values.
//!
//! In:     ext fields.
//! Out:    numbers and text, or a response that says which field is wrong.
//! Not here: the meaning of the fields.

use std::str::FromStr;

use crate::base::error::Error;
use crate::remoting::codes::{of_error, response};
use crate::remoting::command::Command;

/// Why a request is refused: a response code and a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) remark: String,
    /// An additional field of the answer.
    field: Option<(&'static str, String)>,
}

impl Refusal {
    pub(super) fn new(code: i32, remark: impl Into<String>) -> Self {
        Self { code, remark: remark.into(), field: None }
    }

    /// Adds a field to the answer.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.field = Some((name, value.into()));
        self
    }

    /// Returns the response with the refusal.
    pub(super) fn response(self, request: &Command) -> Command {
        let mut response = request.response(self.code, Some(self.remark));
        if let Some((name, value)) = self.field {
            response.ext_fields.set(name, value);
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(of_error(&error), error.to_string())
    }
}

/// Returns the text of a required field.
pub(super) fn text<'a>(command: &'a Command, name: &str) -> Result<&'a str, Refusal> {
    command
        .ext_fields
        .get(name)
        .ok_or_else(|| Refusal::new(response::INVALID_PARAMETER, format!("the field {name} is missing")))
}

/// Returns the number in a required field.
pub(super) fn number<N: FromStr>(command: &Command, name: &str) -> Result<N, Refusal> {
    parsed(text(command, name)?, name)
}

/// Returns the number in a field, or `otherwise` if the field is missing or empty.
pub(super) fn number_or<N: FromStr>(command: &Command, name: &str, otherwise: N) -> Result<N, Refusal> {
    match command.ext_fields.get(name).filter(|value| !value.is_empty()) {
        Some(value) => parsed(value, name),
        None => Ok(otherwise),
    }
}

/// Returns whether a field is "true".
pub(super) fn is_true(command: &Command, name: &str) -> bool {
    command.ext_fields.get(name) == Some("true")
}

fn parsed<N: FromStr>(value: &str, name: &str) -> Result<N, Refusal> {
    let refused =
        || Refusal::new(response::INVALID_PARAMETER, format!("the field {name} must be a number, got {value:?}"));
    value.parse().map_err(|_| refused())
}
