//! The rule of docs/internals/transactions.md on logs that a broker, or a broker and txstore, could have written.

use super::*;
use crate::base::names::{DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, REPAIR_TOPIC};
use crate::base::units::{PhysicalOffset, to_u64};
use crate::record::layout::{SYS_COMMIT, SYS_ROLLBACK};
use crate::record::properties::{self, TRANSACTION_PREPARED_QUEUE_OFFSET, TRANSACTION_SET};
use crate::record::{Draft, RecordCrc, Scanned, Verify, crc32, decode};
use crate::transaction::replay::{Keep, Replay, Unfinished, Unmatched};
use crate::transaction::set::SetMark;
use crate::transaction::table::Key;

/// A log whose records are applied as they are written.
struct Log {
    table: Table,
    replay: Replay,
    end: u64,
    halves: u64,
    ops: u64,
    /// When the next record is stored.
    stored_ms: i64,
}

/// The values with which a half is written.
#[derive(Clone, Copy)]
struct Half<'a> {
    id: Option<&'a str>,
    checks: Option<u16>,
    first: Option<u64>,
}

const SENT: Half<'static> = Half { id: Some("id-1"), checks: None, first: None };
const PUT_BACK: Half<'static> = Half { checks: Some(1), ..SENT };

impl Log {
    fn new() -> Self {
        Self::with(Keep::Identities, 0, 0)
    }

    fn with(keep: Keep, first: u64, half_progress: u64) -> Self {
        let replay = Replay::new(keep, first, half_progress);
        Self { table: Table::new(0), replay, end: first.max(1_000), halves: 0, ops: 0, stored_ms: 1 }
    }

    fn record(
        &mut self,
        topic: &str,
        queue_offset: u64,
        sys_flag: i32,
        physical_offset: u64,
        body: &[u8],
        text: &[u8],
    ) -> u64 {
        let draft = Draft {
            topic,
            queue_id: HALF_QUEUE,
            sys_flag,
            prepared_transaction_offset: PhysicalOffset(physical_offset),
            body,
            properties: text,
            ..Draft::plain()
        };
        let at = PhysicalOffset(self.end);
        let bytes = draft.record_at(at.0, queue_offset, self.stored_ms);
        self.end += to_u64(bytes.len());
        let Ok(Scanned::Record(view)) = decode(&bytes, at, Verify { body_crc: true, record_crc: RecordCrc::Ignore })
        else {
            panic!("no record")
        };
        self.replay.apply(&mut self.table, &view);
        at.0
    }

