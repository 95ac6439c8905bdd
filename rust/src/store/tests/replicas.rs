//! A replica: a log that is copied piece by piece, and all that is derived from it.

use super::*;
use crate::base::names::DISCARD_TOPIC;
use crate::storage::settings::DIRECTORY;

const TOPICS: [&str; 3] = ["orders", "payments", DISCARD_TOPIC];

/// Chooses the same numbers in each run of a seed.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

pub(super) fn put(bench: &Bench, path: &str, bytes: &[u8]) {
    let file = bench.memory.open(path, OpenMode::Create).unwrap();
    file.set_len(u64::try_from(bytes.len()).unwrap()).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
}

/// Gives a store the settings of another one, without which it does not know who wrote the log.
pub(super) fn copy_settings(from: &Bench, to: &Bench) {
    to.memory.create_dir(DIRECTORY).unwrap();
    for (path, bytes) in from.files() {
        if path == "txstore/settings.json" {
            put(to, &path, &bytes);
        }
    }
}

pub(super) fn replica_of(source: &Bench) -> Bench {
    let replica = Bench::new(source.options.flush_disk_type).with(|options| options.role = Role::Replica);
    copy_settings(source, &replica);
    replica
}

/// Copies one piece of at most `bytes_max`, and shows it. Returns false if there was none.
pub(super) fn copy_piece(source: &Store, replica: &Store, bytes_max: usize) -> bool {
    let end = replica.appended_end();
    let bytes = source.copy_log(end, bytes_max).unwrap();
    let now = replica.append_copied(end, &bytes, source.epoch()).unwrap();
    replica.show_up_to(now);
    now > end
}

pub(super) fn copy_all(source: &Store, replica: &Store) {
    while copy_piece(source, replica, 1 << 20) {}
}

/// What a user sees of a store.
pub(super) fn seen(store: &Store) -> (Vec<String>, Vec<u64>) {
    let topics = TOPICS.iter().map(|topic| match store.queue_range(topic, QUEUE) {
        Ok(_) => String::from_utf8(bodies(store, topic, 0).join(&b' ')).unwrap(),
        Err(_) => String::new(),
    });
    (topics.collect(), pending(store))
}

/// One random step of a writer. Halves that may be ended are in `open`.
pub(super) fn work(store: &Store, chance: &mut Chance, open: &mut Vec<Sent>, number: &mut u64) {
    *number += 1;
    let size = usize::try_from(chance.below(60)).unwrap();
    let body = format!("{number}{}", "x".repeat(size));
    match chance.below(6) {
        0 | 1 => {
            send(store, TOPICS[usize::try_from(chance.below(2)).unwrap()], body.as_bytes()).unwrap();
        }
        2 | 3 => {
            let envelope = envelope("orders");
            let message = NewMessage { envelope: &envelope, body: body.as_bytes(), queue_id: QUEUE };
            let half = NewHalfMessage { message, group: GROUP, unique_id: None, owner: 0 };
            open.push(store.prepare(&half, Wait::Yes).and_then(Unacknowledged::acknowledged).unwrap());
        }
        4 => {
            let envelopes = [envelope("orders"), envelope("payments")];
            let messages: Vec<_> = envelopes
                .iter()
                .map(|envelope| NewMessage { envelope, body: body.as_bytes(), queue_id: QUEUE })
                .collect();
            let sent = store.prepare_many(&messages, GROUP, 0, Wait::Yes).and_then(Unacknowledged::acknowledged);
            open.push(sent.unwrap().remove(0));
        }
        _ if open.is_empty() => {}
        _ => {
            let sent = open.swap_remove(usize::try_from(chance.below(open.len().try_into().unwrap())).unwrap());
            let kind = [EndKind::Commit, EndKind::Commit, EndKind::RollBack, EndKind::Discard]
                [usize::try_from(chance.below(4)).unwrap()];
            let _ = end(store, &sent, kind);
        }
    }
}

/// Returns a store with the source's log up to `end`, opened by a writer: what a crash of the source there leaves.
fn cut_at(source: &Bench, end: u64) -> Bench {
    let cut = Bench::new(source.options.flush_disk_type);
    copy_settings(source, &cut);
    cut.memory.create_dir("commitlog").unwrap();
    for (path, mut bytes) in source.files() {
        let base = path.strip_prefix("commitlog/").and_then(|name| name.parse::<u64>().ok());
        if let Some(base) = base.filter(|base| *base < end) {
            let most = usize::try_from(end - base).unwrap().min(bytes.len());
            bytes[most..].fill(0);
            put(&cut, &path, &bytes);
        }
    }
    put(&cut, "abort", b"1");
    cut
}

