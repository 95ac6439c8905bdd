//! Begins and accepts epochs: which node may write the log.
//!
//! In:     a higher epoch that another node has, or that this replica begins.
//! Out:    the end of the log at that moment. A store that was replaced writes nothing more.
//! Always: an epoch is on disk before a call returns. From the beginning of `accept_epoch` on, a source appends nothing
//!         and a replica takes nothing of a lower epoch, so the end that the call returns is final.
//! Not here: who asks which node (Python), what a node that rejoins must cut (`diverged`).

use std::collections::BTreeMap;

use super::{Shared, Store};
use crate::base::error::{Error, Result};
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, to_u64};
use crate::storage::epochs::{Epoch, Epochs, RecordMark};

impl Store {
    /// Returns what this node knows of epochs.
    pub fn epochs(&self) -> Epochs {
        self.shared.configuration.epochs.lock().clone()
    }

    /// Returns the number of the log's last epoch.
    pub fn epoch(&self) -> u64 {
        self.shared.configuration.epochs.lock().last()
    }

    /// Returns the highest epoch that this node has heard of.
    pub fn accepted_epoch(&self) -> u64 {
        self.shared.lifecycle.accepted_epoch()
    }

    /// Returns whether another node has replaced this one as the source.
    pub fn is_fenced(&self) -> bool {
        self.shared.lifecycle.is_fenced()
    }

    /// Accepts the epoch of another node, or the one that this replica is about to begin. `source` is the address of
    /// that node, if it is known. Returns the end of the log, which is durable.
    ///
    /// Fails with `InvalidOption` if a higher epoch was accepted, or this one for another node.
    pub fn accept_epoch(&self, number: u64, source: Option<&str>) -> Result<PhysicalOffset> {
        let shared = &self.shared;
        shared.check_writable("accepting an epoch")?;
        let mut accepted = self.epochs();
        if !accepted.accept(number, source) {
            return Err(refused(number, &accepted));
        }
        if !mutated(Mutant::EpochIgnored) {
            shared.lifecycle.accept(number, accepted.is_fenced());
        }
        // A write that began before has ended when the put lock is free.
        drop(shared.inner.lock());
        let end = shared.log.appended();
        shared.wait_durable(end)?;
        shared.change_epochs(
            |epochs| if epochs.accept(number, source) { Ok(()) } else { Err(refused(number, epochs)) },
        )?;
        shared.readers.announce();
        Ok(PhysicalOffset(end))
    }

    /// Begins the accepted epoch at the end of a replica's log. The store must be opened again to write. `is_partial`
    /// tells that a replica did not accept it, `instead_of` is the address of the source that this node replaces.
    pub fn begin_epoch(&self, is_partial: bool, instead_of: Option<&str>) -> Result<Epoch> {
        let shared = &self.shared;
        shared.check_writable("beginning an epoch")?;
        let before = self.epochs();
        if !shared.options.is_replica() || before.accepted <= before.last() {
            let what = format!("epoch {} was not accepted by a replica that can begin it", before.accepted);
            return Err(Error::InvalidOption { option: "epoch".into(), what });
        }
        let end = shared.log.appended();
        shared.wait_durable(end)?;
        let epoch = Epoch {
            number: before.accepted,
            start: end,
            last: self.last_mark()?,
            is_partial,
            instead_of: instead_of.map(str::to_owned),
        };
        shared.change_epochs(|epochs| {
            epochs.begin(epoch.clone());
            Ok(())
        })?;
        Ok(epoch)
    }

    /// Gives a replica what its source at `address` knows of epochs. Its log must not go beyond what both have.
    pub fn follow_epochs(&self, source: &Epochs, address: &str) -> Result<()> {
        self.shared.check_writable("following an epoch")?;
        self.shared.change_epochs(|epochs| {
            epochs.follow(source, address);
            Ok(())
        })?;
        self.shared.lifecycle.accept(source.last(), false);
        Ok(())
    }

    /// Notes how many copies a write has before it is acknowledged from now on.
    pub fn note_copies_required(&self, required: u64) -> Result<()> {
        self.shared.check_writable("noting the copies")?;
        let shown = self.shared.visible_end();
        self.shared.change_epochs(|epochs| {
            // What was shown while two copies were required may have been acknowledged with two copies.
            if epochs.required > 1 && required != epochs.required {
                epochs.acknowledged = epochs.acknowledged.max(shown);
            }
            epochs.required = required;
            Ok(())
        })
    }

    /// Notes a replica and its address; with `None`, forgets it. Returns false if it is not known.
    pub fn note_node(&self, name: &str, address: Option<&str>) -> Result<bool> {
        self.shared.check_writable("noting a replica")?;
        let mut is_known = false;
        self.shared.change_epochs(|epochs| {
            is_known = epochs.nodes.contains_key(name);
            match address {
                Some(address) => drop(epochs.nodes.insert(name.to_owned(), address.to_owned())),
                None => drop(epochs.nodes.remove(name)),
            }
            Ok(())
        })?;
        Ok(is_known)
    }

    /// Returns the addresses of the replicas, by name.
    pub fn nodes(&self) -> BTreeMap<String, String> {
        self.shared.configuration.epochs.lock().nodes.clone()
    }

    /// Returns the last record and its CRC; `None` in an empty log.
    pub fn last_mark(&self) -> Result<Option<RecordMark>> {
        let mark = |(offset, bytes): (PhysicalOffset, Vec<u8>)| RecordMark {
            physical_offset: offset.0,
            size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            crc: crc32fast::hash(&bytes),
        };
        Ok(self.last_record()?.map(mark))
    }

    /// Returns whether this log has a record.
    pub fn has_record(&self, mark: &RecordMark) -> bool {
        let end = self.shared.log.appended();
        let is_it = |bytes: &[u8]| to_u64(bytes.len()) == u64::from(mark.size) && crc32fast::hash(bytes) == mark.crc;
        self.shared.log.read(PhysicalOffset(mark.physical_offset), end, |_, bytes| is_it(bytes)).unwrap_or(false)
    }
}

impl Shared {
    /// Changes what is known of epochs, on disk first.
    pub(super) fn change_epochs(&self, change: impl FnOnce(&mut Epochs) -> Result<()>) -> Result<()> {
        // After a close, another process may own the file.
        let _one = self.maintenance.turn.lock();
        self.check_open()?;
        let before = self.configuration.epochs.lock().clone();
        let mut epochs = before.clone();
        change(&mut epochs)?;
        if epochs != before {
            epochs.store(self.storage.as_ref())?;
            *self.configuration.epochs.lock() = epochs;
        }
        Ok(())
    }

    /// Fails for a write of a store that was replaced.
    #[inline]
    pub(super) fn check_not_fenced(&self, what: &'static str) -> Result<()> {
        if self.lifecycle.is_fenced() { Err(self.fenced(what)) } else { Ok(()) }
    }

    #[cold]
    fn fenced(&self, what: &'static str) -> Error {
        Error::Fenced { what, by: self.configuration.epochs.lock().source.clone() }
    }
}

fn refused(number: u64, epochs: &Epochs) -> Error {
    let of = epochs.source.as_ref().map(|source| format!(" of {source}")).unwrap_or_default();
    let what = format!("{number} is not above epoch {}{of}, which was accepted", epochs.accepted);
    Error::InvalidOption { option: "epoch".into(), what }
}
