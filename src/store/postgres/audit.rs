//! What the rows promise, recomputed by the database from the rows themselves.

use sqlx::{Executor, Row};

use super::Postgres;
use super::error::store_error;
use super::instant::Instant;
use crate::domain::ReservationId;
use crate::store::quarantine::parked_without_case;
use crate::store::{Drift, StoreError};

/// One promise, and the statement that finds the rows that break it. The statement's columns are
/// the row's name, or a null beside the name of a reservation, and what is wrong. `$1` is how many
/// to find, `$2` is now. What lies before the horizon of its table is not missed.
pub(super) struct Check {
    pub(super) promise: &'static str,
    pub(super) sql: &'static str,
}

/// The most rows that one check reports: enough to see what is wrong, and bounded.
const REPORTED: i64 = 1_000;

/// The units that held reservations claim of each row of stock, from their lines. Lines that
/// cannot be read, which a check of its own reports, count as nothing.
macro_rules! claimed {
    () => {
        r#"
            WITH claimed AS (
                SELECT
                    r.id,
                    r.expires_at,
                    r.attempt_at = '9999-12-31 23:59:59.999+00' AS parked,
                    line ->> 'location' AS location,
                    line ->> 'sku' AS sku,
                    sum(units) AS units
                FROM reservations AS r
                CROSS JOIN jsonb_path_query(r.lines, '$[*]') AS line
                CROSS JOIN jsonb_path_query(line, '$.quantity ? (@.type() == "number")') AS number
                CROSS JOIN LATERAL (SELECT number::numeric AS units) AS counted
                WHERE r.state = 'held'
                GROUP BY r.id, line ->> 'location', line ->> 'sku'
            )"#
    };
}

pub(super) use claimed;

/// Before and at this instant, rows of a table may have been deleted because of their age.
macro_rules! horizon {
    ($table:literal) => {
        concat!(
            "coalesce((SELECT t.horizon FROM retention AS t WHERE t.table_name = '",
            $table,
            "'), '-infinity')"
        )
    };
}

