//! Tests which half messages are one transaction: reused ids, late resends, two resumes.

use super::*;
use crate::base::error::Outcome;
use crate::record::crc32;
use crate::record::layout::CRC_MASK;

fn prepare_parts(store: &Store, parts: &Parts<'_>, queue_id: i32, body: &[u8]) -> Result<Sent> {
    let envelope = Envelope::new(parts)?;
    let message = NewMessage { envelope: &envelope, body, queue_id: QueueId(queue_id) };
    let half = NewHalfMessage { message, group: GROUP, unique_id: Some("id-1"), owner: 0 };
    store.prepare(&half, Wait::Yes)?.acknowledged()
}

/// A consumer that forwards a message with all its properties must not be able to make the next crash discard it.
#[test]
fn a_property_that_counts_checks_is_refused() {
    for name in ["TRANSACTION_CHECK_TIMES", "__transactionId__", "PGROUP", "TRAN_PREPARED_QUEUE_OFFSET"] {
        let refused = Envelope::new(&Parts { topic: "orders", properties: &[(name, "15")], ..Parts::default() });
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("leave it out"), "{text}");
    }
}

#[test]
fn another_message_under_the_id_of_a_pending_one_is_refused() {
    let bench = Bench::sync();
    let store = bench.open();
    let parts = Parts { topic: "orders", keys: "o-1", tags: Some("a"), properties: &[("n", "1")], ..Parts::default() };
    let first = prepare_parts(&store, &parts, 1, b"paid").unwrap();
    let before = appended(&store);
    for other in [
        Parts { keys: "o-2", ..parts.clone() },
        Parts { tags: Some("b"), ..parts.clone() },
        Parts { properties: &[("n", "2")], ..parts.clone() },
        Parts { properties: &[], ..parts.clone() },
        Parts { flag: 7, ..parts.clone() },
    ] {
        let refused = prepare_parts(&store, &other, 1, b"paid").unwrap_err();
        assert!(matches!(refused, Error::InvalidMessage { .. }), "{refused:?}");
        assert!(refused.to_string().contains("id-1") && refused.to_string().contains("pending"), "{refused}");
    }
    assert_eq!(appended(&store), before);
    let resent = prepare_parts(&store, &parts, 3, b"paid").unwrap();
    assert_eq!((copy_of(&resent), resent.queue_id), (copy_of(&first), QueueId(1)), "the queue of what is stored");
}

/// Recovery would consider two bodies with one CRC and one id the same transaction, so the second is refused at once.
#[test]
fn bodies_of_one_crc_are_not_two_transactions_that_a_crash_makes_one() {
    let (one, other) = bodies_of_one_crc();
    let bench = Bench::sync();
    let store = bench.open();
    let parts = Parts { topic: "orders", ..Parts::default() };
    prepare_parts(&store, &parts, 1, &one).unwrap();
    let second = prepare_parts(&store, &parts, 1, &other);
    let after = bench.killed();
    assert_eq!(pending(&after.open()), pending(&store), "a crash changes nothing");
    assert!(matches!(second, Err(Error::InvalidMessage { .. })), "{second:?}");
}

/// Returns two different bodies with one CRC, found by adding the CRC's own polynomial.
fn bodies_of_one_crc() -> (Vec<u8>, Vec<u8>) {
    // A CRC is linear: a value whose CRC is zero can be added anywhere. 33 bits of the polynomial, from the lowest.
    let one = b"a body of some length".to_vec();
    let mut other = one.clone();
    let polynomial = 0x1_DB71_0641_u64; // 1 + the reflected polynomial 0xEDB88320, bit by bit
    for (byte, add) in other.iter_mut().zip(polynomial.to_le_bytes()) {
        *byte ^= add;
    }
    assert_ne!(one, other);
    assert_eq!(crc32(&one) & CRC_MASK, crc32(&other) & CRC_MASK);
    (one, other)
}

/// A half request that was delayed on its way arrives after its transaction ended. If it were stored again, its check
/// would commit it a second time.
#[test]
fn a_half_that_arrives_after_its_own_end_is_refused() {
    for (kind, outcome) in [(EndKind::Commit, Outcome::Committed), (EndKind::Discard, Outcome::Discarded)] {
        let bench = Bench::sync();
        let store = bench.open();
        let half = prepare_as(&store, b"body", Some("id-1")).unwrap();
        end(&store, &half, kind).unwrap();
        let before = appended(&store);
        let refused = |store: &Store| match prepare_as(store, b"body", Some("id-1")) {
            Err(Error::AlreadyEnded { transaction, outcome }) => (transaction, outcome),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&store), ("id-1".to_owned(), outcome));
        assert_eq!(appended(&store), before);
        assert_eq!(refused(&bench.killed().open()), ("id-1".to_owned(), outcome), "also after a crash");
        prepare_as(&store, b"another body", Some("id-1")).unwrap();
        bench.clock.advance(11 * 60_000);
        prepare_as(&store, b"body", Some("id-1")).unwrap();
        assert_eq!(pending(&store).len(), 2, "the id is free again after ten minutes");
        let later = bench.killed();
        later.clock.advance(11 * 60_000);
        assert_eq!(pending(&later.open()).len(), 2);
    }
}

/// Operator A searches, B resumes and its check commits, then A continues: the message must not be delivered twice.
#[test]
fn two_resumes_that_race_deliver_once() {
    let bench = Bench::sync();
    let store = bench.open();
    let half = prepare(&store, b"body");
    end(&store, &half, EndKind::Discard).unwrap();
    let looked = store.look_for_discarded(&half.unique_id).unwrap();
    let resumed = store.resume(&half.unique_id).unwrap();
    assert!(store.resume_looked_up(&half.unique_id, looked).unwrap().is_none(), "it is pending again");
    assert!(matches!(store.resume(&half.unique_id), Err(Error::StillPending { .. })));
    end(&store, &resumed, EndKind::Commit).unwrap();
    assert!(store.resume_looked_up(&half.unique_id, looked).unwrap().is_none(), "it was committed meanwhile");
    let late = store.resume(&half.unique_id);
    assert!(matches!(late, Err(Error::AlreadyEnded { outcome: Outcome::Committed, .. })), "{late:?}");
    assert!(pending(&store).is_empty());
    assert_eq!(bodies(&store, "orders", 1), [b"body"]);
}
