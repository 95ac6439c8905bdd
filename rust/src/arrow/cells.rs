//! Collects the values of one column into an Arrow array.
//!
//! In:     records.
//! Out:    an Arrow array.
//! Always: copies values once from the mapped log. Invalid UTF-8 is replaced, not refused.
//! Not here: which records.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Int32Array, Int64Array, ListArray, MapArray, StringArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field};

use super::schema::{Column, UTC, element, map_fields};
use crate::base::units::PhysicalOffset;
use crate::record::{Host, Properties, offset_message_id};

/// The results of Arrow's own calls.
pub(super) type Built<T> = Result<T, ArrowError>;

/// Texts or byte strings, stored back to back.
#[derive(Debug)]
pub(super) struct Texts {
    ends: Ends,
    bytes: Vec<u8>,
    /// The null bitmap; empty if no value can be null.
    nulls: NullBufferBuilder,
}

impl Default for Texts {
    fn default() -> Self {
        Self { ends: Ends::default(), bytes: Vec::new(), nulls: NullBufferBuilder::new(0) }
    }
}

impl Texts {
    /// Creates an empty value with the capacity of `like`.
    fn like(like: &Self) -> Self {
        Self {
            ends: like.ends.like(),
            bytes: Vec::with_capacity(like.bytes.len() + like.bytes.len() / 16),
            nulls: NullBufferBuilder::new(like.nulls.len()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    pub(super) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.end();
    }

    /// Appends bytes to the current text, until `end` is called.
    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Ends a text.
    #[inline]
    pub(super) fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }

    #[inline]
    pub(super) fn push_or_null(&mut self, text: Option<&[u8]>) {
        self.nulls.append(text.is_some());
        self.push(text.unwrap_or_default());
    }

    fn truncate(&mut self, length: usize) {
        self.bytes.truncate(self.ends.truncate(length));
    }

    fn parts(mut self) -> (OffsetBuffer<i32>, Buffer, Option<NullBuffer>) {
        (self.ends.finish(), Buffer::from_vec(self.bytes), self.nulls.finish())
    }

    fn binary(self) -> Built<BinaryArray> {
        let (offsets, bytes, nulls) = self.parts();
        BinaryArray::try_new(offsets, bytes, nulls)
    }

    fn strings(self) -> Built<StringArray> {
        let (offsets, bytes, nulls) = self.parts();
        // Validates all bytes at once.
        match StringArray::try_new(offsets.clone(), bytes.clone(), nulls.clone()) {
            Ok(strings) => Ok(strings),
            Err(_) => mended(&BinaryArray::try_new(offsets, bytes, nulls)?),
        }
    }
}

/// Replaces invalid UTF-8 in the texts by U+FFFD.
#[cold]
fn mended(broken: &BinaryArray) -> Built<StringArray> {
    let texts: Vec<Option<Cow<'_, str>>> = broken.iter().map(|text| text.map(String::from_utf8_lossy)).collect();
    let bytes: usize = texts.iter().flatten().map(|text| text.len()).sum();
    if i32::try_from(bytes).is_err() {
        return Err(ArrowError::OffsetOverflowError(bytes));
    }
    Ok(texts.into_iter().collect())
}

/// The end offset of each run of bytes or values, after the beginning of the first one.
#[derive(Debug)]
pub(super) struct Ends(Vec<i32>);

impl Default for Ends {
    fn default() -> Self {
        Self(vec![0])
    }
}

impl Ends {
    fn like(&self) -> Self {
        let mut ends = Vec::with_capacity(self.0.len());
        ends.push(0);
        Self(ends)
    }

    fn len(&self) -> usize {
        self.0.len() - 1
    }

    #[inline]
    pub(super) fn push(&mut self, end: usize) {
        // A batch is limited to much less; see `ScanOptions::check`.
        self.0.push(i32::try_from(end).unwrap_or(i32::MAX));
    }

