//! However a list of commands is cut into batches, it comes to the same. Expiries are not in it:
//! they have a lane of their own, and so no place in the list.

use std::hash::{DefaultHasher, Hash, Hasher};

use holdfast::domain::{Command, OnExpired, Outcome, Refusal, ReservationId};
use holdfast::engine::{EngineError, Keyed, Reply};
use proptest::prelude::*;

use crate::auditor::{Books, assert_sound};
use crate::shop::{
    Home, Shop, adjust, cancel, entropy_of, extend, keyed, memory, noon, pay_with, reserve,
    set_stock, sqlite,
};

const SKUS: [&str; 3] = ["A", "B", "C"];

#[derive(Clone, Debug, Hash)]
enum Op {
    Reserve(Vec<(usize, i64)>),
    Extend(usize, i64),
    Pay(usize, u8, bool),
    Cancel(usize),
    Set(usize, i64),
    Adjust(usize, i64),
    /// The same as an earlier one, key and all.
    Again(usize),
}

fn op() -> impl Strategy<Value = (Op, Option<u8>)> {
    let which = 0_usize..16;
    let lines = prop::collection::vec((0_usize..3, 1_i64..6), 1..4);
    let op = prop_oneof![
        6 => lines.prop_map(Op::Reserve),
        2 => (which.clone(), -1_i64..100).prop_map(|(id, seconds)| Op::Extend(id, seconds)),
        4 => (which.clone(), 0_u8..2, any::<bool>()).prop_map(|(id, pi, re)| Op::Pay(id, pi, re)),
        2 => which.clone().prop_map(Op::Cancel),
        1 => (0_usize..3, 0_i64..15).prop_map(|(sku, units)| Op::Set(sku, units)),
        2 => (0_usize..3, -8_i64..8).prop_map(|(sku, units)| Op::Adjust(sku, units)),
        2 => which.prop_map(Op::Again),
    ];
    (op, prop::option::weighted(0.4, 0_u8..4))
}

/// Answers and rows after the commands were run in batches of these sizes.
async fn run(home: &Home, ops: &[(Op, Option<u8>)], cuts: &[usize]) -> (Vec<String>, Books) {
    let shop = Shop::open(&home.store);
    for name in SKUS {
        shop.stock_up(name, 10).await;
    }
    // Two that have expired, for those who pay late.
    let mut ids = Vec::new();
    for number in [1_000, 1_001] {
        shop.done(numbered(reserve(&[("A", 2)], 1), number)).await;
        ids.push(ReservationId::new(noon(), entropy_of(number)));
    }
    home.clock.advance(1_000);
    assert_eq!(shop.release_all().await, 2);
    let now = home.clock.now();
    let reserves = (0..ops.len()).filter(|at| matches!(ops[*at].0, Op::Reserve(_)));
    ids.extend(reserves.map(|at| ReservationId::new(now, entropy_of(at as u64))));

    let mut answers = Vec::new();
    let mut rest: Vec<(Command, Option<Keyed>)> = (0..ops.len())
        .map(|at| materialize(ops, at, &ids))
        .collect();
    for size in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let later = rest.split_off((*size).min(rest.len()));
        // Everything that is submitted before the lane wakes up comes into one batch.
        let mut waiting = Vec::new();
        for (command, key) in std::mem::replace(&mut rest, later) {
            let engine = shop.engine.clone();
            waiting.push(tokio::spawn(
                async move { engine.submit(command, key).await },
            ));
        }
        for answer in waiting {
            answers.push(said(answer.await.unwrap()));
        }
    }
    (answers, assert_sound(home.store.as_ref()).await)
}

fn numbered(command: Command, number: u64) -> Command {
    match command {
        Command::Reserve(mut reserve) => {
            reserve.entropy = entropy_of(number);
            Command::Reserve(reserve)
        }
        other => other,
    }
}

fn materialize(
    ops: &[(Op, Option<u8>)],
    at: usize,
    ids: &[ReservationId],
) -> (Command, Option<Keyed>) {
    let mut source = at;
    while let Op::Again(earlier) = ops[source].0 {
        if source == 0 {
            break;
        }
        source = earlier.min(source - 1);
    }
    let (op, key) = &ops[source];
    let id = |which: &usize| ids[which % ids.len()];
    let command = match op {
        Op::Reserve(lines) => {
            let lines: Vec<_> = lines
                .iter()
                .map(|(sku, units)| (SKUS[*sku], *units))
                .collect();
            reserve(&lines, 60)
        }
        Op::Extend(which, seconds) => extend(id(which), *seconds),
        Op::Pay(which, payment, reacquire) => pay_with(
            id(which),
            &format!("pi_{payment}"),
            if *reacquire {
                OnExpired::Reacquire
            } else {
                OnExpired::Reject
            },
        ),
        Op::Cancel(which) => cancel(id(which)),
        Op::Set(sku, units) => set_stock(SKUS[*sku], *units),
        Op::Adjust(sku, units) => adjust(SKUS[*sku], *units),
        Op::Again(_) => set_stock(SKUS[0], 10),
    };
    let mut hasher = DefaultHasher::new();
    op.hash(&mut hasher);
    let fingerprint = hasher.finish().to_le_bytes()[0];
    let key = key.map(|key| keyed(&format!("key-{key}"), fingerprint));
    (numbered(command, at as u64), key)
}

/// An answer; how many are left where too few are is read when a batch begins, and so may differ.
fn said(answer: Result<Reply, EngineError>) -> String {
    match answer {
        Ok(Reply::Decided(Outcome::Refused(Refusal::InsufficientStock { .. }))) => {
            "insufficient".to_owned()
        }
        other => format!("{other:?}"),
    }
}

async fn assert_cuts_agree(
    homes: [Home; 3],
    ops: &[(Op, Option<u8>)],
    cuts: &[usize],
) -> Result<(), TestCaseError> {
    let [one, some, all] = homes;
    let one_by_one = run(&one, ops, &[1]).await;
    let in_batches = run(&some, ops, cuts).await;
    let at_once = run(&all, ops, &[64]).await;
    prop_assert_eq!(&one_by_one, &in_batches);
    prop_assert_eq!(&one_by_one, &at_once);
    Ok(())
}

fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn any_cut_into_batches_comes_to_the_same(
        ops in prop::collection::vec(op(), 1..40),
        cuts in prop::collection::vec(1_usize..9, 1..6),
    ) {
        in_runtime(assert_cuts_agree([memory(), memory(), memory()], &ops, &cuts))?;
    }
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn any_cut_into_batches_comes_to_the_same_on_sqlite(
        ops in prop::collection::vec(op(), 20..40),
        cuts in prop::collection::vec(2_usize..9, 1..6),
    ) {
        in_runtime(async {
            let homes = [sqlite().await, sqlite().await, memory()];
            assert_cuts_agree(homes, &ops, &cuts).await
        })?;
    }
}
