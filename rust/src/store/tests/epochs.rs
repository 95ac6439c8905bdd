//! Epochs: one node writes, and a node that was replaced rejoins without losing a record.

use super::replicas::{Chance, copy_all, copy_piece, put, replica_of, seen, work};
use super::*;
use crate::storage::epochs::Epochs;
use crate::storage::memory::FaultKind;
use crate::storage::settings::DIRECTORY;

const KEPT: &str = "txstore/diverged-1";

/// Returns the bytes of a store's log up to its end.
fn log_of(bench: &Bench, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(end).unwrap()];
    for (path, file) in bench.files() {
        if let Some(base) = path.strip_prefix("commitlog/").and_then(|name| name.parse::<usize>().ok()) {
            let most = bytes.len().saturating_sub(base).min(file.len());
            if most > 0 {
                bytes[base..base + most].copy_from_slice(&file[..most]);
            }
        }
    }
    bytes
}

/// Returns the bytes that a rejoin has kept, after those of the log below `end`.
fn with_kept(bench: &Bench, end: u64) -> Vec<u8> {
    let mut bytes = log_of(bench, end);
    for (path, file) in bench.files() {
        if let Some(base) = path.strip_prefix(&format!("{KEPT}/log/")).and_then(|name| name.parse::<usize>().ok()) {
            assert_eq!(base, bytes.len(), "{path}");
            bytes.extend_from_slice(&file);
        }
    }
    bytes
}

fn promote(bench: &Bench, store: &Store, epoch: u64) -> Bench {
    store.accept_epoch(epoch, Some("here")).unwrap();
    store.begin_epoch(false, Some("there")).unwrap();
    store.close().unwrap();
    Bench { memory: bench.memory.clone(), clock: bench.clock.clone(), options: bench.options.clone() }
        .with(|options| options.role = Role::Alone)
}

fn as_replica(bench: Bench) -> Bench {
    bench.with(|options| options.role = Role::Replica)
}

fn catch_up(source: &Store, store: &Store) {
    copy_all(source, store);
    store.flush().unwrap();
}

fn settings_of(store: &Store) -> String {
    let storage = store.shared.storage.as_ref();
    let path = format!("{DIRECTORY}/settings.json");
    let mut bytes = vec![0; usize::try_from(storage.len(&path).unwrap().unwrap()).unwrap()];
    storage.open(&path, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn rejoin(node: &Bench, source: &Store) -> Store {
    try_rejoin(node, source).unwrap()
}

/// Opens a node that was replaced, keeps and cuts what differs, and opens it again to follow its source.
fn try_rejoin(node: &Bench, source: &Store) -> Result<Store> {
    let store = node.try_open()?;
    let (epochs, end) = (source.epochs(), source.appended_end());
    let common = store.common_end(&epochs, end);
    if let Some(mark) = store.epochs().first_unknown(&epochs).and_then(|epoch| epoch.last) {
        assert!(common.0 < mark.physical_offset + u64::from(mark.size) || store.has_record(&mark));
    }
    if store.appended_end() > common {
        store.keep_diverged(common, &epochs, "here", KEPT)?;
    }
    store.close()?;
    let store = node.try_open()?;
    assert_eq!(store.appended_end(), common);
    store.follow_epochs(&epochs, "here")?;
    assert!(store.adopt_settings(&settings_of(source))?);
    Ok(store)
}

#[test]
fn one_node_writes_after_a_cut_network_heals() {
    let bench = Bench::sync();
    let source = bench.open();
    send(&source, "orders", b"1").unwrap();
    let replica = replica_of(&bench);
    let copy = replica.open();
    copy_all(&source, &copy);
    // The network is cut: the source takes another message, and the replica is promoted.
    send(&source, "orders", b"only here").unwrap();
    let rest = source.copy_log(copy.appended_end(), 1 << 20).unwrap();
    copy.accept_epoch(2, Some("replica")).unwrap();
    let late = copy.append_copied(copy.appended_end(), &rest, source.epoch());
    assert!(late.unwrap_err().to_string().contains("has accepted 2"), "a replica copies nothing of the old epoch");
    copy.begin_epoch(false, None).unwrap();
    copy.close().unwrap();
    let promoted = replica.with(|options| options.role = Role::Alone).open();
    send(&promoted, "orders", b"2").unwrap();
    // It heals: the source hears of the higher epoch.
    let end = source.accept_epoch(promoted.epoch(), Some("replica")).unwrap();
    let refused = |result: Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Fenced { by: Some(by), .. } if by == "replica"), "{error}");
    };
    refused(send(&source, "orders", b"3").map(drop));
    refused(prepare_as(&source, b"3", None).map(drop));
    assert_eq!(source.appended_end(), end);
    assert!(source.is_replica());
    // Also after it was opened again, however it ended.
    drop(source);
    refused(bench.try_open().map(drop));
    refused(bench.killed().try_open().map(drop));
    let fenced = as_replica(bench.killed()).open();
    assert_eq!(bodies(&fenced, "orders", 0), [&b"1"[..], b"only here"]);
}

