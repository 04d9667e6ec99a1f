//! Processes that are killed with their hands full, and for how long their work lies there: a lease,
//! and no longer. Leases take their time, so that these are run by `make soak`.

use std::time::Duration;

use holdfast::engine::{Runtime as _, TokioRuntime};
use sqlx::Executor as _;

use crate::on_each_store;
use crate::queue::{Emulator, holds, paths, settings};
use crate::shop::{Kind, Shop, until};

on_each_store!(
    ; soak
    soak_what_a_killed_relay_had_is_published_within_its_lease,
    soak_what_a_killed_consumer_had_is_done_within_its_lease,
);

/// For how long a relay has what it claimed, and a consumer what it took.
const RELAY_LEASE: Duration = Duration::from_secs(60);
const CONSUMER_LEASE: Duration = Duration::from_secs(30);
/// What a machine that is busy may need besides.
const MARGIN: Duration = Duration::from_secs(15);

/// Waits for as long as it takes, but not for ever, and says how long it took.
async fn takes(mut is_done: impl AsyncFnMut() -> bool) -> Duration {
    let watch = TokioRuntime::start();
    while !is_done().await {
        assert!(watch.elapsed() < RELAY_LEASE * 3, "it never comes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    watch.elapsed()
}

async fn soak_what_a_killed_relay_had_is_published_within_its_lease(shop: &mut Shop) {
    let emulator = Emulator::start(&["--slow-ms", "9000"]);
    let url = emulator.url("pull");
    let known = settings(&url, "3600");
    let only_api = [known.as_slice(), &[("HOLDFAST_ROLES", "api")]].concat();
    let client = shop.restart(&only_api).await;
    let ids = holds(&client, 500, 120).await;
    // A relay claims 256 at a time, so that two of them die with all.
    shop.restart(&known).await;
    let claimed = "select count(*) from outbox where attempts > 0";
    for leased in [256, 500] {
        until(async || (shop.count(claimed).await == leased).then_some(())).await;
        shop.take_server().kill9();
        if leased < 500 {
            shop.start(&known);
        }
    }
    let marked = "select count(*) from outbox where published_at is not null";
    assert_eq!(
        shop.count(marked).await,
        0,
        "they died before they marked anything"
    );
    emulator.stop_faults().await;
    let client = shop.start(&known);
    let took = takes(async || shop.count(marked).await == 500).await;
    println!("what killed relays had was published {took:?} later");
    assert!(took < RELAY_LEASE + MARGIN, "{took:?}");
    // What the queue had taken from the dead it knows by its key.
    assert_eq!(emulator.stats().await["published"], 500);
    takes(async || client.get_stock("Q").await.expect(200)["held"] == 0).await;
    assert_eq!(paths(&client, &ids).await, vec!["pull"; 500]);
}

async fn soak_what_a_killed_consumer_had_is_done_within_its_lease(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let url = emulator.url("pull");
    let known = settings(&url, "3600");
    let client = shop.restart(&known).await;
    let ids = holds(&client, 500, 15).await;
    until(async || (emulator.stats().await["published"] == 500).then_some(())).await;
    // Nobody can write, so that consumers have their hands full. One takes 64 at a time.
    let mut hand = Hand::new(shop).await;
    let mut died = 0;
    while emulator.stats().await["deliveries"].as_u64().unwrap() < 500 {
        let seen = emulator.stats().await["deliveries"].clone();
        takes(async || emulator.stats().await["deliveries"] != seen).await;
        shop.take_server().kill9();
        died += 1;
        shop.start(&known);
    }
    assert!(died > 1, "{died}");
    assert_eq!(emulator.stats().await["acknowledged"], 0);
    hand.let_go().await;
    let client = shop.client();
    let took = takes(async || client.get_stock("Q").await.expect(200)["held"] == 0).await;
    println!("what killed consumers had was done {took:?} later");
    assert!(took < CONSUMER_LEASE + MARGIN, "{took:?}");
    assert_eq!(paths(&client, &ids).await, vec!["pull"; 500]);
    takes(async || emulator.stats().await["acknowledged"] == 500).await;
}

/// Somebody who keeps everybody from writing.
enum Hand {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
}

impl Hand {
    async fn new(shop: &Shop) -> Self {
        if shop.kind() == Kind::Sqlite {
            let mut hand = shop.sqlite().await;
            hand.execute("begin immediate").await.unwrap();
            return Self::Sqlite(hand);
        }
        let mut hand = shop.postgres().await;
        let lock = "begin; lock table reservations in exclusive mode";
        sqlx::raw_sql(lock).execute(&mut hand).await.unwrap();
        Self::Postgres(hand)
    }

    async fn let_go(&mut self) {
        match self {
            Self::Sqlite(hand) => drop(hand.execute("rollback").await.unwrap()),
            Self::Postgres(hand) => drop(hand.execute("rollback").await.unwrap()),
        }
    }
}
