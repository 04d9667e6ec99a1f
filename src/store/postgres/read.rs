//! What everybody else may look at: one snapshot for each question, and no locks.

use std::collections::BTreeMap;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{QueryBuilder, Row};

use super::error::{has_code, store_error};
use super::instant::Instant;
use super::row::{self, reservation_columns};
use super::{Postgres, columns, rows};
use crate::domain::{Reservation, ReservationId, Sku, State, Stock, StockKey, Timestamp};
use crate::store::{
    Clock, Fate, NextAttempt, RecordedEvent, ReservationFilter, StockFilter, StoreError,
    TransactionId,
};

pub(super) type Statement<'q> = Query<'q, sqlx::Postgres, PgArguments>;

pub(super) async fn fetch(
    store: &Postgres,
    query: Statement<'_>,
) -> Result<Vec<PgRow>, StoreError> {
    query.fetch_all(&store.pool).await.map_err(store_error)
}

pub(super) async fn fetch_one(store: &Postgres, query: Statement<'_>) -> Result<PgRow, StoreError> {
    query.fetch_one(&store.pool).await.map_err(store_error)
}

pub(super) async fn fate(
    store: &Postgres,
    transaction: &TransactionId,
) -> Result<Fate, StoreError> {
    // A transaction that was never named did not get as far as to write anything.
    if transaction.0.parse::<u64>().is_err() {
        return Ok(Fate::Unknown);
    }
    let answer = sqlx::query("SELECT pg_xact_status($1::text::xid8)")
        .bind(&transaction.0)
        .fetch_one(&store.pool)
        .await
        .and_then(|row| row.try_get(0));
    let status: Option<String> = match answer {
        Ok(status) => status,
        // "In the future": this is another server, restored or promoted from behind.
        Err(error) if has_code(&error, "22023") => None,
        Err(error) => return Err(store_error(error)),
    };
    Ok(match status.as_deref() {
        Some("committed") => Fate::Committed,
        Some("aborted") => Fate::Aborted,
        _ => Fate::Unknown,
    })
}

pub(super) async fn now(store: &Postgres) -> Result<Timestamp, StoreError> {
    if let Clock::Manual(clock) = &store.clock {
        return Ok(clock.now());
    }
    let query = sqlx::query("SELECT clock_timestamp() AS now");
    let row = fetch_one(store, query).await?;
    Ok(row::value::<Instant>(&row, "now")?.0)
}

pub(super) const NEXT_ATTEMPT: &str = "
    SELECT
        coalesce($2, statement_timestamp()) AS now,
        (
            SELECT r.attempt_at
            FROM reservations AS r
            WHERE r.state = 'held' AND r.attempt_at >= $1
            ORDER BY r.attempt_at
            LIMIT 1
        ) AS attempt_at";

pub(super) async fn next_attempt(
    store: &Postgres,
    from: Timestamp,
) -> Result<NextAttempt, StoreError> {
    let query = sqlx::query(NEXT_ATTEMPT)
        .bind(Instant(from))
        .bind(Instant::by_hand(&store.clock));
    let row = fetch_one(store, query).await?;
    let attempt_at: Option<Instant> = row::value(&row, "attempt_at")?;
    Ok(NextAttempt {
        now: row::value::<Instant>(&row, "now")?.0,
        attempt_at: attempt_at.map(|instant| instant.0),
    })
}

pub(super) const STOCK: &str = "
    SELECT
        s.location,
        s.sku,
        s.on_hand,
        s.held,
        s.updated_at,
        CASE
            WHEN s.on_hand - s.held < k.wanted THEN (
                SELECT coalesce(sum(l.quantity), 0)::bigint
                FROM open_lines AS l
                WHERE l.location = s.location
                    AND l.sku = s.sku
                    AND l.expires_at <= coalesce($4, statement_timestamp())
            )
            ELSE 0
        END AS due
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS k (location, sku, wanted)
    CROSS JOIN LATERAL (
        SELECT *
        FROM stock
        WHERE location = k.location AND sku = k.sku
        OFFSET 0
    ) AS s";

pub(super) async fn stock(
    store: &Postgres,
    wanted: &BTreeMap<StockKey, i64>,
) -> Result<BTreeMap<StockKey, Stock>, StoreError> {
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (locations, skus) = columns(wanted.keys());
    let units: Vec<i64> = wanted.values().copied().collect();
    let query = sqlx::query(STOCK)
        .bind(locations)
        .bind(skus)
        .bind(units)
        .bind(Instant::by_hand(&store.clock));
    let mut found = BTreeMap::new();
    for row in fetch(store, query).await? {
        let stock = row::stock(&row)?;
        found.insert(stock.key.clone(), stock);
    }
    Ok(found)
}

