//! What a batch decides on: taken in order, and read.
//!
//! `ORDER BY` beside `FOR NO KEY UPDATE` sorts first and locks then, row by row, because the
//! columns it sorts by never change. `LATERAL` with an `OFFSET 0` inside takes the rows one by one in
//! the order of the array, each by its key, whatever the planner believes of the table: see
//! [`super::SESSION`].

use std::collections::{BTreeMap, BTreeSet};

use sqlx::postgres::PgRow;

use super::instant::Instant;
use super::row::{self, reservation_columns};
use super::transaction::PostgresTransaction;
use super::{columns, rows, uuids};
use crate::domain::{JobId, PaymentReference, ReservationId, StockKey, Timestamp};
use crate::store::{
    CorruptRow, Key, LockedKeys, LockedReservations, LockedStock, StoreError, Wait,
};

/// An advisory lock stands for a key, since there may be no row yet to lock. Two keys that share
/// a hash only keep each other waiting.
pub(super) const LOCK_KEYS: &str = "
    SELECT k.scope, k.key
    FROM unnest($1::text[], $2::text[]) AS k (scope, key)
    WHERE pg_try_advisory_xact_lock(hashtextextended(k.key, hashtextextended(k.scope, 0)))";

/// A statement of its own: what the last owner of a key committed is seen only by a statement
/// that begins after its lock was taken.
pub(super) const READ_KEYS: &str = "
    SELECT i.scope, i.key, i.fingerprint, i.status, i.location, i.body, i.created_at
    FROM unnest($1::text[], $2::text[]) AS k (scope, key)
    CROSS JOIN LATERAL (
        SELECT *
        FROM idempotency
        WHERE scope = k.scope AND key = k.key
        OFFSET 0
    ) AS i";

pub(super) async fn keys(
    transaction: &mut PostgresTransaction,
    keys: &BTreeSet<Key>,
) -> Result<LockedKeys, StoreError> {
    let mut locked = LockedKeys::default();
    if keys.is_empty() {
        return Ok(locked);
    }
    let (scopes, names): (Vec<&str>, Vec<&str>) = keys
        .iter()
        .map(|key| (key.scope.as_str(), key.key.as_str()))
        .unzip();
    let query = sqlx::query(LOCK_KEYS).bind(&scopes).bind(&names);
    locked.elsewhere = keys.clone();
    for row in transaction.fetch(query).await? {
        locked.elsewhere.remove(&row::key(&row)?);
    }
    let query = sqlx::query(READ_KEYS).bind(&scopes).bind(&names);
    for row in transaction.fetch(query).await? {
        let recorded = row::recorded_answer(&row)?;
        if !locked.elsewhere.contains(&recorded.key) {
            locked.recorded.insert(recorded.key.clone(), recorded);
        }
    }
    Ok(locked)
}

pub(super) const LOCK_RESERVATIONS: &str = concat!(
    "SELECT ",
    reservation_columns!(),
    "
    FROM reservations AS r
    WHERE r.id = ANY ($1)
    ORDER BY r.id
    FOR NO KEY UPDATE",
);

pub(super) const LOCK_FREE_RESERVATIONS: &str = concat!(
    "SELECT ",
    reservation_columns!(),
    "
    FROM reservations AS r
    WHERE r.id = ANY ($1)
    ORDER BY r.id
    FOR NO KEY UPDATE SKIP LOCKED",
);

pub(super) const WHICH_RESERVATIONS: &str = "
    SELECT r.id
    FROM reservations AS r
    WHERE r.id = ANY ($1)";

pub(super) async fn reservations(
    transaction: &mut PostgresTransaction,
    ids: &BTreeSet<ReservationId>,
    wait: Wait,
) -> Result<LockedReservations, StoreError> {
    if ids.is_empty() {
        return Ok(LockedReservations::default());
    }
    let sql = match wait {
        Wait::Briefly => LOCK_RESERVATIONS,
        Wait::Skip => LOCK_FREE_RESERVATIONS,
    };
    let rows = transaction.fetch(sqlx::query(sql).bind(uuids(ids))).await?;
    let mut locked = understand(&rows)?;
    if wait == Wait::Skip && rows.len() < ids.len() {
        let came: BTreeSet<ReservationId> = locked
            .rows
            .iter()
            .map(|reservation| reservation.id)
            .chain(locked.corrupt.keys().copied())
            .collect();
        let missing = uuids(ids.difference(&came));
        let query = sqlx::query(WHICH_RESERVATIONS).bind(missing);
        for row in transaction.fetch(query).await? {
            let id = row::reservation_id(&row, "reservations", "id")?;
            locked.elsewhere.insert(id);
        }
    }
    Ok(locked)
}

