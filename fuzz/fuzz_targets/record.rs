//! libFuzzer's door to `record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::record::run(input));
