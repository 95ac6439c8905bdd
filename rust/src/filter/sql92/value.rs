//! The values of an expression while it is evaluated, and how RocketMQ compares them.
//!
//! In:     two values.
//! Out:    their order, or that they cannot be compared.
//! Always: a string is converted to the other value's type by the rules of Java's `valueOf`.

use std::cmp::Ordering;

use super::Literal;

/// A value that is not null.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'v> {
    Boolean(bool),
    Text(&'v str),
    Integer(i32),
    Long(i64),
    Double(f64),
}

/// RocketMQ's evaluation ends here by an exception, and the message is not wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed;

impl<'v> Value<'v> {
    pub(super) fn of(literal: &'v Literal) -> Option<Self> {
        match literal {
            Literal::Null => None,
            Literal::Boolean(value) => Some(Self::Boolean(*value)),
            Literal::Text(text) => Some(Self::Text(text)),
            Literal::Integer(number) => Some(Self::Integer(*number)),
            Literal::Long(number) => Some(Self::Long(*number)),
            Literal::Double(number) => Some(Self::Double(*number)),
        }
    }

    /// Returns the negative of a number.
    pub(super) const fn negated(self) -> Option<Self> {
        match self {
            Self::Integer(number) => Some(Self::Integer(number.wrapping_neg())),
            Self::Long(number) => Some(Self::Long(number.wrapping_neg())),
            Self::Double(number) => Some(Self::Double(-number)),
            Self::Boolean(_) | Self::Text(_) => None,
        }
    }
}

/// Returns the order of two values of any types.
pub(super) fn compare(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Failed> {
    use Value::{Boolean, Double, Integer, Long, Text};
    Ok(match (left, right) {
        (Text(left), Text(right)) => left.cmp(right),
        (Boolean(left), Boolean(right)) => left.cmp(&right),
        (Integer(left), Integer(right)) => left.cmp(&right),
        (Integer(left), Long(right)) => i64::from(left).cmp(&right),
        (Long(left), Integer(right)) => left.cmp(&i64::from(right)),
        (Long(left), Long(right)) => left.cmp(&right),
        (Integer(left), Double(right)) => doubles(f64::from(left), right),
        (Double(left), Integer(right)) => doubles(left, f64::from(right)),
        (Long(left), Double(right)) => doubles(double(left), right),
        (Double(left), Long(right)) => doubles(left, double(right)),
        (Double(left), Double(right)) => doubles(left, right),
        (Text(left), Boolean(right)) => left.eq_ignore_ascii_case("true").cmp(&right),
        (Text(left), Integer(right)) => left.parse::<i32>().map_err(|_| Failed)?.cmp(&right),
        (Integer(left), Text(right)) => left.cmp(&right.parse().map_err(|_| Failed)?),
        (Text(left), Long(right)) => left.parse::<i64>().map_err(|_| Failed)?.cmp(&right),
        (Long(left), Text(right)) => left.cmp(&right.parse().map_err(|_| Failed)?),
        (Text(left), Double(right)) => doubles(text_to_double(left)?, right),
        (Double(left), Text(right)) => doubles(left, text_to_double(right)?),
        // RocketMQ fails to convert here: it takes the boolean for the string.
        (Boolean(_), Text(_)) => return Err(Failed),
        // Values that have no order are unequal.
        (Boolean(_), _) | (_, Boolean(_)) => Ordering::Less,
    })
}

/// Returns the order of two values of which at least one may be a number. Two strings are compared as numbers.
pub(super) fn compare_as_numbers(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Failed> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => Ok(doubles(text_to_double(left)?, text_to_double(right)?)),
        _ => compare(left, right),
    }
}

/// Returns Java's order of doubles: -0.0 is below 0.0, and NaN is above all and equal to itself.
fn doubles(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

/// Returns the nearest double of a long.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "rounds to the nearest, as Java does")]
const fn double(number: i64) -> f64 {
    number as f64
}

/// Converts a string as Java's `Double.valueOf` does, but no hexadecimal number.
fn text_to_double(text: &str) -> Result<f64, Failed> {
    let trimmed = text.trim_matches(|character| character <= ' ');
    let unsigned = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    let is_negative = trimmed.starts_with('-');
    let magnitude = match unsigned {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ => {
            let number = unsigned.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(unsigned);
            let is_number = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
            let first = number.bytes().next().filter(|byte| byte.is_ascii_digit() || *byte == b'.');
            if first.is_none() || !number.bytes().all(is_number) {
                return Err(Failed);
            }
            number.parse().map_err(|_| Failed)?
        }
    };
    Ok(if is_negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_doubles_as_in_java() {
        for (text, expected) in [
            ("1", 1.0),
            (" \t1.5 ", 1.5),
            ("+1.5e3", 1500.0),
            ("5.", 5.0),
            (".5", 0.5),
            ("5.e1", 50.0),
            ("-2d", -2.0),
            ("2F", 2.0),
            ("1e400", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
        ] {
            assert_eq!(text_to_double(text), Ok(expected), "{text:?}");
        }
        for text in
            ["", " ", "x", "1x", "inf", "nan", "infinity", ".", "+", "--1", "1ff", "1_000", "e5", "1 2", "\u{a0}1"]
        {
            assert_eq!(text_to_double(text), Err(Failed), "{text:?}");
        }
        assert!(text_to_double("NaN").unwrap().is_nan());
    }

    #[test]
    fn doubles_have_javas_order() {
        assert_eq!(doubles(-0.0, 0.0), Ordering::Less);
        assert_eq!(doubles(f64::NAN, f64::INFINITY), Ordering::Greater);
        assert_eq!(doubles(f64::NAN, -f64::NAN), Ordering::Equal);
    }
}
