//! gRPC requests: any bytes are a request or none; one that is written again is the same, and its checks say the same. The
//! properties of an accepted message are those that it names, so no value becomes a property of its own.

use std::collections::HashSet;

use txstore::server::grpc_probe::read;

use super::Input;

const OK: i32 = 20_000;

/// The first byte says which request the rest is.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let rpc = input.byte();
    let Some(first) = read(rpc, input.0) else { return };
    let second = read(rpc, &first.again).expect("a request that was written can be read");
    assert_eq!(first, second);
    assert!(first.code == OK || (40_000..=50_500).contains(&first.code) && first.code != 50_001, "{}", first.code);
    let names: HashSet<_> = first.stored.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), first.stored.len(), "a property is stored twice: {:?}", first.stored);
    for (name, value) in &first.stored {
        let text = [name.as_slice(), value.as_slice()].concat();
        assert!(!text.iter().any(|byte| *byte < 3), "a separator in {name:?}");
    }
}
