//! The table against a naive model: a dictionary of states under any sequence of prepare, end, discard and look again.

use proptest::prelude::*;

use super::*;
use crate::transaction::scan;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Prepare { identity: u64, due_ms: i64 },
    Join { which: usize },
    End { which: usize, outcome: usize },
    LookAgain { which: usize, due_ms: i64, asked: bool },
    Due { now_ms: i64, limit: usize },
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..30_u64, 0..1_000_i64).prop_map(|(identity, due_ms)| Step::Prepare { identity, due_ms }),
        1 => any::<usize>().prop_map(|which| Step::Join { which }),
        3 => (any::<usize>(), 0..3_usize).prop_map(|(which, outcome)| Step::End { which, outcome }),
        2 => (any::<usize>(), 0..1_000_i64, any::<bool>())
            .prop_map(|(which, due_ms, asked)| Step::LookAgain { which, due_ms, asked }),
        1 => (0..1_000_i64, 0..10_usize).prop_map(|(now_ms, limit)| Step::Due { now_ms, limit }),
    ]
}

#[derive(Clone, Debug)]
pub(super) struct Kept {
    copies: Vec<u64>,
    identity: u64,
    due_ms: i64,
    checks: u16,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pending: Vec<Kept>,
    decided: BTreeMap<u64, Outcome>,
    next: u64,
}

const OUTCOMES: [Outcome; 3] = [Outcome::Committed, Outcome::RolledBack, Outcome::Discarded];

pub(super) fn half(number: u64, identity: u64) -> NewHalf<'static> {
    NewHalf {
        copy: HalfCopy { queue_offset: number, physical_offset: number * 100 },
        identity: Some(Identity(identity)),
        group: if identity.is_multiple_of(2) { "even" } else { "odd" },
        size: 10,
        stored_ms: 0,
        immunity_ms: None,
        checks: 0,
        owner: 0,
        sent: true,
    }
}

pub(super) fn apply(table: &mut Table, model: &mut Model, step: &Step) {
    let pick = |model: &Model, which: usize| (!model.pending.is_empty()).then(|| which % model.pending.len());
    match *step {
        Step::Prepare { identity, due_ms } => {
            let key = table.insert(&half(model.next, identity));
            table.set_due(key, due_ms);
            model.pending.push(Kept { copies: vec![model.next], identity, due_ms, checks: 0 });
            model.next += 1;
        }
        Step::Join { which } => {
            let Some(at) = pick(model, which) else { return };
            let key = table.find(model.pending[at].copies[0]).unwrap();
            table.join(key, &half(model.next, model.pending[at].identity));
            model.pending[at].copies.push(model.next);
            model.next += 1;
        }
        Step::End { which, outcome } => {
            let Some(at) = pick(model, which) else { return };
            let kept = model.pending.remove(at);
            let key = table.find(kept.copies[which % kept.copies.len()]).unwrap();
            table.decide(key, OUTCOMES[outcome]);
            model.decided.extend(kept.copies.iter().map(|number| (*number, OUTCOMES[outcome])));
        }
        Step::LookAgain { which, due_ms, asked } => {
            let Some(at) = pick(model, which) else { return };
            let key = table.find(*model.pending[at].copies.last().unwrap()).unwrap();
            if asked {
                table.checked(key, 5);
                model.pending[at].checks += 1;
            }
            table.set_due(key, due_ms);
            model.pending[at].due_ms = due_ms;
        }
        Step::Due { now_ms, limit } => {
            let found = scan::due(table, now_ms, limit);
            let mut due: Vec<i64> = model.pending.iter().map(|kept| kept.due_ms).filter(|due| *due <= now_ms).collect();
            due.sort_unstable();
            due.truncate(limit);
            assert_eq!(found.iter().map(|found| found.look_again_in_ms + now_ms).collect::<Vec<_>>(), due);
        }
    }
}

fn compare(table: &mut Table, model: &Model) {
    assert_eq!(table.len(), crate::base::units::to_u64(model.pending.len()));
    assert_eq!(table.sizes().bytes(), 10 * table.len());
    assert_eq!(table.next_due_ms(), model.pending.iter().map(|kept| kept.due_ms).min());
    for kept in &model.pending {
        let newest = *kept.copies.last().unwrap();
        for number in &kept.copies {
            let entry = table.get(table.find(*number).unwrap()).unwrap();
            assert_eq!((entry.newest.queue_offset, entry.checks), (newest, kept.checks));
            let copies: Vec<u64> = entry.copies().map(|(copy, _)| copy.queue_offset).collect();
            assert_eq!(copies, kept.copies);
            assert_eq!(table.group(entry), if kept.identity.is_multiple_of(2) { "even" } else { "odd" });
        }
    }
    for (number, outcome) in &model.decided {
        assert!(table.find(*number).is_none());
        assert_eq!(table.outcome(*number), Some(*outcome));
    }
    let mut waiting: Vec<u64> = model.pending.iter().map(|kept| *kept.copies.last().unwrap()).collect();
    waiting.sort_unstable();
    let found: Vec<u64> =
        scan::waiting_after(table, None, usize::MAX, 0).iter().map(|waiting| waiting.newest.queue_offset).collect();
    assert_eq!(found, waiting);
    for limit in [1, 3] {
        let found = scan::waiting_after(table, waiting.first().copied(), limit, 0);
        let numbers: Vec<u64> = found.iter().map(|waiting| waiting.newest.queue_offset).collect();
        assert_eq!(numbers, waiting.iter().skip(1).take(limit).copied().collect::<Vec<_>>());
    }
    assert_eq!(table.half_progress(model.next), waiting.first().copied().unwrap_or(model.next));
}

proptest! {
    #[test]
    fn t2_the_table_is_a_dictionary(steps in proptest::collection::vec(step(), 1..120)) {
        let (mut table, mut model) = (Table::new(0), Model::default());
        for step in &steps {
            apply(&mut table, &mut model, step);
            compare(&mut table, &model);
        }
    }
}
