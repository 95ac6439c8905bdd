//! The steps of clients, of the maintenance and of the clock, chosen by a seed.
//!
//! In:     a generator.
//! Out:    steps.
//! Not here: what a step does (machine.rs, rounds.rs, delays.rs, timed.rs, `hand_over.rs`, database.rs).

use txstore::store::{Decider, EndKind};

use crate::chance::Chance;
use crate::delays::LEVELS;
use crate::timed::{AHEAD_MS, FAR_AHEAD_MS};

/// Bodies, from those that share a sector to those that fill most of a file.
const SIZES: [usize; 7] = [1, 20, 90, 200, 450, 900, 2_500];
/// By how much the wall clock jumps, forwards or back.
const JUMPS_MS: [i64; 6] = [5_000, 70_000, 3_600_000, 86_400_000, 400 * 86_400_000, 11_000 * 86_400_000];

/// By how many milliseconds a message's time differs from now, and whether the client says it as a time span.
pub type Ahead = (i64, bool);

/// One action of a client or of the maintenance.
#[derive(Clone, Debug)]
pub enum Step {
    Send {
        topic: usize,
        queue: i32,
        messages: usize,
        size: usize,
    },
    Prepare {
        topic: usize,
        queue: i32,
        size: usize,
        owner: u32,
        named: bool,
        immunity: bool,
        time: Option<Ahead>,
    },
    /// Stores the half messages of a transaction of several messages.
    PrepareSet {
        which: usize,
        messages: usize,
        size: usize,
        owner: u32,
        time: Option<Ahead>,
    },
    /// A producer that got no answer resends its half.
    Resend {
        which: usize,
        queue: i32,
    },
    /// Prepares another message under the id of a pending half.
    BorrowId {
        which: usize,
    },
    /// Also of ended transactions, with the same kind or another.
    End {
        which: usize,
        kind: EndKind,
        decider: Decider,
    },
    /// With another group, an offset without a half, or another id.
    WrongEnd {
        which: usize,
    },
    Together {
        ends: Vec<(usize, EndKind)>,
    },
    LocalEnds {
        which: usize,
    },
    Resume {
        which: usize,
    },
    /// A round of checks. The producers that are asked answer `answer` later, if at all.
    Check {
        producers: bool,
        limit: usize,
        answer: Option<EndKind>,
    },
    Answer,
    Consume {
        topic: usize,
        queue: i32,
        group: usize,
        messages: usize,
        acknowledge: bool,
    },
    /// Reads as a reader in another process.
    Look,
    Flush,
    FlushRound,
    Snapshot,
    WriteOffsets,
    /// Removes this many files from the front of the log, as far as allowed.
    Expire {
        files: usize,
        keep_unread: bool,
    },
    /// Sends until the disk is full, then ends all pending transactions.
    FillDisk {
        kind: EndKind,
    },
    /// Deletes a topic's messages, while their records stay.
    Delete {
        topic: usize,
    },
    /// Removes the files that are older than this, as the job of a broker does.
    Retain {
        reserved_ms: i64,
    },
    /// Sends messages that are delivered later.
    SendDelayed {
        topic: usize,
        queue: i32,
        level: u8,
        messages: usize,
    },
    /// Sends a message to the retries of its group, with a delay.
    Retry {
        which: usize,
        level: u8,
    },
    /// Sends messages that are delivered at a given time, as one batch.
    SendTimed {
        topic: usize,
        queue: i32,
        times: Vec<Ahead>,
    },
    /// Recalls a message that waits for its time, or does no longer.
    Recall {
        which: usize,
    },
    /// Hands all timed messages over to a broker.
    HandOver,
    /// Delivers delayed and timed messages that are due.
    Deliver {
        most: usize,
    },
    /// Stores a half message, then begins a local transaction that writes a row.
    BeginRow {
        topic: usize,
        queue: i32,
        size: usize,
        time: Option<Ahead>,
    },
    /// Ends such a local transaction, then its message unless the producer dies.
    EndRow {
        which: usize,
        commits: bool,
        dies: bool,
    },
    Close,
    Open,
    Pass {
        ms: i64,
    },
    Jump {
        ms: i64,
    },
}

fn kind(chance: &mut Chance) -> EndKind {
    chance.pick(&[EndKind::Commit, EndKind::Commit, EndKind::RollBack, EndKind::RollBack, EndKind::Discard])
}

