//! Makes and parses message ids: a producer's unique id, and the offset id that names a physical offset.
//!
//! In:     an address, a process, the time; or a host and a physical offset.
//! Out:    upper-case hex digits.
//! Always: one generator never makes an id twice within a month, whatever the clock does.
//! Not here: the clock.
//!
//! ```text
//!  unique id   address 4 | 16   process id 2   process-unique 4   milliseconds since the month began 4   counter 2
//!  offset id   address 4 | 16   port 4   physical offset 8
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::units::{PhysicalOffset, TimestampMs};

const UNIQUE_V4_DIGITS: usize = 2 * (4 + 2 + 4 + 4 + 2);
const UNIQUE_V6_DIGITS: usize = 2 * (16 + 2 + 4 + 4 + 2);
const OFFSET_V4_DIGITS: usize = 2 * (4 + 4 + 8);
const OFFSET_V6_DIGITS: usize = 2 * (16 + 4 + 8);
const MOMENT_DIGITS: usize = 2 * (4 + 2);
const DAY_MS: u64 = 86_400_000;
const COUNTER_BITS: u32 = 16;

/// A unique id: 32 hex digits where the address is IPv4, 56 where it is IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId {
    digits: [u8; UNIQUE_V6_DIGITS],
    len: usize,
}

impl UniqueId {
    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        // Only hex digits are ever written, so the fallback is never taken.
        self.digits.get(..self.len).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default()
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self})")
    }
}

/// The id of a message: one of ours, or the text that its client gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageId {
    /// An id made by txstore.
    Unique(UniqueId),
    /// An id given by a client.
    Text(Box<str>),
}

impl std::ops::Deref for MessageId {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Unique(id) => id.as_str(),
            Self::Text(text) => text,
        }
    }
}

/// Makes the unique ids of one process.
#[derive(Debug)]
pub struct UniqueIds {
    /// The digits that all ids share, then zeros.
    prefix: UniqueId,
    /// Milliseconds since the epoch and the counter of the newest id. It only grows, so no id is made twice, even if
    /// the clock stops, goes back, or the counter wraps within a millisecond.
    newest: AtomicU64,
    /// The day on which the month of the newest id began, counted from the epoch.
    month_day: AtomicU32,
}

impl UniqueIds {
    /// Creates a generator. `process_unique` tells apart processes with the same process id.
    pub fn new(address: IpAddr, pid: u32, process_unique: u32) -> Self {
        let mut prefix = UniqueId { digits: [b'0'; UNIQUE_V6_DIGITS], len: UNIQUE_V4_DIGITS };
        let [_, _, pid @ ..] = pid.to_be_bytes();
        let mut digits = prefix.digits.iter_mut();
        match address {
            IpAddr::V4(address) => put_hex(&mut digits, &address.octets()),
            IpAddr::V6(address) => {
                prefix.len = UNIQUE_V6_DIGITS;
                put_hex(&mut digits, &address.octets());
            }
        }
        put_hex(&mut digits, &pid);
        put_hex(&mut digits, &process_unique.to_be_bytes());
        Self { prefix, newest: AtomicU64::new(0), month_day: AtomicU32::new(0) }
    }

    /// Returns the next id.
    pub fn next(&self, now: TimestampMs) -> UniqueId {
        let newest = self.advance(u64::try_from(now.0).unwrap_or_default());
        let since_month = self.since_month(newest >> COUNTER_BITS).to_be_bytes();
        let [.., counter_high, counter_low] = newest.to_be_bytes();
        let mut id = self.prefix;
        if let Some(moment) = id.digits.get_mut(id.len - MOMENT_DIGITS..id.len) {
            let mut digits = moment.iter_mut();
            put_hex(&mut digits, &since_month);
            put_hex(&mut digits, &[counter_high, counter_low]);
        }
        id
    }

