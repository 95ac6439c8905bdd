//! Defines the columns of every view, once for all Arrow readers.
//!
//! In:     a view and names.
//! Out:    columns, and the Arrow schema of some of them.
//! Always: exactly the types that Spark's Python data sources accept: no large, view or dictionary types, times in
//!         microseconds of UTC, maps of `key` and `value`.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};

use crate::base::error::{Error, Result};

/// What a scan shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Messages that consumers can see.
    Messages,
    /// Every record.
    CommitLog,
    /// Half messages.
    Halves,
    /// What op messages name: one row for each half message that an op names.
    Ops,
    /// Every record of a transaction: halves, finals, discarded copies, and a row for each half message that an op
    /// names.
    Traces,
    /// Transactions: one row for each, folded from all its records.
    Transactions,
    /// How many messages each queue has in each file of the log.
    Statistics,
}

impl View {
    const ALL: [(&'static str, Self); 7] = [
        ("messages", Self::Messages),
        ("commitlog", Self::CommitLog),
        ("halves", Self::Halves),
        ("ops", Self::Ops),
        ("traces", Self::Traces),
        ("transactions", Self::Transactions),
        ("statistics", Self::Statistics),
    ];

    /// Returns its name.
    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, view)| *view == self).map_or("", |(name, _)| name)
    }

    /// Returns the view of that name.
    pub fn named(name: &str) -> Result<Self> {
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        let found = Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, view)| *view);
        found.ok_or_else(|| Error::InvalidOption {
            option: "view".into(),
            what: format!("there is no view {name:?}\nhint: the views are {}", names()),
        })
    }

    /// Returns its columns, in order.
    pub fn columns(self) -> Vec<Column> {
        match self {
            Self::Messages | Self::CommitLog => RECORD.to_vec(),
            Self::Halves => [RECORD, HALF].concat(),
            Self::Ops => OP.to_vec(),
            Self::Traces => TRACE.to_vec(),
            Self::Transactions => TRANSACTION.to_vec(),
            Self::Statistics => STATISTIC.to_vec(),
        }
    }

    /// Returns the chosen columns, in the order of `names`.
    pub fn choose(self, names: &[String]) -> Result<Vec<Column>> {
        let columns = self.columns();
        let invalid = |what: String| Error::InvalidOption { option: "columns".into(), what };
        let known = || columns.iter().map(|column| column.name()).collect::<Vec<_>>().join(", ");
        let mut chosen = Vec::new();
        for name in names {
            let column = columns.iter().copied().find(|column| column.name() == name);
            let column = column.ok_or_else(|| {
                invalid(format!("there is no column {name:?} in this view\nhint: its columns are {}", known()))
            })?;
            if chosen.contains(&column) {
                return Err(invalid(format!("{name:?} is named twice")));
            }
            chosen.push(column);
        }
        if chosen.is_empty() {
            return Err(invalid(format!("no column is named\nhint: the columns are {}", known())));
        }
        Ok(chosen)
    }
}

/// The kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Texts,
    Int,
    Long,
    Longs,
    Time,
    Bytes,
    Map,
}

macro_rules! columns {
    ($($column:ident $name:literal $kind:ident $nullable:literal;)*) => {
        /// A column.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // Each is explained in docs/data/spark.md.
        pub enum Column { $($column,)* }

        impl Column {
            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$column => $name,)* }
            }

            const fn kind(self) -> (Kind, bool) {
                match self { $(Self::$column => (Kind::$kind, $nullable),)* }
            }
        }
    };
}

