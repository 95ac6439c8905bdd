//! Readers: another handle on the same directory follows a live writer.

use super::*;
use crate::base::error::{ErrorKind, Outcome};
use crate::storage::memory::FaultKind;

fn on_disk(directory: &std::path::Path, read_only: bool, flush: FlushDiskType) -> Store {
    Store::open(directory, StoreOptions { read_only, ..Bench::new(flush).options }).unwrap()
}

#[test]
fn d1_a_reader_follows_a_live_writer_over_file_rolls() {
    for flush in [FlushDiskType::Async, FlushDiskType::Sync] {
        let directory = tempfile::tempdir().unwrap();
        let writer = on_disk(directory.path(), false, flush);
        send(&writer, "orders", b"0").unwrap();
        let reader = on_disk(directory.path(), true, FlushDiskType::Async);
        assert!(!reader.open_report().clean);
        for n in 1..60_usize {
            send(&writer, "orders", &[b'x'; 300]).unwrap();
            assert_eq!(bodies(&reader, "orders", 0).len(), n + 1);
            assert_eq!(reader.queue_range("orders", QUEUE).unwrap(), writer.queue_range("orders", QUEUE).unwrap());
            if n % 7 == 0 {
                writer.flush_round().unwrap();
            }
        }
        assert!(appended(&writer) > 3 * 4_096);
        writer.close().unwrap();
        assert_eq!(bodies(&reader, "orders", 0).len(), 60, "and after it has closed");
    }
}

#[test]
fn t2_a_reader_sees_transactions_begin_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let writer = on_disk(directory.path(), false, FlushDiskType::Async);
    let reader = on_disk(directory.path(), true, FlushDiskType::Async);
    let halves: Vec<Sent> = (0..6_u8).map(|n| prepare(&writer, &[n; 500])).collect();
    assert_eq!(pending(&reader), [0, 1, 2, 3, 4, 5]);
    end(&writer, &halves[0], EndKind::Commit).unwrap();
    end(&writer, &halves[1], EndKind::RollBack).unwrap();
    end(&writer, &halves[2], EndKind::Discard).unwrap();
    assert_eq!(pending(&reader), [3, 4, 5]);
    let outcomes: Vec<_> = reader.transactions().unwrap().iter().map(|row| row.outcome).collect();
    let expected = [Some(Outcome::Committed), Some(Outcome::RolledBack), Some(Outcome::Discarded), None, None, None];
    assert_eq!(outcomes, expected);
    assert_eq!(reader.transaction(&halves[1].unique_id).unwrap().outcome, Some(Outcome::RolledBack));
    writer.close().unwrap();
    assert_eq!(pending(&on_disk(directory.path(), true, FlushDiskType::Async)), [3, 4, 5]);
}

#[test]
fn d2_a_reader_sees_what_groups_acknowledge() {
    let directory = tempfile::tempdir().unwrap();
    let writer = on_disk(directory.path(), false, FlushDiskType::Async);
    let reader = on_disk(directory.path(), true, FlushDiskType::Async);
    for _ in 0..3 {
        send(&writer, "orders", b"x").unwrap();
    }
    assert_eq!(reader.consumer_offset("orders", "readers", QUEUE).unwrap(), None);
    for offset in [2, 3] {
        writer.set_consumer_offset("orders", "readers", QUEUE, offset).unwrap();
        writer.write_offsets().unwrap();
        assert_eq!(reader.consumer_offset("orders", "readers", QUEUE).unwrap(), Some(offset));
        let all = reader.consumer_offsets().unwrap();
        assert!(all.contains(&("orders".into(), "readers".into(), QUEUE, offset)), "{all:?}");
    }
}

#[test]
fn d1_what_a_reader_finds_after_a_kill_no_lost_power_takes_back() {
    let mut shown_early = false;
    for call in 1.. {
        let bench = Bench::sync();
        let store = bench.open();
        send(&store, "orders", b"0").unwrap();
        bench.memory.fail_at(bench.memory.calls() + call, FaultKind::Stop, true);
        let sent = send(&store, "orders", b"1").is_ok();
        let killed = bench.killed();
        let shown = bodies(&killed.read_only(), "orders", 0);
        let later = Bench { memory: killed.memory.lose_power(|_| 0), ..bench };
        assert!(bodies(&later.read_only(), "orders", 0).starts_with(&shown), "call {call}");
        if sent {
            assert!(shown_early, "no call was between the write and its sync");
            return;
        }
        shown_early |= shown.len() == 2;
    }
}

