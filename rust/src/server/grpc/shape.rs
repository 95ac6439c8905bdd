//! Counts the parts of a request before it is decoded, because an empty part takes two bytes on the wire and hundreds in
//! memory.
//!
//! In:     a request's bytes; where its kind has parts within parts.
//! Out:    the number of its parts; a refusal of too many.
//! Always: reads no further than the parts that are decoded, and nothing within bodies and texts.

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tonic::Status;

/// The most parts of a request. A producer's settings name 1,000 topics; no other request has as many.
const PARTS_MAX: usize = 4_096;
/// The memory that a part takes at most, in bytes, without its text.
pub(super) const PART_COST: usize = 512;

/// Where a message has messages with parts of their own: their tags, and how those are.
pub(super) struct Shape(pub(super) &'static [(u32, Shape)]);

const FLAT: Shape = Shape(&[]);
const ENDPOINTS: Shape = Shape(&[(2, FLAT)]);
const MESSAGE: Shape = Shape(&[(2, FLAT), (3, FLAT)]);
const SETTINGS: Shape = Shape(&[
    (2, ENDPOINTS),
    (3, Shape(&[(2, FLAT), (3, FLAT)])),
    (5, FLAT),
    (6, FLAT),
    (8, Shape(&[(2, ENDPOINTS)])),
    (9, FLAT),
]);

/// Returns where the request of an RPC has parts within parts.
pub(super) fn of(rpc: &str) -> &'static Shape {
    match rpc {
        "SendMessage" => &Shape(&[(1, MESSAGE)]),
        "Telemetry" => &Shape(&[(2, SETTINGS), (5, Shape(&[(1, MESSAGE)]))]),
        "QueryRoute" => &Shape(&[(2, ENDPOINTS)]),
        "QueryAssignment" => &Shape(&[(3, ENDPOINTS)]),
        "ReceiveMessage" => &Shape(&[(2, Shape(&[(4, Shape(&[(3, ENDPOINTS)]))]))]),
        _ => &FLAT,
    }
}

/// Returns the number of parts of a request. Refuses one that has too many, or whose parts cannot be told apart.
pub(super) fn parts(shape: &Shape, bytes: &Bytes) -> Result<usize, Status> {
    let mut count = 0;
    count_parts(shape, bytes.clone(), &mut count)?;
    Ok(count)
}

fn count_parts(shape: &Shape, mut bytes: Bytes, count: &mut usize) -> Result<(), Status> {
    while bytes.has_remaining() {
        *count += 1;
        if *count > PARTS_MAX {
            return Err(Status::resource_exhausted(format!("the request has more than {PARTS_MAX} parts")));
        }
        let (tag, wire_type) = decode_key(&mut bytes).map_err(malformed)?;
        let inner = shape.0.iter().find(|(inner, _)| *inner == tag && wire_type == WireType::LengthDelimited);
        let Some((_, inner)) = inner else {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default()).map_err(malformed)?;
            continue;
        };
        let length = usize::try_from(decode_varint(&mut bytes).map_err(malformed)?).unwrap_or(usize::MAX);
        if length > bytes.remaining() {
            return Err(Status::internal("the request is malformed: a part is longer than the request"));
        }
        count_parts(inner, bytes.split_to(length), count)?;
    }
    Ok(())
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` passes it.
fn malformed(error: prost::DecodeError) -> Status {
    Status::internal(format!("the request is malformed: {error}"))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::wire::{self, Message, SystemProperties};
    use super::*;

    fn parts_of(rpc: &str, request: &impl prost::Message) -> Option<usize> {
        parts(of(rpc), &request.encode_to_vec().into()).ok()
    }

    #[test]
    fn empty_parts_are_counted_before_they_take_memory() {
        let sending = |count| wire::SendMessageRequest { messages: vec![Message::default(); count] };
        assert_eq!(parts_of("SendMessage", &sending(3)), Some(3));
        assert_eq!(parts_of("SendMessage", &sending(PARTS_MAX)), Some(PARTS_MAX));
        assert_eq!(parts_of("SendMessage", &sending(PARTS_MAX + 1)), None);
        let entries = vec![wire::AckMessageEntry::default(); PARTS_MAX + 1];
        assert_eq!(parts_of("AckMessage", &wire::AckMessageRequest { entries, ..Default::default() }), None);
    }

    #[test]
    fn parts_within_parts_are_counted_and_bodies_are_not() {
        let system = SystemProperties { keys: vec![String::new(); PARTS_MAX], ..Default::default() };
        let message = Message { system_properties: Some(system), ..Default::default() };
        assert_eq!(parts_of("SendMessage", &wire::SendMessageRequest { messages: vec![message] }), None);
        let body = wire::SendMessageRequest { messages: vec![Message::default(); 2 * PARTS_MAX] }.encode_to_vec();
        let message = Message { body: body.into(), ..Default::default() };
        assert_eq!(parts_of("SendMessage", &wire::SendMessageRequest { messages: vec![message] }), Some(2));
    }

    #[test]
    fn parts_that_cannot_be_told_apart_are_refused() {
        for bytes in [&b"\x0a"[..], b"\x0a\x05ab", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0f"] {
            assert!(parts(of("SendMessage"), &Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
    }
}