    /// Keeps the first `length` runs and returns the end of the last one.
    fn truncate(&mut self, length: usize) -> usize {
        self.0.truncate(length + 1);
        self.0.last().map_or(0, |end| usize::try_from(*end).unwrap_or(0))
    }

    fn finish(self) -> OffsetBuffer<i32> {
        OffsetBuffer::new(ScalarBuffer::from(self.0))
    }
}

/// Numbers, perhaps with nulls.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    values: Vec<T>,
    /// The null bitmap; empty if no value can be null.
    nulls: NullBufferBuilder,
}

impl<T: Copy + Default> Numbers<T> {
    fn with_capacity(rows: usize) -> Self {
        Self { values: Vec::with_capacity(rows), nulls: NullBufferBuilder::new(rows) }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    #[inline]
    pub(super) fn push(&mut self, value: T) {
        self.values.push(value);
    }

    #[inline]
    pub(super) fn extend(&mut self, values: impl Iterator<Item = T>) {
        self.values.extend(values);
    }

    pub(super) fn push_or_null(&mut self, value: Option<T>) {
        self.nulls.append(value.is_some());
        self.values.push(value.unwrap_or_default());
    }
}

/// Names and values of maps.
#[derive(Debug, Default)]
pub(super) struct Entries {
    ends: Ends,
    names: Texts,
    values: Texts,
    /// Marks of the names in the current map.
    seen: u64,
    /// Two names have the same mark, so they may be equal.
    is_doubtful: bool,
}

impl Entries {
    /// Begins a map.
    #[inline]
    pub(super) fn begin(&mut self) -> usize {
        (self.seen, self.is_doubtful) = (0, false);
        self.names.len()
    }

    /// Adds an entry.
    #[inline]
    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        let mark = mark(name);
        self.is_doubtful |= self.seen & mark != 0;
        self.seen |= mark;
        self.names.push(name);
        self.values.push(value);
    }

    /// Ends the map that began at `begin`. Of equal names the last counts.
    #[inline]
    pub(super) fn end(&mut self, begin: usize, properties: Properties<'_>) {
        if self.is_doubtful {
            self.sift(begin, properties);
        }
        self.ends.push(self.names.len());
    }

    #[cold]
    fn sift(&mut self, begin: usize, properties: Properties<'_>) {
        let all: Vec<_> = properties.iter().collect();
        self.names.truncate(begin);
        self.values.truncate(begin);
        for (index, (name, value)) in all.iter().enumerate() {
            if !all.iter().skip(index + 1).any(|(later, _)| later == name) {
                self.names.push(name);
                self.values.push(value);
            }
        }
    }

    /// Creates empty entries with the same capacity.
    pub(super) fn like(&self) -> Self {
        Self {
            ends: self.ends.like(),
            names: Texts::like(&self.names),
            values: Texts::like(&self.values),
            ..Self::default()
        }
    }

    pub(super) fn finish(self) -> Built<ArrayRef> {
        let pairs: Vec<ArrayRef> = vec![Arc::new(self.names.strings()?), Arc::new(self.values.strings()?)];
        let pairs = StructArray::try_new(map_fields(), pairs, None)?;
        let field = Arc::new(Field::new("entries", DataType::Struct(map_fields()), false));
        Ok(Arc::new(MapArray::try_new(field, self.ends.finish(), pairs, None, false)?))
    }
}

/// Returns one of 64 bits, computed from a name's length, first and last byte. Names with different bits differ.
#[inline]
fn mark(name: &[u8]) -> u64 {
    let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
    let mixed = name.len().wrapping_mul(7) ^ usize::from(first).wrapping_mul(5) ^ usize::from(last);
    1 << (mixed & 63)
}

/// Texts that often repeat: equal neighbours are counted, and copied together.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    texts: Texts,
    last: Vec<u8>,
    waiting: usize,
}

