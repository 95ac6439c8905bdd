//! When a message is to be delivered, as its properties say.
//!
//! In:     properties.
//! Out:    a point in time, or a time span.
//! Always: RocketMQ's rules, and for half messages a form of our own, which no broker reads. A delay level makes the other properties void, and so does `TIMER_OUT_MS`, which a message
//!         has that was delivered at its time. Of the others `TIMER_DELAY_SEC` counts before `TIMER_DELAY_MS`, and that
//!         before `TIMER_DELIVER_MS`.
//! Not here: how far ahead a time may be (the store), how messages wait (`index::timed`).

use super::properties::{DELAY, Properties, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_OUT_MS};
use crate::base::error::{Error, Result};
use crate::base::units::TimestampMs;

/// The properties that set the time of a delivery.
pub const TIMERS: &[&str] = &[TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS];

/// When to deliver a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// At this time.
    At(TimestampMs),
    /// This many milliseconds after it becomes due for storing: when it is sent, or when its transaction is committed.
    After(i64),
}

impl Timer {
    /// Reads the properties. `None`: the message is delivered at once, or by its delay level.
    pub fn of(properties: Properties<'_>) -> Result<Option<Self>> {
        let [seconds, milliseconds, at, out, level] =
            properties.get_all([TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS, DELAY]);
        if out.is_some() || level.and_then(|level| level.parse::<i64>().ok()).is_some_and(|level| level > 0) {
            return Ok(None);
        }
        Ok(match (seconds, milliseconds, at) {
            (Some(text), ..) => Some(Self::After(number(TIMER_DELAY_SEC, text)?.saturating_mul(1_000))),
            (None, Some(text), _) => Some(Self::After(number(TIMER_DELAY_MS, text)?)),
            (None, None, Some(text)) => Some(Self::At(TimestampMs(number(TIMER_DELIVER_MS, text)?))),
            (None, None, None) => None,
        })
    }

    /// Returns the timer of a half message, in the property `TRANSACTION_TIMER`.
    pub fn of_half(text: &str) -> Option<Self> {
        match text.strip_prefix('+') {
            Some(milliseconds) => milliseconds.parse().ok().map(Self::After),
            None => text.parse().ok().map(|at| Self::At(TimestampMs(at))),
        }
    }

    /// Returns the value of that property: milliseconds since the epoch, or with a plus since the commit.
    pub fn to_half(self) -> String {
        match self {
            Self::At(at) => at.0.to_string(),
            Self::After(milliseconds) => format!("+{milliseconds}"),
        }
    }

    /// Returns the time, if it is known before the message is stored.
    pub const fn at(self) -> Option<TimestampMs> {
        match self {
            Self::At(at) => Some(at),
            Self::After(_) => None,
        }
    }

    /// Returns the same if that is not yet.
    pub fn due_after(self, now: TimestampMs) -> Option<i64> {
        Some(self.due_ms(now)).filter(|due_ms| *due_ms > now.0)
    }

    /// Returns when a message that is stored `now` is due.
    pub const fn due_ms(self, now: TimestampMs) -> i64 {
        match self {
            Self::At(at) => at.0,
            Self::After(milliseconds) => now.0.saturating_add(milliseconds),
        }
    }
}

fn number(name: &str, text: &str) -> Result<i64> {
    text.parse()
        .map_err(|_| Error::InvalidMessage { what: format!("property {name} must be a whole number, got {text:?}") })
}

#[cfg(test)]
mod tests {
    use super::super::properties;
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Timer>> {
        let mut text = Vec::new();
        for (name, value) in pairs {
            properties::push(&mut text, name, value);
        }
        Timer::of(Properties(&text))
    }

    #[test]
    fn seconds_count_before_milliseconds_and_those_before_a_time() {
        let all = [(TIMER_DELIVER_MS, "5"), (TIMER_DELAY_MS, "6"), (TIMER_DELAY_SEC, "7")];
        for (known, expected) in [(1, Timer::At(TimestampMs(5))), (2, Timer::After(6)), (3, Timer::After(7_000))] {
            assert_eq!(of(&all[..known]).unwrap(), Some(expected));
        }
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[(TIMER_DELIVER_MS, "5"), (DELAY, "3")]).unwrap(), None);
        assert_eq!(of(&[(TIMER_DELIVER_MS, "5"), (DELAY, "0")]).unwrap(), Some(Timer::At(TimestampMs(5))));
        assert_eq!(of(&[(TIMER_DELIVER_MS, "5"), (TIMER_OUT_MS, "5")]).unwrap(), None);
        let refused = of(&[(TIMER_DELAY_SEC, "soon")]).unwrap_err().to_string();
        assert!(refused.contains("TIMER_DELAY_SEC") && refused.contains("soon"), "{refused}");
    }

    #[test]
    fn a_half_message_keeps_its_timer() {
        for timer in [0, 1, -1, i64::MAX, i64::MIN].map(|ms| [Timer::At(TimestampMs(ms)), Timer::After(ms)]).concat() {
            assert_eq!(Timer::of_half(&timer.to_half()), Some(timer));
        }
        assert_eq!(Timer::of_half("soon"), None);
    }

    #[test]
    fn a_span_counts_from_the_time_of_storing() {
        let now = TimestampMs(1_000);
        assert_eq!(Timer::At(TimestampMs(3)).due_ms(now), 3);
        assert_eq!(Timer::After(3).due_ms(now), 1_003);
        assert_eq!(Timer::After(i64::MAX).due_ms(now), i64::MAX);
    }
}
