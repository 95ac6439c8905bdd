//! Cells: the values of one column, on their way into an array.
//!
//! In: records. Out: an Arrow array. Always: values are copied once from the mapped log; text that is no UTF-8 is
//! mended, not refused. Not here: which records.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Int32Array, Int64Array, ListArray, MapArray, StringArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field};

use super::schema::{UTC, element, map_fields};
use crate::record::Properties;

/// The results of Arrow's own calls.
pub(super) type Built<T> = Result<T, ArrowError>;

/// Texts, or bytes, one behind the other.
#[derive(Debug)]
pub(super) struct Texts {
    /// Where each one ends.
    ends: Vec<i32>,
    bytes: Vec<u8>,
    nulls: NullBufferBuilder,
}

impl Default for Texts {
    fn default() -> Self {
        Self { ends: Vec::new(), bytes: Vec::new(), nulls: NullBufferBuilder::new(0) }
    }
}

impl Texts {
    /// With room for as much as `like` has.
    fn like(like: &Self) -> Self {
        Self {
            ends: Vec::with_capacity(like.ends.len()),
            bytes: Vec::with_capacity(like.bytes.len() + like.bytes.len() / 16),
            nulls: NullBufferBuilder::new(like.ends.len()),
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

    /// Appends bytes to a text that `end` will end.
    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Ends a text.
    #[inline]
    pub(super) fn end(&mut self) {
        // A batch is bounded far below; see `ScanOptions::check`.
        self.ends.push(i32::try_from(self.bytes.len()).unwrap_or(i32::MAX));
        self.nulls.append_non_null();
    }

    #[inline]
    pub(super) fn push_or_null(&mut self, text: Option<&[u8]>) {
        let Some(text) = text else {
            self.ends.push(i32::try_from(self.bytes.len()).unwrap_or(i32::MAX));
            return self.nulls.append_null();
        };
        self.push(text);
    }

    /// The text at a place.
    fn get(&self, index: usize) -> &[u8] {
        let begin = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(begin);
        let place = |end: i32| usize::try_from(end).unwrap_or(0);
        self.bytes.get(place(begin)..place(end)).unwrap_or_default()
    }

    fn truncate(&mut self, length: usize) {
        self.ends.truncate(length);
        self.nulls.truncate(length);
        let end = self.ends.last().copied().unwrap_or(0);
        self.bytes.truncate(usize::try_from(end).unwrap_or(0));
    }

    fn parts(self) -> (OffsetBuffer<i32>, Buffer, Option<NullBuffer>) {
        let nulls = self.nulls.build();
        (offsets(self.ends), Buffer::from_vec(self.bytes), nulls)
    }

    fn binary(self) -> Built<BinaryArray> {
        let (offsets, bytes, nulls) = self.parts();
        BinaryArray::try_new(offsets, bytes, nulls)
    }

    fn strings(self) -> Built<StringArray> {
        let (offsets, bytes, nulls) = self.parts();
        // One look over all bytes at once.
        match StringArray::try_new(offsets.clone(), bytes.clone(), nulls.clone()) {
            Ok(strings) => Ok(strings),
            Err(_) => mended(&BinaryArray::try_new(offsets, bytes, nulls)?),
        }
    }
}

/// Some text is no UTF-8: what is not becomes U+FFFD.
#[cold]
fn mended(broken: &BinaryArray) -> Built<StringArray> {
    let texts: Vec<Option<Cow<'_, str>>> = broken.iter().map(|text| text.map(String::from_utf8_lossy)).collect();
    let bytes: usize = texts.iter().flatten().map(|text| text.len()).sum();
    if i32::try_from(bytes).is_err() {
        return Err(ArrowError::OffsetOverflowError(bytes));
    }
    Ok(texts.into_iter().collect())
}

/// Offsets from ends.
fn offsets(ends: Vec<i32>) -> OffsetBuffer<i32> {
    let mut offsets = Vec::with_capacity(ends.len() + 1);
    offsets.push(0);
    offsets.extend(ends);
    OffsetBuffer::new(ScalarBuffer::from(offsets))
}

/// Numbers, perhaps with nulls.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    values: Vec<T>,
    nulls: NullBufferBuilder,
}

impl<T: Copy + Default> Numbers<T> {
    fn with_capacity(rows: usize) -> Self {
        Self { values: Vec::with_capacity(rows), nulls: NullBufferBuilder::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn extend(&mut self, values: impl ExactSizeIterator<Item = T>) {
        self.nulls.append_n_non_nulls(values.len());
        self.values.extend(values);
    }

    pub(super) fn push_or_null(&mut self, value: Option<T>) {
        self.nulls.append(value.is_some());
        self.values.push(value.unwrap_or_default());
    }
}

/// Lists, each a run of the values behind them.
#[derive(Debug, Default)]
pub(super) struct Runs {
    ends: Vec<i32>,
}

impl Runs {
    pub(super) fn end_at(&mut self, length: usize) {
        self.ends.push(i32::try_from(length).unwrap_or(i32::MAX));
    }
}

/// Names and values, one pass over a record's properties each.
#[derive(Debug, Default)]
pub(super) struct Entries {
    runs: Runs,
    names: Texts,
    values: Texts,
}

impl Entries {
    /// A map's entries. Of equal names the last one counts.
    #[inline]
    pub(super) fn push(&mut self, properties: Properties<'_>) {
        let begin = self.names.len();
        let mut seen: u64 = 0;
        for (name, value) in properties.iter() {
            let mark = mark(name);
            if seen & mark != 0 && (begin..self.names.len()).any(|index| self.names.get(index) == name) {
                return self.push_again(begin, properties);
            }
            seen |= mark;
            self.names.push(name);
            self.values.push(value);
        }
        self.runs.end_at(self.names.len());
    }

    #[cold]
    fn push_again(&mut self, begin: usize, properties: Properties<'_>) {
        self.names.truncate(begin);
        self.values.truncate(begin);
        let all: Vec<_> = properties.iter().collect();
        for (index, (name, value)) in all.iter().enumerate() {
            if !all.iter().skip(index + 1).any(|(later, _)| later == name) {
                self.names.push(name);
                self.values.push(value);
            }
        }
        self.runs.end_at(self.names.len());
    }
}

/// One of 64 bits, by a name's length and ends: two names with different bits are different.
#[inline]
fn mark(name: &[u8]) -> u64 {
    let (first, last) = (name.first().copied().unwrap_or(0), name.last().copied().unwrap_or(0));
    let mixed = name.len().wrapping_mul(7) ^ usize::from(first).wrapping_mul(5) ^ usize::from(last);
    1 << (mixed & 63)
}

/// Addresses as text; the last one is remembered.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    texts: Texts,
    last: Option<SocketAddr>,
    text: String,
}

impl Hosts {
    #[inline]
    pub(super) fn push(&mut self, host: SocketAddr) {
        if self.last != Some(host) {
            self.last = Some(host);
            self.text = host.to_string();
        }
        self.texts.push(self.text.as_bytes());
    }
}

/// The values of one column.
#[derive(Debug)]
pub(super) enum Cells {
    Text(Texts),
    Host(Hosts),
    Words(Runs, Texts),
    Int(Numbers<i32>),
    Long(Numbers<i64>),
    Longs(Runs, Numbers<i64>),
    Time(Numbers<i64>),
    Bytes(Texts),
    Map(Entries),
}

impl Cells {
    /// Empty ones of a type.
    pub(super) fn of(field: &Field, is_host: bool) -> Self {
        let numbers = Numbers::with_capacity;
        match field.data_type() {
            DataType::Int32 => Self::Int(Numbers::with_capacity(0)),
            DataType::Int64 => Self::Long(numbers(0)),
            DataType::Timestamp(..) => Self::Time(numbers(0)),
            DataType::Binary => Self::Bytes(Texts::default()),
            DataType::Map(..) => Self::Map(Entries::default()),
            DataType::List(element) if *element.data_type() == DataType::Int64 => {
                Self::Longs(Runs::default(), numbers(0))
            }
            DataType::List(_) => Self::Words(Runs::default(), Texts::default()),
            _ if is_host => Self::Host(Hosts::default()),
            _ => Self::Text(Texts::default()),
        }
    }

