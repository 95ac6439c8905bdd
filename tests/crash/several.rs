//! Crashes transactions of several messages: random scripts in several lives, with a crash at a random call in each.
//!
//! In:     seeds; storage in memory that is killed, or loses power, also inside of a write.
//! Out:    the store opens again, and its messages are compared with what the clients were told.
//! Always: of a transaction all messages are visible, in their order, or none. What was acknowledged is there, as far as
//!         the flush type promises. The oracle knows only bodies and answers: it shares no code with the engine.
//!
//! `TXSTORE_SEVERAL`: the number of runs; `TXSTORE_SEED`: run this seed alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;

use txstore::base::clock::ManualClock;
use txstore::base::error::{Error, Outcome};
use txstore::base::names::{HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP};
use txstore::base::options::{FlushDiskType, StoreOptions};
use txstore::base::units::{QueueId, QueueOffset, TimestampMs};
use txstore::record::message::{Envelope, Origin, Parts, Topic};
use txstore::storage::memory::{CrashKeep, FaultKind, Memory};
use txstore::store::{Decider, End, EndKind, NewMessage, Sent, Store, Unacknowledged, Wait};
use txstore::transaction::HalfCopy;

use crate::campaign::{Progress, number};
use crate::chance::Chance;

const TOPICS: [&str; 5] = ["orders", "payments", "letters", "stock", "parcels"];
const GROUP: &str = "services";
const QUICK_RUNS: u64 = 400;
const LIVES: u64 = 4;
const FLUSHES: [(FlushDiskType, FlushDiskType); 3] = [
    (FlushDiskType::Sync, FlushDiskType::Sync),
    (FlushDiskType::Async, FlushDiskType::Sync),
    (FlushDiskType::Async, FlushDiskType::Async),
];

/// What the clients know of a transaction.
#[derive(Clone, Debug)]
struct Known {
    count: usize,
    /// The length of each body's end.
    size: usize,
    /// Whether a client gave its messages ids, and so may send them again.
    is_of_client: bool,
    /// Whether the producer got an answer that its half messages are stored.
    is_told: bool,
    /// The half message of its first message, if the producer got an answer, or an opening found it.
    half: Option<HalfCopy>,
    id: String,
    /// The answers: an acknowledged outcome. A resumed transaction has none.
    ended: Option<Outcome>,
    /// Outcomes that were asked for, also without an answer.
    asked: Vec<Outcome>,
    /// Whether the half messages were acknowledged after a sync, or survived a crash.
    is_durable: bool,
}

