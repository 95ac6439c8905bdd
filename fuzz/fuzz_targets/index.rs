//! libFuzzer's door to `index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::index::run(input));
