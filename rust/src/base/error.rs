//! Defines the errors: what went wrong, exactly, and which kind of next step the caller has.
//!
//! In:     facts (a file, an offset, a limit).
//! Out:    one `Error` whose text says what, where and what to do.
//! Always: data stays in the variant, so that no caller parses a text.
//! Not here: Python's classes (`python/error.rs`).

use std::io;
use std::path::PathBuf;

use crate::base::units::PhysicalOffset;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Its message is in the real topic.
    Committed,
    /// No message became visible.
    RolledBack,
    /// It was moved to `TRANS_CHECK_MAX_TIME_TOPIC`.
    Discarded,
    /// A broker finished it and left no record of the outcome.
    FinishedUnknown,
}

impl Outcome {
    /// Returns the name that Python and clients use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::Discarded => "discarded",
            Self::FinishedUnknown => "finished_unknown",
        }
    }

    /// Returns the outcome with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Committed, Self::RolledBack, Self::Discarded, Self::FinishedUnknown]
            .into_iter()
            .find(|outcome| outcome.name() == name)
    }

    /// Compares an end with how the transaction has ended already: the same end again succeeds, another is an error.
    pub fn allow_again(self, wanted: Self, transaction: impl FnOnce() -> String) -> Result<()> {
        if self == wanted {
            return Ok(());
        }
        Err(Error::AlreadyEnded { transaction: transaction(), outcome: self })
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

/// The next step that a caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Fix the call.
    Invalid,
    /// Look elsewhere.
    NotFound,
    /// Read the state again: it has changed.
    IllegalState,
    /// Retry later.
    Unavailable,
    /// Stop and verify the files.
    Corrupted,
    /// Reopen the store.
    Poisoned,
    /// The handle was closed.
    Closed,
    /// The operating system refused the call.
    System,
}

