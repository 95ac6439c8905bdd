//! Fields: a request's named values, read as what they must be.
//!
//! In: ext fields. Out: numbers and text, or the response that says which field is wrong, or what else is. Not here: what they mean.

use std::str::FromStr;

use super::codes::{of_error, response};
use super::command::Command;
use crate::error::Error;

/// Why a request is not done: a response code and words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) remark: String,
    /// What the answer tells beside the words.
    field: Option<(&'static str, &'static str)>,
}

impl Refusal {
    pub(super) fn new(code: i32, remark: impl Into<String>) -> Self {
        Self { code, remark: remark.into(), field: None }
    }

    /// As it is, with a field in its answer.
    pub(super) const fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.field = Some((name, value));
        self
    }

    /// The response that tells it.
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

/// The text of a field that must be there.
pub(super) fn text<'a>(command: &'a Command, name: &str) -> Result<&'a str, Refusal> {
    command
        .ext_fields
        .get(name)
        .ok_or_else(|| Refusal::new(response::INVALID_PARAMETER, format!("the field {name} is missing")))
}

/// The number of a field that must be there.
pub(super) fn number<N: FromStr>(command: &Command, name: &str) -> Result<N, Refusal> {
    parsed(text(command, name)?, name)
}

/// The number of a field, or what stands for it where it is missing or empty.
pub(super) fn number_or<N: FromStr>(command: &Command, name: &str, otherwise: N) -> Result<N, Refusal> {
    match command.ext_fields.get(name).filter(|value| !value.is_empty()) {
        Some(value) => parsed(value, name),
        None => Ok(otherwise),
    }
}

/// Whether a field says "true".
pub(super) fn is_true(command: &Command, name: &str) -> bool {
    command.ext_fields.get(name) == Some("true")
}

fn parsed<N: FromStr>(value: &str, name: &str) -> Result<N, Refusal> {
    let refused = || Refusal::new(response::INVALID_PARAMETER, format!("the field {name} cannot be {value:?}"));
    value.parse().map_err(|_| refused())
}
