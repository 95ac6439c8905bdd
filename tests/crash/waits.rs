//! Reads from the log which messages wait for a time of their own, and what ended each wait.
//!
//! In:     the records of a log, the history.
//! Out:    the waits, or the promise that is broken.
//! Always: the rules are those of docs/internals/format.md, without the engine's code: the message in a topic of the
//!         system, then one record that names its physical offset, in its topic, as a recall, or in a broker's timer,
//!         from where another record may take it back.

use txstore::base::units::QueueId;
use txstore::record::properties::{self, Properties};
use txstore::record::{RecordView, TransactionType};
use txstore::store::Store;

use crate::delays::RETRIES;
use crate::hand_over::is_moved_as_it_was;
use crate::history::{Held, broken, hold, number_of};
use crate::promises::{Expected, Found};
use crate::timed::{End, Time, Timed};

/// The topic in which a message waits.
pub const WAITING: &str = "rmq_sys_txstore_timed";
/// The topic of a broker's timer.
pub const WHEEL: &str = "rmq_sys_wheel_timer";
const DELAYED: &str = "SCHEDULE_TOPIC_XXXX";
pub const REAL_TOPIC: &str = "REAL_TOPIC";
pub const REAL_QUEUE: &str = "REAL_QID";
/// The property that says when it is due; in a broker's timer, the second before.
pub const DUE: &str = "TIMER_OUT_MS";
/// The property that says when it is due, if it was handed over to a broker.
pub const HANDED_OVER: &str = "TXSTORE_HANDED_OVER_MS";
/// The properties of a message that a broker took from its timer.
pub const ENQUEUED: &str = "TIMER_ENQUEUE_MS";
pub const TAKEN: &str = "TIMER_DEQUEUE_MS";
const RECALL: &str = "TIMER_DEL_UNIQKEY";
/// The properties by which a client says when a message is to be delivered, and that of a half message.
pub const AT: &str = "TIMER_DELIVER_MS";
pub const AFTER: &str = "TIMER_DELAY_MS";
pub const OF_HALF: &str = "TXSTORE_DELIVER_MS";

/// A wait as found in the log.
#[derive(Clone, Debug)]
pub struct FoundTimed {
    /// The matching message of the history.
    known: Option<usize>,
    /// The index of its record in the log: of the last one, if it was moved.
    pub record: usize,
    pub physical_offset: u64,
    /// Where it waited before it was moved.
    pub before: Vec<u64>,
    pub due_ms: i64,
    /// Where a broker delivered it, which ends the wait only for the broker.
    by_broker: Option<u64>,
    /// What ended it, and where.
    ended: Option<(End, u64)>,
}

impl FoundTimed {
    /// Returns how it ended, and where: also by a broker, before txstore has noticed.
    pub fn end(&self) -> Option<(End, u64)> {
        self.ended.or_else(|| self.by_broker.map(|at| (End::Delivered, at)))
    }
}

/// Returns when a message is due, as its record says.
pub fn due_ms(view: &RecordView<'_>) -> Option<i64> {
    view.properties.get_str(HANDED_OVER).or_else(|| view.properties.get_str(DUE))?.parse().ok()
}

/// Returns whether a record is the final message of a transaction.
pub fn is_committed(view: &RecordView<'_>) -> bool {
    view.transaction_type() == TransactionType::Commit
}

/// Returns whether a record moves a message to a broker's timer, or back. A broker's own records name none.
pub fn is_move(view: &RecordView<'_>) -> bool {
    let is_recall = view.properties.get(RECALL).is_some();
    match view.topic {
        WAITING => !is_recall && !is_committed(view) && view.prepared_transaction_offset.0 > 0,
        WHEEL => !is_recall && view.properties.get(TAKEN).is_none(),
        _ => false,
    }
}

