//! `Sql`: an SQL92 expression instead of tags.
//!
//! Not here: the expression's rules (`crate::filter::sql92`).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;

use super::error::OrRaise;
use crate::filter::Selector;
use crate::filter::sql92::Expression;

/// An SQL92 expression over the properties of messages.
#[pyclass(frozen, eq, from_py_object, module = "txstore._native")]
#[derive(Clone, PartialEq)]
pub(super) struct Sql(std::sync::Arc<Expression>);

#[pymethods]
impl Sql {
    #[new]
    fn new(py: Python<'_>, expression: &str) -> PyResult<Self> {
        Expression::parse(expression).map(|expression| Self(expression.into())).or_raise(py)
    }

    /// The text.
    #[getter]
    fn expression(&self) -> &str {
        self.0.text()
    }

    /// Returns whether a message with these properties fulfils the expression.
    fn matches(&self, properties: HashMap<String, String>) -> bool {
        self.0.matches(|name| properties.get(name).map(String::as_str))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.text().hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let text = pyo3::types::PyString::new(py, self.0.text());
        Ok(format!("Sql({})", text.repr()?.to_str()?))
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> (Py<PyAny>, (String,)) {
        (slf.get_type().into_any().unbind(), (slf.get().0.text().to_owned(),))
    }
}

/// What a consumer wants: tags or an expression.
#[derive(FromPyObject)]
pub(super) enum Wanted {
    Sql(Sql),
    Tags(Vec<String>),
}

impl From<Wanted> for Selector {
    fn from(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Sql(sql) => Self::Sql(sql.0),
            Wanted::Tags(tags) => Self::tags(tags),
        }
    }
}
