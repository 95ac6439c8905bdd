//! A scan that the queues lead has the rows of a filter, whatever the queues' files hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use proptest::prelude::*;

use super::HOST;
use crate::arrow::options::{TopicMemory, Topics, topics_matching};
use crate::arrow::{Column, Log, Scan, ScanOptions, View};
use crate::base::names::HALF_TOPIC;
use crate::base::units::{PhysicalOffset, QueueId, to_u64, to_usize};
use crate::index::consume_queue::{ENTRY_SIZE, Entry};
use crate::record::Draft;
use crate::storage::memory::Memory;
use crate::storage::{OpenMode, Storage};

const FILE: u64 = 24 << 10;
const FILES: u64 = 3;
const ENTRIES_PER_FILE: usize = 40;
/// The first queue is rare.
const QUEUES: [(&str, i32); 5] = [("rare", 0), ("orders", 0), ("orders", 1), ("payments", 0), (HALF_TOPIC, 0)];

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[to_usize(self.below(to_u64(of.len())))]
    }
}

/// A log, the entries of its queues, and where its records begin.
struct Written {
    storage: Arc<Memory>,
    entries: BTreeMap<(&'static str, i32), Vec<Entry>>,
    begins: Vec<u64>,
    end: u64,
}

/// Writes a log. One record in `rarely` is in the rare queue, one in `oddly` is of a type that has no entry; topics are
/// deleted and created again if `deletes`.
fn write_log(random: &mut Random, rarely: u64, oddly: u64, deletes: bool) -> Written {
    let storage = Arc::new(Memory::new());
    storage.create_dir("commitlog").unwrap();
    let mut written = Written { storage, entries: BTreeMap::new(), begins: Vec::new(), end: 0 };
    let mut at = 0;
    for file in 0..FILES {
        let open = written.storage.open(&format!("commitlog/{:020}", file * FILE), OpenMode::Create).unwrap();
        open.set_len(FILE).unwrap();
        loop {
            let queue = if random.below(rarely) == 0 { QUEUES[0] } else { *random.pick(&QUEUES[1..]) };
            if deletes && random.below(150) == 0 {
                written.entries.retain(|other, _| other.0 != queue.0);
            }
            let entries = written.entries.entry(queue).or_default();
            let has_entry = random.below(oddly) != 0;
            let sys_flag = *random.pick(if has_entry { &[0, 8] } else { &[4, 12] });
            // Rarely a body is larger than a view of the log.
            let bytes = if random.below(60) == 0 { 6_000 } else { random.below(200) };
            let draft = Draft {
                topic: queue.0,
                queue_id: QueueId(queue.1),
                sys_flag,
                born_host: HOST.parse().unwrap(),
                store_host: HOST.parse().unwrap(),
                body: &vec![b'x'; to_usize(bytes)],
                ..Draft::plain()
            };
            let bytes = draft.record_at(at, to_u64(entries.len()), 1_000);
            let end = at + to_u64(bytes.len());
            if end + 8 > (file + 1) * FILE {
                let rest = u32::try_from((file + 1) * FILE - at).unwrap();
                open.write_at(&crate::record::encode::blank(rest), at - file * FILE).unwrap();
                at = (file + 1) * FILE;
                break;
            }
            open.write_at(&bytes, at - file * FILE).unwrap();
            let size = u32::try_from(bytes.len()).unwrap();
            if has_entry {
                entries.push(Entry { physical_offset: PhysicalOffset(at), size, tags_code: 0 });
            }
            written.begins.push(at);
            at = end;
        }
    }
    written.end = at;
    written
}

impl Written {
    fn write_queue(&self, queue: (&str, i32), bytes: &[u8]) {
        let directory = format!("consumequeue/{}/{}", queue.0, queue.1);
        self.storage.create_dir(&directory).unwrap();
        for (file, part) in bytes.chunks(ENTRIES_PER_FILE * ENTRY_SIZE).enumerate() {
            let base = file * ENTRIES_PER_FILE * ENTRY_SIZE;
            let open = self.storage.open(&format!("{directory}/{base:020}"), OpenMode::Create).unwrap();
            open.set_len(to_u64(ENTRIES_PER_FILE * ENTRY_SIZE)).unwrap();
            open.write_at(part, 0).unwrap();
        }
    }

