//! Files of a real directory keep what the trait promises, and no path reaches outside.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

const BTRFS_MAGIC: fs::FsWord = 0x9123_683E;
const XFS_MAGIC: fs::FsWord = 0x5846_5342;

fn disk() -> (tempfile::TempDir, Disk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    (dir, disk)
}

#[test]
fn what_is_written_is_read_back_by_calls_and_by_maps() {
    let (_dir, disk) = disk();
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.set_len(100).unwrap();
    file.write_at(b"hello", 10).unwrap();
    file.sync().unwrap();
    let mut bytes = [0; 7];
    file.read_at(&mut bytes, 9).unwrap();
    assert_eq!(&bytes, b"\0hello\0");
    let map = file.map_read().unwrap();
    assert_eq!(map.len(), 100);
    assert_eq!(map.bytes(10..15).unwrap().as_ref(), b"hello");
    file.write_at(b"J", 10).unwrap();
    assert_eq!(map.bytes(10..15).unwrap().as_ref(), b"Jello");
    assert!(map.bytes(99..101).is_none());
    let error = file.read_at(&mut bytes, 95).unwrap_err();
    assert!(error.to_string().contains("read") && error.to_string().contains("/a"), "{error}");
    assert!(file.write_at(&bytes, u64::MAX).is_err());
}

#[test]
fn an_empty_file_has_an_empty_view_and_no_shared_values() {
    let (_dir, disk) = disk();
    let file = disk.open("a", OpenMode::Create).unwrap();
    assert!(file.map_read().unwrap().is_empty());
    assert_eq!(file.map_read().unwrap().bytes(0..0).unwrap().len(), 0);
    assert!(file.map_shared(1).is_err());
}

#[test]
fn a_punched_range_reads_as_zeros_and_the_length_stays() {
    let (_dir, disk) = disk();
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.write_at(&vec![7; 3 << 20], 0).unwrap();
    file.punch(5..(2 << 20)).unwrap();
    assert_eq!(file.len().unwrap(), 3 << 20);
    let map = file.map_read().unwrap();
    assert_eq!(map.bytes(4..6).unwrap().as_ref(), [7, 0]);
    assert_eq!(map.bytes((2 << 20) - 1..(2 << 20) + 1).unwrap().as_ref(), [0, 7]);
}

#[test]
fn a_range_is_blank_if_little_of_it_was_written_and_all_of_that_is_zeros() {
    let (_dir, disk) = disk();
    let file = disk.open("file", OpenMode::Create).unwrap();
    file.set_len(6 << 20).unwrap();
    assert!(file.is_blank(0..6 << 20).unwrap());
    file.write_at(b"entries", 100).unwrap();
    assert!(!file.is_blank(0..6 << 20).unwrap());
    assert!(file.is_blank(107..6 << 20).unwrap());
    for at in [5 << 20, (6 << 20) - 1] {
        file.write_at(b"x", at).unwrap();
        assert!(!file.is_blank(107..6 << 20).unwrap(), "{at}");
        assert!(file.is_blank(107..at).unwrap(), "{at}");
        file.write_at(b"\0", at).unwrap();
        assert!(file.is_blank(107..6 << 20).unwrap(), "{at}");
    }
    file.write_at(&vec![0; 1 << 20], 1 << 20).unwrap();
    assert!(!file.is_blank(0..6 << 20).unwrap(), "a megabyte is more than is looked at");
}

