//! How many shoppers are served in a second, beside the same database without Holdfast.

use sqlx::PgConnection;

use super::SETTINGS;
use super::holds::{self, SKUS};
use super::load::{self, Span};
use super::report::{Report, Target, ratios};
use super::world::database::database;
use super::world::directory::TempDir;
use super::world::server::{self, ServerProcess};

const ROUNDS: usize = 3;
const SECONDS: u32 = 6;
/// The clients of the database without Holdfast: more are slower on a hot row.
const CLIENTS: u32 = 32;

#[derive(Default)]
struct Figures {
    naive_hot: Vec<f64>,
    naive_hot_statement: Vec<f64>,
    naive_uniform: Vec<f64>,
    hot_32: Vec<f64>,
    hot_128: Vec<f64>,
    hot_128_p50: Vec<f64>,
    hot_128_p99: Vec<f64>,
    hot_512: Vec<f64>,
    uniform_128: Vec<f64>,
    uniform_512: Vec<f64>,
    sqlite_hot: Vec<f64>,
}

pub async fn measure(report: &mut Report) {
    let naive = database().await;
    let mut naive_rows = naive.connect().await;
    let schema = std::fs::read_to_string(load::file("naive_schema.sql")).unwrap();
    for statement in schema.split(";\n") {
        holds::execute(&mut naive_rows, statement).await;
    }

    let ours = holds::migrated_database().await;
    holds::add_stock(&mut ours.connect().await).await;
    let postgres = ServerProcess::start(&ours.url(), &SETTINGS);

    let directory = TempDir::new();
    let sqlite = ServerProcess::start(&directory.sqlite_url(), &SETTINGS);
    let stock = sqlite.client().put_stock("sku-0", 1_000_000_000).await;
    stock.expect(200);

    let mut all = Figures::default();
    let skus = usize::try_from(SKUS).unwrap();
    for round in 0..ROUNDS {
        eprintln!("  round {}", round + 1);
        let pgbench = async |script: &str, skus: usize, clients: u32| {
            checkpoint(&mut naive.connect().await).await;
            let span = Span::Seconds(SECONDS);
            load::pgbench(&naive.url(), script, &[("skus", skus)], clients, span).await
        };
        let wrk = async |connections: u32, skus: u32| {
            checkpoint(&mut ours.connect().await).await;
            load::reserves(postgres.url(), connections, skus, SECONDS).await
        };
        all.naive_hot
            .push(pgbench("naive_transaction.sql", 1, CLIENTS).await);
        all.hot_32.push(wrk(32, 1).await.per_second);
        let hot = wrk(128, 1).await;
        all.hot_128.push(hot.per_second);
        all.hot_128_p50.push(hot.p50_ms);
        all.hot_128_p99.push(hot.p99_ms);
        all.hot_512.push(wrk(512, 1).await.per_second);
        all.naive_hot_statement
            .push(pgbench("naive_statement.sql", 1, 1).await);
        all.naive_uniform
            .push(pgbench("naive_transaction.sql", skus, CLIENTS).await);
        all.uniform_128.push(wrk(128, SKUS).await.per_second);
        all.uniform_512.push(wrk(512, SKUS).await.per_second);
        let embedded = load::reserves(sqlite.url(), 128, 1, SECONDS).await;
        all.sqlite_hot.push(embedded.per_second);
    }
    drop(postgres);
    drop(sqlite);
    audit(&ours.url());
    audit(&directory.sqlite_url());
    all.write(report);
}

impl Figures {
    fn write(&self, report: &mut Report) {
        report.note(
            "naive transaction, hot SKU, 32 clients",
            "/s",
            &self.naive_hot,
        );
        report.note(
            "naive statement, hot SKU, 1 client",
            "/s",
            &self.naive_hot_statement,
        );
        report.note(
            "naive transaction, 10,000 SKUs, 32 clients",
            "/s",
            &self.naive_uniform,
        );
        report.note("hot SKU, 32 connections", "/s", &self.hot_32);
        report.note("hot SKU, 128 connections", "/s", &self.hot_128);
        report.note("hot SKU, 128 connections, p50", "ms", &self.hot_128_p50);
        report.note("hot SKU, 128 connections, p99", "ms", &self.hot_128_p99);
        report.note("hot SKU, 512 connections", "/s", &self.hot_512);
        report.note("10,000 SKUs, 128 connections", "/s", &self.uniform_128);
        report.note("10,000 SKUs, 512 connections", "/s", &self.uniform_512);
        report.judge(
            "hot SKU, 128 connections, by the naive statement",
            "x",
            &ratios(&self.hot_128, &self.naive_hot_statement),
            Target::AtLeast(4.0),
        );
        report.judge(
            "hot SKU, 128 connections, by the naive transaction",
            "x",
            &ratios(&self.hot_128, &self.naive_hot),
            Target::AtLeast(10.0),
        );
        report.judge(
            "hot SKU, 512 connections, by the naive transaction",
            "x",
            &ratios(&self.hot_512, &self.naive_hot),
            Target::AtLeast(16.0),
        );
        report.judge(
            "hot SKU, 512 connections, by the naive statement",
            "x",
            &ratios(&self.hot_512, &self.naive_hot_statement),
            Target::AtLeast(4.0),
        );
        report.judge(
            "10,000 SKUs, 128 connections, by the naive transaction",
            "x",
            &ratios(&self.uniform_128, &self.naive_uniform),
            Target::AtLeast(1.5),
        );
        report.judge(
            "SQLite, hot SKU, 128 connections",
            "/s",
            &self.sqlite_hot,
            Target::AtLeast(3_000.0),
        );
    }
}

/// What was measured must also be right.
pub fn audit(database: &str) {
    let audit = server::run(&["audit"], &[("HOLDFAST_DATABASE_URL", database)]);
    let drift = String::from_utf8_lossy(&audit.stdout);
    let some: Vec<&str> = drift.lines().take(10).collect();
    assert!(
        audit.status.success(),
        "the rows are not as promised, such as {some:#?}"
    );
}

/// Makes the log's own work begin anew for each measurement, if the server lets us.
pub async fn checkpoint(connection: &mut PgConnection) {
    let _ = sqlx::raw_sql("CHECKPOINT").execute(connection).await;
}