    fn properties(half: Half<'_>, is_half: bool) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some(id) = half.id {
            properties::push(&mut text, UNIQUE_KEY, id);
            properties::push(&mut text, PRODUCER_GROUP, "services");
        }
        if is_half {
            properties::push(&mut text, REAL_TOPIC, "orders");
        }
        if let Some(checks) = half.checks {
            properties::push(&mut text, TRANSACTION_CHECK_TIMES, &checks.to_string());
        }
        if let Some(first) = half.first {
            properties::push(&mut text, TRANSACTION_PREPARED_QUEUE_OFFSET, &first.to_string());
        }
        text
    }

    fn half(&mut self, half: Half<'_>) -> HalfCopy {
        let queue_offset = self.halves;
        self.halves += 1;
        let text = Self::properties(half, true);
        let physical_offset = self.record(HALF_TOPIC, queue_offset, 0, 0, b"body", &text);
        HalfCopy { queue_offset, physical_offset }
    }

    /// Writes the half messages of a set of three messages, that of the first message last.
    fn set(&mut self) -> Vec<HalfCopy> {
        self.replay.know_sets(0, &self.table);
        let first = self.halves;
        (0..3).map(|position| self.half_of_set(SetMark { first, position, count: 3 })).collect()
    }

    fn half_of_set(&mut self, mark: SetMark) -> HalfCopy {
        let queue_offset = self.halves;
        self.halves += 1;
        let mut text = Self::properties(Half { id: Some(&format!("id-{}", mark.index())), ..SENT }, true);
        properties::push(&mut text, TRANSACTION_SET, &mark.text());
        let physical_offset = self.record(HALF_TOPIC, queue_offset, 0, 0, b"body", &text);
        HalfCopy { queue_offset, physical_offset }
    }

    fn commit(&mut self, half: Half<'_>, physical_offset: u64) {
        let text = Self::properties(half, false);
        self.record("orders", 0, SYS_COMMIT, physical_offset, b"body", &text);
    }

    fn discard(&mut self, half: Half<'_>, physical_offset: u64) {
        let text = Self::properties(half, true);
        self.record(DISCARD_TOPIC, 0, 0, physical_offset, b"body", &text);
    }

    fn op(&mut self, names: &[u64]) {
        let mut body = String::new();
        fill_op_body(names, usize::MAX, &mut body);
        self.record(OP_TOPIC, self.ops, 0, 0, body.as_bytes(), b"TAGS\x01d\x02");
        self.ops += 1;
    }

    /// Writes what a repair writes instead of lost records.
    fn filler(&mut self) {
        self.record(REPAIR_TOPIC, 0, SYS_ROLLBACK, 0, b"", b"");
    }

    /// Returns the outcome of each half, `None` for pending, and the decided halves that no op names.
    fn finish(self) -> (Vec<Option<Outcome>>, Vec<u64>) {
        let (outcomes, unfinished) = self.finish_sets();
        assert_eq!(unfinished.to_end, []);
        (outcomes, unfinished.unnamed)
    }

    /// Returns the outcome of each half, `None` for pending, and what is still to be written.
    fn finish_sets(mut self) -> (Vec<Option<Outcome>>, Unfinished) {
        let unfinished = self.replay.finish(&mut self.table);
        let state = |number: u64| match self.table.find(number) {
            Some(_) => None,
            None => self.table.outcome(number),
        };
        ((0..self.halves).map(state).collect(), unfinished)
    }

    fn keys(&self) -> usize {
        self.table.iter().count()
    }
}

const ROLLED_BACK: Option<Outcome> = Some(Outcome::RolledBack);
const DISCARDED: Option<Outcome> = Some(Outcome::Discarded);
const UNKNOWN: Option<Outcome> = Some(Outcome::FinishedUnknown);

#[test]
fn a_commit_a_roll_back_and_a_discard() {
    let mut log = Log::new();
    let ids = ["a", "b", "c", "d"].map(|id| Half { id: Some(id), ..SENT });
    let halves = ids.map(|id| log.half(id));
    log.commit(ids[0], halves[0].physical_offset);
    log.discard(ids[2], halves[2].physical_offset);
    log.op(&[0, 1, 2]);
    assert_eq!(log.finish(), (vec![COMMITTED, ROLLED_BACK, DISCARDED, None], vec![]));
}

#[test]
fn a_put_back_after_the_final_message_joins_what_is_committed() {
    for op_between in [false, true] {
        let mut log = Log::new();
        let first = log.half(SENT);
        log.commit(SENT, first.physical_offset);
        if op_between {
            log.op(&[0]);
        }
        log.half(PUT_BACK);
        let unnamed = if op_between { vec![1] } else { vec![0, 1] };
        assert_eq!(log.finish(), (vec![COMMITTED, COMMITTED], unnamed));
    }
}

#[test]
fn a_put_back_after_an_op_is_not_pending_again() {
    let mut log = Log::new();
    log.half(SENT);
    log.op(&[0]);
    log.half(PUT_BACK);
    log.half(Half { checks: Some(2), ..SENT });
    assert_eq!(log.finish(), (vec![ROLLED_BACK; 3], vec![1, 2]));
}

#[test]
fn a_resend_is_the_same_transaction_until_something_ends_it() {
    let mut log = Log::new();
    log.half(SENT);
    log.half(SENT);
    assert_eq!(log.keys(), 1);
    log.op(&[1]);
    log.half(SENT);
    assert_eq!(log.finish(), (vec![ROLLED_BACK, ROLLED_BACK, None], vec![0]));
}

