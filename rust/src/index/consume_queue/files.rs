//! Reads and writes the queues' files: blocks of entries by queue offset.
//!
//! In:     a queue's name and queue offsets.
//! Out:    bytes of entries.
//! Always: builds paths only from checked names. Keeps few handles, however many queues there are.
//! Not here: which entries are valid.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{Block, ConsumeQueue, ENTRY_SIZE, Entry};
use crate::base::error::{Error, Result};
use crate::base::names;
use crate::base::sync::unmodelled::Mutex;
use crate::base::units::{QueueId, to_u64, to_usize};
use crate::storage::segment::{SegmentQueue, make_file, make_file_unsynced};
use crate::storage::{File, OpenMode, Storage};

/// The directory of all queues.
pub const DIRECTORY: &str = "consumequeue";

/// Maximum number of open handles. When more files are in use, each new handle closes an old one.
const HANDLES_MAX: usize = 512;

/// Entries read in one call for comparing and searching.
const COMPARED_AT_ONCE: u64 = 1_024;

type Name = (Arc<str>, QueueId, u64);

/// An open file of a queue.
#[derive(Clone, Debug)]
struct Handle {
    file: Arc<dyn File>,
    /// Whether this process has set the file's length.
    lengthened: bool,
}

/// What to do if a file is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Leave,
    Create(NewFiles),
}

/// When files that a write creates become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewFiles {
    /// Before they are used: three syncs for a file in a new queue.
    Synced,
    /// With `sync_all`, which must follow.
    Unsynced,
}

/// The range of queue offsets that a queue's files cover.
#[derive(Clone, Debug)]
pub struct QueueExtent {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its queue id.
    pub queue_id: QueueId,
    /// The first queue offset that its files can hold.
    pub first: u64,
    /// One past the last queue offset that its files can hold.
    pub end: u64,
}

/// The files below `consumequeue/`.
#[derive(Debug)]
pub struct QueueFiles {
    storage: Arc<dyn Storage>,
    file_size: u64,
    read_only: bool,
    handles: Mutex<HashMap<Name, Handle>>,
}

impl QueueFiles {
    /// Creates access to files of `file_size` bytes each.
    pub fn new(storage: Arc<dyn Storage>, file_size: u64, read_only: bool) -> Self {
        Self { storage, file_size, read_only, handles: Mutex::new(HashMap::new()) }
    }

    /// Closes all handles. A later read opens the files that exist then.
    pub fn close_handles(&self) {
        self.handles.lock().clear();
    }

    /// Returns the size of one file in bytes.
    pub const fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Returns the number of entries in one file.
    pub fn entries_per_file(&self) -> u64 {
        self.file_size / to_u64(ENTRY_SIZE)
    }

    /// Returns every queue that has files.
    pub fn list(&self) -> Result<Vec<QueueExtent>> {
        let mut queues = Vec::new();
        for topic in self.storage.list(DIRECTORY)?.unwrap_or_default() {
            if !topic.is_dir || !names::valid_path_component(&topic.name) {
                continue;
            }
            let name: Arc<str> = topic.name.as_str().into();
            for queue in self.storage.list(&format!("{DIRECTORY}/{}", topic.name))?.unwrap_or_default() {
                let Some(queue_id) = queue.name.parse().ok().filter(|_| queue.is_dir).map(QueueId) else { continue };
                let directory = directory(&name, queue_id)?;
                let files = SegmentQueue::files(self.storage.as_ref(), &directory)?;
                for (base, file) in &files {
                    // A crash left this file empty at its creation. The next write creates it again.
                    if file.len == 0 {
                        continue;
                    }
                    if file.len != self.file_size || base % self.file_size != 0 {
                        return Err(Error::ForeignStore {
                            path: self.storage.root().join(format!("{directory}/{}", file.name)),
                            what: format!("it has {} bytes, the other queue files {}", file.len, self.file_size),
                        });
                    }
                }
                let (Some((first, _)), Some((last, _))) = (files.first(), files.last()) else { continue };
                let per_entry = to_u64(ENTRY_SIZE);
                queues.push(QueueExtent {
                    topic: Arc::clone(&name),
                    queue_id,
                    first: first / per_entry,
                    end: (last + self.file_size) / per_entry,
                });
            }
        }
        Ok(queues)
    }

