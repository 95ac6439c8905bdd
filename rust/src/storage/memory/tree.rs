//! Tracks which file each name refers to, now and on the disk.
//!
//! In:     names created, renamed and removed; synced directories.
//! Out:    the tree now, or after a power loss.
//! Always: a change is durable once its directory is synced. Before that each change survives by chance, a rename as a
//!         whole.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use super::Choose;
use super::content::Content;
use crate::base::sync::unmodelled::Mutex;

pub(super) type Inode = Arc<Mutex<Content>>;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Dir,
    File(Inode),
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Put { path: String, node: Node },
    Remove { path: String },
    Move { from: String, to: String, node: Node },
}

impl Change {
    fn paths(&self) -> Vec<&str> {
        match self {
            Self::Put { path, .. } | Self::Remove { path } => vec![path],
            Self::Move { from, to, .. } => vec![from, to],
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    now: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    pending: Vec<Change>,
}

impl Tree {
    /// Returns the node at a path. Fails if a parent is a file.
    pub(super) fn find(&self, path: &str) -> io::Result<Option<Node>> {
        if path.is_empty() {
            return Ok(Some(Node::Dir));
        }
        for above in path.match_indices('/').filter_map(|(at, _)| path.get(..at)) {
            match self.now.get(above) {
                None => return Ok(None),
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                Some(Node::Dir) => {}
            }
        }
        Ok(self.now.get(path).cloned())
    }

    /// Returns the names directly below a directory.
    pub(super) fn names<'t>(&'t self, dir: &'t str) -> impl Iterator<Item = (&'t str, &'t Node)> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let below = self.now.range(prefix.clone()..).take_while(move |(path, _)| path.starts_with(&prefix));
        below.filter(move |(path, _)| parent(path) == dir).map(|(path, node)| (name(path), node))
    }

    pub(super) fn put(&mut self, path: &str, node: Node) {
        self.change(Change::Put { path: path.to_owned(), node });
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.change(Change::Remove { path: path.to_owned() });
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, node: Node) {
        self.change(Change::Move { from: from.to_owned(), to: to.to_owned(), node });
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.now, &change);
        self.pending.push(change);
    }

    /// Makes the changes in a directory durable, and earlier changes that they depend on.
    pub(super) fn sync(&mut self, dir: &str) {
        let mut paths: BTreeSet<String> = BTreeSet::new();
        let mut later = Vec::new();
        let mut now = Vec::new();
        for change in self.pending.drain(..).rev() {
            let touched = change.paths();
            let is_below = |path: &&str| paths.iter().any(|done| is_at_or_below(path, done));
            if touched.iter().any(|path| parent(path) == dir) || touched.iter().any(is_below) {
                paths.extend(touched.into_iter().map(str::to_owned));
                now.push(change);
            } else {
                later.push(change);
            }
        }
        now.iter().rev().for_each(|change| apply(&mut self.durable, change));
        self.pending.extend(later.into_iter().rev());
    }

    /// Makes all changes durable.
    pub(super) fn sync_all(&mut self) {
        self.durable = self.now.clone();
        self.pending.clear();
    }

    /// Returns once each file that has a name, or had one on the disk.
    pub(super) fn files(&self) -> Vec<Inode> {
        let mut known = HashSet::new();
        let nodes = self.now.values().chain(self.durable.values());
        let file = |node: &Node| match node {
            Node::File(file) => known.insert(Arc::as_ptr(file).addr()).then(|| Arc::clone(file)),
            Node::Dir => None,
        };
        nodes.filter_map(file).collect()
    }

    /// Returns the tree after its process was killed.
    pub(super) fn without_process(&self) -> Self {
        // A file may occur under several names; its copy stays one file.
        let mut copies: Vec<(Inode, Inode)> = Vec::new();
        let mut copy = |node: &Node| match node {
            Node::Dir => Node::Dir,
            Node::File(file) => {
                let known = copies.iter().find(|(from, _)| Arc::ptr_eq(from, file)).map(|(_, to)| Arc::clone(to));
                Node::File(known.unwrap_or_else(|| {
                    let new = Arc::new(Mutex::new(file.lock().without_process()));
                    copies.push((Arc::clone(file), Arc::clone(&new)));
                    new
                }))
            }
        };
        let mut tree = self.clone();
        tree.now.values_mut().chain(tree.durable.values_mut()).for_each(|node| *node = copy(node));
        for change in &mut tree.pending {
            if let Change::Put { node, .. } | Change::Move { node, .. } = change {
                *node = copy(node);
            }
        }
        tree
    }

    /// Returns the tree after a power loss, all of it durable.
    pub(super) fn after_power_loss(&self, choose: &mut Choose<'_>) -> Self {
        let mut survived = self.durable.clone();
        for change in &self.pending {
            if choose(1) == 1 {
                apply(&mut survived, change);
            }
        }
        let has_dir = |path: &str| parent(path).is_empty() || matches!(survived.get(parent(path)), Some(Node::Dir));
        let paths: BTreeSet<String> = survived.keys().filter(|path| has_dir(path)).cloned().collect();
        survived.retain(|path, _| paths.contains(path));
        for node in survived.values_mut() {
            if let Node::File(file) = node {
                let after = file.lock().after_power_loss(choose);
                *file = Arc::new(Mutex::new(after));
            }
        }
        Self { now: survived.clone(), durable: survived, pending: Vec::new() }
    }
}

fn apply(nodes: &mut BTreeMap<String, Node>, change: &Change) {
    match change {
        Change::Put { path, node } => {
            nodes.insert(path.clone(), node.clone());
        }
        Change::Remove { path } => {
            nodes.remove(path);
            let prefix = format!("{path}/");
            let names = nodes.range(prefix.clone()..).map(|(name, _)| name);
            let below: Vec<String> = names.take_while(|name| name.starts_with(&prefix)).cloned().collect();
            for name in below {
                nodes.remove(&name);
            }
        }
        Change::Move { from, to, node } => {
            nodes.remove(from);
            nodes.insert(to.clone(), node.clone());
        }
    }
}

fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}
