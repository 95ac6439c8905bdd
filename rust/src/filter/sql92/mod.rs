//! RocketMQ's filter expressions over the properties of a message, which it calls SQL92.
//!
//! In:     an expression's text; a message's properties, all of which are strings.
//! Out:    whether the message fulfils it.
//! Always: the same answer as RocketMQ 5.4's filter, with its three-valued logic and its conversions of strings to the
//!         type of a literal. Where a conversion fails, the message is not wanted.
//! Differences: text after the end of an expression is refused, which RocketMQ ignores; nesting and length have limits;
//!         hexadecimal numbers and digits of other scripts in a property are not converted.
//! Not here: messages.

mod evaluate;
mod parse;
mod token;
mod value;

#[cfg(test)]
mod tests;

use crate::base::error::{Error, Result};
use crate::record::properties::Properties;

/// The maximum length of an expression in bytes.
pub const LENGTH_MAX: usize = 16 << 10;
/// The maximum depth of an expression, counted in operators and parentheses.
pub const DEPTH_MAX: usize = 100;

/// A parsed expression. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Expression {
    text: Box<str>,
    /// The names of properties that it has, sorted. A node has the index of one.
    names: Box<[Box<str>]>,
    /// How often it names a property.
    uses: u64,
    root: Node,
}

impl Expression {
    /// Parses an expression, such as `price BETWEEN 10 AND 20 AND region IN ('eu', 'us')`.
    ///
    /// Fails with `InvalidOption`, which names the position in the text.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > LENGTH_MAX {
            return Err(Error::InvalidOption {
                option: "sql".to_owned(),
                what: format!("the expression has {} bytes, at most {LENGTH_MAX} are accepted", text.len()),
            });
        }
        parse::parse(text).map_err(|fault| fault.error(text))
    }

    /// Returns the text that was parsed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a message with these properties fulfils the expression.
    pub fn matches<'p>(&self, property: impl Fn(&str) -> Option<&'p str>) -> bool {
        let values: Vec<_> = self.names.iter().map(|name| property(name)).collect();
        evaluate::matches(&self.root, &values)
    }

    /// Returns the same for the properties of a record, which are walked once.
    pub fn matches_properties(&self, properties: Properties<'_>) -> bool {
        let mut values = vec![None; self.names.len()];
        for (name, value) in properties.iter() {
            let found = self.names.binary_search_by(|known| known.as_bytes().cmp(name)).ok();
            if let Some(slot) = found.and_then(|found| values.get_mut(found)) {
                // Of equal names the last counts.
                *slot = std::str::from_utf8(value).ok();
            }
        }
        evaluate::matches(&self.root, &values)
    }

    /// Returns how often the expression names a property, at least 1.
    pub const fn uses(&self) -> u64 {
        self.uses
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

/// The most characters of an expression that an error shows.
const SHOWN_MAX: usize = 200;

/// Why a text is not an expression.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    /// The byte in the text at which the fault was noticed.
    at: usize,
    what: String,
}

impl Fault {
    fn error(&self, text: &str) -> Error {
        let before = text.get(..self.at).unwrap_or(text);
        let position = before.chars().count() + 1;
        let mut length = 0;
        let fits = |character: char| {
            length += character.escape_debug().count();
            (length <= SHOWN_MAX).then_some(character)
        };
        let shown: String = text.chars().map_while(fits).collect();
        Error::InvalidOption {
            option: "sql".to_owned(),
            what: format!("{} at position {position} of the expression {shown:?}", self.what),
        }
    }
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// Where a text is looked for in a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    Anywhere,
    Start,
    End,
}

/// A value in the text of an expression.
#[derive(Clone, Debug, PartialEq)]
enum Literal {
    Null,
    Boolean(bool),
    Text(Box<str>),
    /// RocketMQ's int: a property that is compared with it must fit into 32 bits.
    Integer(i32),
    Long(i64),
    Double(f64),
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Literal(Literal),
    /// The index of a name.
    Property(usize),
    Negate(Box<Node>),
    Not(Box<Node>),
    /// A property where a truth value is needed. Properties are strings, so it is false, or null if it is absent.
    AsBoolean(Box<Node>),
    And(Vec<Node>),
    Or(Vec<Node>),
    Equal(Box<(Node, Node)>),
    Compare(Order, Box<(Node, Node)>),
    /// A value, the lowest and the highest.
    Between(Box<(Node, Node, Node)>),
    NotBetween(Box<(Node, Node, Node)>),
    Has {
        search: Search,
        is_not: bool,
        of: Box<Node>,
        text: Box<str>,
    },
    In {
        is_not: bool,
        property: usize,
        texts: Box<[Box<str>]>,
    },
}

impl Node {
    /// Returns whether the node gives a truth value, or null.
    const fn is_boolean(&self) -> bool {
        !matches!(
            self,
            Self::Property(_)
                | Self::Negate(_)
                | Self::Literal(Literal::Text(_) | Literal::Integer(_) | Literal::Long(_) | Literal::Double(_))
        )
    }
}