#[test]
fn zeros_are_written_where_holes_cannot_be_punched() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    let handle = disk.open_file("open", "a", OFlags::RDWR | OFlags::CREATE).unwrap().unwrap();
    let file = DiskFile { handle, path: dir.path().join("a"), writable: true };
    file.set_len(8 << 20).unwrap();
    file.write_at(&vec![7; 3 << 20], 1 << 20).unwrap();
    file.write_zeros((1 << 20) + 3..u64::MAX).unwrap();
    assert_eq!(file.len().unwrap(), 8 << 20);
    let map = file.map_read().unwrap();
    assert_eq!(map.bytes(1 << 20..(1 << 20) + 4).unwrap().as_ref(), [7, 7, 7, 0]);
    assert!(map.bytes((1 << 20) + 3..8 << 20).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn allocating_keeps_length_and_bytes() {
    let (_dir, disk) = disk();
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.set_len(10).unwrap();
    file.write_at(b"x", 3).unwrap();
    file.allocate(0..1 << 20).unwrap();
    file.allocate(5..5).unwrap();
    assert_eq!(file.len().unwrap(), 10);
    assert_eq!(file.map_read().unwrap().bytes(3..4).unwrap().as_ref(), b"x");
}

#[test]
fn shared_values_are_seen_by_a_reader_who_cannot_change_them() {
    let (_dir, disk) = disk();
    let file = disk.open("a", OpenMode::Create).unwrap();
    file.set_len(64).unwrap();
    let ours = file.map_shared(8).unwrap();
    let theirs = disk.open("a", OpenMode::Read).unwrap().map_shared(8).unwrap();
    ours.store(7, 42).unwrap();
    ours.store(8, 43).unwrap();
    assert_eq!((theirs.load(7), theirs.load(8)), (42, 0));
    theirs.store(7, 1).unwrap();
    assert_eq!((ours.load(7), theirs.values().len()), (42, 0));
    assert!(file.map_shared(9).is_err());
}

#[test]
fn directories_are_made_listed_and_removed() {
    let (dir, disk) = disk();
    assert_eq!(disk.list("q/t").unwrap(), None);
    disk.create_dir("q/t/0").unwrap();
    disk.create_dir("q/t/0").unwrap();
    disk.open("q/t/0/b", OpenMode::Create).unwrap().set_len(5).unwrap();
    disk.open("q/t/a", OpenMode::Create).unwrap();
    let names: Vec<_> = disk.list("q/t").unwrap().unwrap().into_iter().map(|e| (e.name, e.is_dir, e.len)).collect();
    assert_eq!(names, [("0".to_owned(), true, 0), ("a".to_owned(), false, 0)]);
    assert_eq!(disk.len("q/t/0/b").unwrap(), Some(5));
    assert_eq!((disk.len("q/t/0").unwrap(), disk.len("nowhere/b").unwrap()), (None, None));
    disk.rename("q/t/0/b", "q/c").unwrap();
    disk.sync_dir("q").unwrap();
    disk.sync_dir("").unwrap();
    disk.sync_file_system().unwrap();
    disk.unlink("q/c").unwrap();
    disk.unlink("q/c").unwrap();
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("q/t"), mode("q/t/a")), (0o700, 0o600));
    disk.remove_dir("q").unwrap();
    disk.remove_dir("q").unwrap();
    assert_eq!(disk.list("").unwrap(), Some(vec![]));
}

