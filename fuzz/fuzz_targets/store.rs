//! libFuzzer's door to `store`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::store::run(input));
