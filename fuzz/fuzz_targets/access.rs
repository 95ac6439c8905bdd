//! libFuzzer's door to `access`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::access::run(input));