#[test]
fn an_op_that_names_only_the_first_copy_of_a_resend_ends_nothing_but_a_later_resend_is_new() {
    let mut log = Log::new();
    log.half(SENT);
    log.half(SENT);
    log.op(&[0]);
    assert_eq!(log.keys(), 1);
    log.half(SENT);
    assert_eq!(log.keys(), 2);
    assert_eq!(log.finish().0, vec![None, None, None]);
}

#[test]
fn a_final_message_may_name_an_older_copy() {
    let mut log = Log::new();
    let first = log.half(SENT);
    log.half(PUT_BACK);
    log.commit(SENT, first.physical_offset);
    log.op(&[1]);
    assert_eq!(log.finish(), (vec![COMMITTED, COMMITTED], vec![0]));
}

#[test]
fn a_final_message_that_names_no_copy_is_not_of_this_transaction() {
    let mut log = Log::new();
    let first = log.half(SENT);
    log.commit(SENT, first.physical_offset + 1);
    assert_eq!(log.finish().0, vec![None]);
}

#[test]
fn a_final_message_below_the_logs_minimum_belongs_to_the_newest_of_its_key() {
    let mut log = Log::with(Keep::Identities, 5_000, 0);
    log.half(PUT_BACK);
    log.commit(SENT, 4_000);
    assert_eq!(log.finish().0, vec![COMMITTED]);
}

#[test]
fn a_brokers_discarded_copy_names_offset_0() {
    let mut log = Log::new();
    log.half(SENT);
    log.half(PUT_BACK);
    log.discard(PUT_BACK, 0);
    log.op(&[1]);
    assert_eq!(log.finish(), (vec![DISCARDED, DISCARDED], vec![0]));
}

#[test]
fn a_discarded_copy_after_its_op_discards() {
    let mut log = Log::new();
    let half = log.half(SENT);
    log.op(&[0]);
    log.discard(SENT, half.physical_offset);
    assert_eq!(log.finish().0, vec![DISCARDED]);
}

#[test]
fn a_commit_after_an_op_counts_for_every_copy() {
    let mut log = Log::new();
    let first = log.half(SENT);
    log.half(PUT_BACK);
    log.op(&[0, 1]);
    log.commit(SENT, first.physical_offset);
    assert_eq!(log.finish().0, vec![COMMITTED, COMMITTED]);
}

#[test]
fn a_double_commit_is_committed() {
    let mut log = Log::new();
    let first = log.half(SENT);
    let second = log.half(PUT_BACK);
    log.commit(SENT, first.physical_offset);
    log.op(&[0, 1]);
    log.commit(PUT_BACK, second.physical_offset);
    log.op(&[1]);
    assert_eq!(log.finish(), (vec![COMMITTED, COMMITTED], vec![]));
}

#[test]
fn an_op_that_names_the_first_copy_ends_one_put_back_in_its_immunity_time() {
    let mut log = Log::new();
    let first = log.half(SENT);
    log.half(Half { checks: Some(1), first: Some(first.queue_offset), ..SENT });
    log.op(&[first.queue_offset]);
    assert_eq!(log.finish(), (vec![ROLLED_BACK, ROLLED_BACK], vec![1]));
}

#[test]
fn a_half_without_id_or_group_is_a_transaction_alone() {
    let alone = Half { id: None, ..SENT };
    let mut log = Log::new();
    let halves = [log.half(alone), log.half(alone), log.half(alone)];
    assert_eq!(log.keys(), 3);
    log.commit(alone, halves[1].physical_offset);
    log.op(&[1]);
    log.op(&[2]);
    assert_eq!(log.finish(), (vec![None, COMMITTED, ROLLED_BACK], vec![]));
}