pub(super) const CHECKS: [Check; 9] = [
    // The constraint says the same; this is for a database whose constraint was dropped.
    Check {
        promise: "P1",
        sql: "
            SELECT
                format('stock %s at %s', s.sku, s.location),
                NULL::uuid,
                format('holds %s of %s on hand', s.held, s.on_hand)
            FROM stock AS s
            WHERE s.held NOT BETWEEN 0 AND s.on_hand
            LIMIT $1",
    },
    Check {
        promise: "P2",
        sql: concat!(
            "
            WITH closing AS (
                SELECT
                    e.reservation_id AS id,
                    array_agg(e.kind ORDER BY e.seq) AS kinds,
                    min(e.at) AS at,
                    max(e.at) AS last_at
                FROM events AS e
                WHERE e.kind IN ('paid', 'cancelled', 'expired')
                GROUP BY e.reservation_id
            )
            SELECT
                NULL,
                coalesce(r.id, c.id),
                format(
                    'is %s%s, closed at %s; its closing events, from %s on, are: %s',
                    coalesce(r.state, 'missing'),
                    CASE WHEN r.reacquired THEN ', reacquired' END,
                    coalesce(r.closed_at::text, 'no time'),
                    coalesce(c.at::text, 'no time'),
                    coalesce(array_to_string(c.kinds, ', '), 'none')
                )
            FROM reservations AS r
            FULL JOIN closing AS c ON c.id = r.id
            WHERE
                (
                    r.closed_at IS DISTINCT FROM c.at
                    OR c.kinds IS DISTINCT FROM CASE
                        WHEN r.reacquired THEN ARRAY['expired', 'paid']
                        WHEN r.state <> 'held' THEN ARRAY[r.state]
                    END
                )
                AND CASE
                    WHEN r.id IS NULL THEN c.last_at > ",
            horizon!("reservations"),
            "
                    WHEN r.closed_at IS NULL THEN true
                    ELSE r.closed_at > ",
            horizon!("events"),
            "
                END
            LIMIT $1"
        ),
    },
    Check {
        promise: "P7",
        sql: "
            SELECT
                NULL,
                r.id,
                format('was due at %s, and is next tried at %s', r.expires_at, r.attempt_at)
            FROM reservations AS r
            WHERE r.state = 'held'
                AND r.expires_at <= $2
                AND r.attempt_at < '9999-12-31 23:59:59.999+00'
                AND r.attempt_at
                    > r.expires_at + r.limiter_wait_ms * interval '1 ms' + interval '1 minute'
            LIMIT $1",
    },
    Check {
        promise: "P8",
        sql: r#"
            SELECT
                NULL,
                r.id,
                format('holds lines that cannot be read: %s', left(r.lines::text, 200))
            FROM reservations AS r
            WHERE r.state = 'held'
                AND (
                    jsonb_typeof(r.lines) <> 'array'
                    OR r.lines @? '$[*] ? (!(
                        @.sku.type() == "string"
                        && @.location.type() == "string"
                        && @.quantity > 0
                    ))'
                )
            LIMIT $1"#,
    },
    Check {
        promise: "P8",
        sql: concat!(
            claimed!(),
            ",
            totals AS (
                SELECT c.location, c.sku, sum(c.units) AS units
                FROM claimed AS c
                GROUP BY c.location, c.sku
            )
            SELECT
                format(
                    'stock %s at %s',
                    coalesce(s.sku, c.sku),
                    coalesce(s.location, c.location)
                ),
                NULL::uuid,
                format(
                    'shows %s held; its held reservations have %s',
                    coalesce(s.held::text, 'no row, so nothing'),
                    coalesce(c.units, 0)
                )
            FROM stock AS s
            FULL JOIN totals AS c ON c.location = s.location AND c.sku = s.sku
            WHERE coalesce(s.held, 0) <> coalesce(c.units, 0)
            LIMIT $1"
        ),
    },
    Check {
        promise: "P8",
        sql: concat!(
            claimed!(),
            "
            SELECT
                NULL,
                coalesce(c.id, l.reservation_id),
                format(
                    'holds %s of %s at %s until %s; its open line has %s until %s',
                    coalesce(c.units, 0),
                    coalesce(c.sku, l.sku),
                    coalesce(c.location, l.location),
                    coalesce(c.expires_at::text, 'no time'),
                    coalesce(l.quantity, 0),
                    coalesce(l.expires_at::text, 'no time')
                )
            FROM claimed AS c
            FULL JOIN open_lines AS l
                ON l.reservation_id = c.id
                AND l.location = c.location
                AND l.sku = c.sku
                AND l.expires_at = c.expires_at
            WHERE l.quantity IS DISTINCT FROM CASE WHEN NOT c.parked THEN c.units END
            LIMIT $1"
        ),
    },
    Check {
        promise: "P9",
        sql: concat!(
            "
            WITH created AS (
                SELECT
                    e.reservation_id AS id,
                    count(*) FILTER (WHERE e.kind = 'created') AS times,
                    max(e.at) FILTER (WHERE e.kind <> 'created') AS closed_at
                FROM events AS e
                WHERE e.kind IN ('created', 'paid', 'cancelled', 'expired')
                GROUP BY e.reservation_id
            )
            SELECT
                NULL,
                coalesce(r.id, c.id),
                format(
                    'is %s; its events create it %s times',
                    coalesce(r.state, 'missing'),
                    coalesce(c.times, 0)
                )
            FROM reservations AS r
            FULL JOIN created AS c ON c.id = r.id
            WHERE CASE
                WHEN r.id IS NULL THEN
                    c.times > 0
                    AND coalesce(c.closed_at > ",
            horizon!("reservations"),
            ", true)
                WHEN coalesce(c.times, 0) = 0 THEN r.created_at > ",
            horizon!("events"),
            "
                ELSE c.times <> 1
            END
            LIMIT $1"
        ),
    },
    Check {
        promise: "P9",
        sql: concat!(
            "
            WITH
                horizon AS (
                    SELECT greatest(",
            horizon!("ledger"),
            ", ",
            horizon!("events"),
            ") AS at
                ),
                said AS (
                    SELECT e.reservation_id AS id, count(*) AS rows, min(e.at) AS at
                    FROM events AS e
                    WHERE e.kind = 'expired' AND e.at > (SELECT h.at FROM horizon AS h)
                    GROUP BY e.reservation_id
                ),
                done AS (
                    SELECT l.reservation_id AS id, count(*) AS rows, min(l.at) AS at
                    FROM ledger AS l
                    WHERE l.outcome = 'expired' AND l.at > (SELECT h.at FROM horizon AS h)
                    GROUP BY l.reservation_id
                )
            SELECT
                NULL,
                coalesce(said.id, done.id),
                format(
                    'expired %s times by its events (first at %s), %s times by the ledger (%s)',
                    coalesce(said.rows, 0),
                    coalesce(said.at::text, 'no time'),
                    coalesce(done.rows, 0),
                    coalesce(done.at::text, 'no time')
                )
            FROM said
            FULL JOIN done ON done.id = said.id
            WHERE (said.rows, said.at) IS DISTINCT FROM (done.rows, done.at)
            LIMIT $1"
        ),
    },
    Check {
        promise: "P9",
        sql: "
            WITH
                deleted AS (
                    SELECT t.seq FROM retention AS t WHERE t.table_name = 'events'
                ),
                numbered AS (
                    SELECT
                        e.seq,
                        lag(e.seq, 1, (SELECT d.seq FROM deleted AS d)) OVER (ORDER BY e.seq)
                            AS before
                    FROM events AS e
                    UNION ALL
                    SELECT
                        (SELECT h.seq FROM event_head AS h) + 1,
                        coalesce(max(e.seq), (SELECT d.seq FROM deleted AS d))
                    FROM events AS e
                )
            SELECT
                format('event %s', n.before + 1),
                NULL::uuid,
                CASE
                    WHEN n.seq IS NULL THEN 'the event head is missing'
                    ELSE format('is missing, or the next one is not %s', n.seq)
                END
            FROM numbered AS n
            WHERE n.seq IS DISTINCT FROM n.before + 1
            LIMIT $1",
    },
];

/// Holds whose release was given up.
const PARKED: &str = "
    SELECT r.id
    FROM reservations AS r
    WHERE r.state = 'held' AND r.attempt_at = '9999-12-31 23:59:59.999+00'
    ORDER BY r.id";

/// The names of those that an operator is told of.
const CASES: &str = "
    SELECT q.key
    FROM quarantine AS q
    WHERE q.source = 'hold' AND q.resolved_at IS NULL";

/// Unlike the rest, an audit reads whole tables, and may take its time.
pub(super) const BEGIN: &str = "
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL statement_timeout = 0;
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_bitmapscan = on;
    SET LOCAL enable_hashjoin = on;
    SET LOCAL enable_mergejoin = on";

pub(super) async fn audit(store: &Postgres) -> Result<Vec<Drift>, StoreError> {
    inspect(store).await.map_err(store_error)
}

async fn inspect(store: &Postgres) -> Result<Vec<Drift>, sqlx::Error> {
    let mut transaction = store.pool.begin_with(BEGIN).await?;
    let now: Option<Instant> = sqlx::query("SELECT coalesce($1, statement_timestamp())")
        .bind(Instant::by_hand(&store.clock))
        .fetch_one(&mut *transaction)
        .await?
        .try_get(0)?;
    let mut drifts = Vec::new();
    for Check { promise, sql } in CHECKS {
        let query = sqlx::query(sql).bind(REPORTED).bind(now);
        for found in transaction.fetch_all(query).await? {
            let name: Option<String> = found.try_get(0)?;
            let id: Option<uuid::Uuid> = found.try_get(1)?;
            let row = match (name, id.map(ReservationId::from_uuid)) {
                (Some(name), _) => name,
                (None, Some(id)) => format!("reservation {id}"),
                (None, None) => "a row without a name".to_owned(),
            };
            drifts.push(Drift {
                promise,
                row,
                detail: found.try_get(2)?,
            });
        }
    }
    let parked: Vec<uuid::Uuid> = sqlx::query_scalar(PARKED)
        .fetch_all(&mut *transaction)
        .await?;
    let cases: Vec<String> = sqlx::query_scalar(CASES)
        .fetch_all(&mut *transaction)
        .await?;
    let parked = parked.into_iter().map(ReservationId::from_uuid);
    drifts.extend(parked_without_case(parked, cases));
    transaction.rollback().await?;
    Ok(drifts)
}
