//! The commit log alone: batches across file ends, space ahead, errors in the middle, what a scan meets, group commit.

use super::*;
use crate::base::units::{QueueOffset, TimestampMs};
use crate::log::flush::GroupCommit;
use crate::record::Draft;
use crate::record::decode::RecordCrc;
use crate::storage::memory::{FaultKind, Memory};
use crate::storage::{OpenMode, Storage};

const SIZE: u64 = 4_096;

fn log(memory: &Memory) -> Arc<CommitLog> {
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    memory.create_dir(DIRECTORY).unwrap();
    Arc::new(CommitLog::new(SegmentQueue::open(storage, DIRECTORY, SIZE, false).unwrap()))
}

fn appender(log: &Arc<CommitLog>) -> Appender {
    Appender::new(Arc::clone(log), true, true, TimestampMs(5))
}

fn draft(body: &[u8]) -> Draft<'_> {
    Draft { body, ..Draft::plain() }
}

const URGENCY: Urgency = Urgency::Send(EndsToCome { bytes: 0, count: 0, largest: 0 });

fn append(appender: &mut Appender, bodies: &[Vec<u8>]) -> Result<Vec<Appended>> {
    appender.begin(TimestampMs(1));
    let placed = bodies.iter().map(|body| appender.push(&draft(body), QueueOffset(0))).collect::<Result<_>>()?;
    appender.make_room(URGENCY)?;
    appender.write(false)?;
    Ok(placed)
}

fn scan(log: &CommitLog, limit: u64) -> (Vec<usize>, Scan) {
    let mut found = Vec::new();
    let verify = Verify { body_crc: true, record_crc: RecordCrc::Required };
    let scan = Scanner::new(log, PhysicalOffset(0), limit)
        .run(
            |_| verify,
            |view, _| {
                found.push(view.body.len());
                Ok(true)
            },
        )
        .unwrap();
    (found, scan)
}

#[test]
fn every_size_of_record_fits_over_the_end_of_a_file() {
    for size in (3_000..3_980).step_by(7) {
        let log = log(&Memory::new());
        let mut appender = appender(&log);
        let bodies: Vec<Vec<u8>> = [500, size, 1, size].map(|size| vec![7; size]).to_vec();
        match append(&mut appender, &bodies) {
            Ok(placed) => {
                let (found, end) = scan(&log, u64::MAX);
                assert_eq!(found, bodies.iter().map(Vec::len).collect::<Vec<_>>(), "{size}");
                assert_eq!((end.end, end.tail), (log.appended(), Tail::End));
                for placed in placed {
                    assert!(placed.physical_offset.0 % SIZE + u64::from(placed.size) + FILE_TAIL <= SIZE);
                    assert_eq!(placed.store_timestamp, TimestampMs(5), "the store time never goes back");
                }
            }
            Err(error) => {
                assert!(matches!(error, Error::InvalidMessage { .. }) && size > 3_900, "{size}: {error}");
                assert_eq!(log.appended(), 0);
            }
        }
    }
}

#[test]
fn l1_a_batch_that_fails_at_any_call_leaves_nothing_and_the_next_one_fits() {
    let bodies: Vec<Vec<u8>> = (1..8_u8).map(|n| vec![n; 1_200]).collect();
    let mut failed = 0;
    for (kind, write_space) in [FaultKind::Io, FaultKind::NoSpace, FaultKind::Tear(700)].iter().flat_map(both) {
        for call in 1..40 {
            let memory = Memory::new();
            let log = log(&memory);
            let mut appender = Appender::new(Arc::clone(&log), true, write_space, TimestampMs(5));
            append(&mut appender, &[vec![9; 100]]).unwrap();
            let before = log.appended();
            memory.fail_at(memory.calls() + call, kind, false);
            let result = append(&mut appender, &bodies);
            if result.is_ok() {
                // The call is after the batch's last one, or less space was allocated ahead.
                continue;
            }
            failed += 1;
            assert_eq!(log.appended(), before);
            memory.clear_fault();
            if !matches!(result, Err(Error::StorePoisoned { .. })) {
                assert_eq!(scan(&log, u64::MAX).0, [100], "{kind:?} at {call}");
                append(&mut appender, &[vec![8; 50]]).unwrap();
                assert_eq!(scan(&log, u64::MAX), (vec![100, 50], Scan { end: log.appended(), tail: Tail::End }));
            }
        }
    }
    assert!(failed > 40, "{failed} batches failed");
}

