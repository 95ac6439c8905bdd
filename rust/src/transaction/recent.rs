//! Remembers transactions that were committed or discarded in the last minutes, to refuse a half message that arrives
//! after its own end. A request delayed on its way would otherwise begin a second transaction, and a check would commit
//! it again.
//!
//! In:     identities with their outcomes, from ends and from recovery.
//! Out:    the outcome of a half message that is sent again.
//! Always: an end is remembered for at least five and at most ten minutes. Memory is bounded: if more than `KEPT_MAX`
//!         transactions end within five minutes, the oldest may be forgotten.
//!
//! Not here: snapshots. After an opening, only ends in the replayed part of the log are known.

use hashbrown::HashMap;

use super::Identity;
use crate::base::error::Outcome;

/// How long one generation collects, in milliseconds. Two are kept.
const GENERATION_MS: i64 = 5 * 60_000;
/// The maximum number of identities in one generation. Each takes 32 bytes, with the free part of the hash table.
const KEPT_MAX: usize = 1 << 17;

/// Recently ended transactions, in two generations. The older generation is dropped as a whole.
#[derive(Debug, Default)]
pub struct RecentlyEnded {
    current: HashMap<Identity, Outcome>,
    previous: HashMap<Identity, Outcome>,
    /// When the current generation began: during recovery a store timestamp, then on the monotonic clock.
    begun_ms: i64,
}

impl RecentlyEnded {
    /// Notes how a transaction ended.
    pub fn note(&mut self, identity: u64, outcome: Outcome, now_ms: i64) {
        if identity == 0 {
            return; // A half without id or group has no copies that could arrive late.
        }
        self.turn(now_ms);
        if outcome == Outcome::RolledBack {
            // A producer may retry with the same id after a rollback, and a check of a late half message rolls it back
            // again.
            self.current.remove(&Identity(identity));
            self.previous.remove(&Identity(identity));
            return;
        }
        if self.current.len() >= KEPT_MAX {
            self.previous = std::mem::take(&mut self.current);
            self.begun_ms = now_ms;
        }
        self.current.insert(Identity(identity), outcome);
    }

    /// Returns how a transaction of this identity ended, if it ended recently.
    pub fn outcome(&mut self, identity: Identity, now_ms: i64) -> Option<Outcome> {
        self.turn(now_ms);
        self.current.get(&identity).or_else(|| self.previous.get(&identity)).copied()
    }

    /// Ends recovery. From now on times use the monotonic clock.
    pub fn start(&mut self, wall_ms: i64, monotonic_ms: i64) {
        let age_ms = wall_ms.saturating_sub(self.begun_ms).clamp(0, 2 * GENERATION_MS);
        self.begun_ms = monotonic_ms - age_ms;
        self.turn(monotonic_ms);
    }

    fn turn(&mut self, now_ms: i64) {
        let age_ms = now_ms.saturating_sub(self.begun_ms);
        if age_ms < GENERATION_MS {
            return;
        }
        let ended = std::mem::take(&mut self.current);
        self.previous = if age_ms < 2 * GENERATION_MS { ended } else { HashMap::new() };
        self.begun_ms = now_ms;
    }
}
