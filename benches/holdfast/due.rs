//! What it costs to find what is due, whatever else is in the tables.

use holdfast::domain::{Location, Sku, StockKey, Timestamp};
use holdfast::engine::{Runtime as _, TokioRuntime};
use holdfast::store::postgres::Postgres;
use holdfast::store::{Clock, Store};
use sqlx::PgConnection;

use super::holds::{self, execute};
use super::report::{Report, Target, median, ms_since, ratios};
use super::world::database::TestDatabase;

/// Held while the table grows around them; a tenth of them due.
const HELD: u32 = 5_000;
const ROUNDS: usize = 3;
/// Looks at each place in each round, of which the median counts.
const LOOKS: usize = 101;
/// How many are claimed at once.
const CLAIM: usize = 256;
/// Expired under the old snapshot.
const EXPIRED: u32 = 300_000;
/// The most that a look may cost more in a large table than in a small one.
const WITHIN_NOISE: f64 = 1.5;

/// A table of reservations, and how long looks into it took, in milliseconds, round by round.
struct Place {
    name: String,
    database: TestDatabase,
    store: Postgres,
    looks: Vec<f64>,
    claims: Vec<f64>,
}

pub async fn measure(report: &mut Report, ten_million: bool) {
    let mut places = vec![place(10_000).await, place(1_000_000).await];
    let mut churned = place(1_000_000).await;
    churned.name = format!("{EXPIRED} expired under an open snapshot");
    let mut reader = expire_under_old_snapshot(&churned.database).await;
    places.push(churned);
    if ten_million {
        places.push(place(10_000_000).await);
    }
    for _ in 0..ROUNDS {
        for place in &mut places {
            place.time().await;
        }
    }
    execute(&mut reader, "ROLLBACK").await;
    for place in &places {
        let name = &place.name;
        report.note(&format!("{name}: the look"), "ms", &place.looks);
        report.note(
            &format!("{name}: the claim of {CLAIM}"),
            "ms",
            &place.claims,
        );
    }
    let (smallest, larger) = places.split_first().unwrap();
    for place in larger {
        for (what, of, to) in [
            ("look", &place.looks, &smallest.looks),
            ("claim", &place.claims, &smallest.claims),
        ] {
            report.judge(
                &format!("{}, the {what}: by {}", place.name, smallest.name),
                "x",
                &ratios(of, to),
                Target::AtMost(WITHIN_NOISE),
            );
        }
    }
    due_units(report).await;
}

/// A database with so many reservations, of which always as many are held.
async fn place(rows: u32) -> Place {
    let database = holds::migrated_database().await;
    let mut connection = database.connect().await;
    holds::add_stock(&mut connection).await;
    let long_ago = "date_trunc('milliseconds', now()) - n * interval '1 s' - interval '2 h'";
    let closed = rows - HELD;
    holds::add(&mut connection, closed, "expired", "n % 10000", long_ago).await;
    let around_now = "date_trunc('milliseconds', now()) + (n - 500) * interval '100 ms'";
    holds::add(&mut connection, HELD, "held", "n % 10000", around_now).await;
    Place {
        name: format!("{rows} rows, {HELD} held"),
        store: open(&database).await,
        database,
        looks: Vec::new(),
        claims: Vec::new(),
    }
}

impl Place {
    /// Times the two statements as the expirer runs them: from a minute before what is held.
    async fn time(&mut self) {
        let stopwatch = TokioRuntime::start();
        let earliest = self.store.next_attempt(Timestamp::EPOCH).await.unwrap();
        let from = earliest.attempt_at.unwrap_or(earliest.now);
        let from = from.min(earliest.now).saturating_add_millis(-60_000);
        let (mut looks, mut claims) = (Vec::new(), Vec::new());
        for _ in 0..LOOKS {
            let started = stopwatch.elapsed();
            self.store.next_attempt(from).await.unwrap();
            looks.push(ms_since(&stopwatch, started));
            let mut transaction = self.store.begin().await.unwrap();
            let started = stopwatch.elapsed();
            let claimed = transaction.claim_due(from, 0, CLAIM).await.unwrap();
            claims.push(ms_since(&stopwatch, started));
            assert_eq!(claimed.rows.len(), CLAIM);
            transaction.rollback().await;
        }
        self.looks.push(median(&looks));
        self.claims.push(median(&claims));
    }
}

/// Has many holds expire that an old snapshot still sees, so that their entries stay in the index
/// until the reader that is returned ends its transaction.
async fn expire_under_old_snapshot(database: &TestDatabase) -> PgConnection {
    let mut connection = database.connect().await;
    let past = "date_trunc('milliseconds', now()) - n * interval '10 ms' - interval '10 min'";
    holds::add(&mut connection, EXPIRED, "held", "n % 10000", past).await;
    let mut reader = database.connect().await;
    execute(&mut reader, "BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    execute(&mut reader, "SELECT count(*) FROM event_head").await;
    execute(
        &mut connection,
        "UPDATE reservations SET state = 'expired', closed_at = now(), updated_at = now()
         WHERE state = 'held' AND expires_at <= now() - interval '10 min'",
    )
    .await;
    reader
}

async fn open(database: &TestDatabase) -> Postgres {
    Postgres::connect(&database.url(), Clock::Database)
        .await
        .unwrap()
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