impl Repeats {
    #[inline]
    pub(super) fn push(&mut self, text: &[u8]) {
        if self.waiting > 0 && self.last == text {
            self.waiting += 1;
        } else {
            self.change(text);
        }
    }

    /// Repeats the last text.
    #[inline]
    fn push_again(&mut self) {
        self.waiting += 1;
    }

    fn change(&mut self, text: &[u8]) {
        self.settle();
        self.last.clear();
        self.last.extend_from_slice(text);
        self.waiting = 1;
    }

    /// Writes the pending copies of the last text, doubling the copied length each time.
    fn settle(&mut self) {
        let (bytes, length) = (&mut self.texts.bytes, self.last.len());
        let (begin, waiting) = (bytes.len(), std::mem::take(&mut self.waiting));
        let wanted = length * waiting;
        if wanted > 0 {
            bytes.extend_from_slice(&self.last);
        }
        while bytes.len() - begin < wanted {
            let copied = bytes.len() - begin;
            bytes.extend_from_within(begin..begin + copied.min(wanted - copied));
        }
        let end = |copies: usize| i32::try_from(begin + copies * length).unwrap_or(i32::MAX);
        self.texts.ends.0.extend((1..=waiting).map(end));
    }

    fn like(&self) -> Self {
        Self { texts: Texts::like(&self.texts), ..Self::default() }
    }

    fn strings(mut self) -> Built<StringArray> {
        self.settle();
        self.texts.strings()
    }
}

/// Addresses as text. The last one is cached.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    texts: Repeats,
    last: Vec<u8>,
}

impl Hosts {
    #[inline]
    pub(super) fn push(&mut self, host: Host<'_>) {
        if self.last == host.bytes() {
            self.texts.push_again();
        } else {
            self.last = host.bytes().to_vec();
            self.texts.change(host.address().to_string().as_bytes());
        }
    }
}

/// Message ids. The digits of the last address are cached.
#[derive(Debug, Default)]
pub(super) struct MessageIds {
    texts: Texts,
    last: Vec<u8>,
    digits: String,
}

impl MessageIds {
    #[inline]
    pub(super) fn push(&mut self, id: &[u8]) {
        self.texts.push(id);
    }

    /// Appends the id that names a store's address and a physical offset.
    #[inline]
    pub(super) fn push_offset_id(&mut self, host: Host<'_>, physical_offset: PhysicalOffset) {
        if self.last != host.bytes() {
            self.last = host.bytes().to_vec();
            self.digits = offset_message_id(host.address(), PhysicalOffset(0));
            self.digits.truncate(self.digits.len().saturating_sub(2 * size_of::<u64>()));
        }
        self.texts.write(self.digits.as_bytes());
        self.texts.write(&hex(physical_offset.0));
        self.texts.end();
    }
}

