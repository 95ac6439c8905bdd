//! Counts survive the end of a process, in files that may be torn, damaged, missing, or anything.

use proptest::prelude::*;

use super::*;
use crate::storage::memory::{CrashKeep, FaultKind, Memory};

fn queue(name: &str) -> Consumed {
    Consumed { topic: "orders".to_owned(), name: name.to_owned(), queue_id: QueueId(3) }
}

fn load(memory: &Memory) -> Deliveries {
    Deliveries::load(memory, |_| Some(0)).unwrap()
}

fn counts(of: &[(u64, u32)]) -> Counts {
    of.iter().copied().collect()
}

fn files(memory: &Memory) -> Vec<(String, u64)> {
    let entries = memory.list(DIRECTORY).unwrap().unwrap_or_default();
    entries.into_iter().map(|entry| (entry.name, entry.len)).collect()
}

/// Replaces the files, with what the queues of this run have.
fn replace(memory: &Memory, deliveries: &mut Deliveries, queues: &[(&str, &[(u64, u32)])]) -> bool {
    let replaces = deliveries.replace(memory).unwrap();
    if replaces {
        for (name, counts) in queues {
            deliveries.note(memory, &queue(name), true, counts).unwrap();
        }
        deliveries.end(memory).unwrap();
    }
    replaces
}

fn read_all(bytes: &[u8]) -> BTreeMap<Consumed, Earlier> {
    let mut found = BTreeMap::new();
    read_notes(bytes, &mut found);
    found
}

#[test]
fn counts_are_there_after_the_end_of_the_process() {
    let memory = Memory::new();
    let mut deliveries = load(&memory);
    deliveries.note(&memory, &queue("a"), true, &[]).unwrap();
    assert_eq!(files(&memory), [], "nothing to note makes no file");
    deliveries.note(&memory, &queue("a"), false, &[(7, 1), (8, 1), (9, 2)]).unwrap();
    deliveries.note(&memory, &queue("b"), false, &[(7, 5)]).unwrap();
    deliveries.note(&memory, &queue("a"), false, &[(8, 2)]).unwrap();
    let memory = memory.crash(0, CrashKeep::PageCache);
    let mut deliveries = load(&memory);
    assert_eq!(deliveries.take(&queue("a")), counts(&[(7, 1), (8, 2), (9, 2)]));
    assert_eq!(deliveries.take(&queue("a")), Counts::new());
    assert_eq!(deliveries.take(&queue("b")), counts(&[(7, 5)]));
    assert_eq!(deliveries.take(&queue("c")), Counts::new());
}

#[test]
fn a_queue_may_begin_again() {
    let memory = Memory::new();
    let mut deliveries = load(&memory);
    deliveries.note(&memory, &queue("a"), false, &[(7, 1), (8, 1)]).unwrap();
    deliveries.note(&memory, &queue("a"), true, &[(8, 3)]).unwrap();
    assert_eq!(load(&memory).take(&queue("a")), counts(&[(8, 3)]));
}

#[test]
fn what_was_acknowledged_is_left_out() {
    let memory = Memory::new();
    let mut deliveries = load(&memory);
    for name in ["here", "done"] {
        deliveries.note(&memory, &queue(name), false, &[(7, 1), (8, 1)]).unwrap();
    }
    let committed = |queue: &Consumed| Some(if queue.name == "here" { 8 } else { 9 });
    let mut deliveries = Deliveries::load(&memory, committed).unwrap();
    assert_eq!(deliveries.earlier.len(), 1);
    assert_eq!(deliveries.take(&queue("here")), counts(&[(8, 1)]));
}

#[test]
fn what_a_group_without_an_offset_had_is_kept_for_one_run() {
    let memory = Memory::new();
    load(&memory).note(&memory, &queue("gone"), false, &[(7, 1)]).unwrap();
    // Killed before the group's first offset was stored: each run has what the one before had.
    let nowhere = |_: &Consumed| None;
    for deliveries in 1..4 {
        let mut run = Deliveries::load(&memory, nowhere).unwrap();
        assert_eq!(run.take(&queue("gone")), counts(&[(7, deliveries)]));
        run.note(&memory, &queue("gone"), true, &[(7, deliveries + 1)]).unwrap();
        run.end(&memory).unwrap();
    }
    // Nobody reads it in this run.
    let mut run = Deliveries::load(&memory, nowhere).unwrap();
    run.note(&memory, &queue("other"), false, &[(1, 1)]).unwrap();
    run.end(&memory).unwrap();
    let mut last = Deliveries::load(&memory, nowhere).unwrap();
    assert_eq!((last.take(&queue("gone")), last.take(&queue("other"))), (Counts::new(), counts(&[(1, 1)])));
}

#[test]
fn a_run_keeps_the_files_of_the_one_before_until_it_has_noted_all() {
    let memory = Memory::new();
    load(&memory).note(&memory, &queue("a"), false, &[(1, 1)]).unwrap();
    load(&memory).note(&memory, &queue("b"), false, &[(2, 1)]).unwrap();
    // A run that has taken the counts of a queue, and is killed before it notes them.
    let mut killed = load(&memory);
    assert!(!killed.replace(&memory).unwrap(), "a run without notes writes nothing");
    assert_eq!(killed.take(&queue("a")), counts(&[(1, 1)]));
    killed.note(&memory, &queue("c"), false, &[(3, 1)]).unwrap();
    assert!(killed.replace(&memory).unwrap());
    let mut next = load(&memory);
    let all = ["a", "b", "c"].map(|name| next.take(&queue(name)));
    assert_eq!(all, [counts(&[(1, 1)]), counts(&[(2, 1)]), counts(&[(3, 1)])]);
    next.note(&memory, &queue("a"), true, &[(1, 2)]).unwrap();
    assert!(replace(&memory, &mut next, &[("a", &[(1, 2)])]));
    assert!(!replace(&memory, &mut next, &[]));
    assert_eq!(files(&memory).len(), 1);
    let mut last = load(&memory);
    assert_eq!(["a", "b", "c"].map(|name| last.take(&queue(name)).len()), [1, 0, 0], "what ended was not noted again");
}

