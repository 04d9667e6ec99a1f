//! Counters that were spoiled, put right while others are at work.

use std::sync::Arc;

use holdfast::domain::{Reservation, State};
use holdfast::engine::{Due, Finding, RepairRun, Repairer, TokioRuntime};
use holdfast::store::{Clock, Store};
use sqlx::Executor as _;

use crate::auditor::assert_sound;
use crate::faulty::{Step, faulty};
use crate::locks::until_somebody_waits;
use crate::shop::{
    Home, Shop, cancel, extend, pay, postgres, postgres_in_real_time, reserve, sqlite,
};

/// Mends, or says how, and returns what was said besides.
pub async fn repair(store: &Arc<dyn Store>, apply: bool) -> (RepairRun, Vec<Finding>) {
    let runtime = Arc::new(TokioRuntime::start());
    let repairer = Repairer::new(Arc::clone(store), runtime, apply);
    let mut found = Vec::new();
    let run = repairer.run(&mut |finding| found.push(finding)).await;
    (run.unwrap(), found)
}

async fn holds(shop: &Shop) -> [Reservation; 4] {
    shop.stock_up("A", 10).await;
    shop.stock_up("B", 10).await;
    [
        shop.hold("A", 1, 60).await,
        shop.hold("A", 2, 60).await,
        shop.hold("B", 3, 60).await,
        shop.hold("B", 4, 60).await,
    ]
}

fn about(reservation: &Reservation) -> String {
    format!("reservation {}", reservation.id)
}

#[tokio::test]
async fn p8_open_lines_are_put_right_from_their_holds() {
    for home in [sqlite().await, postgres().await] {
        let shop = Shop::open(&home.store);
        let [first, second, third, fourth] = holds(&shop).await;
        let nobody = "018f0000-0000-7000-8000-000000000000";
        let (one, two, three) = (first.id.as_uuid(), second.id.as_uuid(), third.id.as_uuid());
        shop.done(cancel(fourth.id)).await;
        let four = fourth.id.as_uuid();
        for spoil in [
            // One is missing, one has another number of units, one another deadline, and two are
            // left over: of a hold that ended, and of one that never was.
            format!("delete from open_lines where reservation_id = '{one}'"),
            format!("update open_lines set quantity = 7 where reservation_id = '{two}'"),
            format!(
                "update open_lines set expires_at = (select created_at from reservations
                where id = '{three}') where reservation_id = '{three}'"
            ),
            format!(
                "insert into open_lines (location, sku, expires_at, reservation_id, quantity)
                select 'default', 'B', expires_at, id, 4 from reservations where id = '{four}'"
            ),
            format!(
                "insert into open_lines (location, sku, expires_at, reservation_id, quantity)
                select 'default', 'C', expires_at, '{nobody}', 1 from reservations
                where id = '{four}'"
            ),
            // The counter of one of those shelves besides.
            "update stock set held = 1 where sku = 'A'".to_owned(),
        ] {
            assert_eq!(home.tamper(&spoil).await, 1, "{spoil}");
        }
        let (planned, said) = repair(&home.store, false).await;
        assert_eq!((planned.repaired, planned.left), (6, 0), "{said:#?}");
        let open = "select coalesce(sum(quantity), 0) from open_lines where sku = 'A'";
        let open = format!("select cast(({open}) as bigint)");
        assert_eq!(home.count(&open).await, 7, "nothing is changed");

        let (run, done) = repair(&home.store, true).await;
        assert_eq!((run.repaired, run.left, run.more), (6, 0, false));
        assert_eq!(done, said, "it does what it said");
        for held in [&first, &second, &third, &fourth] {
            let found = done.iter().find(|it| it.row == about(held)).unwrap();
            let repair = found.repair.as_ref().unwrap();
            assert_eq!(repair["wrong"], "open-lines-differ");
        }
        let stock = done.iter().find(|it| it.row == "stock A at default");
        let stock = stock.unwrap().repair.as_ref().unwrap();
        assert_eq!(stock["after"]["held"], 3);
        assert_eq!(home.count(&open).await, 3);
        assert_sound(home.store.as_ref()).await;
        // The index is right again: what is due is found by it.
        home.clock.advance(60_000);
        assert_eq!(shop.on_shelf("A").await.due, 3);
        assert_eq!(shop.word(reserve(&[("A", 10)], 60)).await, "held");
        assert_eq!(shop.release_all().await, 1);
        assert_sound(home.store.as_ref()).await;
    }
}

/// What a hold has that nobody can read is not given away.
#[tokio::test]
async fn p1_no_counter_is_lowered_while_a_hold_cannot_be_read() {
    for home in [sqlite().await, postgres().await] {
        let shop = Shop::open(&home.store);
        let [first, ..] = holds(&shop).await;
        let id = first.id.as_uuid();
        let spoil = format!("update reservations set lines = '[{{\"sku\": 1}}]' where id = '{id}'");
        home.tamper(&spoil).await;
        home.tamper("update stock set held = 9 where sku = 'B'")
            .await;
        // Its open line still says what it has, and stays.
        let (run, found) = repair(&home.store, true).await;
        assert_eq!((run.repaired, run.left), (0, 2), "{found:#?}");
        let left = |row: &str| {
            let found = found.iter().find(|finding| finding.row == row);
            found
                .and_then(|found| found.left.clone())
                .unwrap_or_default()
        };
        assert!(left(&about(&first)).contains("lines"), "{found:#?}");
        let why = left("stock B at default");
        assert!(why.contains("shows 9 held, and 7"), "{why}");
        assert_eq!(shop.on_shelf("A").await.held, 3);
        // One that is too low is raised all the same.
        home.tamper("update stock set held = 2 where sku = 'B'")
            .await;
        let (run, _) = repair(&home.store, true).await;
        assert_eq!((run.repaired, run.left), (1, 1));
        assert_eq!(shop.on_shelf("B").await.held, 7);
    }
}

