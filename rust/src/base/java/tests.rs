//! Java's hashes: values that a JVM returns, and the fast implementation compared with the simple one.

use proptest::prelude::*;

use super::*;

fn slow(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[test]
fn known_values_of_a_jvm() {
    assert_eq!(hash_code(""), 0);
    assert_eq!(hash_code("TagA"), 2_598_919);
    assert_eq!(hash_code("标签C"), 26_572_492);
    assert_eq!(hash_code("d"), 100);
    assert_eq!(hash_code("polygenelubricants"), i32::MIN);
}

#[test]
fn tags_code_is_zero_without_tags_and_sign_extended_with() {
    assert_eq!(tags_code(None), 0);
    assert_eq!(tags_code(Some("")), 0);
    assert_eq!(tags_code(Some("polygenelubricants")), -2_147_483_648);
}

#[test]
fn index_hash_of_the_least_integer_is_zero() {
    assert_eq!(index_hash_after(0, "polygenelubricants"), 0);
    assert_eq!(index_hash("a", "b"), slow("a#b").unsigned_abs());
}

proptest! {
    #[test]
    fn fast_equals_slow(text in "\\PC{0,80}", ascii in "[ -~]{0,80}") {
        prop_assert_eq!(hash_code(&text), slow(&text));
        prop_assert_eq!(hash_code(&ascii), slow(&ascii));
    }

    #[test]
    fn a_hash_continues_from_its_beginning(start in "\\PC{0,20}", end in "\\PC{0,20}") {
        prop_assert_eq!(extend_hash(hash_code(&start), &end), slow(&format!("{start}{end}")));
        let sharp = hash_code(&format!("{start}#"));
        prop_assert_eq!(index_hash(&start, &end), index_hash_after(sharp, &end));
    }
}
