//! Answers a client's settings with the server's values.
//!
//! In:     what a client says of itself.
//! Out:    the same, with limits, waits and retries of this server.
//! Always: every value that some client needs is set: without one of them, clients of some languages do not start.

use super::consumers;
use super::status::{self, Refused};
use super::wire::{
    Backoff, CustomizedBackoff, Duration, ExponentialBackoff, Metric, PubSub, RetryPolicy, Settings, client_type,
};
use crate::base::names;
use crate::server::tables::GroupEntry;

/// How often a producer sends a message in all.
const SENDS_MAX: i32 = 3;
/// How often a message is delivered: once, and sixteen retries.
const DELIVERIES_MAX: i32 = 17;
/// The most messages of one receive.
pub(super) const RECEIVED_MAX: i32 = 32;
/// How long a receive waits for messages, in milliseconds.
pub(super) const POLLING_MS: u32 = 20_000;
/// The waits before a message is delivered again, in milliseconds.
const RETRIES_MS: [u32; 16] = [
    10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000, 600_000, 1_200_000,
    1_800_000, 3_600_000, 7_200_000,
];

/// Returns the settings to answer. Refuses kinds of clients that are not served.
pub(super) fn answer(mut said: Settings, body_max: u32) -> Result<Settings, Refused> {
    let (wanted, retries) = match &mut said.pub_sub {
        Some(PubSub::Publishing(publishing)) => {
            publishing.max_body_size = i32::try_from(body_max).unwrap_or(i32::MAX);
            publishing.validate_message_type = true;
            (&[client_type::PRODUCER][..], of_producer())
        }
        Some(PubSub::Subscription(subscription)) => {
            subscription.fifo = Some(false);
            subscription.receive_batch_size = Some(RECEIVED_MAX);
            subscription.long_polling_timeout = Some(Duration::from_millis(POLLING_MS));
            (&[client_type::PUSH_CONSUMER, client_type::SIMPLE_CONSUMER][..], of_consumer())
        }
        None => return Err(unserved("neither those of a producer nor those of a consumer")),
    };
    if !said.client_type.is_some_and(|kind| wanted.contains(&kind)) {
        return Err(unserved(&format!("client type {:?}", said.client_type.unwrap_or_default())));
    }
    said.backoff_policy = Some(retries);
    said.metric = Some(Metric { on: false, endpoints: None });
    Ok(said)
}

/// Sets the values of a consumer's group.
pub(super) fn set_group(answer: &mut Settings, group: GroupEntry) {
    if let Some(PubSub::Subscription(subscription)) = &mut answer.pub_sub {
        subscription.fifo = Some(group.fifo);
    }
    if let Some(policy) = &mut answer.backoff_policy {
        policy.max_attempts = i32::try_from(group.retries_max).unwrap_or(i32::MAX).saturating_add(1);
    }
}

/// Replaces a consumer's waits by ones that grow by a factor, which is all that Node's client understands: with a list it
/// asks for a message again at once, and buries one of an ordered group after its first failure.
pub(super) fn set_growing_waits(answer: &mut Settings) {
    if let (Some(PubSub::Subscription(_)), Some(policy)) = (&answer.pub_sub, &mut answer.backoff_policy) {
        let [initial, .., max] = RETRIES_MS.map(Duration::from_millis);
        let backoff = ExponentialBackoff { initial: Some(initial), max: Some(max), multiplier: 2.0 };
        policy.strategy = Some(Backoff::Exponential(backoff));
    }
}

/// Returns the group of a consumer's settings. Refuses a name that is not accepted.
pub(super) fn group(said: &Settings) -> Result<Option<&str>, Refused> {
    let Some(PubSub::Subscription(subscription)) = &said.pub_sub else { return Ok(None) };
    subscription.group.as_ref().map(|group| consumers::group_name(Some(group))).transpose()
}

/// Returns the topics to which a producer's settings say that it publishes, without those that cannot be groups.
pub(super) fn published(said: &Settings) -> Vec<String> {
    let Some(PubSub::Publishing(publishing)) = &said.pub_sub else { return Vec::new() };
    let topics = publishing.topics.iter().map(|topic| topic.name.clone());
    topics.filter(|topic| names::validate_group(topic).is_ok()).collect()
}

fn of_producer() -> RetryPolicy {
    let (initial, max) = (Duration::from_millis(10), Duration::from_millis(1_000));
    let backoff = ExponentialBackoff { initial: Some(initial), max: Some(max), multiplier: 2.0 };
    RetryPolicy { max_attempts: SENDS_MAX, strategy: Some(Backoff::Exponential(backoff)) }
}

fn of_consumer() -> RetryPolicy {
    let next = RETRIES_MS.into_iter().map(Duration::from_millis).collect();
    RetryPolicy { max_attempts: DELIVERIES_MAX, strategy: Some(Backoff::Customized(CustomizedBackoff { next })) }
}

fn unserved(what: &str) -> Refused {
    let message = format!("the settings are {what}: producers, push consumers and simple consumers are served");
    Refused::new(status::UNRECOGNIZED_CLIENT_TYPE, message)
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Publishing, Resource, Subscription};
    use super::*;

    fn settings(kind: i32, pub_sub: Option<PubSub>) -> Settings {
        Settings { client_type: Some(kind), pub_sub, ..Settings::default() }
    }

    #[test]
    fn a_producer_gets_its_limits_and_keeps_what_it_said() {
        let topic = Resource { resource_namespace: "ns".into(), name: "orders".into() };
        let said = Publishing { topics: vec![topic.clone()], ..Publishing::default() };
        let said = settings(client_type::PRODUCER, Some(PubSub::Publishing(said)));
        assert_eq!(published(&said), ["orders"]);
        let answer = answer(said, 4 << 20).unwrap();
        let Some(PubSub::Publishing(publishing)) = answer.pub_sub else { panic!("{answer:?}") };
        assert_eq!((publishing.topics, publishing.max_body_size), (vec![topic], 4 << 20));
        let policy = answer.backoff_policy.unwrap();
        assert!(policy.max_attempts == 3 && matches!(policy.strategy, Some(Backoff::Exponential(_))));
        assert_eq!(answer.metric.map(|metric| metric.on), Some(false));
    }

    #[test]
    fn consumers_get_waits_and_other_kinds_are_refused() {
        let subscription = || Some(PubSub::Subscription(Subscription::default()));
        for kind in [client_type::PUSH_CONSUMER, client_type::SIMPLE_CONSUMER] {
            let answer = answer(settings(kind, subscription()), 1).unwrap();
            let Some(PubSub::Subscription(said)) = answer.pub_sub else { panic!("{answer:?}") };
            assert_eq!((said.receive_batch_size, said.fifo), (Some(32), Some(false)));
            let policy = answer.backoff_policy.unwrap();
            let Some(Backoff::Customized(waits)) = policy.strategy else { panic!("{policy:?}") };
            assert_eq!((policy.max_attempts, waits.next.len()), (17, 16));
        }
        for kind in [0, 1, 4, 5, 6] {
            assert_eq!(answer(settings(kind, subscription()), 1).unwrap_err().code, status::UNRECOGNIZED_CLIENT_TYPE);
        }
        assert!(answer(settings(client_type::PRODUCER, None), 1).is_err());
    }
}
