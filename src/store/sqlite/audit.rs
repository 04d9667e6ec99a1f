//! Recomputes from the rows what they promise. The comparing is done by SQLite, which sorts on
//! disk what does not fit its small cache, so that an audit of millions of rows takes time and not
//! memory.

use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use uuid::Uuid;

use super::error::store_error;
use crate::domain::{ReservationId, Timestamp};
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
    snapshot.rollback().await.map_err(store_error)?;
    Ok(drifts)
}

/// Enough to see what kind of thing is wrong.
const MOST: i64 = 1_000;

/// What must find nothing. `?1` is now, `?2` the most rows wanted. Rows are `name`, `detail`, and
/// the `reservation_id` that completes the name, if it is about one.
struct Check {
    promise: &'static str,
    sql: &'static str,
}

fn drift(promise: &'static str, row: &SqliteRow) -> Result<Drift, sqlx::Error> {
    let name: String = row.try_get("name")?;
    let id: Option<String> = row.try_get("reservation_id")?;
    let row_name = match id {
        None => name,
        Some(text) => match Uuid::parse_str(&text) {
            Ok(uuid) => format!("{name} {}", ReservationId::from_uuid(uuid)),
            Err(_) => format!("{name} {text:?}"),
        },
    };
    Ok(Drift {
        promise,
        row: row_name,
        detail: row.try_get("detail")?,
    })
}

const CHECKS: &[Check] = &[
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
        sql: "
            WITH claimed AS (
                SELECT line.value ->> 'location' AS location,
                       line.value ->> 'sku' AS sku,
                       sum(line.value ->> 'quantity') AS units
                FROM reservations
                CROSS JOIN json_each(reservations.lines) AS line
                WHERE reservations.state = 'held'
                GROUP BY 1, 2
            )
            SELECT NULL AS reservation_id,
                   'stock ' || sku || ' at ' || location AS name,
                   coalesce(stock.held, 'no row') || ' held by the row, '
                       || coalesce(claimed.units, 0) || ' by reservations' AS detail
            FROM claimed
            FULL JOIN stock USING (location, sku)
            WHERE coalesce(claimed.units, 0) <> coalesce(stock.held, -1)
            LIMIT ?2
        ",
    },
    // Open lines are the lines of held reservations.
    Check {
        promise: "P8",
        sql: "
            WITH claimed AS (
                SELECT line.value ->> 'location' AS location,
                       line.value ->> 'sku' AS sku,
                       reservations.expires_at AS expires_at,
                       reservations.id AS reservation_id,
                       sum(line.value ->> 'quantity') AS units
                FROM reservations
                CROSS JOIN json_each(reservations.lines) AS line
                WHERE reservations.state = 'held'
                GROUP BY reservations.id, 1, 2
            )
            SELECT reservation_id,
                   'open line ' || sku || ' at ' || location || ' of reservation' AS name,
                   coalesce(open_lines.quantity, 'no') || ' units until ' || expires_at || ', '
                       || coalesce(claimed.units, 'none') || ' in the reservation' AS detail
            FROM claimed
            FULL JOIN open_lines USING (location, sku, expires_at, reservation_id)
            WHERE claimed.units IS NOT open_lines.quantity
            LIMIT ?2
        ",
    },
    // A reservation leaves held once; only reacquired ones are paid after that.
    Check {
        promise: "P2",
        sql: "
            WITH closing AS (
                SELECT reservation_id,
                       group_concat(kind, ', ' ORDER BY seq) AS kinds
                FROM events
                WHERE kind IN ('paid', 'cancelled', 'expired')
                GROUP BY reservation_id
            )
            SELECT coalesce(reservations.id, closing.reservation_id, '') AS reservation_id,
                   'reservation' AS name,
                   coalesce(reservations.state, 'no row') || ', and its closing events are: '
                       || coalesce(closing.kinds, 'none') AS detail
            FROM closing
            FULL JOIN reservations ON reservations.id = closing.reservation_id
            WHERE closing.kinds IS NOT
                  CASE
                      WHEN reservations.state = 'held' THEN NULL
                      WHEN reservations.reacquired THEN 'expired, paid'
                      ELSE reservations.state
                  END
               OR reservations.id IS NULL
            LIMIT ?2
        ",
    },
    // A due hold is expired within the bound: this one could not be, and was put off.
    Check {
        promise: "P7",
        sql: "
            SELECT id AS reservation_id,
                   'reservation' AS name,
                   'due since ' || expires_at || ', put off until ' || attempt_at AS detail
            FROM reservations
            WHERE state = 'held'
              AND expires_at <= ?1
              AND attempt_at > expires_at + 60000
            LIMIT ?2
        ",
    },
    // Each reservation was created by one event.
    Check {
        promise: "P9",
        sql: "
            WITH created AS (
                SELECT reservation_id,
                       count(*) AS count
                FROM events
                WHERE kind = 'created'
                GROUP BY reservation_id
            )
            SELECT coalesce(reservations.id, created.reservation_id, '') AS reservation_id,
                   'reservation' AS name,
                   coalesce(reservations.state, 'no row') || ', and created by '
                       || coalesce(created.count, 0) || ' events' AS detail
            FROM created
            FULL JOIN reservations ON reservations.id = created.reservation_id
            WHERE reservations.id IS NULL
               OR created.count IS NOT 1
            LIMIT ?2
        ",
    },
    // The ledger's releases are the events' releases.
    Check {
        promise: "P9",
        sql: "
            WITH released AS (
                SELECT reservation_id,
                       at,
                       count(*) AS count
                FROM ledger
                WHERE outcome = 'expired'
                GROUP BY reservation_id, at
            ),
            told AS (
                SELECT reservation_id,
                       at,
                       count(*) AS count
                FROM events
                WHERE kind = 'expired'
                GROUP BY reservation_id, at
            )
            SELECT coalesce(reservation_id, '') AS reservation_id,
                   'ledger of reservation' AS name,
                   'expired at ' || at || ': ' || coalesce(released.count, 0)
                       || ' ledger rows, ' || coalesce(told.count, 0) || ' events' AS detail
            FROM released
            FULL JOIN told USING (reservation_id, at)
            WHERE released.count IS NOT told.count
            LIMIT ?2
        ",
    },
    // Events are numbered 1, 2, 3, ... up to the head.
    Check {
        promise: "P9",
        sql: "
            SELECT NULL AS reservation_id,
                   'event ' || seq AS name,
                   'the event before it is missing' AS detail
            FROM events
            WHERE seq > 1
              AND NOT EXISTS (
                  SELECT *
                  FROM events AS previous
                  WHERE previous.seq = events.seq - 1
              )
            LIMIT ?2
        ",
    },
    Check {
        promise: "P9",
        sql: "
            WITH last AS (
                SELECT coalesce(max(seq), 0) AS seq
                FROM events
            )
            SELECT NULL AS reservation_id,
                   'event head' AS name,
                   coalesce(event_head.seq, 'no row') || ', but the last event is '
                       || last.seq AS detail
            FROM last
            LEFT JOIN event_head
            WHERE event_head.seq IS NOT last.seq
            LIMIT ?2
        ",
    },
];
