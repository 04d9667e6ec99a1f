//! Those who wait in a lane: how many, how long, and what becomes of them when it closes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::domain::State;
use holdfast::engine::{Due, EngineError, Runtime, Settings, Task};

use crate::auditor::assert_sound;
use crate::faults::faulty_shop;
use crate::faulty::{Fault, Step, faulty};
use crate::shop::{InNoTime, Shop, memory, reserve, settings};

#[tokio::test]
async fn a_full_inbox_turns_away_at_once() {
    let home = memory();
    let (shop, plan) = faulty_shop(&home);
    shop.stock_up("A", 10_000).await;
    let gate = plan.gate(Step::ReadStock);
    let mut waiting = Vec::new();
    let ask = || {
        let (shop, command) = (shop.clone(), reserve(&[("A", 1)], 60));
        tokio::spawn(async move { shop.word(command).await })
    };
    waiting.push(ask());
    gate.reached.notified().await;
    waiting.extend((0..4_096).map(|_| ask()));
    for _ in 0..4_096 {
        tokio::task::yield_now().await;
    }
    // Nobody opens the gate meanwhile, and the answer is there all the same.
    for _ in 0..3 {
        assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "overloaded");
    }
    plan.ungate();
    for answer in waiting {
        assert_eq!(answer.await.unwrap(), "held");
    }
    assert_eq!(shop.on_shelf("A").await.held, 4_097);
    assert_sound(home.store.as_ref()).await;
}

/// What is set aside counts as waiting, too.
#[tokio::test]
async fn commands_that_are_set_aside_are_bounded_and_leave_room_for_others() {
    let home = memory();
    let (store, plan) = faulty(&home.store);
    let patient = Settings {
        patience: Duration::from_secs(3_600),
        ..settings(1)
    };
    let shop = Shop::open_with(&store, InNoTime::start(), patient);
    shop.stock_up("A", 100_000).await;
    plan.always(Step::Begin, Fault::Contended);
    let mut waiting = Vec::new();
    let mut turned_away = 0;
    for _ in 0..11 {
        for _ in 0..1_000 {
            let (shop, command) = (shop.clone(), reserve(&[("A", 1)], 60));
            waiting.push(tokio::spawn(async move { shop.word(command).await }));
        }
        for _ in 0..60 {
            tokio::task::yield_now().await;
        }
        let before = waiting.len();
        waiting.retain(|answer| !answer.is_finished());
        turned_away += before - waiting.len();
    }
    assert!(turned_away > 0, "{} wait", waiting.len());
    assert!(waiting.len() <= 2 * 4_096 + 1_024, "{} wait", waiting.len());
    plan.heal();
    for answer in waiting {
        let word = answer.await.unwrap();
        assert!(word == "held" || word == "overloaded", "{word}");
    }
    assert_sound(home.store.as_ref()).await;
}

/// A stopwatch that moves whenever it is looked at, as if all work took time.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Runtime for Ticking {
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn sleep(&self, _: Duration) -> Task {
        Box::pin(tokio::task::yield_now())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

#[tokio::test]
async fn who_was_set_aside_is_answered_in_time_by_a_lane_that_is_always_busy() {
    let home = memory();
    let (store, plan) = faulty(&home.store);
    let shop = Shop::open_with(&store, Arc::new(Ticking::default()), settings(1));
    shop.stock_up("A", 1).await;
    plan.always(Step::Begin, Fault::Contended);
    let ask = || {
        let (shop, command) = (shop.clone(), reserve(&[("A", 1)], 60));
        tokio::spawn(async move { shop.word(command).await })
    };
    let first = ask();
    for _ in 0..2_000 {
        ask();
        tokio::task::yield_now().await;
    }
    assert!(first.is_finished());
    assert_eq!(first.await.unwrap(), "overloaded");
}

#[tokio::test]
async fn who_hangs_up_gets_nothing_and_breaks_nothing() {
    let home = memory();
    let (shop, plan) = faulty_shop(&home);
    shop.stock_up("A", 10).await;
    let gate = plan.gate(Step::Commit);
    let begun = tokio::spawn({
        let (shop, command) = (shop.clone(), reserve(&[("A", 1)], 60));
        async move { shop.word(command).await }
    });
    gate.reached.notified().await;
    let waiting = tokio::spawn({
        let (shop, command) = (shop.clone(), reserve(&[("A", 2)], 60));
        async move { shop.word(command).await }
    });
    let patient = tokio::spawn({
        let (shop, command) = (shop.clone(), reserve(&[("A", 4)], 60));
        async move { shop.word(command).await }
    });
    tokio::task::yield_now().await;
    begun.abort();
    waiting.abort();
    plan.ungate();
    assert_eq!(patient.await.unwrap(), "held");
    // What was begun is finished; what was not begun is left out.
    assert_eq!(shop.on_shelf("A").await.held, 5);
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn p10_shutting_down_finishes_what_was_accepted_and_takes_no_more() {
    let home = memory();
    let (shop, plan) = faulty_shop(&home);
    shop.stock_up("A", 1_000).await;
    let old = shop.hold("A", 100, 60).await;
    home.clock.advance(60_000);
    let gate = plan.gate(Step::Begin);
    let accepted: Vec<_> = (0..500)
        .map(|_| {
            let (shop, command) = (shop.clone(), reserve(&[("A", 2)], 60));
            tokio::spawn(async move { shop.word(command).await })
        })
        .collect();
    gate.reached.notified().await;
    let stopping = tokio::spawn({
        let shop = shop.clone();
        async move { shop.engine.shut_down().await }
    });
    tokio::task::yield_now().await;
    plan.ungate();
    stopping.await.unwrap();
    for answer in accepted {
        // The last of them needed units that were due, in a transaction in between.
        assert_eq!(answer.await.unwrap(), "held");
    }
    assert_eq!(shop.word(reserve(&[("A", 1)], 60)).await, "shutting-down");
    let late = shop.engine.expire_due(Due::ALL).await;
    assert!(matches!(late, Err(EngineError::ShuttingDown)), "{late:?}");
    assert_eq!(shop.state(old.id).await, State::Expired);
    assert_sound(home.store.as_ref()).await;
}
