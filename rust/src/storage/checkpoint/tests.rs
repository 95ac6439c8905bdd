//! The checkpoint's bytes, and files that are not checkpoints.

use super::*;
use crate::storage::disk::Disk;

#[test]
fn what_is_stored_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    assert_eq!(Checkpoint::load(&disk).unwrap(), None);
    let checkpoint = Checkpoint {
        physic_ms: 1_795_233_463_200,
        logics_ms: 2,
        index_ms: 3,
        master_flushed_offset: -1,
        confirm_physical_offset: 5,
    };
    Checkpoint::store(&disk, &checkpoint).unwrap();
    assert_eq!(Checkpoint::load(&disk).unwrap(), Some(checkpoint));
    let mut bytes = [1; 4_096];
    disk.open("checkpoint", OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..16], [0, 0, 1, 0xA1, 0xFC, 0x40, 0xBB, 0xA0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!((bytes[31], bytes[39], bytes[40]), (0xFF, 5, 0));
    assert_eq!(disk.len("checkpoint").unwrap(), Some(4_096));
}

#[test]
fn a_short_file_is_read_as_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path()).unwrap();
    let file = disk.open("checkpoint", OpenMode::Create).unwrap();
    for (len, is_one) in [(0, false), (39, false), (40, true)] {
        file.set_len(len).unwrap();
        assert_eq!(Checkpoint::load(&disk).unwrap().is_some(), is_one, "{len}");
    }
}
