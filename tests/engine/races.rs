//! Many at once, in real time, on PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast::domain::{EventKind, Job, Message, State, Timestamp, Via};
use holdfast::engine::{Deliveries, TokioRuntime};
use holdfast::metrics::Heartbeat;
use holdfast::store::Clock;
use holdfast::worker::Expirer;
use sqlx::{Executor as _, Row as _};
use tokio::sync::watch;

use crate::auditor::assert_sound;
use crate::shop::{
    Home, Shop, cancel, expire, extend, pay, postgres_in_real_time, reacquire, reserve,
};

/// Numbers without a pattern, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Several programs on one database, the first on the home's own connections.
async fn shops(home: &Home, number: usize) -> Vec<Shop> {
    let mut shops = vec![Shop::open_in_real_time(&home.store)];
    while shops.len() < number {
        let store = home.neighbour(Clock::Database).await;
        shops.push(Shop::open_in_real_time(&store));
    }
    shops
}

/// Expirers that run until the sender is dropped.
fn expirers(shops: &[Shop]) -> watch::Sender<bool> {
    let (stop, stopped) = watch::channel(false);
    for shop in shops {
        let runtime = Arc::new(TokioRuntime::start());
        let expirer = Expirer::timer(
            shop.engine.clone(),
            runtime.clone(),
            Duration::from_secs(300),
        );
        let heartbeat = Heartbeat::default();
        tokio::spawn(holdfast::worker::run(
            expirer,
            runtime,
            heartbeat,
            stopped.clone(),
        ));
    }
    stop
}

async fn until_nothing_is_due(shop: &Shop) {
    loop {
        let next = shop.store.next_attempt(Timestamp::EPOCH).await.unwrap();
        match next.attempt_at {
            Some(at) if at <= next.now => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => return,
        }
    }
}

