//! Names: what RocketMQ's own validator accepts and refuses, and that an error says why.

use super::*;

fn why(result: Result<()>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn ordinary_names_are_fine() {
    for name in ["orders", "%RETRY%group", "a|b-c_d%", "A", &"t".repeat(TOPIC_MAX)] {
        validate_topic(name).unwrap();
    }
    validate_topic(&format!("%DLQ%{}", "g".repeat(RETRY_TOPIC_MAX - 5))).unwrap();
    validate_group(&"g".repeat(GROUP_MAX)).unwrap();
}

#[test]
fn errors_say_what_is_wrong_and_what_is_allowed() {
    assert!(why(validate_topic("")).starts_with("the topic is empty\nhint: 1 to 127"));
    assert_eq!(why(validate_topic("a b")), "topic \"a b\" contains ' '; allowed are a-z A-Z 0-9 _ - % |");
    assert!(why(validate_topic("größe")).contains("contains 'ö'"));
    assert!(why(validate_topic("../x")).contains("contains '.'"));
    assert!(why(validate_topic("a\n")).contains(r"contains '\n'"));
    assert!(why(validate_topic(&"t".repeat(128))).contains("has 128 characters; at most 127"));
    assert!(why(validate_topic(&format!("%RETRY%{}", "g".repeat(249)))).contains("at most 255"));
    assert!(why(validate_group(&"g".repeat(121))).contains("has 121 characters; at most 120"));
    assert!(why(validate_topic(HALF_TOPIC)).contains("is reserved for the system"));
}

#[test]
fn a_long_name_does_not_fill_the_error() {
    assert!(why(validate_topic(&"ü".repeat(1_000_000))).len() < 300);
}

#[test]
fn the_system_s_topics_and_their_prefix() {
    for name in [HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC, SCHEDULE_TOPIC, "rmq_sys_wheel_timer", "TBW102"] {
        assert!(is_system_topic(name), "{name}");
        assert!(validate_topic(name).is_err(), "{name}");
    }
    assert!(!is_system_topic("RMQ_SYS_orders"));
    assert!(!is_system_topic("orders"));
}

#[test]
fn path_components() {
    assert!(valid_path_component("%RETRY%a|b"));
    assert!(valid_path_component(&"t".repeat(255)));
    for name in ["", ".", "..", "a/b", "a\0", "a.b", "ä", &"t".repeat(256)] {
        assert!(!valid_path_component(name), "{name:?}");
    }
}
