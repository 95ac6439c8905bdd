//! Memory answers as a disk does, and a crash leaves only what a real crash may leave.

use proptest::prelude::*;

use super::*;
use crate::storage::disk::Disk;

fn write(storage: &dyn Storage, path: &str, bytes: &[u8]) -> Box<dyn File> {
    let file = storage.open(path, OpenMode::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

fn read(storage: &dyn Storage, path: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(storage.len(path).unwrap()?).unwrap()];
    storage.open(path, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

#[test]
fn a_killed_process_loses_nothing_and_makes_nothing_durable() {
    let memory = Memory::new();
    write(&memory, "a", b"one");
    let killed = memory.crash(0, CrashKeep::PageCache);
    assert_eq!(read(&killed, "a").unwrap(), b"one");
    killed.open("a", OpenMode::Write).unwrap().write_at(b"two", 0).unwrap();
    assert_eq!(read(&memory, "a").unwrap(), b"one");
    let lost = (0..50).filter(|seed| read(&killed.crash(*seed, CrashKeep::PowerLoss), "a").is_none()).count();
    assert!((1..50).contains(&lost), "{lost}");
}

#[test]
fn what_is_synced_survives_lost_power() {
    let memory = Memory::new();
    memory.create_dir("d/e").unwrap();
    let file = write(&memory, "d/e/a", &[1; 2_000]);
    file.sync().unwrap();
    memory.sync_dir("d/e").unwrap();
    file.write_at(&[2; 1_000], 0).unwrap();
    for seed in 0..100 {
        let bytes = read(&memory.crash(seed, CrashKeep::PowerLoss), "d/e/a").unwrap();
        assert_eq!((bytes.len(), &bytes[1_000..]), (2_000, &[1; 1_000][..]));
        for sector in [&bytes[..512], &bytes[512..1_000]] {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
        }
    }
    let firsts: HashSet<_> = (0..100)
        .map(|seed| read(&memory.crash(seed, CrashKeep::PowerLoss), "d/e/a").unwrap())
        .map(|b| (b[0], b[600]))
        .collect();
    assert_eq!(firsts.len(), 4);
    assert_eq!(
        read(&memory.crash(7, CrashKeep::PowerLoss), "d/e/a"),
        read(&memory.crash(7, CrashKeep::PowerLoss), "d/e/a")
    );
}

#[test]
fn a_sector_is_as_after_one_of_its_writes() {
    let memory = Memory::new();
    let file = write(&memory, "a", b"0000");
    file.sync().unwrap();
    memory.sync_dir("").unwrap();
    for (at, byte) in [(0, b"1"), (1, b"2"), (2, b"3")] {
        file.write_at(byte, at).unwrap();
    }
    file.set_len(9).unwrap();
    let seen: HashSet<_> = (0..200).map(|seed| read(&memory.crash(seed, CrashKeep::PowerLoss), "a").unwrap()).collect();
    assert_eq!(seen.len(), 8);
    for bytes in seen {
        assert!([&b"0000"[..], b"1000", b"1200", b"1230"].contains(&&bytes[..4]) && [4, 9].contains(&bytes.len()));
    }
}

#[test]
fn names_are_lost_or_kept_until_their_directory_is_synced() {
    let memory = Memory::new();
    write(&memory, "old", b"old").sync().unwrap();
    memory.sync_dir("").unwrap();
    write(&memory, "tmp", b"new").sync().unwrap();
    memory.rename("tmp", "old").unwrap();
    let seen: HashSet<_> =
        (0..100).map(|seed| read(&memory.crash(seed, CrashKeep::PowerLoss), "old").unwrap()).collect();
    assert_eq!(seen, HashSet::from([b"old".to_vec(), b"new".to_vec()]));
    memory.sync_dir("").unwrap();
    memory.unlink("old").unwrap();
    let gone = (0..100).filter(|seed| read(&memory.crash(*seed, CrashKeep::PowerLoss), "old").is_none()).count();
    assert!((1..100).contains(&gone));
    memory.sync_dir("").unwrap();
    assert_eq!(read(&memory.crash(1, CrashKeep::PowerLoss), "old"), None);
}

#[test]
fn a_large_sparse_file_costs_little() {
    let memory = Memory::new();
    let file = memory.open("a", OpenMode::Create).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_at(b"x", 1 << 39).unwrap();
    file.punch(0..1 << 40).unwrap();
    file.allocate(0..1 << 40).unwrap();
    let after = memory.crash(3, CrashKeep::PowerLoss);
    drop(after);
    file.sync().unwrap();
    assert_eq!(file.map_read().unwrap().bytes(1 << 39..(1 << 39) + 1).unwrap().as_ref(), b"\0");
}

#[test]
fn the_nth_call_fails_once_or_from_then_on() {
    let memory = Memory::new();
    let file = memory.open("a", OpenMode::Create).unwrap();
    memory.fail_at(2, FaultKind::Tear(2), false);
    assert!(matches!(file.write_at(b"four", 0), Err(Error::Io { operation: "write", .. })));
    assert_eq!((read(&memory, "a").unwrap(), memory.calls()), (b"fo".to_vec(), 2));
    memory.fail_at(3, FaultKind::NoSpace, true);
    assert!(matches!(file.write_at(b"more", 0), Err(Error::DiskFull { .. })));
    assert!(file.allocate(0..9).is_err() && memory.unlink("a").is_err() && memory.sync_dir("").is_err());
    assert_eq!(read(&memory, "a").unwrap(), b"fo");
    memory.clear_fault();
    memory.unlink("a").unwrap();
    memory.count_reads(true);
    memory.fail_at(memory.calls() + 1, FaultKind::ReadOnly, false);
    assert!(memory.len("a").is_err() && memory.len("a").unwrap().is_none());
}

#[test]
fn a_stopped_process_stores_into_no_file() {
    let memory = Memory::new();
    let file = memory.open("a", OpenMode::Create).unwrap();
    file.set_len(16).unwrap();
    let map = file.map_shared(2).unwrap();
    let store = |number: u64| map.values()[0].store(number, Ordering::Release);
    store(1);
    memory.fail_at(memory.calls() + 1, FaultKind::Stop, true);
    store(2);
    assert!(file.sync().is_err());
    store(3);
    let left = memory.crash(0, CrashKeep::PageCache);
    let found = left.open("a", OpenMode::Read).unwrap().map_shared(2).unwrap().load(0);
    assert_eq!((found, map.load(0)), (2, 3));
}

#[test]
fn a_failed_sync_is_not_made_good_by_the_next_one() {
    let seen: HashSet<_> = (1..40_u64)
        .map(|calls| {
            let memory = Memory::new();
            let file = memory.open("a", OpenMode::Create).unwrap();
            (0..calls).for_each(|_| file.allocate(0..1).unwrap());
            file.set_len(1).unwrap();
            file.sync().unwrap();
            memory.sync_dir("").unwrap();
            file.write_at(b"x", 0).unwrap();
            memory.fail_at(memory.calls() + 1, FaultKind::Io, false);
            assert!(file.sync().is_err());
            file.sync().unwrap();
            assert_eq!(read(&memory, "a").unwrap(), b"x");
            read(&memory.crash(0, CrashKeep::PowerLoss), "a").unwrap()
        })
        .collect();
    assert_eq!(seen, HashSet::from([b"x".to_vec(), b"\0".to_vec()]));
}

/// As with each file's own sync, a part of it is on the disk, and the next one, which succeeds, does not write the
/// rest.
#[test]
fn a_failed_sync_of_the_file_system_is_not_made_good_by_the_next_one() {
    let mut seen = HashSet::new();
    let mut names = HashSet::new();
    for calls in 1..40_u64 {
        let memory = Memory::new();
        let file = memory.open("a", OpenMode::Create).unwrap();
        (0..calls).for_each(|_| file.allocate(0..1).unwrap());
        file.set_len(1).unwrap();
        memory.sync_file_system().unwrap();
        file.write_at(b"x", 0).unwrap();
        write(&memory, "b", b"y");
        memory.fail_at(memory.calls() + 1, FaultKind::Io, false);
        assert!(memory.sync_file_system().is_err());
        names.insert(read(&memory.crash(calls, CrashKeep::PowerLoss), "b").is_some());
        memory.sync_file_system().unwrap();
        assert_eq!(read(&memory, "a").unwrap(), b"x");
        let after = memory.crash(0, CrashKeep::PowerLoss);
        assert!(read(&after, "b").is_some(), "names are written by the next one");
        seen.insert(read(&after, "a").unwrap());
    }
    assert_eq!(seen, HashSet::from([b"x".to_vec(), b"\0".to_vec()]));
    assert_eq!(names, HashSet::from([true, false]));
}

#[test]
fn shared_values_are_the_files_bytes() {
    let memory = Memory::new();
    let file = memory.open("a", OpenMode::Create).unwrap();
    file.set_len(64).unwrap();
    let (ours, theirs) =
        (file.map_shared(8).unwrap(), memory.open("a", OpenMode::Read).unwrap().map_shared(8).unwrap());
    ours.store(1, 77).unwrap();
    assert_eq!((theirs.load(1), theirs.load(8), theirs.values().len()), (77, 0, 0));
    theirs.store(1, 1).unwrap();
    assert_eq!(read(&memory, "a").unwrap()[8..16], 77_u64.to_ne_bytes());
    file.write_at(&5_u64.to_ne_bytes(), 16).unwrap();
    assert_eq!((ours.load(2), ours.load(1)), (5, 77));
    file.sync().unwrap();
    memory.sync_dir("").unwrap();
    ours.store(1, 78).unwrap();
    let after = |keep, seed| read(&memory.crash(seed, keep), "a").unwrap()[8];
    assert_eq!(after(CrashKeep::PageCache, 0), 78);
    let seen: HashSet<_> = (0..50).map(|seed| after(CrashKeep::PowerLoss, seed)).collect();
    assert_eq!(seen, HashSet::from([77, 78]));
    assert!(file.map_shared(9).is_err());
}

#[test]
fn locks_are_between_handles_of_the_same_files() {
    let memory = Memory::new();
    assert!(!memory.is_locked("lock", 0).unwrap());
    let held = memory.lock("lock", 0).unwrap().unwrap();
    let other = memory.clone();
    assert!(other.lock("lock", 0).unwrap().is_none() && other.lock("lock", 1).unwrap().is_some());
    assert!(other.is_locked("lock", 0).unwrap() && !other.is_locked("lock", 1).unwrap());
    assert!(!memory.crash(0, CrashKeep::PageCache).is_locked("lock", 0).unwrap());
    drop(held);
    assert!(other.lock("lock", 0).unwrap().is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Open(String, OpenMode),
    CreateDir(String),
    Rename(String, String),
    Unlink(String),
    RemoveDir(String),
    SyncDir(String),
    SetLen(u64),
    Write(u64, Vec<u8>),
    Punch(u64, u64),
    Read(u64, usize),
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let name =
        || prop::sample::select(vec!["a", "b", "d/a", "d/b", "d/e/a", "d", "d/e", "../a", ""]).prop_map(str::to_owned);
    let file = || prop::sample::select(vec!["a", "b", "d/a", "d/e/a", "f/a"]).prop_map(str::to_owned);
    let mode = prop::sample::select(vec![OpenMode::Read, OpenMode::Write, OpenMode::Create, OpenMode::Create]);
    prop_oneof![
        3 => (file(), mode.clone()).prop_map(|(path, mode)| Step::Open(path, mode)),
        1 => (name(), mode).prop_map(|(path, mode)| Step::Open(path, mode)),
        1 => name().prop_map(Step::CreateDir),
        1 => (file(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => name().prop_map(Step::Unlink),
        1 => name().prop_map(Step::RemoveDir),
        1 => name().prop_map(Step::SyncDir),
        1 => (0_u64..20_000).prop_map(Step::SetLen),
        3 => (0_u64..20_000, prop::collection::vec(any::<u8>(), 0..6_000)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        1 => (0_u64..20_000, 0_u64..20_000).prop_map(|(at, bytes)| Step::Punch(at, bytes)),
        2 => (0_u64..20_000, 0_usize..6_000).prop_map(|(at, bytes)| Step::Read(at, bytes)),
        1 => Just(Step::Sync),
    ]
}

/// Returns the visible result of a step. All errors count as equal.
fn take(storage: &dyn Storage, file: &mut Option<Box<dyn File>>, step: &Step) -> Option<Vec<u8>> {
    let done = |result: Result<()>| result.ok().map(|()| Vec::new());
    match step {
        Step::Open(path, mode) => {
            *file = storage.open(path, *mode).ok();
            file.is_some().then(Vec::new)
        }
        Step::CreateDir(path) => done(storage.create_dir(path)),
        // A disk can rename directories, but no code in the engine does.
        Step::Rename(from, to)
            if storage.list(from).is_ok_and(|entries| entries.is_none())
                || storage.len(from).is_ok_and(|len| len.is_some()) =>
        {
            done(storage.rename(from, to))
        }
        Step::Rename(..) => None,
        Step::Unlink(path) => done(storage.unlink(path)),
        Step::RemoveDir(path) => done(storage.remove_dir(path)),
        Step::SyncDir(path) => done(storage.sync_dir(path)),
        Step::SetLen(len) => done(file.as_ref()?.set_len(*len)),
        Step::Write(at, bytes) => done(file.as_ref()?.write_at(bytes, *at)),
        Step::Punch(at, bytes) => done(file.as_ref()?.punch(*at..at + bytes)),
        Step::Read(at, bytes) => {
            let mut buf = vec![0; *bytes];
            file.as_ref()?.read_at(&mut buf, *at).ok().map(|()| buf)
        }
        Step::Sync => done(file.as_ref()?.sync()),
    }
}

/// Returns every name with its bytes.
fn everything(storage: &dyn Storage, dir: &str) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    for entry in storage.list(dir).unwrap().unwrap() {
        let path = if dir.is_empty() { entry.name } else { format!("{dir}/{}", entry.name) };
        all.push((path.clone(), (!entry.is_dir).then(|| read(storage, &path).unwrap())));
        if entry.is_dir {
            all.extend(everything(storage, &path));
        }
    }
    all
}

proptest! {
    #[test]
    fn memory_answers_as_a_disk_does(steps in prop::collection::vec(step(), 1..60), map in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let (disk, memory) = (Disk::open(dir.path()).unwrap(), Memory::new());
        let (mut on_disk, mut in_memory) = (None, None);
        for step in &steps {
            let (theirs, ours) = (take(&disk, &mut on_disk, step), take(&memory, &mut in_memory, step));
            prop_assert_eq!(theirs, ours, "{:?}", step);
            if let (true, Some(theirs), Some(ours)) = (map, &on_disk, &in_memory) {
                let (theirs, ours) = (theirs.map_read().unwrap(), ours.map_read().unwrap());
                prop_assert_eq!(theirs.bytes(0..theirs.len()), ours.bytes(0..ours.len()));
            }
        }
        let shown = everything(&disk, "");
        prop_assert_eq!(&shown, &everything(&memory, ""));
        prop_assert_eq!(&shown, &everything(&memory.crash(0, CrashKeep::PageCache), ""));
    }

    #[test]
    fn a_synced_file_system_survives_any_crash(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let (memory, mut file) = (Memory::new(), None);
        for step in &steps {
            take(&memory, &mut file, step);
        }
        memory.sync_file_system().unwrap();
        prop_assert_eq!(everything(&memory, ""), everything(&memory.crash(seed, CrashKeep::PowerLoss), ""));
    }

    #[test]
    fn synced_files_survive_any_crash(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let (memory, mut file) = (Memory::new(), None);
        for step in &steps {
            take(&memory, &mut file, step);
        }
        let again = memory.crash(seed, CrashKeep::PowerLoss);
        prop_assert_eq!(everything(&again, ""), everything(&memory.crash(seed, CrashKeep::PowerLoss), ""));
        for (path, bytes) in everything(&memory, "") {
            match bytes {
                Some(_) => memory.open(&path, OpenMode::Read).unwrap().sync().unwrap(),
                None => memory.sync_dir(&path).unwrap(),
            }
        }
        memory.sync_dir("").unwrap();
        prop_assert_eq!(everything(&memory, ""), everything(&memory.crash(seed, CrashKeep::PowerLoss), ""));
    }
}
