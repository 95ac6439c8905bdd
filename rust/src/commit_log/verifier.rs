//! Verifier: sums up records in front of who reads a long part of the log, in a thread of its own.
//!
//! In:     from where on a thread is worth its start, and how records are verified.
//! Out:    what is left to verify at an offset.
//! Always: whoever reads decodes each record, and verifies itself what the thread has not; where no thread can be had,
//!         all of it.
//! Not here: what a bad record means; the thread stops at it and says nothing.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{CommitLog, Scanner, Tail};
use crate::record::decode::Verify;
use crate::sync::{AtomicBool, AtomicU64};
use crate::units::PhysicalOffset;

/// The thread stays within so many bytes of the reader, who finds them in the processor's cache.
const WINDOW: u64 = 4 << 20;
/// Bytes after which the two tell each other how far they are.
const STEP: u64 = 64 << 10;
/// In which the reader does not get through the window.
const NAP: Duration = Duration::from_micros(100);

#[derive(Debug, Default)]
struct Progress {
    verified: AtomicU64,
    reader: AtomicU64,
    over: AtomicBool,
}

/// Has `read` go through the log, with a thread in front of it from `from` on, up to `limit`; what it is handed stands for
/// `verify`.
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
                // Without it the reader does all of it.
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
            let mut told = from;
            let scan = Scanner::new(log, PhysicalOffset(from), limit).run(verify, |view, _| {
                let end = view.physical_offset.0 + u64::from(view.size);
                if end < told + STEP {
                    return Ok(true);
                }
                told = end;
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

    /// Returns whether to go on from here: not where the reader is further, or has ended.
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