#[test]
fn a_resumed_one_is_a_new_transaction() {
    for op_between in [false, true] {
        let mut log = Log::new();
        let first = log.half(SENT);
        log.discard(SENT, first.physical_offset);
        if op_between {
            log.op(&[0]);
        }
        let resumed = log.half(Half { checks: Some(0), ..SENT });
        log.commit(SENT, resumed.physical_offset);
        log.op(&[1]);
        let unnamed = if op_between { vec![] } else { vec![0] };
        assert_eq!(log.finish(), (vec![DISCARDED, COMMITTED], unnamed));
    }
}

#[test]
fn below_a_brokers_progress_what_left_no_trace_is_finished_somehow() {
    let mut log = Log::with(Keep::Identities, 0, 2);
    for id in ["a", "b", "c"] {
        log.half(Half { id: Some(id), ..SENT });
    }
    // A copy at or above the progress is pending, and so are its older copies.
    log.half(Half { id: Some("b"), checks: Some(1), ..SENT });
    assert_eq!(log.finish(), (vec![UNKNOWN, None, None, None], vec![]));
}

#[test]
fn a_log_that_begins_later_knows_nothing_of_what_is_gone() {
    let mut log = Log::with(Keep::Identities, 5_000, 0);
    log.halves = 10;
    log.half(SENT);
    log.op(&[10]);
    let (found, _) = log.finish();
    assert_eq!(found[10], ROLLED_BACK);
    assert_eq!(found[..10], [None; 10], "a wrong outcome would be a lie");
}

#[test]
fn keys_stay_apart_by_topic_group_id_and_body() {
    let base = Identity::new("g", "id", "topic", 1);
    for other in [
        Identity::new("h", "id", "topic", 1),
        Identity::new("g", "id2", "topic", 1),
        Identity::new("g", "id", "topics", 1),
        Identity::new("g", "id", "topic", 2),
        Identity::new("gi", "d", "topic", 1),
    ] {
        assert_ne!(base, other);
    }
    let _: Option<Key> = Table::new(0).find(0);
}

/// A user's message may have the properties of a half, and name its offset. Only a committed record decides.
#[test]
fn a_plain_message_with_the_properties_of_a_half_decides_nothing() {
    let mut log = Log::new();
    let half = log.half(SENT);
    let text = Log::properties(SENT, false);
    log.record("orders", 0, 0, half.physical_offset, b"body", &text);
    assert_eq!(log.finish(), (vec![None], vec![]));
}

/// A snapshot covers the half queue up to an offset. A later record with a lower one is in no queue.
#[test]
fn a_half_whose_queue_offset_a_snapshot_covers_is_not_a_transaction() {
    let mut log = Log::new();
    log.replay.begin_at(1);
    log.half(SENT);
    assert_eq!(log.keys(), 0);
    log.half(SENT);
    assert_eq!(log.keys(), 1);
}

/// Lost records may have decided only what the ends directly after them name. Ends of one group have one time.
#[test]
fn an_op_means_a_roll_back_unless_records_were_lost_directly_before_its_group() {
    let ids = ["a", "b"].map(|id| Half { id: Some(id), ..SENT });
    let outcomes = |write: &dyn Fn(&mut Log, [HalfCopy; 2])| {
        let mut log = Log::new();
        let halves = ids.map(|id| log.half(id));
        log.filler();
        write(&mut log, halves);
        log.finish().0
    };
    let text = Log::properties(SENT, false);
    let one_group = outcomes(&|log, _| [0, 1].into_iter().for_each(|half| log.op(&[half])));
    assert_eq!(one_group, [UNKNOWN, UNKNOWN]);
    let after_a_commit = outcomes(&|log, halves| {
        log.commit(ids[0], halves[0].physical_offset);
        log.op(&[0, 1]);
    });
    assert_eq!(after_a_commit, [COMMITTED, UNKNOWN]);
    let after_a_message = outcomes(&|log, _| {
        log.record("orders", 0, 0, 0, b"another", &text);
        log.op(&[0, 1]);
    });
    assert_eq!(after_a_message, [ROLLED_BACK, ROLLED_BACK]);
    let later_ends = outcomes(&|log, _| {
        log.op(&[0]);
        log.stored_ms += 1;
        log.op(&[1]);
    });
    assert_eq!(later_ends, [UNKNOWN, ROLLED_BACK]);
    let interrupted = outcomes(&|log, _| {
        log.op(&[0]);
        log.record("orders", 0, 0, 0, b"another", &text);
        log.op(&[1]);
    });
    assert_eq!(interrupted, [UNKNOWN, ROLLED_BACK]);
}

