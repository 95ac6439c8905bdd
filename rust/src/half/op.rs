//! Op messages: which half queue offsets are finished.
//!
//! In: half queue offsets. Out: op bodies: the offsets in decimal, each followed by a comma (`0,4,5,`).
//! Always: a body is at most as long as the option says and names at least one half. Not here: who finished and how.

use crate::record::properties::{self, TAGS, WAIT};

/// The tag of an op message (`TransactionalMessageUtil.REMOVE_TAG`).
pub const REMOVE_TAG: &str = "d";

/// The properties of an op message, as a broker writes them.
pub fn op_properties() -> Vec<u8> {
    let mut text = Vec::new();
    properties::push(&mut text, WAIT, "true");
    properties::push(&mut text, TAGS, REMOVE_TAG);
    text
}

/// Bodies that together name every offset.
pub fn op_bodies(half_queue_offsets: &[u64], size_max: usize) -> Vec<String> {
    let mut bodies: Vec<String> = Vec::new();
    for offset in half_queue_offsets {
        let name = format!("{offset},");
        match bodies.last_mut() {
            Some(body) if body.len() + name.len() <= size_max => body.push_str(&name),
            _ => bodies.push(name),
        }
    }
    bodies
}

/// The offsets that a body names; what is no number is passed over, as a broker does.
pub fn parse_op_body(body: &[u8]) -> impl Iterator<Item = u64> {
    body.split(|byte| *byte == b',').filter_map(|name| std::str::from_utf8(name).ok()?.trim().parse().ok())
}