pub(super) const CLAIM_DUE: &str = concat!(
    "SELECT ",
    reservation_columns!(),
    "
    FROM reservations AS r
    WHERE r.state = 'held'
        AND r.attempt_at >= $1
        AND r.attempt_at <= coalesce($2, statement_timestamp()) - $4::float8 * interval '1 ms'
    ORDER BY r.attempt_at
    LIMIT $3
    FOR NO KEY UPDATE SKIP LOCKED",
);

/// The longest grace, in milliseconds: about 47 years, so that what is left of now is an instant.
const MAX_GRACE_MS: i64 = 1_500_000_000_000;

/// Whose rows others have locked is not asked here: whoever wants to know what is left looks for
/// the next attempt, which sees locked rows too.
pub(super) async fn due(
    transaction: &mut PostgresTransaction,
    from: Timestamp,
    grace_ms: i64,
    now: Option<Instant>,
    limit: usize,
) -> Result<LockedReservations, StoreError> {
    let query = sqlx::query(CLAIM_DUE)
        .bind(Instant(from))
        .bind(now)
        .bind(rows(limit))
        .bind(grace_ms.clamp(0, MAX_GRACE_MS) as f64);
    let rows = transaction.fetch(query).await?;
    Ok(understand(&rows)?)
}

/// Finds the oldest lines that have the units together, and locks their reservations. There is at
/// least one unit in a line, so as many lines as units are enough to look at. Holds whose next
/// attempt was put off are due all the same, and their units are wanted.
pub(super) const CLAIM_DUE_OF: &str = concat!(
    "SELECT ",
    reservation_columns!(),
    "
    FROM (
        SELECT
            l.reservation_id,
            sum(l.quantity) OVER (
                ORDER BY l.expires_at, l.reservation_id
                ROWS UNBOUNDED PRECEDING
            ) - l.quantity AS units_before
        FROM open_lines AS l
        CROSS JOIN LATERAL (
            SELECT state
            FROM reservations
            WHERE id = l.reservation_id
            OFFSET 0
        ) AS due
        WHERE l.location = $1
            AND l.sku = $2
            AND l.expires_at <= coalesce($3, statement_timestamp())
            AND due.state = 'held'
        ORDER BY l.expires_at, l.reservation_id
        LIMIT least($4::bigint, $5::bigint)
    ) AS oldest
    CROSS JOIN LATERAL (
        SELECT *
        FROM reservations
        WHERE id = oldest.reservation_id
        OFFSET 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS r
    WHERE oldest.units_before < $4
        AND r.state = 'held'
        AND r.expires_at <= coalesce($3, statement_timestamp())",
);

pub(super) async fn due_of(
    transaction: &mut PostgresTransaction,
    key: &StockKey,
    units: i64,
    now: Option<Instant>,
    limit: usize,
) -> Result<LockedReservations, StoreError> {
    let mut locked = oldest_due_of(transaction, key, units, now, limit).await?;
    if !locked.corrupt.is_empty() {
        // Nobody gets the units of a row that cannot be understood; others behind it may do.
        locked = oldest_due_of(transaction, key, i64::MAX, now, limit).await?;
        let mut missing = units;
        locked.rows.retain(|reservation| {
            let needed = missing > 0;
            missing -= reservation.units().get(key).copied().unwrap_or_default();
            needed
        });
    }
    Ok(locked)
}

async fn oldest_due_of(
    transaction: &mut PostgresTransaction,
    key: &StockKey,
    units: i64,
    now: Option<Instant>,
    limit: usize,
) -> Result<LockedReservations, StoreError> {
    let query = sqlx::query(CLAIM_DUE_OF)
        .bind(key.location.as_str())
        .bind(key.sku.as_str())
        .bind(now)
        .bind(units.max(0))
        .bind(rows(limit));
    let rows = transaction.fetch(query).await?;
    Ok(understand(&rows)?)
}

/// Sorts out the rows that cannot be understood.
fn understand(rows: &[PgRow]) -> Result<LockedReservations, CorruptRow> {
    let mut locked = LockedReservations::default();
    locked.rows.reserve(rows.len());
    for row in rows {
        let id = row::reservation_id(row, "reservations", "id")?;
        match row::reservation(row, id) {
            Ok(reservation) => locked.rows.push(reservation),
            Err(corrupt) => {
                locked.corrupt.insert(id, corrupt);
            }
        }
    }
    Ok(locked)
}

pub(super) const LOCK_STOCK: &str = "
    SELECT s.location, s.sku, s.on_hand, s.held, 0::bigint AS due, s.updated_at
    FROM unnest($1::text[], $2::text[]) AS k (location, sku)
    CROSS JOIN LATERAL (
        SELECT *
        FROM stock
        WHERE location = k.location AND sku = k.sku
        OFFSET 0
        FOR NO KEY UPDATE
    ) AS s";

pub(super) const LOCK_FREE_STOCK: &str = "
    SELECT s.location, s.sku, s.on_hand, s.held, 0::bigint AS due, s.updated_at
    FROM unnest($1::text[], $2::text[]) AS k (location, sku)
    CROSS JOIN LATERAL (
        SELECT *
        FROM stock
        WHERE location = k.location AND sku = k.sku
        OFFSET 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS s";

pub(super) const WHICH_STOCK: &str = "
    SELECT s.location, s.sku
    FROM unnest($1::text[], $2::text[]) AS k (location, sku)
    CROSS JOIN LATERAL (
        SELECT *
        FROM stock
        WHERE location = k.location AND sku = k.sku
        OFFSET 0
    ) AS s";

pub(super) async fn stock(
    transaction: &mut PostgresTransaction,
    keys: &BTreeSet<StockKey>,
    wait: Wait,
) -> Result<LockedStock, StoreError> {
    let mut locked = LockedStock::default();
    if keys.is_empty() {
        return Ok(locked);
    }
    let sql = match wait {
        Wait::Briefly => LOCK_STOCK,
        Wait::Skip => LOCK_FREE_STOCK,
    };
    let (locations, skus) = columns(keys);
    let query = sqlx::query(sql).bind(locations).bind(skus);
    for row in transaction.fetch(query).await? {
        locked.rows.push(row::stock(&row)?);
    }
    if wait == Wait::Skip && locked.rows.len() < keys.len() {
        let came: BTreeSet<&StockKey> = locked.rows.iter().map(|stock| &stock.key).collect();
        let (locations, skus) = columns(keys.iter().filter(|key| !came.contains(key)));
        let query = sqlx::query(WHICH_STOCK).bind(locations).bind(skus);
        for row in transaction.fetch(query).await? {
            locked.elsewhere.insert(row::stock_key(&row, "stock")?);
        }
    }
    Ok(locked)
}

pub(super) const DUE_UNITS: &str = "
    SELECT k.location, k.sku, l.due
    FROM unnest($1::text[], $2::text[]) AS k (location, sku)
    CROSS JOIN LATERAL (
        SELECT sum(l.quantity)::bigint AS due
        FROM open_lines AS l
        WHERE l.location = k.location
            AND l.sku = k.sku
            AND l.expires_at <= $3
    ) AS l
    WHERE l.due IS NOT NULL";

pub(super) async fn due_units(
    transaction: &mut PostgresTransaction,
    keys: &BTreeSet<StockKey>,
    now: Timestamp,
) -> Result<BTreeMap<StockKey, i64>, StoreError> {
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (locations, skus) = columns(keys);
    let query = sqlx::query(DUE_UNITS)
        .bind(locations)
        .bind(skus)
        .bind(Instant(now));
    let rows = transaction.fetch(query).await?;
    let due = rows.iter().map(row::due_units).collect::<Result<_, _>>()?;
    Ok(due)
}

pub(super) const JOBS_DONE: &str = "
    SELECT l.job_id
    FROM ledger AS l
    WHERE l.job_id = ANY ($1)";

pub(super) async fn jobs_done(
    transaction: &mut PostgresTransaction,
    jobs: &BTreeSet<JobId>,
) -> Result<BTreeSet<JobId>, StoreError> {
    if jobs.is_empty() {
        return Ok(BTreeSet::new());
    }
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    let rows = transaction.fetch(sqlx::query(JOBS_DONE).bind(jobs)).await?;
    let done = rows
        .iter()
        .map(|row| row::value(row, "job_id"))
        .collect::<Result<_, _>>()?;
    Ok(done)
}

pub(super) const REFUSED_PAYMENTS: &str = "
    SELECT e.reservation_id, e.data ->> 'payment_reference' AS payment_reference
    FROM events AS e
    WHERE e.kind = 'payment-refused'
        AND e.reservation_id = ANY ($1)";

pub(super) async fn refused_payments(
    transaction: &mut PostgresTransaction,
    ids: &BTreeSet<ReservationId>,
) -> Result<BTreeSet<(ReservationId, PaymentReference)>, StoreError> {
    if ids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let query = sqlx::query(REFUSED_PAYMENTS).bind(uuids(ids));
    let rows = transaction.fetch(query).await?;
    let refused = rows
        .iter()
        .map(row::refused_payment)
        .collect::<Result<_, _>>()?;
    Ok(refused)
}