#[test]
fn a_replica_is_no_writer_until_it_is_promoted() {
    let bench = Bench::sync();
    let source = bench.open();
    let replica = replica_of(&bench);
    let copy = replica.open();
    copy_all(&source, &copy);
    copy.follow_epochs(&source.epochs(), "there").unwrap();
    copy.close().unwrap();
    let alone =
        Bench { memory: replica.memory.clone(), clock: replica.clock.clone(), options: replica.options.clone() }
            .with(|options| options.role = Role::Alone);
    let refused = alone.try_open().unwrap_err();
    assert!(matches!(refused, Error::Replica { .. }), "{refused}");
    let copy = replica.open();
    assert!(copy.begin_epoch(false, None).is_err(), "no epoch was accepted");
    let promoted = promote(&replica, &copy, 2).open();
    send(&promoted, "orders", b"1").unwrap();
    assert_eq!(promoted.epochs().list.len(), 1, "an epoch without records is dropped");
}

/// One life of two nodes: the replica is promoted somewhere, both continue, and either loses its power or is killed.
/// Returns the old source and the new one, what both had, and what was acknowledged with two copies.
struct Diverged {
    old: Bench,
    new: Bench,
    both: u64,
    acknowledged: u64,
}

fn diverged(seed: u64) -> Diverged {
    let mut chance = Chance(seed);
    let flush = if chance.below(2) == 0 { FlushDiskType::Sync } else { FlushDiskType::Async };
    let two = chance.below(2) == 0;
    let bench = Bench::new(flush).with(|options| options.role = if two { Role::Source } else { Role::Alone });
    let source = bench.open();
    source.note_copies_required(if two { 2 } else { 1 }).unwrap();
    let replica = replica_of(&bench);
    let copy = replica.open();
    let (mut open, mut number, mut acknowledged) = (Vec::new(), 0, 0);
    for _ in 0..chance.below(150) {
        work(&source, &mut chance, &mut open, &mut number);
        if chance.below(3) == 0 {
            let piece = usize::try_from(1 + chance.below(1500)).unwrap();
            while copy_piece(&source, &copy, piece) && chance.below(4) > 0 {}
            copy.flush().unwrap();
            if two {
                source.flush().unwrap();
                source.show_up_to(copy.durable_end());
                acknowledged = source.visible_end().0;
            }
        }
    }
    copy.follow_epochs(&source.epochs(), "there").unwrap();
    // Some nodes have nothing to cut.
    let is_complete = seed % 20 == 19;
    if is_complete {
        copy_all(&source, &copy);
    }
    let both = copy.appended_end().0;
    for _ in 0..if is_complete { 0 } else { chance.below(60) } {
        work(&source, &mut chance, &mut open, &mut number);
    }
    let keep =
        |chance: &mut Chance| [CrashKeep::PageCache, CrashKeep::PowerLoss][usize::try_from(chance.below(2)).unwrap()];
    let old = match chance.below(3) {
        0 => {
            source.close().unwrap();
            bench
        }
        _ => bench.crashed(seed, keep(&mut chance)),
    };
    let promoted = promote(&replica, &copy, 2);
    let writer = promoted.open();
    let (mut open, mut number) = (Vec::new(), 1_000);
    for _ in 0..chance.below(100) {
        work(&writer, &mut chance, &mut open, &mut number);
    }
    let new = match chance.below(3) {
        0 => {
            writer.close().unwrap();
            promoted
        }
        _ => promoted.crashed(seed, keep(&mut chance)),
    };
    Diverged { old, new, both, acknowledged }
}