/// Returns whether a record is a timed message that was delivered. Its retries have its properties, too.
pub fn is_delivery(view: &RecordView<'_>) -> bool {
    let is_retry = view.topic == RETRIES || view.topic == DELAYED;
    view.topic != WAITING
        && view.topic != WHEEL
        && !is_retry
        && !is_committed(view)
        && view.properties.get(DUE).is_some()
}

/// Returns whether a record waits for its time, recalls another, or is a timed message that was delivered.
pub fn concerns(view: &RecordView<'_>) -> bool {
    (view.topic == WAITING && !is_committed(view)) || view.topic == WHEEL || is_delivery(view)
}

/// Returns the real topic of a final message. One with a time waits elsewhere first.
pub fn real_topic<'a>(view: &RecordView<'a>) -> &'a str {
    let real = || view.properties.get_str(REAL_TOPIC).unwrap_or_default();
    if view.topic == WAITING { real() } else { view.topic }
}

/// Checks T3, D3: a final message has the properties of its half without those that hid it; with a time that is yet to
/// come, it remains hidden until then. Returns whether it waits.
pub fn final_of(half: &RecordView<'_>, last: &RecordView<'_>) -> Held<bool> {
    let (time, stored_ms) = (Time::of_half(half), last.store_timestamp.0);
    let waits = last.topic == WAITING;
    let mut expected = Vec::new();
    let hides = |name: &[u8]| {
        name == b"TXSTORE_SET"
            || name == OF_HALF.as_bytes()
            || (!waits && [REAL_TOPIC, REAL_QUEUE].map(str::as_bytes).contains(&name))
    };
    for (name, value) in half.properties.iter().filter(|(name, _)| !hides(name)) {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        properties::push(&mut expected, text(name), text(value));
    }
    if waits {
        let due = due_ms(last).unwrap_or(i64::MIN);
        // The store time is never before the wall clock.
        let fits = match time {
            Some(Time::At(ms)) => due == ms,
            Some(Time::After(ms)) => due <= stored_ms + ms,
            None => false,
        };
        hold(fits && last.queue_id == QueueId(0), "D3", || format!("{time:?} is the time of {half:?}: {last:?}"))?;
        properties::push(&mut expected, AT, &due.to_string());
        properties::push(&mut expected, DUE, &due.to_string());
    } else {
        let is_early = match time {
            Some(Time::At(ms)) => ms > stored_ms,
            Some(Time::After(ms)) => ms > 0,
            None => false,
        };
        hold(!is_early, "D3", || format!("delivered before {time:?}: {last:?}"))?;
    }
    let same = last.properties.iter().eq(Properties(&expected).iter());
    hold(same, "T3", || format!("other properties than {half:?}: {last:?}"))?;
    Ok(waits)
}

