//! Decompresses bodies.
//!
//! In:     a sysflag, a stored body, the maximum length of the result.
//! Out:    the body, borrowed if it is not compressed.
//! Always: memory stays near the limit, whatever the bytes claim.
//! Not here: compressing.

use std::borrow::Cow;
use std::io::Read;

use super::layout::{SYS_COMPRESSED, SYS_COMPRESSION_MASK, SYS_LZ4, SYS_ZLIB, SYS_ZSTD};

/// The default limit of a decompressed body where it is shown. RocketMQ's clients compress bodies of at most 4 MiB.
pub const BODY_MAX: usize = 64 << 20;
/// A frame may ask for this window even if the limit is lower: the ZSTD standard requires every decoder to grant it.
const ZSTD_WINDOW_MIN: usize = 8 << 20;

/// Returns the body decompressed. An error's text says what is wrong with it.
pub fn decompress(sys_flag: i32, body: &[u8], limit: usize) -> std::result::Result<Cow<'_, [u8]>, String> {
    if sys_flag & SYS_COMPRESSED == 0 || body.is_empty() {
        return Ok(Cow::Borrowed(body));
    }
    let (name, read) = match sys_flag & SYS_COMPRESSION_MASK {
        0 | SYS_ZLIB => ("ZLIB", read_to_limit(flate2::read::ZlibDecoder::new(body), limit)),
        SYS_LZ4 => ("LZ4", read_to_limit(lz4_flex::frame::FrameDecoder::new(body), limit)),
        SYS_ZSTD => ("ZSTD", unzstd(body, limit)),
        other => return Err(format!("the body's compression is unknown: type {}", other >> 8)),
    };
    match read {
        Ok(plain) if plain.len() > limit => Err(format!("the body is longer than {limit} bytes when decompressed")),
        Ok(plain) => Ok(Cow::Owned(plain)),
        Err(why) => Err(format!("the body is not a complete {name} stream: {why}")),
    }
}

fn unzstd(body: &[u8], limit: usize) -> std::result::Result<Vec<u8>, String> {
    let window_max = u64::try_from(limit.max(ZSTD_WINDOW_MIN)).unwrap_or(u64::MAX);
    let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(body, window_max);
    read_to_limit(decoder.map_err(|error| error.to_string())?, limit)
}

/// Reads at most one byte more than the limit, to tell "as long as" from "longer".
fn read_to_limit(reader: impl Read, limit: usize) -> std::result::Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(most).read_to_end(&mut plain).map_err(|error| error.to_string())?;
    Ok(plain)
}

#[cfg(test)]
mod tests;
