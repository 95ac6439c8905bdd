//! Transactions of several messages. On disk each message has an ordinary half message, final message and op, so that a
//! RocketMQ broker can take over. A property of the half messages ties them together.
//!
//! ```text
//! half queue   f        f+1      …   f+n-2      f+n-1
//!              half 1   half 2       half n-1   half 0      written together, in this order
//! ```
//! In:     the half messages of a transaction, in log order.
//! Out:    whether they are one transaction.
//! Always: a set exists once the half message of its first message is stored, the last of them, whose unique id is the
//!         transaction id. If the log ends before it, nothing was reported to the producer, and the others are rolled
//!         back. A copy of a half message has another queue offset, so it belongs to no set, whatever its property says.
//! Not here: ends.

use super::HalfCopy;
use crate::record::properties::{Properties, TRANSACTION_SET};

/// The maximum number of messages of one transaction.
pub const SET_MAX: usize = 1_000;

/// The position of a half message in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetMark {
    /// The half queue offset of the first half message.
    pub first: u64,
    /// The number of half messages of the set before this one.
    pub position: u64,
    /// The number of half messages of the set.
    pub count: u64,
}

impl SetMark {
    /// Returns the value of the property: half queue offset of the first, position, number of half messages.
    pub fn text(&self) -> String {
        format!("{},{},{}", self.first, self.position, self.count)
    }

    /// Returns the mark of a record of the set. `None` if it has none that can be valid.
    pub fn of(properties: Properties<'_>) -> Option<Self> {
        let mut numbers = properties.get_str(TRANSACTION_SET)?.split(',').map(str::parse);
        let (first, position, count) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok().filter(|count| *count > 1)?);
        (numbers.next().is_none() && position < count).then_some(Self { first, position, count })
    }

    /// Returns the number of messages of the transaction before this one.
    pub const fn index(&self) -> u64 {
        if self.is_last() { 0 } else { self.position + 1 }
    }

    /// Returns the mark of the message with an index. The half message of the first message comes last.
    #[must_use]
    pub const fn with_index(self, index: u64) -> Self {
        Self { position: if index == 0 { self.count - 1 } else { index - 1 }, ..self }
    }

    /// Returns whether the half message at a queue offset is the one that was marked, not a copy of it.
    pub const fn is_at(&self, queue_offset: u64) -> bool {
        match self.first.checked_add(self.position) {
            Some(marked) => marked == queue_offset,
            None => false,
        }
    }

    const fn is_last(&self) -> bool {
        self.position + 1 == self.count
    }
}

/// The half messages of a set, while recovery reads them.
#[derive(Debug, Default)]
pub(super) struct Forming {
    mark: Option<SetMark>,
    others: Vec<(HalfCopy, u32)>,
}

/// What a half message is for the sets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It belongs to no set.
    None,
    /// The half messages of its set are not complete yet.
    Another,
    /// It completes its set, which has these other half messages.
    Last(Vec<(HalfCopy, u32)>),
}

impl Forming {
    /// Takes a half message with its mark and size.
    pub(super) fn take(&mut self, mark: Option<SetMark>, copy: HalfCopy, size: u32) -> Part {
        let Some(mark) = mark.filter(|mark| mark.is_at(copy.queue_offset)) else { return Part::None };
        let is_next = if self.is_incomplete() { self.continues(Some(mark)) } else { mark.position == 0 };
        if !is_next {
            return Part::None;
        }
        if mark.is_last() {
            self.mark = None;
            return Part::Last(std::mem::take(&mut self.others));
        }
        self.mark = Some(mark);
        self.others.push((copy, size));
        Part::Another
    }

    /// Returns whether some half messages of a set were read, but not the last.
    pub(super) const fn is_incomplete(&self) -> bool {
        self.mark.is_some()
    }

    /// Returns whether a half message with this mark continues the incomplete set.
    pub(super) fn continues(&self, mark: Option<SetMark>) -> bool {
        let next = self.mark.map(|before| SetMark { position: before.position + 1, ..before });
        next.is_some() && next == mark
    }

    /// Returns the queue offset of the first half message of an incomplete set.
    pub(super) fn first(&self) -> Option<u64> {
        self.others.first().map(|(copy, _)| copy.queue_offset)
    }

    /// Returns the queue offsets of the half messages of an incomplete set, and forgets it.
    pub(super) fn abandon(&mut self) -> Vec<u64> {
        self.mark = None;
        std::mem::take(&mut self.others).into_iter().map(|(copy, _)| copy.queue_offset).collect()
    }
}