/// A repair's records have their topic and their type. A record with only one of them replaces nothing.
#[test]
fn only_a_repairs_own_record_says_that_records_were_lost() {
    for (topic, sys_flag) in [(REPAIR_TOPIC, 0), ("orders", SYS_ROLLBACK)] {
        let mut log = Log::new();
        log.half(SENT);
        log.record(topic, 0, sys_flag, 0, b"", b"");
        log.op(&[0]);
        assert_eq!(log.replay.named_end(), 0, "nothing was lost");
        assert_eq!(log.finish().0, [ROLLED_BACK], "{topic}, {sys_flag}");
    }
    let mut log = Log::new();
    log.half(SENT);
    log.filler();
    log.op(&[0]);
    assert_eq!(log.replay.named_end(), 1);
}

// Sets: transactions of several messages.

/// A crash may cut the final messages of a set, or its ops. What is missing is written again, in the set's order.
#[test]
fn a_set_whose_end_was_cut_is_completed_as_it_was_decided() {
    let of = |id| Half { id: Some(id), ..SENT };
    for committed in 1..=3 {
        let mut log = Log::new();
        let halves = log.set();
        let in_order = [(of("id-0"), halves[2]), (of("id-1"), halves[0]), (of("id-2"), halves[1])];
        for (half, copy) in &in_order[..committed] {
            log.commit(*half, copy.physical_offset);
        }
        let (outcomes, unfinished) = log.finish_sets();
        assert_eq!(outcomes, [COMMITTED; 3]);
        let missing: Vec<_> = in_order[committed..].iter().map(|(_, copy)| (*copy, Outcome::Committed)).collect();
        assert_eq!((unfinished.unnamed, unfinished.to_end), (vec![0, 1, 2], missing), "{committed} were committed");
    }
    let mut log = Log::new();
    let halves = log.set();
    log.discard(of("id-0"), halves[2].physical_offset);
    let (outcomes, unfinished) = log.finish_sets();
    assert_eq!(outcomes, [DISCARDED; 3]);
    assert_eq!(unfinished.to_end, [(halves[0], Outcome::Discarded), (halves[1], Outcome::Discarded)]);
}

/// A rollback has no final messages, so nothing but its ops can be missing.
#[test]
fn a_set_whose_roll_back_was_cut_gets_only_the_missing_ops() {
    for lost in [false, true] {
        let mut log = Log::new();
        log.set();
        if lost {
            log.filler();
        }
        log.op(&[0]);
        let (outcomes, unfinished) = log.finish_sets();
        assert_eq!(outcomes, [if lost { UNKNOWN } else { ROLLED_BACK }; 3]);
        assert_eq!(unfinished, Unfinished { unnamed: vec![1, 2], to_end: vec![] });
    }
}

