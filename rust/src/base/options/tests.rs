//! Sizes that no broker could open are refused. The error names the option, the value and what is accepted.

use super::*;

fn refused(change: impl FnOnce(&mut StoreOptions)) -> Option<(String, String)> {
    let mut options = StoreOptions::default();
    change(&mut options);
    match options.check() {
        Ok(()) => None,
        Err(Error::InvalidOption { option, what }) => Some((option, what)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_log_file_is_as_large_as_a_java_int_counts() {
    let with = |size| refused(|options| options.commit_log_file_size = Some(size));
    assert_eq!(with((1 << 31) - 1), None);
    for size in [0, 4_095, 1 << 31, u64::MAX] {
        let (option, what) = with(size).unwrap();
        assert_eq!(option, "mapped_file_size_commit_log");
        assert!(what.contains(&size.to_string()) && what.contains("between 4096 and 2147483647 bytes"), "{what}");
    }
}

#[test]
fn a_consume_queue_file_is_a_whole_number_of_entries_that_a_java_int_counts() {
    let with = |size| refused(|options| options.consume_queue_file_size = Some(size));
    assert_eq!(with(20), None);
    assert_eq!(with(2_147_483_640), None);
    for size in [0, 2_147_483_647, 2_147_483_660, u64::MAX - u64::MAX % 20] {
        let (option, what) = with(size).unwrap();
        assert_eq!(option, "mapped_file_size_consume_queue");
        assert!(what.contains(&size.to_string()) && what.contains("between 20 and 2147483640 bytes"), "{what}");
    }
    let (_, what) = with(30).unwrap();
    assert!(what.contains("got 30") && what.contains("a multiple of 20"), "{what}");
}

#[test]
fn an_index_file_is_as_large_as_a_java_int_counts() {
    let slots = |slots| refused(|options| options.max_hash_slot_num = Some(slots));
    assert_eq!(slots(5_000_000), None);
    for number in [0, u32::MAX] {
        let (option, what) = slots(number).unwrap();
        assert_eq!(option, "max_hash_slot_num");
        assert!(what.contains(&number.to_string()) && what.contains("between 1 and "), "{what}");
    }
    let entries = |entries| refused(|options| options.max_index_num = Some(entries));
    assert_eq!(entries(20_000_000), None);
    for number in [0, 1, u32::MAX] {
        let (option, what) = entries(number).unwrap();
        assert_eq!(option, "max_index_num");
        assert!(what.contains(&number.to_string()) && what.contains("between 2 and "), "{what}");
    }
}
