//! Bodies: decompress anything, within a limit.

use txstore::record::decompress;

use super::Input;

const LIMIT: usize = 64 << 10;

/// One byte names the compression, the rest is the stored body.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let sys_flag = i32::from(input.byte() & 7) << 8 | 1;
    match decompress(sys_flag, input.0, LIMIT) {
        Ok(plain) => assert!(plain.len() <= LIMIT),
        Err(why) => assert!(!why.is_empty()),
    }
    assert_eq!(decompress(0, input.0, LIMIT).unwrap(), input.0, "what is not compressed is as it is");
}