async fn until_nothing_is_held(shop: &Shop) {
    let is_held = async || {
        let next = shop.store.next_attempt(Timestamp::EPOCH).await.unwrap();
        next.attempt_at.is_some()
    };
    while is_held().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn deadlocks(home: &Home) -> i64 {
    let mut watcher = home.database().connect().await;
    let query = "select deadlocks from pg_stat_database where datname = current_database()";
    watcher.fetch_one(query).await.unwrap().get(0)
}

/// woocommerce/woocommerce-gateway-stripe PR 5486: paid and cancelled as unpaid.
async fn payment_against_expiry(rounds: u16) {
    let home = postgres_in_real_time().await;
    let shops = shops(&home, 2).await;
    shops[0].stock_up("A", i64::from(rounds)).await;
    let running = expirers(&shops);
    let mut dice = Dice(7);
    let mut racing = Vec::new();
    for at in 0..rounds {
        let one = shops[usize::from(at % 2)].clone();
        let other = shops[usize::from((at + 1) % 2)].clone();
        // Most come shortly before the deadline, some after it.
        let before = i64::try_from(dice.below(240)).unwrap() - 40;
        racing.push(tokio::spawn(async move {
            let job = one.hold("A", 1, 2).await.job();
            let now = one.store.now().await.unwrap();
            let wait = (job.deadline.millis_since(now) - before).max(0);
            tokio::time::sleep(Duration::from_millis(wait.cast_unsigned())).await;
            let (first, second, message, again) = tokio::join!(
                one.word(pay(job.reservation)),
                other.word(pay(job.reservation)),
                other.word(expire(job)),
                one.word(expire(job)),
            );
            (job, [first, second], [message, again])
        }));
    }
    let mut deadlines = BTreeMap::new();
    let (mut paid, mut expired) = (0_u16, 0_u16);
    for race in racing {
        let (job, payments, messages) = race.await.unwrap();
        deadlines.insert(job.reservation, job.deadline);
        let state = {
            until_nothing_is_due(&shops[0]).await;
            shops[0].state(job.reservation).await
        };
        let case = format!("{job:?} is {state:?}: {payments:?}, {messages:?}");
        match state {
            State::Paid => {
                paid += 1;
                assert_eq!(payments, ["paid", "paid"], "{case}");
                assert!(!messages.contains(&"released".to_owned()), "{case}");
            }
            State::Expired => {
                expired += 1;
                assert_eq!(payments, ["too-late", "too-late"], "{case}");
                let by_message = messages.iter().filter(|word| *word == "released").count();
                assert!(by_message <= 1, "{case}");
            }
            _ => panic!("{case}"),
        }
    }
    assert_eq!(paid + expired, rounds);
    assert!(
        paid > 0 && expired > 0,
        "no race: {paid} paid, {expired} expired"
    );
    drop(running);
    let books = assert_sound(home.store.as_ref()).await;
    for recorded in &books.events {
        let at = recorded.event.at;
        let Some(id) = recorded.event.reservation_id else {
            continue;
        };
        let deadline = deadlines[&id];
        match recorded.event.kind {
            EventKind::Paid => assert!(at < deadline, "P3: paid at {at}"),
            EventKind::Expired => assert!(at >= deadline, "P3: expired at {at}"),
            _ => {}
        }
    }
    assert_eq!(deadlocks(&home).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p2_payment_against_expiry_has_one_legal_end() {
    payment_against_expiry(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "longer than is needed each time"]
async fn soak_p2_payment_against_expiry_has_one_legal_end() {
    payment_against_expiry(1_000).await;
}

/// django-oscar/django-oscar PR 4594, saleor/saleor PR 18203: rows locked in the basket's order.
async fn opposite_line_orders(workers: u64, rounds: usize) {
    let home = postgres_in_real_time().await;
    let shops = shops(&home, 4).await;
    for at in 0..8 {
        shops[0].stock_up(&format!("S-{at}"), 60).await;
    }
    let running = expirers(&shops);
    let mut working = Vec::new();
    for worker in 0..workers {
        let shop = shops[(worker % 4) as usize].clone();
        working.push(tokio::spawn(async move {
            let mut dice = Dice(worker + 1);
            for _ in 0..rounds {
                let names: Vec<String> = (0..5).map(|_| format!("S-{}", dice.below(8))).collect();
                let lines: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
                let word = match shop.done(reserve(&lines, 1)).await {
                    holdfast::domain::Outcome::Reservation { reservation, .. } => {
                        let id = reservation.id;
                        match dice.below(5) {
                            0 => shop.word(cancel(id)).await,
                            1 => shop.word(extend(id, 1)).await,
                            2 => shop.word(reacquire(id)).await,
                            3 => shop.word(expire(reservation.job())).await,
                            _ => continue,
                        }
                    }
                    _ => continue,
                };
                let wrong = ["overloaded", "store", "fate-unknown", "not-found"];
                assert!(!wrong.contains(&word.as_str()), "{word}");
            }
        }));
    }
    for worker in working {
        worker.await.unwrap();
    }
    until_nothing_is_held(&shops[0]).await;
    drop(running);
    assert_eq!(deadlocks(&home).await, 0);
    assert_sound(home.store.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p1_lines_in_any_order_never_deadlock() {
    opposite_line_orders(32, 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "longer than is needed each time"]
async fn soak_p1_lines_in_any_order_never_deadlock() {
    opposite_line_orders(64, 150).await;
}

/// woocommerce/woocommerce#44273: many shoppers, several servers, one number of units.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p1_p11_units_that_come_free_are_sold_once_by_several_programs() {
    let home = postgres_in_real_time().await;
    let shops = shops(&home, 3).await;
    shops[0].stock_up("A", 50).await;
    for _ in 0..25 {
        shops[0].hold("A", 2, 1).await;
    }
    tokio::time::sleep(Duration::from_millis(1_010)).await;
    // All units are due, nobody has released any, and expirers come by meanwhile.
    let running = expirers(&shops);
    let mut waiting = Vec::new();
    for at in 0..300 {
        let shop = shops[at % 3].clone();
        waiting.push(tokio::spawn(async move {
            shop.word(reserve(&[("A", 1)], 60)).await
        }));
    }
    let mut held = 0;
    for answer in waiting {
        let word = answer.await.unwrap();
        assert!(word == "held" || word == "insufficient", "{word}");
        held += usize::from(word == "held");
    }
    assert_eq!(held, 50);
    drop(running);
    assert_eq!(deadlocks(&home).await, 0);
    assert_sound(home.store.as_ref()).await;
}

/// A delivery, the expirer and a cancel want the same hold at once, around its deadline.
async fn delivery_expirer_and_cancel(rounds: u16) {
    let home = postgres_in_real_time().await;
    let shops = shops(&home, 2).await;
    shops[0].stock_up("A", i64::from(rounds)).await;
    let running = expirers(&shops);
    let mut dice = Dice(11);
    let mut racing = Vec::new();
    for at in 0..rounds {
        let one = shops[usize::from(at % 2)].clone();
        let other = shops[usize::from((at + 1) % 2)].clone();
        let before = i64::try_from(dice.below(160)).unwrap() - 40;
        racing.push(tokio::spawn(async move {
            let job = one.hold("A", 1, 2).await.job();
            let now = one.store.now().await.unwrap();
            let wait = (job.deadline.millis_since(now) - before).max(0);
            tokio::time::sleep(Duration::from_millis(wait.cast_unsigned())).await;
            let deliveries = Deliveries::new(
                other.engine.clone(),
                Arc::clone(&other.runtime),
                Arc::clone(&other.metrics),
                "queue",
            );
            let payload = Message::first(job).payload();
            let (cancelled, delivered) = tokio::join!(
                one.word(cancel(job.reservation)),
                deliveries.deliver(payload.as_bytes(), Via::Push, None),
            );
            (job, cancelled, delivered.unwrap().as_str())
        }));
    }
    let (mut expired, mut cancelled) = (0_u16, 0_u16);
    for race in racing {
        let (job, cancel, delivered) = race.await.unwrap();
        until_nothing_is_due(&shops[0]).await;
        let state = shops[0].state(job.reservation).await;
        let outcomes = ledger(&home, &job).await;
        let case = format!("{job:?} is {state:?}: {cancel}, {delivered}, {outcomes:?}");
        match state {
            State::Expired => {
                expired += 1;
                assert_eq!(cancel, "too-late", "{case}");
                assert!(["expired", "duplicate"].contains(&delivered), "{case}");
                assert_eq!(outcomes, ["expired"], "{case}");
            }
            State::Cancelled => {
                cancelled += 1;
                assert_eq!(cancel, "cancelled", "{case}");
                assert_eq!(delivered, "cancelled", "{case}");
                assert_eq!(outcomes, ["cancelled"], "nobody expired it: {case}");
            }
            _ => panic!("{case}"),
        }
    }
    drop(running);
    assert_eq!(shops[0].on_shelf("A").await.held, 0);
    assert_sound(home.store.as_ref()).await;
    let ended = home.store.events(0, 100_000).await.unwrap();
    let ends = |kind| ended.iter().filter(|it| it.event.kind == kind).count();
    assert_eq!(ends(EventKind::Expired), usize::from(expired));
    assert_eq!(ends(EventKind::Cancelled), usize::from(cancelled));
}

/// What the ledger says of a job.
async fn ledger(home: &Home, job: &Job) -> Vec<String> {
    let mut rows = home.database().connect().await;
    let query = sqlx::query_scalar("select outcome from ledger where job_id = $1").bind(job.id());
    query.fetch_all(&mut rows).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_delivery_the_expirer_and_a_cancel_have_one_winner() {
    delivery_expirer_and_cancel(100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; `make soak` runs it"]
async fn soak_p2_a_delivery_the_expirer_and_a_cancel_have_one_winner() {
    delivery_expirer_and_cancel(1_000).await;
}
