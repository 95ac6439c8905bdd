//! Encodes and decodes RocketMQ's binary header.
//!
//! In:     a command, or bytes.
//! Out:    bytes, or a command without its body.
//! Always: a length is checked against the available bytes before anything is copied.
//!
//! ```text
//!  bytes  field
//!  2      code
//!  1      language
//!  2      version
//!  4      opaque
//!  4      flag
//!  4 + n  remark, UTF-8 (n = 0: no remark)
//!  4 + n  ext fields: (2 + n name, 4 + n value) repeated
//! ```

use super::command::{Command, EXT_FIELDS_MAX, ExtFields};
use super::frame_error::FrameError;

pub(super) fn write(command: &Command, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let code = i16::try_from(command.code).map_err(|_| bad("code", "does not fit the two bytes it has here"))?;
    let version =
        i16::try_from(command.version).map_err(|_| bad("version", "does not fit the two bytes it has here"))?;
    out.extend_from_slice(&code.to_be_bytes());
    out.push(command.language);
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&command.opaque.to_be_bytes());
    out.extend_from_slice(&command.flag.to_be_bytes());
    write_long(out, command.remark.as_deref().unwrap_or_default(), "remark")?;
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    for (name, value) in command.ext_fields.iter() {
        let length = i16::try_from(name.len()).map_err(|_| bad("ext field name", "is longer than 32767 bytes"))?;
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(name.as_bytes());
        write_long(out, value, "ext field value")?;
    }
    let length = i32::try_from(out.len() - length_at - 4).map_err(|_| bad("ext fields", "are too long"))?;
    if let Some(target) = out.get_mut(length_at..length_at + 4) {
        target.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

fn write_long(out: &mut Vec<u8>, text: &str, field: &'static str) -> Result<(), FrameError> {
    let length = i32::try_from(text.len()).map_err(|_| bad(field, "is too long"))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

pub(super) fn read(header: &[u8]) -> Result<Command, FrameError> {
    let mut rest = header;
    let mut command = Command::request(i16::from_be_bytes(chunk(&mut rest, "code")?).into(), 0);
    [command.language] = chunk(&mut rest, "language")?;
    command.version = i16::from_be_bytes(chunk(&mut rest, "version")?).into();
    command.opaque = i32::from_be_bytes(chunk(&mut rest, "opaque")?);
    command.flag = i32::from_be_bytes(chunk(&mut rest, "flag")?);
    let remark = read_long(&mut rest, "remark")?;
    command.remark = (!remark.is_empty()).then(|| text(remark));
    command.ext_fields = read_fields(read_long(&mut rest, "ext fields")?)?;
    Ok(command)
}

fn read_fields(mut rest: &[u8]) -> Result<ExtFields, FrameError> {
    let mut fields = ExtFields::default();
    while !rest.is_empty() {
        let length = i16::from_be_bytes(chunk(&mut rest, "ext field name")?);
        let name = text(bytes(&mut rest, i32::from(length), "ext field name")?);
        let value = text(read_long(&mut rest, "ext field value")?);
        fields.set(name, value);
        if fields.len() > EXT_FIELDS_MAX {
            return Err(FrameError::Field { field: "ext fields", what: "have more than 1000 entries" });
        }
    }
    Ok(fields)
}

fn read_long<'a>(rest: &mut &'a [u8], field: &'static str) -> Result<&'a [u8], FrameError> {
    let length = i32::from_be_bytes(chunk(rest, field)?);
    bytes(rest, length, field)
}

fn bytes<'a>(rest: &mut &'a [u8], length: i32, field: &'static str) -> Result<&'a [u8], FrameError> {
    let length = usize::try_from(length).map_err(|_| bad(field, "states a length below 0"))?;
    let (taken, after) = rest.split_at_checked(length).ok_or_else(|| bad(field, "is longer than what is left"))?;
    *rest = after;
    Ok(taken)
}

fn chunk<const N: usize>(rest: &mut &[u8], field: &'static str) -> Result<[u8; N], FrameError> {
    let (taken, after) = rest.split_first_chunk::<N>().ok_or_else(|| bad(field, "is cut off"))?;
    *rest = after;
    Ok(*taken)
}

/// Decodes UTF-8. As in RocketMQ, invalid bytes are replaced and do not close the connection with all its requests.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const fn bad(field: &'static str, what: &'static str) -> FrameError {
    FrameError::Field { field, what }
}
