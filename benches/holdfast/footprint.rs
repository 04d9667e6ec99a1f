//! What the server takes while nothing happens: memory with a million holds open, and work.

use std::time::Duration;

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, PgConnection};

use super::SETTINGS;
use super::holds;
use super::load;
use super::report::{Report, Target};
use super::world::directory::TempDir;
use super::world::server::{self, ServerProcess};

const IDLE: Duration = Duration::from_secs(30);
const MOST_MEGABYTES: f64 = 100.0;

pub async fn measure(report: &mut Report) {
    let postgres = holds::migrated_database().await;
    let mut rows = postgres.connect().await;
    holds::add_stock(&mut rows).await;
    let due = "date_trunc('milliseconds', now()) + interval '1 day' + n * interval '1 ms'";
    holds::add(&mut rows, 1_000_000, "held", "n % 10000", due).await;
    let server = ServerProcess::start(&postgres.url(), &SETTINGS);
    idle(report, &server, &mut rows).await;
    memory(report, "PostgreSQL", &server).await;
    drop(server);

    let directory = TempDir::new();
    let url = directory.sqlite_url();
    let migrated = server::run(&["migrate"], &[("HOLDFAST_DATABASE_URL", &url)]);
    assert!(migrated.status.success(), "{migrated:?}");
    fill_embedded(&url).await;
    let server = ServerProcess::start(&url, &SETTINGS);
    tokio::time::sleep(Duration::from_secs(5)).await;
    memory(report, "SQLite", &server).await;
}

/// What a server does in which nothing happens.
async fn idle(report: &mut Report, server: &ServerProcess, rows: &mut PgConnection) {
    // What the start itself took must have been counted before.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let transactions = "SELECT sum(xact_commit + xact_rollback)::float8 FROM pg_stat_database
        WHERE datname = current_database()";
    let before = (holds::number(rows, transactions).await, cpu_seconds(server));
    tokio::time::sleep(IDLE).await;
    let after = (holds::number(rows, transactions).await, cpu_seconds(server));
    let per_second = |before: f64, after: f64| (after - before) / IDLE.as_secs_f64();
    // The safety look comes twice a second; this measurement itself makes a transaction or two.
    report.judge(
        "idle, transactions a second",
        "/s",
        &[per_second(before.0, after.0)],
        Target::AtMost(2.5),
    );
    report.judge(
        "idle, processor",
        "%",
        &[per_second(before.1, after.1) * 100.0],
        Target::AtMost(1.0),
    );
}

/// How much memory the server has with a million holds open: at rest, and after a rush.
async fn memory(report: &mut Report, store: &str, server: &ServerProcess) {
    report.judge(
        &format!("{store}, 1,000,000 holds open, resident memory"),
        "MB",
        &[resident_megabytes(server)],
        Target::AtMost(MOST_MEGABYTES),
    );
    load::reserves(server.url(), 128, 1, 3).await;
    report.judge(
        &format!("{store}, 1,000,000 holds open, resident memory after a rush"),
        "MB",
        &[resident_megabytes(server)],
        Target::AtMost(MOST_MEGABYTES),
    );
}

async fn fill_embedded(url: &str) {
    let mut rows = SqliteConnection::connect(url).await.unwrap();
    for sql in [
        "INSERT INTO stock (location, sku, on_hand, held, updated_at)
         WITH RECURSIVE numbers (n) AS (
             SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 9999
         )
         SELECT 'default', 'sku-' || n, 1000000000, 100, unixepoch() * 1000 FROM numbers",
        "INSERT INTO reservations
         WITH RECURSIVE numbers (n) AS (
             SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 999999
         )
         SELECT
             format('%08x-0000-7000-8000-%012x', n, n),
             'held',
             json_array(json_object(
                 'sku', 'sku-' || (n % 10000), 'location', 'default', 'quantity', 1
             )),
             unixepoch() * 1000 + 86400000 + n,
             unixepoch() * 1000 + 86400000 + n,
             86400, unixepoch() * 1000, unixepoch() * 1000, NULL, 0, NULL, NULL, NULL, 0, '{}'
         FROM numbers",
        "INSERT INTO open_lines
         SELECT lines ->> '$[0].location', lines ->> '$[0].sku', expires_at, id, 1
         FROM reservations",
    ] {
        sqlx::query(sql).execute(&mut rows).await.unwrap();
    }
    rows.close().await.unwrap();
}

/// What the server says under `/metrics`.
pub async fn metrics(server: &ServerProcess) -> String {
    let url = format!("{}/metrics", server.url());
    let answer = super::world::client::http().get(url).send().await.unwrap();
    answer.text().await.unwrap()
}

fn resident_megabytes(server: &ServerProcess) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kilobytes.parse::<f64>().unwrap() / 1_024.0
}

fn cpu_seconds(server: &ServerProcess) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    // After the name, which is in parentheses, the 12th and 13th fields are clock ticks, of which
    // Linux counts 100 in a second.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}
