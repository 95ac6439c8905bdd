//! Models what a store should hold, in lists, and generates the possible steps.

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;
use txstore::base::error::Outcome;
use txstore::store::EndKind;

pub const TOPICS: usize = 2;

/// A transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The number of its id; several transactions may share one.
    pub id: usize,
    pub topic: usize,
    pub outcome: Option<Outcome>,
}

/// What the store should hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The numbers of visible messages, by topic.
    pub topics: [Vec<usize>; TOPICS],
    pub transactions: Vec<Transaction>,
    /// Acknowledged offsets, by topic.
    pub offsets: [u64; TOPICS],
    /// The next message number. A transaction's message has the number of its id.
    pub next: usize,
}

/// A step.
#[derive(Clone, Debug)]
pub enum Step {
    Send {
        topic: usize,
        messages: usize,
    },
    Prepare {
        topic: usize,
    },
    /// Resends the half of a transaction that may have ended.
    Resend {
        which: usize,
    },
    End {
        which: usize,
        kind: EndKind,
    },
    Resume {
        which: usize,
    },
    Acknowledge {
        topic: usize,
        of: u64,
    },
    FlushRound,
    Snapshot,
    WriteOffsets,
    Reopen,
    Kill,
    /// Reads in a second handle while the writer is open.
    Look,
}

pub const fn outcome(kind: EndKind) -> Outcome {
    match kind {
        EndKind::Commit => Outcome::Committed,
        EndKind::RollBack => Outcome::RolledBack,
        EndKind::Discard => Outcome::Discarded,
    }
}

impl Model {
    pub fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.transactions.len()).filter(|at| self.transactions[*at].outcome.is_none())
    }

    /// Returns the newest transaction with the same id as another.
    pub fn newest(&self, which: usize) -> usize {
        let id = self.transactions[which].id;
        (0..self.transactions.len()).rfind(|at| self.transactions[*at].id == id).unwrap()
    }

    fn begin(&mut self, id: usize, topic: usize) {
        self.transactions.push(Transaction { id, topic, outcome: None });
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { topic, messages } => {
                for _ in 0..messages {
                    let number = self.number();
                    self.topics[topic].push(number);
                }
            }
            Step::Prepare { topic } => {
                let id = self.number();
                self.begin(id, topic);
            }
            Step::Resend { which } => {
                let newest = self.transactions[self.newest(which)].clone();
                if newest.outcome.is_some() {
                    self.begin(newest.id, newest.topic);
                }
            }
            Step::End { which, kind } => {
                let Transaction { id, topic, outcome: found } = self.transactions[which];
                if found.is_none() {
                    self.transactions[which].outcome = Some(outcome(kind));
                    if kind == EndKind::Commit {
                        self.topics[topic].push(id);
                    }
                }
            }
            Step::Resume { which } => {
                let newest = self.transactions[self.newest(which)].clone();
                if newest.outcome == Some(Outcome::Discarded) {
                    self.begin(newest.id, newest.topic);
                }
            }
            Step::Acknowledge { topic, of } => self.offsets[topic] = of.min(self.topics[topic].len() as u64),
            Step::FlushRound | Step::Snapshot | Step::WriteOffsets | Step::Reopen | Step::Kill | Step::Look => {}
        }
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Step> {
        let topic = 0..TOPICS;
        let kind = prop_oneof![3 => Just(EndKind::Commit), 2 => Just(EndKind::RollBack), 2 => Just(EndKind::Discard)];
        let always = prop_oneof![
            3 => (topic.clone(), 1..4_usize).prop_map(|(topic, messages)| Step::Send { topic, messages }),
            5 => topic.clone().prop_map(|topic| Step::Prepare { topic }),
            1 => (topic, 0..20_u64).prop_map(|(topic, of)| Step::Acknowledge { topic, of }),
            1 => Just(Step::FlushRound),
            1 => Just(Step::Snapshot),
            1 => Just(Step::WriteOffsets),
            1 => Just(Step::Reopen),
            1 => Just(Step::Kill),
            1 => Just(Step::Look),
        ];
        if state.transactions.is_empty() {
            return always.boxed();
        }
        let which = 0..state.transactions.len();
        prop_oneof![
            14 => always,
            10 => (which.clone(), kind).prop_map(|(which, kind)| Step::End { which, kind }),
            2 => which.clone().prop_map(|which| Step::Resend { which }),
            2 => which.prop_map(|which| Step::Resume { which }),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        state.step(step);
        state
    }

    /// Returns whether a step is possible. A shortened sequence may contain one for an item that no longer exists.
    fn preconditions(state: &Self, step: &Step) -> bool {
        match step {
            Step::Resend { which } | Step::Resume { which } | Step::End { which, .. } => {
                *which < state.transactions.len()
            }
            _ => true,
        }
    }
}
