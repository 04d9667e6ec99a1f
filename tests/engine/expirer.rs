//! When the expirer looks, from where, and how long it rests.

use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::State;
use holdfast::engine::Bounds;
use holdfast::metrics::Heartbeat;
use holdfast::store::Clock;
use holdfast::worker::{self, Expirer, Next, Worker};
use sqlx::{Connection as _, Executor as _};
use tokio::sync::watch;

use crate::auditor::assert_sound;
use crate::shop::{Home, InNoTime, Shop, extend, homes, memory, postgres, settings};

const HOUR: Duration = Duration::from_secs(3_600);

fn after(millis: u64) -> Next {
    Next::After(Duration::from_millis(millis))
}

fn expirer(home: &Home, sweep: Duration) -> (Shop, Expirer, Arc<InNoTime>) {
    let runtime = InNoTime::start();
    let shop = Shop::open_with(&home.store, runtime.clone(), settings(1));
    let expirer = Expirer::timer(shop.engine.clone(), runtime.clone(), sweep);
    (shop, expirer, runtime)
}

#[tokio::test]
async fn p7_it_sleeps_until_the_earliest_deadline_and_never_longer_than_half_a_second() {
    for home in homes().await {
        let (shop, mut expirer, _) = expirer(&home, HOUR);
        assert_eq!(
            expirer.run_once().await.unwrap(),
            after(500),
            "nothing is held"
        );
        shop.stock_up("A", 10).await;
        let late = shop.hold("A", 1, 60).await;
        assert_eq!(expirer.run_once().await.unwrap(), after(500));
        let early = shop.hold("A", 1, 1).await;
        home.clock.advance(501);
        assert_eq!(expirer.run_once().await.unwrap(), after(499));
        home.clock.advance(498);
        assert_eq!(expirer.run_once().await.unwrap(), after(1));
        home.clock.advance(1);
        assert_eq!(expirer.run_once().await.unwrap(), Next::Again);
        assert_eq!(shop.state(early.id).await, State::Expired);
        assert_eq!(shop.state(late.id).await, State::Held);
        assert_eq!(
            expirer.run_once().await.unwrap(),
            after(500),
            "{}",
            home.name
        );
        // One that moved away is not due at its old deadline.
        shop.done(extend(late.id, 60)).await;
        home.clock.advance(59_000);
        assert_eq!(expirer.run_once().await.unwrap(), after(500));
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn p7_a_sweep_leaves_a_hold_to_the_queue_for_its_grace_and_no_longer() {
    for home in homes().await {
        let runtime = InNoTime::start();
        let shop = Shop::open_with(&home.store, runtime.clone(), settings(1));
        let grace = Duration::from_secs(3);
        let mut expirer = Expirer::sweep(shop.engine.clone(), runtime, HOUR, grace);
        shop.stock_up("A", 10).await;
        let held = shop.hold("A", 1, 60).await;
        let quiet = after(3_500);
        assert_eq!(expirer.run_once().await.unwrap(), quiet, "{}", home.name);
        home.clock.advance(60_000);
        assert_eq!(expirer.run_once().await.unwrap(), after(3_000));
        home.clock.advance(2_999);
        assert_eq!(expirer.run_once().await.unwrap(), after(1));
        assert_eq!(shop.state(held.id).await, State::Held);
        home.clock.advance(1);
        assert_eq!(expirer.run_once().await.unwrap(), Next::Again);
        assert_eq!(shop.state(held.id).await, State::Expired);
        let events = home.store.events(0, 100).await.unwrap();
        let data = events.last().unwrap().event.data.value();
        assert_eq!(
            (&data["via"], &data["lateness_ms"]),
            (&"sweep".into(), &3_000.into())
        );
        assert_sound(home.store.as_ref()).await;
    }
}

/// However long the grace is, an expirer that lives is seen to live.
#[tokio::test]
async fn a_sweep_never_sleeps_for_long() {
    let home = memory();
    let runtime = InNoTime::start();
    let shop = Shop::open_with(&home.store, runtime.clone(), settings(1));
    let mut expirer = Expirer::sweep(shop.engine.clone(), runtime, HOUR, HOUR);
    assert_eq!(expirer.run_once().await.unwrap(), after(5_000));
}

/// eventespresso/event-espresso-core#218: what nobody came back for was never given back.
#[tokio::test]
async fn p7_all_is_released_though_nobody_asks_for_anything() {
    for home in homes().await {
        let (shop, mut expirer, _) = expirer(&home, HOUR);
        shop.stock_up("A", 200).await;
        let waiting: Vec<_> = (0..200)
            .map(|at| {
                let shop = shop.clone();
                tokio::spawn(async move { shop.hold("A", 1, 60 + at % 5).await })
            })
            .collect();
        for answer in waiting {
            answer.await.unwrap();
        }
        home.clock.advance(64_000);
        while expirer.run_once().await.unwrap() == Next::Again {}
        let shelf = shop.on_shelf("A").await;
        assert_eq!((shelf.held, shelf.free()), (0, 200), "{}", home.name);
        assert_sound(home.store.as_ref()).await;
    }
}

/// What lies behind the watermark is found by the look from the beginning, and by that alone.
#[tokio::test]
async fn p7_every_sweep_looks_from_the_beginning() {
    let home = memory();
    let (shop, mut expirer, stopwatch) = expirer(&home, Duration::from_secs(300));
    shop.stock_up("A", 2).await;
    home.clock.advance(3_600_000);
    assert_eq!(expirer.run_once().await.unwrap(), after(500));
    // The clock goes back further than the watermark stays behind.
    home.clock.advance(-600_000);
    let held = shop.hold("A", 1, 1).await;
    home.clock.advance(600_000);
    for _ in 0..3 {
        let next = expirer.run_once().await.unwrap();
        assert_eq!(next, after(500), "not seen yet");
    }
    stopwatch.advance(Duration::from_secs(300));
    assert_eq!(expirer.run_once().await.unwrap(), Next::Again);
    assert_eq!(shop.state(held.id).await, State::Expired);
}

#[tokio::test]
async fn p7_what_others_have_locked_is_looked_for_again_and_never_passed_by() {
    let home = postgres().await;
    let (shop, mut expirer, _) = expirer(&home, HOUR);
    shop.stock_up("A", 10).await;
    let locked = shop.hold("A", 1, 60).await;
    let mut foreign = home.database().connect().await;
    let mut lock = foreign.begin().await.unwrap();
    lock.execute("select 1 from reservations for update")
        .await
        .unwrap();

    home.clock.advance(60_000);
    for rest in [100, 200, 400, 500, 500] {
        assert_eq!(expirer.run_once().await.unwrap(), after(rest));
    }
    // Time goes on for longer than the watermark stays behind, and others are released.
    for _ in 0..5 {
        let other = shop.hold("A", 1, 60).await;
        home.clock.advance(120_000);
        assert_eq!(expirer.run_once().await.unwrap(), Next::Again);
        assert_eq!(shop.state(other.id).await, State::Expired);
        assert_eq!(
            expirer.run_once().await.unwrap(),
            after(100),
            "it begins anew"
        );
    }
    lock.rollback().await.unwrap();
    assert_eq!(expirer.run_once().await.unwrap(), Next::Again);
    assert_eq!(shop.state(locked.id).await, State::Expired);
    assert_eq!(expirer.run_once().await.unwrap(), after(500));
    assert_sound(home.store.as_ref()).await;
}

/// One run ends at its bounds, says what stood in its way, and whether there is more.
#[tokio::test]
async fn a_bounded_run_does_what_it_may_and_says_what_is_left() {
    for home in homes().await {
        let (shop, expirer, _) = expirer(&home, HOUR);
        shop.stock_up("A", 500).await;
        for _ in 0..200 {
            shop.hold("A", 1, 60).await;
        }
        shop.hold("A", 1, 61).await;
        let run = async |rows| {
            let bounds = Bounds::new(rows, 60).unwrap();
            let run = expirer.run_bounded(bounds).await.unwrap();
            (run.released, run.blocked, run.more)
        };
        assert_eq!(run(1_000).await, (0, 0, false), "nothing is due");
        home.clock.advance(60_000);
        assert_eq!(run(1).await, (1, 0, true), "{}", home.name);
        assert_eq!(run(150).await, (150, 0, true));
        assert_eq!(run(49).await, (49, 0, false), "{}", home.name);
        home.clock.advance(1_000);
        assert_eq!(run(1_000).await, (1, 0, false));
        assert_sound(home.store.as_ref()).await;
    }
}

#[tokio::test]
async fn a_bounded_run_waits_for_nobody_who_has_rows_locked() {
    let home = postgres().await;
    let (shop, expirer, _) = expirer(&home, HOUR);
    for name in ["A", "B"] {
        shop.stock_up(name, 10).await;
        shop.hold(name, 1, 60).await;
    }
    home.clock.advance(60_000);
    let bounds = Bounds::new(1_000, 60).unwrap();
    let mut foreign = home.database().connect().await;
    let mut lock = foreign.begin().await.unwrap();
    lock.execute("select 1 from stock where sku = 'A' for update")
        .await
        .unwrap();
    let run = expirer.run_bounded(bounds).await.unwrap();
    assert_eq!((run.released, run.blocked, run.more), (1, 1, false));
    lock.rollback().await.unwrap();
    let mut lock = foreign.begin().await.unwrap();
    lock.execute("select 1 from reservations for update")
        .await
        .unwrap();
    home.clock.advance(1_000);
    let run = expirer.run_bounded(bounds).await.unwrap();
    assert_eq!((run.released, run.blocked, run.more), (0, 0, true));
    lock.rollback().await.unwrap();
    let run = expirer.run_bounded(bounds).await.unwrap();
    assert_eq!((run.released, run.blocked, run.more), (1, 0, false));
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn it_stops_when_told_to_and_when_nobody_is_left_who_could() {
    for told in [true, false] {
        let home = memory();
        let (_, expirer, runtime) = expirer(&home, HOUR);
        let (stop, stopped) = watch::channel(false);
        let heartbeat = Heartbeat::default();
        let running = tokio::spawn(worker::run(expirer, runtime, heartbeat, stopped));
        tokio::task::yield_now().await;
        if told {
            stop.send(true).unwrap();
        } else {
            drop(stop);
        }
        let over = tokio::time::timeout(Duration::from_secs(5), running).await;
        assert!(over.is_ok(), "told: {told}");
    }
}

#[tokio::test]
async fn p2_several_expirers_share_the_work() {
    let home = postgres().await;
    let (shop, _, _) = expirer(&home, HOUR);
    shop.stock_up("A", 1_000).await;
    shop.stock_up("B", 1_000).await;
    let waiting: Vec<_> = (0..400)
        .map(|at| {
            let shop = shop.clone();
            let name = if at % 2 == 0 { "A" } else { "B" };
            tokio::spawn(async move { shop.hold(name, 1, 60).await })
        })
        .collect();
    for answer in waiting {
        answer.await.unwrap();
    }
    home.clock.advance(60_000);
    let mut working = Vec::new();
    for _ in 0..3 {
        let store = home.neighbour(Clock::Manual(Arc::clone(&home.clock))).await;
        let shop = Shop::open_in_real_time(&store);
        working.push(tokio::spawn(async move { shop.release_all().await }));
    }
    let mut released = Vec::new();
    for worker in working {
        released.push(worker.await.unwrap());
    }
    assert_eq!(released.iter().sum::<usize>(), 400, "{released:?}");
    assert_sound(home.store.as_ref()).await;
}