/// All errors of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The message cannot be stored in this form.
    #[error("{what}")]
    InvalidMessage {
        /// What is wrong and what is accepted.
        what: String,
    },
    /// A topic, group or queue name or number is not allowed.
    #[error("{what}")]
    InvalidName {
        /// What is wrong and what is accepted.
        what: String,
    },
    /// An option does not exist, is out of its range, or contradicts the store.
    #[error("option {option}: {what}")]
    InvalidOption {
        /// The option's name.
        option: String,
        /// What is wrong and what is accepted.
        what: String,
    },
    /// The message does not exist.
    #[error("{what}")]
    MessageNotFound {
        /// Which message, and where it was searched.
        what: String,
    },
    /// The transaction does not exist.
    #[error("{what}")]
    TransactionNotFound {
        /// Which transaction, and where it was searched.
        what: String,
    },
    /// The offset was removed by retention.
    #[error("retention removed offset {requested} of {of}\nhint: the first remaining offset is {minimum}")]
    OffsetTooOld {
        /// `TOPIC/QUEUE_ID` or the commit log.
        of: String,
        /// The offset asked for.
        requested: u64,
        /// The lowest remaining offset.
        minimum: u64,
    },
    /// The transaction has ended with another outcome than requested.
    #[error("transaction {transaction} has already ended: {outcome}")]
    AlreadyEnded {
        /// Its id, or its half message's offsets.
        transaction: String,
        /// How it ended.
        outcome: Outcome,
    },
    /// The transaction has not ended.
    #[error("transaction {transaction} is still pending\nhint: end it, or wait for its check")]
    StillPending {
        /// Its id.
        transaction: String,
    },
    /// The group in the call did not begin the transaction.
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
        /// How long an end is accepted without a check, in milliseconds.
        immunity_ms: i64,
    },
    /// An end of a transaction that a replica may have let escape to another broker.
    #[error(
        "transaction {transaction} cannot be ended now: a replica may have let it escape to another broker, and has not told yet\nhint: try again in a few seconds; `txstore replica status` shows whether the replica is connected"
    )]
    EndHeld {
        /// Its id, or its half message's offsets.
        transaction: String,
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
        /// The operation that was called.
        what: &'static str,
    },
    /// The store is a replica.
    #[error(
        "the store is a replica: {what} needs the store that it copies\nhint: connect to that one, or promote the replica"
    )]
    Replica {
        /// The operation that was called.
        what: &'static str,
    },
    /// Another node has replaced this one as the source.
    #[error(
        "the store was replaced as the source{}: {what} needs the new one\nhint: connect there, or let this one rejoin: `txstore serve PATH --replica-of ADDRESS`", by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default()
    )]
    Fenced {
        /// The operation that was called.
        what: &'static str,
        /// The new source's address, if it is known.
        by: Option<String>,
    },
    /// Another process has the store open for writing.
    #[error("{} is open for writing {}", path.display(), locked_by(*pid, *is_gone))]
    StoreLocked {
        /// The store.
        path: PathBuf,
        /// The process that opened it, if `abort` names one.
        pid: Option<u32>,
        /// No process with that id runs on this machine.
        is_gone: bool,
    },
    /// No space is left.
    #[error("no space left for {}: {source}\nhint: transactions can still be ended; sends work again when there is space", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The number of pending transactions, or of waiting messages, has reached the option's limit.
    #[error("{pending} {what}, the maximum that {option} allows\nhint: end some of them, or raise the option")]
    TooManyPending {
        /// Which are counted, and what they do.
        what: &'static str,
        /// The option's name.
        option: &'static str,
        /// Their number.
        pending: u64,
    },
    /// The call must not wait, but would have to. Nothing has changed. No Python call fails with it.
    #[error("the write would have to wait\nhint: call again and let it wait")]
    WouldWait,
    /// The process has no file handles or maps left.
    #[error("cannot open {}: {source}\nhint: raise the limit of open files (ulimit -n) and try again", path.display())]
    TooManyFiles {
        /// The file that could not be opened.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file contains something impossible.
    #[error("{} is damaged at byte {offset}: {what}\nhint: nothing was changed; `txstore store check` reports all damage", file.display())]
    StoreCorrupt {
        /// The file, relative to the store or absolute.
        file: PathBuf,
        /// The byte in it.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// A file of a segment list is missing.
    #[error("{} is missing: it holds the bytes {from}..{to} of the log\nhint: nothing was changed; restore the file from a backup", path.display())]
    MissingFile {
        /// The file that should be there.
        path: PathBuf,
        /// The first byte that is missing.
        from: PhysicalOffset,
        /// One past the last byte that is missing.
        to: PhysicalOffset,
    },
    /// The directory is not a store that this engine can write.
    #[error("{} cannot be used: {what}", path.display())]
    ForeignStore {
        /// The store or the file in it.
        path: PathBuf,
        /// What it is instead, and what to do.
        what: String,
    },
    /// A write or sync failed, so what is on disk is unknown.
    #[error("the store stopped writing: {why}\nhint: close it and open it again; opening recovers")]
    StorePoisoned {
        /// The first failure.
        why: String,
    },
    /// The handle was closed.
    #[error("the store is closed")]
    StoreClosed,
    /// The operating system refused another call.
    #[error("cannot {operation} {}: {source}{}", path.display(), io_hint(operation, source.kind()))]
    Io {
        /// The call that failed: open, read, write, sync, …
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Returns the next step that the caller can take.
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
            | Self::ReadOnly { .. }
            | Self::Replica { .. }
            | Self::Fenced { .. } => ErrorKind::IllegalState,
            Self::EndHeld { .. }
            | Self::StoreLocked { .. }
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

    /// Returns a copy of the failure for another caller, whose bytes were in the same write or sync.
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

    /// Creates the error of a failed system call. A full disk and a lack of handles have variants of their own.
    pub fn from_io(operation: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            _ if matches!(source.raw_os_error(), Some(EMFILE | ENFILE)) => Self::TooManyFiles { path, source },
            _ => Self::Io { operation, path, source },
        }
    }
}

/// Returns the hint for errors that a user's own setting causes.
fn io_hint(operation: &str, kind: io::ErrorKind) -> &'static str {
    match (operation, kind) {
        ("listen at", io::ErrorKind::AddrInUse) => {
            "\nhint: another server listens there: stop it, or use another address (port 0 takes a free port)"
        }
        ("listen at", io::ErrorKind::AddrNotAvailable) => "\nhint: the host must be an address of this machine",
        ("listen at", io::ErrorKind::PermissionDenied) => {
            "\nhint: use a port above 1023, or a directory that this user may write to"
        }
        ("listen at", _) => "\nhint: use HOST:PORT with a numeric host, or a path in an existing directory",
        (_, io::ErrorKind::PermissionDenied) => {
            "\nhint: this user needs write permission to the store, and with read_only=True read permission"
        }
        (_, io::ErrorKind::ReadOnlyFilesystem) => "\nhint: open it with read_only=True, which writes nothing",
        (_, io::ErrorKind::NotADirectory) => "\nhint: a store is a directory; txstore.open creates it",
        ("create", io::ErrorKind::NotFound) => "\nhint: create its parent directory first",
        ("open", io::ErrorKind::NotFound) => "\nhint: check the path; only a writer creates a store",
        _ => "",
    }
}

const ENFILE: i32 = 23; // Linux, all architectures: the system's table of open files is full
const EMFILE: i32 = 24; // Linux, all architectures: the process's table of open files is full

fn locked_by(pid: Option<u32>, is_gone: bool) -> String {
    let hint = "hint: only one process can write; open the store with read_only=True, or close it there";
    match pid {
        Some(pid) if is_gone => format!(
            "by process {pid}, which has ended or runs in another container; a process that it forked may hold the lock\nhint: end the processes that it started, then open the store again"
        ),
        Some(pid) => format!("by process {pid}\n{hint}"),
        None => format!("elsewhere\n{hint}"),
    }
}
