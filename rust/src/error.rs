//! Errors: what went wrong, exactly, and what kind of next step the caller has.
//!
//! In:     facts (a file, an offset, a limit).
//! Out:    one `Error` whose text says what, where and what to do.
//! Always: data stays in the variant; nobody parses a text.
//! Not here: Python's classes (`python/error.rs`).

use std::io;
use std::path::PathBuf;

use crate::units::PhysicalOffset;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Its message stands in the real topic.
    Committed,
    /// It left nothing.
    RolledBack,
    /// It was parked in `TRANS_CHECK_MAX_TIME_TOPIC`.
    Discarded,
    /// A broker finished it and left no trace of how.
    FinishedUnknown,
}

impl Outcome {
    /// Returns the word by which Python and clients know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::Discarded => "discarded",
            Self::FinishedUnknown => "finished_unknown",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolled back",
            Self::Discarded => "discarded",
            Self::FinishedUnknown => "finished, outcome unknown",
        })
    }
}

/// What a caller can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Fix the call.
    Invalid,
    /// Look elsewhere.
    NotFound,
    /// Look again: the world has moved on.
    IllegalState,
    /// Retry later.
    Unavailable,
    /// Stop and verify the files.
    Corrupted,
    /// Reopen the store.
    Poisoned,
    /// The handle was closed.
    Closed,
    /// The operating system said no.
    System,
}

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A message that cannot be stored as it is.
    #[error("{what}")]
    InvalidMessage {
        /// What is wrong and what would be right.
        what: String,
    },
    /// A topic, group or queue name or number that is not allowed.
    #[error("{what}")]
    InvalidName {
        /// What is wrong and what would be right.
        what: String,
    },
    /// An option that does not exist, is out of its range, or contradicts the store.
    #[error("option {option}: {what}")]
    InvalidOption {
        /// The option's name.
        option: String,
        /// What is wrong and what would be right.
        what: String,
    },
    /// No such message.
    #[error("{what}")]
    MessageNotFound {
        /// Which message, and where it was looked for.
        what: String,
    },
    /// No such transaction.
    #[error("{what}")]
    TransactionNotFound {
        /// Which transaction, and where it was looked for.
        what: String,
    },
    /// The offset was removed by retention.
    #[error("offset {requested} of {place} is gone: retention removed it\nhint: the first one left is {minimum}")]
    OffsetTooOld {
        /// `TOPIC/QUEUE_ID` or the commit log.
        place: String,
        /// The offset asked for.
        requested: u64,
        /// The lowest offset that is left.
        minimum: u64,
    },
    /// The transaction has ended, otherwise than asked.
    #[error("transaction {transaction} has ended already: {outcome}")]
    AlreadyEnded {
        /// Its id, or its half message's offsets.
        transaction: String,
        /// What became of it.
        outcome: Outcome,
    },
    /// The transaction has not ended.
    #[error("transaction {transaction} still pends\nhint: end it, or wait for its check")]
    StillPending {
        /// Its id.
        transaction: String,
    },
    /// The end comes from a group that did not begin the transaction.
    #[error("transaction {transaction} belongs to producer group {expected}, not to {given}")]
    WrongGroup {
        /// Its id, or its half message's offsets.
        transaction: String,
        /// The group in the half message.
        expected: String,
        /// The group in the call.
        given: String,
    },
    /// An end that came too late, in a store opened with `reject_late_end`.
    #[error(
        "transaction {transaction} was ended after its immunity time of {immunity_ms} ms; a check will ask its producer\nhint: open without reject_late_end to accept late ends"
    )]
    LateEnd {
        /// Its id, or its half message's offsets.
        transaction: String,
        /// How long an end is taken without a check, in milliseconds.
        immunity_ms: i64,
    },
    /// The handle was opened by another process, before a fork.
    #[error(
        "the store was opened by process {owner}; this is process {here}, a fork of it\nhint: open the store after forking, in one process only"
    )]
    StoreForked {
        /// The process that opened it.
        owner: u32,
        /// This process.
        here: u32,
    },
    /// The handle is read-only.
    #[error("the store is open read-only: {what} needs a writer")]
    ReadOnly {
        /// What was asked for.
        what: &'static str,
    },
    /// Another process has the store open for writing.
    #[error("{} is open for writing {}", path.display(), locked_by(*pid, *is_gone))]
    StoreLocked {
        /// The store.
        path: PathBuf,
        /// The process that opened it, if `abort` names one.
        pid: Option<u32>,
        /// No process of that number runs on this machine.
        is_gone: bool,
    },
    /// No space is left.
    #[error("no space left for {}: {source}\nhint: transactions can still be ended; sends work again when there is space", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The option's number of pending transactions is reached.
    #[error("{pending} transactions are pending, the most that {option} allows\nhint: end some, or raise it")]
    TooManyPending {
        /// The option's name.
        option: &'static str,
        /// How many pend.
        pending: u64,
    },
    /// The call was not to wait, and would have to; nothing has changed. No Python call ends so.
    #[error("the write would have to wait\nhint: call again and let it wait")]
    WouldWait,
    /// The process has no file handles or maps left.
    #[error("cannot open {}: {source}\nhint: raise the limit of open files (ulimit -n) and try again", path.display())]
    TooManyFiles {
        /// The file that could not be opened.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file says something that cannot be.
    #[error("{} is damaged at byte {offset}: {what}\nhint: nothing was changed; `txstore store check` tells more", file.display())]
    StoreCorrupt {
        /// The file, relative to the store or absolute.
        file: PathBuf,
        /// The byte in it.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// A file of a row is not there.
    #[error("{} is missing: the bytes {from}..{to} of the log are not there\nhint: nothing was changed; put the file back from a copy", path.display())]
    MissingFile {
        /// The file that should be there.
        path: PathBuf,
        /// The first byte that is missing.
        from: PhysicalOffset,
        /// One past the last byte that is missing.
        to: PhysicalOffset,
    },
    /// The directory is no store that this engine writes.
    #[error("{} cannot be used: {what}", path.display())]
    ForeignStore {
        /// The store or the file in it.
        path: PathBuf,
        /// What it is instead, and what to do.
        what: String,
    },
    /// A write or sync failed; what is on disk is not known any more.
    #[error("the store stopped writing: {why}\nhint: close it and open it again; opening recovers")]
    StorePoisoned {
        /// The first failure.
        why: String,
    },
    /// The handle was closed.
    #[error("the store is closed")]
    StoreClosed,
    /// Anything else the operating system refused.
    #[error("cannot {operation} {}: {source}{}", path.display(), io_hint(operation, source.kind()))]
    Io {
        /// What was tried: open, read, write, sync, …
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl Error {
    /// Returns what the caller can do next.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidMessage { .. } | Self::InvalidName { .. } | Self::InvalidOption { .. } => ErrorKind::Invalid,
            Self::MessageNotFound { .. } | Self::TransactionNotFound { .. } | Self::OffsetTooOld { .. } => {
                ErrorKind::NotFound
            }
            Self::AlreadyEnded { .. }
            | Self::StillPending { .. }
            | Self::WrongGroup { .. }
            | Self::LateEnd { .. }
            | Self::StoreForked { .. }
            | Self::ReadOnly { .. } => ErrorKind::IllegalState,
            Self::StoreLocked { .. }
            | Self::DiskFull { .. }
            | Self::TooManyPending { .. }
            | Self::WouldWait
            | Self::TooManyFiles { .. } => ErrorKind::Unavailable,
            Self::StoreCorrupt { .. } | Self::MissingFile { .. } | Self::ForeignStore { .. } => ErrorKind::Corrupted,
            Self::StorePoisoned { .. } => ErrorKind::Poisoned,
            Self::StoreClosed => ErrorKind::Closed,
            Self::Io { .. } => ErrorKind::System,
        }
    }

    /// Returns the same failure once more, for another caller that it concerns: one write or sync served both.
    #[must_use]
    pub fn repeat(&self) -> Self {
        let again = |source: &io::Error| {
            source.raw_os_error().map_or_else(|| io::Error::from(source.kind()), io::Error::from_raw_os_error)
        };
        match self {
            Self::DiskFull { path, source } => Self::DiskFull { path: path.clone(), source: again(source) },
            Self::TooManyFiles { path, source } => Self::TooManyFiles { path: path.clone(), source: again(source) },
            Self::Io { operation, path, source } => Self::Io { operation, path: path.clone(), source: again(source) },
            Self::StoreClosed => Self::StoreClosed,
            other => Self::StorePoisoned { why: other.to_string() },
        }
    }

    /// Returns the error of a failed system call: a full disk and a lack of handles have kinds of their own.
    pub fn from_io(operation: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            _ if matches!(source.raw_os_error(), Some(EMFILE | ENFILE)) => Self::TooManyFiles { path, source },
            _ => Self::Io { operation, path, source },
        }
    }
}

