//! The codes of RocketMQ's protocol for Python: two enums and the table's rows.
//!
//! In:     the tables in `remoting::codes`.
//! Out:    `RequestCode`, `ResponseCode`, `RequestRule`.
//! Always: the enums are created from the tables, so Python has no list of its own.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::remoting::codes::{RequestCode, request, response};

/// A row of the table of request codes.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct RequestRule(RequestCode);

#[pymethods]
impl RequestRule {
    /// The request code.
    #[getter]
    const fn code(&self) -> i32 {
        self.0.number
    }

    /// RocketMQ's name.
    #[getter]
    const fn name(&self) -> &'static str {
        self.0.name
    }

    /// `client`: servers send it to clients. None: the request is refused with `REQUEST_CODE_NOT_SUPPORTED`.
    #[getter]
    const fn answered_by(&self) -> Option<&'static str> {
        self.0.handler.name()
    }

    /// What an account needs, for people.
    #[getter]
    const fn permission(&self) -> &'static str {
        self.0.access.text()
    }

    fn __repr__(&self) -> String {
        format!("RequestRule({}, {})", self.0.number, self.0.name)
    }
}

/// Returns the rows of all request codes, sorted by number.
#[pyfunction]
pub(super) fn request_rules() -> Vec<RequestRule> {
    request::ALL.iter().copied().map(RequestRule).collect()
}

/// Adds the enums of all request and response codes.
pub(super) fn add_enums(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let requests = request::ALL.iter().map(|row| (row.name, row.number)).collect();
    let responses = response::ALL.iter().map(|(number, name)| (*name, *number)).collect();
    add_enum(module, "RequestCode", requests, "The requests of RocketMQ's remoting protocol.")?;
    add_enum(module, "ResponseCode", responses, "The answers of RocketMQ's remoting protocol.")
}

fn add_enum(module: &Bound<'_, PyModule>, name: &str, members: Vec<(&str, i32)>, doc: &str) -> PyResult<()> {
    let options = PyDict::new(module.py());
    options.set_item("module", "txstore._native")?;
    let made = module.py().import("enum")?.getattr("IntEnum")?.call((name, members), Some(&options))?;
    made.setattr("__doc__", doc)?;
    module.add(name, made)
}