#[test]
fn a_replica_has_what_its_source_has() {
    let bench = Bench::sync();
    let source = bench.open();
    let replica = replica_of(&bench);
    let copy = replica.open();
    let (mut chance, mut open, mut number) = (Chance(1), Vec::new(), 0);
    for _ in 0..400 {
        work(&source, &mut chance, &mut open, &mut number);
    }
    copy_all(&source, &copy);
    assert_eq!(copy.appended_end(), source.appended_end());
    copy.flush_round().unwrap();
    assert_eq!(seen(&copy), seen(&source));
    // A writer also reserves the files that come next.
    let last = format!("commitlog/{:020}", source.appended_end().0 / (4 << 10) * (4 << 10));
    let log = |bench: &Bench| -> Vec<_> {
        bench.files().into_iter().filter(|(path, _)| path.starts_with("commitlog/0") && *path <= last).collect()
    };
    assert_eq!(log(&replica), log(&bench));
}

/// A replica's machine may have run for longer or shorter than its source's.
#[test]
fn a_replica_tells_how_old_a_pending_transaction_is() {
    let bench = Bench::sync();
    let source = bench.open();
    prepare(&source, b"before");
    let replica = replica_of(&bench);
    replica.clock.advance(3_600_000);
    replica.clock.jump_wall(-3_600_000);
    let copy = replica.open();
    for _ in 0..2 {
        copy_all(&source, &copy);
        replica.clock.advance(5_000);
        bench.clock.advance(5_000);
        prepare(&source, b"after");
    }
    copy_all(&source, &copy);
    replica.clock.advance(1_000);
    let row = copy.pending().unwrap().remove(0);
    assert_eq!((row.pending, row.oldest_ms), (3, 11_000));
}

#[test]
fn a_promoted_replica_is_the_source_cut_at_the_replicas_end() {
    for seed in 0..120 {
        let bench = Bench::new(FlushDiskType::Async);
        let source = bench.open();
        let mut replica = replica_of(&bench);
        let mut copy = replica.open();
        let (mut chance, mut open, mut number) = (Chance(seed), Vec::new(), 0);
        for _ in 0..chance.below(120) {
            work(&source, &mut chance, &mut open, &mut number);
            let piece = usize::try_from(1 + chance.below(900)).unwrap();
            match chance.below(8) {
                0 => copy.flush_round().unwrap(),
                1 => copy.snapshot().unwrap(),
                2 => {
                    copy.close().unwrap();
                    copy = replica.open();
                }
                3 => {
                    replica = replica.crashed(seed, CrashKeep::PageCache);
                    copy = replica.open();
                }
                _ => {
                    copy_piece(&source, &copy, piece);
                }
            }
        }
        let end = copy.appended_end();
        let expected = seen(&cut_at(&bench, end.0).open());
        if chance.below(2) == 0 {
            copy.close().unwrap();
        } else {
            replica = replica.crashed(seed, CrashKeep::PageCache);
        }
        let promoted = replica.with(|options| options.role = Role::Alone).open();
        assert_eq!(seen(&promoted), expected, "seed {seed}, cut at {end}");
    }
}

#[test]
fn a_promoted_replica_delivers_no_delayed_message_again() {
    let bench = Bench::sync();
    let source = bench.open();
    let replica = replica_of(&bench);
    let copy = replica.open();
    let envelope = Envelope::new(&Parts { topic: "orders", delay_level: 1, ..Parts::default() }).unwrap();
    let message = NewMessage { envelope: &envelope, body: b"later", queue_id: QUEUE };
    source.append_one(&message, Wait::Yes).unwrap().acknowledged().unwrap();
    copy_all(&source, &copy);
    bench.clock.advance(1_000);
    assert_eq!(source.deliver_delayed(9).unwrap().messages, 1);
    copy_all(&source, &copy);
    copy.close().unwrap();
    let promoted = replica.with(|options| options.role = Role::Alone);
    let store = promoted.open();
    promoted.clock.advance(1_000);
    assert_eq!(store.deliver_delayed(9).unwrap().messages, 0);
    assert_eq!(bodies(&store, "orders", 0), [b"later"]);
}

