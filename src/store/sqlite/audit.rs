//! Recomputes from the rows what they promise. The comparing is done by SQLite, which sorts on
//! disk what does not fit its small cache, so that an audit of millions of rows takes time and not
//! memory.

use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use uuid::Uuid;

use super::error::store_error;
use crate::domain::{ReservationId, Timestamp};
use crate::store::quarantine::parked_without_case;
use crate::store::{Drift, StoreError};

/// Says row by row where a promise does not hold, at most [`MOST`] rows for each check.
pub(super) async fn audit(readers: &SqlitePool, now: Timestamp) -> Result<Vec<Drift>, StoreError> {
    let mut snapshot = readers.begin().await.map_err(store_error)?;
    let mut drifts = Vec::new();
    for check in CHECKS {
        let rows = sqlx::query(check.sql)
            .bind(now.as_millis())
            .bind(MOST)
            .fetch_all(&mut *snapshot)
            .await
            .map_err(store_error)?;
        for row in &rows {
            drifts.push(drift(check.promise, row).map_err(store_error)?);
        }
    }
    let parked: Vec<String> = sqlx::query_scalar(PARKED)
        .bind(Timestamp::MAX.as_millis())
        .fetch_all(&mut *snapshot)
        .await
        .map_err(store_error)?;
    let cases: Vec<String> = sqlx::query_scalar(CASES)
        .fetch_all(&mut *snapshot)
        .await
        .map_err(store_error)?;
    let parked = parked.iter().filter_map(|id| Uuid::parse_str(id).ok());
    drifts.extend(parked_without_case(
        parked.map(ReservationId::from_uuid),
        cases,
    ));
    snapshot.rollback().await.map_err(store_error)?;
    Ok(drifts)
}

/// Enough to see what kind of thing is wrong.
const MOST: i64 = 1_000;

/// Holds whose release was given up: those that are next tried at the end of time.
const PARKED: &str = "
    SELECT id
    FROM reservations
    WHERE state = 'held'
      AND attempt_at = ?1
    ORDER BY id
";

/// The names of those that an operator is told of.
const CASES: &str = "
    SELECT key
    FROM quarantine
    WHERE source = 'hold'
      AND resolved_at IS NULL
";

/// A promise, and the statement that finds the rows that break it. `?1` is now, `?2` the most rows
/// wanted. What is found has a `name`, or else a `reservation_id`, and a `detail`. What lies before
/// the horizon of its table is not missed.
pub(super) struct Check {
    pub promise: &'static str,
    pub sql: &'static str,
}

fn drift(promise: &'static str, found: &SqliteRow) -> Result<Drift, sqlx::Error> {
    let name: Option<String> = found.try_get("name")?;
    let row = if let Some(name) = name {
        name
    } else {
        let id: Option<String> = found.try_get("reservation_id")?;
        let uuid = id.as_deref().and_then(|id| Uuid::parse_str(id).ok());
        match uuid.map(ReservationId::from_uuid) {
            Some(id) => format!("reservation {id}"),
            None => format!("reservation {}", id.unwrap_or_default()),
        }
    };
    Ok(Drift {
        promise,
        row,
        detail: found.try_get("detail")?,
    })
}

/// Before and at this instant, rows of a table may have been deleted because of their age.
macro_rules! horizon {
    ($table:literal) => {
        concat!(
            "coalesce((SELECT horizon FROM retention WHERE table_name = '",
            $table,
            "'), -1)"
        )
    };
}

/// The lines of held reservations. What is no JSON, or no list of objects, counts as none.
macro_rules! held_lines {
    () => {
        "
                FROM reservations
                CROSS JOIN json_each(
                    iif(json_valid(reservations.lines), reservations.lines, '[]')
                ) AS line
                WHERE reservations.state = 'held'
                  AND line.type = 'object'"
    };
}
pub(super) use held_lines;

