//! Classifies an offset at which no record begins. Pure.
//!
//! In:     facts about the offset: what is known of the log's end, which process wrote there, what follows.
//! Out:    the end of the log, a torn tail, stale bytes, or damage.
//! Always: the result depends on the facts alone. Damage is an error and nothing is cut.
//!
//! In its own range txstore leaves no unknown bytes after its end. RocketMQ does: a broker that recovers moves its end
//! back and overwrites the rest later. There the checkpoint decides. A broker writes the store time of a record to the
//! checkpoint after that record is durable, so once the log has reached that time no durable record is missing.

use crate::base::mutant::{Mutant, mutated};

/// What follows the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Zeros up to the end of the file, and no whole record in a later file.
    Nothing,
    /// Zeros as in `Nothing`, but a consume queue names a record at or after the offset.
    QueueEntry,
    /// Nonzero bytes in the same file.
    Bytes,
    /// A whole record in a later file.
    LaterRecord,
}

/// Whether the last record before the offset is as new as the newest one that the checkpoint knows to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The checkpoint is missing, or nothing was durable when it was written.
    Unknown,
    /// It is older: a durable record is missing.
    No,
    /// It is as new or newer: everything durable is before the offset.
    Yes,
}

/// The state in which the last writer left the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastWriter {
    /// It may be writing at the offset, and does not publish how far it has written.
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
    /// The state in which the last writer left the store.
    pub writer: LastWriter,
    /// It is in a range that txstore writes.
    pub is_ours: bool,
    /// Whether the log has reached the checkpoint.
    pub reached: Reached,
    /// What follows it.
    pub follows: Follows,
}

/// The kind of an offset without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The end of the log.
    End,
    /// The end of the log for now: another process may be writing the next record.
    NotYet,
    /// The end of the log, followed by the rest of an unfinished write. A writer cuts it.
    Torn,
    /// The end of the log, followed by bytes that a broker had cut without making them zeros. A writer cuts them.
    Stale,
    /// Records are missing.
    Damaged(Cause),
}

/// Why a record must have been at the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The log is known to have been durable past the offset.
    BelowDurable,
    /// A later file holds a whole record.
    LaterRecord,
    /// The checkpoint knows a newer record that was durable.
    BeforeCheckpoint,
    /// The store was closed, and the log does not end here.
    Closed,
}

impl Facts {
    /// Applies the rule.
    pub fn tail(self) -> Tail {
        match self {
            Self { is_below_durable: true, .. } => Tail::Damaged(Cause::BelowDurable),
            Self { writer: LastWriter::MayWrite, .. } => Tail::NotYet,
            Self { follows: Follows::QueueEntry, reached: Reached::Yes, .. } if mutated(Mutant::StaleEntryIsDamage) => {
                Tail::Damaged(Cause::Closed)
            }
            Self { follows: Follows::Nothing, .. }
            | Self { follows: Follows::QueueEntry, reached: Reached::Yes, .. }
            | Self { follows: Follows::QueueEntry, reached: Reached::Unknown, writer: LastWriter::Crashed, .. } => {
                Tail::End
            }
            Self { reached: Reached::No, .. } => Tail::Damaged(Cause::BeforeCheckpoint),
            Self { reached: Reached::Yes, is_ours: false, .. } if !mutated(Mutant::StaleIsDamage) => Tail::Stale,
            // txstore makes a full file durable before it begins the next one.
            Self { follows: Follows::LaterRecord, .. } => Tail::Damaged(Cause::LaterRecord),
            Self { writer: LastWriter::Closed, .. } => Tail::Damaged(Cause::Closed),
            Self { .. } => Tail::Torn,
        }
    }
}

impl Cause {
    /// Returns what is wrong if the offset holds zeros.
    pub const fn text(self) -> &'static str {
        match self {
            Self::BelowDurable => "zeros, where records were stored and synced",
            Self::LaterRecord => "zeros, where a record should begin: a later file contains records",
            Self::BeforeCheckpoint => "zeros, where a record should begin: the checkpoint knows a newer one",
            Self::Closed => {
                "zeros, where a record should begin: the store was closed, and its log continues after them"
            }
        }
    }
}
