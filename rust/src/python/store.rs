//! `Store`: one open store directory. Calls of a few lines into `crate::store`.
//!
//! Always: an append into prepared space keeps the interpreter's lock, because releasing it costs more than the write.
//!         A call that must wait releases it first (`call.rs`).

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::call::{detached, now_or_detached, written};
use super::error::OrRaise;
use super::message::{Message, SendResult};
use super::open_report::OpenReport;
use super::outbox::OutboxRow;
use super::retention::{Expired, LogFile};
use super::sending::{first_half, new_half, new_message, new_messages, queue};
use super::sql::Wanted;
use super::statistics::StoreStat;
use super::stored::StoredMessage;
use super::transaction::{DueHalves, EndResult, TopicEnds, TransactionRow, WaitingHalf};
use crate::base::error::Error;
use crate::base::options::{FlushDiskType, Role, StoreOptions};
use crate::base::units::{PhysicalOffset, QueueId, QueueOffset, TimestampMs};
use crate::filter::Selector;
use crate::record::recall_handle::RecallHandle;
use crate::storage::config_file;
use crate::store::{Copy, Decider, End, EndKind, NewMessage, Once, Recall, StoredRecord, Wait};
use crate::transaction::HalfCopy;
use crate::transaction::scan::{Waiting, group_by_facts};

/// Where a store is.
#[derive(FromPyObject)]
enum Location {
    #[cfg(feature = "memory")]
    Memory(Py<super::memory::MemoryStorage>),
    Directory(PathBuf),
}

impl Location {
    /// Returns whether a thread flushes the store. One in memory is flushed by its owner, so that tests control it.
    const fn has_background(&self) -> bool {
        matches!(self, Self::Directory(_))
    }
}

/// Returns the part that a store plays among its copies.
const fn role(replica: bool, held: bool) -> Role {
    match (replica, held) {
        (true, _) => Role::Replica,
        (false, true) => Role::Source,
        (false, false) => Role::Alone,
    }
}

/// One open store directory.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct Store {
    pub(super) store: std::sync::Arc<crate::store::Store>,
    pub(super) host: std::net::SocketAddr,
}

