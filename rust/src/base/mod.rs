//! Holds what every other module uses: units, errors, options, names, time, locks.
//!
//! Always: knows no record, no file and no store.

pub mod clock;
pub mod error;
pub mod java;
pub(crate) mod mutant;
pub mod names;
pub mod options;
pub mod panics;
pub(crate) mod sync;
#[cfg_attr(not(all(target_os = "linux", not(txstore_without_disk))), path = "system/elsewhere.rs")]
pub(crate) mod system;
pub mod units;