/// A crash cut the half messages of a set before the last one, at the log's end or before what came after.
#[test]
fn half_messages_without_the_last_of_their_set_are_rolled_back() {
    let mark = |first, position| SetMark { first, position, count: 3 };
    let mut log = Log::new();
    log.replay.know_sets(0, &log.table);
    assert_eq!((log.replay.cut_set_from(), log.replay.is_within_a_write()), (None, false));
    log.half_of_set(mark(0, 0));
    log.half_of_set(mark(0, 1));
    assert_eq!((log.replay.cut_set_from(), log.replay.is_within_a_write()), (Some(0), true));
    let alone = log.half(Half { id: Some("alone"), ..SENT });
    assert_eq!((log.replay.cut_set_from(), log.replay.is_within_a_write()), (Some(0), false));
    log.half_of_set(mark(3, 0));
    assert_eq!(log.replay.cut_set_from(), Some(0), "the lowest");
    log.commit(Half { id: Some("alone"), ..SENT }, alone.physical_offset);
    log.op(&[0, 2]);
    log.half_of_set(mark(4, 0));
    let (outcomes, unfinished) = log.finish_sets();
    assert_eq!(outcomes, [ROLLED_BACK, ROLLED_BACK, COMMITTED, ROLLED_BACK, ROLLED_BACK]);
    assert_eq!(unfinished, Unfinished { unnamed: vec![1, 3, 4], to_end: vec![] });
}

/// A final message and its op are one write. Between them the table does not tell yet that the transaction is committed.
#[test]
fn a_write_ends_with_the_op_of_its_final_messages() {
    let mut log = Log::new();
    log.replay.watch_writes();
    let half = log.half(SENT);
    assert!(!log.replay.is_within_a_write());
    log.commit(SENT, half.physical_offset);
    assert!(log.replay.is_within_a_write());
    log.op(&[0]);
    assert!(!log.replay.is_within_a_write());
}

/// A started table counts from the store's own opening, and so does what it remembers of ended transactions.
#[test]
fn ends_that_a_started_table_replays_are_forgotten_by_its_own_time() {
    let (day, minute) = (1_700_000_000_000, 60_000);
    let mut log = Log::new();
    log.replay.continue_from(day);
    log.stored_ms = day + 20 * minute;
    let half = log.half(SENT);
    log.commit(SENT, half.physical_offset);
    log.op(&[0]);
    let identity = Identity::new("services", "id-1", "orders", crc32(b"body"));
    let outcome = |log: &mut Log, minutes| log.table.recent.outcome(identity, minutes * minute);
    assert_eq!(outcome(&mut log, 24), COMMITTED);
    assert_eq!(outcome(&mut log, 31), None);
}

/// A transaction that a later one of its identity has displaced is still found by the half that a record names.
#[test]
fn a_record_that_names_a_half_of_a_displaced_transaction_ends_that_one() {
    let displaced = |end: fn(&mut Log, u64)| {
        let mut log = Log::new();
        log.half(SENT);
        let resent = log.half(SENT);
        log.op(&[0]);
        log.half(SENT);
        assert_eq!(log.keys(), 2);
        end(&mut log, resent.physical_offset);
        log.finish().0
    };
    assert_eq!(displaced(|log, half| log.commit(SENT, half)), [COMMITTED, COMMITTED, None]);
    assert_eq!(displaced(|log, half| log.discard(SENT, half)), [DISCARDED, DISCARDED, None]);
    let other = |log: &mut Log, half| log.commit(Half { id: Some("id-2"), ..SENT }, half);
    assert_eq!(displaced(other), [None; 3]);
}

/// Only what lies before the log's first record can be missing in it.
#[test]
fn a_final_message_that_names_the_logs_first_record_is_of_that_one() {
    let mut log = Log::with(Keep::Identities, 5_000, 0);
    let first = log.half(Half { id: Some("id-2"), ..SENT });
    assert_eq!(first.physical_offset, 5_000);
    log.half(SENT);
    log.commit(SENT, 5_000);
    assert_eq!(log.finish().0, [None, None]);
}

#[test]
fn a_broker_may_commit_or_discard_what_was_rolled_back_but_discards_nothing_that_was_committed() {
    for (op_first, end, expected) in [
        (true, "commit", COMMITTED),
        (true, "discard", DISCARDED),
        (false, "commit", COMMITTED),
        (false, "discard", COMMITTED),
    ] {
        let mut log = Log::new();
        let half = log.half(SENT);
        if !op_first {
            log.commit(SENT, half.physical_offset);
        }
        log.op(&[0]);
        match end {
            "commit" => log.commit(SENT, half.physical_offset),
            _ => log.discard(SENT, half.physical_offset),
        }
        assert_eq!(log.finish().0, [expected], "{end}, {op_first}");
    }
}

