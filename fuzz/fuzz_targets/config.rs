//! libFuzzer's door to `config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::config::run(input));
