//! The maps of the table: how much memory the identities take, and when it is given back.

use super::model::half;
use super::*;
use crate::transaction::identity_map::IdentityMap;
use crate::transaction::pending::Pending;
use crate::transaction::slab::{Key, Slab};

const MANY: usize = 112_000;
/// What a key and the hash table's own byte for it take, in a table that is full.
const KEY_BYTES: usize = 5;

struct Linked {
    slab: Slab,
    map: IdentityMap,
    keys: Vec<(Key, u64)>,
    template: Pending,
    seed: u64,
}

impl Linked {
    fn new() -> Self {
        let mut table = Table::new(0);
        let key = table.insert(&half(0, 1));
        let template = table.get(key).unwrap().clone();
        Self { slab: Slab::default(), map: IdentityMap::default(), keys: Vec::new(), template, seed: 42 }
    }

    fn link(&mut self) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let identity = self.seed;
        let key = self.slab.insert(Pending { identity, ..self.template.clone() });
        self.map.link(&self.slab, key);
        self.keys.push((key, identity));
    }

    fn unlink(&mut self) {
        let (key, identity) = self.keys.pop().unwrap();
        self.slab.remove(key);
        self.map.unlink(&self.slab, key, identity);
        assert_eq!(self.map.find(&self.slab, Identity(identity)), None);
    }
}

#[test]
fn the_map_of_identities_grows_in_small_steps() {
    let mut linked = Linked::new();
    let mut largest = 0;
    for _ in 0..MANY {
        let before = linked.map.memory();
        linked.link();
        largest = largest.max(linked.map.memory() - before);
    }
    assert!(largest < linked.map.memory() / 32, "{largest} of {} bytes at once", linked.map.memory());
}

#[test]
fn identities_that_have_reserved_memory_need_no_more() {
    let mut linked = Linked::new();
    linked.map.reserve(&linked.slab, MANY);
    let reserved = linked.map.memory();
    for _ in 0..MANY {
        linked.link();
    }
    assert_eq!(linked.map.memory(), reserved);
    assert!(reserved < 3 * MANY * KEY_BYTES, "{reserved} bytes");
}

/// Memory that is freed at once would be allocated again at the next spike.
#[test]
fn the_map_of_identities_keeps_its_room_until_few_are_left() {
    let mut linked = Linked::new();
    for _ in 0..MANY {
        linked.link();
    }
    let full = linked.map.memory();
    while linked.keys.len() > MANY / 3 {
        linked.unlink();
    }
    let third = linked.map.memory();
    assert!(third > full / 2, "{third} of {full} bytes");
    while linked.keys.len() > MANY / 20 {
        linked.unlink();
    }
    let less = linked.map.memory();
    assert!((full / 8..full / 2).contains(&less), "{less} of {full} bytes");
    while linked.keys.len() > 4 {
        linked.unlink();
    }
    let least = linked.map.memory();
    assert!(least < full / 2, "{least} of {full} bytes");
    for (key, identity) in &linked.keys {
        assert_eq!(linked.map.find(&linked.slab, Identity(*identity)), Some(*key));
    }
}
