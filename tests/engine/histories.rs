//! What is read and what is decided agree, whatever happened before.

use std::collections::BTreeMap;

use holdfast::domain::{Command, OnExpired, Outcome, Refusal, State};
use holdfast::store::ReservationFilter;
use proptest::prelude::*;

use crate::auditor::assert_sound;
use crate::shop::{
    Home, Shop, adjust, cancel, expire, extend, memory, pay_with, postgres, reserve, set_stock,
    sku, sqlite, word_of,
};

const SKUS: [&str; 3] = ["A", "B", "C"];

#[derive(Clone, Debug)]
enum Op {
    Reserve(Vec<(usize, i64)>, i64),
    Extend(usize, i64),
    Pay(usize, u8, bool),
    Cancel(usize),
    Expire(usize),
    Set(usize, i64),
    Adjust(usize, i64),
    /// Time passes, in milliseconds.
    Wait(i64),
    /// The expirer comes by, or does not for a while.
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0_usize..12;
    let lines = prop::collection::vec((0_usize..3, 1_i64..5), 1..3);
    prop_oneof![
        8 => (lines, 1_i64..4).prop_map(|(lines, seconds)| Op::Reserve(lines, seconds)),
        2 => (which.clone(), 1_i64..4).prop_map(|(id, seconds)| Op::Extend(id, seconds)),
        4 => (which.clone(), 0_u8..2, any::<bool>()).prop_map(|(id, pi, re)| Op::Pay(id, pi, re)),
        2 => which.clone().prop_map(Op::Cancel),
        2 => which.prop_map(Op::Expire),
        1 => (0_usize..3, 0_i64..12).prop_map(|(sku, units)| Op::Set(sku, units)),
        2 => (0_usize..3, -6_i64..6).prop_map(|(sku, units)| Op::Adjust(sku, units)),
        4 => (0_i64..1_500).prop_map(Op::Wait),
        1 => Just(Op::Release),
    ]
}

/// Runs a history, one command after the other, and judges each reserve by what was read just
/// before it.
async fn live(home: &Home, shop: &Shop, ops: &[Op]) {
    for name in SKUS {
        shop.stock_up(name, 8).await;
    }
    let mut jobs = Vec::new();
    for op in ops {
        let job = |which: &usize| jobs.get(which % jobs.len().max(1)).copied();
        let id = |which: &usize| job(which).map(|job: holdfast::domain::Job| job.reservation);
        let command = match op {
            Op::Reserve(lines, seconds) => {
                let lines: Vec<_> = lines
                    .iter()
                    .map(|(at, units)| (SKUS[*at], *units))
                    .collect();
                let outcome = reserve_as_read(shop, reserve(&lines, *seconds)).await;
                if let Outcome::Reservation { reservation, .. } = outcome {
                    jobs.push(reservation.job());
                }
                continue;
            }
            Op::Wait(millis) => {
                home.clock.advance(*millis);
                continue;
            }
            Op::Release => {
                shop.release_all().await;
                continue;
            }
            Op::Extend(which, seconds) => id(which).map(|id| extend(id, *seconds)),
            Op::Pay(which, payment, reacquire) => id(which).map(|id| {
                let payment = format!("pi_{payment}");
                if *reacquire {
                    pay_with(id, &payment, OnExpired::Reacquire)
                } else {
                    pay_with(id, &payment, OnExpired::Reject)
                }
            }),
            Op::Cancel(which) => id(which).map(cancel),
            Op::Expire(which) => job(which).map(expire),
            Op::Set(at, units) => Some(set_stock(SKUS[*at], *units)),
            Op::Adjust(at, units) => Some(adjust(SKUS[*at], *units)),
        };
        if let Some(command) = command {
            let outcome = shop.done(command).await;
            if let Outcome::Stock(stock) = outcome {
                let read = shop.on_shelf(stock.key.sku.as_str()).await;
                assert_eq!(stock, read, "what is answered is what is read");
            }
        }
    }
}

/// P11 with nobody else about: a reserve succeeds if and only if the reads said that it would.
async fn reserve_as_read(shop: &Shop, command: Command) -> Outcome {
    let wanted = command.units();
    let mut fits = true;
    for (key, units) in &wanted {
        fits &= shop.on_shelf(key.sku.as_str()).await.available() >= *units;
    }
    let outcome = shop.done(command).await;
    let expected = if fits { "held" } else { "insufficient" };
    assert_eq!(word_of(&outcome), expected, "{wanted:?}");
    outcome
}

/// big-neon/bn-api#1046, calcom/cal.diy#24260: what was offered was then refused.
async fn assert_reads_agree(shop: &Shop) {
    for name in SKUS {
        let listed = shop.on_shelf(name).await;
        let available = listed.available();
        let wanted = BTreeMap::from([(sku(name), i64::MAX)]);
        let single = shop.store.stock(&wanted).await.unwrap();
        assert_eq!(
            single.get(&sku(name)),
            Some(&listed),
            "list and single read"
        );
        match shop.done(reserve(&[(name, available + 1)], 60)).await {
            Outcome::Refused(Refusal::InsufficientStock { short }) => {
                assert_eq!(short[0].available, available, "{name}");
            }
            other => panic!("{} of {available} {name}: {other:?}", available + 1),
        }
        if available > 0 {
            shop.hold(name, available, 60).await;
        }
        assert_eq!(shop.on_shelf(name).await.available(), 0, "{name}");
    }
    for state in State::ALL {
        let filter = ReservationFilter {
            state: Some(state),
            ..ReservationFilter::default()
        };
        let (listed, now) = shop
            .store
            .list_reservations(&filter, None, 1_000)
            .await
            .unwrap();
        for row in listed {
            assert_eq!(row.state_at(now), state);
            assert_eq!(shop.find(row.id).await, row, "list and single read");
        }
    }
}

fn check(home: impl Future<Output = Home>, ops: &[Op]) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let home = home.await;
            let shop = Shop::open(&home.store);
            live(&home, &shop, ops).await;
            assert_sound(home.store.as_ref()).await;
            assert_reads_agree(&shop).await;
            assert_sound(home.store.as_ref()).await;
        });
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: if cases < 100 { 30 } else { 4_096 },
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn p8_p11_reads_and_decisions_agree_after_any_history(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        check(async { memory() }, &ops);
    }
}

proptest! {
    #![proptest_config(cases(6))]

    #[test]
    fn p8_p11_reads_and_decisions_agree_on_sqlite(ops in prop::collection::vec(op(), 40..80)) {
        check(sqlite(), &ops);
    }

    #[test]
    fn p8_p11_reads_and_decisions_agree_on_postgres(ops in prop::collection::vec(op(), 40..80)) {
        check(postgres(), &ops);
    }
}
