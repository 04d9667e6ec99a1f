//! Relay and sweep, driven from outside: by the command line and over HTTP, beside servers that do
//! not do it themselves, and beside each other.

use std::process::Output;

use reqwest::Method;
use serde_json::{Value, json};

use crate::command_line::assert_refused;
use crate::on_each_store;
use crate::queue::{Emulator, holds, paths, settings};
use crate::shop::{Kind, Shop, at_once, id, until};
use crate::world::client::Client;
use crate::world::directory::TempDir;
use crate::world::server::run;

on_each_store!(
    a_sweep_releases_what_is_due_and_ends,
    a_relay_publishes_what_is_to_be_published_and_ends,
    a_sweep_finds_every_kind_of_hold,
    runs_are_driven_over_http,
);

/// A server that answers callers and leaves the work to somebody else.
const IDLE: (&str, &str) = ("HOLDFAST_ROLES", "api");

/// The one line that a run prints, without the time it took.
#[track_caller]
fn printed(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    without_time(serde_json::from_str(&said).unwrap())
}

fn without_time(mut run: Value) -> Value {
    let took = run.as_object_mut().unwrap().remove("duration_ms");
    assert!(took.unwrap().is_u64());
    run
}

fn sweep(released: usize, more: bool) -> Value {
    json!({ "released": released, "blocked": 0, "more": more })
}

fn relay(published: usize, skipped: usize, more: bool) -> Value {
    json!({
        "published": published,
        "postponed": 0,
        "parked": 0,
        "skipped": skipped,
        "more": more,
    })
}

/// Waits until none of these holds is alive. Nobody releases them.
pub async fn due(client: &Client, ids: &[String]) {
    for id in ids {
        until(async || {
            let body = client.get_reservation(id).await.expect(200);
            (body["state"] == "expired").then_some(())
        })
        .await;
    }
}

/// An embedded database is one process's: a run beside its server is refused, and then the server
/// makes room for it.
pub async fn make_room(shop: &mut Shop, command: &[&str], settings: &[(&str, &str)]) {
    if shop.kind() == Kind::Sqlite {
        let refused = run(command, settings);
        assert_refused(&refused, 2, &["holdfast.db", "another process"]);
        assert!(shop.take_server().terminate().await.success());
    }
}

async fn a_sweep_releases_what_is_due_and_ends(shop: &mut Shop) {
    let client = shop.restart(&[IDLE]).await;
    let ids = holds(&client, 7, 1).await;
    holds(&client, 1, 600).await;
    due(&client, &ids).await;
    let url = shop.url();
    let place = [("HOLDFAST_DATABASE_URL", url.as_str())];
    make_room(shop, &["sweep", "--once"], &place).await;
    let some = run(&["sweep", "--once", "--max-rows", "3"], &place);
    assert_eq!(printed(&some), sweep(3, true));
    // Whoever was missed for a while is caught up with, and nothing is done twice.
    assert_eq!(printed(&run(&["sweep", "--once"], &place)), sweep(4, false));
    assert_eq!(printed(&run(&["sweep", "--once"], &place)), sweep(0, false));
    let client = if shop.kind() == Kind::Sqlite {
        shop.start(&[IDLE])
    } else {
        client
    };
    assert_eq!(paths(&client, &ids).await, vec!["timer"; 7]);
}

async fn a_relay_publishes_what_is_to_be_published_and_ends(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let queue = emulator.url("pull");
    let queued = settings(&queue, "3600");
    let longest = ("HOLDFAST_MAX_HOLD_SECONDS", "7776000");
    let client = shop
        .restart(&[&queued[..], &[IDLE, longest]].concat())
        .await;
    let ids = holds(&client, 20, 600).await;
    client.cancel(&ids[0], json!({})).await.expect(200);
    holds(&client, 1, 90 * 86_400).await;
    let url = shop.url();
    let place = [&queued[..], &[("HOLDFAST_DATABASE_URL", url.as_str())]].concat();
    make_room(shop, &["relay", "--once"], &place).await;
    if shop.kind() == Kind::Postgres {
        overlap(&place).await;
    } else {
        let some = run(&["relay", "--once", "--max-rows", "5"], &place);
        assert_eq!(printed(&some)["more"], true);
        let rest = printed(&run(&["relay", "--once"], &place));
        assert_eq!(rest["more"], false);
    }
    let stats = emulator.stats().await;
    assert_eq!(stats["published"], 19, "{stats}");
    assert_eq!(stats["repeated"], 0, "{stats}");
    // What is due in more than a week waits in the outbox, and costs a run nothing.
    assert_eq!(
        printed(&run(&["relay", "--once"], &place)),
        relay(0, 0, false)
    );
    if shop.kind() == Kind::Sqlite {
        shop.start(&[&queued[..], &[IDLE]].concat());
    }
}

/// Several runs at once share the work, and do none of it twice.
async fn overlap(place: &[(&str, &str)]) {
    let place: Vec<(String, String)> = place
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let one = || {
        let place = place.clone();
        async move {
            let ran = tokio::task::spawn_blocking(move || {
                let place: Vec<(&str, &str)> = place
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                printed(&run(&["relay", "--once"], &place))
            });
            ran.await.unwrap()
        }
    };
    let runs = at_once((0..3).map(|_| one())).await;
    let sum = |name: &str| runs.iter().map(|run| run[name].as_u64().unwrap()).sum();
    let (published, skipped): (u64, u64) = (sum("published"), sum("skipped"));
    assert_eq!((published, skipped), (19, 1), "{runs:?}");
}

