//! Which directory is a store, and how large its files are, as far as the directory and the settings tell.

use crate::recovery::log_view::directory::{consume_queue_file_size, log_file_size, look};
use crate::storage::memory::Memory;
use crate::storage::settings::{OwnRange, Settings};
use crate::storage::{OpenMode, Storage};

/// Returns a directory with files of these lengths. A name that ends with a slash is a directory.
fn directory(files: &[(&str, u64)]) -> Memory {
    let memory = Memory::new();
    for (name, length) in files {
        for (at, _) in name.match_indices('/') {
            memory.create_dir(&name[..at]).unwrap();
        }
        if !name.ends_with('/') {
            memory.open(name, OpenMode::Create).unwrap().set_len(*length).unwrap();
        }
    }
    memory
}

fn remembered(size: u64, is_open: bool) -> Settings {
    let range = OwnRange { start: 0, end: (!is_open).then_some(100), crc: false };
    Settings {
        commit_log_file_size: Some(size),
        consume_queue_file_size: Some(size),
        ranges: vec![range],
        ..Settings::default()
    }
}

#[test]
fn a_directory_with_a_commit_log_is_a_store_and_one_with_other_contents_is_none() {
    assert!(look(&directory(&[("commitlog/", 0), ("photos/", 0)])).unwrap());
    for ours in [&[][..], &["lock", "abort", "checkpoint", "txstore/", "config/", "index/", "consumequeue/"]] {
        let files: Vec<_> = ours.iter().map(|name| (*name, 0)).collect();
        assert!(!look(&directory(&files)).unwrap(), "{ours:?}");
    }
    for (other, said) in
        [("commitlog", "\"commitlog\""), ("photos/", "\"photos\""), ("dledger-n0/", "DLedger"), ("locks", "\"locks\"")]
    {
        let error = look(&directory(&[("lock", 0), (other, 0)])).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn the_size_of_a_log_file_is_that_of_the_files_unless_one_has_the_remembered_size() {
    const FIRST: &str = "commitlog/00000000000000000000";
    const SECOND: &str = "commitlog/00000000000000004096";
    for (files, settings, expected) in [
        (&[][..], None, None),
        (&[], Some(remembered(8_192, false)), Some(8_192)),
        (&[(FIRST, 4_096)], None, Some(4_096)),
        (&[(FIRST, 4_096)], Some(remembered(8_192, false)), Some(4_096)),
        (&[(FIRST, 4_096), (SECOND, 8_192)], Some(remembered(8_192, false)), Some(8_192)),
        // A crash left an empty file.
        (&[(FIRST, 0), (SECOND, 4_096)], None, Some(4_096)),
        // txstore has not closed the store, so a file with another length is one whose length was lost.
        (&[(FIRST, 4_096)], Some(remembered(8_192, true)), Some(8_192)),
    ] {
        assert_eq!(log_file_size(&directory(files), settings.as_ref()).unwrap(), expected, "{files:?} {settings:?}");
    }
}

#[test]
fn the_size_of_a_queue_file_is_that_of_the_first_queue_unless_one_has_the_remembered_size() {
    const FIRST: &str = "consumequeue/orders/0/00000000000000000000";
    const SECOND: &str = "consumequeue/orders/1/00000000000000000000";
    for (files, settings, expected) in [
        (&[][..], None, None),
        (&[], Some(remembered(200, false)), Some(200)),
        (&[(FIRST, 100), (SECOND, 200)], None, Some(100)),
        (&[(FIRST, 100), (SECOND, 200)], Some(remembered(200, false)), Some(200)),
        (&[(FIRST, 100), (SECOND, 200)], Some(remembered(400, false)), Some(100)),
        (&[(FIRST, 100)], Some(remembered(200, true)), Some(200)),
        // A damaged file, or a queue without one, tells nothing.
        (&[(FIRST, 101), (SECOND, 200)], None, Some(200)),
        (&[("consumequeue/orders/0/", 0), (SECOND, 200)], Some(remembered(400, false)), Some(200)),
        (&[("consumequeue/orders/0/", 0)], Some(remembered(400, false)), Some(400)),
    ] {
        let found = consume_queue_file_size(&directory(files), settings.as_ref()).unwrap();
        assert_eq!(found, expected, "{files:?} {settings:?}");
    }
}
