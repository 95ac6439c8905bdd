//! Verifier: sums up records in front of who reads a long part of the log, in a thread of its own.
//!
//! In: where reading begins, and how records are verified. Out: what is left to verify at an offset. Always: whoever reads
//! decodes each record, and verifies itself what the thread has not; where no thread can be had, all of it. Not here:
//! what a bad record means; the thread stops at it and says nothing.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::{CommitLog, Scanner, Tail};
use crate::record::decode::{RecordCrc, Verify};
use crate::sync::{AtomicBool, AtomicU64};
use crate::units::PhysicalOffset;

/// The thread stays within so many bytes of the reader, who finds them in the processor's cache.
const WINDOW: u64 = 4 << 20;
/// Bytes after which the two tell each other how far they are.
const STEP: u64 = 64 << 10;
/// In which the reader does not get through the window.
const NAP: Duration = Duration::from_micros(100);

const DECODED_ONLY: Verify = Verify { body_crc: false, record_crc: RecordCrc::Ignore };

#[derive(Debug)]
struct Progress {
    verified: AtomicU64,
    reader: AtomicU64,
    over: AtomicBool,
}

/// Has `read` go through the log from `from` on, up to `limit`; what it is handed stands for `verify`.
pub fn verified_ahead<T>(
    log: &CommitLog,
    from: u64,
    limit: u64,
    verify: impl Fn(u64) -> Verify + Sync,
    read: impl FnOnce(&dyn Fn(u64) -> Verify) -> T,
) -> T {
    let progress =
        Progress { verified: AtomicU64::new(from), reader: AtomicU64::new(from), over: AtomicBool::new(false) };
    thread::scope(|scope| {
        let work = || progress.go_ahead(log, limit, &verify);
        // Without it the reader does all of it.
        let _ = thread::Builder::new().name("txstore-verify".into()).spawn_scoped(scope, work);
        let known = Cell::new(from);
        let found = read(&|offset| {
            if offset >= known.get() {
                progress.reader.store(offset, Ordering::Relaxed);
                known.set(progress.verified.load(Ordering::Acquire).min(offset + STEP));
            }
            if offset < known.get() { DECODED_ONLY } else { verify(offset) }
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
            match scan {
                Ok(scan) if scan.tail == Tail::Stopped && !self.over.load(Ordering::Relaxed) => {
                    from = self.reader.load(Ordering::Relaxed);
                }
                Ok(scan) if scan.tail != Tail::Stopped => {
                    self.verified.store(scan.end, Ordering::Release);
                    return;
                }
                _ => return,
            }
        }
    }

    /// Whether to go on from here: not where the reader is further, or has ended.
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