/// elizaOS/eliza#11592: the sweep knew one kind of hold, and the others were stranded. Here they
/// differ in all that they can differ in, and in what became of their messages.
async fn a_sweep_finds_every_kind_of_hold(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let queue = emulator.url("pull");
    let queued = settings(&queue, "1");
    let client = shop.restart(&[&queued[..], &[IDLE]].concat()).await;
    client.put_stock("A", 100).await.expect(200);
    let lines = json!([
        { "sku": "A", "quantity": 2 },
        { "sku": "B", "location": "store-7", "quantity": 1 },
    ]);
    let elsewhere = client.request(Method::PUT, "/v1/stock/B?location=store-7");
    let elsewhere = elsewhere.json(&json!({ "on_hand": 1 }));
    client.send(elsewhere).await.expect(200);
    let mut ids = Vec::new();
    for body in [
        json!({ "reference": "plain" }),
        json!({ "reference": "cart", "lines": lines, "customer_id": "c", "metadata": { "a": "b" } }),
        json!({ "reference": "published" }),
        json!({ "reference": "published elsewhere" }),
        json!({ "reference": "parked" }),
        json!({ "reference": "no message" }),
    ] {
        let mut whole = json!({ "lines": [{ "sku": "A", "quantity": 1 }], "hold_seconds": 1 });
        let (whole_body, body) = (whole.as_object_mut().unwrap(), body.as_object().unwrap());
        whole_body.extend(body.clone());
        ids.push(id(client.reserve(whole).await));
    }
    let extended = id(client.reserve_one("A", 1, 1).await);
    let extension = json!({ "extend_seconds": 1 });
    client.extend(&extended, extension).await.expect(200);
    ids.push(extended);
    let relay = ["operations", "relay", "run"];
    let one = json!({ "max_rows": 3 });
    client.ask(Method::POST, &relay, one).await.expect(200);
    for statement in [
        "update outbox set published_at = publish_after, queue = 'another'
             where reservation_id =
                 (select id from reservations where reference = 'published elsewhere')",
        "update outbox set parked_at = publish_after where reservation_id =
             (select id from reservations where reference = 'parked')",
        "delete from outbox where reservation_id =
             (select id from reservations where reference = 'no message')",
    ] {
        shop.sql(statement).await.unwrap();
    }
    due(&client, &ids).await;
    let mut released = 0;
    until(async || {
        let path = ["operations", "sweep", "run"];
        let run = client.ask(Method::POST, &path, json!({})).await.expect(200);
        released += run["released"].as_u64().unwrap();
        (released == 7).then_some(())
    })
    .await;
    assert_eq!(paths(&client, &ids).await, vec!["sweep"; 7]);
    assert_eq!(client.get_stock("A").await.expect(200)["held"], 0);
}

async fn runs_are_driven_over_http(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let queue = emulator.url("pull");
    let client = shop
        .restart(&[&settings(&queue, "1")[..], &[IDLE]].concat())
        .await;
    let drive = async |what: &str, body: Value| {
        let path = ["operations", what, "run"];
        without_time(client.ask(Method::POST, &path, body).await.expect(200))
    };
    let ids = holds(&client, 4, 1).await;
    assert_eq!(
        drive("relay", json!({ "max_rows": 3, "max_seconds": 600 })).await,
        relay(3, 0, true)
    );
    assert_eq!(drive("relay", json!({})).await, relay(1, 0, false));
    // Nobody pulls, so that after the grace the sweep has all of them.
    let mut released = 0;
    until(async || {
        let run = drive("sweep", json!({ "max_rows": 3 })).await;
        let some = run["released"].as_u64().unwrap();
        assert!(some <= 3, "{run}");
        released += some;
        (released == 4 && run["more"] == false).then_some(())
    })
    .await;
    assert_eq!(paths(&client, &ids).await, vec!["sweep"; 4]);
    assert_eq!(drive("sweep", json!({})).await, sweep(0, false));

    for (what, body, field) in [
        ("relay", json!({ "max_seconds": 601 }), "max_seconds"),
        ("relay", json!({ "max_rows": 0 }), "max_rows"),
        ("sweep", json!({ "max_rows": 1_000_001 }), "max_rows"),
        ("sweep", json!({ "max_seconds": "1" }), "max_seconds"),
        ("sweep", json!({ "max_hours": 1 }), "max_hours"),
    ] {
        let path = ["operations", what, "run"];
        let refused = client.ask(Method::POST, &path, body).await.expect(422);
        assert_eq!(refused["errors"][0]["field"], field, "{refused}");
    }
}

#[test]
fn a_run_that_makes_no_sense_is_refused_in_one_line() {
    let directory = TempDir::new();
    let url = directory.sqlite_url();
    let place = [("HOLDFAST_DATABASE_URL", url.as_str())];
    for (command, word) in [
        (&["relay", "--once"][..], "HOLDFAST_QUEUE_URL"),
        (&["sweep", "--once"], "HOLDFAST_DATABASE_URL"),
        (
            &["sweep", "--once", "--max-seconds", "601"],
            "--max-seconds",
        ),
        (&["sweep", "--once", "--max-seconds", "0"], "--max-seconds"),
        (&["relay", "--once", "--max-rows", "0"], "--max-rows"),
    ] {
        assert_refused(&run(command, &place), 2, &[word]);
    }
    let file = directory.path().join("holdfast.db");
    assert!(!file.exists(), "nothing was begun");
    for command in ["relay", "sweep"] {
        let refused = run(&[command], &place);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("--once"), "{said}");
    }
}