/// Returns what helps against the refusals that a user's own setting causes.
fn io_hint(operation: &str, kind: io::ErrorKind) -> &'static str {
    match (operation, kind) {
        ("listen at", io::ErrorKind::AddrInUse) => {
            "\nhint: another server listens there: stop it, or give another place (port 0 takes a free one)"
        }
        ("listen at", io::ErrorKind::AddrNotAvailable) => "\nhint: the host must be an address of this machine",
        ("listen at", io::ErrorKind::PermissionDenied) => {
            "\nhint: take a port above 1023, or a directory that this user may write to"
        }
        ("listen at", _) => "\nhint: HOST:PORT with the host as a number, or a file in a directory that is there",
        (_, io::ErrorKind::PermissionDenied) => {
            "\nhint: this user needs write permission to the store, and with read_only=True read permission"
        }
        (_, io::ErrorKind::ReadOnlyFilesystem) => "\nhint: with read_only=True nothing is written",
        (_, io::ErrorKind::NotADirectory) => "\nhint: a store is a directory, made by its first writer",
        ("create", io::ErrorKind::NotFound) => "\nhint: make the directory above it first",
        ("open", io::ErrorKind::NotFound) => "\nhint: is the path right, and is a store there? only a writer makes one",
        _ => "",
    }
}

const ENFILE: i32 = 23; // Linux, all architectures: the system's table of open files is full
const EMFILE: i32 = 24; // Linux, all architectures: the process's table of open files is full

fn locked_by(pid: Option<u32>, is_gone: bool) -> String {
    let hint = "hint: one process writes; open it with read_only=True, or talk to that process";
    match pid {
        Some(pid) if is_gone => format!(
            "by process {pid}, which has ended or runs in another container; a process that it forked may hold the lock\nhint: end the processes that it started, then open the store again"
        ),
        Some(pid) => format!("by process {pid}\n{hint}"),
        None => format!("elsewhere\n{hint}"),
    }
}
