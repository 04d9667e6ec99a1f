//! Holds that a queue wakes up: real processes, a real queue between them, and what goes wrong.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use holdfast::queue::webhook::Secret;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::books::{all, events_of};
use crate::on_each_store;
use crate::shop::{Shop, at_once, id, released, until};
use crate::world::client::{Client, http};
use crate::world::server::{ServerProcess, run};

on_each_store!(
    a_hold_comes_back_by_push,
    a_hold_comes_back_by_pull,
    whatever_the_queue_does_each_hold_is_released_once,
    p7_a_queue_that_is_not_there_costs_the_grace,
    p12_killed_with_its_hands_full_of_messages_it_loses_none,
    a_slow_queue_slows_nobody,
    a_queue_that_wants_to_be_used_otherwise_is_refused_at_the_start,
    a_push_that_is_not_signed_is_nothing,
    each_role_does_its_part,
);

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TOKEN: &str = "the-token";

/// A queue, and what it says of itself.
pub struct Emulator(ServerProcess);

impl Emulator {
    pub fn start(faults: &[&str]) -> Self {
        let known = ["--token", TOKEN, "--secret", SECRET];
        Self(ServerProcess::emulator(&[&known, faults].concat()))
    }

    pub fn url(&self, mode: &str) -> String {
        format!("rest+{}/v1?queue=expiry&mode={mode}", self.0.url())
    }

    async fn push_to(&self, server: &str) {
        let url = format!("{}/subscriber", self.0.url());
        let body = json!({ "url": format!("{server}/v1/deliveries/rest") });
        let answer = http().put(url).json(&body).send().await;
        assert!(answer.unwrap().status().is_success());
    }

    /// Lets it be as it should be.
    pub async fn stop_faults(&self) {
        let answer = http().delete(format!("{}/faults", self.0.url())).send();
        assert!(answer.await.unwrap().status().is_success());
    }

    pub async fn stats(&self) -> Value {
        let answer = http().get(format!("{}/stats", self.0.url())).send().await;
        answer.unwrap().json().await.unwrap()
    }
}

/// What a server needs to know to use the queue. The sweep must not be what releases.
pub fn settings<'a>(queue: &'a str, sweep_seconds: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("HOLDFAST_QUEUE_URL", queue),
        ("HOLDFAST_QUEUE_TOKEN", TOKEN),
        ("HOLDFAST_QUEUE_SECRET", SECRET),
        ("HOLDFAST_PUBLIC_URL", "http://127.0.0.1:8080"),
        ("HOLDFAST_SWEEP_SECONDS", sweep_seconds),
    ]
}

/// By which path each of these holds expired; every one exactly once.
pub async fn paths(client: &Client, ids: &[String]) -> Vec<String> {
    let mut paths = Vec::new();
    for id in ids {
        let events = events_of(client, id).await;
        let expired: Vec<&Value> = events.iter().filter(|it| it["kind"] == "expired").collect();
        assert_eq!(expired.len(), 1, "{id}: {events:?}");
        paths.push(expired[0]["data"]["via"].as_str().unwrap().to_owned());
    }
    paths
}

pub async fn holds(client: &Client, count: usize, seconds: i64) -> Vec<String> {
    client.put_stock("Q", 1_000).await.expect(200);
    let one = || {
        let client = client.clone();
        async move { id(client.reserve_one("Q", 1, seconds).await) }
    };
    at_once((0..count).map(|_| one())).await
}

/// What the server says when it is asked whether it can work; it must be able to.
async fn ready(shop: &mut Shop) -> Value {
    let answer = http()
        .get(format!("{}/readyz", shop.server().url()))
        .send()
        .await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    answer.json().await.unwrap()
}

async fn all_released(client: &Client) {
    until(async || (client.get_stock("Q").await.expect(200)["held"] == 0).then_some(())).await;
}

async fn a_hold_comes_back_by_push(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let url = emulator.url("push");
    let client = shop.restart(&settings(&url, "3600")).await;
    emulator.push_to(shop.server().url()).await;
    let ids = holds(&client, 20, 1).await;
    all_released(&client).await;
    assert_eq!(paths(&client, &ids).await, vec!["push"; 20]);
    let stats = emulator.stats().await;
    assert_eq!(stats["published"], 20, "{stats}");
    assert_eq!(stats["answers"]["200"], 20, "{stats}");
}