/// Checks D3, L2: each timed message is in the log if it must be, and waits once until it is recalled, or
/// delivered as it was sent, once and not early.
pub fn look(store: &Store, log: &[RecordView<'_>], expected: &Expected<'_>, minimum: u64, found: &mut Found) -> Held {
    let known = &expected.history.timed;
    for (record, view) in log.iter().enumerate() {
        if is_move(view) && view.prepared_transaction_offset.0 >= minimum {
            moves_one(log, record, found)?;
        } else if is_move(view) || (view.topic == WAITING && view.properties.get(RECALL).is_none()) {
            found.timed.push(waiting(record, view, expected, minimum, &found.timed)?);
        } else if is_delivery(view) && view.properties.get(TAKEN).is_some() {
            ends_one_by_a_broker(log, view, found);
        } else if view.topic == WAITING || is_delivery(view) {
            ends_one(log, view, known, minimum, found)?;
        }
    }
    let is_handed_over = log.iter().any(|view| view.topic == WHEEL);
    hold(!is_handed_over || expected.history.hands_over, "D3", || "nobody handed messages over".into())?;
    if !store.is_read_only() && !expected.is_handed_over {
        let left = found.timed.iter().find(|one| one.ended.is_none() && log[one.record].topic == WHEEL);
        hold(left.is_none(), "D3", || format!("it waits in a broker's timer: {left:?}"))?;
    }
    let removed = known.iter().find(|one| one.waits_certainly() && one.physical_offset.is_some_and(|at| at < minimum));
    hold(removed.is_none(), "D3", || format!("the log begins at {minimum}, {removed:?} waits"))?;
    for (number, one) in known.iter().enumerate().filter(|(_, one)| one.end <= expected.must_end && !one.is_doubtful) {
        let is_left = |at: &u64| *at >= minimum || (one.may_be_moved && one.is_waiting() && !one.recall_tried);
        let Some(physical_offset) = one.physical_offset.filter(is_left) else { continue };
        let is_it = |found: &&FoundTimed| {
            found.physical_offset == physical_offset
                || found.before.contains(&physical_offset)
                || (one.may_be_moved && found.known == Some(number))
        };
        let Some(there) = found.timed.iter().find(is_it) else { return broken("L2", format!("it is lost: {one:?}")) };
        let ended = one.ended.filter(|(.., end)| *end <= expected.must_end);
        let fits = ended.is_none_or(|(end, at, _)| {
            there.end().is_some_and(|(found, found_at)| found == end && at.is_none_or(|at| at == found_at))
        });
        hold(fits, "L2", || format!("the end of its wait is lost: {one:?}, {there:?}"))?;
    }
    let (waiting, says) =
        (found.timed.iter().filter(|one| one.ended.is_none()).count(), store.timed_messages().unwrap());
    hold(says == waiting as u64, "D3", || format!("{waiting} wait, the store says {says}: {:?}", found.timed))
}

/// Returns the wait that a record begins.
fn waiting(
    record: usize,
    view: &RecordView<'_>,
    expected: &Expected<'_>,
    minimum: u64,
    found: &[FoundTimed],
) -> Held<FoundTimed> {
    let known = &expected.history.timed;
    let real = |name| view.properties.get_str(name).unwrap_or_default();
    let is_same = |one: &Timed| {
        (real(REAL_TOPIC), real(REAL_QUEUE), view.body) == (&*one.topic, &*one.queue.to_string(), &*one.body)
            && due_ms(view) == Some(one.due_ms)
    };
    let is_free = |at: usize| found.iter().all(|one| one.known != Some(at));
    // Where a power loss took the final message of a set, the recovery may write it again, with a later time.
    let is_its = |one: &Timed| one.end <= expected.must_end || is_same(one);
    let at = view.physical_offset.0;
    let was_there = |one: &Timed| one.physical_offset == Some(at) || one.before.contains(&at);
    let acknowledged = known.iter().position(|one| was_there(one) && is_its(one));
    // Of one that was moved, retention may have removed the record before.
    let may_be_its = |at: Option<u64>| at.is_none_or(|at| is_move(view) && at < minimum);
    let at = acknowledged.or_else(|| {
        (0..known.len()).find(|at| may_be_its(known[*at].physical_offset) && is_same(&known[*at]) && is_free(*at))
    });
    let fits = match at {
        Some(at) => is_same(&known[at]),
        // Which half a final message belongs to is checked with its transaction.
        None => is_committed(view) && due_ms(view).is_some() && matches!(number_of(view.body), Some(('h', _))),
    };
    hold(fits, "L1", || format!("nobody sent {view:?}, known is {:?}", at.map(|at| &known[at])))?;
    let (physical_offset, due_ms) = (view.physical_offset.0, due_ms(view).unwrap_or_default());
    Ok(FoundTimed { known: at, record, physical_offset, before: Vec::new(), due_ms, by_broker: None, ended: None })
}

/// Notes the record that moves a message to a broker's timer, or back.
fn moves_one(log: &[RecordView<'_>], record: usize, found: &mut Found) -> Held {
    let view = &log[record];
    let named = view.prepared_transaction_offset.0;
    let waited = found.timed.iter_mut().find(|one| one.physical_offset == named);
    let Some(waited) = waited else { return broken("D3", format!("it moves none that waits: {view:?}")) };
    hold(waited.end().is_none(), "D3", || format!("its wait ended before, {waited:?}: {view:?}"))?;
    is_moved_as_it_was(&log[waited.record], view)?;
    waited.before.push(named);
    (waited.record, waited.physical_offset) = (record, view.physical_offset.0);
    Ok(())
}

/// Notes the delivery of a broker, which names no record.
fn ends_one_by_a_broker(log: &[RecordView<'_>], view: &RecordView<'_>, found: &mut Found) {
    let is_its = |one: &&mut FoundTimed| {
        let sent = &log[one.record];
        let real = |name| sent.properties.get_str(name).unwrap_or_default();
        one.end().is_none()
            && sent.topic == WHEEL
            && (real(REAL_TOPIC), real(REAL_QUEUE)) == (view.topic, &*view.queue_id.0.to_string())
            // A row may have sent two of the same id and body, with different times.
            && (sent.body, sent.unique_id(), due_ms(sent)) == (view.body, view.unique_id(), due_ms(view))
    };
    if let Some(waited) = found.timed.iter_mut().find(is_its) {
        waited.by_broker = Some(view.physical_offset.0);
    }
}

/// Notes the record that ends a wait.
fn ends_one(log: &[RecordView<'_>], view: &RecordView<'_>, known: &[Timed], minimum: u64, found: &mut Found) -> Held {
    let named = view.prepared_transaction_offset.0;
    if named < minimum {
        return Ok(());
    }
    let waited = found.timed.iter_mut().find(|one| one.physical_offset == named);
    let Some(waited) = waited else { return broken("D3", format!("it ends no wait: {view:?}")) };
    hold(waited.ended.is_none(), "D3", || format!("its wait ended before, {:?}: {view:?}", waited.ended))?;
    hold(due_ms(view) == Some(waited.due_ms), "D3", || format!("another time than {waited:?}: {view:?}"))?;
    let sent = &log[waited.record];
    let real = |name| sent.properties.get_str(name).unwrap_or_default();
    if view.topic == WAITING {
        let recall = format!("{}_{}", real(REAL_TOPIC), sent.unique_id().unwrap_or_default());
        let is_its = view.properties.get_str(RECALL) == Some(&*recall);
        hold(is_its, "D3", || format!("it recalls another than {sent:?}: {view:?}"))?;
        if let Some(at) = waited.by_broker {
            waited.ended = Some((End::Delivered, at));
            return Ok(());
        }
        let was_tried = waited
            .known
            .is_some_and(|at| known[at].recall_tried || matches!(known[at].ended, Some((End::Recalled, ..))));
        hold(was_tried, "D3", || format!("nobody recalled {sent:?}: {view:?}"))?;
        waited.ended = Some((End::Recalled, view.physical_offset.0));
        return Ok(());
    }
    hold(waited.by_broker.is_none(), "D3", || format!("a broker delivered {waited:?} before: {view:?}"))?;
    let kept = sent.properties.iter().filter(|(name, _)| ![REAL_TOPIC, REAL_QUEUE].map(str::as_bytes).contains(name));
    let same = (view.topic, &*view.queue_id.0.to_string(), view.body)
        == (real(REAL_TOPIC), real(REAL_QUEUE), sent.body)
        && view.transaction_type() == TransactionType::None
        && view.properties.iter().eq(kept);
    hold(same, "D3", || format!("{sent:?} was delivered as {view:?}"))?;
    let early_ms = waited.due_ms - view.store_timestamp.0;
    hold(early_ms <= 0, "D3", || format!("delivered {early_ms} ms early: {view:?}"))?;
    waited.ended = Some((End::Delivered, view.physical_offset.0));
    Ok(())
}
