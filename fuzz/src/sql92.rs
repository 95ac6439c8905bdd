//! SQL92 expressions: any text is refused or evaluated; laws of logic hold for what it selects.

use txstore::filter::sql92::Expression;

const PROPERTIES: [(&str, &str); 6] =
    [("a", "1"), ("b", "2.5"), ("c", "it's"), ("d", ""), ("e", "TRUE"), ("f", "-3000000000")];

fn selects(text: &str) -> Option<bool> {
    let property = |name: &str| PROPERTIES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    match Expression::parse(text) {
        Ok(expression) => Some(expression.matches(property)),
        Err(why) => {
            let why = why.to_string();
            assert!(why.len() < 1_000 && (why.contains("at position") || text.len() > 16_384), "{why}");
            None
        }
    }
}

/// The input is a text.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some(selected) = selects(text) else { return };
    // An expression that ends in an open comment or that is nearly too deep cannot be part of another one.
    let within = |before: &str, after: &str| selects(&format!("{before}({text}\n){after}"));
    for same in [within("", ""), within("", " AND TRUE"), within("", " OR FALSE"), within("NOT NOT ", "")] {
        assert!(same.is_none_or(|same| same == selected));
    }
    assert!(!selected || within("NOT ", "") != Some(true), "a condition and its opposite");
    assert!(within("", " AND FALSE") != Some(true));
}
