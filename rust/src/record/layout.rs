//! Defines the offset of each field of a record, and the bits of its sysflag.
//!
//! In:     nothing.
//! Out:    constants, each computed from the previous one (docs/internals/format.md, "Message record").
//! Always: big-endian. Hosts are 8 bytes (IPv4) or 20 (IPv6), so fields after the born host move with the sysflag.
//!
//! ```text
//!  byte (IPv4)  bytes   field
//!  0            4       total size, of the whole record
//!  4            4       magic
//!  8            4       body CRC, & 0x7FFFFFFF
//!  12           4       queue id
//!  16           4       flag, the application's own
//!  20           8       queue offset, in entries
//!  28           8       physical offset, the record's own
//!  36           4       sysflag
//!  40           8       born timestamp
//!  48           8 | 20  born host: IPv4 4 or IPv6 16, port 4
//!  56           8       store timestamp
//!  64           8 | 20  store host
//!  72           4       reconsume times
//!  76           8       prepared transaction offset
//!  84           4 + n   body
//!  88 + n       1 + n   topic (V2: 2 + n)
//!  …            2 + n   properties; with a record CRC their last 20 bytes are
//!                       __CRC32# \x01 ten digits, least significant first \x02
//!
//!  blank        4       total size: all that remains of the file
//!               4       MAGIC_BLANK, then anything
//! ```

/// Magic of a record whose topic length takes one byte.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic of a record whose topic length takes two bytes.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Magic of the blank record that fills a file's end.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;

/// Offset of the total size.
pub const TOTAL_SIZE_AT: usize = 0;
/// Offset of the magic.
pub const MAGIC_AT: usize = TOTAL_SIZE_AT + 4;
/// Offset of the body CRC.
pub const BODY_CRC_AT: usize = MAGIC_AT + 4;
/// Offset of the queue id.
pub const QUEUE_ID_AT: usize = BODY_CRC_AT + 4;
/// Offset of the application's flag.
pub const FLAG_AT: usize = QUEUE_ID_AT + 4;
/// Offset of the queue offset.
pub const QUEUE_OFFSET_AT: usize = FLAG_AT + 4;
/// Offset of the record's own physical offset.
pub const PHYSICAL_OFFSET_AT: usize = QUEUE_OFFSET_AT + 8;
/// Offset of the sysflag.
pub const SYS_FLAG_AT: usize = PHYSICAL_OFFSET_AT + 8;
/// Offset of the born timestamp.
pub const BORN_TIMESTAMP_AT: usize = SYS_FLAG_AT + 4;
/// Offset of the born host.
pub const BORN_HOST_AT: usize = BORN_TIMESTAMP_AT + 8;

/// Bytes of an IPv4 host with its port.
pub const HOST_V4_LEN: usize = 4 + 4;
/// Bytes of an IPv6 host with its port.
pub const HOST_V6_LEN: usize = 16 + 4;

/// Returns the offset of the store timestamp under this sysflag.
pub const fn store_timestamp_at(sys_flag: i32) -> usize {
    BORN_HOST_AT + host_len(sys_flag & SYS_BORN_HOST_V6 != 0)
}

/// Returns the offset of the store host under this sysflag.
pub const fn store_host_at(sys_flag: i32) -> usize {
    store_timestamp_at(sys_flag) + 8
}

/// Returns the offset of the reconsume times under this sysflag.
pub const fn reconsume_times_at(sys_flag: i32) -> usize {
    store_host_at(sys_flag) + host_len(sys_flag & SYS_STORE_HOST_V6 != 0)
}

/// Returns the offset of the prepared transaction offset under this sysflag.
pub const fn prepared_transaction_offset_at(sys_flag: i32) -> usize {
    reconsume_times_at(sys_flag) + 4
}

/// Returns the offset of the body's length under this sysflag.
pub const fn body_len_at(sys_flag: i32) -> usize {
    prepared_transaction_offset_at(sys_flag) + 8
}

