//! The rules of topic and group names for Python: the checks, and the reserved names.
//!
//! In:     names.
//! Out:    errors, and constants of the module.
//! Always: `crate::base::names` defines them. Python has no rule, limit or reserved name of its own.

use pyo3::prelude::*;

use super::error::into_py;
use crate::base::names;

const TEXTS: [(&str, &str); 10] = [
    ("DEAD_LETTER_PREFIX", names::DEAD_LETTER_PREFIX),
    ("DISCARD_TOPIC", names::DISCARD_TOPIC),
    ("HALF_TOPIC", names::HALF_TOPIC),
    ("OP_TOPIC", names::OP_TOPIC),
    ("RETRY_PREFIX", names::RETRY_PREFIX),
    ("SCHEDULE_TOPIC", names::SCHEDULE_TOPIC),
    ("SYSTEM_GROUP_PREFIX", names::SYSTEM_GROUP_PREFIX),
    ("TIMED_TOPIC", names::TIMED_TOPIC),
    ("TEMPLATE_TOPIC", names::TEMPLATE_TOPIC),
    ("TRANSACTION_GROUP", names::TRANSACTION_GROUP),
];
const LENGTHS: [(&str, usize); 3] = [
    ("GROUP_BYTES_MAX", names::GROUP_MAX),
    ("RETRY_TOPIC_BYTES_MAX", names::RETRY_TOPIC_MAX),
    ("TOPIC_BYTES_MAX", names::TOPIC_MAX),
];

/// Adds the reserved names and the limits.
pub(super) fn add_constants(module: &Bound<'_, PyModule>) -> PyResult<()> {
    TEXTS.iter().try_for_each(|(name, text)| module.add(*name, *text))?;
    LENGTHS.iter().try_for_each(|(name, length)| module.add(*name, *length))
}

/// Raises an error for a name that clients may not send to.
#[pyfunction]
pub(super) fn validate_topic(py: Python<'_>, topic: &str) -> PyResult<()> {
    names::validate_topic(topic).map_err(|error| into_py(py, &error))
}

/// Raises an error for a name that a group may not have.
#[pyfunction]
pub(super) fn validate_group(py: Python<'_>, group: &str) -> PyResult<()> {
    names::validate_group(group).map_err(|error| into_py(py, &error))
}

/// Returns whether a topic is a system topic.
#[pyfunction]
pub(super) fn is_system_topic(topic: &str) -> bool {
    names::is_system_topic(topic)
}
