//! Knows how far each replica's copy of the log goes.
//!
//! In:     what replicas say of their copies.
//! Out:    the end of the required number of copies, below which readers may see the log.
//! Always: a replica is known by its name, so that two connections of one replica are one copy.
//! Not here: the requests (`copy_log`), and what a replica does with the bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::fields::Refusal;
use crate::base::clock::{Clock, SystemClock};
use crate::base::error::{Error, Result};
use crate::base::sync::unmodelled::{Condvar, Mutex};
use crate::base::units::PhysicalOffset;
use crate::remoting::codes::response;
use crate::store::Store;

/// The maximum wait of the thread that looks at the log's end, in milliseconds.
const LOOK_MS: u64 = 200;
/// The most replicas. Each name that ever asked counts.
const REPLICAS_MAX: usize = 16;

/// What is required of the copies of the log.
#[derive(Clone, Copy, Debug)]
pub struct CopyRules {
    /// How many copies, with the store's own, a write has before it is acknowledged and visible.
    pub required: usize,
    /// How long a client waits for them. A replica that was silent for so long does not count as connected.
    pub timeout: Duration,
    /// Whether a copy counts only when it is synced, the store's own, too.
    pub durable: bool,
}

impl Default for CopyRules {
    fn default() -> Self {
        Self { required: 1, timeout: Duration::from_secs(3), durable: true }
    }
}

/// A replica as its requests describe it.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// Its copy goes up to here, and survives what the rules ask for.
    pub copied: u64,
    /// Milliseconds since its last request; 0 while one is held.
    pub silent_ms: u64,
    /// How many bytes of the log it lacks.
    pub lag_bytes: u64,
    /// Milliseconds since the first record that it lacks was stored; 0 if it lacks none.
    pub lag_ms: u64,
}

#[derive(Debug)]
struct Known {
    /// The most that it ever had. Not less if it begins again with an empty directory.
    acknowledged: u64,
    /// What it said last.
    copied: u64,
    /// When its last request was answered, by the monotonic clock.
    seen_ms: i64,
    held: u32,
}

impl Known {
    fn silent_ms(&self) -> u64 {
        u64::try_from(now_ms() - self.seen_ms).unwrap_or(0)
    }
}

#[derive(Debug)]
pub(super) struct Copies {
    pub(super) rules: CopyRules,
    replicas: Mutex<HashMap<String, Known>>,
    /// Signals that the first replica or slave asks, or that the server stops.
    came: Condvar,
    /// Whether a slave of RocketMQ has asked.
    has_slaves: AtomicBool,
    stopped: AtomicBool,
    /// The ends of the log: how far it may be copied, and how far it is visible.
    pub(super) ends: watch::Sender<(u64, u64)>,
    /// Up to where the required number of copies goes.
    copied: watch::Sender<u64>,
}

