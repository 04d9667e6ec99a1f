//! The service behind a pooler that gives each transaction another connection: nothing that it does
//! depends on what a connection remembers, least of all a lock.

use serde_json::json;
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::books;
use crate::pooler::Pooler;
use crate::queue::{Emulator, holds, paths, settings};
use crate::shop::{Kind, Shop, at_once, id, until};
use crate::world::server::{ServerProcess, run};

/// The pooler is what it says: a lock that outlives its transaction stays behind with the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_outlives_its_transaction_is_lost_behind_a_pooler() {
    let shop = Shop::vacant(Kind::Postgres, 1).await;
    let pooler = Pooler::start(&shop.url()).await;
    let mut one = PgConnection::connect(pooler.url()).await.unwrap();
    let _other = PgConnection::connect(pooler.url()).await.unwrap();
    let mut done = Vec::new();
    for ask in [
        "select pg_try_advisory_lock(1)",
        "select pg_advisory_unlock(1)",
    ] {
        let row = sqlx::raw_sql(ask).fetch_one(&mut one).await.unwrap();
        done.push(row.get::<bool, _>(0));
    }
    assert_eq!(done, [true, false], "it is locked, and cannot be unlocked");
    let moved = pooler.transactions().1;
    assert!(moved > 0, "{moved}");
    // The tests' way to see it sees it.
    until(async || (shop.count(KEPT).await == 1).then_some(())).await;
    shop.close().await;
}

/// What connections keep that are in no transaction.
const KEPT: &str = "
    select count(*)
    from pg_locks as l
    join pg_stat_activity as a on a.pid = l.pid
    where a.datname = current_database()
        and a.state = 'idle'
        and a.state_change < statement_timestamp() - interval '20 ms'";

#[tokio::test(flavor = "multi_thread")]
async fn the_service_works_when_each_transaction_has_another_connection() {
    let shop = Shop::vacant(Kind::Postgres, 2).await;
    let pooler = Pooler::start(&shop.url()).await;
    let emulator = Emulator::start(&[]);
    let queue = emulator.url("pull");
    let quiet = [("HOLDFAST_LOG", "warn,holdfast::serve=info")];
    let known = [&settings(&queue, "3600")[..], &quiet].concat();
    let servers = [(); 2].map(|()| ServerProcess::start(pooler.url(), &known));
    let clients = servers.each_ref().map(ServerProcess::client);
    let client = &clients[0];

    // Holds that the queue ends, with relay and consumer behind the pooler.
    let ids = holds(client, 60, 2).await;
    for sku in ["A", "B"] {
        client.put_stock(sku, 200).await.expect(200);
    }
    // Meanwhile people buy, twice under each key, from both instances.
    at_once((0..80_usize).map(|number| {
        let client = clients[number % 2].with_key(&format!("buyer-{number}"));
        let plain = clients[(number + 1) % 2].clone();
        async move {
            let sku = ["A", "B"][number % 2];
            let held = id(client.reserve_one(sku, 1, 600).await);
            let again = client.reserve_one(sku, 1, 600).await;
            assert!(again.is_replayed());
            assert_eq!(id(again), held);
            let payment = json!({ "payment_reference": format!("pi-{number}") });
            match number % 4 {
                0 => drop(plain.checkout(&held, payment).await.expect(200)),
                1 => drop(plain.cancel(&held, json!({})).await.expect(200)),
                2 => drop(
                    plain
                        .extend(&held, json!({ "extend_seconds": 60 }))
                        .await
                        .expect(200),
                ),
                _ => {}
            }
        }
    }))
    .await;
    until(async || (client.get_stock("Q").await.expect(200)["held"] == 0).then_some(())).await;
    assert_eq!(paths(client, &ids).await, vec!["pull"; 60]);

    // Commands have connections of their own, and take turns with the servers.
    let known = [&[("HOLDFAST_DATABASE_URL", pooler.url())][..], &known].concat();
    for command in [
        &["relay", "--once"][..],
        &["sweep", "--once"],
        &["audit"],
        &["audit", "--repair", "--apply"],
        &["keys", "list"],
    ] {
        let output = run(command, &known);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    for sku in ["A", "B"] {
        let stock = client.get_stock(sku).await.expect(200);
        let sold = if sku == "A" { 20 } else { 0 };
        assert_eq!(
            (&stock["on_hand"], &stock["held"]),
            (&json!(200 - sold), &json!(20))
        );
    }
    books::check(client).await;
    assert_eq!(
        shop.count(KEPT).await,
        0,
        "what is in no transaction has no lock"
    );
    let temporary = "select count(*) from pg_class where relpersistence = 't'";
    assert_eq!(shop.count(temporary).await, 0);
    let (transactions, moved) = pooler.transactions();
    assert!(
        moved * 2 > transactions && moved > 200,
        "{moved} of {transactions}"
    );
    for server in servers {
        let log = server.log();
        let lost = ["prepared statement", "panicked"];
        let lost = log
            .iter()
            .find(|line| lost.iter().any(|word| line.contains(word)));
        assert_eq!(lost, None);
        assert!(server.terminate().await.success());
    }
    shop.close().await;
}
