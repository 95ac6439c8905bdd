//! Damage out of an input: bytes written over, files cut, removed, swapped and made, anywhere in a store.

use txstore::storage::memory::Memory;
use txstore::storage::{DirEntry, OpenMode, Storage};

use super::Input;

const DAMAGES_MAX: usize = 8;
/// Files that may be made: what a store has, what it may not have, and other people's.
const NAMES: [&str; 24] = [
    "abort",
    "checkpoint",
    "lock",
    "commitlog/!txstore-open",
    "commitlog/00000000000000000000",
    "commitlog/00000000000000004096",
    "commitlog/00000000000000008192",
    "commitlog/99999999999999999999",
    "commitlog/18446744073709551615",
    "commitlog/readme.txt",
    "config/consumerOffset.json",
    "config/consumerOffset.json.bak",
    "config/topics.json",
    "consumequeue/t0/0/00000000000000000000",
    "consumequeue/t0/0/00000000000000000160",
    "consumequeue/t0/0/18446744073709551600",
    "consumequeue/t0/-1/00000000000000000000",
    "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0/00000000000000000000",
    "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/1/00000000000000000000",
    "index/20260101000000000",
    "index/99999999999999999",
    "txstore/snapshot",
    "txstore/published",
    "txstore/settings.json",
];

/// Until the input ends.
pub(super) fn damage(memory: &Memory, input: &mut Input<'_>) {
    for _ in 0..DAMAGES_MAX {
        if input.is_empty() {
            return;
        }
        let (kind, which, at) = (input.byte(), input.byte(), u64::from(input.short()));
        let names = files(memory);
        let Some((path, bytes)) = names.get(usize::from(which) % names.len().max(1)) else { return };
        let made = NAMES[usize::from(which) % NAMES.len()];
        let length = bytes.len() as u64;
        // An error (a directory where a file should be) does not count as damage.
        let _ = match kind % 7 {
            0 | 1 => write(memory, path, at % length.max(1), input.text()),
            2 => memory.open(path, OpenMode::Write).and_then(|file| file.set_len(at % (length + 1))),
            3 => memory.unlink(path),
            4 => {
                names.get(usize::from(at as u8) % names.len()).map_or(Ok(()), |other| swap(memory, path, other, bytes))
            }
            5 => make(memory, made, 0, input.text()),
            _ => make(memory, made, at, input.text()),
        };
    }
}

fn write(memory: &Memory, path: &str, at: u64, bytes: &[u8]) -> txstore::base::error::Result<()> {
    memory.open(path, OpenMode::Write)?.write_at(bytes, at)
}

fn swap(memory: &Memory, path: &str, other: &(String, Vec<u8>), bytes: &[u8]) -> txstore::base::error::Result<()> {
    for (path, bytes) in [(path, &other.1[..]), (&other.0, bytes)] {
        let file = memory.open(path, OpenMode::Write)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
    }
    Ok(())
}

fn make(memory: &Memory, path: &str, length: u64, bytes: &[u8]) -> txstore::base::error::Result<()> {
    memory.create_dir(path.rsplit_once('/').map_or("", |(directory, _)| directory))?;
    let file = memory.open(path, OpenMode::Create)?;
    file.set_len(length)?;
    file.write_at(bytes, 0)
}

/// Every file with its bytes, sorted.
pub(super) fn files(memory: &Memory) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rooms = vec![String::new()];
    while let Some(room) = rooms.pop() {
        for DirEntry { name, is_dir, len } in memory.list(&room).unwrap().unwrap_or_default() {
            let path = if room.is_empty() { name } else { format!("{room}/{name}") };
            if is_dir {
                rooms.push(path);
            } else {
                let mut bytes = vec![0; len as usize];
                memory.open(&path, OpenMode::Read).unwrap().read_at(&mut bytes, 0).unwrap();
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}
