//! Moves messages that were delivered too often: to the group's retry topic, at last to its dead letters.
//!
//! In:     a message that was taken.
//! Out:    a copy, and then the message's acknowledgement.
//! Always: the copy is as durable as any message that is sent, before the message counts as acknowledged. So a crash in
//!         between delivers it twice, and loses nothing. A move ends even if the client that caused it has gone. One of
//!         a message that was delivered in an earlier run is repeated by no later crash, because it may cause one.
//! Not here: which message moves (`pop`).

use std::sync::Arc;

use super::call::Call;
use super::status::{self, Refused};
use crate::base::clock::{Clock, SystemClock};
use crate::base::names::{DEAD_LETTER_PREFIX, RETRY_PREFIX};
use crate::base::units::QueueId;
use crate::record::RecordView;
use crate::record::properties::{DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, ORIGIN_MESSAGE_ID, RETRY_TOPIC};
use crate::server::pop::queue::Fate;
use crate::server::pop::reader::Reader;
use crate::server::pop::source::{Message, Source};
use crate::server::service::Service;
use crate::store::Copy;

/// How long messages stay invisible after their move has failed, in milliseconds.
const FAILED_MS: i64 = 1_000;

/// Moves messages. The first failure ends it; what has not moved is visible again soon.
pub(super) async fn move_all(
    call: &Call,
    reader: &Arc<Reader>,
    messages: Vec<(Arc<Source>, Message)>,
) -> Result<(), Refused> {
    let (call, reader) = (call.clone(), Arc::clone(reader));
    // A task of its own, because the request is dropped when its client cancels it.
    let moving = tokio::spawn(async move {
        let mut left = messages.iter();
        let (mut done, mut is_resumed) = (Ok(()), false);
        for (source, message) in left.by_ref() {
            match move_on(call.service(), &reader, source, message).await {
                Ok(was_delivered) => is_resumed |= was_delivered,
                Err(refused) => {
                    source.release(&[message.taken], SystemClock.monotonic_ms() + FAILED_MS);
                    done = Err(refused);
                    break;
                }
            }
        }
        for (source, message) in left {
            source.release(&[message.taken], SystemClock.monotonic_ms() + FAILED_MS);
        }
        if is_resumed {
            store_offsets(call.service()).await;
        }
        done
    });
    moving.await.unwrap_or_else(|error| Err(Refused::new(status::INTERNAL_SERVER_ERROR, error.to_string())))
}

/// Stores the offsets now, and not in some seconds.
async fn store_offsets(service: &Service) {
    let store = Arc::clone(&service.store);
    // After a failure they are stored in some seconds, and until then a crash repeats the moves.
    let _ = tokio::task::spawn_blocking(move || store.write_offsets()).await;
}

/// Copies a message to where it belongs now, and acknowledges it. Returns whether it was delivered in an earlier run.
async fn move_on(service: &Service, reader: &Reader, source: &Source, message: &Message) -> Result<bool, Refused> {
    let view = message.record.view()?;
    let is_dead = message.taken.fate == Fate::Bury;
    let prefix = if is_dead { DEAD_LETTER_PREFIX } else { RETRY_PREFIX };
    let topic = format!("{prefix}{}", reader.group);
    service.own_topic(&topic).await?;
    let properties = properties(&view, &reader.topic, is_dead);
    let copy = Copy {
        topic: &topic,
        queue_id: QueueId(0),
        delay_level: 0,
        reconsume_times: i32::try_from(message.taken.attempt).unwrap_or(i32::MAX),
        properties: &properties,
    };
    let written = service.store.append_copy_unacknowledged(view.physical_offset, &copy)?;
    service.acknowledged(written).await?;
    Ok(source.moved(&service.store, message.taken)?)
}

fn properties(view: &RecordView<'_>, topic: &str, is_dead: bool) -> Vec<(String, String)> {
    let origin = view.properties.get_str(ORIGIN_MESSAGE_ID).map_or_else(|| view.offset_message_id(), str::to_owned);
    let mut set = vec![(RETRY_TOPIC, topic.to_owned()), (ORIGIN_MESSAGE_ID, origin)];
    if is_dead {
        set.extend([(DLQ_ORIGIN_TOPIC, topic.to_owned()), (DLQ_ORIGIN_MESSAGE_ID, view.message_id())]);
    }
    set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
