//! Databases with holds in them, put there without asking the program for each.

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::world::database::{TestDatabase, database};
use super::world::server;

/// How many SKUs there are, `sku-0` and so on.
pub const SKUS: u32 = 10_000;

/// An empty database with the program's schema.
pub async fn migrated_database() -> TestDatabase {
    let database = database().await;
    let migrated = server::run(&["migrate"], &[("HOLDFAST_DATABASE_URL", &database.url())]);
    assert!(migrated.status.success(), "{migrated:?}");
    database
}

/// Puts plenty of every SKU on the shelf.
pub async fn add_stock(connection: &mut PgConnection) {
    execute(
        connection,
        &format!(
            "INSERT INTO stock (location, sku, on_hand, held, updated_at)
             SELECT 'default', 'sku-' || n, 1000000000, 0, now()
             FROM generate_series(0, {SKUS} - 1) AS n"
        ),
    )
    .await;
    execute(connection, "VACUUM ANALYZE stock").await;
}

/// Adds reservations of one unit each in one state, and what belongs to them if they are held.
/// `sku` and `due` are expressions over `n`, which counts from 0.
pub async fn add(connection: &mut PgConnection, count: u32, state: &str, sku: &str, due: &str) {
    let closed_at = if state == "held" { "NULL" } else { "due" };
    execute(
        connection,
        &format!(
            "INSERT INTO reservations (
                 id, state, lines, expires_at, attempt_at, hold_seconds, created_at, updated_at,
                 closed_at, extensions, customer_id, reference, payment_reference, reacquired,
                 metadata
             )
             SELECT
                 (
                     lpad(to_hex((extract(epoch FROM due) * 1000)::bigint + n / 100), 12, '0')
                     || '7' || substr(noise, 1, 3) || '8' || substr(noise, 4, 15)
                 )::uuid,
                 '{state}',
                 jsonb_build_array(jsonb_build_object(
                     'location', 'default', 'sku', 'sku-' || sku, 'quantity', 1
                 )),
                 due, due, 900, due - interval '900 s', due - interval '900 s',
                 {closed_at}, 0, NULL, NULL, NULL, false, '{{}}'
             FROM generate_series(0, {count} - 1) AS n
             CROSS JOIN LATERAL (
                 SELECT {sku} AS sku, {due} AS due, md5(random()::text) AS noise
             ) AS made"
        ),
    )
    .await;
    if state == "held" {
        complete(connection).await;
    }
    execute(connection, "VACUUM ANALYZE").await;
}

/// Adds what belongs to held reservations: their events, their open lines and the held units.
async fn complete(connection: &mut PgConnection) {
    execute(
        connection,
        "INSERT INTO events (seq, reservation_id, kind, at, data)
         SELECT h.seq + row_number() OVER (), r.id, 'created', r.created_at, '{}'
         FROM event_head AS h
         CROSS JOIN reservations AS r
         WHERE r.state = 'held'
             AND NOT EXISTS (SELECT FROM open_lines AS l WHERE l.reservation_id = r.id)",
    )
    .await;
    execute(
        connection,
        "UPDATE event_head SET seq = (SELECT coalesce(max(seq), 0) FROM events)",
    )
    .await;
    execute(
        connection,
        "INSERT INTO open_lines (location, sku, expires_at, reservation_id, quantity)
         SELECT l.location, l.sku, r.expires_at, r.id, l.quantity
         FROM reservations AS r
         CROSS JOIN LATERAL jsonb_to_recordset(r.lines)
             AS l (location text, sku text, quantity bigint)
         WHERE r.state = 'held'
         ON CONFLICT DO NOTHING",
    )
    .await;
    execute(
        connection,
        "UPDATE stock AS s
         SET held = o.units
         FROM (
             SELECT location, sku, sum(quantity) AS units FROM open_lines GROUP BY location, sku
         ) AS o
         WHERE s.location = o.location AND s.sku = o.sku",
    )
    .await;
}

/// Takes everything away but the stock, of which nothing is held any more.
pub async fn clear(connection: &mut PgConnection) {
    execute(
        connection,
        "TRUNCATE reservations, open_lines, ledger, events, idempotency, outbox",
    )
    .await;
    execute(connection, "UPDATE event_head SET seq = 0").await;
    execute(connection, "UPDATE stock SET held = 0").await;
    execute(connection, "VACUUM stock, event_head").await;
}

/// How many are held.
pub async fn held(connection: &mut PgConnection) -> i64 {
    let sql = "SELECT count(*) FROM reservations WHERE state = 'held'";
    let row = sqlx::query(sql).fetch_one(connection).await.unwrap();
    row.get(0)
}

/// One number that the database computes.
pub async fn number(connection: &mut PgConnection, sql: &str) -> f64 {
    let statement = sqlx::query_scalar::<_, f64>(AssertSqlSafe(sql.to_owned()));
    statement.fetch_one(connection).await.unwrap()
}

pub async fn execute(connection: &mut PgConnection, sql: &str) {
    let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    statement.execute(connection).await.unwrap();
}