/// Where the file system copies on write, a full disk also refuses the zeros over what a failed batch has written.
#[test]
fn l1_what_a_full_disk_keeps_of_a_batch_is_covered_by_the_next_one() {
    let mut refused = 0;
    for write_space in [true, false] {
        for call in 1..20 {
            let memory = Memory::new();
            let log = log(&memory);
            let mut appender = Appender::new(Arc::clone(&log), true, write_space, TimestampMs(5));
            append(&mut appender, &[vec![9; 100]]).unwrap();
            memory.fail_at(memory.calls() + call, FaultKind::NoSpace, true);
            match append(&mut appender, &[vec![1; 300], vec![2; 300]]) {
                Ok(_) => break,
                Err(Error::DiskFull { .. }) => refused += 1,
                Err(error) => panic!("call {call}: {error}"),
            }
            memory.clear_fault();
            append(&mut appender, &[vec![8; 50]]).unwrap();
            assert_eq!(scan(&log, u64::MAX), (vec![100, 50], Scan { end: log.appended(), tail: Tail::End }));
        }
    }
    assert!(refused > 1, "{refused} batches were refused");
}

fn both(kind: &FaultKind) -> [(FaultKind, bool); 2] {
    [(*kind, true), (*kind, false)]
}

#[test]
fn zeros_go_ahead_of_small_records_in_blocks_and_never_over_one() {
    for (body, blocks) in [(500, 1), (5_000, 2), (40 << 10, 0)] {
        let memory = Memory::new();
        memory.create_dir(DIRECTORY).unwrap();
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        let log = Arc::new(CommitLog::new(SegmentQueue::open(storage, DIRECTORY, 1 << 20, false).unwrap()));
        let mut appender = Appender::new(Arc::clone(&log), true, false, TimestampMs(5));
        memory.note_writes();
        for _ in 0..20 {
            append(&mut appender, &[vec![1; body]]).unwrap();
        }
        assert_eq!(scan(&log, u64::MAX).0, [body; 20]);
        let writes = memory.noted_writes().iter().filter(|bytes| **bytes > 0).count();
        assert_eq!(writes, 20 + blocks, "writes with bodies of {body} bytes");
    }
}

#[test]
fn a_scan_stops_at_the_first_bad_record_and_says_why() {
    let memory = Memory::new();
    let log = log(&memory);
    let mut appender = appender(&log);
    let placed = append(&mut appender, &[vec![1; 100], vec![2; 100], vec![3; 100]]).unwrap();
    let second = placed[1].physical_offset.0;
    assert_eq!(scan(&log, second).0, [100], "a limit is an end");
    let file = memory.open("commitlog/00000000000000000000", OpenMode::Write).unwrap();
    file.write_at(&[0xFF], second + 95).unwrap();
    let (found, end) = scan(&log, u64::MAX);
    assert_eq!((found.len(), end.end), (1, second));
    assert!(matches!(end.tail, Tail::Bad(_)));
    assert!(matches!(log.read(PhysicalOffset(second), u64::MAX, |_, _| ()), Err(Error::StoreCorrupt { .. })));
    assert!(matches!(log.read(PhysicalOffset(3), u64::MAX, |_, _| ()), Err(Error::StoreCorrupt { .. })));
    assert!(matches!(log.read(placed[0].physical_offset, 0, |_, _| ()), Err(Error::MessageNotFound { .. })));
}

#[test]
fn one_sync_serves_all_that_wait_and_a_failed_one_is_never_repeated() {
    let memory = Memory::new();
    let log = log(&memory);
    let mut appender = appender(&log);
    append(&mut appender, &[vec![1; 100]]).unwrap();
    let commit = GroupCommit::default();
    let end = log.appended();
    let calls = memory.calls();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| commit.wait(&log, end, |durable| assert_eq!(durable, end)).unwrap());
        }
    });
    assert_eq!((memory.calls() - calls, log.durable()), (1, end));
    append(&mut appender, &[vec![1; 100]]).unwrap();
    memory.fail_at(memory.calls() + 1, FaultKind::Io, false);
    for _ in 0..3 {
        let calls = memory.calls();
        assert!(matches!(commit.wait(&log, log.appended(), |_| ()), Err(Error::StorePoisoned { .. })));
        assert!(memory.calls() <= calls + 1);
    }
    assert_eq!(log.durable(), end);
    assert!(commit.wait(&log, end, |_| ()).is_ok(), "what was durable stays so");
}