    /// Reads the entries from `from` on, at most to the end of their file. Returns fewer if the file is missing.
    pub fn read(&self, topic: &Arc<str>, queue_id: QueueId, from: u64, entries: u64) -> Result<Vec<u8>> {
        let (base, at) = self.locate(from);
        let length = (entries * to_u64(ENTRY_SIZE)).min(self.file_size - at);
        let Some(file) = self.handle(topic, queue_id, base, Missing::Leave)? else { return Ok(Vec::new()) };
        let mut bytes = vec![0; to_usize(length)];
        file.read_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Returns the first entry after padding that a queue's files have, with its queue offset.
    pub fn first_entry(&self, topic: &Arc<str>, queue_id: QueueId) -> Result<Option<(u64, Entry)>> {
        let files = SegmentQueue::files(self.storage.as_ref(), &directory(topic, queue_id)?)?;
        let Some((base, _)) = files.iter().find(|(_, file)| file.len == self.file_size) else { return Ok(None) };
        let (mut at, end) = (base / to_u64(ENTRY_SIZE), (base + self.file_size) / to_u64(ENTRY_SIZE));
        while at < end {
            let bytes = self.read(topic, queue_id, at, COMPARED_AT_ONCE)?;
            for entry in bytes.as_chunks::<ENTRY_SIZE>().0.iter().map(|bytes| Entry::from_bytes(bytes)) {
                match entry {
                    Some(entry) if entry.is_padding() => at += 1,
                    Some(entry) => return Ok(Some((at, entry))),
                    None => return Ok(None),
                }
            }
            if bytes.is_empty() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Returns one past the last of a queue's entries in memory that its files hold, too, with no different entry
    /// before it.
    pub fn held(&self, queue: &ConsumeQueue) -> Result<u64> {
        let (mut at, mut rest) = (queue.settled(), queue.tail());
        while !rest.is_empty() {
            let found = self.read(&queue.topic, queue.queue_id, at, COMPARED_AT_ONCE.min(queue.next() - at))?;
            let (found, (here, _)) = (found.as_chunks::<ENTRY_SIZE>().0, rest.as_chunks::<ENTRY_SIZE>());
            let equal = found.iter().zip(here).take_while(|(found, here)| found == here).count();
            at += to_u64(equal);
            rest = rest.get(equal * ENTRY_SIZE..).unwrap_or_default();
            if equal == 0 || equal < found.len() {
                break;
            }
        }
        Ok(at)
    }

    /// Closes the open handles of a queue. The next read finds the files that exist then.
    pub fn close_queue(&self, topic: &Arc<str>, queue_id: QueueId) {
        self.handles.lock().retain(|name, _| (&name.0, name.1) != (topic, queue_id));
    }

    /// Returns an entry of a queue, from memory or file; `None` if it is not an entry or its file was removed.
    pub fn entry(&self, queue: &ConsumeQueue, at: u64) -> Result<Option<Entry>> {
        if at >= queue.settled() {
            return Ok(queue.in_memory(at));
        }
        Ok(Entry::from_bytes(&self.read(&queue.topic, queue.queue_id, at, 1)?))
    }

    /// Returns the first entry from `at` on that is not padding, with its queue offset.
    pub fn message_from(&self, queue: &ConsumeQueue, at: u64) -> Result<Option<(u64, Entry)>> {
        for at in at.max(queue.first)..queue.next() {
            if let Some(entry) = self.entry(queue, at)?.filter(|entry| !entry.is_padding()) {
                return Ok(Some((at, entry)));
            }
        }
        Ok(None)
    }

    /// Returns the first queue offset whose record begins at or after `minimum`; the queue's end if all begin before.
    /// Entries whose file was removed pointed before `minimum`.
    pub fn first_left(&self, queue: &ConsumeQueue, minimum: u64) -> Result<u64> {
        let is_left = |entry: &Entry| !entry.is_padding() && entry.physical_offset.0 >= minimum;
        if queue.first == queue.next() || self.entry(queue, queue.first)?.as_ref().is_some_and(is_left) {
            return Ok(queue.first);
        }
        let files = SegmentQueue::files(self.storage.as_ref(), &directory(&queue.topic, queue.queue_id)?)?;
        let in_files = files.iter().find(|(_, file)| file.len > 0).map(|(base, _)| base / to_u64(ENTRY_SIZE));
        let mut low = queue.first.max(in_files.unwrap_or(u64::MAX).min(queue.settled()));
        let mut high = queue.next();
        while low < high {
            let middle = low + (high - low) / 2;
            match self.message_from(queue, middle)?.filter(|(at, _)| *at < high) {
                Some((at, entry)) if entry.physical_offset.0 < minimum => low = at + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Removes the files of a queue that hold only entries below `first`, except the last file, which tells the queue's
    /// end. Returns how many it removed.
    pub fn remove_below(&self, topic: &str, queue_id: QueueId, first: u64) -> Result<usize> {
        let directory = directory(topic, queue_id)?;
        let mut files = SegmentQueue::files(self.storage.as_ref(), &directory)?;
        files.pop();
        files.retain(|(base, _)| (base + self.file_size) / to_u64(ENTRY_SIZE) <= first);
        for (base, file) in &files {
            self.handles.lock().retain(|name, _| !(&*name.0 == topic && name.1 == queue_id && name.2 == *base));
            // Files are removed from the front, each durably before the next, so that no crash leaves a gap.
            self.storage.unlink(&format!("{directory}/{}", file.name))?;
            self.storage.sync_dir(&directory)?;
        }
        Ok(files.len())
    }

    /// Returns the error for an entry that points to no message of its queue.
    pub fn damaged(&self, topic: &str, queue_id: QueueId, entry: u64, what: &str) -> Error {
        let (base, at) = self.locate(entry);
        Error::StoreCorrupt {
            file: self.storage.root().join(format!("{DIRECTORY}/{topic}/{queue_id}/{base:020}")),
            offset: at,
            what: format!(
                "entry {entry} is not that of message {entry} of {topic}/{queue_id}: {what}; a queue is derived from the log, and the next opening for writing builds it again"
            ),
        }
    }

    /// Writes a block of entries, and creates files as needed.
    pub fn write(&self, block: &Block, new: NewFiles) -> Result<()> {
        let Block { topic, queue_id, from, bytes, .. } = block;
        self.by_file(*from, bytes, |base, at, bytes| {
            match self.handle(topic, *queue_id, base, Missing::Create(new))? {
                Some(file) => file.write_at(bytes, at),
                None => Err(Error::StoreClosed),
            }
        })
    }

    /// Returns whether the files hold exactly this block.
    pub fn holds(&self, block: &Block) -> Result<bool> {
        let Block { topic, queue_id, from, bytes, .. } = block;
        let mut equal = true;
        self.by_file(*from, bytes, |base, at, bytes| {
            let entry = (base + at) / to_u64(ENTRY_SIZE);
            equal = equal && self.read(topic, *queue_id, entry, to_u64(bytes.len() / ENTRY_SIZE))? == bytes;
            Ok(())
        })?;
        Ok(equal)
    }

    /// Makes the files that hold the entries `from..to` durable.
    pub fn sync(&self, topic: &Arc<str>, queue_id: QueueId, from: u64, to: u64) -> Result<()> {
        let mut entry = from;
        while entry < to {
            let (base, _) = self.locate(entry);
            if let Some(file) = self.handle(topic, queue_id, base, Missing::Leave)? {
                file.sync()?;
            }
            entry = base / to_u64(ENTRY_SIZE) + self.entries_per_file();
        }
        Ok(())
    }

    /// Removes files that a killed process created without setting their length.
    pub fn remove_empty(&self) -> Result<()> {
        for topic in self.storage.list(DIRECTORY)?.unwrap_or_default().into_iter().filter(|topic| topic.is_dir) {
            let directory = format!("{DIRECTORY}/{}", topic.name);
            for queue in self.storage.list(&directory)?.unwrap_or_default().into_iter().filter(|queue| queue.is_dir) {
                let directory = format!("{directory}/{}", queue.name);
                for (_, file) in SegmentQueue::files(self.storage.as_ref(), &directory)? {
                    if file.len == 0 {
                        self.storage.unlink(&format!("{directory}/{}", file.name))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes all files and their names durable, whichever process wrote them: a killed process may have synced none of
    /// them.
    pub fn sync_all(&self) -> Result<()> {
        self.storage.sync_file_system()
    }

    /// Makes everything from entry `end` on zeros, and removes the files after it. `sync_all` makes that durable.
    pub fn cut(&self, topic: &Arc<str>, queue_id: QueueId, end: u64) -> Result<()> {
        let directory = directory(topic, queue_id)?;
        let (base, at) = self.locate(end);
        for (other, file) in SegmentQueue::files(self.storage.as_ref(), &directory)?.into_iter().rev() {
            if other > base || (other == base && at == 0) {
                self.close_queue(topic, queue_id);
                // Files are removed from the end, each durably before the next, so that no crash leaves a gap.
                self.storage.unlink(&format!("{directory}/{}", file.name))?;
                self.storage.sync_dir(&directory)?;
            }
        }
        if at > 0
            && let Some(file) = self.handle(topic, queue_id, base, Missing::Leave)?
            && !file.is_blank(at..self.file_size)?
        {
            // Each punch writes to the file system's journal, and most queues have no bytes there.
            file.punch(at..self.file_size)?;
        }
        Ok(())
    }

    fn handle(
        &self,
        topic: &Arc<str>,
        queue_id: QueueId,
        base: u64,
        missing: Missing,
    ) -> Result<Option<Arc<dyn File>>> {
        let name = (Arc::clone(topic), queue_id, base);
        let writes = missing != Missing::Leave;
        if let Some(kept) = self.handles.lock().get(&name).filter(|kept| kept.lengthened || !writes) {
            return Ok(Some(Arc::clone(&kept.file)));
        }
        let Some(mut handle) = self.open(&name, missing)? else { return Ok(None) };
        if writes && !handle.lengthened {
            // The sync at the file's creation may have failed in a process that could not remove the file any more.
            handle.file.set_len(self.file_size)?;
            handle.lengthened = true;
        }
        let file = Arc::clone(&handle.file);
        self.keep(name, handle);
        Ok(Some(file))
    }

    fn open(&self, (topic, queue_id, base): &Name, missing: Missing) -> Result<Option<Handle>> {
        let directory = directory(topic, *queue_id)?;
        let path = format!("{directory}/{base:020}");
        Ok(match (self.storage.len(&path)?, missing) {
            (Some(length), _) if length == self.file_size => {
                let mode = if self.read_only { OpenMode::Read } else { OpenMode::Write };
                Some(Handle { file: self.storage.open(&path, mode)?.into(), lengthened: false })
            }
            (_, Missing::Create(new)) => Some(Handle { file: self.create(&directory, &path, new)?, lengthened: true }),
            (_, Missing::Leave) => None,
        })
    }

    fn create(&self, directory: &str, path: &str, new: NewFiles) -> Result<Arc<dyn File>> {
        Ok(match new {
            NewFiles::Synced => {
                self.storage.create_dir(directory)?;
                make_file(self.storage.as_ref(), directory, path, self.file_size)?.into()
            }
            NewFiles::Unsynced => {
                self.storage.create_dir_unsynced(directory)?;
                make_file_unsynced(self.storage.as_ref(), path, self.file_size)?.into()
            }
        })
    }

    fn keep(&self, name: Name, handle: Handle) {
        let mut handles = self.handles.lock();
        if handles.len() >= HANDLES_MAX
            && !handles.contains_key(&name)
            && let Some(any) = handles.keys().next().cloned()
        {
            handles.remove(&any);
        }
        handles.insert(name, handle);
    }

    /// Returns the file's base in bytes and the position in it.
    fn locate(&self, entry: u64) -> (u64, u64) {
        let position = entry * to_u64(ENTRY_SIZE);
        (position - position % self.file_size, position % self.file_size)
    }

    fn by_file(&self, from: u64, block: &[u8], mut act: impl FnMut(u64, u64, &[u8]) -> Result<()>) -> Result<()> {
        let (mut base, mut at) = self.locate(from);
        let mut rest = block;
        while !rest.is_empty() {
            let room = to_usize(self.file_size - at).min(rest.len());
            let (here, after) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            act(base, at, here)?;
            (base, at, rest) = (base + self.file_size, 0, after);
        }
        Ok(())
    }
}

/// Returns a queue's directory. Checks the topic's name again, because a path is built from it.
fn directory(topic: &str, queue_id: QueueId) -> Result<String> {
    if names::valid_path_component(topic) && queue_id.0 >= 0 {
        Ok(format!("{DIRECTORY}/{topic}/{queue_id}"))
    } else {
        Err(Error::InvalidName { what: format!("queue {queue_id} of topic {topic:?} cannot name a directory") })
    }
}
