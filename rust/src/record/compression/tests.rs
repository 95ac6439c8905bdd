//! Bodies of each compression come back, and nothing grows beyond the limit.

use std::io::Write;

use super::*;

fn zlib(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn lz4(plain: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(plain, ruzstd::encoding::CompressionLevel::Fastest)
}

fn kinds(plain: &[u8]) -> [(i32, Vec<u8>); 4] {
    let one = SYS_COMPRESSED;
    [(one, zlib(plain)), (one | SYS_ZLIB, zlib(plain)), (one | SYS_LZ4, lz4(plain)), (one | SYS_ZSTD, zstd(plain))]
}

#[test]
fn each_kind_comes_back() {
    let plain = b"hello, hello, hello".repeat(1_000);
    for (sys_flag, body) in kinds(&plain) {
        assert_eq!(decompress(sys_flag, &body, plain.len()).unwrap(), plain, "{sys_flag:#x}");
        let error = decompress(sys_flag, &body, plain.len() - 1).unwrap_err();
        assert_eq!(error, "the body is longer than 18999 bytes when decompressed", "{sys_flag:#x}");
    }
}

#[test]
fn a_bomb_is_refused() {
    let plain = vec![0; 64 << 20];
    for (sys_flag, body) in kinds(&plain) {
        assert!(decompress(sys_flag, &body, 1 << 16).unwrap_err().contains("longer than 65536"), "{sys_flag:#x}");
    }
}

#[test]
fn a_zstd_window_beyond_all_use_is_refused() {
    // Magic, no content size, a window of 1 GiB, then one empty last block.
    let frame = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 20 << 3, 0x01, 0x00, 0x00];
    assert!(decompress(SYS_COMPRESSED | SYS_ZSTD, &frame, 1 << 16).is_err());
}

#[test]
fn what_is_cut_or_garbage_is_an_error() {
    let plain = b"hello, hello, hello".repeat(1_000);
    for (sys_flag, body) in kinds(&plain) {
        assert!(decompress(sys_flag, &body[..body.len() / 2], 1 << 20).is_err(), "{sys_flag:#x}");
        assert!(decompress(sys_flag, b"garbage", 1 << 20).is_err(), "{sys_flag:#x}");
    }
    assert!(decompress(SYS_COMPRESSED | 0x400, b"x", 10).unwrap_err().contains("unknown: type 4"));
}

#[test]
fn what_is_not_compressed_is_borrowed() {
    assert!(matches!(decompress(SYS_LZ4, b"plain", 1), Ok(Cow::Borrowed(b"plain"))));
    assert!(matches!(decompress(SYS_COMPRESSED, b"", 1), Ok(Cow::Borrowed(b""))));
}
