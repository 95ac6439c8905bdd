//! One rule says where a log ends, and every caller gets the same answer.

#[cfg(feature = "arrow")]
mod agreement;
mod directory;
mod files;
mod known;
#[cfg(feature = "arrow")]
mod log;
#[cfg(feature = "arrow")]
mod time;

use super::tail::{Cause, Facts, Follows, LastWriter, Reached, Tail};

const FOLLOWS: [Follows; 4] = [Follows::Nothing, Follows::QueueEntry, Follows::Bytes, Follows::LaterRecord];
const WRITERS: [LastWriter; 3] = [LastWriter::MayWrite, LastWriter::Closed, LastWriter::Crashed];
const REACHED: [Reached; 3] = [Reached::Unknown, Reached::No, Reached::Yes];

/// The whole rule, one line for each combination of facts: whose range, closed or not, what the checkpoint says; then
/// the answers if nothing, a queue entry, bytes, or a record in a later file follow.
#[test]
fn the_rule_of_a_logs_end() {
    use Tail::{Damaged, End, Stale, Torn};
    const LATER: Tail = Damaged(Cause::LaterRecord);
    const OLDER: Tail = Damaged(Cause::BeforeCheckpoint);
    const CLOSED: Tail = Damaged(Cause::Closed);
    let rule = [
        // ours, clean
        (true, false, Reached::Unknown, [End, End, Torn, LATER]),
        (true, false, Reached::No, [End, OLDER, OLDER, OLDER]),
        (true, false, Reached::Yes, [End, End, Torn, LATER]),
        (true, true, Reached::Unknown, [End, CLOSED, CLOSED, LATER]),
        (true, true, Reached::No, [End, OLDER, OLDER, OLDER]),
        (true, true, Reached::Yes, [End, End, CLOSED, LATER]),
        (false, false, Reached::Unknown, [End, End, Torn, LATER]),
        (false, false, Reached::No, [End, OLDER, OLDER, OLDER]),
        (false, false, Reached::Yes, [End, End, Stale, Stale]),
        (false, true, Reached::Unknown, [End, CLOSED, CLOSED, LATER]),
        (false, true, Reached::No, [End, OLDER, OLDER, OLDER]),
        (false, true, Reached::Yes, [End, End, Stale, Stale]),
    ];
    for (is_ours, is_clean, reached, answers) in rule {
        for (follows, answer) in FOLLOWS.into_iter().zip(answers) {
            let writer = if is_clean { LastWriter::Closed } else { LastWriter::Crashed };
            let facts = Facts { is_below_durable: false, writer, is_ours, reached, follows };
            assert_eq!(facts.tail(), answer, "{facts:?}");
        }
    }
}

/// Below the known end everything is damage. Where another process may be writing, nothing else is.
#[test]
fn what_is_known_outweighs_what_follows() {
    for (is_ours, writer) in [false, true].into_iter().flat_map(|is_ours| WRITERS.map(|writer| (is_ours, writer))) {
        for (reached, follows) in REACHED.into_iter().flat_map(|reached| FOLLOWS.map(|follows| (reached, follows))) {
            let facts = Facts { is_below_durable: true, writer, is_ours, reached, follows };
            assert_eq!(facts.tail(), Tail::Damaged(Cause::BelowDurable), "{facts:?}");
            let facts = Facts { is_below_durable: false, writer: LastWriter::MayWrite, ..facts };
            assert_eq!(facts.tail(), Tail::NotYet, "{facts:?}");
        }
    }
}
