//! Verifies one file of a log: each record, with every CRC that it has.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::units::{to_u64, to_usize};
use crate::log::commit_log::{Step, UNWRITTEN};
use crate::record::DecodeError;
use crate::recovery::log_view::LogFiles;
use crate::storage::Storage;
use crate::storage::settings::Settings;

/// What a file of a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many records there are.
    pub records: u64,
    /// The CRC-32 of all bytes up to the end (ISO-HDLC, as zlib's).
    pub crc: u32,
}

/// Reads the log file that begins at `base`, in a store with files of `file_size` bytes, up to its end or to the log's
/// `end`, at which a record ends. Fails with `StoreCorrupt` at the first byte that is not part of a whole record.
pub fn verify_file(storage: &Arc<dyn Storage>, file_size: u64, base: u64, end: u64) -> Result<Verified> {
    let settings = Settings::load(storage.as_ref())?.unwrap_or_default();
    let files = LogFiles::new(Arc::clone(storage), file_size, vec![(base, file_size)]);
    let end = end.min(base.saturating_add(file_size));
    let (mut records, mut crc) = (0, crc32fast::Hasher::new());
    let (mut at, mut needed, mut is_blank) = (base, 0, false);
    while at < end {
        let Some(window) = files.window(at, end, needed)? else {
            return Err(files.corrupt(at, "the file ends before the log"));
        };
        let bytes = window.from(at);
        let (begin, mut rest): (u64, &[u8]) = (at, &bytes);
        needed = 0;
        while !rest.is_empty() {
            if is_blank {
                at += to_u64(rest.len());
                break;
            }
            let why = match window.step(rest, at, settings.verify(at)) {
                Step::Record(view) => {
                    records += 1;
                    at += u64::from(view.size);
                    rest = rest.get(to_usize(view.size.into())..).unwrap_or_default();
                    continue;
                }
                // What follows the last record of a full file may be any bytes.
                Step::FileEnd => {
                    is_blank = true;
                    continue;
                }
                Step::Bad(DecodeError::Truncated { needed: more }) if window.range.end < end => {
                    needed = more.into();
                    break;
                }
                Step::Unwritten => UNWRITTEN.to_owned(),
                Step::Bad(why) => why.to_string(),
                Step::BadBlank(why) => why,
            };
            return Err(files.corrupt(at, &why));
        }
        crc.update(bytes.get(..to_usize(at - begin)).unwrap_or_default());
    }
    Ok(Verified { records, crc: crc.finalize() })
}
