//! Others are in the way: rows that somebody has locked, callers that stall, a SKU that everybody
//! wants. Neighbours do not suffer, and nobody waits for ever.

use std::time::Duration;

use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};
use tokio::io::AsyncWriteExt as _;

use crate::on_each_store;
use crate::raw;
use crate::shop::{Kind, Shop, at_once, id, until, with_status};
use crate::world::client::Client;

on_each_store!(
    a_caller_who_stalls_holds_nothing_up,
    what_is_sold_out_does_not_starve_those_who_pay;
    soak soak_a_sold_out_sku_does_not_stop_a_long_sale
);

/// A transaction of somebody else's that has locked a row of stock.
async fn lock_stock(shop: &Shop, sku: &str) -> PgConnection {
    let mut stranger = shop.postgres().await;
    stranger.execute("begin").await.unwrap();
    sqlx::query("select 1 from stock where sku = $1 for update")
        .bind(sku)
        .fetch_one(&mut stranger)
        .await
        .unwrap();
    stranger
}

/// `many` holds on the SKU, at once.
async fn holds(
    client: &Client,
    sku: &'static str,
    many: usize,
) -> Vec<crate::world::client::Answer> {
    at_once((0..many).map(|_| {
        let client = client.clone();
        async move { client.reserve_one(sku, 1, 600).await }
    }))
    .await
}

/// pretix/pretix#4227: nothing could be reserved until the container was restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_locked_fails_its_own_callers_and_nobody_else() {
    let settings = [("HOLDFAST_REQUEST_TIMEOUT_SECONDS", "5")];
    let shop = Shop::open(Kind::Postgres, 1, &settings).await;
    let client = shop.client();
    for sku in ["LOCKED", "A", "B"] {
        client.put_stock(sku, 1_000).await.expect(200);
    }
    let stranger = lock_stock(&shop, "LOCKED").await;
    let (locked, a, b) = tokio::join!(
        holds(&client, "LOCKED", 100),
        holds(&client, "A", 50),
        holds(&client, "B", 50)
    );
    assert_eq!(with_status(&a, 201) + with_status(&b, 201), 100);
    for answer in &locked {
        assert_eq!(answer.refusal(), (503, "overloaded"));
        assert!(
            answer
                .header("retry-after")
                .unwrap()
                .parse::<u64>()
                .unwrap()
                > 0
        );
    }
    // Nothing has happened to those who were told so, and reads and other SKUs go on.
    let stock = client.get_stock("LOCKED").await.expect(200);
    assert_eq!(stock["held"], 0);

    stranger.close().await.unwrap();
    let recovered = holds(&client, "LOCKED", 20).await;
    assert_eq!(with_status(&recovered, 201), 20, "no restart is needed");
    let stock = client.get_stock("LOCKED").await.expect(200);
    assert_eq!(stock["held"], 20);
    shop.close().await;
}

/// A server that dies with rows locked: the database lets go of them, and the other one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn the_locks_of_a_killed_server_go_with_it() {
    let mut shop = Shop::open(Kind::Postgres, 2, &[]).await;
    let client = shop.client();
    client.put_stock("A", 10).await.expect(200);
    // Whoever wants to number events waits for a stranger, with stock locked by then.
    let mut stranger = shop.postgres().await;
    stranger.execute("begin").await.unwrap();
    stranger
        .execute("select * from event_head for update")
        .await
        .unwrap();

    let doomed = shop.take_server();
    let doomed_client = doomed.client();
    let asked = tokio::spawn(async move {
        let path = ["reservations"];
        let body = json!({ "lines": [{ "sku": "A", "quantity": 1 }], "reference": "doomed" });
        doomed_client
            .try_to_ask(reqwest::Method::POST, &path, body)
            .await
    });
    // It has rows, and waits for one more.
    let mut watcher = shop.postgres().await;
    until(async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
             where application_name = 'holdfast' and datname = current_database()
                 and wait_event_type = 'Lock'",
        )
        .fetch_one(&mut watcher)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    doomed.kill9();
    assert!(asked.await.unwrap().is_err(), "nobody answered");

    stranger.close().await.unwrap();
    client.reserve_one("A", 10, 600).await.expect(201);
    assert_eq!(
        shop.count("select count(*) from reservations where reference = 'doomed'")
            .await,
        0
    );
    shop.close().await;
}

/// woocommerce/woocommerce#65313: during a sale the sold-out SKU froze every other order.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_sold_out_is_refused_without_a_lock() {
    let shop = Shop::open(Kind::Postgres, 1, &[]).await;
    let client = shop.client();
    client.put_stock("HOT", 1).await.expect(200);
    client.put_stock("COLD", 1_000).await.expect(200);
    client.reserve_one("HOT", 1, 600).await.expect(201);
    // If a refusal took the lock, none would come.
    let stranger = lock_stock(&shop, "HOT").await;
    let (hot, cold) = tokio::join!(holds(&client, "HOT", 200), holds(&client, "COLD", 50));
    for answer in &hot {
        assert_eq!(answer.refusal(), (409, "insufficient-stock"));
    }
    assert_eq!(with_status(&cold, 201), 50);
    stranger.close().await.unwrap();
    shop.close().await;
}