    fn write_queues(&self) {
        for (queue, entries) in &self.entries {
            self.write_queue(*queue, &bytes_of(entries));
        }
    }

    /// Writes the queues' files, most of them with something that a crash or a deletion may have left.
    fn write_damaged_queues(&self, random: &mut Random) {
        for (queue, entries) in &self.entries {
            let mut bytes = bytes_of(entries);
            let length = to_u64(bytes.len());
            let within = |random: &mut Random| to_usize(random.below(length.max(1)));
            match random.below(8) {
                // The writer has not written the last entries yet, maybe a part of the first one of them.
                0 => bytes.truncate(within(random)),
                // A page was lost.
                1 => {
                    let hole = within(random)..bytes.len().min(within(random) + 400);
                    bytes.get_mut(hole).unwrap_or_default().fill(0);
                }
                // An entry of an earlier time, or of anything else.
                2 | 3 => {
                    for _ in 0..3 {
                        let at = within(random) / ENTRY_SIZE * ENTRY_SIZE;
                        let physical_offset = PhysicalOffset(random.below(self.end));
                        let size = u32::try_from(1 + random.below(3_000)).unwrap();
                        let wrong = Entry { physical_offset, size, tags_code: 0 }.to_bytes();
                        if let Some(entry) = bytes.get_mut(at..at + ENTRY_SIZE) {
                            entry.copy_from_slice(&wrong);
                        }
                    }
                }
                4 => continue,
                // The queue was deleted before these, so the first entries are padding.
                5 => {
                    let first = within(random) / ENTRY_SIZE;
                    let padding = Entry::PADDING.to_bytes().repeat(first);
                    bytes.get_mut(..padding.len()).unwrap_or_default().copy_from_slice(&padding);
                }
                _ => {}
            }
            self.write_queue(*queue, &bytes);
        }
    }

    fn open(&self) -> Log {
        let storage: Arc<dyn Storage> = Arc::<Memory>::clone(&self.storage);
        Log::open_with(storage).unwrap()
    }

    /// Returns the rows of a filter over all records.
    fn filtered(&self, options: &ScanOptions) -> Vec<u64> {
        let (mut topics, mut found) = (TopicMemory::default(), Vec::new());
        let range = options.start.unwrap_or(0)..options.end.unwrap_or(u64::MAX);
        self.open()
            .each(|view| {
                if range.contains(&view.physical_offset.0) && options.wants(view, &mut topics) {
                    found.push(view.physical_offset.0);
                }
            })
            .unwrap();
        found
    }

    fn scanned(&self, options: &ScanOptions) -> Vec<u64> {
        let mut scan = Scan::over(self.open(), Arc::new(options.clone()), Arc::default()).unwrap();
        let mut found = Vec::new();
        while let Some(batch) = scan.next_batch().unwrap() {
            let offsets = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            found.extend(offsets.into_iter().map(i64::cast_unsigned));
        }
        found
    }

    /// Returns the rows of all micro-batches of a stream.
    fn streamed(&self, options: &ScanOptions, rows: u64, bytes: Option<u64>) -> Vec<u64> {
        let (log, mut at, mut found) = (self.open(), options.start.unwrap_or(0), Vec::new());
        let last = options.end.unwrap_or(self.end);
        while at < last {
            let end = log.advance(&ScanOptions { end: Some(last), ..options.clone() }, at, Some(rows), bytes).unwrap();
            assert!(at < end && end <= last, "{at} to {end} of {last}");
            let part = self.scanned(&ScanOptions { start: Some(at), end: Some(end), is_cut: true, ..options.clone() });
            assert!(to_u64(part.len()) <= rows, "{} rows from {at} to {end}", part.len());
            found.extend(part);
            at = end;
        }
        found
    }
}

fn bytes_of(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_bytes()).collect()
}

fn named(names: &[&str]) -> Topics {
    Topics::Named(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>())
}

