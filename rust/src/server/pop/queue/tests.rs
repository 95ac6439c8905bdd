//! Tests one queue against a plain model: any order of appends, receives, acknowledgements, expiries and crashes.
//!
//! Guards: nothing is lost, nothing is handed out twice at a time, only the newest lease acknowledges, each delivery is
//! counted, also over a crash if its count is kept, FIFO queues keep their order, and a crash repeats only what is at or
//! above the committed offset.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const ANY: Order = Order::Any { deliveries_max: 2 };
const ATTEMPTS_MAX: u32 = 4;
const A: u64 = 1;
const B: u64 = 2;

fn terms(now_ms: i64, invisible_ms: i64, client: u64, attempt_id: Option<u8>) -> Terms {
    let attempt_id = attempt_id.map(|id| Arc::from(id.to_string()));
    let holder = Holder { client, connection: 0 };
    Terms { now_ms, visible_at_ms: now_ms + invisible_ms, holder, attempts_max: ATTEMPTS_MAX, attempt_id }
}

fn found(offsets: std::ops::Range<u64>) -> Vec<Found> {
    offsets.map(|queue_offset| Found { queue_offset, delivered: 0 }).collect()
}

fn index(queue_offset: u64) -> usize {
    usize::try_from(queue_offset).unwrap()
}

fn offsets(taken: &[Taken]) -> Vec<u64> {
    taken.iter().map(|one| one.queue_offset).collect()
}

/// A message as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    New,
    Done,
    Leased { number: u64, until: i64, attempt: u32, deliveries: u32, client: u64, attempt_id: Option<u8>, moves: bool },
}

/// A queue of a log, without any structure that makes it fast.
struct Model {
    fifo: bool,
    /// Whether the filter wants the message, and how often its record says that it was delivered.
    log: Vec<(bool, u32)>,
    known: Vec<Known>,
    /// How often each message was delivered before the last crash.
    earlier: Vec<u32>,
    now: i64,
    numbers: BTreeSet<u64>,
}

impl Model {
    fn committed(&self) -> usize {
        self.known.iter().position(|known| *known != Known::Done).unwrap_or(self.known.len())
    }

    fn is_in_force(&self, at: usize) -> bool {
        matches!(self.known[at], Known::Leased { until, .. } if until > self.now)
    }

    fn may_be_taken(&self, at: usize) -> bool {
        self.log[at].0 && self.known[at] != Known::Done && !self.is_in_force(at)
    }

    /// The messages in flight of a FIFO queue, if the same attempt took all of them.
    fn repeated(&self, attempt_id: Option<u8>) -> Vec<usize> {
        let leased = |at: &usize| matches!(self.known[*at], Known::Leased { .. });
        let same = |at: &usize| matches!(self.known[*at], Known::Leased { attempt_id: of, .. } if of == attempt_id);
        let leased: Vec<usize> = (0..self.known.len()).filter(leased).collect();
        if self.fifo && attempt_id.is_some() && leased.iter().all(same) { leased } else { vec![] }
    }

