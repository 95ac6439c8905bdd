//! Compares the store with a model: its operations in any order, with reopening and kills, shrunk to the fewest steps
//! when they differ.
//!
//! In:     steps that proptest chooses; `TXSTORE_EXAMPLES` sets the number of sequences (200), `PROPTEST_RNG_SEED` the
//!         seed.
//! Out:    nothing, or the shortest sequence after which store and model differ.
//! Always: the model knows topics, transactions and offsets, and nothing of files.
//! Not here: crashes inside a call, failing disks (tests/crash).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::as_conversions)]
#![allow(missing_docs, unreachable_pub)]

mod model;
mod system;

use proptest::test_runner::Config;
use proptest_state_machine::prop_state_machine;
use system::System;

fn config() -> Config {
    let cases = std::env::var("TXSTORE_EXAMPLES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200);
    Config { cases, failure_persistence: None, ..Config::default() }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn store_and_model_agree(sequential 1..50 => System);
}