/// Returns the ways to ask for a part of the queues.
fn questions(random: &mut Random) -> Vec<ScanOptions> {
    let of = |view| ScanOptions { columns: vec![Column::PhysicalOffset], ..ScanOptions::of(view) };
    let from = random.below(60).cast_signed();
    let queues = BTreeMap::from([("orders".to_owned(), BTreeMap::from([(1, from..from + 20)]))]);
    vec![
        ScanOptions { topics: named(&["rare"]), ..of(View::Messages) },
        ScanOptions { topics: named(&["rare", "orders"]), ..of(View::CommitLog) },
        ScanOptions { topics: named(&["none"]), ..of(View::CommitLog) },
        ScanOptions { topics: topics_matching("r.*", false).unwrap(), ..of(View::Messages) },
        ScanOptions { queues: queues.clone(), ..of(View::Messages) },
        ScanOptions { queues, only_queues: true, ..of(View::Messages) },
        of(View::Halves),
    ]
}

/// Asserts that the counts of queues and files are those of all records, also where some are kept.
fn check_tally(random: &mut Random, written: &Written) {
    let log = written.open();
    let expected = log.tally_of_records().unwrap();
    assert!(expected.iter().all(|row| (row.first_ms, row.last_ms) == (1_000, 1_000)));
    assert_eq!(log.tally(None).unwrap(), expected);
    let mut files: Vec<u64> = (0..FILES - 1).map(|file| file * FILE).collect();
    while !files.is_empty() {
        assert!(log.keep_statistics(files.swap_remove(to_usize(random.below(to_u64(files.len()))))).unwrap());
        assert_eq!(log.tally(None).unwrap(), expected, "{files:?}");
    }
    written.storage.remove_dir("txstore").unwrap();
}

fn check(seed: u64, rarely: u64, deletes: bool, is_damaged: bool) {
    let mut random = Random(seed);
    let written = write_log(&mut random, rarely, 12, deletes);
    if is_damaged {
        written.write_damaged_queues(&mut random);
    } else {
        written.write_queues();
    }
    check_tally(&mut random, &written);
    let (one, other) = (*random.pick(&written.begins), *random.pick(&written.begins));
    let cut = ScanOptions {
        start: Some(one.min(other)),
        end: Some(one.max(other)),
        is_cut: true,
        ..ScanOptions::of(View::Messages)
    };
    for options in questions(&mut random) {
        assert_eq!(written.scanned(&options), written.filtered(&options), "{options:?}");
        let part = ScanOptions { start: cut.start, end: cut.end, is_cut: true, ..options };
        assert_eq!(written.scanned(&part), written.filtered(&part), "{part:?}");
        let (rows, bytes) = (1 + random.below(30), Some(1 + random.below(10_000)).filter(|bytes| bytes % 2 == 0));
        assert_eq!(
            written.streamed(&part, rows, bytes),
            written.filtered(&part),
            "{rows} rows, {bytes:?} bytes, {part:?}"
        );
    }
}

proptest! {
    #[test]
    fn rows_are_those_of_a_filter(seed: u64, rarely in 1_u64..80, deletes: bool, is_damaged: bool) {
        check(seed, rarely, deletes, is_damaged);
    }
}

#[test]
fn what_is_not_asked_for_is_skipped() {
    let mut random = Random(7);
    let written = write_log(&mut random, 60, 200, false);
    written.write_queues();
    let log = written.open();
    let asked = ScanOptions { topics: named(&["rare"]), ..ScanOptions::of(View::Messages) };
    let (mut skipped, mut at) = (0, 0);
    let mut skips = log.skips_of(&asked, 0..written.end).unwrap().unwrap();
    while at < written.end {
        let skip = skips.next(at);
        skipped += skip.end - skip.start;
        at = if skip.end == at { at + 1 } else { skip.end };
    }
    assert!(skipped > written.end * 3 / 5, "{skipped} of {} bytes", written.end);
    // Everything is wanted, so comparing entries would only take time.
    let all = ScanOptions { topics: topics_matching(".*", true).unwrap(), ..asked };
    assert!(log.skips_of(&all, 0..written.end).unwrap().is_none());
}