#[pymethods]
impl Store {
    #[staticmethod]
    #[pyo3(signature = (
        path, *, read_only=false, replica=false, held=false, flush_disk_type="ASYNC_FLUSH", transaction_flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=None,
        mapped_file_size_consume_queue=None, max_hash_slot_num=None, max_index_num=None, max_message_size=4_194_304,
        flush_interval_commit_log_ms=500, transaction_op_msg_max_size=4_096, enabled_append_prop_crc=None,
        transaction_timeout_ms=6_000, reject_late_end=false, pending_transactions_max=10_000_000,
        timer_max_delay_sec=259_200, timed_messages_max=10_000_000,
        broker_host="127.0.0.1", broker_port=10_911,
    ))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Each is a keyword of the Python call.
    fn open(
        py: Python<'_>,
        path: Location,
        read_only: bool,
        replica: bool,
        held: bool,
        flush_disk_type: &str,
        transaction_flush_disk_type: &str,
        mapped_file_size_commit_log: Option<i128>,
        mapped_file_size_consume_queue: Option<i128>,
        max_hash_slot_num: Option<i128>,
        max_index_num: Option<i128>,
        max_message_size: i128,
        flush_interval_commit_log_ms: i128,
        transaction_op_msg_max_size: i128,
        enabled_append_prop_crc: Option<bool>,
        transaction_timeout_ms: i64,
        reject_late_end: bool,
        pending_transactions_max: i128,
        timer_max_delay_sec: i64,
        timed_messages_max: i128,
        broker_host: &str,
        broker_port: u16,
    ) -> PyResult<Self> {
        let host = broker_host
            .parse()
            .map_err(|_| invalid("broker_host", format!("{broker_host:?} is not HOST:PORT with a numeric host")));
        let host = std::net::SocketAddr::new(host.or_raise(py)?, broker_port);
        let options = StoreOptions {
            read_only,
            role: role(replica, held),
            flush_disk_type: flush_type(flush_disk_type, "flush_disk_type").or_raise(py)?,
            transaction_flush_disk_type: flush_type(transaction_flush_disk_type, "transaction_flush_disk_type")
                .or_raise(py)?,
            commit_log_file_size: size(mapped_file_size_commit_log, "mapped_file_size_commit_log").or_raise(py)?,
            consume_queue_file_size: size(mapped_file_size_consume_queue, "mapped_file_size_consume_queue")
                .or_raise(py)?,
            max_hash_slot_num: size(max_hash_slot_num, "max_hash_slot_num").or_raise(py)?,
            max_index_num: size(max_index_num, "max_index_num").or_raise(py)?,
            max_message_size: number(max_message_size, "max_message_size").or_raise(py)?,
            flush_interval_ms: number(flush_interval_commit_log_ms, "flush_interval_commit_log").or_raise(py)?,
            op_message_size_max: number(transaction_op_msg_max_size, "transaction_op_msg_max_size").or_raise(py)?,
            append_prop_crc: enabled_append_prop_crc,
            transaction_timeout_ms,
            reject_late_end,
            pending_transactions_max: number(pending_transactions_max, "pending_transactions_max").or_raise(py)?,
            timer_max_delay_s: timer_max_delay_sec,
            timed_messages_max: number(timed_messages_max, "timed_messages_max").or_raise(py)?,
            store_host: host,
            background: path.has_background(),
        };
        let store = match path {
            Location::Directory(path) => detached(py, || crate::store::Store::open(&path, options)),
            #[cfg(feature = "memory")]
            Location::Memory(memory) => memory.get().open(py, options),
        }?;
        Ok(Self { store: std::sync::Arc::new(store), host })
    }

    #[getter]
    fn replica(&self) -> bool {
        self.store.is_replica()
    }

    fn append_copied(&self, py: Python<'_>, offset: u64, bytes: &[u8], epoch: u64) -> PyResult<u64> {
        detached(py, || self.store.append_copied(PhysicalOffset(offset), bytes, epoch)).map(|end| end.0)
    }

    fn show_up_to(&self, py: Python<'_>, end: u64) {
        py.detach(|| self.store.show_up_to(PhysicalOffset(end)));
    }

    fn adopt_settings(&self, py: Python<'_>, text: &str) -> PyResult<bool> {
        detached(py, || self.store.adopt_settings(text))
    }

    fn adopt_progress(&self, py: Python<'_>, half_progress: u64, delays: Vec<(i64, u64)>) -> PyResult<()> {
        let delays = delays.into_iter().map(|(queue_id, progress)| Ok((queue(queue_id)?, progress)));
        let delays: Vec<_> = delays.collect::<Result<_, Error>>().or_raise(py)?;
        detached(py, || self.store.adopt_progress(half_progress, &delays))
    }

    fn last_record(&self, py: Python<'_>) -> PyResult<Option<(u64, Vec<u8>)>> {
        Ok(detached(py, || self.store.last_record())?.map(|(offset, bytes)| (offset.0, bytes)))
    }

    fn record_before(&self, py: Python<'_>, end: u64) -> PyResult<Option<(u64, Vec<u8>)>> {
        Ok(detached(py, || self.store.record_before(PhysicalOffset(end)))?.map(|(offset, bytes)| (offset.0, bytes)))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.store.close())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.store.is_closed()
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.store.is_read_only() || self.store.is_replica()
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.store.path()
    }

    #[getter]
    fn store_id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        detached(py, || Ok(self.store.store_id())).map(|id| id.map(|id| id.to_string()))
    }

    #[getter]
    fn open_report(&self) -> OpenReport {
        OpenReport(self.store.open_report().clone())
    }

    fn stat(&self, py: Python<'_>) -> PyResult<StoreStat> {
        detached(py, || self.store.stat()).map(StoreStat)
    }

    fn append(&self, py: Python<'_>, message: &Bound<'_, Message>, queue_id: i64) -> PyResult<SendResult> {
        let new = new_message(py, message, queue_id).or_raise(py)?;
        let sent = written(py, |wait| self.store.append_one(&new, wait))?;
        Ok(SendResult::new(sent, message.get().topic.clone_ref(py), self.host, false))
    }

    fn append_many(
        &self,
        py: Python<'_>,
        messages: Vec<Bound<'_, Message>>,
        queue_ids: Vec<i64>,
    ) -> PyResult<Vec<SendResult>> {
        let new = new_messages(py, &messages, queue_ids).or_raise(py)?;
        let sent = detached(py, || self.store.append(&new, Wait::Yes)?.acknowledged())?;
        let result = |(sent, message): (_, &Bound<'_, Message>)| {
            SendResult::new(sent, message.get().topic.clone_ref(py), self.host, false)
        };
        Ok(sent.into_iter().zip(&messages).map(result).collect())
    }

    fn append_row(&self, py: Python<'_>, row: &Bound<'_, OutboxRow>, queue_id: i64) -> PyResult<&'static str> {
        let new = [row.get().message(py, queue(queue_id).or_raise(py)?)];
        let done = written(py, |wait| self.store.append_own(&new, wait))?;
        Ok(done.first().map_or("appended", fate))
    }

    #[pyo3(signature = (rows, queue_ids, *, once))]
    fn append_rows(
        &self,
        py: Python<'_>,
        rows: Vec<Bound<'_, OutboxRow>>,
        queue_ids: Vec<i64>,
        once: bool,
    ) -> PyResult<Vec<&'static str>> {
        if rows.len() != queue_ids.len() {
            let what = format!("got {} rows but {} queue ids", rows.len(), queue_ids.len());
            return Err(Error::InvalidMessage { what }).or_raise(py);
        }
        let new = rows.iter().zip(queue_ids).map(|(row, queue_id)| Ok(row.get().message(py, queue(queue_id)?)));
        let new: Vec<NewMessage<'_>> = new.collect::<Result<_, Error>>().or_raise(py)?;
        let append = || if once { self.store.append_once(&new) } else { self.store.append_own(&new, Wait::Yes) };
        let done = detached(py, || append()?.acknowledged())?;
        Ok(done.iter().map(fate).collect())
    }

    #[getter]
    fn appended_end(&self) -> u64 {
        self.store.appended_end().0
    }

    #[getter]
    fn durable_end(&self) -> u64 {
        self.store.durable_end().0
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.store.flush())
    }

    fn flush_round(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.store.flush_round())
    }

    fn check_room(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.store.check_room())
    }

    #[pyo3(signature = (message, queue_id, producer_group, owner=0))]
    fn prepare(
        &self,
        py: Python<'_>,
        message: &Bound<'_, Message>,
        queue_id: i64,
        producer_group: &str,
        owner: u32,
    ) -> PyResult<SendResult> {
        let half = new_half(py, message, queue_id, producer_group, owner).or_raise(py)?;
        let sent = written(py, |wait| self.store.prepare(&half, wait))?;
        Ok(SendResult::new(sent, message.get().topic.clone_ref(py), self.host, true))
    }

    #[pyo3(signature = (messages, queue_ids, producer_group, owner=0))]
    fn prepare_many(
        &self,
        py: Python<'_>,
        messages: Vec<Bound<'_, Message>>,
        queue_ids: Vec<i64>,
        producer_group: &str,
        owner: u32,
    ) -> PyResult<SendResult> {
        let new = new_messages(py, &messages, queue_ids).or_raise(py)?;
        let sent = detached(py, || self.store.prepare_many(&new, producer_group, owner, Wait::Yes)?.acknowledged())?;
        first_half(py, sent, &messages, self.host)
    }

    fn local_transaction_ended(&self, py: Python<'_>, half_queue_offset: u64) -> PyResult<()> {
        let now = || self.store.now().local_transaction_ended(half_queue_offset);
        now_or_detached(py, now, || self.store.local_transaction_ended(half_queue_offset))
    }

    #[pyo3(signature = (
        half_queue_offset, prepared_transaction_offset, *, commit, transaction_id=None, producer_group=None,
        from_check=false, by_hand=false
    ))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Each is a keyword of the Python call.
    fn end_transaction(
        &self,
        py: Python<'_>,
        half_queue_offset: i128,
        prepared_transaction_offset: i128,
        commit: bool,
        transaction_id: Option<String>,
        producer_group: Option<String>,
        from_check: bool,
        by_hand: bool,
    ) -> PyResult<EndResult> {
        let decider = match (by_hand, from_check) {
            (true, _) => Decider::Operator,
            (false, true) => Decider::Check,
            (false, false) => Decider::Producer,
        };
        let end = End {
            half: half(half_queue_offset, prepared_transaction_offset).or_raise(py)?,
            kind: if commit { EndKind::Commit } else { EndKind::RollBack },
            transaction_id,
            group: producer_group,
            decider,
        };
        self.end(py, &end)
    }

    fn discard(
        &self,
        py: Python<'_>,
        half_queue_offset: i128,
        prepared_transaction_offset: i128,
    ) -> PyResult<EndResult> {
        let half = half(half_queue_offset, prepared_transaction_offset).or_raise(py)?;
        self.end(py, &End { half, kind: EndKind::Discard, transaction_id: None, group: None, decider: Decider::Check })
    }

    fn resume(&self, py: Python<'_>, transaction_id: &str) -> PyResult<SendResult> {
        let sent = detached(py, || self.store.resume(transaction_id))?;
        let half = detached(py, || self.store.half(sent.queue_offset))?;
        let topic = crate::transaction::HalfFacts::of(&half.view().or_raise(py)?).real_topic;
        let topic = PyString::new(py, topic).unbind();
        Ok(SendResult::new(sent, topic, self.host, true))
    }

    fn halves_due(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<DueHalves>> {
        let due = detached(py, || self.store.halves_due(limit).map(group_by_facts))?;
        Ok(due.into_iter().map(DueHalves).collect())
    }

    fn look_again_all(&self, py: Python<'_>, due: &DueHalves, in_ms: i64) -> PyResult<()> {
        detached(py, || self.store.look_again_all(due.queue_offsets(), in_ms))
    }

    #[pyo3(signature = (half_queue_offset, in_ms, *, asked=false))]
    fn look_again(&self, py: Python<'_>, half_queue_offset: u64, in_ms: i64, asked: bool) -> PyResult<bool> {
        let now = || self.store.now().look_again(half_queue_offset, in_ms, asked);
        now_or_detached(py, now, || self.store.look_again(half_queue_offset, in_ms, asked))
    }

    #[pyo3(signature = (half_queue_offsets=None))]
    fn hold_ends(&self, py: Python<'_>, half_queue_offsets: Option<BTreeSet<u64>>) -> PyResult<()> {
        let all = half_queue_offsets.is_none();
        detached(py, || self.store.hold_ends(all, half_queue_offsets.unwrap_or_default()))
    }

    #[pyo3(signature = (half_queue_offset=None))]
    fn holds_end(&self, py: Python<'_>, half_queue_offset: Option<u64>) -> bool {
        py.detach(|| self.store.holds_end(half_queue_offset))
    }

    #[pyo3(signature = (half_queue_offset, prepared_transaction_offset, producer_group=None))]
    fn check_unknown(
        &self,
        py: Python<'_>,
        half_queue_offset: i128,
        prepared_transaction_offset: i128,
        producer_group: Option<&str>,
    ) -> PyResult<bool> {
        let half = half(half_queue_offset, prepared_transaction_offset).or_raise(py)?;
        detached(py, || self.store.check_unknown(half, producer_group))
    }

    fn transaction_counts(&self, py: Python<'_>) -> PyResult<(HashMap<&'static str, u64>, Vec<TopicEnds>)> {
        let counts = detached(py, || self.store.transaction_counts())?;
        let topics = counts.topics().iter().map(|(topic, ends)| TopicEnds(topic.to_string(), ends.clone()));
        Ok((counts.all().into_iter().collect(), topics.collect()))
    }

    fn pending(&self, py: Python<'_>) -> PyResult<Vec<(String, String, u64, i64)>> {
        let rows = detached(py, || self.store.pending())?;
        Ok(rows
            .into_iter()
            .map(|row| (row.topic.to_string(), row.group.to_string(), row.pending, row.oldest_ms))
            .collect())
    }

    fn next_due_in_ms(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        detached(py, || self.store.next_due_in_ms())
    }

    fn halves_waiting(&self, py: Python<'_>, after_half_queue_offset: i64, limit: usize) -> PyResult<Vec<WaitingHalf>> {
        let after = u64::try_from(after_half_queue_offset).ok();
        detached(py, || self.store.halves_waiting(after, limit)).map(facts)
    }

    fn half(&self, py: Python<'_>, half_queue_offset: u64) -> PyResult<StoredMessage> {
        detached(py, || self.store.half(QueueOffset(half_queue_offset))).map(StoredMessage::new)
    }

    fn transaction(&self, py: Python<'_>, transaction_id: &str) -> PyResult<TransactionRow> {
        detached(py, || self.store.transaction(transaction_id)).map(TransactionRow)
    }

    fn transactions(&self, py: Python<'_>) -> PyResult<Vec<TransactionRow>> {
        let rows = detached(py, || self.store.transactions())?;
        Ok(rows.into_iter().map(TransactionRow).collect())
    }

    #[pyo3(signature = (topic, queue_id, queue_offset, max_messages=32, tags=None))]
    fn read(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: i64,
        queue_offset: i128,
        max_messages: usize,
        tags: Option<Wanted>,
    ) -> PyResult<(Vec<StoredMessage>, u64)> {
        let (queue_id, from) = (queue(queue_id).or_raise(py)?, offset(queue_offset, "queue_offset").or_raise(py)?);
        let (records, next) = self.records(py, (topic, queue_id, QueueOffset(from)), max_messages, tags)?;
        Ok((messages(records), next.0))
    }

    #[pyo3(signature = (topic, queue_id, queue_offset, max_messages=32, tags=None))]
    fn pull(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: i64,
        queue_offset: i128,
        max_messages: usize,
        tags: Option<Wanted>,
    ) -> PyResult<(Vec<StoredMessage>, u64)> {
        let (queue_id, from) = (queue(queue_id).or_raise(py)?, offset(queue_offset, "queue_offset").or_raise(py)?);
        let (records, next) = self.records(py, (topic, queue_id, QueueOffset(from)), max_messages, tags)?;
        Ok((records.into_iter().map(StoredMessage::unacknowledged).collect(), next.0))
    }

    #[pyo3(signature = (physical_offset, topic, queue_id, *, delay_level=0, reconsume_times=0, properties=Vec::new()))]
    #[allow(clippy::too_many_arguments)] // Each is a keyword of the Python call.
    fn append_copy(
        &self,
        py: Python<'_>,
        physical_offset: i128,
        topic: &str,
        queue_id: i64,
        delay_level: u8,
        reconsume_times: i32,
        properties: Vec<(String, String)>,
    ) -> PyResult<SendResult> {
        let physical_offset = PhysicalOffset(offset(physical_offset, "physical_offset").or_raise(py)?);
        let queue_id = queue(queue_id).or_raise(py)?;
        let copy = Copy { topic, queue_id, delay_level, reconsume_times, properties: &properties };
        let sent = detached(py, || self.store.append_copy(physical_offset, &copy))?;
        Ok(SendResult::new(sent, PyString::new(py, topic).unbind(), self.host, false))
    }

    fn search_offset(&self, py: Python<'_>, topic: &str, queue_id: i64, timestamp_ms: i64) -> PyResult<u64> {
        let search = || self.store.search_offset(topic, queue(queue_id)?, TimestampMs(timestamp_ms));
        detached(py, search)
    }

    fn read_at(&self, py: Python<'_>, physical_offset: i128) -> PyResult<StoredMessage> {
        let physical_offset = PhysicalOffset(offset(physical_offset, "physical_offset").or_raise(py)?);
        detached(py, || self.store.read_at(physical_offset)).map(StoredMessage::new)
    }

    #[pyo3(signature = (physical_offset, max_messages=1_000))]
    fn scan(&self, py: Python<'_>, physical_offset: i128, max_messages: usize) -> PyResult<(Vec<StoredMessage>, u64)> {
        let from = PhysicalOffset(offset(physical_offset, "physical_offset").or_raise(py)?);
        let (records, next) = detached(py, || self.store.scan(from, max_messages))?;
        Ok((messages(records), next.0))
    }

    #[pyo3(signature = (topic, key, max_messages=64))]
    fn query(&self, py: Python<'_>, topic: &str, key: &str, max_messages: usize) -> PyResult<Vec<StoredMessage>> {
        detached(py, || self.store.query(topic, key, max_messages)).map(messages)
    }

    fn queue_range(&self, py: Python<'_>, topic: &str, queue_id: i64) -> PyResult<(u64, u64)> {
        let queue_id = queue(queue_id).or_raise(py)?;
        let now = || self.store.now().queue_range(topic, queue_id);
        now_or_detached(py, now, || self.store.queue_range(topic, queue_id))
    }

    fn queues(&self, py: Python<'_>) -> PyResult<Vec<(String, i32, u64, u64)>> {
        let rows = detached(py, || self.store.queues())?;
        Ok(rows.into_iter().map(|(topic, queue_id, first, end)| (topic, queue_id.0, first, end)).collect())
    }

    fn wait_for_messages(&self, py: Python<'_>, physical_offset: u64, timeout_ms: i64) -> PyResult<u64> {
        let timeout_ms = u64::try_from(timeout_ms).unwrap_or(0);
        let end = detached(py, || self.store.wait_for_messages(PhysicalOffset(physical_offset), timeout_ms));
        end.map(|end| end.0)
    }

    fn config_text(&self, py: Python<'_>, name: &str) -> PyResult<Option<String>> {
        let value = detached(py, || self.store.config(name))?;
        Ok(value.map(|value| value.to_string()))
    }

    fn set_config_text(&self, py: Python<'_>, name: &str, text: &str) -> PyResult<()> {
        let value = config_file::parse_lenient(text).map_err(|why| invalid(name, why)).or_raise(py)?;
        detached(py, || self.store.set_config(name, &value))
    }

    fn consumer_offset(&self, py: Python<'_>, topic: &str, group: &str, queue_id: i64) -> PyResult<Option<u64>> {
        let queue_id = queue(queue_id).or_raise(py)?;
        let now = || self.store.now().consumer_offset(topic, group, queue_id);
        now_or_detached(py, now, || self.store.consumer_offset(topic, group, queue_id))
    }

    fn set_consumer_offset(
        &self,
        py: Python<'_>,
        topic: &str,
        group: &str,
        queue_id: i64,
        queue_offset: i128,
    ) -> PyResult<()> {
        let (queue_id, to) = (queue(queue_id).or_raise(py)?, offset(queue_offset, "queue_offset").or_raise(py)?);
        let now = || self.store.now().set_consumer_offset(topic, group, queue_id, to);
        now_or_detached(py, now, || self.store.set_consumer_offset(topic, group, queue_id, to))
    }

    fn consumer_offsets(&self, py: Python<'_>) -> PyResult<Vec<(String, String, i32, u64)>> {
        let rows = detached(py, || self.store.consumer_offsets())?;
        Ok(rows.into_iter().map(|(topic, group, queue_id, to)| (topic, group, queue_id.0, to)).collect())
    }

    fn write_offsets(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.store.write_offsets())
    }

    #[pyo3(signature = (max_messages=256))]
    fn deliver_delayed(&self, py: Python<'_>, max_messages: usize) -> PyResult<(usize, Vec<String>, Option<i64>)> {
        let done = detached(py, || self.store.deliver_delayed(max_messages))?;
        Ok((done.messages, done.passed_over, done.next_in_ms))
    }

    fn timed_messages(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, || self.store.timed_messages())
    }

    fn first_timed(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<(i64, u64)>> {
        let rows = detached(py, || self.store.first_timed(limit))?;
        Ok(rows.into_iter().map(|row| (row.due_ms, row.physical_offset)).collect())
    }

    fn hand_over_timed(&self, py: Python<'_>) -> PyResult<(u64, Vec<String>)> {
        let done = detached(py, || self.store.hand_over_timed())?;
        Ok((done.messages, done.left))
    }

    fn recall(&self, py: Python<'_>, handle: &str) -> PyResult<String> {
        let RecallHandle { topic, due_ms, unique_id, .. } = RecallHandle::decode(handle).or_raise(py)?;
        let recall = Recall { topic: &topic, unique_id: &unique_id, due_ms };
        detached(py, || self.store.recall(&recall)?.acknowledged())?;
        Ok(unique_id)
    }

    fn log_files(&self, py: Python<'_>, limit: usize) -> PyResult<Vec<LogFile>> {
        let files = detached(py, || self.store.log_files(limit))?;
        Ok(files.into_iter().map(LogFile).collect())
    }

    #[pyo3(signature = (below, *, keep_unread))]
    fn remove_log_files(&self, py: Python<'_>, below: u64, keep_unread: bool) -> PyResult<Expired> {
        detached(py, || self.store.remove_log_files(PhysicalOffset(below), keep_unread)).map(Expired)
    }

    fn delete_queues(&self, py: Python<'_>, topic: &str) -> PyResult<u64> {
        detached(py, || self.store.delete_queues(topic))
    }

    fn delayed_messages(&self, py: Python<'_>, topic: &str) -> PyResult<u64> {
        detached(py, || self.store.delayed_messages(topic))
    }

    fn remove_consumer_offsets(&self, py: Python<'_>, topic: &str, group: &str) -> PyResult<()> {
        detached(py, || self.store.remove_consumer_offsets(topic, group))
    }

    fn check_index(&self, py: Python<'_>) -> PyResult<(u64, Vec<String>)> {
        detached(py, || self.store.check_index())
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.store.snapshot())
    }

    fn heal(&self) -> OpenReport {
        self.open_report()
    }

    fn __repr__(&self) -> String {
        format!("Store({:?})", self.store.path().display().to_string())
    }
}

