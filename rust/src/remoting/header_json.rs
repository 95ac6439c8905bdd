//! Encodes and decodes the JSON header: a command's fields as an object.
//!
//! In:     a command, or text.
//! Out:    text, or a command without its body.
//! Always: unknown fields are ignored. A number is accepted instead of a text and read as its text, because clients in
//!         many languages write it.

use std::fmt::{self, Formatter};

use serde_core::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::command::{Command, EXT_FIELDS_MAX, ExtFields, LANGUAGE_OTHER, LANGUAGES};
use super::frame_error::FrameError;

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
    write_text(out, command.language_name());
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

/// Splits a text at the first character that JSON must escape.
fn split_special(text: &str) -> Option<(&str, char, &str)> {
    let (at, special) = text.char_indices().find(|(_, c)| matches!(c, '"' | '\\' | '\0'..='\u{1f}'))?;
    Some((text.get(..at)?, special, text.get(at + special.len_utf8()..)?))
}

pub(super) fn read(header: &[u8]) -> Result<Command, FrameError> {
    // As in RocketMQ, bytes that are not UTF-8 do not close the connection with all its requests.
    let text = String::from_utf8_lossy(header);
    let read: Header = serde_json::from_str(&text).map_err(|error| FrameError::Json { what: error.to_string() })?;
    let code = number(&read.code, "code")?.ok_or(FrameError::Field { field: "code", what: "is missing" })?;
    let opaque = number(&read.opaque, "opaque")?.unwrap_or_default();
    Ok(Command {
        language: language(&read.language),
        version: number(&read.version, "version")?.unwrap_or_default(),
        flag: number(&read.flag, "flag")?.unwrap_or_default(),
        remark: read.remark.text().map(str::to_owned),
        ext_fields: read.ext_fields.0,
        ..Command::request(code, opaque)
    })
}

fn number(value: &Scalar, field: &'static str) -> Result<Option<i32>, FrameError> {
    let what = "is not a 32-bit integer";
    match value {
        Scalar::Null => Ok(None),
        Scalar::Number(number) => i32::try_from(*number).map(Some).map_err(|_| FrameError::Field { field, what }),
        Scalar::Text(_) | Scalar::Other => Err(FrameError::Field { field, what }),
    }
}

fn language(value: &Scalar) -> u8 {
    let name = value.text().unwrap_or_default();
    let index = LANGUAGES.iter().position(|known| *known == name);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(LANGUAGE_OTHER)
}

/// A value that is neither an object nor a list. Objects and lists are skipped without being stored, because a few
/// bytes of JSON can take a hundred times as much memory.
#[derive(Default)]
enum Scalar {
    #[default]
    Null,
    Number(i64),
    Text(String),
    /// An object, a list, or a number that is not an integer.
    Other,
}

impl Scalar {
    fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Scalar;

            fn expecting(&self, to: &mut Formatter<'_>) -> fmt::Result {
                to.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(i64::try_from(value).map_or_else(|_| Scalar::Text(value.to_string()), Scalar::Number))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_string()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<Scalar, E> {
                Ok(Scalar::Text(value))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Scalar, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The object's known fields. The ext fields, which are most of the header, are stored directly, without a map in
/// between.
#[derive(Default)]
struct Header {
    code: Scalar,
    language: Scalar,
    version: Scalar,
    opaque: Scalar,
    flag: Scalar,
    remark: Scalar,
    ext_fields: Fields,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Header;

            fn expecting(&self, to: &mut Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                while let Some(name) = map.next_key::<String>()? {
                    let field = match name.as_str() {
                        "code" => &mut header.code,
                        "language" => &mut header.language,
                        "version" => &mut header.version,
                        "opaque" => &mut header.opaque,
                        "flag" => &mut header.flag,
                        "remark" => &mut header.remark,
                        "extFields" => {
                            header.ext_fields = map.next_value()?;
                            continue;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *field = map.next_value()?;
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The ext fields. `null` means none.
#[derive(Default)]
struct Fields(ExtFields);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, to: &mut Formatter<'_>) -> fmt::Result {
                to.write_str("extFields as an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = ExtFields::default();
                while let Some(name) = map.next_key::<String>()? {
                    match map.next_value()? {
                        Scalar::Text(text) => fields.set(name, text),
                        Scalar::Number(number) => fields.set(name, number.to_string()),
                        Scalar::Null | Scalar::Other => {}
                    }
                    if fields.len() > EXT_FIELDS_MAX {
                        return Err(A::Error::custom(format!("there are more than {EXT_FIELDS_MAX} extFields")));
                    }
                }
                Ok(Fields(fields))
            }

            fn visit_unit<E>(self) -> Result<Fields, E> {
                Ok(Fields::default())
            }
        }
        deserializer.deserialize_any(Object)
    }
}
