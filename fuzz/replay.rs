//! Replay: the fuzz targets on stable Rust, over the committed seeds and what lies near them.
//!
//! In: fuzz/seeds. Out: nothing, or a panic that names target, seed and change. Always: the same changes in each run, so
//! a failure comes again. Not here: the search for new inputs, which is libFuzzer's (`make fuzz`).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::as_conversions, missing_docs)]
#![allow(clippy::cast_possible_truncation, clippy::disallowed_methods, unreachable_pub)]

#[path = "src/lib.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const CHANGED_PER_SEED: u64 = 100;

/// Numbers that look random and are a function of their seed (`SplitMix64`).
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % most.max(1) as u64) as usize
    }
}

/// The seed itself, then with some bytes changed, or cut.
fn changed(seed: &[u8], number: u64) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let mut chance = Chance(number);
    for _ in 0..number.min(1) * (1 + chance.below(4) as u64) {
        let at = chance.below(bytes.len());
        match (bytes.get_mut(at), chance.below(8)) {
            (Some(byte), 0..5) => *byte = chance.below(256) as u8,
            (Some(byte), 5) => *byte = [0, 1, 0x7F, 0x80, 0xFF][chance.below(5)],
            _ => bytes.truncate(at),
        }
    }
    bytes
}

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no seed", folder.display());
    for path in paths {
        let seed = std::fs::read(&path).unwrap();
        for number in 0..=CHANGED_PER_SEED {
            let input = changed(&seed, number);
            let done = catch_unwind(AssertUnwindSafe(|| run(&input)));
            assert!(done.is_ok(), "{target}: change {number} of {}: {input:?}", path.display());
        }
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target), targets::$target::run);
        })*
    };
}

replays! { access body config frame grpc half index names offsets properties queue record snapshot sql92 store }
