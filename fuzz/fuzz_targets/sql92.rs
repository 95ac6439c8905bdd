//! libFuzzer's door to `sql92`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::sql92::run(input));