struct Run {
    seed: u64,
    chance: Chance,
    memory: Memory,
    clock: Arc<ManualClock>,
    options: StoreOptions,
    known: Vec<Known>,
    crashes: u64,
    sent_again: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let (flush_disk_type, transaction_flush_disk_type) = chance.pick(&FLUSHES);
        let options = StoreOptions {
            flush_disk_type,
            transaction_flush_disk_type,
            commit_log_file_size: Some(chance.pick(&[4 << 10, 16 << 10, 64 << 10])),
            consume_queue_file_size: Some(20 * 8),
            max_hash_slot_num: Some(8),
            max_index_num: Some(32),
            op_message_size_max: chance.pick(&[32, 64, 4_096]),
            background: false,
            ..StoreOptions::default()
        };
        let clock = Arc::new(ManualClock::at(TimestampMs(1_700_000_000_000)));
        let memory = Memory::new().with_clock(clock.clone());
        Self { seed, chance, memory, clock, options, known: Vec::new(), crashes: 0, sent_again: 0 }
    }

    fn open(&self) -> Option<Store> {
        Store::open_with(Arc::new(self.memory.clone()), self.clock.clone(), self.options.clone()).ok()
    }

    /// Does one thing. Errors come from the crash.
    fn step(&mut self, store: &Store) -> Option<()> {
        match self.chance.below(12) {
            0..=3 => self.prepare(store),
            4..=7 => self.end(store),
            8 => self.end_together(store),
            9 if self.chance.one_in(2) => self.resume(store),
            9 => self.send_again(store),
            10 => store.snapshot().ok(),
            _ => store.flush_round().ok(),
        }
    }

    fn prepare(&mut self, store: &Store) -> Option<()> {
        let most = if self.chance.one_in(10) { 100 } else { 8 };
        let count = 1 + self.chance.index(most);
        let size = self.chance.pick(&[0, 10, 200, 700]);
        self.prepare_of(store, count, size)
    }

    fn prepare_of(&mut self, store: &Store, count: usize, size: usize) -> Option<()> {
        let is_of_client = self.chance.one_in(2);
        self.known.push(Known {
            count,
            size,
            is_of_client,
            is_told: false,
            half: None,
            id: String::new(),
            ended: None,
            asked: Vec::new(),
            is_durable: false,
        });
        self.send(store, self.known.len() - 1).ok()
    }

    fn send(&mut self, store: &Store, number: usize) -> Result<(), Error> {
        let Known { count, size, is_of_client, .. } = self.known[number];
        let bodies: Vec<String> = (0..count).map(|index| format!("{number}:{index}:{}", "x".repeat(size))).collect();
        let envelope = |at: usize| {
            let (topic, keys) = (TOPICS[at % 5], if at.is_multiple_of(3) { "key" } else { "" });
            if is_of_client {
                return of_client(topic, keys, &format!("client-{number}-{at}"));
            }
            Envelope::new(&Parts { topic, keys, ..Parts::default() }).unwrap()
        };
        let envelopes: Vec<_> = (0..count).map(envelope).collect();
        let new = envelopes.iter().zip(&bodies);
        let messages: Vec<_> =
            new.map(|(envelope, body)| NewMessage { envelope, body: body.as_bytes(), queue_id: QueueId(0) }).collect();
        let sent = store.prepare_many(&messages, GROUP, 0, Wait::Yes).and_then(Unacknowledged::acknowledged)?;
        let is_durable = self.options.transaction_flush_disk_type == FlushDiskType::Sync;
        let known = &mut self.known[number];
        (known.half, known.id, known.is_durable) = (Some(copy_of(&sent[0])), sent[0].unique_id.to_string(), is_durable);
        (known.ended, known.is_told) = (None, true);
        Ok(())
    }

    /// Sends a transaction again whose answer was lost. It is the one that is pending, or was never stored completely.
    fn send_again(&mut self, store: &Store) -> Option<()> {
        let may_send = |known: &Known| match known.half {
            Some(_) => known.ended.is_none(),
            None => !known.is_told && known.asked.is_empty() && known.ended == Some(Outcome::RolledBack),
        };
        let lost = |at: &usize| self.known[*at].is_of_client && may_send(&self.known[*at]);
        let lost: Vec<usize> = (0..self.known.len()).filter(lost).collect();
        if lost.is_empty() {
            return Some(());
        }
        let which = lost[self.chance.index(lost.len())];
        let before = self.known[which].half;
        let sent = self.send(store, which);
        let refused = matches!(&sent, Err(Error::InvalidMessage { .. } | Error::AlreadyEnded { .. }));
        assert!(!refused, "{}: transaction {which} was sent again: {sent:?}", self.told());
        sent.ok()?;
        self.sent_again += 1;
        assert!(before.is_none_or(|before| self.known[which].half == Some(before)), "{}: {which}", self.told());
        Some(())
    }

    fn pick(&mut self) -> Option<usize> {
        let pending: Vec<usize> = (0..self.known.len())
            .filter(|at| self.known[*at].half.is_some() && self.known[*at].ended.is_none())
            .collect();
        (!pending.is_empty()).then(|| pending[self.chance.index(pending.len())])
    }

    fn kind(&mut self) -> (EndKind, Outcome) {
        self.chance.pick(&[
            (EndKind::Commit, Outcome::Committed),
            (EndKind::Commit, Outcome::Committed),
            (EndKind::RollBack, Outcome::RolledBack),
            (EndKind::Discard, Outcome::Discarded),
        ])
    }

    fn end(&mut self, store: &Store) -> Option<()> {
        let Some(which) = self.pick() else { return Some(()) };
        let (kind, outcome) = self.kind();
        self.end_of(store, which, kind, outcome)
    }

    fn end_of(&mut self, store: &Store, which: usize, kind: EndKind, outcome: Outcome) -> Option<()> {
        self.known[which].asked.push(outcome);
        let end = end_of(&self.known[which], kind);
        store.end_transaction(&end, Wait::Yes).ok()?;
        self.known[which].ended = Some(outcome);
        Some(())
    }

    fn end_together(&mut self, store: &Store) -> Option<()> {
        let mut chosen: Vec<(usize, EndKind, Outcome)> = Vec::new();
        for _ in 0..3 {
            if let Some(which) = self.pick().filter(|which| !chosen.iter().any(|(other, ..)| other == which)) {
                let (kind, outcome) = self.kind();
                self.known[which].asked.push(outcome);
                chosen.push((which, kind, outcome));
            }
        }
        let ends = chosen.iter().map(|(which, kind, _)| end_of(&self.known[*which], *kind)).collect();
        let results = store.end_together(ends);
        for ((which, _, outcome), result) in chosen.into_iter().zip(results) {
            result.ok()?;
            self.known[which].ended = Some(outcome);
        }
        Some(())
    }

    fn resume(&mut self, store: &Store) -> Option<()> {
        let discarded: Vec<usize> =
            (0..self.known.len()).filter(|at| self.known[*at].ended == Some(Outcome::Discarded)).collect();
        if discarded.is_empty() {
            return Some(());
        }
        let which = discarded[self.chance.index(discarded.len())];
        let known = &mut self.known[which];
        // Without an answer it is discarded, or pending again.
        (known.ended, known.half) = (None, None);
        known.asked = vec![Outcome::Discarded];
        let sent = store.resume(&known.id).ok()?;
        (known.half, known.asked) = (Some(copy_of(&sent)), Vec::new());
        known.is_durable = true;
        Some(())
    }

    /// Kills the process, or cuts the power.
    fn crash(&mut self) -> CrashKeep {
        let keep = self.chance.pick(&[CrashKeep::PageCache, CrashKeep::PowerLoss]);
        self.crash_keeping(keep);
        keep
    }

    fn crash_keeping(&mut self, keep: CrashKeep) {
        self.memory = self.memory.crash(self.chance.number(), keep);
        self.crashes += 1;
    }

    /// Compares the open store with what the clients know, and learns from it.
    fn look(&mut self, store: &Store, keep: CrashKeep) {
        let visible = visible(store);
        let mut pending = BTreeMap::new();
        for waiting in store.halves_waiting(None, usize::MAX).unwrap() {
            let record = store.half(QueueOffset(waiting.newest.queue_offset)).unwrap();
            let (number, index) = names(record.view().unwrap().body);
            assert_eq!(index, 0, "{}: the first message ends transaction {number}", self.told());
            let twice = pending.insert(number, waiting.newest).is_some();
            assert!(!twice, "{}: transaction {number} is pending twice", self.told());
        }
        self.look_at_ops(store, &pending);
        let is_synced = self.options.flush_disk_type == FlushDiskType::Sync;
        for (number, known) in self.known.iter().enumerate() {
            let told = || format!("{}: transaction {number} {known:?}", self.told());
            let seen = visible.get(&number).map_or(0, Vec::len);
            let all: Vec<usize> = (0..known.count).collect();
            if seen > 0 {
                assert_eq!(visible[&number], all, "{}", told());
                assert!(known.asked.contains(&Outcome::Committed), "nobody committed it: {}", told());
            }
            let is_pending = pending.contains_key(&number);
            assert!(!(is_pending && seen > 0), "visible and pending: {}", told());
            let keeps = keep == CrashKeep::PageCache;
            match known.ended {
                Some(Outcome::Committed) if keeps || is_synced => assert_eq!(seen, known.count, "{}", told()),
                Some(Outcome::Committed) if known.is_durable => assert!(is_pending || seen > 0, "{}", told()),
                Some(Outcome::RolledBack) if keeps || is_synced => assert!(!is_pending && seen == 0, "{}", told()),
                // A discard is always synced.
                Some(Outcome::Discarded) => assert!(!is_pending && seen == 0, "{}", told()),
                None if known.half.is_some() && (keeps || known.is_durable) && known.asked.is_empty() => {
                    assert!(is_pending, "{}", told());
                }
                _ => {}
            }
        }
        for (number, known) in self.known.iter_mut().enumerate() {
            let seen = visible.contains_key(&number);
            known.half = pending.get(&number).copied();
            known.is_durable |= known.half.is_some();
            if let Some(half) = known.half {
                let record = store.half(QueueOffset(half.queue_offset)).unwrap();
                record.view().unwrap().unique_id().unwrap().clone_into(&mut known.id);
                (known.ended, known.asked) = (None, Vec::new());
            } else if seen {
                known.ended = Some(Outcome::Committed);
            } else if known.ended != Some(Outcome::Discarded) {
                // Never stored, rolled back, or discarded without an answer: it stays so.
                known.ended = Some(Outcome::RolledBack);
            }
        }
    }

    /// A broker that takes over checks each half message from the progress on that no op names, so ops name all of them
    /// that are not pending.
    fn look_at_ops(&self, store: &Store, pending: &BTreeMap<usize, HalfCopy>) {
        let (_, halves) = store.queue_range(HALF_TOPIC, QueueId(0)).unwrap();
        let (ops, _) = store.read(OP_TOPIC, QueueId(0), QueueOffset(0), usize::MAX, None).unwrap();
        let progress = store.consumer_offset(HALF_TOPIC, TRANSACTION_GROUP, QueueId(0)).unwrap().unwrap_or(0);
        let mut named: BTreeSet<u64> = BTreeSet::new();
        for op in ops {
            let body = String::from_utf8(op.view().unwrap().body.to_vec()).unwrap();
            named.extend(body.split_terminator(',').map(|offset| offset.parse::<u64>().unwrap()));
        }
        for (number, newest) in pending {
            let first = newest.queue_offset + 1 - self.known[*number].count as u64;
            assert!(progress <= first, "{}: a broker would not check half {first}", self.told());
            for offset in first..=newest.queue_offset {
                assert!(named.insert(offset), "{}: an op names half {offset}, which is pending", self.told());
            }
        }
        let missing: Vec<u64> = (progress..halves).filter(|offset| !named.contains(offset)).collect();
        assert!(missing.is_empty(), "{}: no op names the halves {missing:?}", self.told());
    }

    fn told(&self) -> String {
        format!("TXSTORE_SEED={} cargo test --test crash several, crash {}", self.seed, self.crashes)
    }

    fn live(&mut self) {
        // First the calls of an opening, then those of some steps.
        let calls = if self.chance.one_in(3) { 40 } else { 400 };
        let call = 1 + self.chance.below(calls);
        let torn = self.chance.index(3_000);
        let kind = if self.chance.one_in(3) { FaultKind::Stop } else { FaultKind::StopInside(torn) };
        self.memory.fail_at(call, kind, true);
        if let Some(store) = self.open() {
            for _ in 0..200 {
                if self.step(&store).is_none() || self.memory.calls() >= call {
                    break;
                }
            }
        }
        let keep = self.crash();
        self.look_again(keep);
        self.clock.advance(1_000);
    }

    fn look_again(&mut self, keep: CrashKeep) {
        let store = self.open().unwrap_or_else(|| panic!("{}: it does not open", self.told()));
        self.look(&store, keep);
        drop(store);
        // What an opening has completed stays so.
        let store = self.open().unwrap();
        self.look(&store, CrashKeep::PageCache);
    }

    /// Opens a store, and commits a hundred messages in five topics. Errors come from the crash.
    fn commit_a_hundred(&mut self) -> Option<()> {
        let store = self.open()?;
        self.prepare_of(&store, 100, 60)?;
        self.end_of(&store, 0, EndKind::Commit, Outcome::Committed)
    }

    /// Returns the number of crashes, and of transactions that were sent again.
    fn go(mut self) -> (u64, u64) {
        for _ in 0..LIVES {
            self.live();
        }
        let store = self.open().unwrap();
        for which in 0..self.known.len() {
            if self.known[which].half.is_some() {
                self.known[which].asked.push(Outcome::Committed);
                store.end_transaction(&end_of(&self.known[which], EndKind::Commit), Wait::Yes).unwrap();
                self.known[which].ended = Some(Outcome::Committed);
            }
        }
        self.look(&store, CrashKeep::PageCache);
        (self.crashes, self.sent_again)
    }
}