pub(super) const CHECKS: &[Check] = &[
    // No oversell.
    Check {
        promise: "P1",
        sql: "
            SELECT NULL AS reservation_id,
                   'stock ' || sku || ' at ' || location AS name,
                   held || ' of ' || on_hand || ' units are held' AS detail
            FROM stock
            WHERE NOT held BETWEEN 0 AND on_hand
            LIMIT ?2
        ",
    },
    // What stock says is held is what reservations hold.
    Check {
        promise: "P8",
        sql: concat!(
            "
            WITH claimed AS (
                SELECT line.value ->> 'location' AS location,
                       line.value ->> 'sku' AS sku,
                       sum(line.value ->> 'quantity') AS units",
            held_lines!(),
            "
                GROUP BY 1, 2
            )
            SELECT NULL AS reservation_id,
                   'stock ' || coalesce(sku, '?') || ' at ' || coalesce(location, '?') AS name,
                   coalesce(stock.held, 'no row, so none') || ' held by the row, '
                       || coalesce(claimed.units, 0) || ' by reservations' AS detail
            FROM claimed
            FULL JOIN stock USING (location, sku)
            WHERE coalesce(claimed.units, 0) <> coalesce(stock.held, 0)
            LIMIT ?2
        "
        ),
    },
    // Open lines are the lines of held reservations, but not of those that were given up.
    Check {
        promise: "P8",
        sql: concat!(
            "
            WITH claimed AS (
                SELECT line.value ->> 'location' AS location,
                       line.value ->> 'sku' AS sku,
                       reservations.expires_at AS expires_at,
                       reservations.id AS reservation_id,
                       sum(line.value ->> 'quantity') AS units",
            held_lines!(),
            "
                  AND reservations.attempt_at < 253402300799999
                GROUP BY reservations.id, 1, 2
            )
            SELECT reservation_id,
                   NULL AS name,
                   coalesce(claimed.units, 0) || ' of ' || coalesce(sku, '?') || ' at '
                       || coalesce(location, '?') || ' until ' || expires_at
                       || '; its open line has ' || coalesce(open_lines.quantity, 0) AS detail
            FROM claimed
            FULL JOIN open_lines USING (location, sku, expires_at, reservation_id)
            WHERE claimed.units IS NOT open_lines.quantity
            LIMIT ?2
        "
        ),
    },
    // A reservation leaves held once; only reacquired ones are paid after that.
    Check {
        promise: "P2",
        sql: concat!(
            "
            WITH closing AS (
                SELECT reservation_id,
                       group_concat(kind, ', ' ORDER BY seq) AS kinds,
                       min(at) AS closed_at,
                       max(at) AS last_at
                FROM events
                WHERE kind IN ('paid', 'cancelled', 'expired')
                GROUP BY reservation_id
            )
            SELECT coalesce(reservations.id, closing.reservation_id) AS reservation_id,
                   NULL AS name,
                   coalesce(reservations.state, 'no row') || ', closed at '
                       || coalesce(reservations.closed_at, 'no time')
                       || '; its closing events: ' || coalesce(closing.kinds, 'none')
                       || ', from ' || coalesce(closing.closed_at, 'no time') AS detail
            FROM closing
            FULL JOIN reservations ON reservations.id = closing.reservation_id
            WHERE CASE
                      WHEN reservations.id IS NULL
                          THEN closing.last_at > ",
            horizon!("reservations"),
            "
                      ELSE (
                          closing.kinds IS NOT
                              CASE
                                  WHEN reservations.state = 'held' THEN NULL
                                  WHEN reservations.reacquired THEN 'expired, paid'
                                  ELSE reservations.state
                              END
                          OR reservations.closed_at IS NOT closing.closed_at
                      )
                      AND coalesce(reservations.closed_at > ",
            horizon!("events"),
            ", TRUE)
                  END
            LIMIT ?2
        "
        ),
    },
    // A due hold is expired within the bound: this one could not be, and was put off.
    Check {
        promise: "P7",
        sql: "
            SELECT id AS reservation_id,
                   NULL AS name,
                   'due since ' || expires_at || ', put off until ' || attempt_at AS detail
            FROM reservations
            WHERE state = 'held'
              AND expires_at <= ?1
              AND attempt_at > expires_at + limiter_wait_ms + 60000
              AND attempt_at < 253402300799999
            LIMIT ?2
        ",
    },
    // Each reservation was created by one event.
    Check {
        promise: "P9",
        sql: concat!(
            "
            WITH created AS (
                SELECT reservation_id,
                       count(*) FILTER (WHERE kind = 'created') AS count,
                       max(at) FILTER (WHERE kind <> 'created') AS closed_at
                FROM events
                WHERE kind IN ('created', 'paid', 'cancelled', 'expired')
                GROUP BY reservation_id
            )
            SELECT coalesce(reservations.id, created.reservation_id) AS reservation_id,
                   NULL AS name,
                   coalesce(reservations.state, 'no row') || ', and created by '
                       || coalesce(created.count, 0) || ' events' AS detail
            FROM created
            FULL JOIN reservations ON reservations.id = created.reservation_id
            WHERE CASE
                      WHEN reservations.id IS NULL
                          THEN created.count > 0
                          AND coalesce(created.closed_at > ",
            horizon!("reservations"),
            ", TRUE)
                      WHEN coalesce(created.count, 0) = 0
                          THEN reservations.created_at > ",
            horizon!("events"),
            "
                      ELSE created.count <> 1
                  END
            LIMIT ?2
        "
        ),
    },
    // The ledger's releases are the events' releases. They are counted together, since SQLite would
    // join two counts by comparing each with each.
    Check {
        promise: "P9",
        sql: concat!(
            "
            SELECT reservation_id,
                   NULL AS name,
                   'expired at ' || at || ': ' || sum(released) || ' ledger rows, '
                       || sum(told) || ' events' AS detail
            FROM (
                SELECT reservation_id, at, 1 AS released, 0 AS told
                FROM ledger
                WHERE outcome = 'expired'
                UNION ALL
                SELECT reservation_id, at, 0 AS released, 1 AS told
                FROM events
                WHERE kind = 'expired'
            )
            WHERE at > max(",
            horizon!("ledger"),
            ", ",
            horizon!("events"),
            ")
            GROUP BY reservation_id, at
            HAVING sum(released) <> sum(told)
            LIMIT ?2
        "
        ),
    },
    // Events are numbered 1, 2, 3, ... up to the head.
    Check {
        promise: "P9",
        sql: "
            WITH deleted AS (
                SELECT seq
                FROM retention
                WHERE table_name = 'events'
            ),
            numbered AS (
                SELECT seq,
                       lag(seq, 1, (SELECT seq FROM deleted)) OVER (ORDER BY seq) AS previous
                FROM events
                UNION ALL
                SELECT (SELECT seq + 1 FROM event_head),
                       coalesce(max(seq), (SELECT seq FROM deleted))
                FROM events
            )
            SELECT NULL AS reservation_id,
                   'event ' || (previous + 1) AS name,
                   CASE
                       WHEN seq IS NULL THEN 'the event head is missing'
                       ELSE 'is missing, or the next one is not ' || seq
                   END AS detail
            FROM numbered
            WHERE seq IS NOT previous + 1
            LIMIT ?2
        ",
    },
];