impl Copies {
    pub(super) fn new(rules: CopyRules) -> Self {
        Self {
            rules,
            replicas: Mutex::default(),
            came: Condvar::default(),
            has_slaves: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            ends: watch::Sender::new((0, 0)),
            copied: watch::Sender::new(0),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.came.notify_all();
        self.ends.send_modify(|_| ());
    }

    /// Returns what changes with the log's ends, for a slave of RocketMQ. Its copy counts for nothing.
    pub(super) fn follow(&self) -> watch::Receiver<(u64, u64)> {
        if !self.has_slaves.swap(true, Ordering::AcqRel) {
            self.came.notify_all();
        }
        self.ends.subscribe()
    }

    /// Looks at the log's end on behalf of all replicas. Runs until `stop` is called or the store is closed.
    pub(super) fn run(&self, store: &Store) {
        let mut replicas = self.replicas.lock();
        while replicas.is_empty() && !self.has_slaves.load(Ordering::Acquire) && !self.is_stopped() {
            replicas = self.came.wait_for(replicas, Duration::from_secs(1));
        }
        drop(replicas);
        let mut seen = PhysicalOffset(0);
        while !self.stopped.load(Ordering::Acquire) {
            match store.wait_copyable(seen, LOOK_MS) {
                Ok(end) => seen = end,
                Err(_) => break,
            }
            self.release(store);
            self.note_ends(store);
        }
        self.stop();
    }

    fn note_ends(&self, store: &Store) {
        let now = (store.copyable_end().0, store.visible_end().0);
        self.ends.send_if_modified(|ends| std::mem::replace(ends, now) != now);
    }

    /// Returns the replicas that have asked since the server was started, by name.
    pub(super) fn replicas(&self, store: &Store) -> Vec<Replica> {
        let silent_ms = |known: &Known| if known.held == 0 { known.silent_ms() } else { 0 };
        let replicas = self.replicas.lock();
        let known: Vec<_> =
            replicas.iter().map(|(name, known)| (name.clone(), known.copied, silent_ms(known))).collect();
        drop(replicas);
        let end = store.appended_end().0;
        let of = |(name, copied, silent_ms)| Replica {
            name,
            copied,
            silent_ms,
            lag_bytes: end.saturating_sub(copied.max(store.first_physical_offset().0)),
            lag_ms: lag_ms(store, copied),
        };
        let mut found: Vec<_> = known.into_iter().map(of).collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }

    /// Refuses a write if too few replicas are connected for the copies that it needs.
    pub(super) fn admit(&self) -> std::result::Result<(), Refusal> {
        let others = self.rules.required.saturating_sub(1);
        if others == 0 {
            return Ok(());
        }
        let is_live = |known: &&Known| known.held > 0 || u128::from(known.silent_ms()) < self.rules.timeout.as_millis();
        let live = self.replicas.lock().values().filter(is_live).count();
        if live >= others {
            return Ok(());
        }
        let remark = format!("{others} replicas must be connected, {live} are: nothing was stored");
        Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, remark))
    }

    /// Waits until the required number of copies goes up to `end`. Returns whether they did in time.
    pub(super) async fn wait(&self, store: &Store, end: PhysicalOffset) -> bool {
        self.release(store);
        let mut copied = self.copied.subscribe();
        let waited = tokio::time::timeout(self.rules.timeout, copied.wait_for(|copied| *copied >= end.0)).await;
        matches!(waited, Ok(Ok(_)))
    }

    /// Shows readers what the required number of copies has.
    fn release(&self, store: &Store) {
        let Some(others) = self.rules.required.checked_sub(2) else { return };
        let mut ends: Vec<u64> = self.replicas.lock().values().map(|known| known.acknowledged).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let Some(theirs) = ends.get(others) else { return };
        let own = if self.rules.durable { store.durable_end() } else { store.appended_end() };
        let copied = own.0.min(*theirs);
        store.show_up_to(PhysicalOffset(copied));
        self.copied.send_if_modified(|before| copied > std::mem::replace(before, copied.max(*before)));
        self.note_ends(store);
    }

    /// Notes how far a replica's copy goes; `None` if it does not say that yet.
    pub(super) fn acknowledge(
        &self,
        store: &Store,
        name: &str,
        end: Option<u64>,
    ) -> std::result::Result<Asking<'_>, Refusal> {
        let mut replicas = self.replicas.lock();
        if replicas.len() >= REPLICAS_MAX && !replicas.contains_key(name) {
            let remark = format!("{REPLICAS_MAX} replicas have asked since the start, at most");
            return Err(Refusal::new(response::SYSTEM_BUSY, remark));
        }
        let new = Known { acknowledged: 0, copied: 0, seen_ms: now_ms(), held: 0 };
        let known = replicas.entry(name.to_owned()).or_insert(new);
        if let Some(end) = end {
            known.acknowledged = known.acknowledged.max(end);
            known.copied = end;
        }
        known.held += 1;
        drop(replicas);
        self.came.notify_all();
        self.release(store);
        Ok(Asking { copies: self, name: name.to_owned() })
    }
}

/// A request of a replica, from its arrival to its answer.
pub(super) struct Asking<'a> {
    copies: &'a Copies,
    name: String,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(known) = self.copies.replicas.lock().get_mut(&self.name) {
            known.held -= 1;
            known.seen_ms = now_ms();
        }
    }
}

fn now_ms() -> i64 {
    SystemClock.monotonic_ms()
}

fn lag_ms(store: &Store, copied: u64) -> u64 {
    let stored = store.stored_from(PhysicalOffset(copied));
    stored.map_or(0, |stored| u64::try_from(SystemClock.wall().0 - stored.0).unwrap_or(0))
}

impl CopyRules {
    /// Checks the rules.
    pub fn check(&self) -> Result<()> {
        if (1..=REPLICAS_MAX).contains(&self.required) {
            return Ok(());
        }
        let what = format!("must be between 1 and {REPLICAS_MAX}, got {}", self.required);
        Err(Error::InvalidOption { option: "replicas_required".into(), what })
    }
}
