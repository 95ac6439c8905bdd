//! Every order of the steps of a few threads, by loom: group commit, appends against a close, ends, and readers that
//! wait or follow.
//!
//! In:     the engine's own code with loom's locks and atomics (base/sync.rs), on storage in memory.
//! Out:    nothing, or the order in which something fails.
//! Always: a lost wake-up shows as a thread that never ends. Run by `make loom`, without ordinary tests.

use std::sync::atomic::Ordering;

use loom::model::Builder;
use loom::thread;

use super::*;
use crate::log::published::Published;
use crate::storage::{File, ReadMap, SharedMap};

/// The maximum number of preemptions. More find few bugs and take very long.
const PREEMPTIONS: usize = 2;
/// The stack size of a model's thread, in words. Opening a store needs more than loom's default of 4,096.
const STACK_WORDS: usize = 1 << 17;

fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(STACK_WORDS).spawn(run).unwrap()
}

fn explore(run: impl Fn() + Send + Sync + 'static) {
    let run = Arc::new(run);
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 100_000;
    let orders = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let tried = Arc::clone(&orders);
    builder.check(move || {
        tried.fetch_add(1, Ordering::Relaxed);
        let run = Arc::clone(&run);
        // The stack size of a model's first thread cannot be chosen.
        spawn(move || run()).join().unwrap();
    });
    let orders = orders.load(Ordering::Relaxed);
    eprintln!("{orders} orders");
    assert!(orders > 1, "the threads never met");
}

fn open(flush: FlushDiskType) -> (Bench, Arc<Store>) {
    let bench = Bench::new(flush);
    let store = Arc::new(bench.open());
    (bench, store)
}

/// The first thread syncs for all. No thread continues before its append is durable.
#[test]
fn group_commit_acknowledges_only_what_is_durable() {
    explore(|| {
        let (_bench, store) = open(FlushDiskType::Sync);
        let other = Arc::clone(&store);
        let thread = spawn(move || {
            let sent = send(&other, "t", b"a").unwrap();
            assert!(other.shared.log.durable() > sent.physical_offset.0);
        });
        let sent = send(&store, "t", b"b").unwrap();
        assert!(store.shared.log.durable() > sent.physical_offset.0);
        thread.join().unwrap();
        assert_eq!(store.shared.log.durable(), store.shared.log.appended());
    });
}

/// An append during a close is there at the next opening, or was refused. The store is clean in both cases.
#[test]
fn an_append_during_a_close_is_kept_or_refused() {
    explore(|| {
        let (bench, store) = open(FlushDiskType::Async);
        let other = Arc::clone(&store);
        let thread = spawn(move || send(&other, "t", b"a").is_ok());
        store.close().unwrap();
        let sent = thread.join().unwrap();
        let again = bench.open();
        assert!(again.open_report().clean);
        assert_eq!(bodies(&again, "t", 0).len(), usize::from(sent));
    });
}

/// Two threads end one transaction: one decides, the other gets the decision.
#[test]
fn two_ends_have_one_outcome() {
    explore(|| {
        let (_bench, store) = open(FlushDiskType::Sync);
        let half = prepare(&store, b"x");
        let (other, same) = (Arc::clone(&store), half.clone());
        let thread = spawn(move || end(&other, &same, EndKind::RollBack).is_ok());
        let committed = end(&store, &half, EndKind::Commit).is_ok();
        let rolled_back = thread.join().unwrap();
        assert!(committed != rolled_back, "committed: {committed}, rolled back: {rolled_back}");
        assert_eq!(bodies(&store, "orders", 1).len(), usize::from(committed));
    });
}

/// A waiting reader either sees the message before it sleeps, or is woken.
#[test]
fn a_waiting_reader_misses_no_message() {
    explore(|| {
        let (_bench, store) = open(FlushDiskType::Async);
        let other = Arc::clone(&store);
        let thread = spawn(move || send(&other, "t", b"a").unwrap());
        let end = store.wait_for_messages(PhysicalOffset(0), 1_000).unwrap();
        assert!(end.0 > 0);
        thread.join().unwrap();
    });
}

/// A close wakes a waiting reader.
#[test]
fn a_waiting_reader_hears_of_a_close() {
    explore(|| {
        let (_bench, store) = open(FlushDiskType::Async);
        let other = Arc::clone(&store);
        let thread = spawn(move || other.close().unwrap());
        assert!(matches!(store.wait_for_messages(PhysicalOffset(0), 1_000), Err(Error::StoreClosed)));
        thread.join().unwrap();
    });
}

/// Values that are shared with other processes, with loom's atomics.
#[derive(Clone, Debug)]
struct Values(Arc<Vec<loom::sync::atomic::AtomicU64>>);

impl SharedMap for Values {
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Acquire)
    }

    fn store(&self, index: usize, to: u64) -> Result<()> {
        self.0[index].store(to, Ordering::Release);
        Ok(())
    }

    fn values(&self) -> &[std::sync::atomic::AtomicU64] {
        &[]
    }
}

impl File for Values {
    fn len(&self) -> Result<u64> {
        Ok(0)
    }
    fn set_len(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn allocate(&self, _: std::ops::Range<u64>) -> Result<()> {
        Ok(())
    }
    fn punch(&self, _: std::ops::Range<u64>) -> Result<()> {
        Ok(())
    }
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
        Ok(())
    }
    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn map_read(&self) -> Result<Box<dyn ReadMap>> {
        Err(Error::StoreClosed)
    }
    fn map_range(&self, _: std::ops::Range<u64>) -> Result<Box<dyn ReadMap>> {
        Err(Error::StoreClosed)
    }
    fn map_shared(&self, _: usize) -> Result<Box<dyn SharedMap>> {
        Ok(Box::new(self.clone()))
    }
}

/// Within one epoch a reader's data did not change while it was read, and below the published end all is written.
#[test]
fn a_reader_believes_only_what_one_epoch_holds() {
    use loom::sync::atomic::AtomicU64 as Cell;
    explore(|| {
        let values = Values(Arc::new((0..16).map(|_| Cell::new(0)).collect()));
        let writer = Published::over(Box::new(values.clone()), Box::new(values.clone()));
        let reader = Published::over(Box::new(values.clone()), Box::new(values));
        // Two bytes of the log. A change that is not an append writes one after the other.
        let log = Arc::new((Cell::new(0), Cell::new(0)));
        let written = Arc::clone(&log);
        let thread = spawn(move || {
            writer.begin_change().unwrap();
            written.0.store(1, Ordering::Relaxed);
            written.1.store(1, Ordering::Relaxed);
            writer.end_change();
            written.0.store(1, Ordering::Relaxed);
            writer.set_appended(PhysicalOffset(7));
        });
        let epoch = reader.epoch();
        let appended = reader.appended().0;
        let (first, second) = (log.0.load(Ordering::Relaxed), log.1.load(Ordering::Relaxed));
        if reader.is_still(epoch) {
            assert_eq!(first, second, "read in the middle of a change");
        }
        if appended == 7 {
            assert_eq!((first, second), (1, 1), "published before it was written");
        }
        thread.join().unwrap();
    });
}
