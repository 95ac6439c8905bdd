//! libFuzzer's door to `snapshot`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::snapshot::run(input));
