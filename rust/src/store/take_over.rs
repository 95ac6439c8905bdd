//! Takes over the messages that wait in the timer of a RocketMQ broker whose log was copied.
//!
//! In:     the log of a store without a broker's timer files: a replica of a broker that was promoted.
//! Out:    each message that still waits, in txstore's own topic.
//! Always: the log alone decides. A broker's wait has ended if the message's topic has a record with the same unique id
//!         and time, or if it was recalled. A record that moves a message names the one that it moves, so a crash
//!         doubles nothing.
//! Not here: messages that txstore handed over to a broker and takes back (`hand_over`).
//!
//! A broker moves a message that is far ahead within its timer: it writes it once more, with `TIMER_DEQUEUE_MS`.

use std::collections::{BTreeMap, BTreeSet};

use super::Shared;
use super::hand_over::{HandedOver, Move};
use crate::base::error::{Error, Result};
use crate::base::names::{TIMED_TOPIC, WHEEL_TOPIC};
use crate::base::units::PhysicalOffset;
use crate::index::timed::{Timed, is_waiting, wheel_end_ms};
use crate::record::RecordView;
use crate::record::properties::{HANDED_OVER, REAL_TOPIC, TIMER_DEQUEUE_MS, TIMER_OUT_MS, TIMER_RECALLED};

/// What tells a broker's message in its timer and in its topic: the topic, the unique id, the time in the timer.
type Message = (String, String, i64);

/// The records of one message in a broker's timer.
#[derive(Default)]
struct Waits {
    /// How many of them were sent. A client that sends again, because it got no answer, uses the same unique id.
    sent: u64,
    /// The physical offsets of all of them.
    records: BTreeSet<u64>,
    /// The waits of those that txstore handed over.
    own: Vec<Timed>,
}

impl Shared {
    /// Takes over what waits in a broker's timer, and ends the waits of messages that were handed over to that broker
    /// and were delivered there.
    pub(super) fn take_over_timed(&self) -> Result<()> {
        let (mut messages, mut recalled) = (BTreeMap::<Message, Waits>::new(), BTreeSet::new());
        self.each_in_queue(WHEEL_TOPIC, |view| note(view, &mut messages, &mut recalled))?;
        let mut named = BTreeMap::<(u64, String), u64>::new();
        self.each_in_queue(TIMED_TOPIC, |view| {
            if is_waiting(view)
                && let Some(unique_id) = view.unique_id()
            {
                *named.entry((view.prepared_transaction_offset.0, unique_id.to_owned())).or_default() += 1;
            }
        })?;
        let (mut waiting, mut ended) = (Vec::new(), Vec::new());
        for ((topic, unique_id, out_ms), waits) in messages {
            // A broker names the message by its unique id, with its topic or without (appendTopicForTimerDeleteKey).
            let names = [unique_id.clone(), format!("{topic}+{unique_id}"), format!("{topic}_{unique_id}")];
            let is_recalled = names.into_iter().any(|name| recalled.contains(&(name, out_ms)));
            let of = |at: &u64| named.get(&(*at, unique_id.clone())).copied().unwrap_or(0);
            let moved: u64 = waits.records.iter().map(of).sum();
            let delivered = if is_recalled { waits.sent } else { self.deliveries(&topic, &unique_id, out_ms)? };
            let left = waits.sent.max(1).saturating_sub(moved).saturating_sub(delivered);
            if !waits.own.is_empty() {
                // Those that were not delivered are taken back.
                let known = &self.inner.lock().derived.timed;
                ended.extend(waits.own.into_iter().filter(|message| left == 0 && known.contains(*message)));
            } else if let Some(last) = waits.records.last() {
                let message = Timed { due_ms: wheel_end_ms(out_ms), physical_offset: *last };
                waiting.extend((0..left).map(|_| message));
            }
        }
        let mut done = HandedOver::default();
        self.move_timed(&ended, Move::Delivered, &mut done)?;
        self.move_timed(&waiting, Move::To(TIMED_TOPIC), &mut done)?;
        match done.left.into_iter().next() {
            Some(what) => Err(Error::MessageNotFound { what }),
            None => Ok(()),
        }
    }

    /// Returns how often a broker has delivered a message.
    fn deliveries(&self, topic: &str, unique_id: &str, out_ms: i64) -> Result<u64> {
        let is_it = |view: &RecordView<'_>| {
            view.topic == topic && view.unique_id() == Some(unique_id) && out_ms_of(view) == Some(out_ms)
        };
        let mut reader = self.log.reader(self.log.appended());
        let mut found = 0;
        for physical_offset in self.candidates(topic, unique_id)? {
            match reader.read(physical_offset, |view, _| is_it(view)) {
                Ok(delivered) => found += u64::from(delivered),
                // The index may still contain records that retention removed.
                Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Calls `each` with every record of a timer's queue that the log has.
    fn each_in_queue(&self, topic: &str, mut each: impl FnMut(&RecordView<'_>)) -> Result<()> {
        let mut reader = self.log.reader(self.log.appended());
        self.each_entry(topic, 0, |entry| match reader.read(entry.physical_offset, |view, _| each(view)) {
            Ok(()) | Err(Error::OffsetTooOld { .. } | Error::MessageNotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        })
    }
}

/// Notes a record of a broker's timer.
fn note(view: &RecordView<'_>, messages: &mut BTreeMap<Message, Waits>, recalled: &mut BTreeSet<(String, i64)>) {
    let Some(out_ms) = out_ms_of(view) else { return };
    let [topic, recall, handed_over, taken] =
        view.properties.get_all([REAL_TOPIC, TIMER_RECALLED, HANDED_OVER, TIMER_DEQUEUE_MS]);
    if let Some(recall) = recall {
        recalled.insert((recall.to_owned(), out_ms));
    } else if let Some(topic) = topic {
        let unique_id = view.unique_id().unwrap_or_default().to_owned();
        let waits = messages.entry((topic.to_owned(), unique_id, out_ms)).or_default();
        let PhysicalOffset(physical_offset) = view.physical_offset;
        waits.records.insert(physical_offset);
        waits.sent += u64::from(taken.is_none());
        if let Some(due_ms) = handed_over.and_then(|text| text.parse().ok()) {
            waits.own.push(Timed { due_ms, physical_offset });
        }
    }
}

fn out_ms_of(view: &RecordView<'_>) -> Option<i64> {
    view.properties.get_str(TIMER_OUT_MS)?.parse().ok()
}