#[test]
fn a_node_that_rejoins_loses_no_record_that_both_had() {
    let (mut cut, mut nothing) = (0, 0);
    let runs = std::env::var("TXSTORE_REJOINS").map_or(100, |text| text.parse().unwrap());
    for seed in 0..runs {
        let Diverged { old, new, both, acknowledged } = diverged(seed);
        let source = new.open();
        let old = as_replica(old);
        let before = old.open();
        let end = before.appended_end().0;
        let all = log_of(&old, end);
        before.close().unwrap();
        let store = rejoin(&old, &source);
        let common = store.appended_end().0;
        assert!(common >= both.min(end), "seed {seed}: {common} of {both}");
        assert!(common >= acknowledged, "seed {seed}: {common} of {acknowledged}");
        assert_eq!(with_kept(&old, common), all, "seed {seed}");
        if end > common {
            cut += 1;
        } else {
            nothing += 1;
        }
        catch_up(&source, &store);
        assert_eq!(seen(&store), seen(&source), "seed {seed}");
        let end = source.appended_end().0;
        assert_eq!(store.appended_end().0, end);
        assert_eq!(log_of(&old, end), log_of(&new, end), "seed {seed}");
        // The node can be promoted in its turn, with what its source has.
        let expected = seen(&source);
        let again = promote(&old, &store, 3).open();
        assert_eq!(seen(&again), expected, "seed {seed}, promoted again");
    }
    assert!(cut > runs / 2 && nothing >= runs / 50, "{cut} {nothing}");
}

/// A crash at each call of a rejoin is followed by one that succeeds, with the same log and the same copies.
#[test]
fn a_rejoin_that_crashes_at_any_call_is_continued() {
    for seed in [1, 3, 7] {
        let made = || {
            let Diverged { old, new, .. } = diverged(seed);
            (as_replica(old), new)
        };
        let (old, new) = made();
        let source = new.open();
        let before = old.open();
        let end = before.appended_end().0;
        let all = log_of(&old, end);
        before.close().unwrap();
        let expected = rejoin(&old, &source).appended_end().0;
        assert!(expected < end, "seed {seed} has nothing to cut");
        for keep in [CrashKeep::PageCache, CrashKeep::PowerLoss] {
            for call in 1.. {
                let (old, _) = made();
                let begun = old.memory.calls();
                old.memory.fail_at(begun + call, FaultKind::Stop, true);
                let through = try_rejoin(&old, &source).is_ok();
                let crashed = old.crashed(call, keep);
                let store = rejoin(&crashed, &source);
                assert_eq!(store.appended_end().0, expected, "seed {seed}, call {call}, {keep:?}");
                assert_eq!(with_kept(&crashed, expected), all, "seed {seed}, call {call}, {keep:?}");
                catch_up(&source, &store);
                assert_eq!(seen(&store), seen(&source), "seed {seed}, call {call}, {keep:?}");
                if through {
                    assert!(call > 100, "{call}");
                    break;
                }
            }
        }
    }
}