impl Store {
    fn end(&self, py: Python<'_>, end: &End) -> PyResult<EndResult> {
        // A single end without a sync never waits. Otherwise it may have to wait for other ends or the disk.
        let now = || self.store.end_transaction(end, Wait::No);
        now_or_detached(py, now, || self.store.end_transaction(end, Wait::Yes)).map(EndResult)
    }

    fn records(
        &self,
        py: Python<'_>,
        (topic, queue_id, from): (&str, QueueId, QueueOffset),
        max_messages: usize,
        tags: Option<Wanted>,
    ) -> PyResult<(Vec<StoredRecord>, QueueOffset)> {
        let selector = tags.map(Selector::from);
        let selector = selector.as_ref();
        let now = || self.store.now().read(topic, queue_id, from, max_messages, selector);
        now_or_detached(py, now, || self.store.read(topic, queue_id, from, max_messages, selector))
    }
}

/// Returns the name of what became of a row's message.
const fn fate(once: &Once) -> &'static str {
    match once {
        Once::Appended(_) => "appended",
        Once::Present(_) => "present",
        Once::InDoubt => "in_doubt",
    }
}

fn facts(waiting: Vec<Waiting>) -> Vec<WaitingHalf> {
    waiting.into_iter().map(WaitingHalf).collect()
}

