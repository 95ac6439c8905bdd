//! libFuzzer's door to `queue`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::queue::run(input));