    fn available(&self) -> Vec<usize> {
        (0..self.known.len()).filter(|at| self.may_be_taken(*at)).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append { wanted: bool, delivered: u32 },
    Receive { limit: usize, invisible_ms: i64, client: u64, attempt_id: Option<u8> },
    Acknowledge(prop::sample::Index),
    AcknowledgeNewest(prop::sample::Index),
    Change(prop::sample::Index, i64),
    Release(prop::sample::Index, i64),
    Gone(u64),
    Wait(i64),
    Crash { counts: bool },
    Expire(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let id = || prop::option::weighted(0.5, 0..3_u8);
    prop_oneof![
        4 => (prop::bool::weighted(0.8), prop_oneof![9 => Just(0), 1 => 1..6_u32])
            .prop_map(|(wanted, delivered)| Step::Append { wanted, delivered }),
        6 => (1..5_usize, 1..30_i64, 1..4_u64, id()).prop_map(|(limit, invisible_ms, client, attempt_id)| {
            Step::Receive { limit, invisible_ms, client, attempt_id }
        }),
        2 => any::<prop::sample::Index>().prop_map(Step::Acknowledge),
        5 => any::<prop::sample::Index>().prop_map(Step::AcknowledgeNewest),
        2 => (any::<prop::sample::Index>(), 0..20_i64).prop_map(|(index, ms)| Step::Change(index, ms)),
        1 => (any::<prop::sample::Index>(), 0..5_i64).prop_map(|(index, ms)| Step::Release(index, ms)),
        1 => (1..4_u64).prop_map(Step::Gone),
        3 => (0..25_i64).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|counts| Step::Crash { counts }),
        1 => (0..4_usize).prop_map(Step::Expire),
    ]
}

/// The queue and its model, compared after each step.
struct Run {
    order: Order,
    queue: Queue,
    model: Model,
    /// All leases that were ever handed out since the last crash.
    handed: Vec<Taken>,
}

impl Run {
    fn new(order: Order) -> Self {
        let (fifo, numbers) = (order == Order::Fifo, BTreeSet::new());
        let model = Model { fifo, log: vec![], known: vec![], earlier: vec![], now: 1_000, numbers };
        Self { order, queue: Queue::new(order, 0, 0), model, handed: vec![] }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append { wanted, delivered } => {
                self.model.log.push((*wanted, *delivered));
                self.model.known.push(Known::New);
                self.model.earlier.push(0);
            }
            Step::Receive { limit, invisible_ms, client, attempt_id } => {
                self.receive(*limit, *invisible_ms, *client, *attempt_id);
            }
            Step::Acknowledge(index) if !self.handed.is_empty() => self.acknowledge(*index.get(&self.handed)),
            Step::AcknowledgeNewest(index) => {
                let newest = self.newest();
                if !newest.is_empty() {
                    self.acknowledge(*index.get(&newest));
                }
            }
            Step::Change(index, ms) if !self.handed.is_empty() => self.change(*index.get(&self.handed), *ms),
            Step::Release(index, ms) if !self.handed.is_empty() => self.release(*index.get(&self.handed), *ms),
            Step::Gone(client) => self.gone(*client),
            Step::Wait(ms) => self.model.now += ms,
            Step::Crash { counts } => self.crash(*counts),
            Step::Expire(messages) => self.expire(*messages),
            _ => {}
        }
        assert_eq!(self.queue.committed(), u64::try_from(self.model.committed()).unwrap(), "{:?}", self.queue);
        assert!(self.queue.next() >= self.queue.committed());
    }

    fn newest(&self) -> Vec<Taken> {
        let is_newest = |one: &&Taken| {
            let known = self.model.known[index(one.queue_offset)];
            matches!(known, Known::Leased { number, .. } if number == one.number)
        };
        self.handed.iter().filter(is_newest).copied().collect()
    }