/// Returns sixteen upper-case digits.
#[inline]
fn hex(number: u64) -> [u8; 2 * size_of::<u64>()] {
    // All half bytes are spread to bytes at once; the lowest digit ends in the lowest byte.
    let mut spread = u128::from(number);
    for shift in [32, 16, 8, 4] {
        let mask = u128::MAX / ((1 << (2 * shift)) - 1) * ((1 << shift) - 1);
        spread = (spread | spread << shift) & mask;
    }
    // Digits from ten on are letters, which begin seven after the decimal digits in ASCII.
    let letters =
        ((spread + 0x0606_0606_0606_0606_0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101_0101_0101_0101_0101;
    (spread + 0x3030_3030_3030_3030_3030_3030_3030_3030 + letters * 7).to_be_bytes()
}

/// The values of one column.
#[derive(Debug)]
pub(super) enum Cells {
    Text(Texts),
    /// Texts that seldom change.
    Repeated(Repeats),
    Host(Hosts),
    MessageIds(MessageIds),
    Words(Ends, Texts),
    Int(Numbers<i32>),
    Long(Numbers<i64>),
    Longs(Ends, Numbers<i64>),
    Time(Numbers<i64>),
    Bytes(Texts),
    /// The entries are kept separately from the columns.
    Map,
}

impl Cells {
    /// Creates empty cells for a column.
    pub(super) fn of(column: Column) -> Self {
        match (column, column.field().data_type()) {
            (Column::Topic | Column::TransactionType, _) => Self::Repeated(Repeats::default()),
            (Column::BornHost | Column::StoreHost, _) => Self::Host(Hosts::default()),
            (Column::MessageId | Column::OffsetMessageId, _) => Self::MessageIds(MessageIds::default()),
            (_, DataType::Int32) => Self::Int(Numbers::with_capacity(0)),
            (_, DataType::Int64) => Self::Long(Numbers::with_capacity(0)),
            (_, DataType::Timestamp(..)) => Self::Time(Numbers::with_capacity(0)),
            (_, DataType::Binary) => Self::Bytes(Texts::default()),
            (_, DataType::Map(..)) => Self::Map,
            (_, DataType::List(element)) if *element.data_type() == DataType::Int64 => {
                Self::Longs(Ends::default(), Numbers::with_capacity(0))
            }
            (_, DataType::List(_)) => Self::Words(Ends::default(), Texts::default()),
            _ => Self::Text(Texts::default()),
        }
    }

    /// Creates empty cells with the same capacity.
    pub(super) fn like(&self) -> Self {
        match self {
            Self::Text(texts) => Self::Text(Texts::like(texts)),
            Self::Repeated(repeats) => Self::Repeated(repeats.like()),
            Self::Host(hosts) => Self::Host(Hosts { texts: hosts.texts.like(), last: Vec::new() }),
            Self::MessageIds(ids) => {
                Self::MessageIds(MessageIds { texts: Texts::like(&ids.texts), ..MessageIds::default() })
            }
            Self::Words(words, texts) => Self::Words(words.like(), Texts::like(texts)),
            Self::Int(numbers) => Self::Int(Numbers::with_capacity(numbers.values.len())),
            Self::Long(numbers) => Self::Long(Numbers::with_capacity(numbers.values.len())),
            Self::Longs(lists, numbers) => Self::Longs(lists.like(), Numbers::with_capacity(numbers.values.len())),
            Self::Time(numbers) => Self::Time(Numbers::with_capacity(numbers.values.len())),
            Self::Bytes(texts) => Self::Bytes(Texts::like(texts)),
            Self::Map => Self::Map,
        }
    }

    /// Returns the array.
    pub(super) fn finish(self) -> Built<ArrayRef> {
        Ok(match self {
            Self::Text(texts) => Arc::new(texts.strings()?),
            Self::Repeated(repeats) => Arc::new(repeats.strings()?),
            Self::Host(hosts) => Arc::new(hosts.texts.strings()?),
            Self::MessageIds(ids) => Arc::new(ids.texts.strings()?),
            Self::Bytes(texts) => Arc::new(texts.binary()?),
            Self::Words(ends, texts) => {
                let words = Arc::new(texts.strings()?);
                Arc::new(ListArray::try_new(element(DataType::Utf8), ends.finish(), words, None)?)
            }
            Self::Longs(ends, numbers) => {
                let values = Arc::new(Int64Array::new(numbers.values.into(), None));
                Arc::new(ListArray::try_new(element(DataType::Int64), ends.finish(), values, None)?)
            }
            Self::Int(mut numbers) => {
                let nulls = numbers.nulls.finish();
                Arc::new(Int32Array::new(numbers.values.into(), nulls))
            }
            Self::Long(mut numbers) => {
                let nulls = numbers.nulls.finish();
                Arc::new(Int64Array::new(numbers.values.into(), nulls))
            }
            Self::Time(mut numbers) => {
                let nulls = numbers.nulls.finish();
                Arc::new(TimestampMicrosecondArray::new(numbers.values.into(), nulls).with_timezone(UTC))
            }
            Self::Map => Entries::default().finish()?,
        })
    }
}