async fn a_hold_comes_back_by_pull(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let url = emulator.url("pull");
    let client = shop.restart(&settings(&url, "3600")).await;
    let ids = holds(&client, 20, 1).await;
    all_released(&client).await;
    assert_eq!(paths(&client, &ids).await, vec!["pull"; 20]);
    until(async || (emulator.stats().await["acknowledged"] == 20).then_some(())).await;
}

/// Duplicates, early deliveries, reordering, lost answers, 429 and 500, all at once.
async fn whatever_the_queue_does_each_hold_is_released_once(shop: &mut Shop) {
    let emulator = Emulator::start(&[
        "--duplicate-every",
        "3",
        "--early-ms",
        "700",
        "--reorder-ms",
        "400",
        "--lose-answer-every",
        "7",
        "--limit-every",
        "11",
        "--fail-every",
        "13",
    ]);
    let url = emulator.url("push");
    let client = shop.restart(&settings(&url, "3600")).await;
    emulator.push_to(shop.server().url()).await;
    let ids = holds(&client, 60, 2).await;
    // Some move, some are paid; their messages come all the same.
    for id in &ids[..10] {
        let extended = client.extend(id, json!({ "extend_seconds": 1 })).await;
        extended.expect(200);
    }
    for id in &ids[10..20] {
        let paid = client.checkout(id, json!({ "payment_reference": "pi" }));
        paid.await.expect(200);
    }
    all_released(&client).await;
    paths(&client, &ids[..10]).await;
    assert_eq!(paths(&client, &ids[20..]).await.len(), 40);
    let stats = emulator.stats().await;
    assert!(stats["duplicated"].as_u64().unwrap() > 0, "{stats}");
    assert!(stats["repeated"].as_u64().unwrap() > 0, "{stats}");
}

/// The service starts and sells without its queue, says so, and the sweep releases.
async fn p7_a_queue_that_is_not_there_costs_the_grace(shop: &mut Shop) {
    let gone = Emulator::start(&[]);
    let url = gone.url("push");
    drop(gone);
    let client = shop.restart(&settings(&url, "2")).await;
    let ids = holds(&client, 5, 1).await;
    let ready = ready(shop).await;
    assert!(ready["queue"].is_string(), "{ready}");
    all_released(&client).await;
    assert_eq!(paths(&client, &ids).await, vec!["sweep"; 5]);
    let log = shop.server().log();
    let troubles = log.iter().filter(|line| line.contains("cannot publish"));
    assert_eq!(troubles.count(), 1, "said once, not for each try: {log:?}");
}

async fn p12_killed_with_its_hands_full_of_messages_it_loses_none(shop: &mut Shop) {
    // Slow enough that the relay dies with all that it has claimed.
    let emulator = Emulator::start(&["--slow-ms", "9000"]);
    let url = emulator.url("push");
    let known = settings(&url, "2");
    let only_api = [known.as_slice(), &[("HOLDFAST_ROLES", "api")]].concat();
    let client = shop.restart(&only_api).await;
    let ids = holds(&client, 500, 10).await;
    // A relay claims 256 at a time, so that it takes two to lease them all. Both die of it.
    shop.restart(&known).await;
    let claimed = "SELECT count(*) FROM outbox WHERE attempts > 0";
    for leased in [256, 500] {
        until(async || (shop.count(claimed).await == leased).then_some(())).await;
        shop.take_server().kill9();
        let waiting = "SELECT count(*) FROM outbox WHERE published_at IS NULL";
        assert_eq!(shop.count(waiting).await, 500, "nothing of it is lost");
        shop.start(&known);
    }
    let client = shop.server().client();
    all_released(&client).await;
    assert_eq!(paths(&client, &ids).await.len(), 500);
}

