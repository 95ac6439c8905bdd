//! libFuzzer's door to `body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::body::run(input));
