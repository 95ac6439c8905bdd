//! Remembers transactions that were committed or discarded in the last minutes, so that a half message that arrives after
//! its own end is refused. A request that was stuck on its way would else begin a second transaction, which a check would commit again.
//!
//! In:     identities with their outcomes, as transactions end and as recovery replays the log.
//! Out:    the outcome of a half message that is sent once more.
//! Always: at least five minutes are remembered and at most ten. Memory is bounded: of more than `KEPT_MAX` ends within
//!         five minutes the oldest may be forgotten.
//!
//! Not here: snapshots. After an opening this knows what the replayed part of the log tells.

use hashbrown::HashMap;

use super::Identity;
use crate::error::Outcome;

/// How long one generation collects, in milliseconds. Two are kept.
const GENERATION_MS: i64 = 5 * 60_000;
/// Identities of one generation: 32 bytes each with what a hash table leaves free.
const KEPT_MAX: usize = 1 << 17;

/// Transactions that ended lately, in two generations: the older one is dropped as a whole.
#[derive(Debug, Default)]
pub struct RecentlyEnded {
    current: HashMap<Identity, Outcome>,
    previous: HashMap<Identity, Outcome>,
    /// When the current generation began: while recovery reads, a store timestamp; then on the monotonic clock.
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
            // A producer may try again under the same id, and a check of a late half message rolls it back once more.
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

    /// How a transaction of this identity ended, if it ended lately.
    pub fn outcome(&mut self, identity: Identity, now_ms: i64) -> Option<Outcome> {
        self.turn(now_ms);
        self.current.get(&identity).or_else(|| self.previous.get(&identity)).copied()
    }

    /// Ends the reading of the log: times are on the monotonic clock from here on.
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
