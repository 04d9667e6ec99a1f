//! Holds that are due and not released yet: put off, given up, and taken up again; and the rates
//! by which expiry is paced.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sqlx::{Row, SqliteConnection};

use super::error::store_error;
use super::statement::Statement;
use super::{quarantine, write};
use crate::domain::{AdmissionKey, Deferral, ReservationId, Timestamp};
use crate::store::{Sighting, StoreError};

pub(super) const LOCK_ADMISSION: &str = "
    SELECT key, theoretical_arrival_us
    FROM admission
    WHERE key IN (SELECT value FROM json_each(?1))
";

pub(super) async fn lock_admission(
    connection: &mut SqliteConnection,
    keys: &BTreeSet<AdmissionKey>,
) -> Result<BTreeMap<AdmissionKey, i64>, StoreError> {
    let rows = sqlx::query(LOCK_ADMISSION)
        .bind(write::json_array(keys.iter().map(AdmissionKey::as_str))?)
        .fetch_all(connection)
        .await
        .map_err(store_error)?;
    let locked = rows.iter().map(|row| {
        let key: &str = row.try_get("key").map_err(store_error)?;
        let arrival_us = row.try_get("theoretical_arrival_us").map_err(store_error)?;
        Ok((AdmissionKey::from_stored(key), arrival_us))
    });
    locked.collect()
}

pub(super) const WRITE_ADMISSION: Statement = Statement {
    name: "write admission",
    sql: "
        INSERT INTO admission (key, theoretical_arrival_us)
        SELECT value ->> 'key', value ->> 'arrival_us'
        FROM json_each(?1)
        WHERE TRUE
        ON CONFLICT (key) DO UPDATE
        SET theoretical_arrival_us = excluded.theoretical_arrival_us
    ",
};

pub(super) async fn write_admission(
    connection: &mut SqliteConnection,
    arrivals_us: &BTreeMap<AdmissionKey, i64>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let rows = arrivals_us
        .iter()
        .map(|(key, arrival_us)| json!({ "key": key.as_str(), "arrival_us": arrival_us }));
    WRITE_ADMISSION.run(connection, rows.collect(), now).await
}

pub(super) const DEFER: Statement = Statement {
    name: "defer reservations",
    sql: "
        UPDATE reservations
        SET attempt_at = max(expires_at, deferral.value ->> 'attempt_at'),
            attempts = attempts + (deferral.value ->> 'attempts'),
            limiter_wait_ms = limiter_wait_ms + (deferral.value ->> 'limiter_ms'),
            retry_wait_ms = retry_wait_ms + (deferral.value ->> 'retry_ms')
        FROM json_each(?1) AS deferral
        WHERE reservations.id = deferral.value ->> 'id'
          AND reservations.state = 'held'
    ",
};

pub(super) async fn defer(
    connection: &mut SqliteConnection,
    deferrals: &BTreeMap<ReservationId, Deferral>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let rows = deferrals.iter().map(|(id, deferral)| {
        let added = deferral.waits(now);
        json!({
            "id": id.as_uuid().to_string(),
            "attempt_at": deferral.attempt_at.as_millis(),
            "attempts": added.attempts,
            "limiter_ms": added.limiter_ms,
            "retry_ms": added.retry_ms,
        })
    });
    DEFER.run_on_some(connection, rows.collect(), now).await?;
    Ok(())
}

/// The attempt moves to the end of time, `?3`, where no claim finds it.
pub(super) const PARK: &str = "
    UPDATE reservations
    SET attempt_at = ?3
    WHERE id IN (SELECT value FROM json_each(?1))
      AND state = 'held'
      AND expires_at <= ?2
";

/// The open lines are taken from the table's own text, since the row may be one that the program
/// cannot understand.
pub(super) const CLOSE_PARKED_LINES: &str = "
    DELETE FROM open_lines
    WHERE (location, sku, expires_at, reservation_id) IN (
        SELECT line.value ->> 'location',
               line.value ->> 'sku',
               reservations.expires_at,
               reservations.id
        FROM json_each(?1) AS parked
        CROSS JOIN reservations ON reservations.id = parked.value
        CROSS JOIN json_each(
            iif(json_valid(reservations.lines), reservations.lines, '[]')
        ) AS line
        WHERE reservations.state = 'held'
          AND reservations.attempt_at = ?2
    )
";

pub(super) async fn park(
    connection: &mut SqliteConnection,
    sightings: &BTreeMap<ReservationId, Sighting>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let ids = write::json_array(sightings.keys().map(|id| id.as_uuid().to_string()))?;
    sqlx::query(PARK)
        .bind(&ids)
        .bind(now.as_millis())
        .bind(Timestamp::MAX.as_millis())
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    sqlx::query(CLOSE_PARKED_LINES)
        .bind(&ids)
        .bind(Timestamp::MAX.as_millis())
        .execute(&mut *connection)
        .await
        .map_err(store_error)?;
    for sighting in sightings.values() {
        quarantine::record(sighting, now)
            .execute(&mut *connection)
            .await
            .map_err(store_error)?;
    }
    Ok(())
}

pub(super) const UNPARK: &str = "
    UPDATE reservations
    SET attempt_at = max(expires_at, ?2)
    WHERE id IN (SELECT value FROM json_each(?1))
      AND state = 'held'
      AND attempt_at = ?3
    RETURNING id
";

pub(super) const OPEN_UNPARKED_LINES: &str = "
    INSERT INTO open_lines (location, sku, expires_at, reservation_id, quantity)
    SELECT line.value ->> 'location',
           line.value ->> 'sku',
           reservations.expires_at,
           reservations.id,
           sum(line.value ->> 'quantity')
    FROM json_each(?1) AS unparked
    CROSS JOIN reservations ON reservations.id = unparked.value
    CROSS JOIN json_each(reservations.lines) AS line
    GROUP BY reservations.id, line.value ->> 'location', line.value ->> 'sku'
    ON CONFLICT DO NOTHING
";

pub(super) async fn unpark(
    connection: &mut SqliteConnection,
    ids: &BTreeSet<ReservationId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let unparked: Vec<String> = sqlx::query_scalar(UNPARK)
        .bind(write::json_array(
            ids.iter().map(|id| id.as_uuid().to_string()),
        )?)
        .bind(now.as_millis())
        .bind(Timestamp::MAX.as_millis())
        .fetch_all(&mut *connection)
        .await
        .map_err(store_error)?;
    sqlx::query(OPEN_UNPARKED_LINES)
        .bind(write::json_array(unparked)?)
        .execute(connection)
        .await
        .map_err(store_error)?;
    Ok(())
}
