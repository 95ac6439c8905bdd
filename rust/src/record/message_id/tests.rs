//! Ids have the digits that a RocketMQ client makes, and none is made twice.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const MARCH_2024: i64 = 1_709_251_200_000; // 2024-03-01T00:00:00Z

fn ids(address: &str) -> UniqueIds {
    UniqueIds::new(address.parse().unwrap(), 0x12_3456, 0x5FFD_2B27)
}

#[test]
fn the_digits_of_a_unique_id() {
    let id = ids("127.0.0.1").next(TimestampMs(MARCH_2024 + 0x1234));
    assert_eq!(id.as_str(), "7F00000134565FFD2B27000012340001");
    let id = ids("fd00::2").next(TimestampMs(MARCH_2024 + 0x1234));
    assert_eq!(id.to_string(), "FD00000000000000000000000000000234565FFD2B27000012340001");
}

#[test]
fn months_begin_on_their_first_day() {
    let ids = ids("127.0.0.1");
    let day = 86_400_000;
    for (now, since) in [
        (MARCH_2024 - 1, 29 * day - 1),
        (MARCH_2024, 0),
        (MARCH_2024 + 31 * day - 1, 31 * day - 1),
        (MARCH_2024 + 31 * day, 0),
        (1_735_689_600_000, 0), // 2025-01-01
        (4_107_542_400_000, 0), // 2100-03-01, after a February without a leap day
        (4_107_542_400_000 - day, 27 * day),
        (5, 5),
    ] {
        assert_eq!(i64::from(ids.since_month(u64::try_from(now).unwrap())), since, "{now}");
    }
}

#[test]
fn no_id_comes_twice_while_the_clock_stops_or_goes_back() {
    let ids = ids("127.0.0.1");
    let mut seen = HashSet::new();
    for _ in 0..70_000 {
        assert!(seen.insert(ids.next(TimestampMs(MARCH_2024))));
    }
    for back in 0..1_000 {
        assert!(seen.insert(ids.next(TimestampMs(MARCH_2024 - back))));
    }
    assert!(seen.insert(ids.next(TimestampMs(-1))) && seen.insert(ids.next(TimestampMs(i64::MAX))));
}

#[test]
fn no_id_comes_twice_from_two_threads() {
    let ids = ids("127.0.0.1");
    let make = || (0..20_000).map(|_| ids.next(TimestampMs(MARCH_2024))).collect::<Vec<_>>();
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(make);
        (make(), other.join().unwrap())
    });
    assert_eq!(one.iter().chain(&two).collect::<HashSet<_>>().len(), 40_000);
}

#[test]
fn what_is_not_an_offset_id() {
    for id in ["", "7F", "7F000001000051AF000000000000100G", "7F000001000151AF0000000000001000"] {
        assert_eq!(parse_offset_message_id(id), None, "{id}");
    }
    assert!(parse_offset_message_id("7f000001000051af0000000000001000").is_some());
    assert_eq!(parse_offset_message_id(&"ä".repeat(16)), None);
}

proptest! {
    #[test]
    fn an_offset_id_names_its_offset(address: IpAddr, port: u16, offset: u64) {
        let host = SocketAddr::new(address, port);
        let id = offset_message_id(host, PhysicalOffset(offset));
        prop_assert_eq!(id.len(), if address.is_ipv4() { 32 } else { 56 });
        prop_assert_eq!(parse_offset_message_id(&id), Some((host, PhysicalOffset(offset))));
    }
}
