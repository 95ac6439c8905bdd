//! Reads the commit log's files and decides in one module where the log ends.
//!
//! In:     a store's directory, or the files of a log that is already open.
//! Out:    which process writes the store, records in order, the next record after damage, and the verdict on a log's
//!         end.
//! Always: takes no lock and writes nothing. Recovery, the Arrow scan and repair use it, so they agree.
//!
//! | module      | answers                                                           |
//! |-------------|-------------------------------------------------------------------|
//! | `tail`      | Is this the end of the log, a torn tail, stale bytes, or damage?  |
//! | `known`     | What is known of the end before the log is read?                  |
//! | `files`     | Which files are there, and what is in them after an offset?       |
//! | `find`      | Where does the next record begin?                                 |
//! | `writer`    | Which process writes the store, and was it closed?                |
//! | `directory` | Is a directory a store, and how large are its files?              |
//! | `log`       | What does a reader see that does not open the store?              |

mod directory;
mod files;
mod find;
mod known;
#[cfg(feature = "arrow")]
mod log;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use directory::{consume_queue_file_size, foreign, log_file_size, look, no_store};
pub(crate) use files::LogFiles;
#[cfg(feature = "arrow")]
pub(crate) use files::{Pace, Window};
pub(crate) use find::next_record;
pub(crate) use known::KnownEnd;
pub use known::known_durable;
#[cfg(feature = "arrow")]
pub use log::Log;
#[cfg(feature = "arrow")]
pub(crate) use log::{LOOKS_MAX, Skips, StatisticsFiles, Stop, Tally};
pub use tail::{Cause, Facts, Follows, LastWriter, Reached, Tail};
pub use writer::GUARD;
pub(crate) use writer::{ABORT, LOCK, PUBLISHER_BYTE, Seen, WRITER_BYTE, Writer, is_clean};