pub(super) async fn list_stock(
    store: &Postgres,
    filter: &StockFilter,
    after: Option<&StockKey>,
    limit: usize,
) -> Result<Vec<Stock>, StoreError> {
    let mut query = QueryBuilder::new(
        "SELECT s.location, s.sku, s.on_hand, s.held, s.updated_at, (
            SELECT coalesce(sum(l.quantity), 0)::bigint
            FROM open_lines AS l
            WHERE l.location = s.location
                AND l.sku = s.sku
                AND l.expires_at <= coalesce(",
    );
    query.push_bind(Instant::by_hand(&store.clock));
    query.push(
        ", statement_timestamp())
        ) AS due
        FROM stock AS s
        WHERE true",
    );
    if let Some(location) = &filter.location {
        query
            .push(" AND s.location = ")
            .push_bind(location.as_str());
    }
    if !filter.skus.is_empty() {
        let skus: Vec<&str> = filter.skus.iter().map(Sku::as_str).collect();
        query.push(" AND s.sku = ANY (").push_bind(skus).push(")");
    }
    if let Some(after) = after {
        query
            .push(" AND (s.location, s.sku) > (")
            .push_bind(after.location.as_str());
        query.push(", ").push_bind(after.sku.as_str()).push(")");
    }
    query
        .push(" ORDER BY s.location, s.sku LIMIT ")
        .push_bind(rows(limit));
    let rows = fetch(store, query.build()).await?;
    let stock = rows.iter().map(row::stock).collect::<Result<_, _>>()?;
    Ok(stock)
}

/// There is always a row, so that there is always a now.
pub(super) const RESERVATION: &str = concat!(
    "SELECT coalesce($2, statement_timestamp()) AS now, ",
    reservation_columns!(),
    "
    FROM (SELECT) AS one
    LEFT JOIN reservations AS r ON r.id = $1",
);

pub(super) async fn reservation(
    store: &Postgres,
    id: ReservationId,
) -> Result<(Option<Reservation>, Timestamp), StoreError> {
    let query = sqlx::query(RESERVATION)
        .bind(id.as_uuid())
        .bind(Instant::by_hand(&store.clock));
    let row = fetch_one(store, query).await?;
    let now = row::value::<Instant>(&row, "now")?.0;
    let exists = row::value::<Option<uuid::Uuid>>(&row, "id")?.is_some();
    let reservation = exists.then(|| row::reservation(&row, id)).transpose()?;
    Ok((reservation, now))
}

pub(super) async fn list_reservations(
    store: &Postgres,
    filter: &ReservationFilter,
    before: Option<ReservationId>,
    limit: usize,
) -> Result<(Vec<Reservation>, Timestamp), StoreError> {
    // Read first: what the states in the answer were judged by, even if there are none.
    let now = now(store).await?;
    let mut query = QueryBuilder::new(concat!(
        "SELECT ",
        reservation_columns!(),
        "
        FROM reservations AS r
        WHERE true",
    ));
    match filter.state {
        None => {}
        Some(State::Held) => {
            query
                .push(" AND r.state = 'held' AND r.expires_at > ")
                .push_bind(Instant(now));
        }
        Some(State::Expired) => {
            query.push(" AND (r.state = 'expired' OR (r.state = 'held' AND r.expires_at <= ");
            query.push_bind(Instant(now)).push("))");
        }
        Some(state @ (State::Paid | State::Cancelled)) => {
            query.push(" AND r.state = ").push_bind(state.as_str());
        }
    }
    if let Some(customer_id) = &filter.customer_id {
        query
            .push(" AND r.customer_id = ")
            .push_bind(customer_id.as_str());
    }
    if let Some(reference) = &filter.reference {
        query
            .push(" AND r.reference = ")
            .push_bind(reference.as_str());
    }
    if let Some(before) = before {
        query.push(" AND r.id < ").push_bind(before.as_uuid());
    }
    query
        .push(" ORDER BY r.id DESC LIMIT ")
        .push_bind(rows(limit));
    let mut reservations = Vec::new();
    for row in fetch(store, query.build()).await? {
        let id = row::reservation_id(&row, "reservations", "id")?;
        reservations.push(row::reservation(&row, id)?);
    }
    Ok((reservations, now))
}

pub(super) const EVENTS: &str = "
    SELECT e.seq, e.reservation_id, e.kind, e.at, e.data::text AS data
    FROM events AS e
    WHERE e.seq > $1
    ORDER BY e.seq
    LIMIT $2";

pub(super) async fn events(
    store: &Postgres,
    after: i64,
    limit: usize,
) -> Result<Vec<RecordedEvent>, StoreError> {
    let query = sqlx::query(EVENTS).bind(after).bind(rows(limit));
    let rows = fetch(store, query).await?;
    let events = rows
        .iter()
        .map(row::recorded_event)
        .collect::<Result<_, _>>()?;
    Ok(events)
}
