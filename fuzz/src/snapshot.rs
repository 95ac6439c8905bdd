//! Snapshots: any bytes, also with the CRC that they should have; what is read is written and read again.

use txstore::index::timed::Waiting;
use txstore::recovery::snapshot::Snapshot;
use txstore::transaction::table::Table;

/// Magic and version, then the CRC, then what it covers.
const CRC_AT: usize = 12;
const HEADER: usize = CRC_AT + 4;

/// The input is a snapshot's bytes.
pub fn run(input: &[u8]) {
    let _ = Snapshot::decode(input);
    // The empty one knows the magic and the version.
    let mut bytes = input.to_vec();
    let empty = empty().encode(&Table::new(0).freeze(), 0);
    bytes.resize(bytes.len().max(HEADER), 0);
    bytes[..CRC_AT].copy_from_slice(&empty[..CRC_AT]);
    let crc = crc(&bytes[HEADER..]);
    bytes[CRC_AT..HEADER].copy_from_slice(&crc.to_le_bytes());
    let Some(found) = Snapshot::decode(&bytes) else { return };
    let encoded = found.encode(&found.table.freeze(), 0);
    let again = Snapshot::decode(&encoded).expect("what was encoded");
    assert_eq!((again.position, again.anchor, &again.index), (found.position, found.anchor, &found.index));
    assert_eq!((again.table.len(), again.queues.len()), (found.table.len(), found.queues.len()));
    assert_eq!(again.table.decided, found.table.decided);
    assert_eq!(again.encode(&again.table.freeze(), 0), encoded, "the second encoding equals the first");
}

fn empty() -> Snapshot {
    Snapshot {
        position: 0,
        anchor: None,
        newest_store_ms: 0,
        queues: Vec::new(),
        index: None,
        table: Table::new(0),
        timed: Waiting::default(),
    }
}

/// CRC-32 as `java.util.zip.CRC32` computes it: the engine's own is masked for records.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0xEDB8_8320 })
    })
}
