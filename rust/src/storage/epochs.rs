//! Stores which node may write the log, and where each term of a writer began: `txstore/epochs.json`.
//!
//! In:     epochs that this node began, accepted or copied from its source.
//! Out:    whether this node may write, and how far its log and another node's are the same.
//! Always: synced before a call returns. Checked by a CRC. A damaged file is an error, because without it a node that
//!         was replaced would write again. A store without the file is in epoch 1, which begins at 0.
//! Not here: when an epoch is accepted or begun.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::settings::DIRECTORY;
use crate::base::error::{Error, Result};
use crate::storage::Storage;
use crate::storage::config_file::{read_file, replace_file};

const PATH: &str = "txstore/epochs.json";
/// A file with a thousand epochs is smaller.
const SIZE_MAX: u64 = 1 << 20;
/// The epoch of a store that was never promoted.
const FIRST: u64 = 1;

/// A record, and the CRC-32 of its bytes. Two logs that have it are the same up to its end, because a record contains
/// its offset, its time and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMark {
    /// Where it begins.
    pub physical_offset: u64,
    /// Its size in bytes.
    pub size: u32,
    /// The CRC-32 of its bytes.
    pub crc: u32,
}

/// A term in which one node writes the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Its number. A later epoch has a higher one.
    pub number: u64,
    /// The physical offset at which it begins.
    pub start: u64,
    /// The last record before it; `None` if there is none.
    pub last: Option<RecordMark>,
    /// A replica did not accept it, so that messages that only that one had may be missing.
    pub is_partial: bool,
    /// The address of the source that its node replaced.
    pub instead_of: Option<String>,
}

/// What remains to be done to the log of a node that rejoins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The log ends here.
    pub end: u64,
    /// The directory that keeps what is cut, below the store's.
    pub kept: String,
}

/// What a node knows of epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// The epochs of the log, in order.
    pub list: Vec<Epoch>,
    /// The highest epoch that this node has heard of. It writes and copies nothing of a lower one.
    pub accepted: u64,
    /// The node copies another one's log.
    pub is_replica: bool,
    /// The address of the node that has the accepted epoch, if it is known.
    pub source: Option<String>,
    /// The addresses of the replicas, by name. An address is empty if it is not known.
    pub nodes: BTreeMap<String, String>,
    /// How many copies the log's newest records had before they were acknowledged.
    pub required: u64,
    /// Records below this end may have been acknowledged with two copies or more, whatever `required` is now.
    pub acknowledged: u64,
    /// What a rejoin has still to cut.
    pub cut: Option<Cut>,
}

impl Default for Epochs {
    fn default() -> Self {
        let first = Epoch { number: FIRST, start: 0, last: None, is_partial: false, instead_of: None };
        Self {
            list: vec![first],
            accepted: FIRST,
            is_replica: false,
            source: None,
            nodes: BTreeMap::new(),
            required: 1,
            acknowledged: 0,
            cut: None,
        }
    }
}

