//! Says what a backup of a store contains, and verifies what was copied.
//!
//! In:     the directory of a store that another process may be writing; a copied file of its log.
//! Out:    a range of the log, the files that tell what the log does not, a file's CRC.
//! Always: takes no lock on the store and writes nothing to it. A copy is opened as after a crash: recovery builds
//!         queues, index and transactions from the log.
//! Not here: copying, which copies are kept, and the manifest (Python).

mod source;
#[cfg(test)]
mod tests;
mod verify;

pub use source::Source;
pub use verify::{Verified, verify_file};