/// Returns the offset of the body under this sysflag: the length of everything before it.
pub const fn body_at(sys_flag: i32) -> usize {
    body_len_at(sys_flag) + 4
}

/// Returns how many bytes an address takes, with its port.
pub const fn host_len(v6: bool) -> usize {
    if v6 { HOST_V6_LEN } else { HOST_V4_LEN }
}

/// The longest head: both hosts are IPv6.
pub const HEAD_MAX: usize = body_at(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6);
/// The smallest size of a record: IPv4 hosts, and an empty body, topic and properties.
pub const RECORD_MIN: usize = body_at(0) + 1 + 2;
/// The smallest blank record: its size and its magic. This much space always remains after a file's last record.
pub const BLANK_MIN: usize = MAGIC_AT + 4;

/// The longest properties: their length is a signed 16-bit integer.
pub const PROPERTIES_MAX: usize = 32_767;
/// The longest topic of a V1 record: its length is a signed 8-bit integer.
pub const TOPIC_V1_MAX: usize = 127;
/// The longest topic of a V2 record: its length is a signed 16-bit integer.
pub const TOPIC_V2_MAX: usize = 32_767;
/// The longest record: its size is a signed 32-bit integer.
pub const RECORD_MAX: u32 = 0x7FFF_FFFF;

/// The beginning of the whole-record CRC's property.
pub const CRC_PROPERTY_HEAD: &[u8; 9] = b"__CRC32#\x01";
/// Decimal digits of the whole-record CRC.
pub const CRC_DIGITS: usize = 10;
/// Bytes of the whole-record CRC's property.
pub const CRC_PROPERTY_LEN: usize = CRC_PROPERTY_HEAD.len() + CRC_DIGITS + 1;
/// Both CRCs lose their top bit, because Java keeps them in a non-negative int.
pub const CRC_MASK: u32 = 0x7FFF_FFFF;

/// Ends a property's name.
pub const NAME_END: u8 = 1;
/// Ends a property's value.
pub const VALUE_END: u8 = 2;

/// Sysflag: the body is compressed.
pub const SYS_COMPRESSED: i32 = 0x1;
/// Sysflag: the message has several tags.
pub const SYS_MULTI_TAGS: i32 = 0x2;
/// Sysflag: the two bits of the transaction type.
pub const SYS_TRANSACTION_MASK: i32 = 0xC;
/// Sysflag, transaction bits: prepared.
pub const SYS_PREPARED: i32 = 0x4;
/// Sysflag, transaction bits: committed.
pub const SYS_COMMIT: i32 = 0x8;
/// Sysflag, transaction bits: rolled back.
pub const SYS_ROLLBACK: i32 = 0xC;
/// Sysflag: the born host is IPv6.
pub const SYS_BORN_HOST_V6: i32 = 0x10;
/// Sysflag: the store host is IPv6.
pub const SYS_STORE_HOST_V6: i32 = 0x20;
/// Sysflag: the bits that name the compression.
pub const SYS_COMPRESSION_MASK: i32 = 0x700;
/// Sysflag, compression bits: LZ4 frame.
pub const SYS_LZ4: i32 = 0x100;
/// Sysflag, compression bits: ZSTD.
pub const SYS_ZSTD: i32 = 0x200;
/// Sysflag, compression bits: ZLIB; no bits mean it too.
pub const SYS_ZLIB: i32 = 0x300;

const _: () = assert!(BORN_HOST_AT == 48 && store_timestamp_at(0) == 56 && body_at(0) == 88 && HEAD_MAX == 112);
const _: () = assert!(CRC_PROPERTY_LEN == 20 && BLANK_MIN == 8 && RECORD_MIN > BLANK_MIN);
const _: () = assert!(SYS_PREPARED | SYS_COMMIT == SYS_TRANSACTION_MASK && SYS_ROLLBACK == SYS_TRANSACTION_MASK);
