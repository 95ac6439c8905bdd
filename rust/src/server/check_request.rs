//! Creates the request that asks a producer about its transaction.
//!
//! In:     a pending half message.
//! Out:    `CHECK_TRANSACTION_STATE` with the message as its producer knows it.
//! Not here: which producer is asked, and when.

use crate::base::error::Result;
use crate::base::names::HALF_TOPIC;
use crate::record::{Draft, Position, encode};
use crate::remoting::codes::request;
use crate::remoting::command::{Command, ExtFields, FLAG_ONE_WAY};
use crate::store::StoredRecord;
use crate::transaction::HalfFacts;

/// Returns the request that checks a half message's transaction.
pub fn check_request(half: &StoredRecord, broker_name: &str) -> Result<Command> {
    let view = half.view()?;
    let facts = HalfFacts::of(&view);
    let id = facts.unique_id.unwrap_or_default();
    let mut check = Command::request(request::CHECK_TRANSACTION_STATE, 0);
    check.flag = FLAG_ONE_WAY;
    check.ext_fields = ExtFields::from_iter([
        ("topic", HALF_TOPIC),
        ("tranStateTableOffset", &view.queue_offset.to_string()),
        ("commitLogOffset", &view.physical_offset.to_string()),
        ("msgId", id),
        ("transactionId", id),
        ("offsetMsgId", &view.offset_message_id()),
        ("bname", broker_name),
    ]);
    let draft = Draft {
        topic: facts.real_topic,
        queue_id: facts.real_queue_id,
        flag: view.flag,
        sys_flag: view.sys_flag,
        born_timestamp: view.born_timestamp,
        born_host: view.born_host.address(),
        store_host: view.store_host.address(),
        reconsume_times: view.reconsume_times,
        prepared_transaction_offset: view.prepared_transaction_offset,
        body: view.body,
        body_crc: Some(view.body_crc),
        properties: view.properties.0,
    };
    let position = Position {
        physical_offset: view.physical_offset,
        queue_offset: view.queue_offset,
        store_timestamp: view.store_timestamp,
    };
    encode(&draft, position, false, &mut check.body)?;
    Ok(check)
}
