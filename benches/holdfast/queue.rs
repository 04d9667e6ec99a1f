//! What a queue costs shoppers, how fast the relay publishes, and how late holds are whose expiry
//! went through it.

use std::time::Duration;

use holdfast::engine::{Runtime as _, TokioRuntime};
use serde_json::{Value, json};

use super::SETTINGS;
use super::holds;
use super::lateness::releases_of;
use super::load::{self, Span};
use super::report::{Report, Target, percentile, ratios};
use super::reserve::{audit, checkpoint};
use super::world::client::http;
use super::world::database::{TestDatabase, database};
use super::world::server::ServerProcess;

const ROUNDS: usize = 3;
const SECONDS: u32 = 6;
const NAIVE_CLIENTS: u32 = 32;
const MESSAGES: u32 = 20_000;
/// 250 holds due in each of 20 seconds.
const HOLDS: u32 = 5_000;
const DUE_SECONDS: f64 = 20.0;
/// Long enough to adopt and publish all of them before the first is due.
const LEAD_SECONDS: f64 = 15.0;
const TOKEN: &str = "bench";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A queue, and a server that uses it.
struct Stack {
    emulator: ServerProcess,
    server: ServerProcess,
}

impl Stack {
    async fn start(database: &str) -> Self {
        let emulator = ServerProcess::emulator(&["--token", TOKEN, "--secret", SECRET]);
        let url = format!("rest+{}/v1?queue=expiry&mode=push", emulator.url());
        let settings = [
            SETTINGS[0],
            ("HOLDFAST_QUEUE_URL", url.as_str()),
            ("HOLDFAST_QUEUE_TOKEN", TOKEN),
            ("HOLDFAST_QUEUE_SECRET", SECRET),
        ];
        let server = ServerProcess::start(database, &settings);
        let subscriber = json!({ "url": format!("{}/v1/deliveries/rest", server.url()) });
        let subscribed = http()
            .put(format!("{}/subscriber", emulator.url()))
            .json(&subscriber)
            .send()
            .await;
        assert!(subscribed.unwrap().status().is_success());
        Self { emulator, server }
    }

    async fn stats(&self) -> Value {
        let answer = http().get(format!("{}/stats", self.emulator.url())).send();
        answer.await.unwrap().json().await.unwrap()
    }
}

pub async fn measure(report: &mut Report) {
    shoppers(report).await;
    let database = holds::migrated_database().await;
    holds::add_stock(&mut database.connect().await).await;
    relay(report, &database).await;
    lateness(report, &database).await;
}

async fn shoppers(report: &mut Report) {
    let naive = database().await;
    let schema = std::fs::read_to_string(load::file("naive_schema.sql")).unwrap();
    for statement in schema.split(";\n") {
        holds::execute(&mut naive.connect().await, statement).await;
    }
    let naive_url = naive.url();
    let ours = holds::migrated_database().await;
    holds::add_stock(&mut ours.connect().await).await;
    let stack = Stack::start(&ours.url()).await;
    let (mut naive_rates, mut rates) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("  round {}", round + 1);
        checkpoint(&mut naive.connect().await).await;
        let script = "naive_transaction.sql";
        let span = Span::Seconds(SECONDS);
        let rate = load::pgbench(&naive_url, script, &[("skus", 1)], NAIVE_CLIENTS, span);
        naive_rates.push(rate.await);
        checkpoint(&mut ours.connect().await).await;
        let prefix = format!("round-{round}-");
        let keyed = load::keyed_reserves(stack.server.url(), 128, &prefix, SECONDS).await;
        rates.push(keyed.per_second);
    }
    drop(stack);
    audit(&ours.url());
    report.note("naive transaction, hot SKU, 32 clients", "/s", &naive_rates);
    report.note(
        "hot SKU, 128 connections, with keys and a queue",
        "/s",
        &rates,
    );
    report.judge(
        "the same by the naive transaction",
        "x",
        &ratios(&rates, &naive_rates),
        Target::AtLeast(6.0),
    );
}

async fn relay(report: &mut Report, database: &TestDatabase) {
    let stopwatch = TokioRuntime::start();
    let mut rates = Vec::new();
    let mut rows = database.connect().await;
    for _ in 0..ROUNDS {
        holds::clear(&mut rows).await;
        let due = "date_trunc('milliseconds', now()) + interval '1 day' + n * interval '1 ms'";
        holds::add(&mut rows, MESSAGES, "held", "n % 10000", due).await;
        checkpoint(&mut rows).await;
        // Holds from before the queue get their messages by being adopted, which counts in.
        let stack = Stack::start(&database.url()).await;
        let started = stopwatch.elapsed();
        while stack.stats().await["published"] != MESSAGES {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = stopwatch.elapsed().saturating_sub(started);
        rates.push(f64::from(MESSAGES) / took.as_secs_f64());
    }
    report.judge("messages published", "/s", &rates, Target::AtLeast(1_000.0));
}

async fn lateness(report: &mut Report, database: &TestDatabase) {
    let (mut p50, mut p99, mut largest, mut queue) = (vec![], vec![], vec![], vec![]);
    let mut rows = database.connect().await;
    for round in 0..ROUNDS {
        eprintln!("  round {}", round + 1);
        holds::clear(&mut rows).await;
        checkpoint(&mut rows).await;
        let holds = releases_of(&mut rows, HOLDS, LEAD_SECONDS, DUE_SECONDS);
        let url = database.url();
        let stack = async {
            // The holds must be there when the server looks for those without a message.
            tokio::time::sleep(Duration::from_secs(2)).await;
            Stack::start(&url).await
        };
        let (releases, stack) = tokio::join!(holds, stack);
        let pushed = "SELECT count(*)::float8 FROM ledger WHERE via = 'push'";
        let pushed = holds::number(&mut rows, pushed).await;
        assert!(
            (pushed - f64::from(HOLDS)).abs() < 0.5,
            "{pushed} came by push"
        );
        p50.push(percentile(&releases.decided, 50));
        p99.push(percentile(&releases.decided, 99));
        largest.push(percentile(&releases.decided, 100));
        queue.push(stack.stats().await["lateness_ms"]["p99"].as_f64().unwrap());
        drop(stack);
        audit(&database.url());
    }
    report.note("250 due in each of 20 s, by push: p50", "ms", &p50);
    report.judge(
        "250 due in each of 20 s, by push: p99",
        "ms",
        &p99,
        Target::AtMost(100.0),
    );
    report.note("250 due in each of 20 s, by push: largest", "ms", &largest);
    report.note("of that the queue's own lateness: p99", "ms", &queue);
}