/// A reader that follows a writer would otherwise remember each transaction of its life.
#[test]
fn only_an_opening_remembers_the_identities_of_what_has_ended() {
    for (keep, expected) in [(Keep::Identities, ROLLED_BACK), (Keep::Open, None)] {
        let mut log = Log::with(keep, 0, 0);
        log.half(SENT);
        log.op(&[0]);
        log.half(PUT_BACK);
        assert_eq!(log.finish().0, [ROLLED_BACK, expected]);
    }
}

/// A broker deletes the property from a final message. Users may give their messages one of that name.
#[test]
fn the_topic_of_a_final_message_is_its_own_unless_it_waits_for_a_time() {
    let mut log = Log::new();
    let half = log.half(SENT);
    let mut text = Log::properties(SENT, false);
    properties::push(&mut text, REAL_TOPIC, "payments");
    log.record("orders", 0, SYS_COMMIT, half.physical_offset, b"body", &text);
    assert_eq!(log.finish().0, [COMMITTED]);
}

#[test]
fn an_op_message_is_noted_once_however_many_halves_of_a_transaction_it_names() {
    let mut log = Log::with(Keep::All, 0, 0);
    log.half(SENT);
    log.half(PUT_BACK);
    let first = log.end;
    log.op(&[0, 1]);
    let second = log.end;
    log.op(&[1]);
    let key = log.table.find(1).unwrap();
    assert_eq!(log.table.get(key).unwrap().more().unwrap().ops, [first, second]);
}

/// Before `know_sets`, and below its offset, each half message is a transaction of its own: a broker may have ended it.
#[test]
fn marks_count_from_the_offset_on_from_which_only_txstore_wrote() {
    for (from, transactions) in [(None, 3), (Some(1_000), 1), (Some(1_001), 3), (Some(u64::MAX), 3)] {
        let mut log = Log::new();
        if let Some(from) = from {
            log.replay.know_sets(from, &log.table);
        }
        for position in 0..3 {
            log.half_of_set(SetMark { first: 0, position, count: 3 });
        }
        assert_eq!(log.keys(), transactions, "{from:?}");
    }
}

/// A reader of the log takes transactions as soon as they have ended. It learns which later records have none.
#[test]
fn what_has_ended_is_taken_and_later_records_match_nothing() {
    let ids = ["a", "b"].map(|id| Half { id: Some(id), ..SENT });
    let mut log = Log::with(Keep::UntilTaken, 0, 0);
    let halves = ids.map(|id| log.half(id));
    log.commit(ids[0], halves[0].physical_offset);
    assert_eq!((log.replay.next_ended(), log.replay.next_unmatched()), (None, None), "no op names it yet");
    log.op(&[0]);
    let key = log.replay.next_ended().unwrap();
    assert_eq!((log.replay.next_ended(), log.replay.next_unmatched()), (None, None));
    assert_eq!(log.replay.take(&mut log.table, key).map(|entry| entry.newest), Some(halves[0]));
    assert!(log.replay.take(&mut log.table, key).is_none(), "it is taken once");
    log.op(&[0, 9]);
    log.commit(ids[0], halves[0].physical_offset);
    let unmatched: Vec<_> = std::iter::from_fn(|| log.replay.next_unmatched()).collect();
    let half = halves[0].physical_offset;
    assert!(
        matches!(unmatched[..], [Unmatched::Op(0), Unmatched::Op(9), Unmatched::End(Some(_), at)] if at == half),
        "{unmatched:?}"
    );
    assert_eq!((log.replay.next_ended(), log.keys()), (None, 1));
    // Others do not ask.
    let mut log = Log::new();
    log.op(&[9]);
    assert_eq!(log.replay.next_unmatched(), None);
}
