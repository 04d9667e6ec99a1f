//! How late a hold is at most when something is missing: the queue, one of two instances, or
//! permits.

use std::time::Duration;

use sqlx::PgConnection;

use super::SETTINGS;
use super::holds;
use super::lateness::{Releases, releases_of};
use super::report::{Report, Target, percentile};
use super::reserve::{audit, checkpoint};
use super::world::database::TestDatabase;
use super::world::server::ServerProcess;

const ROUNDS: usize = 3;
const HOLDS: u32 = 2_500;
/// Between the making of the holds and the first deadline, and from there to the last, in seconds.
const LEAD_SECONDS: f64 = 3.0;
const DUE_SECONDS: f64 = 10.0;
/// The grace of the sweep, in seconds.
const GRACE_SECONDS: u32 = 2;
/// How much later than its grace the sweep may be, and how late the timer may be, in milliseconds.
const BOUND_MS: f64 = 1_000.0;
/// How much later still after a restart, in milliseconds.
const RESTART_MS: f64 = 2_000.0;

/// How many may expire in a second, and at once, where permits are missing.
const PER_SECOND: f64 = 500.0;

/// What is missing.
enum Missing {
    Queue,
    OneOfTwo,
    OnlyOne,
    Permits,
}

/// What is measured: its name, what is missing, and the largest lateness there may be, in
/// milliseconds.
const CASES: [(&str, Missing, f64); 4] = [
    (
        "no queue, a sweep with 2 s of grace: largest",
        Missing::Queue,
        GRACE_SECONDS as f64 * 1_000.0 + BOUND_MS,
    ),
    (
        "one of two instances killed: largest",
        Missing::OneOfTwo,
        BOUND_MS,
    ),
    (
        "the only instance killed and started again: largest",
        Missing::OnlyOne,
        BOUND_MS + RESTART_MS,
    ),
    (
        "2,500 due in a second, 500 released per second: largest",
        Missing::Permits,
        (HOLDS as f64 / PER_SECOND - 1.0) * 1_000.0 + BOUND_MS,
    ),
];

pub async fn measure(report: &mut Report) {
    let database = holds::migrated_database().await;
    let mut rows = database.connect().await;
    holds::add_stock(&mut rows).await;
    let mut figures = [const { Vec::new() }; CASES.len()];
    for round in 0..ROUNDS {
        eprintln!("  round {}", round + 1);
        for ((_, missing, _), figures) in CASES.iter().zip(&mut figures) {
            holds::clear(&mut rows).await;
            checkpoint(&mut rows).await;
            let releases = match missing {
                Missing::Queue => sweep_alone(&database, &mut rows).await,
                Missing::OneOfTwo => one_of_two_killed(&database, &mut rows).await,
                Missing::OnlyOne => killed_and_started_again(&database, &mut rows).await,
                Missing::Permits => paced(&database, &mut rows).await,
            };
            figures.push(percentile(&releases.decided, 100));
            audit(&database.url());
        }
    }
    for ((name, _, most_ms), rounds) in CASES.iter().zip(&figures) {
        report.judge(name, "ms", rounds, Target::AtMost(*most_ms));
    }
}

async fn due_over_ten_seconds(rows: &mut PgConnection) -> Releases {
    releases_of(rows, HOLDS, LEAD_SECONDS, DUE_SECONDS).await
}

/// The middle of the time in which holds are due.
async fn middle() {
    tokio::time::sleep(Duration::from_secs_f64(LEAD_SECONDS + DUE_SECONDS / 2.0)).await;
}

/// A queue is configured, and is not there.
async fn sweep_alone(database: &TestDatabase, rows: &mut PgConnection) -> Releases {
    let grace = GRACE_SECONDS.to_string();
    let queue = [
        // Nobody listens on the port that is reserved for discarding.
        (
            "HOLDFAST_QUEUE_URL",
            "rest+http://127.0.0.1:9/v1?queue=expiry&mode=pull",
        ),
        ("HOLDFAST_QUEUE_TOKEN", "token"),
        ("HOLDFAST_SWEEP_SECONDS", &grace),
    ];
    let _server = ServerProcess::start(&database.url(), &[&SETTINGS[..], &queue].concat());
    due_over_ten_seconds(rows).await
}

async fn one_of_two_killed(database: &TestDatabase, rows: &mut PgConnection) -> Releases {
    let url = database.url();
    let killed = ServerProcess::start(&url, &SETTINGS);
    let _other = ServerProcess::start(&url, &SETTINGS);
    let kill = async {
        middle().await;
        killed.kill9();
    };
    tokio::join!(due_over_ten_seconds(rows), kill).0
}

async fn killed_and_started_again(database: &TestDatabase, rows: &mut PgConnection) -> Releases {
    let url = database.url();
    let killed = ServerProcess::start(&url, &SETTINGS);
    let kill = async {
        middle().await;
        killed.kill9();
        ServerProcess::start(&url, &SETTINGS)
    };
    tokio::join!(due_over_ten_seconds(rows), kill).0
}

/// All are due within a second, and the last of them has its permit four seconds after the first.
async fn paced(database: &TestDatabase, rows: &mut PgConnection) -> Releases {
    let rate = PER_SECOND.to_string();
    let pace = [("HOLDFAST_ADMISSION_RATE", rate.as_str())];
    let _server = ServerProcess::start(&database.url(), &[&SETTINGS[..], &pace].concat());
    releases_of(rows, HOLDS, LEAD_SECONDS, 1.0).await
}
