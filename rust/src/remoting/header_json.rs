//! JSON header: a command's fields as an object.
//!
//! In: a command, or text. Out: text, or a command without its body. Always: what is not known is passed over, and a
//! number where text is due is read as its text, since clients of many languages write it.

use serde_json::{Map, Value};

use super::command::{Command, ExtFields, LANGUAGE_OTHER};
use super::frame::FrameError;

const LANGUAGES: &[&str] = &[
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
];

pub(super) fn write(command: &Command, out: &mut Vec<u8>) {
    write_number(out, "{\"code\":", command.code);
    if !command.ext_fields.is_empty() {
        out.extend_from_slice(b",\"extFields\":");
        let mut before = b'{';
        for (name, value) in command.ext_fields.iter() {
            out.push(before);
            write_text(out, name);
            out.push(b':');
            write_text(out, value);
            before = b',';
        }
        out.push(b'}');
    }
    write_number(out, ",\"flag\":", command.flag);
    out.extend_from_slice(b",\"language\":");
    write_text(out, LANGUAGES.get(usize::from(command.language)).unwrap_or(&"OTHER"));
    write_number(out, ",\"opaque\":", command.opaque);
    if let Some(remark) = &command.remark {
        out.extend_from_slice(b",\"remark\":");
        write_text(out, remark);
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\"");
    write_number(out, ",\"version\":", command.version);
    out.push(b'}');
}

fn write_number(out: &mut Vec<u8>, name: &str, value: i32) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.to_string().as_bytes());
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text;
    while let Some((plain, special, after)) = split_special(rest) {
        out.extend_from_slice(plain.as_bytes());
        match special {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            control => out.extend_from_slice(format!("\\u{:04x}", u32::from(control)).as_bytes()),
        }
        rest = after;
    }
    out.extend_from_slice(rest.as_bytes());
    out.push(b'"');
}

/// The text around the first character that JSON wants escaped.
fn split_special(text: &str) -> Option<(&str, char, &str)> {
    let (at, special) = text.char_indices().find(|(_, c)| matches!(c, '"' | '\\' | '\0'..='\u{1f}'))?;
    Some((text.get(..at)?, special, text.get(at + special.len_utf8()..)?))
}

pub(super) fn read(header: &[u8]) -> Result<Command, FrameError> {
    let value = serde_json::from_slice(header).map_err(|error| FrameError::Json { what: error.to_string() })?;
    let Value::Object(object) = value else {
        return Err(FrameError::Json { what: "it is no object".to_owned() });
    };
    let code = number(&object, "code")?.ok_or(FrameError::Field { field: "code", what: "is missing" })?;
    let opaque = number(&object, "opaque")?.unwrap_or_default();
    Ok(Command {
        language: language(object.get("language")),
        version: number(&object, "version")?.unwrap_or_default(),
        flag: number(&object, "flag")?.unwrap_or_default(),
        remark: object.get("remark").and_then(Value::as_str).map(str::to_owned),
        ext_fields: ext_fields(object.get("extFields"))?,
        ..Command::request(code, opaque)
    })
}

fn number(object: &Map<String, Value>, field: &'static str) -> Result<Option<i32>, FrameError> {
    let what = "is no whole number of 32 bits";
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let fits = value.as_i64().and_then(|number| i32::try_from(number).ok());
            fits.map(Some).ok_or(FrameError::Field { field, what })
        }
    }
}

fn language(value: Option<&Value>) -> u8 {
    let name = value.and_then(Value::as_str).unwrap_or_default();
    let place = LANGUAGES.iter().position(|known| *known == name);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(LANGUAGE_OTHER)
}

fn ext_fields(value: Option<&Value>) -> Result<ExtFields, FrameError> {
    match value {
        None | Some(Value::Null) => Ok(ExtFields::default()),
        Some(Value::Object(object)) => {
            Ok(object.iter().filter_map(|(name, value)| Some((name, text(value)?))).collect())
        }
        Some(_) => Err(FrameError::Field { field: "extFields", what: "is no object" }),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}
