//! How fast a storm of due holds drains, and what shoppers feel of it.

use std::time::Duration;

use sqlx::PgConnection;

use super::SETTINGS;
use super::holds::{self, SKUS};
use super::load::{self, Span};
use super::report::{Report, Target, ratios};
use super::reserve::{audit, checkpoint};
use super::world::database::TestDatabase;
use super::world::server::ServerProcess;

const ROUNDS: usize = 3;
const STORM: u32 = 100_000;
/// Every tenth hold is of the SKU that the shoppers want.
const STORM_SKUS: &str = "CASE WHEN n % 10 = 0 THEN 0 ELSE n::bigint * 7919 % 10000 END";
const LONG_DUE: &str = "date_trunc('milliseconds', now()) - interval '10 s'";
const SHOPPERS: u32 = 32;
const SHOPPING_SECONDS: u32 = 5;

pub async fn measure(report: &mut Report) {
    let database = holds::migrated_database().await;
    let mut rows = database.connect().await;
    holds::add_stock(&mut rows).await;
    assert_eq!(SKUS, 10_000, "the storm is spread over as many");

    let (mut ours, mut batches) = (Vec::new(), Vec::new());
    let (mut sql, mut without_open_lines) = (Vec::new(), Vec::new());
    let (mut p99, mut calm_p99, mut under_load) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("  round {}", round + 1);
        storm(&mut rows).await;
        let server = ServerProcess::start(&database.url(), &SETTINGS);
        let rate = drained(&mut rows).await;
        let batch = batch_size(&server).await;
        drop(server);
        audit(&database.url());
        ours.push(rate);
        batches.push(batch);
        let batch = format!("{batch:.0}").parse().unwrap();
        storm(&mut rows).await;
        sql.push(by_sql(&database, "expire.sql", batch).await);
        assert_eq!(holds::held(&mut rows).await, 0);
        storm(&mut rows).await;
        without_open_lines.push(by_sql(&database, "expire_without_open_lines.sql", batch).await);

        storm(&mut rows).await;
        let server = ServerProcess::start(&database.url(), &SETTINGS);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let shopping = load::reserves(server.url(), SHOPPERS, 1, SHOPPING_SECONDS).await;
        let still_due = "SELECT count(*)::float8 FROM reservations
            WHERE state = 'held' AND expires_at <= now()";
        let left = holds::number(&mut rows, still_due).await;
        if left == 0.0 {
            eprintln!("  the storm was over before the shoppers were");
        }
        p99.push(shopping.p99_ms);
        under_load.push(drained(&mut rows).await);
        let calm = load::reserves(server.url(), SHOPPERS, 1, SHOPPING_SECONDS).await;
        calm_p99.push(calm.p99_ms);
        drop(server);
        audit(&database.url());
    }
    report.note("100,000 due holds drain", "/s", &ours);
    report.note("holds in a batch", "", &batches);
    report.note("the same by SQL alone, in batches of that size", "/s", &sql);
    report.note(
        "by SQL alone, without open lines",
        "/s",
        &without_open_lines,
    );
    report.note(
        "what open lines cost SQL: rate with by rate without",
        "x",
        &ratios(&sql, &without_open_lines),
    );
    report.judge(
        "drain rate by that of SQL alone",
        "x",
        &ratios(&ours, &sql),
        Target::AtLeast(0.7),
    );
    report.note("100,000 due holds drain beside shoppers", "/s", &under_load);
    report.note(
        "shoppers' p99 without a storm, 32 connections",
        "ms",
        &calm_p99,
    );
    report.judge(
        "shoppers' p99 during the storm, 32 connections",
        "ms",
        &p99,
        Target::AtMost(25.0),
    );
}

/// Makes 100,000 holds that are due already.
async fn storm(rows: &mut PgConnection) {
    holds::clear(rows).await;
    holds::add(rows, STORM, "held", STORM_SKUS, LONG_DUE).await;
    checkpoint(rows).await;
}

/// Waits until all that was due is released, and says how many were released in a second, by the
/// events themselves.
async fn drained(rows: &mut PgConnection) -> f64 {
    let due = "SELECT count(*)::float8 FROM reservations
        WHERE state = 'held' AND expires_at <= now()";
    while holds::number(rows, due).await > 0.0 {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let rate = "SELECT (count(*) / extract(epoch FROM max(at) - min(at)))::float8
        FROM events WHERE kind = 'expired'";
    holds::number(rows, rate).await
}

/// Holds per transaction of the release lane, as the server counts them.
async fn batch_size(server: &ServerProcess) -> f64 {
    let metrics = super::footprint::metrics(server).await;
    let figure = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next());
        value.and_then(|value| value.parse::<f64>().ok()).unwrap()
    };
    let name = |part: &str| format!("holdfast_batch_size_{part}{{lane=\"release\"}}");
    figure(&name("sum")) / figure(&name("count"))
}

async fn by_sql(database: &TestDatabase, script: &str, batch: usize) -> f64 {
    let transactions = (STORM as usize).div_ceil(batch);
    let span = Span::Transactions(transactions);
    let rate = load::pgbench(&database.url(), script, &[("batch", batch)], 1, span).await;
    rate * f64::from(STORM) / transactions as f64
}
