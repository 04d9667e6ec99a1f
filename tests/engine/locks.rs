//! Rows that somebody else has locked, on PostgreSQL: for as long as they like, in any order.

use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::State;
use holdfast::engine::{Reply, Settings, TokioRuntime};
use holdfast::metrics::LaneLabel;
use holdfast::store::Clock;
use holdfast::worker::{Expirer, Next, Worker};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::auditor::assert_sound;
use crate::faulty::{Step, faulty};
use crate::shop::{
    Home, Shop, extend, keyed, pay, postgres, postgres_in_real_time, reserve, settings, word,
};

const LOCK_HOT: &str = "select 1 from stock where sku = 'HOT' for update";

async fn begin<'c>(
    connection: &'c mut PgConnection,
    lock: &'static str,
) -> sqlx::Transaction<'c, sqlx::Postgres> {
    let mut transaction = connection.begin().await.unwrap();
    transaction.execute(lock).await.unwrap();
    transaction
}

/// Returns when somebody waits for a lock in this database, which is to be soon.
pub async fn until_somebody_waits(watcher: &mut PgConnection) {
    for _ in 0..10_000 {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&mut *watcher)
        .await
        .unwrap();
        if waiting > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("nobody waits for a lock");
}

async fn deadlocks(home: &Home) -> i64 {
    let mut watcher = home.database().connect().await;
    let query = "select deadlocks from pg_stat_database where datname = current_database()";
    let row = watcher.fetch_one(query).await.unwrap();
    row.get(0)
}

