//! Evaluates an expression.
//!
//! In:     a parsed expression and properties.
//! Out:    true, false, null (unknown), or that RocketMQ's evaluation fails.
//! Always: operands are evaluated in RocketMQ's order and left out where RocketMQ leaves them out, since a failure of one
//!         that is evaluated makes the whole false.

use std::cmp::Ordering;

use super::value::{Failed, Value, compare, compare_as_numbers};
use super::{Node, Order, Search};

type Evaluated<T> = Result<Option<T>, Failed>;

/// `values`: those of the expression's names, in their order.
pub(super) fn matches(root: &Node, values: &[Option<&str>]) -> bool {
    Evaluation { values }.truth(root) == Ok(Some(true))
}

struct Evaluation<'v> {
    values: &'v [Option<&'v str>],
}

impl<'v> Evaluation<'v> {
    fn property(&self, index: usize) -> Option<&'v str> {
        self.values.get(index).copied().flatten()
    }

    fn value(&self, node: &'v Node) -> Evaluated<Value<'v>> {
        match node {
            Node::Literal(literal) => Ok(Value::of(literal)),
            Node::Property(name) => Ok(self.property(*name).map(Value::Text)),
            Node::Negate(of) => Ok(self.value(of)?.and_then(Value::negated)),
            _ => Ok(self.truth(node)?.map(Value::Boolean)),
        }
    }

    fn truth(&self, node: &'v Node) -> Evaluated<bool> {
        match node {
            Node::Not(of) => Ok(self.truth(of)?.map(|is_true| !is_true)),
            Node::And(all) => self.chain(all, false),
            Node::Or(all) => self.chain(all, true),
            Node::Equal(operands) => self.equal(&operands.0, &operands.1),
            Node::Compare(order, operands) => {
                let Some(left) = self.value(&operands.0)? else { return Ok(None) };
                self.compare(left, *order, &operands.1)
            }
            Node::Between(operands) => self.between(&operands.0, (&operands.1, &operands.2)),
            Node::NotBetween(operands) => self.not_between(&operands.0, (&operands.1, &operands.2)),
            Node::Has { search, is_not, of, text } => {
                Ok(Some(self.has(*search, of, text)?.is_some_and(|has| has != *is_not)))
            }
            Node::In { is_not, property, texts } => {
                let value = self.property(*property);
                Ok(value.map(|value| texts.iter().any(|text| **text == *value) != *is_not))
            }
            Node::AsBoolean(_) | Node::Literal(_) | Node::Property(_) | Node::Negate(_) => self.as_boolean(node),
        }
    }

    /// Returns the truth of a value: only a boolean can be true.
    fn as_boolean(&self, node: &'v Node) -> Evaluated<bool> {
        let of = if let Node::AsBoolean(of) = node { of } else { node };
        Ok(self.value(of)?.map(|value| value == Value::Boolean(true)))
    }

    /// Returns `ends` as soon as an operand is that; else null if one is null; else the opposite of `ends`.
    fn chain(&self, all: &'v [Node], ends: bool) -> Evaluated<bool> {
        let mut result = Some(!ends);
        for node in all {
            match self.truth(node)? {
                Some(truth) if truth == ends => return Ok(Some(ends)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    }

    /// Null equals null. A value is unequal to null, and null to a value unknown.
    fn equal(&self, left: &'v Node, right: &'v Node) -> Evaluated<bool> {
        match (self.value(left)?, self.value(right)?) {
            (Some(left), Some(right)) => Ok(Some(compare(left, right)? == Ordering::Equal)),
            (None, None) => Ok(Some(true)),
            (None, Some(_)) => Ok(None),
            (Some(_), None) => Ok(Some(false)),
        }
    }

    fn compare(&self, left: Value<'v>, order: Order, right: &'v Node) -> Evaluated<bool> {
        let Some(right) = self.value(right)? else { return Ok(None) };
        let found = compare_as_numbers(left, right)?;
        Ok(Some(match order {
            Order::Greater => found.is_gt(),
            Order::GreaterOrEqual => found.is_ge(),
            Order::Less => found.is_lt(),
            Order::LessOrEqual => found.is_le(),
        }))
    }

    /// `value >= low AND value <= high`, with the value evaluated once.
    fn between(&self, value: &'v Node, (low, high): (&'v Node, &'v Node)) -> Evaluated<bool> {
        let Some(value) = self.value(value)? else { return Ok(None) };
        let is_above = self.compare(value, Order::GreaterOrEqual, low)?;
        if is_above == Some(false) {
            return Ok(Some(false));
        }
        let is_below = self.compare(value, Order::LessOrEqual, high)?;
        Ok(if is_below == Some(false) { Some(false) } else { is_above.and(is_below) })
    }

    /// `value < low OR value > high`.
    fn not_between(&self, value: &'v Node, (low, high): (&'v Node, &'v Node)) -> Evaluated<bool> {
        let Some(value) = self.value(value)? else { return Ok(None) };
        let is_below = self.compare(value, Order::Less, low)?;
        if is_below == Some(true) {
            return Ok(Some(true));
        }
        let is_above = self.compare(value, Order::Greater, high)?;
        Ok(if is_above == Some(true) { Some(true) } else { is_below.and(is_above) })
    }

    /// Returns whether a property has a text. `None`: it is not a string, or the text is empty, so that both the condition
    /// and its negation are false.
    fn has(&self, search: Search, of: &'v Node, text: &str) -> Evaluated<bool> {
        if text.is_empty() {
            return Ok(None);
        }
        let Some(Value::Text(value)) = self.value(of)? else { return Ok(None) };
        Ok(Some(match search {
            Search::Anywhere => value.contains(text),
            Search::Start => value.starts_with(text),
            Search::End => value.ends_with(text),
        }))
    }
}