    fn receive(&mut self, limit: usize, invisible_ms: i64, client: u64, attempt_id: Option<u8>) {
        let now = self.model.now;
        let terms = terms(now, invisible_ms, client, attempt_id);
        let available = self.model.available();
        let in_force = (0..self.model.known.len()).any(|at| self.model.is_in_force(at));
        let repeated = self.model.repeated(attempt_id);
        let mut taken = self.queue.take_visible(&terms, limit);
        let room = self.queue.room(now).min(limit.saturating_sub(taken.len()));
        let (mut read, mut end) = (vec![], self.queue.next());
        while read.len() < room && index(end) < self.model.log.len() {
            let (wanted, delivered) = self.model.log[index(end)];
            read.extend(wanted.then_some(Found { queue_offset: end, delivered }));
            end += 1;
        }
        if room > 0 {
            let from = index(self.queue.next());
            taken.extend(self.queue.take_new(&terms, &read, end));
            for at in from..index(self.queue.next()) {
                if !self.model.log[at].0 {
                    self.model.known[at] = Known::Done;
                }
            }
        }
        let got: Vec<usize> = taken.iter().map(|one| index(one.queue_offset)).collect();
        assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), got.len(), "one message twice: {taken:?}");
        if self.model.fifo && !repeated.is_empty() {
            assert_eq!(got, repeated, "the same attempt gets the same messages");
        } else if self.model.fifo && in_force {
            assert_eq!(got, Vec::<usize>::new(), "the queue waits for the messages in flight");
        } else if self.model.fifo {
            assert_eq!(got, available[..got.len()], "in order, from the lowest on");
            assert!(available.is_empty() || !got.is_empty(), "nothing was taken of {available:?}");
        } else {
            assert!(got.iter().all(|at| available.contains(at)), "{taken:?} of {available:?}");
            assert!(got.len() <= limit);
            assert_eq!(got.len(), limit.min(available.len()), "{taken:?} of {available:?}");
        }
        for one in &taken {
            assert!(self.model.numbers.insert(one.number), "the number {} again", one.number);
            self.take(*one, &terms, client, attempt_id, repeated.contains(&index(one.queue_offset)));
        }
    }

    fn take(&mut self, one: Taken, terms: &Terms, client: u64, attempt_id: Option<u8>, again: bool) {
        let at = index(one.queue_offset);
        let (before, deliveries) = match self.model.known[at] {
            Known::Leased { attempt, deliveries, .. } => (attempt, deliveries),
            _ => (self.model.log[at].1 + self.model.earlier[at], self.model.earlier[at]),
        };
        let fate = match () {
            () if again => Fate::Deliver,
            () if before >= ATTEMPTS_MAX => Fate::Bury,
            () if !self.model.fifo && deliveries >= 2 => Fate::Retry,
            () => Fate::Deliver,
        };
        assert_eq!(one.fate, fate, "delivered {before} times, {deliveries} of them from here");
        let counts = u32::from(fate == Fate::Deliver && !again);
        assert_eq!(one.attempt, before + counts);
        let moves = fate != Fate::Deliver;
        self.model.known[at] = Known::Leased {
            number: one.number,
            until: if moves { terms.now_ms + 60_000 } else { terms.visible_at_ms },
            attempt: one.attempt,
            deliveries: deliveries + counts,
            client,
            attempt_id: attempt_id.filter(|_| !moves),
            moves,
        };
        self.handed.push(one);
    }

    fn acknowledge(&mut self, one: Taken) {
        let at = index(one.queue_offset);
        let expected = match self.model.known[at] {
            Known::Done => Ok(()),
            Known::Leased { number, until, .. } if number == one.number && until > self.model.now => Ok(()),
            _ => Err(Stale),
        };
        assert_eq!(self.queue.acknowledge(one.queue_offset, one.number, self.model.now), expected);
        if expected.is_ok() {
            self.model.known[at] = Known::Done;
        }
    }

    fn change(&mut self, one: Taken, ms: i64) {
        let (at, now) = (index(one.queue_offset), self.model.now);
        let changed = self.queue.change_visible(one.queue_offset, one.number, now, now + ms);
        match &mut self.model.known[at] {
            Known::Leased { number, until, attempt_id, .. } if *number == one.number && *until > now => {
                *number = changed.expect("the newest lease is in force");
                (*until, *attempt_id) = (now + ms, None);
                assert!(self.model.numbers.insert(*number));
                self.handed.push(Taken { number: *number, ..one });
            }
            _ => assert_eq!(changed, Err(Stale)),
        }
    }

    fn release(&mut self, one: Taken, ms: i64) {
        let at_ms = self.model.now + ms;
        self.queue.release(&[one], at_ms);
        if let Known::Leased { number, until, .. } = &mut self.model.known[index(one.queue_offset)]
            && *number == one.number
        {
            *until = (*until).min(at_ms);
        }
    }

    fn gone(&mut self, gone: u64) {
        let at_ms = self.model.now + 1;
        let mut any = false;
        for known in &mut self.model.known {
            if let Known::Leased { until, client, moves: false, .. } = known
                && *client == gone
                && *until > at_ms
            {
                (*until, any) = (at_ms, true);
            }
        }
        assert_eq!(self.queue.release_all(|holder| holder.client == gone, at_ms), any);
    }

    /// `counts`: what was delivered and not acknowledged is known afterwards.
    fn crash(&mut self, counts: bool) {
        let committed = self.queue.committed();
        let deliveries = self.queue.deliveries();
        self.queue = Queue::new(self.order, committed, self.queue.last_number());
        if counts {
            self.queue.resume(deliveries.into_iter().collect());
        }
        self.handed.clear();
        for (known, earlier) in self.model.known.iter_mut().zip(&mut self.model.earlier).skip(index(committed)) {
            *earlier = match known {
                Known::Leased { deliveries, .. } if counts => *deliveries,
                Known::New if counts => *earlier,
                _ => 0,
            };
            *known = Known::New;
        }
    }

    /// Retention removes messages from the front.
    fn expire(&mut self, messages: usize) {
        let first = (self.model.committed() + messages).min(self.model.known.len());
        self.queue.skip_to(u64::try_from(first).unwrap());
        self.model.known[..first].fill(Known::Done);
    }

    /// Acknowledges everything. Nothing may be left.
    fn drain(&mut self) {
        for _ in 0..10 * self.model.log.len() + 10 {
            self.model.now += 100_000;
            self.receive(4, 10, A, None);
            for one in self.newest() {
                self.acknowledge(one);
            }
        }
        assert_eq!(index(self.queue.committed()), self.model.log.len(), "{:?}", self.queue);
        assert_eq!((self.queue.in_flight(), self.queue.next_visible_ms()), (0, None));
        assert!(self.queue.acknowledged.is_empty() && self.queue.dropped.is_empty(), "{:?}", self.queue);
        assert!(self.queue.earlier.is_empty() && !self.queue.is_resumed(self.queue.next()), "{:?}", self.queue);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_steps_agrees_with_the_model(
        fifo in any::<bool>(),
        steps in prop::collection::vec(any_step(), 0..120),
    ) {
        let mut run = Run::new(if fifo { Order::Fifo } else { ANY });
        for step in &steps {
            run.step(step);
        }
        run.drain();
    }
}

