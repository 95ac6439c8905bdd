//! Decides what an offset is at which no record begins. Pure.
//!
//! In:     facts about the offset: what is known of the log's end, who wrote there, what follows.
//! Out:    the end of the log, a tail that is cut, or damage.
//! Always: a function of the facts alone. Damage is an error and nothing is cut.
//!
//! In its own range txstore leaves no bytes after its end that it does not know of. RocketMQ does: a broker that
//! recovers moves its end and overwrites later what is after it. There the checkpoint decides. A broker stores the time
//! of a record in it after that record is durable, so once the log has reached that time nothing durable is missing.

/// What follows the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Zeros up to the end of the file, and no whole record in a later file.
    Nothing,
    /// The same, but a consume queue names a record at or after the offset.
    QueueEntry,
    /// Other bytes than zeros in the same file.
    Bytes,
    /// A whole record in a later file.
    LaterRecord,
}

/// Whether the last record before the offset is as new as the newest one that the checkpoint knows to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// There is no checkpoint, or nothing was durable when it was written.
    Unknown,
    /// It is older: a durable record is missing.
    No,
    /// It is as new or newer: everything durable is before the offset.
    Yes,
}

/// What became of the last writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWriter {
    /// It may be writing at the offset, and does not say how far it is.
    MayWrite,
    /// It closed the store.
    Closed,
    /// It did not close the store.
    Crashed,
}

/// What is known about an offset at which no record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// It is below the end that is known to have been durable.
    pub is_below_durable: bool,
    /// What became of the last writer.
    pub writer: LastWriter,
    /// It is in a range that txstore writes.
    pub is_ours: bool,
    /// Whether the log has reached the checkpoint.
    pub reached: Reached,
    /// What follows it.
    pub follows: Follows,
}

/// What the offset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The end of the log.
    End,
    /// The end of the log for now: another process may be writing the next record.
    NotYet,
    /// The end of the log, then what an unfinished write left. A writer cuts it.
    Torn,
    /// The end of the log, then what a broker had cut without making it zeros. A writer cuts it.
    Stale,
    /// Records are missing.
    Damaged(Cause),
}

/// Why a record must have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The log is known to have been durable beyond the offset.
    BelowDurable,
    /// A later file holds a whole record.
    LaterRecord,
    /// The checkpoint knows a newer record that was durable.
    BeforeCheckpoint,
    /// The store was closed, and the log does not end here.
    Closed,
}

impl Facts {
    /// Returns the rule.
    pub const fn tail(self) -> Tail {
        match self {
            Self { is_below_durable: true, .. } => Tail::Damaged(Cause::BelowDurable),
            Self { writer: LastWriter::MayWrite, .. } => Tail::NotYet,
            Self { follows: Follows::Nothing, .. }
            | Self { follows: Follows::QueueEntry, reached: Reached::Yes, .. }
            | Self { follows: Follows::QueueEntry, reached: Reached::Unknown, writer: LastWriter::Crashed, .. } => {
                Tail::End
            }
            Self { reached: Reached::No, .. } => Tail::Damaged(Cause::BeforeCheckpoint),
            Self { reached: Reached::Yes, is_ours: false, .. } => Tail::Stale,
            // txstore makes a full file durable before it begins the next one.
            Self { follows: Follows::LaterRecord, .. } => Tail::Damaged(Cause::LaterRecord),
            Self { writer: LastWriter::Closed, .. } => Tail::Damaged(Cause::Closed),
            Self { .. } => Tail::Torn,
        }
    }
}

impl Cause {
    /// Returns what is wrong, where the offset holds zeros.
    pub const fn text(self) -> &'static str {
        match self {
            Self::BelowDurable => "zeros, where records were stored and synced",
            Self::LaterRecord => "zeros, where a record should begin: a later file holds records",
            Self::BeforeCheckpoint => "zeros, where a record should begin: the checkpoint knows a newer one",
            Self::Closed => "zeros, where a record should begin: the store was closed, and its log goes on after them",
        }
    }
}