/// What cannot be understood for another reason is said, and its counters are right.
#[tokio::test]
async fn a_hold_that_cannot_be_understood_is_left_and_counted() {
    for home in [sqlite().await, postgres().await] {
        let shop = Shop::open(&home.store);
        let [first, ..] = holds(&shop).await;
        let id = first.id.as_uuid();
        let spoil = format!("update reservations set metadata = '{{\"a\": 1}}' where id = '{id}'");
        home.tamper(&spoil).await;
        home.tamper("update stock set held = 9 where sku = 'A'")
            .await;
        let (run, found) = repair(&home.store, true).await;
        assert_eq!((run.repaired, run.left), (1, 1), "{found:#?}");
        let left = found.iter().find(|it| it.row == about(&first));
        let why = left.unwrap().left.clone().unwrap();
        assert!(why.contains("metadata"), "{why}");
        assert_eq!(shop.on_shelf("A").await.held, 3);
    }
}

/// A batch has changed a hold and not its stock yet: the count is that of before, and what the
/// batch then takes away is right.
#[tokio::test]
async fn p8_a_repair_between_a_hold_and_its_stock_counts_neither_twice() {
    for step in [Step::WriteTransitions, Step::Commit] {
        let home = postgres().await;
        let (store, plan) = faulty(&home.store);
        let shop = Shop::open(&store);
        shop.stock_up("A", 10).await;
        shop.hold("A", 2, 60).await;
        let stays = shop.hold("A", 3, 600).await;
        home.tamper("update stock set held = 4 where sku = 'A'")
            .await;
        home.clock.advance(60_000);
        let gate = plan.gate(step);
        let releasing = tokio::spawn({
            let shop = shop.clone();
            async move { shop.release_all().await }
        });
        gate.reached.notified().await;
        let neighbour = home.neighbour(Clock::Manual(Arc::clone(&home.clock))).await;
        let repairing = tokio::spawn(async move { repair(&neighbour, true).await.0 });
        if step == Step::Commit {
            // The batch has the row of stock, and its decision in it.
            let mut watcher = home.database().connect().await;
            until_somebody_waits(&mut watcher).await;
            plan.ungate();
            assert_eq!(repairing.await.unwrap().repaired, 1);
        } else {
            assert_eq!(repairing.await.unwrap().repaired, 1);
            plan.ungate();
        }
        assert_eq!(releasing.await.unwrap(), 1, "{step:?}");
        let stock = shop.on_shelf("A").await;
        assert_eq!((stock.on_hand, stock.held), (10, 3), "{step:?}");
        assert_eq!(shop.state(stays.id).await, State::Held);
        assert_sound(home.store.as_ref()).await;
    }
}

/// Buyers come and go, somebody spoils the counters, and somebody mends them, all the time.
#[tokio::test(flavor = "multi_thread")]
async fn p8_counters_are_put_right_while_the_service_runs() {
    let home = postgres_in_real_time().await;
    let shop = Shop::open_in_real_time(&home.store);
    for name in ["A", "B", "C"] {
        shop.stock_up(name, 100_000).await;
    }
    let shoppers: Vec<_> = (0..6_u8)
        .map(|shopper| tokio::spawn(go_shopping(shop.clone(), shopper)))
        .collect();
    let mut rounds = 0;
    while !shoppers.iter().all(tokio::task::JoinHandle::is_finished) {
        spoil(&home, rounds).await;
        let (run, found) = repair(&home.store, true).await;
        assert_eq!(run.left, 0, "{found:#?}");
        rounds += 1;
    }
    for shopper in shoppers {
        shopper.await.unwrap();
    }
    assert!(rounds > 3, "{rounds}");
    repair(&home.store, true).await;
    assert_sound(home.store.as_ref()).await;
}

/// Counters only go up, so that no shopper is refused for it.
async fn spoil(home: &Home, round: usize) {
    let mut hand = home.database().connect().await;
    let spoil = match round % 3 {
        0 => "update stock set held = held + 17 where sku = 'A'",
        1 => "update stock set held = held + 1",
        _ => {
            "delete from open_lines where reservation_id in (
            select reservation_id from open_lines where sku = 'C' limit 3)"
        }
    };
    hand.execute(spoil).await.unwrap();
}

/// Each hold ends in one of the ways; some are left.
async fn go_shopping(shop: Shop, shopper: u8) {
    for number in 0..150_u8 {
        let name = ["A", "B", "C"][usize::from((number + shopper) % 3)];
        let held = shop.hold(name, 2, 1).await;
        match number % 5 {
            0 => drop(shop.ask(cancel(held.id)).await),
            1 => drop(shop.ask(pay(held.id)).await),
            2 => drop(shop.ask(extend(held.id, 600)).await),
            3 => drop(shop.engine.expire_due(Due::ALL).await),
            _ => {}
        }
    }
}
