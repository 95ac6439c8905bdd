//! libFuzzer's door to `frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::frame::run(input));
