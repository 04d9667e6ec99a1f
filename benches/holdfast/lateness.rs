//! How long after its deadline a hold is released.

use std::time::Duration;

use holdfast::engine::{Runtime as _, TokioRuntime};
use sqlx::{PgConnection, Row as _};

use super::SETTINGS;
use super::holds;
use super::report::{Report, Target, ms_since, percentile};
use super::reserve::{audit, checkpoint};
use super::world::server::ServerProcess;

const ROUNDS: usize = 3;
const HOLDS: u32 = 5_000;
/// Between the making of the holds and the first deadline.
const LEAD_SECONDS: f64 = 3.0;
/// How often is looked for what was committed.
const LOOK: Duration = Duration::from_millis(2);

/// When the holds are due.
struct Shape {
    name: &'static str,
    /// From the first deadline to the last.
    seconds: f64,
    p99_ms: f64,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "250 due in each of 20 s",
        seconds: 20.0,
        p99_ms: 10.0,
    },
    Shape {
        name: "5,000 due in one second",
        seconds: 1.0,
        p99_ms: 50.0,
    },
];

pub async fn measure(report: &mut Report) {
    let database = holds::migrated_database().await;
    let mut rows = database.connect().await;
    holds::add_stock(&mut rows).await;
    let mut commits = Vec::new();
    let mut figures = [const { Vec::new() }; SHAPES.len()];
    for round in 0..ROUNDS {
        eprintln!("  round {}", round + 1);
        commits.push(commit_ms(&mut rows).await);
        for (shape, figures) in SHAPES.iter().zip(&mut figures) {
            holds::clear(&mut rows).await;
            checkpoint(&mut rows).await;
            let server = ServerProcess::start(&database.url(), &SETTINGS);
            figures.push(releases(&mut rows, shape).await);
            drop(server);
            audit(&database.url());
        }
    }
    report.note("a tiny transaction's commit, median", "ms", &commits);
    for (shape, rounds) in SHAPES.iter().zip(&figures) {
        let of = |decided: bool, per_cent: usize| -> Vec<f64> {
            let rounds = rounds.iter();
            let lists = rounds.map(|round| if decided { &round.decided } else { &round.seen });
            lists.map(|list| percentile(list, per_cent)).collect()
        };
        let name = shape.name;
        report.note(&format!("{name}: p50"), "ms", &of(true, 50));
        report.judge(
            &format!("{name}: p99"),
            "ms",
            &of(true, 99),
            Target::AtMost(shape.p99_ms),
        );
        report.note(&format!("{name}: largest"), "ms", &of(true, 100));
        report.note(
            &format!("{name}: p99 until seen by a reader"),
            "ms",
            &of(false, 99),
        );
    }
}

/// How late each hold was, in milliseconds.
pub struct Releases {
    /// When it was decided, which the event says.
    pub decided: Vec<f64>,
    /// When a reader that looks every few milliseconds first saw the event.
    seen: Vec<f64>,
}

async fn releases(rows: &mut PgConnection, shape: &Shape) -> Releases {
    releases_of(rows, HOLDS, LEAD_SECONDS, shape.seconds).await
}

/// Makes so many holds, the first of them due after the lead, the last so many seconds later, and
/// waits until all are released.
pub async fn releases_of(
    rows: &mut PgConnection,
    count: u32,
    lead_seconds: f64,
    seconds: f64,
) -> Releases {
    let step = seconds / f64::from(count);
    let due = format!(
        "date_trunc('milliseconds', now() + ({lead_seconds} + n * {step}) * interval '1 s')"
    );
    holds::add(rows, count, "held", "n", &due).await;
    let mut releases = Releases {
        decided: Vec::new(),
        seen: Vec::new(),
    };
    let mut seen = 0_i64;
    let look = "
        SELECT
            seq,
            (data ->> 'lateness_ms')::float8 AS decided,
            (data ->> 'lateness_ms')::float8
                + extract(epoch FROM statement_timestamp() - at)::float8 * 1000 AS seen
        FROM events
        WHERE seq > $1 AND kind = 'expired'
        ORDER BY seq";
    while releases.decided.len() < count as usize {
        tokio::time::sleep(LOOK).await;
        for row in sqlx::query(look)
            .bind(seen)
            .fetch_all(&mut *rows)
            .await
            .unwrap()
        {
            seen = row.get("seq");
            releases.decided.push(row.get("decided"));
            releases.seen.push(row.get("seen"));
        }
    }
    let early = releases.decided.iter().filter(|late| **late < 0.0).count();
    assert_eq!(early, 0, "a hold was released before its deadline");
    releases
}

/// The median time that a transaction takes that changes one row.
async fn commit_ms(rows: &mut PgConnection) -> f64 {
    let stopwatch = TokioRuntime::start();
    let mut times = Vec::new();
    for _ in 0..500 {
        let started = stopwatch.elapsed();
        sqlx::query("UPDATE event_head SET seq = seq")
            .execute(&mut *rows)
            .await
            .unwrap();
        times.push(ms_since(&stopwatch, started));
    }
    percentile(&times, 50)
}