impl Epochs {
    /// Reads the file; `None` if there is none. Fails with `StoreCorrupt` if it is damaged.
    pub fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        let Some(bytes) = read_file(storage, PATH, SIZE_MAX)? else { return Ok(None) };
        let damaged = || Error::StoreCorrupt {
            file: PATH.into(),
            offset: 0,
            what: "it does not say which node may write the log".to_owned(),
        };
        Self::parse(&bytes).ok_or_else(damaged).map(Some)
    }

    /// Reads the file's bytes; `None` if they are damaged.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let value = serde_json::from_slice(bytes).ok()?;
        let read = Self::from_json(&value)?;
        let crc = value.get("crc")?.as_u64()?;
        (crc == u64::from(read.crc()) && !read.list.is_empty()).then_some(read)
    }

    /// Replaces the file.
    pub fn store(&self, storage: &dyn Storage) -> Result<()> {
        storage.create_dir(DIRECTORY)?;
        replace_file(storage, PATH, self.to_text().as_bytes(), false)
    }

    /// Returns the file's text.
    pub fn to_text(&self) -> String {
        let mut value = self.to_json();
        if let Value::Object(fields) = &mut value {
            fields.insert("crc".into(), self.crc().into());
        }
        format!("{value:#}\n")
    }

    fn crc(&self) -> u32 {
        crc32fast::hash(self.to_json().to_string().as_bytes())
    }

    /// Returns the number of the log's last epoch.
    pub fn last(&self) -> u64 {
        self.list.last().map_or(FIRST, |epoch| epoch.number)
    }

    /// Returns whether another node has replaced this one as the source.
    pub fn is_fenced(&self) -> bool {
        !self.is_replica && self.accepted > self.last()
    }

    /// Returns whether this node may write records of its own.
    pub fn may_write(&self) -> bool {
        !self.is_replica && !self.is_fenced() && self.cut.is_none()
    }

    /// Notes an epoch that another node begins, or that this one is about to begin. A source is fenced by it. Returns
    /// false, and changes nothing, if a higher epoch was accepted, or this one for another node.
    pub fn accept(&mut self, number: u64, source: Option<&str>) -> bool {
        let is_same = number == self.accepted && (self.source.as_deref() == source || self.source.is_none());
        let is_known = number == self.last() && !self.is_replica;
        if number < self.accepted || is_known || !(number > self.accepted || is_same) {
            return false;
        }
        self.accepted = number;
        self.source = source.map(str::to_owned);
        true
    }

    /// Begins the accepted epoch in this node, at the end of its log.
    pub fn begin(&mut self, epoch: Epoch) {
        // An epoch in which nothing was written is dropped.
        self.list.retain(|before| before.start < epoch.start);
        self.accepted = self.accepted.max(epoch.number);
        self.list.push(epoch);
        self.is_replica = false;
    }

    /// Takes over what a replica's source knows. The log must not go beyond what both have.
    pub fn follow(&mut self, source: &Self, address: &str) {
        self.list.clone_from(&source.list);
        self.accepted = self.accepted.max(source.last());
        self.is_replica = true;
        self.source = Some(address.to_owned());
        self.nodes.clone_from(&source.nodes);
        self.required = source.required;
        self.acknowledged = self.acknowledged.max(source.acknowledged);
        self.cut = None;
    }

    /// Returns how far this log, which ends at `end`, and another one are the same. In an epoch one node writes, so two
    /// logs that began it at the same offset are the same until either ends it.
    pub fn common_end(&self, end: u64, other: &Self, other_end: u64) -> u64 {
        let same = self.list.iter().rev().find_map(|epoch| {
            let is_same = |theirs: &&Epoch| (theirs.number, theirs.start) == (epoch.number, epoch.start);
            other.list.iter().find(is_same).map(|theirs| (epoch, theirs))
        });
        let Some((own, theirs)) = same else { return 0 };
        let here = self.end_of(own).unwrap_or(end).min(end);
        here.min(other.end_of(theirs).unwrap_or(other_end).min(other_end))
    }

    /// Returns the first epoch of another node that this one does not have.
    pub fn first_unknown<'a>(&self, other: &'a Self) -> Option<&'a Epoch> {
        let is_known =
            |epoch: &Epoch| self.list.iter().any(|own| (own.number, own.start) == (epoch.number, epoch.start));
        other.list.iter().find(|epoch| !is_known(epoch))
    }

    fn end_of(&self, epoch: &Epoch) -> Option<u64> {
        self.list.iter().find(|later| later.number > epoch.number).map(|later| later.start)
    }

    fn to_json(&self) -> Value {
        json!({
            "epochs": self.list.iter().map(Epoch::to_json).collect::<Vec<_>>(),
            "accepted": self.accepted,
            "replica": self.is_replica,
            "source": self.source,
            "nodes": self.nodes,
            "required": self.required,
            "acknowledged": self.acknowledged,
            "cut": self.cut.as_ref().map(|cut| json!({"end": cut.end, "kept": cut.kept})),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let cut = match value.get("cut")? {
            Value::Null => None,
            cut => Some(Cut { end: cut.get("end")?.as_u64()?, kept: cut.get("kept")?.as_str()?.to_owned() }),
        };
        let name = |(name, address): (&String, &Value)| Some((name.clone(), address.as_str()?.to_owned()));
        Some(Self {
            list: value.get("epochs")?.as_array()?.iter().map(Epoch::from_json).collect::<Option<_>>()?,
            accepted: value.get("accepted")?.as_u64()?,
            is_replica: value.get("replica")?.as_bool()?,
            source: optional(value.get("source")?),
            nodes: value.get("nodes")?.as_object()?.iter().map(name).collect::<Option<_>>()?,
            required: value.get("required")?.as_u64()?,
            acknowledged: value.get("acknowledged")?.as_u64()?,
            cut,
        })
    }
}

impl Epoch {
    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("epoch".into(), self.number.into());
        fields.insert("start".into(), self.start.into());
        let last = self.last.map(|last| json!({"offset": last.physical_offset, "size": last.size, "crc": last.crc}));
        fields.insert("last".into(), last.into());
        fields.insert("partial".into(), self.is_partial.into());
        fields.insert("insteadOf".into(), self.instead_of.clone().into());
        Value::Object(fields)
    }

    fn from_json(value: &Value) -> Option<Self> {
        let last = match value.get("last")? {
            Value::Null => None,
            last => Some(RecordMark {
                physical_offset: last.get("offset")?.as_u64()?,
                size: last.get("size")?.as_u64()?.try_into().ok()?,
                crc: last.get("crc")?.as_u64()?.try_into().ok()?,
            }),
        };
        Some(Self {
            number: value.get("epoch")?.as_u64()?,
            start: value.get("start")?.as_u64()?,
            last,
            is_partial: value.get("partial")?.as_bool()?,
            instead_of: optional(value.get("insteadOf")?),
        })
    }
}

/// Reads a text that may be null. The CRC covers that it is one of both.
fn optional(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
