//! libFuzzer's door to `names`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::names::run(input));