fn copy_of(sent: &Sent) -> HalfCopy {
    HalfCopy { queue_offset: sent.queue_offset.0, physical_offset: sent.physical_offset.0 }
}

fn end_of(known: &Known, kind: EndKind) -> End {
    let decider = if kind == EndKind::Discard { Decider::Check } else { Decider::Producer };
    End { half: known.half.unwrap(), kind, transaction_id: Some(known.id.clone()), group: Some(GROUP.into()), decider }
}

/// Returns a message as a client sends it, with an id of its own.
fn of_client(topic: &str, keys: &str, id: &str) -> Envelope {
    let keys = if keys.is_empty() { String::new() } else { format!("KEYS\x01{keys}\x02") };
    let born_host = "127.0.0.1:9".parse().unwrap();
    let origin = Origin { unique_id: None, sys_flag: 0, born_timestamp: TimestampMs(1), born_host, reconsume_times: 0 };
    Envelope::received(Topic::new(topic).unwrap(), &format!("UNIQ_KEY\x01{id}\x02{keys}"), 0, origin).unwrap()
}

/// The numbers of a message's transaction, and of the message in it.
fn names(body: &[u8]) -> (usize, usize) {
    let mut parts = std::str::from_utf8(body).unwrap().split(':').map(str::parse);
    (parts.next().unwrap().unwrap(), parts.next().unwrap().unwrap())
}