fn messages(records: Vec<StoredRecord>) -> Vec<StoredMessage> {
    records.into_iter().map(StoredMessage::new).collect()
}

/// Returns the JSON of a broker, whose objects may have numbers as keys, as strict JSON. Raises `InvalidOptionError`.
#[pyfunction]
pub(super) fn strict_json(py: Python<'_>, text: &str) -> PyResult<String> {
    let value = config_file::parse_lenient(text).map_err(|why| invalid("text", why)).or_raise(py)?;
    Ok(value.to_string())
}

fn invalid(option: &str, what: String) -> Error {
    Error::InvalidOption { option: option.to_owned(), what }
}

fn flush_type(name: &str, option: &'static str) -> Result<FlushDiskType, Error> {
    FlushDiskType::from_name(name)
        .ok_or_else(|| invalid(option, format!("must be ASYNC_FLUSH or SYNC_FLUSH, got {name:?}")))
}

fn number<T: TryFrom<i128>>(value: i128, option: &str) -> Result<T, Error> {
    T::try_from(value)
        .map_err(|_| invalid(option, format!("must be a smaller number that is not negative, got {value}")))
}

fn size<T: TryFrom<i128>>(value: Option<i128>, option: &str) -> Result<Option<T>, Error> {
    value.map(|value| number(value, option)).transpose()
}

/// Checks an offset. RocketMQ's files store offsets as signed 64-bit numbers.
fn offset(value: i128, name: &str) -> Result<u64, Error> {
    u64::try_from(value)
        .ok()
        .filter(|offset| *offset <= u64::MAX >> 1)
        .ok_or_else(|| invalid(name, format!("must be between 0 and 9223372036854775807, got {value}")))
}

pub(super) fn half(half_queue_offset: i128, prepared_transaction_offset: i128) -> Result<HalfCopy, Error> {
    Ok(HalfCopy {
        queue_offset: offset(half_queue_offset, "half_queue_offset")?,
        physical_offset: offset(prepared_transaction_offset, "prepared_transaction_offset")?,
    })
}
