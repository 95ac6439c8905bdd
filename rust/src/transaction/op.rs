//! Op messages: they name the half queue offsets of decided transactions.
//!
//! In:     half queue offsets.
//! Out:    op bodies: the offsets in decimal, each followed by a comma (`0,4,5,`).
//! Always: a body is at most as long as the option says and names at least one half.
//! Not here: the outcome and its source.

/// The tag of an op message (`TransactionalMessageUtil.REMOVE_TAG`).
pub const REMOVE_TAG: &str = "d";

/// The properties of an op message, as a broker writes them: `WAIT`, `TAGS`.
pub const OP_PROPERTIES: &[u8] = b"WAIT\x01true\x02TAGS\x01d\x02";

/// Writes as many offsets to `body` as one op message can hold. Returns their number, at least 1 if there are any.
pub fn fill_op_body(half_queue_offsets: &[u64], size_max: usize, body: &mut String) -> usize {
    body.clear();
    for (count, offset) in half_queue_offsets.iter().enumerate() {
        let before = body.len();
        body.push_str(itoa::Buffer::new().format(*offset));
        body.push(',');
        if body.len() > size_max && count > 0 {
            body.truncate(before);
            return count;
        }
    }
    half_queue_offsets.len()
}

/// Returns the offsets that a body names. Ignores text that is not a number, as a broker does.
pub fn parse_op_body(body: &[u8]) -> impl Iterator<Item = u64> {
    body.split(|byte| *byte == b',').filter_map(|name| std::str::from_utf8(name).ok()?.trim().parse().ok())
}
