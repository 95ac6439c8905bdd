//! Counts the messages of each queue in each file of the log.
//!
//! In:     the whole log, the files of the queues.
//! Out:    numbers, bytes, and the store times of the first and the last message.
//! Always: counts what the queues show by their entries, 20 bytes for each message, and reads the rest. So the result is
//!         that of reading all records, whatever the queues' files hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Log;
use super::skips::Skips;
use super::walk::Stop;
use crate::base::error::Result;
use crate::base::units::QueueId;
use crate::record::RecordView;

/// The messages of a queue in a file of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The first offset of the file.
    pub(crate) file: u64,
    /// The topic.
    pub(crate) topic: Arc<str>,
    /// The queue id.
    pub(crate) queue_id: QueueId,
    /// How many there are.
    pub(crate) messages: u64,
    /// Bytes of their records.
    pub(crate) bytes: u64,
    /// When the first one was stored, in milliseconds since the epoch.
    pub(crate) first_ms: i64,
    /// When the last one was stored.
    pub(crate) last_ms: i64,
}

/// The same, before the records of entries are read.
#[derive(Clone, Copy)]
struct Sum {
    messages: u64,
    bytes: u64,
    first: Moment,
    last: Moment,
}

/// When a record was stored.
#[derive(Clone, Copy)]
enum Moment {
    Known(i64),
    /// As the record says that begins and ends here.
    In(u64, u64),
}

#[derive(Default)]
struct Sums(BTreeMap<(u64, Arc<str>, QueueId), Sum>);

impl Sums {
    fn add(&mut self, key: (u64, Arc<str>, QueueId), sum: Sum) {
        let total = self.0.entry(key).or_insert(Sum { messages: 0, bytes: 0, ..sum });
        total.messages += sum.messages;
        total.bytes += sum.bytes;
        total.last = sum.last;
    }

    fn add_record(&mut self, view: &RecordView<'_>, file: u64) {
        if view.transaction_type().is_queued() {
            let moment = Moment::Known(view.store_timestamp.0);
            let sum = Sum { messages: 1, bytes: view.size.into(), first: moment, last: moment };
            self.add((file, view.topic.into(), view.queue_id), sum);
        }
    }
}

impl Log {
    /// Returns the counts of every queue in every file, in the order of files, topics and queues.
    pub(crate) fn tally(&self) -> Result<Vec<Tally>> {
        let (mut at, end, file_size) = (self.first(), self.visible_end(None)?, self.files.file_size().max(1));
        let mut skips = self.skips(at..end, 1, |_, _| 0..0)?;
        if let Some(skips) = &mut skips {
            skips.count_by(file_size);
        }
        let mut sums = Sums::default();
        while at < end {
            let skip = skips.as_mut().map_or(u64::MAX..u64::MAX, |skips| skips.next(at));
            let until = skip.start.min(end);
            let walk = self.walk_within(at, None, until..end, |view| {
                let begin = view.physical_offset.0;
                sums.add_record(view, begin - begin % file_size);
                true
            })?;
            at = match walk.stop {
                Stop::Limit if walk.at == skip.start => {
                    for (topic, queue_id, file, counted) in skips.iter_mut().flat_map(Skips::take_counted) {
                        let moment = |(begin, end)| Moment::In(begin, end);
                        let (first, last) = (moment(counted.first), moment(counted.last));
                        let sum = Sum { messages: counted.messages, bytes: counted.bytes, first, last };
                        sums.add((file, topic, queue_id), sum);
                    }
                    skip.end
                }
                Stop::Limit if walk.at >= until => walk.at,
                // No file holds the rest.
                Stop::Limit | Stop::Visitor => break,
                Stop::NoRecord(why) => return Err(self.corrupt(walk.at, &why)),
            };
        }
        let tally = |((file, topic, queue_id), sum): ((u64, Arc<str>, QueueId), Sum)| {
            let (first_ms, last_ms) = (self.moment(sum.first)?, self.moment(sum.last)?);
            Ok(Tally { file, topic, queue_id, messages: sum.messages, bytes: sum.bytes, first_ms, last_ms })
        };
        sums.0.into_iter().map(tally).collect()
    }

    fn moment(&self, moment: Moment) -> Result<i64> {
        match moment {
            Moment::Known(stored_ms) => Ok(stored_ms),
            Moment::In(begin, end) => self
                .stored_ms(begin, end)?
                .ok_or_else(|| self.corrupt(begin, "no record is here, where a queue has one")),
        }
    }
}