    /// Empty ones, with room for as much as there is in these.
    pub(super) fn like(&self) -> Self {
        let runs = |runs: &Runs| Runs { ends: Vec::with_capacity(runs.ends.len()) };
        match self {
            Self::Text(texts) => Self::Text(Texts::like(texts)),
            Self::Host(hosts) => Self::Host(Hosts { texts: Texts::like(&hosts.texts), ..Hosts::default() }),
            Self::Words(words, texts) => Self::Words(runs(words), Texts::like(texts)),
            Self::Int(numbers) => Self::Int(Numbers::with_capacity(numbers.values.len())),
            Self::Long(numbers) => Self::Long(Numbers::with_capacity(numbers.values.len())),
            Self::Longs(lists, numbers) => Self::Longs(runs(lists), Numbers::with_capacity(numbers.values.len())),
            Self::Time(numbers) => Self::Time(Numbers::with_capacity(numbers.values.len())),
            Self::Bytes(texts) => Self::Bytes(Texts::like(texts)),
            Self::Map(entries) => Self::Map(Entries {
                runs: runs(&entries.runs),
                names: Texts::like(&entries.names),
                values: Texts::like(&entries.values),
            }),
        }
    }

    /// The array.
    pub(super) fn finish(self) -> Built<ArrayRef> {
        Ok(match self {
            Self::Text(texts) => Arc::new(texts.strings()?),
            Self::Host(hosts) => Arc::new(hosts.texts.strings()?),
            Self::Bytes(texts) => Arc::new(texts.binary()?),
            Self::Words(runs, texts) => {
                let words = Arc::new(texts.strings()?);
                Arc::new(ListArray::try_new(element(DataType::Utf8), offsets(runs.ends), words, None)?)
            }
            Self::Longs(runs, numbers) => {
                let values = Arc::new(Int64Array::new(numbers.values.into(), None));
                Arc::new(ListArray::try_new(element(DataType::Int64), offsets(runs.ends), values, None)?)
            }
            Self::Int(mut numbers) => Arc::new(Int32Array::new(numbers.values.into(), numbers.nulls.finish())),
            Self::Long(mut numbers) => Arc::new(Int64Array::new(numbers.values.into(), numbers.nulls.finish())),
            Self::Time(mut numbers) => {
                let times = TimestampMicrosecondArray::new(numbers.values.into(), numbers.nulls.finish());
                Arc::new(times.with_timezone(UTC))
            }
            Self::Map(entries) => {
                let pairs: Vec<ArrayRef> =
                    vec![Arc::new(entries.names.strings()?), Arc::new(entries.values.strings()?)];
                let pairs = StructArray::try_new(map_fields(), pairs, None)?;
                let field = Arc::new(Field::new("entries", DataType::Struct(map_fields()), false));
                Arc::new(MapArray::try_new(field, offsets(entries.runs.ends), pairs, None, false)?)
            }
        })
    }
}