#[test]
fn records_acknowledged_with_two_copies_are_not_cut() {
    let bench = Bench::sync().with(|options| options.role = Role::Source);
    let source = bench.open();
    source.note_copies_required(2).unwrap();
    send(&source, "orders", b"1").unwrap();
    let replica = replica_of(&bench);
    let copy = replica.open();
    copy_all(&source, &copy);
    source.show_up_to(source.appended_end());
    // Another replica had this one, and does not take part in the promotion.
    send(&source, "orders", b"2").unwrap();
    let shown = source.appended_end();
    source.show_up_to(shown);
    send(&source, "orders", b"3").unwrap();
    copy.accept_epoch(2, Some("here")).unwrap();
    copy.begin_epoch(false, None).unwrap();
    let epochs = copy.epochs();
    let start = copy.appended_end();
    let refuses = |old: Bench, about: &str| {
        let store = as_replica(old).open();
        assert_eq!(store.common_end(&epochs, start), start);
        let error = store.keep_diverged(start, &epochs, "here", KEPT).unwrap_err();
        assert!(error.to_string().contains(&format!("records below {shown}")), "{about}: {error}");
        assert_eq!(bodies(&store, "orders", 0).len(), 2, "{about}");
    };
    refuses(bench.killed(), "killed");
    // Also when it was opened with one copy since.
    source.close().unwrap();
    let alone = bench.killed().with(|options| options.role = Role::Alone);
    let store = alone.open();
    store.note_copies_required(1).unwrap();
    store.close().unwrap();
    let error = {
        let store = as_replica(alone).open();
        store.keep_diverged(start, &epochs, "here", KEPT).unwrap_err()
    };
    assert!(error.to_string().contains("records below"), "{error}");
}

#[test]
fn nothing_is_cut_if_a_replica_took_no_part_in_the_promotion() {
    let bench = Bench::sync().with(|options| options.role = Role::Source);
    let source = bench.open();
    source.note_copies_required(2).unwrap();
    send(&source, "orders", b"1").unwrap();
    let replica = replica_of(&bench);
    let copy = replica.open();
    copy.accept_epoch(2, None).unwrap();
    copy.begin_epoch(true, None).unwrap();
    drop(source);
    let store = as_replica(bench.killed()).open();
    let error = store.keep_diverged(PhysicalOffset(0), &copy.epochs(), "here", KEPT).unwrap_err();
    assert!(error.to_string().contains("with two copies"), "{error}");
}

#[test]
fn the_report_names_messages_halves_and_ends() {
    let bench = Bench::sync();
    let source = bench.open();
    let before = prepare(&source, b"before");
    let replica = replica_of(&bench);
    let copy = replica.open();
    copy_all(&source, &copy);
    let sent = send(&source, "orders", b"lost").unwrap();
    let half = prepare(&source, b"half");
    end(&source, &before, EndKind::Commit).unwrap();
    source.close().unwrap();
    let new = promote(&replica, &copy, 2);
    let promoted = new.open();
    let old = as_replica(bench);
    let store = rejoin(&old, &promoted);
    let report = old.files().into_iter().find(|(path, _)| path.ends_with("report.jsonl")).unwrap().1;
    let lines: Vec<serde_json::Value> =
        String::from_utf8(report).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = lines[1..].iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "half", "committed", "end"]);
    assert_eq!(lines[1]["message_id"], sent.unique_id.to_string());
    assert_eq!((&lines[1]["topic"], &lines[1]["keys"]), (&"orders".into(), &"k".into()));
    assert_eq!(
        (&lines[2]["message_id"], &lines[2]["real_topic"]),
        (&half.unique_id.to_string().into(), &"orders".into())
    );
    assert_eq!(lines[3]["half_physical_offset"], before.physical_offset.0);
    assert_eq!(lines[4]["half_queue_offsets"], serde_json::json!([before.queue_offset.0]));
    // The transaction that only the old source ended is pending again.
    assert_eq!(pending(&store), [0]);
    assert_eq!(pending(&promoted), [0]);
}

#[test]
fn damaged_epochs_keep_a_store_from_writing() {
    let bench = Bench::sync();
    bench.open().close().unwrap();
    put(&bench, "txstore/epochs.json", b"{\"accepted\": 1}");
    let error = bench.try_open().unwrap_err();
    assert!(matches!(error, Error::StoreCorrupt { .. }), "{error}");
    put(&bench, "txstore/epochs.json", Epochs::default().to_text().as_bytes());
    bench.open();
}