    /// Returns the next value of `newest`. The counter continues from one millisecond to the next, and carries into it
    /// when it wraps.
    fn advance(&self, now: u64) -> u64 {
        let after = |newest: u64| {
            let next = newest.wrapping_add(1);
            let counter = next & ((1 << COUNTER_BITS) - 1);
            next.max(now << COUNTER_BITS | counter)
        };
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            let next = after(newest);
            match self.newest.compare_exchange_weak(newest, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return next,
                Err(found) => newest = found,
            }
        }
    }

    /// Returns the milliseconds since the month (UTC) of `ms` began.
    fn since_month(&self, ms: u64) -> u32 {
        let day = u32::try_from(ms / DAY_MS).unwrap_or(u32::MAX);
        let mut month_day = self.month_day.load(Ordering::Relaxed);
        // The first 28 days of a month need no calendar; on later days the month is computed each time.
        if !(month_day..month_day.saturating_add(28)).contains(&day) {
            month_day = first_day_of_month(day);
            self.month_day.store(month_day, Ordering::Relaxed);
        }
        let ms = ms.saturating_sub(u64::from(month_day) * DAY_MS);
        u32::try_from(ms).unwrap_or(u32::MAX)
    }
}

/// Returns the day on which the month of `day` began; both since 1970-01-01.
fn first_day_of_month(day: u32) -> u32 {
    // Years are counted from March, so that the leap day comes last; 719,468 days lie between 0000-03-01 and 1970.
    let of_era = (u64::from(day) + 719_468) % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let before = of_year - (153 * month + 2) / 5;
    day.saturating_sub(u32::try_from(before).unwrap_or_default())
}

/// Returns the id that names a store's address and a physical offset of its log.
pub fn offset_message_id(host: SocketAddr, physical_offset: PhysicalOffset) -> String {
    let mut digits = [b'0'; OFFSET_V6_DIGITS];
    let mut rest = digits.iter_mut();
    match host {
        SocketAddr::V4(host) => put_hex(&mut rest, &host.ip().octets()),
        SocketAddr::V6(host) => put_hex(&mut rest, &host.ip().octets()),
    }
    put_hex(&mut rest, &u32::from(host.port()).to_be_bytes());
    put_hex(&mut rest, &physical_offset.0.to_be_bytes());
    let len = if host.is_ipv4() { OFFSET_V4_DIGITS } else { OFFSET_V6_DIGITS };
    digits.iter().take(len).copied().map(char::from).collect()
}

/// Returns the address and the physical offset that an offset id names; `None` if the text is not an offset id.
pub fn parse_offset_message_id(id: &str) -> Option<(SocketAddr, PhysicalOffset)> {
    let (address, rest) = match id.len() {
        OFFSET_V4_DIGITS => {
            let (address, rest) = take_hex::<4>(id.as_bytes())?;
            (IpAddr::V4(Ipv4Addr::from(address)), rest)
        }
        OFFSET_V6_DIGITS => {
            let (address, rest) = take_hex::<16>(id.as_bytes())?;
            (IpAddr::V6(Ipv6Addr::from(address)), rest)
        }
        _ => return None,
    };
    let (port, rest) = take_hex::<4>(rest)?;
    let (physical_offset, _) = take_hex::<8>(rest)?;
    let port = u16::try_from(u32::from_be_bytes(port)).ok()?;
    Some((SocketAddr::new(address, port), PhysicalOffset(u64::from_be_bytes(physical_offset))))
}

/// Writes two digits per byte and leaves the rest of `digits` for the next call.
fn put_hex(digits: &mut std::slice::IterMut<'_, u8>, bytes: &[u8]) {
    let values = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xF]);
    for (value, digit) in values.zip(digits) {
        *digit = if value < 10 { b'0' + value } else { b'A' + (value - 10) };
    }
}

fn take_hex<const N: usize>(digits: &[u8]) -> Option<([u8; N], &[u8])> {
    let (digits, rest) = digits.split_at_checked(2 * N)?;
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().try_fold(0, |byte, digit| Some(byte << 4 | hex_value(*digit)?))?;
    }
    Some((bytes, rest))
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
