//! `StoreStat`: statistics of an open store, each a number.
//!
//! Out:    an object that a client can make again from the numbers that a server sent.

use pyo3::prelude::*;

/// Statistics of an open store.
#[pyclass(frozen, module = "txstore._native")]
pub(super) struct StoreStat(pub(super) crate::store::StoreStat);

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident: $kind:ty),* $(,)?) => {
        #[pymethods]
        impl StoreStat {
            #[new]
            #[pyo3(signature = (*, $($name),*))]
            #[allow(clippy::too_many_arguments)] // Python passes each statistic by its name.
            const fn new($($name: $kind),*) -> Self {
                Self(crate::store::StoreStat { $($name),* })
            }

            $(
                $(#[$doc])*
                #[getter]
                const fn $name(&self) -> $kind {
                    self.0.$name
                }
            )*

            fn __repr__(&self) -> String {
                format!("{:?}", self.0)
            }
        }
    };
}

statistics! {
    /// The physical offset at which the log begins.
    min_physical_offset: u64,
    /// The physical offset after the last record.
    max_physical_offset: u64,
    /// The physical offset below which everything is on disk.
    durable_physical_offset: u64,
    /// The physical offset below which readers see everything.
    visible_physical_offset: u64,
    /// The physical offset at which the next opening begins to scan.
    snapshot_physical_offset: u64,
    /// Bytes of a file of the log.
    commit_log_file_size: u64,
    /// Bytes of a file of a queue.
    consume_queue_file_size: u64,
    /// Slots of an index file.
    max_hash_slot_num: u32,
    /// Entries of an index file.
    max_index_num: u32,
    /// How many queues there are, including those of the system.
    queues: usize,
    /// How many index files there are.
    index_files: usize,
    /// How many transactions are pending.
    pending_transactions: u64,
    /// Memory that the table of pending transactions uses.
    pending_table_bytes: usize,
    /// How many ended halves the table remembers.
    decided_halves: u64,
}