#[test]
fn what_a_thread_verifies_ahead_is_not_verified_again_and_no_bad_record_passes() {
    let memory = Memory::new();
    memory.create_dir(DIRECTORY).unwrap();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let log = Arc::new(CommitLog::new(SegmentQueue::open(storage, DIRECTORY, 1 << 20, false).unwrap()));
    let mut appender = appender(&log);
    let bodies = vec![vec![7; 3_000]; 1_000];
    let placed = append(&mut appender, &bodies).unwrap();
    let must = Verify { body_crc: false, record_crc: RecordCrc::Required };
    // Returns how many records were read, how many of them were verified ahead, and the end.
    let read = || {
        let (mut found, mut ahead) = (0, 0);
        let scan = verified_ahead(
            &log,
            0,
            u64::MAX,
            |_| must,
            |verify| {
                Scanner::new(&log, PhysicalOffset(0), u64::MAX)
                    .run(verify, |view, _| {
                        found += 1;
                        let next = view.physical_offset.0 + u64::from(view.size);
                        let known = || verify(next).record_crc == RecordCrc::Ignore;
                        // The reader is slower than the thread after the first records.
                        ahead += usize::from(known() || (found == 10 && eventually(known)));
                        Ok(true)
                    })
                    .unwrap()
            },
        );
        (found, ahead, scan)
    };
    let (found, ahead, scan) = read();
    assert_eq!((found, scan), (1_000, Scan { end: log.appended(), tail: Tail::End }));
    assert!(ahead >= 10, "{ahead} were verified ahead");
    for bad in [999, 700, 200, 30] {
        let at = placed[bad].physical_offset.0;
        let segment = log.segments.at(at).unwrap();
        segment.write(&[0xFF], at + 1_500).unwrap();
        let (found, _, scan) = read();
        assert_eq!((found, scan.end), (bad, at));
        assert!(matches!(scan.tail, Tail::Bad(_)), "{scan:?}");
    }
}

fn eventually(holds: impl Fn() -> bool) -> bool {
    (0..2_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        holds()
    })
}

/// Returns how many of 200 syncs meet space that is written for the first time, with 20 records of 1 KiB before each
/// synced record.
fn syncs_that_meet_new_space(synced_soon: bool) -> usize {
    let memory = Memory::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    memory.create_dir(DIRECTORY).unwrap();
    let log = Arc::new(CommitLog::new(SegmentQueue::open(storage, DIRECTORY, 32 << 20, false).unwrap()));
    let mut appender = Appender::new(log, true, false, TimestampMs(5));
    let mut found = 0;
    for _ in 0..200 {
        memory.note_writes();
        for number in 0..21 {
            appender.begin(TimestampMs(1));
            appender.push(&draft(&[7; 1024]), QueueOffset(0)).unwrap();
            appender.make_room(URGENCY).unwrap();
            appender.write(synced_soon && number == 20).unwrap();
        }
        // Zeros are written in larger pieces than records.
        found += usize::from(memory.noted_writes().iter().any(|bytes| *bytes > 4_096));
    }
    found
}

#[test]
fn what_is_synced_soon_writes_space_ahead_so_that_few_syncs_meet_new_space() {
    assert!(syncs_that_meet_new_space(false) > 60);
    assert!(syncs_that_meet_new_space(true) < 10);
}

/// A large batch's memory is released once batches are small again, and not while they stay large.
#[test]
fn what_a_large_batch_took_is_given_back() {
    let memory = Memory::new();
    memory.create_dir(DIRECTORY).unwrap();
    let segments = SegmentQueue::open(Arc::new(memory), DIRECTORY, 128 << 20, false).unwrap();
    let mut appender = appender(&Arc::new(CommitLog::new(segments)));
    let large = vec![vec![0; 1 << 20]; 16];
    append(&mut appender, &large).unwrap();
    let most = appender.memory();
    assert!(most > 16 << 20);
    append(&mut appender, &large).unwrap();
    assert!(appender.memory() >= most, "large batches follow each other");
    append(&mut appender, &[vec![0; 100]]).unwrap();
    append(&mut appender, &[vec![0; 100]]).unwrap();
    assert!(appender.memory() < 1 << 20, "{}", appender.memory());
}