async fn what_is_sold_out_does_not_starve_those_who_pay(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("HOT", 40).await.expect(200);
    let ids: Vec<String> = holds(&client, "HOT", 40)
        .await
        .into_iter()
        .map(id)
        .collect();
    // Buyers who come too late never stop coming, until those who pay have paid.
    let late = client.clone();
    let late = tokio::spawn(async move {
        loop {
            let answers = holds(&late, "HOT", 30).await;
            assert!(
                answers
                    .iter()
                    .all(|answer| answer.status == 409 || answer.status == 201)
            );
        }
    });
    for (n, id) in ids.iter().enumerate() {
        let answer = if n % 4 == 0 {
            client.cancel(id, json!({})).await
        } else {
            client
                .checkout(id, json!({ "payment_reference": format!("pi_{n}") }))
                .await
        };
        answer.expect(200);
    }
    late.abort();
    let _ = late.await;
    // What a late buyer began before they hung up is finished, or never begun.
    until(async || {
        let stock = client.get_stock("HOT").await.expect(200);
        (stock["on_hand"] == 10 && stock["held"] == 10).then_some(())
    })
    .await;
}

/// saleor/saleor#11069: locks were kept while somebody else was waited for.
async fn a_caller_who_stalls_holds_nothing_up(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("A", 100).await.expect(200);
    let url = shop.server().url().to_owned();
    let body = br#"{"lines":[{"sku":"A","quantity":1}],"reference":"stalled"}"#;
    let mut stalled = Vec::new();
    for _ in 0..30 {
        let mut connection = raw::connect(&url).await;
        let request = raw::post(
            "/v1/reservations",
            &["Content-Type: application/json"],
            body,
        );
        connection
            .write_all(&request[..request.len() - 10])
            .await
            .unwrap();
        stalled.push(connection);
    }
    let answers = holds(&client, "A", 100).await;
    assert_eq!(with_status(&answers, 201), 100);
    if shop.kind() == Kind::Postgres {
        until(async || {
            let open = "select count(*) from pg_stat_activity
                where application_name = 'holdfast' and datname = current_database()
                    and state like 'idle in transaction%'";
            (shop.count(open).await == 0).then_some(())
        })
        .await;
    }
    drop(stalled);
    assert_eq!(
        shop.count("select count(*) from reservations where reference = 'stalled'")
            .await,
        0
    );
}

/// saleor/saleor#11069 again: under load, no transaction stays open.
#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_grows_old_under_load() {
    let shop = Shop::open(Kind::Postgres, 2, &[]).await;
    let clients = shop.clients();
    clients[0].put_stock("A", 1_000_000).await.expect(200);
    let load = at_once((0..40).map(|n| {
        let client = clients[n % 2].clone();
        async move {
            for _ in 0..15 {
                let id = id(client.reserve_one("A", 1, 1).await);
                client.extend(&id, json!({ "extend_seconds": 60 })).await;
                client.cancel(&id, json!({})).await;
            }
        }
    }));
    let mut watcher = shop.postgres().await;
    let watch = async {
        loop {
            // One that waits for its client is old; one that computes on a busy machine is not.
            let old = sqlx::query(
                "select pid, query from pg_stat_activity
                 where application_name = 'holdfast' and datname = current_database()
                     and state like 'idle in transaction%' and xact_start < now() - interval '1 s'
                     and state_change < now() - interval '1 s'",
            )
            .fetch_all(&mut watcher)
            .await
            .unwrap();
            let old: Vec<String> = old.iter().map(|row| row.get("query")).collect();
            assert!(old.is_empty(), "idle for a second: {old:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        _ = load => {}
        () = watch => {}
    }
    shop.close().await;
}

/// woocommerce/woocommerce#65313 for as long as a sale lasts.
async fn soak_a_sold_out_sku_does_not_stop_a_long_sale(shop: &mut Shop) {
    let client = shop.client();
    client.put_stock("HOT", 0).await.expect(200);
    client.put_stock("COLD", 1_000_000).await.expect(200);
    let (hot, cold) = (client.clone(), client.clone());
    let noise = tokio::spawn(async move {
        loop {
            for answer in holds(&hot, "HOT", 100).await {
                assert_eq!(answer.refusal(), (409, "insufficient-stock"));
            }
        }
    });
    for _ in 0..200 {
        let answers = holds(&cold, "COLD", 50).await;
        assert_eq!(with_status(&answers, 201), 50);
    }
    noise.abort();
    let _ = noise.await;
}