async fn a_push_that_is_not_signed_is_nothing(shop: &mut Shop) {
    let emulator = Emulator::start(&[]);
    let url = emulator.url("pull");
    let client = shop.restart(&settings(&url, "3600")).await;
    let held = holds(&client, 1, 600).await.remove(0);
    let expires_at = client.get_reservation(&held).await.expect(200)["expires_at"].clone();
    let job = json!({
        "job_id": "expire:x:1",
        "reservation_id": held,
        "expected_expires_at": expires_at,
    })
    .to_string();
    let address = format!("{}/v1/deliveries/rest", shop.server().url());
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    let now = i64::try_from(now).unwrap();
    let ours: Secret = SECRET.parse().unwrap();
    let other: Secret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        .parse()
        .unwrap();
    let push = async |body: &str, sent_at: i64, signature: String| {
        let answer = http()
            .post(&address)
            .header("webhook-id", "msg_1")
            .header("webhook-timestamp", sent_at)
            .header("webhook-signature", signature)
            .body(body.to_owned())
            .send()
            .await;
        answer.unwrap()
    };
    let sign = |secret: &Secret, at: i64| secret.sign("msg_1", at, job.as_bytes());
    for (body, at, signature) in [
        (job.as_str(), now, sign(&other, now)),
        (job.as_str(), now - 301, sign(&ours, now - 301)),
        (job.as_str(), now + 301, sign(&ours, now + 301)),
        ("{}", now, sign(&ours, now)),
        (job.as_str(), now, "v1,".to_owned()),
    ] {
        let answer = push(body, at, signature).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        let problem: Value = answer.json().await.unwrap();
        assert_eq!(problem["type"], "/problems/unauthorized");
    }
    assert_eq!(shop.count("SELECT count(*) FROM quarantine").await, 0);
    // One that is signed is taken in, also when it makes no sense.
    let answer = push(&job, now, sign(&ours, now)).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(
        answer.json::<Value>().await.unwrap(),
        json!({ "outcome": "quarantined" })
    );
    assert_eq!(shop.count("SELECT count(*) FROM quarantine").await, 1);
    let large = "x".repeat(300_000);
    let answer = push(&large, now, ours.sign("msg_1", now, large.as_bytes())).await;
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let figures = http()
        .get(format!("{}/metrics", shop.server().url()))
        .send()
        .await;
    let figures = figures.unwrap().text().await.unwrap();
    assert!(
        figures.contains("holdfast_forged_deliveries_total 5"),
        "{figures}"
    );
    client.cancel(&held, json!({})).await.expect(200);
    assert_eq!(all(&client, "reservations", &[]).await.len(), 1);
    let log = shop.server().log();
    let doubts = log
        .iter()
        .filter(|line| line.contains("HOLDFAST_QUEUE_SECRET"));
    assert_eq!(doubts.count(), 1, "said once, not for each: {log:?}");
}

/// On PostgreSQL one process may answer callers and another release; each says that it is well.
async fn each_role_does_its_part(shop: &mut Shop) {
    let client = shop.restart(&[("HOLDFAST_ROLES", "api")]).await;
    let held = holds(&client, 1, 1).await.remove(0);
    ready(shop).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let unreleased = client.get_reservation(&held).await.expect(200);
    assert_eq!(unreleased["closed_at"], Value::Null, "nobody releases");
    let worker = shop.restart(&[("HOLDFAST_ROLES", "worker")]).await;
    ready(shop).await;
    assert_eq!(worker.get_reservation(&held).await.status, 404);
    until(async || {
        (shop
            .count("SELECT count(*) FROM reservations WHERE state = 'expired'")
            .await
            == 1)
            .then_some(())
    })
    .await;
    let client = shop.restart(&[]).await;
    released(&client, &held).await;
}

/// keygen-sh/keygen-api#771, LabsCrypt/remitlend#655: one endpoint that hangs delayed all others.
async fn a_slow_queue_slows_nobody(shop: &mut Shop) {
    let emulator = Emulator::start(&["--slow-ms", "9000"]);
    let url = emulator.url("push");
    let client = shop.restart(&settings(&url, "3600")).await;
    let ids = holds(&client, 50, 600).await;
    for id in &ids {
        client.cancel(id, json!({})).await.expect(200);
    }
    // All that was answered while the first publication was not.
    let figures = http()
        .get(format!("{}/metrics", shop.server().url()))
        .send()
        .await;
    let figures = figures.unwrap().text().await.unwrap();
    assert!(!figures.contains("holdfast_publications_total{outcome=\"published\"}"));
}

async fn a_queue_that_wants_to_be_used_otherwise_is_refused_at_the_start(shop: &mut Shop) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "rest+http://{}/v1?queue=expiry&mode=pull",
        listener.local_addr().unwrap()
    );
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut request = [0; 4_096];
        let _ = connection.read(&mut request).unwrap();
        let body = r#"{"method":"PUT","path":"/v2/enqueue","request_schema":{}}"#;
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(answer.as_bytes()).unwrap();
    });
    drop(shop.take_server());
    let settings = settings(&url, "3600");
    let place = [
        ("HOLDFAST_DATABASE_URL", shop.url()),
        ("HOLDFAST_LISTEN", "127.0.0.1:0".to_owned()),
    ];
    let place: Vec<(&str, &str)> = place
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let ended = run(&["serve"], &[&place[..], &settings[..]].concat());
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("holdfast: the queue wants to be used otherwise") && last.contains("PUT"),
        "{said}"
    );
    shop.start(&[]);
}
