//! Verifies CRCs ahead of a reader of a long part of the log, in a thread of its own.
//!
//! In:     the offset from which a thread is worth its start, and how records are verified.
//! Out:    what is left to verify at an offset.
//! Always: the reader decodes each record, and verifies what the thread has not. Without a thread it verifies
//!         everything.
//! Not here: what a bad record means. The thread stops at it and reports nothing.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{CommitLog, Scanner, Tail};
use crate::base::sync::{AtomicBool, AtomicU64};
use crate::base::units::PhysicalOffset;
use crate::record::decode::Verify;

/// The thread stays within this many bytes of the reader, so that the reader finds them in the processor's cache.
const WINDOW: u64 = 4 << 20;
/// Bytes after which reader and thread tell each other their progress.
const STEP: u64 = 64 << 10;
/// A pause in which the reader cannot get through the window.
const NAP: Duration = Duration::from_micros(100);

#[derive(Debug, Default)]
struct Progress {
    verified: AtomicU64,
    reader: AtomicU64,
    over: AtomicBool,
}

/// Runs `read` over the log with a verifying thread ahead of it, from `from` up to `limit`. The function that `read`
/// receives replaces `verify`.
pub fn verified_ahead<T>(
    log: &CommitLog,
    from: u64,
    limit: u64,
    verify: impl Fn(u64) -> Verify + Sync,
    read: impl FnOnce(&dyn Fn(u64) -> Verify) -> T,
) -> T {
    let progress = Progress::default();
    thread::scope(|scope| {
        let work = || progress.go_ahead(log, limit, &verify);
        let (started, known) = (Cell::new(false), Cell::new(0));
        let found = read(&|offset| {
            if offset >= known.get() {
                progress.reader.store(offset, Ordering::Relaxed);
                known.set(progress.verified.load(Ordering::Acquire).min(offset + STEP));
            }
            if offset >= from && !started.replace(true) {
                // Without the thread the reader verifies everything.
                let _ = thread::Builder::new().name("txstore-verify".into()).spawn_scoped(scope, work);
            }
            if offset < known.get() { Verify::NOTHING } else { verify(offset) }
        });
        progress.over.store(true, Ordering::Relaxed);
        found
    })
}

impl Progress {
    fn go_ahead(&self, log: &CommitLog, limit: u64, verify: &impl Fn(u64) -> Verify) {
        let mut from = self.reader.load(Ordering::Relaxed);
        loop {
            let mut published = from;
            let scan = Scanner::new(log, PhysicalOffset(from), limit).run(verify, |view, _| {
                let end = view.physical_offset.0 + u64::from(view.size);
                if end < published + STEP {
                    return Ok(true);
                }
                published = end;
                self.verified.store(end, Ordering::Release);
                Ok(self.waits_for_the_reader(end))
            });
            let Ok(scan) = scan else { return };
            if scan.tail != Tail::Stopped {
                self.verified.store(scan.end, Ordering::Release);
                return;
            }
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            from = self.reader.load(Ordering::Relaxed);
        }
    }

    /// Waits while the thread is too far ahead. Returns false if the reader has passed it or has ended.
    fn waits_for_the_reader(&self, verified: u64) -> bool {
        loop {
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            let reader = self.reader.load(Ordering::Relaxed);
            if verified <= reader + WINDOW {
                return verified >= reader;
            }
            thread::sleep(NAP);
        }
    }
}
