//! Reads and replaces the small JSON files below `config/`, and reads and replaces any small file.
//!
//! In:     a broker's lenient JSON, or a value to write.
//! Out:    a value and the damage that was found.
//! Always: at each moment of a replacement the file or its `.bak` is whole. A damaged file never replaces a good
//!         `.bak`.
//! Not here: what keys mean.

mod parse;
mod text;

use serde_json::{Value, json};

use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{TimestampMs, to_u64, to_usize};
use crate::storage::{File, OpenMode, Storage};

pub use parse::{TEXT_BYTES_MAX, parse_lenient};
pub use text::to_text;

/// The result of reading a config file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// The object in the file, or in its `.bak`; `None` if neither is good.
    pub value: Option<Value>,
    /// One text for each damaged file.
    pub damaged: Vec<String>,
}

/// Reads `config/NAME`, or `config/NAME.bak` if the file is missing, empty or damaged.
pub fn load(storage: &dyn Storage, name: &str) -> Result<Loaded> {
    let mut loaded = Loaded::default();
    for path in [format!("config/{name}"), format!("config/{name}.bak")] {
        match read_object(storage, &path)? {
            Some(Ok(value)) => {
                loaded.value = Some(value);
                break;
            }
            Some(Err(what)) => loaded.damaged.push(what),
            None => {}
        }
    }
    Ok(loaded)
}

/// Writes a text to `config/NAME`. The previous file becomes `config/NAME.bak` if it was good.
pub fn replace(storage: &dyn Storage, name: &str, text: &str) -> Result<()> {
    let path = format!("config/{name}");
    if text.len() > TEXT_BYTES_MAX {
        // A text that cannot be read back must not replace one that can.
        let too_large = std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("{} bytes", text.len()));
        return Err(Error::from_io("write", storage.root().join(path), too_large));
    }
    let backup = matches!(read_object(storage, &path)?, Some(Ok(_)));
    replace_file(storage, &path, text.as_bytes(), backup)
}

/// Opens a file that its writer replaces, to read it; `None` if it is missing. Its length is that of the open file: the
/// path may lead to another one soon.
pub fn open_present(storage: &dyn Storage, path: &str) -> Result<Option<Box<dyn File>>> {
    if storage.len(path)?.is_none() {
        return Ok(None);
    }
    match storage.open(path, OpenMode::Read) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Reads a file that its writer replaces, at most `most` bytes of it; `None` if it is missing.
pub fn read_file(storage: &dyn Storage, path: &str, most: u64) -> Result<Option<Vec<u8>>> {
    let Some(file) = open_present(storage, path)? else { return Ok(None) };
    let mut bytes = vec![0; to_usize(file.len()?.min(most))];
    file.read_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Replaces a file so that a crash leaves the old bytes or the new ones. Creates its directory if needed. With `backup`
/// the old file becomes `PATH.bak`, and between two renames only that one exists.
pub fn replace_file(storage: &dyn Storage, path: &str, bytes: &[u8], backup: bool) -> Result<()> {
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let tmp = format!("{path}.tmp");
    storage.create_dir(dir)?;
    let file = storage.open(&tmp, OpenMode::Create)?;
    file.set_len(0)?; // a crash may have left a longer file
    file.write_at(bytes, 0)?;
    if !mutated(Mutant::RenameWithoutSync) {
        file.sync()?;
    }
    if backup && storage.len(path)?.is_some() {
        storage.rename(path, &format!("{path}.bak"))?;
    }
    storage.rename(&tmp, path)?;
    storage.sync_dir(dir)
}

/// Increments a file's `dataVersion`, by which brokers detect a change.
pub fn bump_data_version(value: &mut Value, now: TimestampMs) {
    let Some(object) = value.as_object_mut() else { return };
    let field = |name| object.get("dataVersion").and_then(|version| version.get(name)).and_then(Value::as_i64);
    let counter = field("counter").unwrap_or(0).saturating_add(1);
    let state_version = field("stateVersion").unwrap_or(0);
    let version = json!({"counter": counter, "stateVersion": state_version, "timestamp": now.0});
    object.insert("dataVersion".to_owned(), version);
}

/// Returns the object in a file, or what is wrong with it; `None` if the file is missing.
fn read_object(storage: &dyn Storage, path: &str) -> Result<Option<Result<Value, String>>> {
    let Some(text) = read_file(storage, path, to_u64(TEXT_BYTES_MAX) + 1)? else { return Ok(None) };
    if text.len() > TEXT_BYTES_MAX {
        return Ok(Some(Err(format!("{path}: it has more than {TEXT_BYTES_MAX} bytes"))));
    }
    Ok(Some(parse_object(&text).map_err(|what| format!("{path}: {what}"))))
}

fn parse_object(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    match parse_lenient(text)? {
        object @ Value::Object(_) => Ok(object),
        _ => Err("it does not contain an object".to_owned()),
    }
}

#[cfg(test)]
mod tests;