#[test]
fn d1_after_a_failed_sync_a_reader_goes_to_the_durable_end() {
    let bench = Bench::sync();
    let store = bench.open();
    send(&store, "orders", b"0").unwrap();
    bench.memory.fail_at(bench.memory.calls() + 2, FaultKind::Io, false);
    assert!(matches!(send(&store, "orders", b"1"), Err(Error::StorePoisoned { .. })));
    let killed = bench.killed();
    let reader = killed.read_only();
    let shown = bodies(&reader, "orders", 0);
    assert_eq!(shown, [b"0"]);
    assert_eq!(reader.open_report().warnings, [""; 0], "what was not synced is the next writer's");
    let later = Bench { memory: killed.memory.lose_power(|_| 0), ..bench };
    assert_eq!(bodies(&later.read_only(), "orders", 0), shown);
    let healed = later.open();
    send(&healed, "orders", b"2").unwrap();
    assert_eq!(bodies(&later.read_only(), "orders", 0).last().unwrap(), b"2");
}

/// At the end of a log file, a writer has reserved the next file, and removes it when it closes.
#[test]
fn d1_a_reader_follows_many_writers_wherever_in_a_file_they_end() {
    let directory = tempfile::tempdir().unwrap();
    on_disk(directory.path(), false, FlushDiskType::Async).close().unwrap();
    let mut sent = 0;
    let mut readers = Vec::new();
    for life in 0..24_usize {
        let writer = on_disk(directory.path(), false, FlushDiskType::Async);
        for _ in 0..=life % 5 {
            send(&writer, "orders", &[b'x'; 300]).unwrap();
            sent += 1;
        }
        readers.push(on_disk(directory.path(), true, FlushDiskType::Async));
        for reader in &readers {
            assert_eq!(bodies(reader, "orders", 0).len(), sent, "while writer {life} lives");
        }
        writer.close().unwrap();
        for reader in &readers {
            assert_eq!(bodies(reader, "orders", 0).len(), sent, "after writer {life}");
        }
    }
}

#[test]
fn d1_a_reader_that_was_there_before_anything_was_published_follows_the_first_writer() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    send(&store, "orders", b"0").unwrap();
    store.close().unwrap();
    bench.memory.unlink("txstore/published").unwrap();
    let reader = bench.read_only();
    assert_eq!(bodies(&reader, "orders", 0).len(), 1);
    let writer = bench.open();
    send(&writer, "orders", b"1").unwrap();
    assert_eq!(bodies(&reader, "orders", 0).len(), 2);
    writer.close().unwrap();
    assert_eq!(bodies(&reader, "orders", 0).len(), 2);
}

#[test]
fn l8_a_reader_names_a_published_record_that_cannot_be_read() {
    for zeros in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let writer = on_disk(directory.path(), false, FlushDiskType::Async);
        send(&writer, "orders", b"0").unwrap();
        let reader = on_disk(directory.path(), true, FlushDiskType::Async);
        let end = appended(&writer);
        send(&writer, "orders", b"1").unwrap();
        let bytes = if zeros { vec![0; 100] } else { vec![b'?'; 100] };
        let file =
            std::fs::OpenOptions::new().write(true).open(directory.path().join("commitlog/00000000000000000000"));
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &bytes, end).unwrap();
        for _ in 0..2 {
            let error = reader.queue_range("orders", QUEUE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
        }
    }
}

#[test]
fn d1_a_close_on_a_full_disk_has_made_the_log_durable_first() {
    let bench = Bench::new(FlushDiskType::Async);
    let store = bench.open();
    send(&store, "orders", b"0").unwrap();
    bench.memory.fail_at(bench.memory.calls() + 2, FaultKind::NoSpace, true);
    assert!(store.close().is_err());
    let later = Bench { memory: bench.memory.lose_power(|_| 0), ..bench };
    assert_eq!(bodies(&later.open(), "orders", 0).len(), 1);
}

/// A commit was written but not synced when its process was killed, and the next opening crashes at each call. A
/// reader may see the commit or not, but never a transaction that is neither pending nor committed.
#[test]
fn a_reader_after_a_crashed_opening_sees_an_outcome_with_its_record() {
    let bench = Bench::new(FlushDiskType::Sync);
    let store = bench.open();
    let sent = prepare(&store, b"paid");
    bench.memory.fail_at(bench.memory.calls() + 2, FaultKind::Stop, true);
    assert!(end(&store, &sent, EndKind::Commit).is_err());
    let crashed = bench.killed();
    drop(store);
    let mut seen = [0, 0];
    for call in 1.. {
        let bench = crashed.killed();
        bench.memory.fail_at(bench.memory.calls() + call, FaultKind::Stop, true);
        let opened = Store::open_with(Arc::new(bench.memory.clone()), bench.clock.clone(), bench.options.clone());
        let is_open = opened.is_ok();
        for crash in [bench.killed(), Bench { memory: bench.memory.lose_power(|_| 0), ..bench }] {
            let reader = crash.read_only();
            let (pending, messages) = (pending(&reader).len(), bodies(&reader, "orders", 1).len());
            assert_eq!(pending + messages, 1, "{pending} pending, {messages} messages after a crash in call {call}");
            seen[messages] += 1;
        }
        if is_open {
            break;
        }
    }
    assert!(seen.into_iter().all(|times| times > 0), "{seen:?}");
}
