//! Parses the lenient JSON that a broker's fastjson writes.
//!
//! In:     text.
//! Out:    a value, or the position and reason of an error.
//! Always: nesting and size are bounded, and no text makes it panic. Also accepts keys without quotes (`{0:25}`),
//!         single quotes, fastjson's escapes, a comma before the closing bracket.

use serde_json::{Map, Number, Value};

/// The longest text that is read, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
const DEPTH_MAX: usize = 16;

/// Parses lenient JSON.
pub fn parse_lenient(text: &str) -> Result<Value, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("{} bytes are more than {TEXT_BYTES_MAX}", text.len()));
    }
    let mut parser = Parser { text, rest: text.strip_prefix('\u{feff}').unwrap_or(text), depth: 0 };
    let value = parser.value()?;
    parser.space();
    if parser.rest.is_empty() { Ok(value) } else { Err(parser.error("text after the value")) }
}

struct Parser<'t> {
    text: &'t str,
    rest: &'t str,
    depth: usize,
}

impl<'t> Parser<'t> {
    fn error(&self, what: &str) -> String {
        let done = self.text.get(..self.text.len() - self.rest.len()).unwrap_or_default();
        let line = done.matches('\n').count() + 1;
        let column = done.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column}: {what}")
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\u{c}' || c == '\u{8}');
    }

    /// Steps over `token` if it is next.
    fn take(&mut self, token: char) -> bool {
        self.space();
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Takes the next characters while they are allowed.
    fn run(&mut self, allowed: impl Fn(char) -> bool) -> &'t str {
        let len = self.rest.find(|c| !allowed(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(len);
        self.rest = rest;
        run
    }

    fn value(&mut self) -> Result<Value, String> {
        self.space();
        match self.rest.chars().next() {
            Some('{') => self.nested(Self::object),
            Some('[') => self.nested(Self::array),
            Some('"' | '\'') => self.string().map(Value::String),
            Some(_) => self.word(),
            None => Err(self.error("the text ends where a value should be")),
        }
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Result<Value, String>) -> Result<Value, String> {
        if self.depth == DEPTH_MAX {
            return Err(self.error(&format!("nested more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let value = inner(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Result<Value, String> {
        let mut object = Map::new();
        self.take('{');
        while !self.take('}') {
            let key = self.key()?;
            if !self.take(':') {
                return Err(self.error("expected ':' after a key"));
            }
            let value = self.value()?;
            object.insert(key, value);
            self.comma_or('}')?;
        }
        Ok(Value::Object(object))
    }

    fn array(&mut self) -> Result<Value, String> {
        let mut array = Vec::new();
        self.take('[');
        while !self.take(']') {
            array.push(self.value()?);
            self.comma_or(']')?;
        }
        Ok(Value::Array(array))
    }

    fn comma_or(&mut self, close: char) -> Result<(), String> {
        if self.take(',') || self.rest.starts_with(close) {
            return Ok(());
        }
        Err(self.error(&format!("expected ',' or {close}")))
    }

    fn key(&mut self) -> Result<String, String> {
        self.space();
        if self.rest.starts_with(['"', '\'']) {
            return self.string();
        }
        let key = self.run(|c| c.is_ascii_alphanumeric() || "_$-.".contains(c));
        if key.is_empty() { Err(self.error("expected a key")) } else { Ok(key.to_owned()) }
    }

    fn word(&mut self) -> Result<Value, String> {
        let before = self.rest;
        let word = self.run(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let value = match word {
            "null" => Some(Value::Null),
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => number(word).map(Value::Number),
        };
        value.ok_or_else(|| {
            self.rest = before;
            self.error("expected a value")
        })
    }

    fn string(&mut self) -> Result<String, String> {
        let mut chars = self.rest.chars();
        let quote = chars.next();
        let mut string = String::new();
        while let Some(c) = chars.next() {
            if Some(c) == quote {
                self.rest = chars.as_str();
                return Ok(string);
            }
            if c != '\\' {
                string.push(c);
                continue;
            }
            let Some(escaped) = escape(&mut chars) else {
                self.rest = chars.as_str();
                return Err(self.error("invalid escape sequence"));
            };
            string.push(escaped);
        }
        Err(self.error("unterminated string"))
    }
}

fn number(word: &str) -> Option<Number> {
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return None;
    }
    if let Ok(number) = word.parse::<i64>() {
        return Some(number.into());
    }
    if let Ok(number) = word.parse::<u64>() {
        return Some(number.into());
    }
    Number::from_f64(word.parse().ok()?)
}

/// Reads the characters after a backslash.
fn escape(chars: &mut std::str::Chars<'_>) -> Option<char> {
    Some(match chars.next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        digit @ '0'..='7' => char::from_u32(digit.to_digit(8)?)?,
        'x' => char::from_u32(hex(chars, 2)?)?,
        'u' => utf16(chars)?,
        same @ ('"' | '\'' | '\\' | '/') => same,
        _ => return None,
    })
}

fn hex(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0, |value, _| Some(value * 16 + chars.next()?.to_digit(16)?))
}

fn utf16(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let first = u16::try_from(hex(chars, 4)?).ok()?;
    let mut ahead = chars.clone();
    if (0xD800..0xDC00).contains(&first) && ahead.next() == Some('\\') && ahead.next() == Some('u') {
        let second = u16::try_from(hex(&mut ahead, 4)?).ok()?;
        if let Some(Ok(pair)) = char::decode_utf16([first, second]).next() {
            *chars = ahead;
            return Some(pair);
        }
    }
    // Half of a surrogate pair names no character, but a broker's string may contain one.
    Some(char::decode_utf16([first]).next()?.unwrap_or(char::REPLACEMENT_CHARACTER))
}
