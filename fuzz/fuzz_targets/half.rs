//! libFuzzer's door to `half`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::half::run(input));