/// pretix/pretix#4227: nothing could be reserved until a restart.
#[tokio::test]
async fn a_foreign_lock_on_stock_stops_nobody_else_and_ends_without_a_restart() {
    let home = postgres_in_real_time().await;
    let impatient = Settings {
        patience: Duration::from_secs(3),
        ..settings(2)
    };
    let runtime = Arc::new(TokioRuntime::start());
    let shop = Shop::open_with(&home.store, runtime, impatient);
    shop.stock_up("HOT", 1_000).await;
    for at in 0..6 {
        shop.stock_up(&format!("COLD-{at}"), 100).await;
    }
    let mut foreign = home.database().connect().await;
    let lock = begin(
        &mut foreign,
        "select 1 from stock where sku = 'HOT' for update",
    )
    .await;

    let mut hot = Vec::new();
    let mut cold = Vec::new();
    for _ in 0..10 {
        for at in 0..6 {
            let ask = |name: String| {
                let shop = shop.clone();
                tokio::spawn(async move { shop.word(reserve(&[(&name, 1)], 60)).await })
            };
            hot.push(ask("HOT".to_owned()));
            cold.push(ask(format!("COLD-{at}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for answer in cold {
        assert_eq!(answer.await.unwrap(), "held", "a neighbour");
    }
    // Nobody gets the row, and everybody gets an answer, while it is still locked.
    for answer in hot {
        assert_eq!(answer.await.unwrap(), "overloaded");
    }

    lock.rollback().await.unwrap();
    assert_eq!(shop.word(reserve(&[("HOT", 1)], 60)).await, "held");
    assert_eq!(shop.on_shelf("HOT").await.held, 1);
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn p3_nobody_pays_after_the_deadline_though_they_came_before_it() {
    let home = postgres().await;
    let patient = Settings {
        patience: Duration::from_secs(30),
        ..settings(2)
    };
    let shop = Shop::open_with(&home.store, Arc::new(TokioRuntime::start()), patient);
    shop.stock_up("A", 10).await;
    let mut watcher = home.database().connect().await;
    for _ in 0..5 {
        let held = shop.hold("A", 1, 60).await;
        let mut foreign = home.database().connect().await;
        let lock = begin(
            &mut foreign,
            "select 1 from reservations where state = 'held' for update",
        )
        .await;
        home.clock.advance(59_999);
        let ask = |command| {
            let shop = shop.clone();
            tokio::spawn(async move { shop.word(command).await })
        };
        let paying = ask(pay(held.id));
        let extending = ask(extend(held.id, 60));
        until_somebody_waits(&mut watcher).await;
        // The deadline passes while they wait for the row; nobody may release it either.
        home.clock.advance(1);
        assert_eq!(shop.release_all().await, 0);
        assert_eq!(shop.state(held.id).await, State::Held);
        lock.rollback().await.unwrap();
        assert_eq!(paying.await.unwrap(), "too-late");
        assert_eq!(extending.await.unwrap(), "too-late");
        assert_eq!(shop.release_all().await, 1);
        assert_eq!(shop.state(held.id).await, State::Expired);
    }
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn p7_a_foreign_lock_on_stock_does_not_stop_the_release_of_other_holds() {
    let home = postgres().await;
    let shop = Shop::open_in_real_time(&home.store);
    let mut held = Vec::new();
    for name in ["A", "B", "C", "LOCKED", "D"] {
        shop.stock_up(name, 10).await;
        held.push((name, shop.hold(name, 1, 60).await.id));
    }
    home.clock.advance(60_000);
    let mut foreign = home.database().connect().await;
    let lock = begin(
        &mut foreign,
        "select 1 from stock where sku = 'LOCKED' for update",
    )
    .await;
    let mut expirer = Expirer::timer(
        shop.engine.clone(),
        Arc::new(TokioRuntime::start()),
        Duration::from_secs(300),
    );
    while expirer.run_once().await.unwrap() == Next::Again {}
    for (name, id) in &held {
        let expected = if *name == "LOCKED" {
            State::Held
        } else {
            State::Expired
        };
        assert_eq!(shop.state(*id).await, expected, "{name}");
    }
    // The one in the way is tried again soon, and not at once.
    let wait = expirer.run_once().await.unwrap();
    assert_eq!(wait, Next::After(Duration::from_millis(250)));
    lock.rollback().await.unwrap();
    home.clock.advance(250);
    assert_eq!(expirer.run_once().await.unwrap(), Next::Again);
    assert_eq!(shop.state(held[3].1).await, State::Expired);
    assert_sound(home.store.as_ref()).await;
}

/// A row that is busy is not a row that is stuck: who queues for it gets it, who only looks
/// whether it is free does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_others_queue_for_is_queued_for_as_well() {
    let home = postgres().await;
    let patient = Settings {
        patience: Duration::from_secs(10),
        ..settings(2)
    };
    let shop = Shop::open_with(&home.store, Arc::new(TokioRuntime::start()), patient);
    shop.stock_up("HOT", 1_000).await;
    // Once, somebody is in the way for so long that the row is under suspicion.
    let mut foreign = home.database().connect().await;
    let lock = begin(&mut foreign, LOCK_HOT).await;
    let first = tokio::spawn({
        let shop = shop.clone();
        async move { shop.word(reserve(&[("HOT", 1)], 60)).await }
    });
    let contended = || {
        ["sales-0", "sales-1"].iter().any(|lane| {
            let label = LaneLabel {
                lane: (*lane).to_owned(),
            };
            shop.metrics.contended.get_or_create(&label).get() > 0
        })
    };
    while !contended() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // From then on it is never free: two pass it on to each other.
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut queueing = Vec::new();
    for _ in 0..2 {
        let mut connection = home.database().connect().await;
        let stopped = stopped.clone();
        queueing.push(tokio::spawn(async move {
            while !*stopped.borrow() {
                let lock = begin(&mut connection, LOCK_HOT).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                lock.rollback().await.unwrap();
            }
        }));
    }
    let mut watcher = home.database().connect().await;
    until_somebody_waits(&mut watcher).await;
    lock.rollback().await.unwrap();
    assert_eq!(first.await.unwrap(), "held");
    for _ in 0..5 {
        assert_eq!(shop.word(reserve(&[("HOT", 1)], 60)).await, "held");
    }
    stop.send(true).unwrap();
    for connection in queueing {
        connection.await.unwrap();
    }
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p10_keys_in_opposite_order_have_one_effect_and_no_deadlock() {
    let home = postgres().await;
    let neighbour = home.neighbour(Clock::Manual(Arc::clone(&home.clock))).await;
    let shops = [
        Shop::open_in_real_time(&home.store),
        Shop::open_in_real_time(&neighbour),
    ];
    shops[0].stock_up("A", 1_000).await;
    shops[0].stock_up("B", 1_000).await;
    for round in 0..20 {
        let mut waiting = Vec::new();
        for (at, shop) in shops.iter().enumerate() {
            let mut keys: Vec<usize> = (0..12).collect();
            if at == 1 {
                keys.reverse();
            }
            for key in keys {
                let shop = shop.clone();
                let name = if key % 2 == 0 { "A" } else { "B" };
                let command = reserve(&[(name, 1)], 60);
                waiting.push(tokio::spawn(async move {
                    let key = keyed(&format!("{round}-{key}"), 1);
                    match shop.engine.submit(command, Some(key)).await {
                        Ok(Reply::Decided(outcome)) => (true, word(&Ok(outcome))),
                        Ok(Reply::Replayed(answer)) => (false, answer.body),
                        Err(error) => panic!("{error}"),
                    }
                }));
            }
        }
        let mut decided = 0;
        for answer in waiting {
            let (first, word) = answer.await.unwrap();
            assert_eq!(word, "held");
            decided += usize::from(first);
        }
        assert_eq!(decided, 12, "round {round}");
    }
    let held = shops[0].on_shelf("A").await.held + shops[0].on_shelf("B").await.held;
    assert_eq!(held, 20 * 12);
    assert_eq!(deadlocks(&home).await, 0);
    assert_sound(home.store.as_ref()).await;
}

/// do-indeksa/platform#347, hazelcast/hazelcast PR 3744: the clean-up acted on what it had read.
#[tokio::test]
async fn p4_an_extension_while_the_sweeper_pauses_is_not_swept_away() {
    let home = postgres().await;
    let (store, plan) = faulty(&home.store);
    let sweeper = Shop::open(&store);
    let patient = Settings {
        patience: Duration::from_secs(30),
        ..settings(2)
    };
    let shop = Shop::open_with(&home.store, Arc::new(TokioRuntime::start()), patient);
    shop.stock_up("A", 1).await;
    let held = shop.hold("A", 1, 60).await;
    // It is before the deadline by the clock of whoever extends, after it by the sweeper's look.
    let gate = plan.gate(Step::ClaimDue);
    home.clock.advance(60_000);
    let sweeping = tokio::spawn({
        let sweeper = sweeper.clone();
        async move { sweeper.release_all().await }
    });
    gate.reached.notified().await;
    home.clock.advance(-1);
    assert_eq!(shop.word(extend(held.id, 60)).await, "held");
    home.clock.advance(1);
    plan.ungate();
    assert_eq!(sweeping.await.unwrap(), 0);
    assert_eq!(shop.state(held.id).await, State::Held);

    // And the same with the pause after the row was locked: then the extension comes too late.
    let gate = plan.gate(Step::Now);
    home.clock.advance(60_000);
    let sweeping = tokio::spawn(async move { sweeper.release_all().await });
    gate.reached.notified().await;
    let extending = tokio::spawn({
        let shop = shop.clone();
        async move { shop.word(extend(held.id, 60)).await }
    });
    let mut watcher = home.database().connect().await;
    until_somebody_waits(&mut watcher).await;
    plan.ungate();
    assert_eq!(sweeping.await.unwrap(), 1);
    assert_eq!(extending.await.unwrap(), "too-late");
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test]
async fn p7_a_corrupt_row_is_given_up_and_found_by_the_audit() {
    let home = postgres().await;
    let shop = Shop::open(&home.store);
    let mut held = Vec::new();
    for name in ["A", "B", "C", "D"] {
        shop.stock_up(name, 10).await;
        held.push(shop.hold(name, 2, 60).await);
    }
    let mut hand = home.database().connect().await;
    let spoil = "update reservations set lines = '[{\"sku\": 1}]' where id = $1";
    sqlx::query(spoil)
        .bind(held[0].id.as_uuid())
        .execute(&mut hand)
        .await
        .unwrap();
    hand.execute("update stock set held = 1 where sku = 'C'")
        .await
        .unwrap();

    home.clock.advance(60_000);
    let mut expirer = Expirer::timer(
        shop.engine.clone(),
        crate::shop::InNoTime::start(),
        Duration::from_secs(300),
    );
    for _ in 0..4 {
        expirer.run_once().await.unwrap();
    }
    assert_eq!(shop.state(held[1].id).await, State::Expired);
    assert_eq!(shop.state(held[3].id).await, State::Expired);
    assert_eq!(shop.state(held[2].id).await, State::Held);
    assert_eq!(shop.metrics.stuck_holds.get(), 2);
    // What cannot be understood is given up at once; what fails is tried again.
    for (at, rests_ms) in [(0, 1..=i64::MAX), (2, 0..=250)] {
        let put_off: i64 = sqlx::query_scalar(
            "select (extract(epoch from attempt_at - expires_at) * 1000)::bigint
            from reservations where id = $1",
        )
        .bind(held[at].id.as_uuid())
        .fetch_one(&mut hand)
        .await
        .unwrap();
        assert!(rests_ms.contains(&put_off), "{at}: {put_off}");
    }
    let cases = home.store.quarantine().open(10, 0).await.unwrap();
    assert_eq!(cases.len(), 1);
    assert_eq!(cases[0].sighting.key, held[0].id.to_string());
    let drifts = home.store.audit().await.unwrap();
    let about = |word: &str| drifts.iter().any(|drift| drift.row.contains(word));
    assert!(about("C at default"), "{drifts:#?}");
    assert!(
        about(&held[0].id.to_string()) || about("A at default"),
        "{drifts:#?}"
    );
    // Somebody who wants what the corrupt one holds gets an answer in time.
    let word = shop.word(reserve(&[("A", 10)], 60)).await;
    assert!(word == "insufficient" || word == "overloaded", "{word}");
    assert_eq!(shop.word(reserve(&[("B", 10)], 60)).await, "held");
}
