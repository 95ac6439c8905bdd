//! Compares the index of an open store with its log, for a repair.
//!
//! In:     an open store.
//! Out:    differences between index and log.
//! Always: writes nothing.
//! Not here: comparing queues and transactions (Python), repairing files (`repair`).

use super::Store;
use crate::base::error::Result;
use crate::base::java;
use crate::base::units::{PhysicalOffset, to_u64};
use crate::index::dispatch::{DispatchRequest, Dispatcher};
use crate::log::commit_log::Scanner;
use crate::record::properties::TAGS;

/// The maximum number of reported findings of one kind.
const FINDINGS_MAX: usize = 1_000;

impl Store {
    /// Returns the number of index entries, and a text for each problem: entries that point to no record with such a
    /// key, and keys without an entry.
    pub fn check_index(&self) -> Result<(u64, Vec<String>)> {
        let shared = &self.shared;
        shared.refresh()?;
        let (first, end) = (shared.log.segments.first(), shared.visible_end());
        let (mut expected, mut tags): (Vec<(PhysicalOffset, u32)>, Vec<_>) = (Vec::new(), Vec::new());
        let settings = shared.configuration.settings.lock().clone();
        Scanner::new(&shared.log, PhysicalOffset(first), end).run(
            |offset| settings.verify(offset),
            |view, _| {
                let mut dispatcher = Dispatcher::default();
                dispatcher.index(&DispatchRequest::of(view));
                let tag = view.properties.get_str(TAGS);
                tags.extend(tag.map(|tag| (view.physical_offset, java::index_hash(view.topic, &format!("T#{tag}")))));
                expected.extend(dispatcher.index.iter().map(|entry| (entry.physical_offset, entry.hash)));
                Ok(true)
            },
        )?;
        let mut found = shared.index_files.lock().chained()?;
        let inner = shared.inner.lock();
        let in_memory = inner.derived.dispatcher.index.iter().chain(inner.derived.index_in_flight.iter());
        found.extend(in_memory.map(|entry| (entry.physical_offset, entry.hash)));
        drop(inner);
        // The index may still contain records that retention removed, and before recovery those that a crash took.
        found.retain(|(physical_offset, _)| physical_offset.0 >= first && physical_offset.0 < end);
        for entries in [&mut expected, &mut tags, &mut found] {
            entries.sort_unstable();
            entries.dedup();
        }
        let finding = |(physical_offset, hash): &(PhysicalOffset, u32), what: &str| {
            format!("index: {what} (hash {hash}, record at {physical_offset})")
        };
        let missing = expected.iter().filter(|entry| found.binary_search(entry).is_err());
        // A RocketMQ 5.4 broker also indexes tags. txstore does not query them, and accepts their entries.
        let wrong =
            found.iter().filter(|entry| expected.binary_search(entry).is_err() && tags.binary_search(entry).is_err());
        let texts = missing.take(FINDINGS_MAX).map(|entry| finding(entry, "a key of a record does not lead to it"));
        let texts = texts
            .chain(wrong.take(FINDINGS_MAX).map(|entry| finding(entry, "an entry leads to no record with such a key")));
        Ok((to_u64(found.len()), texts.collect()))
    }
}
