//! Hands timed messages over to a RocketMQ broker's timer, and checks that each waits once.
//!
//! In:     a machine and its store.
//! Out:    the history continues, or the promise that is broken.
//! Always: after a hand-over, a broker that takes the store over reads exactly the messages that wait. After an opening
//!         by txstore, a broker reads none of them.
//! Not here: what a broker does with them (`broker_timer.rs`), what the log says after a crash (waits.rs).

use std::collections::BTreeSet;
use std::sync::Arc;

use txstore::base::clock::Clock as _;
use txstore::base::units::{QueueId, QueueOffset};
use txstore::record::RecordView;
use txstore::storage::memory::{CrashKeep, FaultKind, Memory};
use txstore::store::{Store, StoredRecord};

use crate::broker_timer;
use crate::chance::Chance;
use crate::history::{Held, broken, hold};
use crate::machine::Machine;
use crate::simulation::options;
use crate::step::Step;
use crate::timed::End;
use crate::waits::{DUE, HANDED_OVER, WHEEL, due_ms, is_committed, is_move};

impl Machine {
    /// Hands all timed messages over, as `txstore store hand-over` does, which delivers before what is due. D3: no
    /// message is left, and the store delivers none of them from now on.
    pub fn hand_over(&mut self, store: &Store) -> Held {
        self.deliver(store, usize::MAX)?;
        let faulty = self.is_faulty();
        (self.is_handed_over, self.history.hands_over) = (true, true);
        let Some(done) = self.note(store.hand_over_timed())? else {
            // The call may have moved some of them.
            self.history.timed.iter_mut().for_each(|one| one.may_be_moved = one.is_waiting());
            return Ok(());
        };
        let log = crate::promises::read_log(store)?;
        self.timed_are_moved(&log, Self::log_end(store));
        self.handed_over += done.messages;
        // A delivery or a recall that failed may have ended a wait.
        if faulty {
            return Ok(());
        }
        let waiting: Vec<_> = self.history.timed.iter().filter(|one| one.is_waiting()).collect();
        let are_moved = waiting.iter().all(|one| one.is_handed_over) && done.messages == waiting.len() as u64;
        hold(are_moved && done.left.is_empty(), "D3", || format!("{done:?} was handed over of {waiting:?}"))?;
        self.a_broker_reads_what_was_handed_over(store)
    }

    /// Notes the messages that were moved to a broker's timer or back. A move that was acknowledged is durable.
    pub fn timed_are_moved(&mut self, log: &[StoredRecord], end: u64) {
        let mut is_moved = false;
        for view in log.iter().map(|record| record.view().unwrap()).filter(is_move) {
            let named = view.prepared_transaction_offset.0;
            let Some(one) = self.history.timed_at(named).filter(|one| one.is_waiting()) else { continue };
            one.before.push(named);
            (one.physical_offset, one.end) = (Some(view.physical_offset.0), end);
            (one.is_handed_over, one.may_be_moved) = (view.topic == WHEEL, false);
            is_moved = true;
        }
        if is_moved {
            self.is_durable(end);
        }
    }

    /// Checks D3: a broker's timer would read exactly the messages that were handed over and wait.
    pub fn a_broker_reads_what_was_handed_over(&self, store: &Store) -> Held {
        let expected: BTreeSet<u64> = (self.history.timed.iter())
            .filter(|one| one.is_waiting() && one.is_handed_over)
            .filter_map(|one| one.physical_offset)
            .collect();
        let (first, end) = store.queue_range(WHEEL, QueueId(0)).unwrap();
        let next = broker_timer::next_entry(&self.memory).max(first);
        let records = match store.read(WHEEL, QueueId(0), QueueOffset(next), usize::MAX, None) {
            Ok((records, _)) => records,
            Err(_) if next >= end => Vec::new(),
            Err(error) => return broken("D3", format!("a broker's timer cannot read from {next} to {end}: {error}")),
        };
        let read = records.iter().map(|record| record.view().unwrap().physical_offset.0).collect();
        hold(expected == read, "D3", || {
            format!("from {next} to {end} a broker's timer reads {read:?}, handed over were {expected:?}")
        })
    }

    /// Notes what a broker's timer has delivered.
    pub fn a_broker_delivered(&mut self, delivered: &[(u64, u64)], end: u64) {
        for (waited, physical_offset) in delivered {
            let one = self.history.timed_at(*waited).filter(|one| one.is_waiting());
            if let Some(one) = one {
                one.ended = Some((End::Delivered, Some(*physical_offset), end));
            }
        }
        self.delivered_by_brokers += delivered.len() as u64;
    }
}

/// Checks D3: a message that was moved is the same one, in the form that its topic requires.
pub fn is_moved_as_it_was(from: &RecordView<'_>, to: &RecordView<'_>) -> Held {
    let kept = |view: &RecordView<'_>| -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_kept = |name: &[u8]| ![DUE, HANDED_OVER].map(str::as_bytes).contains(&name);
        let kept = view.properties.iter().filter(|(name, _)| is_kept(name));
        kept.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    };
    let due = due_ms(from).unwrap_or_default();
    let says = |name| to.properties.get_str(name).and_then(|text| text.parse::<i64>().ok());
    // A broker delivers what is due in a second when that second is over.
    let says_so = if to.topic == WHEEL {
        let second = says(DUE).unwrap_or(i64::MIN);
        says(HANDED_OVER) == Some(due) && second % 1_000 == 0 && (due..due + 1_000).contains(&(second + 1_000))
    } else {
        says(DUE) == Some(due) && says(HANDED_OVER).is_none()
    };
    let same = from.topic != to.topic
        && (to.queue_id, to.body, to.flag) == (QueueId(0), from.body, from.flag)
        && (to.born_timestamp, to.unique_id()) == (from.born_timestamp, from.unique_id())
        && kept(from) == kept(to)
        && !is_committed(to);
    hold(same && says_so, "D3", || format!("{from:?} was moved as {to:?}"))
}

#[test]
fn a_crash_while_a_brokers_timer_is_removed_leaves_nothing_of_it() {
    let mut machine = Machine::new(options(&mut Chance::new(1)));
    let times = vec![(1_200, false)];
    for step in [Step::Open, Step::SendTimed { topic: 0, queue: 0, times }, Step::HandOver, Step::Close] {
        machine.take(&step).unwrap();
    }
    broker_timer::leave(&machine.memory, machine.clock.wall().0 + 60_000, 1);
    let open = |memory: &Memory| {
        Store::open_with(Arc::new(memory.clone()), Arc::clone(&machine.clock) as _, machine.options.clone())
    };
    let whole = machine.memory.crash(0, CrashKeep::PageCache);
    open(&whole).and_then(|store| store.close()).unwrap();
    for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
        for call in 1..=whole.calls() {
            let memory = machine.memory.crash(0, CrashKeep::PageCache);
            memory.fail_at(call, FaultKind::Stop, true);
            let done = open(&memory).and_then(|store| store.close());
            let memory = memory.crash(call, keep);
            open(&memory).and_then(|store| store.close()).unwrap();
            for seed in 0..4 {
                let memory = memory.crash(seed, CrashKeep::PowerLoss);
                let opened = open(&memory).and_then(|store| store.timed_messages());
                assert_eq!(opened.as_ref().ok(), Some(&0), "call {call}, {keep:?}, {done:?}: {opened:?}");
                assert!(!broker_timer::has_files(&memory), "call {call}, {keep:?}, {done:?}");
            }
        }
    }
}
