//! libFuzzer's door to `offsets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::offsets::run(input));
