//! Receipt handles: what a client sends back to acknowledge a message.
//!
//! In:     a lease, and the group and topic of the request.
//! Out:    a text that is opaque to clients; the lease again.
//! Always: a handle is valid only in the process that made it, and only for its group and topic. A client cannot make
//!         one itself.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use subtle::ConstantTimeEq;

use crate::base::error::{Error, Result};
use crate::base::units::QueueId;

const LEASE_BYTES: usize = 4 + 8 + 8;
/// The length of the signature: half of SHA-256.
const SIGNATURE_BYTES: usize = 16;
/// The queue id that means the group's retry topic.
const RETRY_QUEUE: i32 = -1;

/// What a handle identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The queue of the topic. `None`: the queue of the group's retry topic.
    pub queue_id: Option<QueueId>,
    /// The message's queue offset there.
    pub queue_offset: u64,
    /// The number of the lease.
    pub number: u64,
}

/// Makes and reads the handles of one process.
#[derive(Debug)]
pub struct Handles {
    key: hmac::Key,
}

impl Handles {
    /// Creates a random key. Fails if the system has no randomness.
    pub fn new() -> Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let failed =
            |_| Error::from_io("read randomness for", "receipt handles", std::io::ErrorKind::Unsupported.into());
        key.map(|key| Self { key }).map_err(failed)
    }

    /// Returns the handle of a lease.
    pub fn write(&self, group: &str, topic: &str, lease: Lease) -> String {
        let lease = to_bytes(lease);
        let signature = self.sign(group, topic, &lease);
        let signature = signature.as_ref().first_chunk::<SIGNATURE_BYTES>().map_or(&[][..], |first| first);
        BASE64_URL_SAFE_NO_PAD.encode([&lease, signature].concat())
    }

    /// Returns the lease of a handle, or `None` if this process did not make it for this group and topic.
    pub fn read(&self, group: &str, topic: &str, handle: &str) -> Option<Lease> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(handle).ok()?;
        let (lease, signature) = bytes.split_first_chunk::<LEASE_BYTES>()?;
        let signed = self.sign(group, topic, lease);
        let wanted = signed.as_ref().get(..SIGNATURE_BYTES)?;
        bool::from(wanted.ct_eq(signature)).then(|| of_bytes(lease))
    }

    fn sign(&self, group: &str, topic: &str, lease: &[u8; LEASE_BYTES]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [group.as_bytes(), b"\0", topic.as_bytes(), b"\0", lease] {
            context.update(part);
        }
        context.sign()
    }
}

fn to_bytes(lease: Lease) -> [u8; LEASE_BYTES] {
    let mut bytes = [0; LEASE_BYTES];
    let queue_id = lease.queue_id.map_or(RETRY_QUEUE, |queue_id| queue_id.0);
    let parts = [&queue_id.to_be_bytes()[..], &lease.queue_offset.to_be_bytes(), &lease.number.to_be_bytes()].concat();
    for (byte, part) in bytes.iter_mut().zip(parts) {
        *byte = part;
    }
    bytes
}

fn of_bytes(bytes: &[u8; LEASE_BYTES]) -> Lease {
    let [a, b, c, d, rest @ ..] = *bytes;
    let queue_id = i32::from_be_bytes([a, b, c, d]);
    let (offset, number) = (rest.first_chunk().copied(), rest.last_chunk().copied());
    Lease {
        queue_id: (queue_id != RETRY_QUEUE).then_some(QueueId(queue_id)),
        queue_offset: offset.map_or(0, u64::from_be_bytes),
        number: number.map_or(0, u64::from_be_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease { queue_id: Some(QueueId(3)), queue_offset: 1 << 40, number: 7 };

    #[test]
    fn a_handle_names_its_lease() {
        let handles = Handles::new().unwrap();
        for lease in [LEASE, Lease { queue_id: None, ..LEASE }, Lease { queue_id: Some(QueueId(0)), ..LEASE }] {
            let handle = handles.write("shipping", "orders", lease);
            assert_eq!(handles.read("shipping", "orders", &handle), Some(lease));
        }
    }

    #[test]
    fn a_handle_of_another_process_group_or_topic_is_unknown() {
        let handles = Handles::new().unwrap();
        let handle = handles.write("shipping", "orders", LEASE);
        assert_eq!(Handles::new().unwrap().read("shipping", "orders", &handle), None);
        assert_eq!(handles.read("billing", "orders", &handle), None);
        assert_eq!(handles.read("shipping", "payments", &handle), None);
        for wrong in ["", "a", &handle[1..], &handle[..handle.len() - 4], &format!("{handle}AAAA"), "ä"] {
            assert_eq!(handles.read("shipping", "orders", wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_changed_handle_is_unknown() {
        let handles = Handles::new().unwrap();
        let handle = handles.write("shipping", "orders", LEASE);
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&handle).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = BASE64_URL_SAFE_NO_PAD.encode(changed);
            assert_eq!(handles.read("shipping", "orders", &changed), None, "byte {at}");
        }
    }
}
