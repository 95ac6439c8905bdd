//! A list of files is without gaps, also while a writer adds files and removes others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{SegmentQueue, make_file_unsynced};
use crate::base::error::Error;
use crate::storage::Storage;
use crate::storage::disk::Disk;

const DIRECTORY: &str = "files";
const SIZE: u64 = 16;

#[test]
fn no_file_is_missing_in_a_list_made_while_a_writer_adds_and_removes_files() {
    const KEPT: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    disk.create_dir(DIRECTORY).unwrap();
    let path = |number: u64| format!("{DIRECTORY}/{:020}", number * SIZE);
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                make_file_unsynced(&disk, &path(number), SIZE).unwrap();
                if let Some(expired) = number.checked_sub(KEPT) {
                    disk.unlink(&path(expired)).unwrap();
                }
                number += 1;
            }
        });
        let gap = (0..3_000).find_map(|_| {
            let files = SegmentQueue::files(&disk, DIRECTORY).unwrap();
            // The writer has not yet set the length of the last one.
            let whole = files.iter().filter(|(_, file)| file.len > 0).map(|(base, _)| *base).collect::<Vec<_>>();
            let has_gap = whole.iter().zip(whole.iter().skip(1)).any(|(one, next)| one + SIZE != *next);
            has_gap.then_some(whole)
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(gap, None);
    });
}

#[test]
fn a_missing_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Disk::open(dir.path()).unwrap());
    disk.create_dir(DIRECTORY).unwrap();
    for base in [0, 2 * SIZE] {
        make_file_unsynced(disk.as_ref(), &format!("{DIRECTORY}/{base:020}"), SIZE).unwrap();
    }
    let error = SegmentQueue::open(disk, DIRECTORY, SIZE, true).unwrap_err();
    assert!(matches!(&error, Error::MissingFile { from, to, .. } if (from.0, to.0) == (SIZE, 2 * SIZE)), "{error}");
}