#[test]
fn files_are_bounded_by_what_is_in_flight() {
    let memory = Memory::new();
    let mut deliveries = load(&memory);
    let mut longest = 0;
    for at in 0..60_000 {
        deliveries.note(&memory, &queue("a"), false, &[(at, 1)]).unwrap();
        if at % 100 == 0 {
            longest = longest.max(files(&memory).iter().map(|(_, len)| len).sum());
            replace(&memory, &mut deliveries, &[("a", &[(at, 1)])]);
        }
    }
    assert!(longest < LONG + 20_000, "{longest} bytes");
    assert_eq!(files(&memory).len(), 1);
    assert!(load(&memory).take(&queue("a")).contains_key(&59_999));
}

#[test]
fn a_failed_write_is_overwritten_by_the_next() {
    let clean = Memory::new();
    let mut deliveries = load(&clean);
    deliveries.note(&clean, &queue("a"), false, &[(1, 1)]).unwrap();
    for (call, written) in (1..=5).flat_map(|call| [(call, 0), (call, 5), (call, 40)]) {
        let memory = clean.crash(0, CrashKeep::PageCache);
        let mut deliveries = load(&memory);
        memory.fail_at(memory.calls() + call, FaultKind::Tear(written), false);
        let failed = deliveries.note(&memory, &queue("a"), false, &[(2, 1)]).is_err();
        memory.clear_fault();
        deliveries.note(&memory, &queue("a"), false, &[(3, 1)]).unwrap();
        let found = load(&memory).take(&queue("a"));
        let expected: &[(u64, u32)] = if failed { &[(1, 1), (3, 1)] } else { &[(1, 1), (2, 1), (3, 1)] };
        assert_eq!(found, counts(expected), "call {call} failed after {written} bytes");
    }
}

#[test]
fn a_torn_or_damaged_note_ends_its_file_and_costs_only_counts() {
    let notes = [&[(1, 1)][..], &[(2, 1), (3, 1)], &[(4, 9)]].map(|counts| to_bytes(&queue("a"), SOME, counts));
    let ends: Vec<usize> = notes
        .iter()
        .scan(0, |end, note| {
            Some({
                *end += note.len();
                *end
            })
        })
        .collect();
    let bytes = notes.concat();
    let whole = |length: usize| ends.iter().filter(|end| **end <= length).count();
    let expected = [0, 1, 3, 4];
    let count = |bytes: &[u8]| read_all(bytes).values().map(|earlier| earlier.counts.len()).sum::<usize>();
    for length in 0..=bytes.len() {
        assert_eq!(count(&bytes[..length]), expected[whole(length)], "torn at {length}");
        let zeros = [&bytes[..length], &vec![0; bytes.len() - length]].concat();
        assert!(count(&zeros) <= 4, "zeros from {length}");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert_eq!(count(&damaged), expected[whole(at)], "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn a_note_of_anything_takes_no_more_memory_than_all_counts_may() {
    let run = |first: u64, messages: u32| {
        let mut note = Writer::new();
        note.u32(0);
        note.text("orders");
        note.text("a");
        note.i32(0);
        note.u64(first);
        note.u32(messages);
        note.u32(1);
        let note = note.seal(SEAL);
        [&u32::try_from(note.len()).unwrap().to_le_bytes()[..], &note].concat()
    };
    let many = [run(0, u32::MAX), run(1 << 40, u32::MAX), run(u64::MAX, 1), run(5, 1)].concat();
    let found = read_all(&many);
    assert_eq!(found.values().map(|earlier| earlier.counts.len()).sum::<usize>(), COUNTS_MAX);
    assert_eq!(
        read_all(&run(u64::MAX - 1, 2)).values().map(|earlier| earlier.counts.len()).sum::<usize>(),
        0,
        "past the last offset"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_like_one_that_is_missing() {
    let memory = Memory::new();
    load(&memory).note(&memory, &queue("a"), false, &[(1, 1)]).unwrap();
    memory.create_dir(&format!("{DIRECTORY}/7")).unwrap();
    memory.create_dir(&format!("{DIRECTORY}/other")).unwrap();
    let mut deliveries = load(&memory);
    assert_eq!(deliveries.take(&queue("a")), counts(&[(1, 1)]));
    deliveries.note(&memory, &queue("a"), true, &[(1, 2)]).unwrap();
    assert_eq!(load(&memory).take(&queue("a")), counts(&[(1, 2)]));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
        let length = u32::try_from(bytes.len()).unwrap();
        read_all(&[&length.to_le_bytes()[..], &bytes].concat());
        let mut sealed = Writer::new();
        sealed.bytes(&bytes);
        let sealed = sealed.seal(SEAL);
        read_all(&[&u32::try_from(sealed.len()).unwrap().to_le_bytes()[..], &sealed].concat());
    }

    #[test]
    fn any_counts_are_the_same_again(noted in prop::collection::btree_map(0..40_u64, 1..3_u32, 0..30)) {
        let list: Vec<_> = noted.iter().map(|(at, count)| (*at, *count)).collect();
        let found = read_all(&to_bytes(&queue("a"), SOME, &list));
        prop_assert_eq!(found.get(&queue("a")).cloned().unwrap_or_default().counts, noted);
    }
}
