//! The rules of expressions, by examples.

use proptest::prelude::*;

use super::*;

const PROPERTIES: [(&str, &str); 6] =
    [("a", "10"), ("b", "2.5"), ("c", "it's"), ("yes", "TRUE"), ("long", "3000000000"), ("_$1", "x")];

fn property(name: &str) -> Option<&'static str> {
    PROPERTIES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn matches(text: &str) -> bool {
    Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(property)
}

/// Each was also evaluated by RocketMQ 5.4's filter, with the same result (`tests/peer/test_sql92.py`).
#[test]
fn conditions_that_hold() {
    for text in [
        "a = 10",
        "a = '10'",
        "10 = a",
        "a <> 11",
        "a > 9 AND a < 11",
        "a >= 10 and a <= 10",
        "b > 2.0",
        "b = 2.5",
        "b < 3.",
        "a BETWEEN 10 AND 10",
        "a NOT BETWEEN 11 AND 12",
        "a between 9.5 and 1e2",
        "a > -1",
        "a > - -1",
        "a > +1",
        "c = 'it''s'",
        "c IN ('x', 'it''s')",
        "c NOT IN ('x')",
        "c CONTAINS 't''s'",
        "c STARTSWITH 'it'",
        "c ENDSWITH 's'",
        "c NOT CONTAINS 'x'",
        "c NOT STARTSWITH 'x'",
        "c NOT ENDSWITH 'x'",
        "none IS NULL",
        "a IS NOT NULL",
        "NOT (a = 11)",
        "yes = TRUE",
        "yes <> FALSE",
        "(a = 10) = TRUE",
        "TRUE",
        "NOT FALSE",
        "a = 11 OR b = 2.5",
        "none = 1 OR a = 10",
        "long > 3000000001 OR long = 3000000000l",
        "long = 3000000000",
        "_$1 = 'x'",
        "a /* ten */ = -- yes\n 10",
        "none = other",
        "a = 10 AND (b = 2.5 OR c = 'x')",
        "a = 10 AND NOT b = 3 OR TRUE",
        "NOT a = FALSE OR a = 10",
        "'x' CONTAINS 'x'",
    ] {
        assert!(matches(text), "{text}");
    }
}

#[test]
fn conditions_that_do_not_hold_or_cannot_be_evaluated() {
    for text in [
        "a = 11",
        "A = 10",
        "none = 1",
        "none <> 1",
        "NOT (none = 1)",
        "NULL",
        "FALSE",
        "a",
        "c",
        "c CONTAINS ''",
        "c NOT CONTAINS ''",
        "none CONTAINS 'x'",
        "none NOT CONTAINS 'x'",
        "none IN ('x')",
        "none NOT IN ('x')",
        "c = 1",
        "c > 1",
        "b > 2 AND b = 2",
        "b = 2",
        "long > 1",
        "long > 1l",
        "long = 1 OR TRUE",
        "a IS NULL",
        "none IS NOT NULL",
        "-c = 1",
        "none = 1 AND a = 10",
        "(a = 10) = 'true'",
        "none = none AND a = 11",
        "a BETWEEN 11 AND 20",
        "a > c",
    ] {
        assert!(!matches(text), "{text}");
    }
}

#[test]
fn a_failed_conversion_that_is_not_reached_changes_nothing() {
    assert!(matches("a = 10 OR c > 1"));
    assert!(!matches("c > 1 OR a = 10"));
}

#[test]
fn what_rocketmq_refuses_is_refused_with_its_position() {
    for (text, position, what) in [
        ("", 1, "ends where a name or a value is needed"),
        ("a =", 4, "ends where a name or a value is needed"),
        ("a = NULL", 5, "IS NULL"),
        ("a > 'x'", 5, "a string has no order"),
        ("a > TRUE", 5, "a condition has no order"),
        ("(a = 1) > 2", 2, "a condition has no order"),
        ("a BETWEEN 2 AND 1", 17, "ends below its beginning"),
        ("a BETWEEN 1", 12, "AND is missing"),
        ("a IN (1)", 7, "a string in single quotes is missing"),
        ("1 IN ('x')", 1, "IN needs the name of a property"),
        ("a IN ('x'", 10, ") is missing"),
        ("TRUE = 1", 8, "TRUE or FALSE"),
        ("a = 'x", 5, "without its closing quote"),
        ("a = 0.0", 5, "doubles do not have"),
        ("a = 1e999", 5, "doubles do not have"),
        ("a = 9223372036854775808", 5, "above 64 bits"),
        ("1", 1, "a value where a condition is needed"),
        ("-a", 1, "a value where a condition is needed"),
        ("NOT 1", 5, "a value where a condition is needed"),
        ("a != 1", 3, "unequal is written <>"),
        ("a = \"x\"", 5, "single quotes"),
        ("a = 1 ; b", 7, "begins nothing"),
        ("ü = 1", 1, "begins nothing"),
        ("'ü' = b AND ü", 13, "begins nothing"),
        ("a IS 1", 6, "NULL is missing"),
        ("AND", 1, "a name or a value is missing"),
        ("(a = 1", 7, ") is missing"),
        ("a CONTAINS b", 12, "a string in single quotes"),
    ] {
        let error = Expression::parse(text).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(&format!("at position {position} of")), "{text}: {error}");
    }
}

#[test]
fn an_error_is_short_whatever_the_expression_has() {
    for text in ["\u{1}".repeat(16_000), "ü".repeat(16_000), "\u{10ffff}".repeat(4_000)] {
        let error = Expression::parse(&text).unwrap_err().to_string();
        assert!(error.chars().count() < 400, "{error}");
    }
}

#[test]
fn text_after_the_end_is_refused_though_rocketmq_ignores_it() {
    for (text, position) in [("a = 1 b = 2", 7), ("a = 1)", 6), ("a = 007", 6), ("a = 1 NOT", 7), ("a = 5L5", 7)] {
        let error = Expression::parse(text).unwrap_err().to_string();
        assert!(
            error.contains("more follows") && error.contains(&format!("position {position} of")),
            "{text}: {error}"
        );
    }
}

#[test]
fn depth_and_length_are_bounded_and_long_chains_are_not_deep() {
    let nested = |depth: usize| format!("{}a = 1{}", "(".repeat(depth), ")".repeat(depth));
    Expression::parse(&nested(DEPTH_MAX - 1)).unwrap();
    for text in [
        nested(DEPTH_MAX),
        "NOT ".repeat(200) + "a",
        "- ".repeat(200) + "a = 1",
        "a IS NULL".to_owned() + &" IS NULL".repeat(200),
    ] {
        let error = Expression::parse(&text).unwrap_err().to_string();
        assert!(error.contains("nested more than 100 deep"), "{error}");
    }
    let chain = vec!["a = 11"; 1_000].join(" OR ") + " OR b = 2.5";
    assert!(matches(&chain));
    let error = Expression::parse(&"a".repeat(LENGTH_MAX + 1)).unwrap_err().to_string();
    assert!(error.contains("has 16385 bytes, at most 16384 are accepted"), "{error}");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in "[ab'0-9.()=<>,+\\- eNOTANDRISULBEW]{0,40}|\\PC{0,40}") {
        if let Ok(expression) = Expression::parse(&text) {
            expression.matches(property);
        }
    }
}
