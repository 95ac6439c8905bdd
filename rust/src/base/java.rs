//! Computes the Java hashes that RocketMQ's files hold.
//!
//! In:     text.
//! Out:    `String.hashCode` and the numbers made from it.
//! Always: computes over UTF-16 units with 32-bit wrap, as Java does.
//! Not here: where they are stored.

/// Powers of 31 from the 7th to the 0th: the weights of eight units.
const POWERS: [i32; 8] = [power(7), power(6), power(5), power(4), power(3), power(2), power(1), power(0)];
/// The factor that eight further units apply to the hash before them.
const POWER_OF_EIGHT: i32 = power(8);

const fn power(exponent: u32) -> i32 {
    31_i32.wrapping_pow(exponent)
}

/// Returns `text.hashCode()`.
pub fn hash_code(text: &str) -> i32 {
    extend_hash(0, text)
}

/// Returns the `hashCode` of a text that begins with a part whose hash is `hash` and continues with `text`.
pub fn extend_hash(hash: i32, text: &str) -> i32 {
    if text.is_ascii() {
        extend_ascii(hash, text.as_bytes())
    } else {
        text.encode_utf16().fold(hash, |hash, unit| step(hash, i32::from(unit)))
    }
}

/// Returns the tags code of a consume queue entry; 0 without tags.
pub fn tags_code(tags: Option<&str>) -> i64 {
    i64::from(tags.map_or(0, hash_code))
}

/// Returns the hash with which every key of a topic begins in the index: of `TOPIC#`.
pub fn topic_hash(topic: &str) -> i32 {
    extend_hash(hash_code(topic), "#")
}

/// Returns the hash of `TOPIC#KEY` in an index file.
pub fn index_hash(topic: &str, key: &str) -> u32 {
    index_hash_after(extend_hash(hash_code(topic), "#"), key)
}

/// Returns the same as `index_hash` from a known hash of `TOPIC#`.
pub fn index_hash_after(topic_hash_with_sharp: i32, key: &str) -> u32 {
    match extend_hash(topic_hash_with_sharp, key) {
        i32::MIN => 0,
        hash => hash.unsigned_abs(),
    }
}

/// Hashes eight units at once, because one by one each multiplication would wait for the previous one.
fn extend_ascii(hash: i32, bytes: &[u8]) -> i32 {
    let (blocks, rest) = bytes.as_chunks::<8>();
    let hash = blocks.iter().fold(hash, |hash, block| {
        let terms = block.iter().zip(POWERS).map(|(byte, power)| i32::from(*byte).wrapping_mul(power));
        terms.fold(hash.wrapping_mul(POWER_OF_EIGHT), i32::wrapping_add)
    });
    rest.iter().fold(hash, |hash, byte| step(hash, i32::from(*byte)))
}

const fn step(hash: i32, unit: i32) -> i32 {
    hash.wrapping_mul(31).wrapping_add(unit)
}

#[cfg(test)]
mod tests;
