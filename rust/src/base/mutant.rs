//! Defines mutants: wrong variants of this engine, each without one rule, which the crash tests must find.
//!
//! In:     a name.
//! Out:    whether the engine is wrong in that way: never, unless it was built with `--cfg txstore_mutants` and the
//!         environment variable `TXSTORE_MUTANT` names it.
//! Always: without that flag each check is the constant `false`, so no mutant reaches a built wheel, which refuses the
//!         flag.
//! Not here: how they are found (tests/crash/mutants.py).

#[cfg(all(txstore_mutants, feature = "python"))]
compile_error!("mutants are wrong on purpose: no extension module is built with them");

/// The rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(txstore_mutants), allow(dead_code))] // Two variants are used only in some builds.
pub(crate) enum Mutant {
    /// Recovery does not zero what it cuts off.
    NoZeroing,
    /// Recovery writes no missing op.
    NoHeal,
    /// The final messages of a set that a crash cut are not completed.
    SetNotCompleted,
    /// The half messages of a set that a crash cut are not rolled back.
    SetNotRolledBack,
    /// The progress passes half messages of a pending set.
    SetPassed,
    /// A resent half is stored again.
    NoDedupe,
    /// `SYNC_FLUSH` does not wait for the sync.
    AcknowledgeBeforeSync,
    /// A half message is acknowledged before it is durable.
    HalfBeforeSync,
    /// A manual end, a discard or a resume is acknowledged before it is durable.
    DecisionBeforeSync,
    /// An end is not recorded, so that the transaction can end again.
    EndWithoutState,
    /// A different end of an ended transaction succeeds.
    AnyEndAgrees,
    /// The op is stored before the record that decides.
    OpFirst,
    /// The progress is written before the sync that it depends on.
    ProgressFirst,
    /// A snapshot does not wait until the log is durable.
    SnapshotAhead,
    /// A record's own CRC is not checked.
    NoRecordCrc,
    /// A check appends the half again, as a broker does.
    AppendOnCheck,
    /// A failed sync is retried.
    SyncRetried,
    /// A small file is renamed before its bytes are durable.
    RenameWithoutSync,
    /// The checkpoint is written before the files that it describes are synced.
    CheckpointAhead,
    /// Every bad record counts as a torn tail.
    CutBelowDurable,
    /// A half that a broker put back begins a new transaction.
    PutBackStartsNew,
    /// Queue offsets of a batch come from the counter before the batch.
    StaleQueueOffset,
    /// Readers may read records that are not durable yet.
    VisibleBeforeSync,
    /// A reader does not sync what a killed writer left unsynced.
    ShownIsNotSynced,
    /// A new log file is begun before the full one is durable.
    RollWithoutSync,
    /// Recovery does not sync the queue files that it wrote.
    RecoveryNotSynced,
    /// A group whose sync failed is acknowledged.
    FailedGroupAcknowledged,
    /// Offsets past their queue's end are kept.
    OffsetsNotClamped,
    /// Ages use the wall clock.
    WallClockAges,
    /// The ages of log files use the wall clock.
    WallClockFileAges,
    /// The delay of a message uses the wall clock.
    WallClockDelays,
    /// Recovery does not find in the log which delayed messages were delivered.
    DeliveryForgotten,
    /// A log file is removed although it holds a delayed message that is not due.
    DelayedFileRemoved,
    /// A timed message is delivered up to a second before its time.
    TimedEarly,
    /// Recovery does not find in the log which timed messages were delivered or recalled.
    TimedForgotten,
    /// A log file is removed although it holds a timed message that waits.
    TimedFileRemoved,
    /// A committed message that waits for its time does not end its transaction when the log is read again.
    TimedFinalUnknown,
    /// Recovery does not find in the log which timed messages were moved to a broker's timer, or back.
    MoveForgotten,
    /// A move to a broker's timer, or back, is acknowledged before it is durable.
    MoveBeforeSync,
    /// Timed messages that were handed over to a broker are delivered here, too.
    HandedOverDelivered,
    /// A broker's timer reads its queue from the beginning.
    TimerReadsAll,
    /// A broker's timer is said to be empty before its files are certainly removed.
    TimerEmptyTooEarly,
    /// A message that a broker's timer has delivered is taken back.
    DeliveredTakenBack,
    /// A source that hears of a higher epoch continues to write, and a replica to copy.
    EpochIgnored,
    /// A local transaction begins, and its database may commit, before its half message is durable.
    DatabaseBeforeHalf,
    /// Store timestamps go back with the wall clock.
    StoreTimeGoesBack,
    /// Each delivery of a pending transaction counts as a check.
    LookCounts,
    /// Records that recovery accepted from the page cache are not written again.
    NoRewrite,
    /// A committed message keeps the properties of its half message that hid it.
    FinalKeepsHiding,
    /// Queue files keep the bytes after their end.
    QueuesNotCut,
    /// Log files are removed before the new beginning of the log is durable.
    RemovedBeforePublished,
    /// A log file is removed although it holds a pending half.
    PendingFileRemoved,
    /// A log file is removed although it holds an unread message.
    UnreadFileRemoved,
    /// Log files are removed before what is derived from them is durable.
    RemovedBeforeSnapshot,
    /// The offset up to which a topic was deleted is only in memory.
    DeletionForgotten,
    /// A topic is deleted up to records that a power loss can still undo.
    DeletedBeforeDurable,
    /// Bytes that a broker cut and left after its end are damage.
    StaleIsDamage,
    /// Zeros after the known durable end are the end of the log, whatever follows.
    ZerosEndTheLog,
    /// Queues are not asked whether the log has lost its last records.
    QueuesNotAsked,
    /// Entries that a broker left in a queue after the end of its log are damage.
    StaleEntryIsDamage,
    /// A queue that a broker began again keeps its deleted messages.
    DeletedTopicReturns,
    /// A client's own properties that look like the engine's are stored.
    ForgedPropertiesKept,
    /// Another message with the id of a pending half is that half.
    AnotherMessageJoins,
    /// The answer to a resend names the queue of the resend, not that of the pending half.
    ResendNamesItsQueue,
    /// A resend with another body of the same CRC is a transaction of its own.
    EqualCrcIsAnother,
    /// A half queue offset that was passed over counts as committed.
    GapsAreCommitted,
    /// A reader keeps the log files that it has open, whatever writers come and go.
    FilesNeverOpenedAgain,
    /// A file that a listing has missed while the writer added it is missing.
    GapsAtOnce,
    /// A reader looks for the writer's page only when it opens.
    PageSoughtOnce,
    /// A reader that finds no record below the published end waits for one.
    DamageIsNotYet,
    /// A lock is closed, but not unlocked.
    ClosedNotUnlocked,
    /// A forked child keeps its copies of its parent's locks.
    ChildKeepsLocks,
    /// The page of readers is written through a map on every file system.
    MappedEverywhere,
    /// A batch that a full disk refused, and whose bytes it does not let clear, stops the store.
    FullDiskPoisons,
    /// A reader compares the queues with their files after each record.
    SettledEachRecord,
    /// An entry that retention removed while it was read is damage.
    RemovedIsDamaged,
    /// A reader opens once, whatever writers started or stopped meanwhile.
    OpenedUnderAWriter,
    /// A process that opens the store is a broker, which makes one file ahead.
    OpeningIsABroker,
    /// What was read while no process wrote stays valid when one has opened the store.
    NobodyStays,
    /// The space for ends leaves out the rest of a file that a record does not fit into.
    NoRoomForFileEnds,
    /// The space for ends leaves out their ops.
    NoRoomForOps,
    /// A resume does not look again for a half under the put lock.
    ResumedTwice,
    /// A log file may have a byte more than a broker can map.
    LargerThanJavaMaps,
    /// A repair has no filler for the shortest records.
    NoShortFiller,
    /// A snapshot leaves out which copies an op names.
    NamedNotKept,
    /// A read holds the put lock until it returns.
    LockedWhileReading,
    /// A close syncs the log only after the queues were written.
    ClosedBeforeSync,
    /// A panic in the background thread ends that thread alone.
    PanicUnnoticed,
    /// Scans and queries are limited in messages, but not in bytes.
    CopiesUnlimited,
    /// A queue whose messages are lost begins where its files begin.
    LostQueueKeepsOffsets,
    /// A snapshot is taken although its index mark is within the entries of a record.
    IndexMarkNotCompared,
    /// A reader ends a chain of the index at an entry that a power loss took.
    LostEntriesEndChains,
    /// Index files that are built again take the names of a rejected snapshot's files.
    RejectedNamesTaken,
}

/// Returns whether the engine leaves that rule out.
#[cfg(not(txstore_mutants))]
#[inline(always)]
#[allow(clippy::inline_always)] // It must compile to nothing.
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
