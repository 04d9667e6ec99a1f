//! Holds that are due and not released yet: put off, given up, and taken up again.

use std::collections::{BTreeMap, BTreeSet};

use super::instant::Instant;
use super::transaction::PostgresTransaction;
use super::{array, quarantine, uuids};
use crate::domain::{Deferral, ReservationId, Timestamp};
use crate::store::{Sighting, StoreError};

/// In the order of the ids, since the caller may not have locked the rows before. One that
/// changes meanwhile stays as it is, and is looked at again.
pub(super) const DEFER: &str = "
    UPDATE reservations AS r
    SET attempt_at = greatest(r.expires_at, u.attempt_at),
        attempts = r.attempts + u.attempts,
        limiter_wait_ms = r.limiter_wait_ms + u.limiter_ms,
        retry_wait_ms = r.retry_wait_ms + u.retry_ms
    FROM unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::bigint[])
            AS u (id, attempt_at, attempts, limiter_ms, retry_ms)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS found
    WHERE r.ctid = found.ctid AND r.state = 'held'";

pub(super) async fn defer(
    transaction: &mut PostgresTransaction,
    deferrals: &BTreeMap<ReservationId, Deferral>,
    now: Timestamp,
) -> Result<(), StoreError> {
    if deferrals.is_empty() {
        return Ok(());
    }
    let added = || deferrals.values().map(|deferral| deferral.waits(now));
    let query = sqlx::query(DEFER)
        .bind(uuids(deferrals.keys()))
        .bind(array(deferrals.values(), |it| Instant(it.attempt_at)))
        .bind(array(added(), |waits| waits.attempts))
        .bind(array(added(), |waits| waits.limiter_ms))
        .bind(array(added(), |waits| waits.retry_ms));
    transaction.execute(query).await.map(drop)
}

/// The attempt moves to the end of time, where no claim finds it. The state is a parameter for
/// the reason given at [`super::transitions::RELEASE`].
pub(super) const PARK: &str = "
    UPDATE reservations AS r
    SET attempt_at = $2
    FROM unnest($1::uuid[]) AS u (id)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS found
    WHERE r.ctid = found.ctid
        AND r.state = $3
        AND r.expires_at <= $4";

/// The open lines are taken from the table's own text, since the row may be one that the program
/// cannot understand.
pub(super) const CLOSE_PARKED_LINES: &str = "
    DELETE FROM open_lines AS l
    USING (
        SELECT found.ctid
        FROM unnest($1::uuid[]) AS u (id)
        CROSS JOIN LATERAL (
            SELECT *
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS r
        CROSS JOIN LATERAL jsonb_path_query(r.lines, '$[*]') AS line
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM open_lines
            WHERE location = line ->> 'location'
                AND sku = line ->> 'sku'
                AND expires_at = r.expires_at
                AND reservation_id = r.id
            OFFSET 0
        ) AS found
        WHERE r.state = 'held' AND r.attempt_at = $2
    ) AS parked
    WHERE l.ctid = parked.ctid";

pub(super) async fn park(
    transaction: &mut PostgresTransaction,
    sightings: &BTreeMap<ReservationId, Sighting>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let ids = uuids(sightings.keys());
    let query = sqlx::query(PARK)
        .bind(&ids)
        .bind(Instant(Timestamp::MAX))
        .bind("held")
        .bind(Instant(now));
    transaction.execute(query).await?;
    let query = sqlx::query(CLOSE_PARKED_LINES)
        .bind(&ids)
        .bind(Instant(Timestamp::MAX));
    transaction.execute(query).await?;
    for sighting in sightings.values() {
        transaction
            .execute(quarantine::record(sighting, Some(Instant(now))))
            .await?;
    }
    Ok(())
}

pub(super) const UNPARK: &str = "
    UPDATE reservations AS r
    SET attempt_at = greatest(r.expires_at, $3)
    FROM unnest($1::uuid[]) AS u (id)
        CROSS JOIN LATERAL (
            SELECT ctid
            FROM reservations
            WHERE id = u.id
            OFFSET 0
        ) AS found
    WHERE r.ctid = found.ctid
        AND r.state = $4
        AND r.attempt_at = $2
    RETURNING r.id";

pub(super) const OPEN_UNPARKED_LINES: &str = "
    INSERT INTO open_lines (location, sku, expires_at, reservation_id, quantity)
    SELECT
        line ->> 'location',
        line ->> 'sku',
        r.expires_at,
        r.id,
        sum((line ->> 'quantity')::bigint)
    FROM unnest($1::uuid[]) AS u (id)
    CROSS JOIN LATERAL (
        SELECT *
        FROM reservations
        WHERE id = u.id
        OFFSET 0
    ) AS r
    CROSS JOIN LATERAL jsonb_path_query(r.lines, '$[*]') AS line
    GROUP BY r.id, r.expires_at, line ->> 'location', line ->> 'sku'
    ON CONFLICT DO NOTHING";

pub(super) async fn unpark(
    transaction: &mut PostgresTransaction,
    ids: &BTreeSet<ReservationId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let query = sqlx::query(UNPARK)
        .bind(uuids(ids))
        .bind(Instant(Timestamp::MAX))
        .bind(Instant(now))
        .bind("held");
    let mut unparked: Vec<uuid::Uuid> = Vec::new();
    for row in transaction.fetch(query).await? {
        unparked.push(super::row::value(&row, "id")?);
    }
    let query = sqlx::query(OPEN_UNPARKED_LINES).bind(unparked);
    transaction.execute(query).await.map(drop)
}
