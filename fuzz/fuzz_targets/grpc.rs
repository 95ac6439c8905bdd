//! libFuzzer's door to `grpc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| txstore_fuzz::grpc::run(input));
