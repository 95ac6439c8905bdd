//! Counts the messages of each queue in each file of the log.
//!
//! In:     the log, the files of the queues, kept counts of full log files.
//! Out:    numbers, bytes, and the store times of the first and the last message.
//! Always: counts what the queues show by their entries, 20 bytes for each message, and reads the rest. So the result is
//!         that of reading all records, whatever the queues' files hold.
//! Not here: keeping counts (`statistics`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::Log;
use super::skips::Skips;
use super::statistics::StatisticsFiles;
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
    /// Returns the counts of every queue in every file, in the order of files, topics and queues. Those of full files may
    /// be kept in the store, or in the folder of a reader, which then keeps those that are not.
    pub(crate) fn tally(&self, folder: Option<&StatisticsFiles>) -> Result<Vec<Tally>> {
        let (mut at, end, file_size) = (self.first(), self.visible_end(None)?, self.files.file_size().max(1));
        let own = StatisticsFiles::of_store(Arc::clone(self.files.storage()));
        let (mut rows, mut file) = (Vec::new(), at);
        while file.saturating_add(file_size) <= end {
            let kept = [Some(&own), folder].into_iter().flatten().find_map(|files| self.kept(files, file));
            if let Some(kept) = kept {
                rows.extend(self.count_and_keep(at..file, folder)?);
                rows.extend(kept);
                at = file.saturating_add(file_size);
            }
            file = file.saturating_add(file_size);
        }
        rows.extend(self.count_and_keep(at..end, folder)?);
        Ok(rows)
    }

    /// Counts the messages of a range between two records.
    pub(super) fn count_queues(&self, range: Range<u64>) -> Result<Vec<Tally>> {
        let (Range { start: mut at, end }, file_size) = (range, self.files.file_size().max(1));
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
        self.tallies(sums)
    }

    /// Does the same by reading all records.
    #[cfg(test)]
    pub(crate) fn tally_of_records(&self) -> Result<Vec<Tally>> {
        let (mut sums, file_size) = (Sums::default(), self.files.file_size().max(1));
        self.each(|view| sums.add_record(view, view.physical_offset.0 - view.physical_offset.0 % file_size))?;
        self.tallies(sums)
    }

    fn tallies(&self, sums: Sums) -> Result<Vec<Tally>> {
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