columns! {
    Topic "topic" Text false;
    QueueId "queue_id" Int false;
    QueueOffset "queue_offset" Long false;
    PhysicalOffset "physical_offset" Long false;
    Size "size" Int false;
    MessageId "message_id" Text false;
    OffsetMessageId "offset_message_id" Text false;
    TransactionId "transaction_id" Text true;
    Keys "keys" Texts false;
    Tags "tags" Text true;
    Flag "flag" Int false;
    SysFlag "sys_flag" Int false;
    TransactionType "transaction_type" Text false;
    BornTimestamp "born_timestamp" Time false;
    BornHost "born_host" Text false;
    StoreTimestamp "store_timestamp" Time false;
    StoreHost "store_host" Text false;
    ReconsumeTimes "reconsume_times" Int false;
    PreparedTransactionOffset "prepared_transaction_offset" Long false;
    Body "body" Bytes false;
    Properties "properties" Map false;
    ProducerGroup "producer_group" Text true;
    RealTopic "real_topic" Text true;
    RealQueueId "real_queue_id" Int true;
    CheckTimes "check_times" Int false;
    HalfQueueOffset "half_queue_offset" Long false;
    Trace "trace" Text false;
    Identity "identity" Long true;
    State "state" Text false;
    PreparedTimestamp "prepared_timestamp" Time true;
    FirstCheckTimestamp "first_check_timestamp" Time true;
    EndedTimestamp "ended_timestamp" Time true;
    HalfQueueOffsets "half_queue_offsets" Longs false;
    HalfPhysicalOffsets "half_physical_offsets" Longs false;
    FinalPhysicalOffsets "final_physical_offsets" Longs false;
    DiscardedPhysicalOffsets "discarded_physical_offsets" Longs false;
    OpPhysicalOffsets "op_physical_offsets" Longs false;
    File "file" Long false;
    Messages "messages" Long false;
    SumOfSizes "bytes" Long false;
    FirstStoreTimestamp "first_store_timestamp" Time false;
    LastStoreTimestamp "last_store_timestamp" Time false;
}

const RECORD: &[Column] = &[
    Column::Topic,
    Column::QueueId,
    Column::QueueOffset,
    Column::PhysicalOffset,
    Column::Size,
    Column::MessageId,
    Column::OffsetMessageId,
    Column::TransactionId,
    Column::Keys,
    Column::Tags,
    Column::Flag,
    Column::SysFlag,
    Column::TransactionType,
    Column::BornTimestamp,
    Column::BornHost,
    Column::StoreTimestamp,
    Column::StoreHost,
    Column::ReconsumeTimes,
    Column::PreparedTransactionOffset,
    Column::Body,
    Column::Properties,
];
const HALF: &[Column] = &[Column::ProducerGroup, Column::RealTopic, Column::RealQueueId, Column::CheckTimes];
const OP: &[Column] = &[
    Column::QueueId,
    Column::HalfQueueOffset,
    Column::QueueOffset,
    Column::PhysicalOffset,
    Column::Size,
    Column::StoreTimestamp,
];
const TRACE: &[Column] = &[
    Column::Trace,
    Column::Identity,
    Column::TransactionId,
    Column::ProducerGroup,
    Column::RealTopic,
    Column::RealQueueId,
    Column::CheckTimes,
    Column::HalfQueueOffset,
    Column::PhysicalOffset,
    Column::PreparedTransactionOffset,
    Column::StoreTimestamp,
];
const TRANSACTION: &[Column] = &[
    Column::TransactionId,
    Column::ProducerGroup,
    Column::RealTopic,
    Column::RealQueueId,
    Column::State,
    Column::PreparedTimestamp,
    Column::FirstCheckTimestamp,
    Column::EndedTimestamp,
    Column::CheckTimes,
    Column::HalfQueueOffsets,
    Column::HalfPhysicalOffsets,
    Column::FinalPhysicalOffsets,
    Column::DiscardedPhysicalOffsets,
    Column::OpPhysicalOffsets,
];
const STATISTIC: &[Column] = &[
    Column::Topic,
    Column::QueueId,
    Column::File,
    Column::Messages,
    Column::SumOfSizes,
    Column::FirstStoreTimestamp,
    Column::LastStoreTimestamp,
];

impl Column {
    /// Returns its Arrow field.
    pub fn field(self) -> Field {
        let (kind, nullable) = self.kind();
        let data_type = match kind {
            Kind::Text => DataType::Utf8,
            Kind::Texts => DataType::List(element(DataType::Utf8)),
            Kind::Int => DataType::Int32,
            Kind::Long => DataType::Int64,
            Kind::Longs => DataType::List(element(DataType::Int64)),
            Kind::Time => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
            Kind::Bytes => DataType::Binary,
            Kind::Map => DataType::Map(Arc::new(Field::new("entries", DataType::Struct(map_fields()), false)), false),
        };
        Field::new(self.name(), data_type, nullable)
    }
}

/// The time zone of all times, spelled as Spark spells it.
pub(super) const UTC: &str = "UTC";

/// Returns the field of a list's elements, named as Spark names it.
pub(super) fn element(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("element", data_type, false))
}

/// Returns the key and value fields of a map's entries. Spark requires these names.
pub(super) fn map_fields() -> Fields {
    Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)])
}

/// Returns the schema of some columns.
pub fn schema(columns: &[Column]) -> Arc<Schema> {
    Arc::new(Schema::new(columns.iter().map(|column| column.field()).collect::<Vec<_>>()))
}