#[test]
fn acknowledged_messages_above_the_lowest_wait_for_it() {
    let mut queue = Queue::new(ANY, 5, 0);
    let taken = queue.take_new(&terms(0, 10, A, None), &found(5..9), 12);
    assert_eq!((offsets(&taken), queue.committed(), queue.next()), (vec![5, 6, 7, 8], 5, 12));
    for one in &taken[1..] {
        assert_eq!(queue.acknowledge(one.queue_offset, one.number, 1), Ok(()));
    }
    assert_eq!(queue.committed(), 5);
    assert_eq!(queue.acknowledge(5, taken[0].number, 1), Ok(()));
    assert_eq!(queue.committed(), 12, "what the filter dropped counts as acknowledged");
}

#[test]
fn a_third_delivery_comes_from_the_retry_topic() {
    let mut queue = Queue::new(ANY, 0, 0);
    let first = queue.take_new(&terms(0, 10, A, None), &found(0..1), 1);
    let second = queue.take_visible(&terms(10, 10, A, None), 32);
    let third = queue.take_visible(&terms(20, 10, A, None), 32);
    let summary = |taken: &[Taken]| taken.iter().map(|one| (one.attempt, one.fate)).collect::<Vec<_>>();
    assert_eq!(summary(&first), [(1, Fate::Deliver)]);
    assert_eq!(summary(&second), [(2, Fate::Deliver)]);
    assert_eq!(summary(&third), [(2, Fate::Retry)]);
    assert!(!queue.release_all(|holder| holder.client == A, 0), "it moves, and belongs to no client");
    queue.discard(third[0]);
    assert_eq!((queue.committed(), queue.in_flight()), (1, 0));
}

#[test]
fn deliveries_of_an_earlier_run_count() {
    let mut before = Queue::new(ANY, 0, 0);
    before.take_new(&terms(0, 10, A, None), &found(0..3), 3);
    before.take_visible(&terms(10, 10, A, None), 1);
    before.discard(Taken { queue_offset: 1, number: 2, attempt: 1, fate: Fate::Deliver });
    assert_eq!(before.deliveries(), [(0, 2), (2, 1)]);
    let mut queue = Queue::new(ANY, 0, 0);
    queue.resume(before.deliveries().into_iter().collect());
    let alone: Vec<bool> = found(0..4).into_iter().map(|one| queue.comes_alone(one, ATTEMPTS_MAX)).collect();
    assert_eq!(alone, [false, false, true, false], "the first one moves");
    let taken = queue.take_new(&terms(0, 10, A, None), &found(0..2), 2);
    let summary: Vec<_> = taken.iter().map(|one| (one.attempt, one.fate)).collect();
    assert_eq!(summary, [(2, Fate::Retry), (1, Fate::Deliver)]);
    assert_eq!(queue.deliveries(), [(0, 2), (1, 1), (2, 1)], "also of one that was not taken yet");
    assert_eq!([1, 2, 3].map(|at| queue.is_resumed(at)), [true, true, false]);
}