/// Returns the visible messages of each transaction, sorted, after checking that each queue has them in their order.
fn visible(store: &Store) -> BTreeMap<usize, Vec<usize>> {
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for topic in TOPICS {
        if store.queue_range(topic, QueueId(0)).is_err() {
            continue;
        }
        let (records, _) = store.read(topic, QueueId(0), QueueOffset(0), usize::MAX, None).unwrap();
        let mut last = BTreeMap::new();
        for record in records {
            let (number, index) = names(record.view().unwrap().body);
            let before = last.insert(number, index);
            assert!(before.is_none_or(|before| before < index), "transaction {number} is out of order in {topic}");
            found.entry(number).or_default().push(index);
        }
    }
    for indexes in found.values_mut() {
        indexes.sort_unstable();
    }
    found
}

#[test]
fn several_messages_are_visible_together_or_not_at_all() {
    if let Some(seed) = number("TXSTORE_SEED") {
        Run::new(seed).go();
        return;
    }
    let runs = number("TXSTORE_SEVERAL");
    let progress = Progress::new(runs.is_some());
    let runs = runs.unwrap_or(QUICK_RUNS);
    let (mut crashes, mut again) = (0, 0);
    for seed in 0..runs {
        let (crashed, sent_again) = Run::new(seed).go();
        (crashes, again) = (crashes + crashed, again + sent_again);
        progress.tell(|| format!("{seed} runs, {crashes} crashes"));
    }
    assert!(again > runs / 8, "{again} transactions were sent again in {runs} runs");
    let seconds = progress.seconds();
    let _ = writeln!(std::io::stderr(), "several: {crashes} crashes, {again} sent again, 0 violations, {seconds:.0} s");
}

#[test]
fn a_hundred_messages_survive_a_crash_at_every_call() {
    let deep = std::env::var("TXSTORE_POINTS").is_ok();
    let (stride, mut crashes) = (if deep { 16 } else { 512 }, 0);
    for flush in FLUSHES {
        let run = || {
            let mut run = Run::new(1);
            (run.options.flush_disk_type, run.options.transaction_flush_disk_type) = flush;
            run.options.commit_log_file_size = Some(16 << 10);
            run.options.op_message_size_max = 64;
            run
        };
        let mut whole = run();
        whole.memory.note_writes();
        whole.commit_a_hundred().unwrap();
        for (call, bytes) in (1..).zip(whole.memory.noted_writes()) {
            let torn = (1..bytes).step_by(stride).map(FaultKind::StopInside);
            for kind in torn.chain([FaultKind::Stop]) {
                for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
                    let mut run = run();
                    run.memory.fail_at(call, kind, true);
                    let _ = run.commit_a_hundred();
                    run.crash_keeping(keep);
                    run.look_again(keep);
                    crashes += 1;
                }
            }
        }
    }
    let _ = writeln!(std::io::stderr(), "a hundred messages: {crashes} crashes, 0 violations");
}