fn ahead(chance: &mut Chance) -> Ahead {
    let ms = if chance.one_in(8) { chance.pick(&FAR_AHEAD_MS) } else { chance.pick(&AHEAD_MS) };
    (ms, chance.one_in(3))
}

fn decider(chance: &mut Chance) -> Decider {
    chance.pick(&[Decider::Producer, Decider::Producer, Decider::Producer, Decider::Operator])
}

/// Returns by how much the wall clock jumps.
pub fn jump_ms(chance: &mut Chance) -> i64 {
    let ms = chance.pick(&JUMPS_MS);
    if chance.one_in(2) { ms } else { -ms }
}

/// Chooses a step.
pub fn step(chance: &mut Chance) -> Step {
    let (topic, queue, which) = (chance.index(2), chance.index(2) as i32, chance.index(1 << 20));
    match chance.below(105) {
        0..=8 => {
            let messages = chance.pick(&[1, 1, 2, 4]);
            Step::Send { topic, queue, messages, size: chance.pick(&SIZES[..6]) }
        }
        9..=20 => Step::Prepare {
            topic,
            queue,
            size: chance.pick(&SIZES),
            owner: u32::from(chance.one_in(4)),
            named: chance.one_in(2),
            immunity: chance.one_in(6),
            time: chance.one_in(5).then(|| ahead(chance)),
        },
        21..=23 => Step::Resend { which, queue },
        24..=36 => Step::End { which, kind: kind(chance), decider: decider(chance) },
        37 => Step::WrongEnd { which },
        38..=40 => {
            Step::Together { ends: (0..2 + chance.index(4)).map(|_| (chance.index(64), kind(chance))).collect() }
        }
        41 => Step::LocalEnds { which },
        42..=43 => Step::Resume { which },
        44..=47 => {
            let answer = chance.one_in(2).then(|| kind(chance));
            Step::Check { producers: !chance.one_in(4), limit: chance.pick(&[1, 2, 100]), answer }
        }
        48 => Step::Answer,
        49..=51 => {
            let (messages, acknowledge) = (1 + chance.index(4), !chance.one_in(4));
            Step::Consume { topic, queue, group: chance.index(2), messages, acknowledge }
        }
        52 => Step::Look,
        53..=54 => Step::Flush,
        55..=56 => Step::FlushRound,
        57..=58 => Step::Snapshot,
        59 => Step::WriteOffsets,
        60 => Step::Close,
        64..=67 => Step::Expire { files: 1 + chance.index(6), keep_unread: !chance.one_in(3) },
        68 => Step::Delete { topic },
        69 => Step::BorrowId { which },
        61..=63 => Step::Pass { ms: chance.pick(&[10, 7_000, 31_000, 100_000]) },
        70..=72 => {
            Step::SendDelayed { topic, queue, level: chance.pick(&LEVELS), messages: chance.pick(&[1, 1, 2, 3]) }
        }
        73..=74 => Step::Retry { which, level: chance.pick(&LEVELS) },
        75..=79 => Step::Deliver { most: chance.pick(&[1, 2, 100]) },
        80..=83 => {
            let time = chance.one_in(5).then(|| ahead(chance));
            Step::BeginRow { topic, queue, size: chance.pick(&SIZES[..6]), time }
        }
        84..=86 => Step::EndRow { which, commits: !chance.one_in(4), dies: chance.one_in(2) },
        87 => Step::Retain { reserved_ms: chance.pick(&[0, 5_000, 60_000, 3_600_000, 259_200_000]) },
        93..=96 => Step::PrepareSet {
            which,
            messages: 1 + chance.index(5),
            size: chance.pick(&SIZES[..5]),
            owner: u32::from(chance.one_in(4)),
            time: chance.one_in(5).then(|| ahead(chance)),
        },
        97..=100 => {
            let times = (0..chance.pick(&[1, 1, 2, 4])).map(|_| ahead(chance)).collect();
            Step::SendTimed { topic, queue, times }
        }
        101..=102 => Step::Recall { which },
        103..=104 => Step::HandOver,
        92 => Step::FillDisk { kind: kind(chance) },
        _ => Step::Jump { ms: jump_ms(chance) },
    }
}
