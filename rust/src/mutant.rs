//! Mutants: wrong variants of this engine, each with one rule left out, which the tests of crashes must find.
//!
//! In:     a name.
//! Out:    whether the engine is to be wrong in that way: never, unless it was built with `--cfg txstore_mutants` and
//!         the environment names it (`TXSTORE_MUTANT`).
//! Always: without that flag every question is the constant `false`, so nothing of this reaches a built wheel, which
//!         refuses the flag.
//! Not here: how they are found (tests/crash/mutants.py).

#[cfg(all(txstore_mutants, feature = "python"))]
compile_error!("mutants are wrong on purpose: no extension module is built with them");

/// The rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(txstore_mutants), allow(dead_code))] // Two are asked for only where they are built.
pub(crate) enum Mutant {
    /// What recovery cuts off is not made zeros.
    NoZeroing,
    /// Recovery writes no missing op.
    NoHeal,
    /// A resent half is stored once more.
    NoDedupe,
    /// In `SYNC_FLUSH` nobody waits for the sync.
    AcknowledgeBeforeSync,
    /// A half message is acknowledged before it is durable.
    HalfBeforeSync,
    /// An end by hand, a discard or a resume is acknowledged before it is durable.
    DecisionBeforeSync,
    /// What ended is not noted, so that it can end again.
    EndWithoutState,
    /// Another end of what has ended is a success.
    AnyEndAgrees,
    /// The op stands in front of what decides.
    OpFirst,
    /// The progress is written before the sync that it depends on.
    ProgressFirst,
    /// A snapshot does not wait until the log is durable.
    SnapshotAhead,
    /// A record's own CRC is not looked at.
    NoRecordCrc,
    /// A check appends the half again, as a broker does.
    AppendOnCheck,
    /// A sync that failed is tried again.
    SyncRetried,
    /// A small file is renamed before its bytes are durable.
    RenameWithoutSync,
    /// The checkpoint is written before what it speaks of is synced.
    CheckpointAhead,
    /// Any bad record is taken for a torn tail.
    CutBelowDurable,
    /// A half that a broker put back begins a transaction of its own.
    PutBackStartsNew,
    /// Queue offsets of a batch come from the counter as it was before the batch.
    StaleQueueOffset,
    /// Readers may read what is not durable yet.
    VisibleBeforeSync,
    /// A new log file is begun before the full one is durable.
    RollWithoutSync,
    /// A group whose sync failed is acknowledged.
    FailedGroupAcknowledged,
    /// Offsets behind their queue's end stay.
    OffsetsNotClamped,
    /// Ages go by the wall clock.
    WallClockAges,
    /// Store timestamps follow the wall clock back.
    StoreTimeGoesBack,
    /// Each handing out counts as a check.
    LookCounts,
    /// What recovery believed from the page cache is not written again.
    NoRewrite,
    /// A committed message keeps the properties that hid it.
    FinalKeepsHiding,
    /// Queue files keep what stands behind their end.
    QueuesNotCut,
    /// Log files are removed before it is durable where the log begins then.
    RemovedBeforePublished,
    /// A log file goes although a half in it pends.
    PendingFileRemoved,
    /// A log file goes although a message in it is unread.
    UnreadFileRemoved,
    /// Log files go before what is derived from them is durable.
    RemovedBeforeSnapshot,
    /// Where a topic was deleted is only in memory.
    DeletionForgotten,
    /// A topic is deleted up to records that lost power can take back.
    DeletedBeforeDurable,
}

/// Returns whether the engine leaves that rule out.
#[cfg(not(txstore_mutants))]
#[inline(always)]
#[allow(clippy::inline_always)] // It must be nothing at all.
pub(crate) const fn mutated(_: Mutant) -> bool {
    false
}

/// Returns whether the engine leaves that rule out.
#[cfg(txstore_mutants)]
pub(crate) fn mutated(mutant: Mutant) -> bool {
    static WANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let wanted = WANTED.get_or_init(|| std::env::var("TXSTORE_MUTANT").unwrap_or_default());
    !wanted.is_empty() && *wanted == format!("{mutant:?}")
}