#[test]
fn no_path_leads_outside() {
    let (dir, disk) = disk();
    let outside = tempfile::tempdir().unwrap();
    std::fs::File::create(outside.path().join("secret")).unwrap();
    symlink(outside.path(), dir.path().join("link")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();
    for path in ["/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "link/secret", "file", "", "a\0b"] {
        assert!(disk.open(path, OpenMode::Create).is_err(), "{path:?}");
    }
    assert!(disk.list("link").is_err() && disk.remove_dir("link").is_err() && disk.remove_dir("").is_err());
    disk.unlink("link").unwrap();
    assert!(outside.path().join("secret").exists());
}

/// If storing through a map may need space, values are written. Readers must never see parts of two values.
#[test]
fn a_value_that_is_written_is_seen_whole() {
    const WRITES: u64 = 200_000;
    let (dir, disk) = disk();
    let path = dir.path().join("a");
    let handle: std::fs::File =
        std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    handle.set_len(64).unwrap();
    let map = unsafe { MmapOptions::new().len(64).map(&handle) }.unwrap();
    let file = DiskFile { handle: handle.into(), path, writable: true };
    let written = file.written_map(DiskWatchedMap { map, values: 8 }).unwrap();
    let reader = disk.open("a", OpenMode::Read).unwrap().map_shared(8).unwrap();
    let thread = std::thread::spawn(move || {
        for write in 0..WRITES {
            written.store(3, if write % 2 == 0 { u64::MAX } else { 0 }).unwrap();
        }
        written.store(3, 7).unwrap();
        written.store(8, 1).unwrap();
        assert_eq!((written.load(3), written.load(8)), (7, 0));
    });
    let mut reads = 0_u64;
    loop {
        match reader.load(3) {
            0 | u64::MAX => reads += 1,
            7 => break,
            torn => panic!("{torn:#x} after {reads} reads"),
        }
    }
    thread.join().unwrap();
}

#[test]
fn a_lock_is_held_once_until_it_is_dropped() {
    let (_dir, disk) = disk();
    assert!(!disk.is_locked("lock", 0).unwrap());
    assert_eq!(disk.len("lock").unwrap(), None);
    let held = disk.lock("lock", 0).unwrap().unwrap();
    assert!(disk.lock("lock", 0).unwrap().is_none());
    let other = disk.lock("lock", 1).unwrap().unwrap();
    assert!(disk.is_locked("lock", 0).unwrap() && disk.is_locked("lock", 1).unwrap());
    // Opening and closing the file elsewhere in the process drops a plain POSIX lock, but not this one.
    drop(disk.open("lock", OpenMode::Write).unwrap());
    assert!(disk.is_locked("lock", 0).unwrap());
    drop(held);
    assert!(!disk.is_locked("lock", 0).unwrap() && disk.is_locked("lock", 1).unwrap());
    drop(other);
    assert!(disk.lock("lock", 1).unwrap().is_some());
}

/// Returns a lock and a copy of its descriptor, as a fork leaves one in the child.
fn lock_and_copy(disk: &Disk) -> (DiskLock, OwnedFd) {
    let file = disk.open_file("open", "lock", OFlags::RDWR | OFlags::CREATE).unwrap().unwrap();
    let copy = file.try_clone().unwrap();
    (DiskLock::take(file, 0).unwrap().unwrap(), copy)
}

#[test]
fn a_dropped_lock_is_free_although_a_copy_of_its_descriptor_is_open() {
    let (_dir, disk) = disk();
    let (lock, _copy) = lock_and_copy(&disk);
    assert!(disk.is_locked("lock", 0).unwrap());
    drop(lock);
    assert!(!disk.is_locked("lock", 0).unwrap());
}

/// The test uses a process of its own, because a forked child closes the locks of its whole process.
#[test]
fn a_forked_child_keeps_no_lock_of_a_parent_that_was_killed() {
    let this = std::env::current_exe().unwrap();
    let name = "storage::disk::tests::closes_its_locks_as_a_forked_child";
    let ended = std::process::Command::new(this).args([name, "--exact", "--ignored"]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

#[test]
#[ignore = "what the test above starts"]
fn closes_its_locks_as_a_forked_child() {
    let (_dir, disk) = disk();
    // Here the copy is the descriptor of the parent. Closing it is what the system does when the parent is killed.
    let (lock, of_parent) = lock_and_copy(&disk);
    close_in_child();
    assert!(disk.is_locked("lock", 0).unwrap(), "the parent has its lock while it lives");
    drop(of_parent);
    assert!(!disk.is_locked("lock", 0).unwrap());
    std::mem::forget(lock);
}

/// A full disk ends a process that stores through a map by a signal, where the file system copies on write.
#[test]
fn values_are_stored_through_a_map_only_where_that_needs_no_space() {
    assert!([EXT_MAGIC, TMPFS_MAGIC].into_iter().all(keeps_its_blocks));
    assert!(![BTRFS_MAGIC, XFS_MAGIC, 0].into_iter().any(keeps_its_blocks));
}

#[test]
fn a_store_directory_is_made_with_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    assert!(Disk::open(&root).is_err());
    let disk = Disk::create(&root).unwrap();
    assert_eq!(disk.root(), root);
    assert_eq!(std::fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
    Disk::create(&root).unwrap();
    assert!(Disk::create(&root.join("a/b")).is_err());
}

/// Two machines would each see the lock as free, or the socket as dead.
#[test]
fn network_file_systems_are_told_from_local_ones() {
    for (magic, kind) in [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x0102_1997, "9p"), (0x6573_5546, "FUSE")] {
        assert_eq!(super::network_kind(magic), Some(kind));
    }
    for local in [super::EXT_MAGIC, super::TMPFS_MAGIC, 0x9123_683E, 0x5846_5342, 0x794C_7630] {
        assert_eq!(super::network_kind(local), None, "{local:#x}");
    }
}
