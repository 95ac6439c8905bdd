//! The handle by which a sender recalls a message that waits for its time.
//!
//! In:     the message's topic, time and unique id, and the broker's name.
//! Out:    RocketMQ's text: `v1 TOPIC BROKER MILLISECONDS ID`, in URL-safe base64; and the message again.
//! Always: a handle names a message, and proves nothing about its owner.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::base::error::{Error, Result};

const VERSION: &str = "v1";
/// Java writes the padding, and reads a text without it, too.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a handle names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecallHandle {
    /// The real topic.
    pub topic: String,
    /// The name of the broker, by which RocketMQ's clients find its address.
    pub broker_name: String,
    /// When the message is due, in milliseconds since the epoch.
    pub due_ms: i64,
    /// Its unique id.
    pub unique_id: String,
}

impl RecallHandle {
    /// Returns the text.
    pub fn encode(&self) -> String {
        let Self { topic, broker_name, due_ms, unique_id } = self;
        BASE64.encode(format!("{VERSION} {topic} {broker_name} {due_ms} {unique_id}"))
    }

    /// Reads a text. Fails with `InvalidMessage` for another one.
    pub fn decode(text: &str) -> Result<Self> {
        let decoded = BASE64.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let found = decoded.as_deref().and_then(|decoded| {
            let mut words = decoded.split(' ');
            (words.next()? == VERSION).then_some(())?;
            let (topic, broker_name) = (words.next()?.to_owned(), words.next()?.to_owned());
            let (due_ms, unique_id) = (words.next()?.parse().ok()?, words.next()?.to_owned());
            Some(Self { topic, broker_name, due_ms, unique_id })
        });
        found.ok_or_else(|| Error::InvalidMessage {
            what: format!("{text:?} is not a recall handle\nhint: the result of a send has it, if the message waits"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_that_of_rocketmq() {
        let handle = RecallHandle {
            topic: "orders".into(),
            broker_name: "broker-a".into(),
            due_ms: 1_700_000_000_123,
            unique_id: "01D94C04E9A3B8C75C07B2E5C800000000".into(),
        };
        // What Java's `Base64.getUrlEncoder` makes of it.
        let text = "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDAxMjMgMDFEOTRDMDRFOUEzQjhDNzVDMDdCMkU1QzgwMDAwMDAwMA==";
        assert_eq!(handle.encode(), text);
        assert_eq!(RecallHandle::decode(text).unwrap(), handle);
        assert_eq!(RecallHandle::decode(text.trim_end_matches('=')).unwrap(), handle);
    }

    #[test]
    fn other_texts_are_no_handles() {
        let with = |text: &str| BASE64.encode(text);
        for text in ["", "x", "é", &with("v1"), &with("v2 a b 1 c"), &with("v1 a b c d"), &with("v1 a b 1")] {
            let refused = RecallHandle::decode(text).unwrap_err();
            assert!(matches!(refused, Error::InvalidMessage { .. }), "{text:?}");
        }
    }
}