#[test]
fn a_replica_that_lost_its_power_continues_where_its_log_ends() {
    for seed in 0..40 {
        let bench = Bench::new(FlushDiskType::Async);
        let source = bench.open();
        let mut replica = replica_of(&bench);
        let (mut chance, mut open, mut number) = (Chance(seed), Vec::new(), 0);
        for _ in 0..6 {
            for _ in 0..20 {
                work(&source, &mut chance, &mut open, &mut number);
            }
            let copy = replica.open();
            while copy_piece(&source, &copy, usize::try_from(1 + chance.below(2_000)).unwrap()) {
                if chance.below(9) == 0 {
                    copy.flush_round().unwrap();
                }
            }
            replica = replica.crashed(seed, CrashKeep::PowerLoss);
        }
        let copy = replica.open();
        copy_all(&source, &copy);
        assert_eq!(seen(&copy), seen(&source), "seed {seed}");
    }
}

#[test]
fn a_replica_appends_nothing_of_its_own() {
    let bench = Bench::sync();
    let source = bench.open();
    let half = prepare(&source, b"half");
    let replica = replica_of(&bench);
    let copy = replica.open();
    copy_all(&source, &copy);
    let refused = |result: Result<()>| assert!(matches!(result, Err(Error::Replica { .. })), "{result:?}");
    refused(send(&copy, "orders", b"1").map(drop));
    refused(prepare_as(&copy, b"1", None).map(drop));
    refused(end(&copy, &half, EndKind::Commit).map(drop));
    assert_eq!(copy.appended_end(), source.appended_end());
    assert_eq!(pending(&copy), [0]);
}

#[test]
fn readers_see_only_what_was_released() {
    let bench = Bench::sync();
    let source = bench.open();
    for body in [b"1", b"2"] {
        send(&source, "orders", body).unwrap();
    }
    let replica = replica_of(&bench);
    let copy = replica.open();
    let first = source.read("orders", QUEUE, QueueOffset(1), 1, None).unwrap().0[0].view().unwrap().physical_offset;
    let bytes = source.copy_log(PhysicalOffset(0), 1 << 20).unwrap();
    copy.append_copied(PhysicalOffset(0), &bytes, 1).unwrap();
    copy.flush().unwrap();
    assert!(copy.queue_range("orders", QUEUE).map_or(0, |(_, end)| end) == 0);
    copy.show_up_to(first);
    assert_eq!(bodies(&copy, "orders", 0), [b"1"]);
    drop(copy);
    let copy = replica.open();
    assert_eq!(bodies(&copy, "orders", 0), [b"1"], "after opening again");
    copy.show_up_to(source.appended_end());
    assert_eq!(bodies(&copy, "orders", 0), [b"1", b"2"]);
}

#[test]
fn a_source_holds_back_what_is_not_released() {
    let bench = Bench::sync().with(|options| options.role = Role::Source);
    let source = bench.open();
    send(&source, "orders", b"1").unwrap();
    let end = source.appended_end();
    send(&source, "orders", b"2").unwrap();
    assert_eq!(source.queue_range("orders", QUEUE).unwrap().1, 0);
    source.show_up_to(end);
    assert_eq!(bodies(&source, "orders", 0), [b"1"]);
    assert_eq!(bodies(&bench.read_only(), "orders", 0), [b"1"], "in another process");
    drop(source);
    let source = bench.killed().open();
    assert_eq!(bodies(&source, "orders", 0), [b"1"], "after a kill");
    source.show_up_to(source.appended_end());
    assert_eq!(bodies(&source, "orders", 0), [b"1", b"2"]);
}

#[test]
fn wrong_pieces_are_refused_and_change_nothing() {
    let bench = Bench::sync();
    let source = bench.open();
    send(&source, "orders", b"one").unwrap();
    let replica = replica_of(&bench);
    let copy = replica.open();
    let bytes = source.copy_log(PhysicalOffset(0), 1 << 20).unwrap();
    let elsewhere = copy.append_copied(PhysicalOffset(8), &bytes, 1).unwrap_err();
    assert!(elsewhere.to_string().contains("continues at 0, not at 8"), "{elsewhere}");
    let mut flipped = bytes.clone();
    flipped[100] ^= 1;
    let error = copy.append_copied(PhysicalOffset(0), &flipped, 1).unwrap_err();
    assert!(matches!(error, Error::StoreCorrupt { .. }), "{error}");
    assert!(copy.append_copied(PhysicalOffset(0), &[0; 64], 1).is_err());
    assert_eq!(copy.append_copied(PhysicalOffset(0), &bytes[..50], 1).unwrap(), PhysicalOffset(0));
    assert_eq!(copy.append_copied(PhysicalOffset(0), &bytes, 1).unwrap(), source.appended_end());
    let beyond = source.copy_log(PhysicalOffset(1 << 40), 10).unwrap_err();
    assert!(matches!(beyond, Error::MessageNotFound { .. }), "{beyond}");
}