#[test]
fn only_the_newest_messages_of_an_earlier_run_come_alone() {
    let mut queue = Queue::new(ANY, 0, 0);
    queue.resume((0..1_000).map(|at| (at, 1)).collect());
    let alone = found(0..1_001).into_iter().filter(|one| queue.comes_alone(*one, ATTEMPTS_MAX)).count();
    assert_eq!(u64::try_from(alone), Ok(ALONE_MAX), "so that a crash costs a busy group little");
}

#[test]
fn the_last_attempt_ends_among_the_dead_letters() {
    let mut queue = Queue::new(Order::Any { deliveries_max: 1 }, 0, 0);
    let copies = [Found { queue_offset: 0, delivered: ATTEMPTS_MAX - 1 }, Found { queue_offset: 1, delivered: 9 }];
    let taken = queue.take_new(&terms(0, 10, A, None), &copies, 2);
    assert_eq!((taken[0].attempt, taken[0].fate), (ATTEMPTS_MAX, Fate::Deliver));
    assert_eq!((taken[1].attempt, taken[1].fate), (9, Fate::Bury));
    assert_eq!(queue.take_visible(&terms(10, 10, A, None), 32)[0].fate, Fate::Bury);
}

#[test]
fn so_many_are_outstanding_and_no_more() {
    let mut queue = Queue::new(ANY, 0, 0);
    let most = u64::try_from(OUTSTANDING_MAX).unwrap();
    let taken = queue.take_new(&terms(0, 10, A, None), &found(0..most), most);
    assert_eq!(queue.room(0), 0);
    for one in &taken[1..] {
        queue.acknowledge(one.queue_offset, one.number, 1).unwrap();
    }
    assert_eq!(queue.room(0), 0, "they come again after a crash, so they count");
    queue.acknowledge(0, taken[0].number, 1).unwrap();
    assert_eq!((queue.room(0), queue.committed()), (OUTSTANDING_MAX, most));
}

#[test]
fn dropped_messages_do_not_count() {
    let mut queue = Queue::new(ANY, 0, 0);
    queue.take_new(&terms(0, 10, A, None), &found(0..1), 1);
    for end in [1_000_000, 2_000_000] {
        queue.take_new(&terms(0, 10, A, None), &[], end);
    }
    assert_eq!((queue.room(0), queue.dropped.len()), (OUTSTANDING_MAX - 1, 1));
}

#[test]
fn a_fifo_queue_waits_for_all_messages_in_flight() {
    let mut queue = Queue::new(Order::Fifo, 0, 0);
    let taken = queue.take_new(&terms(0, 10, A, Some(1)), &found(0..3), 3);
    assert_eq!((queue.room(0), queue.take_visible(&terms(5, 10, B, Some(2)), 32)), (0, vec![]));
    let again = queue.take_visible(&terms(5, 10, A, Some(1)), 32);
    assert_eq!((offsets(&again), again[0].attempt), (vec![0, 1, 2], 1), "the same attempt, not counted");
    assert_eq!(queue.acknowledge(1, taken[1].number, 6), Err(Stale));
    assert_eq!(queue.acknowledge(1, again[1].number, 6), Ok(()));
    assert_eq!(queue.next_visible_ms(), Some(15));
    let later = queue.take_visible(&terms(15, 10, B, Some(2)), 32);
    assert_eq!((offsets(&later), later[0].attempt, queue.room(15)), (vec![0, 2], 2, 0));
}

#[test]
fn a_broken_answer_is_repeated_to_the_same_attempt() {
    let mut queue = Queue::new(Order::Fifo, 0, 0);
    let taken = queue.take_new(&terms(0, 10, A, Some(1)), &found(0..2), 2);
    queue.release(&taken, 1);
    let again = queue.take_visible(&terms(2, 10, A, Some(1)), 32);
    assert_eq!(again.iter().map(|one| one.attempt).collect::<Vec<_>>(), [1, 1]);
    queue.change_visible(0, again[0].number, 3, 3).unwrap();
    let later = queue.take_visible(&terms(12, 10, A, Some(1)), 32);
    assert_eq!(later.iter().map(|one| one.attempt).collect::<Vec<_>>(), [2, 2], "the client had got the answer");
}
