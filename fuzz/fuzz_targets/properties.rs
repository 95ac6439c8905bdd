//! libFuzzer's door to `properties`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::properties::run(input));
