//! What it costs to find what is due, whatever else is in the tables.

use holdfast::domain::{Location, Sku, StockKey, Timestamp};
use holdfast::engine::{Runtime as _, TokioRuntime};
use holdfast::store::postgres::Postgres;
use holdfast::store::{Clock, Store};
use sqlx::PgConnection;

use super::holds::{self, execute};
use super::report::{Report, Target, median, ms_since};
use super::world::database::TestDatabase;

/// Held while the table grows around them; a tenth of them due.
const HELD: u32 = 5_000;
/// Looks at each size, of which the median counts.
const LOOKS: usize = 201;
/// How many are claimed at once.
const CLAIM: usize = 256;
/// Expired under the old snapshot.
const EXPIRED: u32 = 300_000;
/// The most that a look may cost more in a large table than in a small one.
const WITHIN_NOISE: f64 = 1.5;

/// The median times of one place, in milliseconds.
struct Times {
    look: f64,
    claim: f64,
}

pub async fn measure(report: &mut Report, ten_million: bool) {
    let mut sizes = vec![10_000, 1_000_000];
    if ten_million {
        sizes.push(10_000_000);
    }
    let mut first: Option<Times> = None;
    for rows in sizes {
        let database = holds::migrated_database().await;
        let mut connection = database.connect().await;
        holds::add_stock(&mut connection).await;
        let long_ago = "date_trunc('milliseconds', now()) - n * interval '1 s' - interval '2 h'";
        holds::add(
            &mut connection,
            rows - HELD,
            "expired",
            "n % 10000",
            long_ago,
        )
        .await;
        let around_now = "date_trunc('milliseconds', now()) + (n - 500) * interval '100 ms'";
        holds::add(&mut connection, HELD, "held", "n % 10000", around_now).await;
        let store = open(&database).await;
        let times = time(&store).await;
        note(report, &format!("{rows} rows, {HELD} held"), &times);
        if let Some(first) = &first {
            judge(report, &format!("{rows} rows by 10000 rows"), &times, first);
        }
        if rows == 1_000_000
            && let Some(first) = &first
        {
            let times = under_old_snapshot(&database, &store).await;
            note(
                report,
                &format!("{EXPIRED} expired under an open snapshot"),
                &times,
            );
            judge(
                report,
                "under an open snapshot by 10000 rows",
                &times,
                first,
            );
        }
        first.get_or_insert(times);
    }
    due_units(report).await;
}

fn note(report: &mut Report, place: &str, times: &Times) {
    report.note(&format!("{place}: the look"), "ms", &[times.look]);
    report.note(
        &format!("{place}: the claim of {CLAIM}"),
        "ms",
        &[times.claim],
    );
}

fn judge(report: &mut Report, places: &str, times: &Times, first: &Times) {
    for (what, ratio) in [
        ("look", times.look / first.look),
        ("claim", times.claim / first.claim),
    ] {
        let what = format!("the {what}, {places}");
        report.judge(&what, "x", &[ratio], Target::AtMost(WITHIN_NOISE));
    }
}

async fn open(database: &TestDatabase) -> Postgres {
    Postgres::connect(&database.url(), Clock::Database)
        .await
        .unwrap()
}

/// Times the two statements as the expirer runs them: from a minute before what is held.
async fn time(store: &Postgres) -> Times {
    let stopwatch = TokioRuntime::start();
    let earliest = store.next_attempt(Timestamp::EPOCH).await.unwrap();
    let earliest = earliest.attempt_at.unwrap_or(earliest.now);
    let from = earliest.min(store.now().await.unwrap());
    let from = from.saturating_add_millis(-60_000);
    let (mut looks, mut claims) = (Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        let started = stopwatch.elapsed();
        store.next_attempt(from).await.unwrap();
        looks.push(ms_since(&stopwatch, started));
        let mut transaction = store.begin().await.unwrap();
        let started = stopwatch.elapsed();
        let claimed = transaction.claim_due(from, CLAIM).await.unwrap();
        claims.push(ms_since(&stopwatch, started));
        assert_eq!(claimed.rows.len(), CLAIM);
        transaction.rollback().await;
    }
    Times {
        look: median(&looks),
        claim: median(&claims),
    }
}

/// The same after many holds expired that an old snapshot still sees, so that their entries
/// stay in the index.
async fn under_old_snapshot(database: &TestDatabase, store: &Postgres) -> Times {
    let mut connection = database.connect().await;
    let past = "date_trunc('milliseconds', now()) - n * interval '10 ms' - interval '10 min'";
    holds::add(&mut connection, EXPIRED, "held", "n % 10000", past).await;
    let mut reader = database.connect().await;
    execute(&mut reader, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    execute(&mut reader, "SELECT count(*) FROM event_head").await;
    expire_before(&mut connection, "10 min").await;
    let times = time(store).await;
    execute(&mut reader, "ROLLBACK").await;
    times
}

async fn expire_before(connection: &mut PgConnection, interval: &str) {
    execute(
        connection,
        &format!(
            "UPDATE reservations SET state = 'expired', closed_at = now(), updated_at = now()
             WHERE state = 'held' AND expires_at <= now() - interval '{interval}'"
        ),
    )
    .await;
}

/// The due units of one SKU among 100,000 due holds, and when all of these are its own.
async fn due_units(report: &mut Report) {
    let database = holds::migrated_database().await;
    let mut connection = database.connect().await;
    holds::add_stock(&mut connection).await;
    let past = "date_trunc('milliseconds', now()) - n * interval '1 ms'";
    holds::add(&mut connection, 100_000, "held", "n % 1000", past).await;
    let store = open(&database).await;
    let key = |sku: &str| StockKey {
        location: Location::new("default").unwrap(),
        sku: Sku::new(sku).unwrap(),
    };
    let hundred = units_ms(&store, key("sku-7"), 100).await;
    report.judge(
        "due units of one SKU, 100 of 100,000 due holds",
        "ms",
        &[hundred],
        Target::AtMost(5.0),
    );
    holds::clear(&mut connection).await;
    holds::add(&mut connection, 100_000, "held", "7", past).await;
    let all = units_ms(&store, key("sku-7"), 100_000).await;
    report.note(
        "due units of one SKU, all of 100,000 due holds",
        "ms",
        &[all],
    );
}

async fn units_ms(store: &Postgres, key: StockKey, due: i64) -> f64 {
    let stopwatch = TokioRuntime::start();
    // More than is free, or the units would not be counted.
    let wanted = [(key.clone(), i64::MAX)].into();
    let mut times = Vec::new();
    for _ in 0..LOOKS {
        let started = stopwatch.elapsed();
        let stock = store.stock(&wanted).await.unwrap();
        times.push(ms_since(&stopwatch, started));
        assert_eq!(stock[&key].due, due);
    }
    median(&times)
}
