//! Splits an expression into tokens.
//!
//! In:     text.
//! Out:    tokens with the bytes at which they begin.
//! Always: the longest token wins, as in RocketMQ's generated parser. Keywords may be written in any case.

use super::Fault;

/// A token, without its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// A name that is not a keyword.
    Name(&'t str),
    Keyword(Keyword),
    /// The text between the quotes, as it is written.
    Text(&'t str),
    /// Digits, perhaps with `l` at the end.
    Whole(&'t str),
    Fraction(&'t str),
    /// `=`, `<>`, `<`, `<=`, `>`, `>=`, `(`, `)`, `,`, `+` or `-`.
    Sign(&'static str),
    End,
}

/// A reserved word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Not,
    And,
    Or,
    Between,
    In,
    True,
    False,
    Null,
    Is,
    Contains,
    StartsWith,
    EndsWith,
}

const KEYWORDS: [(&str, Keyword); 12] = [
    ("NOT", Keyword::Not),
    ("AND", Keyword::And),
    ("OR", Keyword::Or),
    ("BETWEEN", Keyword::Between),
    ("IN", Keyword::In),
    ("TRUE", Keyword::True),
    ("FALSE", Keyword::False),
    ("NULL", Keyword::Null),
    ("IS", Keyword::Is),
    ("CONTAINS", Keyword::Contains),
    ("STARTSWITH", Keyword::StartsWith),
    ("ENDSWITH", Keyword::EndsWith),
];

/// Longer signs come before those that they begin with.
const SIGNS: [&str; 11] = ["<>", "<=", ">=", "<", ">", "=", "(", ")", ",", "+", "-"];

/// Returns the tokens of a text and where each begins. The last one is `End`.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token<'_>, usize)>, Fault> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = skip(rest);
        let at = text.len() - rest.len();
        if rest.is_empty() {
            found.push((Token::End, at));
            return Ok(found);
        }
        let (token, after) = next(rest).map_err(|what| Fault { at, what })?;
        found.push((token, at));
        rest = after;
    }
}

/// Skips white space and comments. A line comment needs the end of its line, else its dashes are signs.
fn skip(mut rest: &str) -> &str {
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
        let line = rest.strip_prefix("--").and_then(|line| line.find(['\n', '\r']).and_then(|end| line.get(end..)));
        let block = rest.strip_prefix("/*").and_then(|block| Some(block.split_once("*/")?.1));
        match line.or(block) {
            Some(after) => rest = after,
            None => return rest,
        }
    }
}

/// Returns the first token of a text that begins with one, and the rest.
fn next(rest: &str) -> Result<(Token<'_>, &str), String> {
    if let Some(text) = rest.strip_prefix('\'') {
        let (text, after) = quoted(text).ok_or("a string without its closing quote")?;
        return Ok((Token::Text(text), after));
    }
    if let Some(number) = number(rest) {
        return Ok(number);
    }
    let (name, after) =
        rest.split_at(length_of(rest, |byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'));
    if !name.is_empty() {
        let keyword = KEYWORDS.iter().find(|(word, _)| word.eq_ignore_ascii_case(name));
        return Ok((keyword.map_or(Token::Name(name), |(_, keyword)| Token::Keyword(*keyword)), after));
    }
    let sign = SIGNS.iter().find_map(|sign| Some((Token::Sign(sign), rest.strip_prefix(sign)?)));
    sign.ok_or_else(|| {
        let what = rest.chars().next().unwrap_or_default();
        match what {
            '!' => "'!' is not an operator (unequal is written <>)".to_owned(),
            '"' => "'\"' begins nothing (strings have single quotes)".to_owned(),
            _ => format!("{what:?} begins nothing that an expression may have"),
        }
    })
}

/// Returns the text before the closing quote, and what follows. Two quotes are one in the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find('\'')?;
        let after = text.get(at + 1..)?;
        if !after.starts_with('\'') {
            return Some((text.get(..at)?, after));
        }
        from = at + 2;
    }
}

fn length_of(text: &str, is_part: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| is_part(*byte)).count()
}

fn digits(text: &str) -> usize {
    length_of(text, |byte| byte.is_ascii_digit())
}

/// Returns the number at the beginning of a text, if there is one. 007 is three numbers.
fn number(rest: &str) -> Option<(Token<'_>, &str)> {
    if let Some(length) = fraction(rest) {
        let (image, after) = rest.split_at(length);
        return Some((Token::Fraction(image), after));
    }
    let length = match rest.bytes().next()? {
        b'0' => 1,
        b'1'..=b'9' => {
            let length = digits(rest);
            length + usize::from(rest.get(length..)?.starts_with(['l', 'L']))
        }
        _ => return None,
    };
    let (image, after) = rest.split_at(length);
    Some((Token::Whole(image), after))
}

/// Returns the length of a number with a point or an exponent.
fn fraction(rest: &str) -> Option<usize> {
    let whole = digits(rest);
    let after = rest.get(whole..)?;
    let (length, has_point) = match after.strip_prefix('.') {
        Some(part) if whole > 0 || digits(part) > 0 => (whole + 1 + digits(part), true),
        Some(_) => return None,
        None => (whole, false),
    };
    let exponent = if length > 0 { exponent(rest.get(length..)?) } else { 0 };
    (has_point || exponent > 0).then_some(length + exponent)
}

/// Returns the length of an exponent, or 0.
fn exponent(text: &str) -> usize {
    let Some(after) = text.strip_prefix(['e', 'E']) else { return 0 };
    let unsigned = after.strip_prefix(['+', '-']).unwrap_or(after);
    match digits(unsigned) {
        0 => 0,
        count => text.len() - unsigned.len() + count,
    }
}
